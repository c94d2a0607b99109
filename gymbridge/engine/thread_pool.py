"""The engine of a pool whose envs are called in threads of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from gymbridge.engine.call_pool import CallPoolEngine
from gymbridge.engine.host import EnvDescription, RemoteHostOptions
from gymbridge.engine.makers import listed
from gymbridge.engine.parallel import Affinity, affinities
from gymbridge.engine.restarts import RestartLimit, Restarts
from gymbridge.engine.thread_crew import ThreadCrew

__all__ = ["ThreadPoolEngine"]

Description = TypeVar("Description", bound=EnvDescription)


class ThreadPoolEngine(CallPoolEngine[Description]):
    """A pool whose envs are called in threads of this process: nothing is pickled, and no env can be killed.

    There are as many threads as envs, so that all may block at once. Each env is made in a thread of its own, at the
    same time as the others, but then called in whichever thread is free: it is never in two calls at once, and not
    always in the same thread. An env that needs to be (a library that binds what it makes to a thread) belongs in a
    process. Threads that block no longer than it takes to look at the next call cost nearly nothing: one makes the
    calls of many envs.

    What an env gives, exceptions included, is had as the very object, and so are attributes and what goes to and comes
    from calls; of what work is given, arrays, dicts, lists and tuples are copied and other objects are not. An env that
    would end its thread (by ``sys.exit()``, say) is dead for good, with a ``WorkerDiedError`` whose cause is what it
    raised, and is closed; the thread goes on. One that takes too long is as dead (``WorkerTimeoutError``): its thread
    is left behind until it comes back, closes the env and ends, and another is started. The threads are daemons:
    ``close`` warns of envs that do not come to their end in time and leaves their threads behind, and with
    ``terminate`` it waits for none.

    Args:
        makers: one callable an env.
        options: how the envs are run.
        worker_affinity: the cores of each thread, a sequence with one entry an env or a function of its number; None
            for all. The env of that number is made on them, and what it starts then has them; its calls are made on
            those of whichever thread makes them.
        start_timeout: seconds until all envs are made; and until one is that is made anew.
        shutdown_timeout: seconds that ``close`` gives the envs unless it is told otherwise.
        step_timeout: seconds that a step or a reset of an env may take; its thread is left behind then.
            None for no limit.
        max_restarts: make an env that died anew, so often in so many seconds; None to raise at once. See
            :class:`~gymbridge.engine.lost_rows.LostRows` for what becomes of its row.

    Attributes:
        num_envs: number of envs.
        descriptions: what each env says of itself.
        block: the memory, once ``allocate`` has made it.
        shutdown_timeout: as it was given; it may be set.
        restarts: which envs have been made anew.

    Raises:
        WorkerDiedError: a maker raised what would end a program.
        WorkerStartError: a thread could not be started, or the envs were not made in time.
        ValueError, TypeError: no maker, or cores that are none or that this process may not use.
        NotImplementedError: cores, on a platform that cannot bind threads to them.

    What a maker raises comes through, marked with its env; the other envs are closed then.

    Example:
        >>> import gymnasium as gym
        >>> from gymbridge.engine.codes import Op
        >>> from gymbridge.engine.gym_host import GymHostOptions
        >>> engine = ThreadPoolEngine([lambda: gym.make("CartPole-v1")] * 3, GymHostOptions())
        >>> engine.allocate()
        >>> engine.submit([1], bytes([Op.RESET]), None)
        >>> engine.wait(1)
        [1]
        >>> engine.close()
    """

    def __init__(
        self,
        makers: Iterable[Callable[[], Any]],
        options: RemoteHostOptions[Description],
        *,
        worker_affinity: Affinity | None = None,
        start_timeout: float | None = 60.0,
        shutdown_timeout: float | None = 10.0,
        step_timeout: float | None = None,
        max_restarts: RestartLimit | None = None,
    ):
        makers = listed(makers)
        cores = affinities(worker_affinity, len(makers))
        restarts = Restarts(max_restarts)
        crew = ThreadCrew(makers, options.kinds, cores, start_timeout, step_timeout, restarts)
        super().__init__(crew, options, shutdown_timeout, restarts)
