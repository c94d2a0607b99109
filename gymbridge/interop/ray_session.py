"""This process's connection with Ray: made where there is none, and watched while actors are waited for."""

from __future__ import annotations

import logging
import os
import socket
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

import ray

from gymbridge.errors import WorkerStartError
from gymbridge.interop.ray_workers import OVER

if TYPE_CHECKING:
    from gymbridge.interop.ray_workers import RayActor

__all__ = ["RaySession", "join_session"]

_logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.1
"""How often it is seen whether this process is still connected."""

_HEAD_SECONDS = 1.0
"""How often the head of the cluster is knocked at, and how long it has to open."""

_ANSWER_SECONDS = 2.0
"""That an actor has to answer in, where the head does not."""

_SECONDS_TO_END = 5.0
"""That the thread has to kill the last actors."""


class RaySession:
    """A connection with Ray that pools have in common.

    All that is asked of Ray for them is asked by one thread: an interrupt in the middle of Ray's code, or of a
    ``concurrent.futures.Future``, could leave a lock held; and Ray's own thread, which tells of results, must not wait
    for Ray.

    Where the caller is no longer connected, Ray tells nobody: calls under way never come to their end, and another call
    would start another cluster. And where the head of the cluster is gone, Ray waits for it for a minute and then ends
    this process. So another thread looks whether there is still a connection, and whether the head can be reached;
    where it cannot, actors that do not answer are taken for dead.

    Args:
        is_ours: it was made for pools, and is ended with the last of them.

    Attributes:
        users: how many engines use it.
        is_headless: the head of the cluster could not be reached when it was last looked for.
    """

    def __init__(self, is_ours: bool):
        self.users = 0
        self.is_headless = False
        self._is_ours = is_ours
        self._pid = os.getpid()
        self._key = _key()
        self._actors: weakref.WeakSet[RayActor] = weakref.WeakSet()
        self._requests: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        arguments = (self._requests,)
        self._asker = threading.Thread(target=_ask, args=arguments, name="gymbridge-ray-asks", daemon=True)
        self._asker.start()
        self._watcher: threading.Thread | None = None
        self._starting = threading.Lock()
        self._over = ""
        host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
        self._head = host.strip("[]"), int(port)

    @property
    def is_current(self) -> bool:
        """Is this process still connected as it was?"""
        return not self._over and ray.is_initialized() and _key() == self._key

    def look(self) -> None:
        """Has all actors be dead where the session is over; to be called before anything is asked of Ray.

        Raises:
            BrokenPipeError: it is over.
        """
        if not self.is_current:
            self._over = self._over or OVER
            for actor in list(self._actors):
                actor.lose(self._over)
            raise BrokenPipeError(self._over)

    def post(self, request: Callable[[], object]) -> None:
        """Has the thread that asks Ray do something, in the order in which it is posted; called in any thread.

        Args:
            request: sees to its own errors.
        """
        self._requests.put(request)

    # ---------------------------------------------------------------- in the thread that asks

    def new_actor(self, kind: type, options: dict[str, Any], threads: Sequence[str], arguments: tuple[Any, ...]) -> Any:
        """Has Ray start an actor; whether it does is seen by its first answer.

        Args:
            kind: its class.
            options: as Ray's ``options`` takes them.
            threads: the groups of calls that have a thread each.
            arguments: of the class.
        """
        remote = ray.remote(concurrency_groups=dict.fromkeys(threads, 1))(kind)
        return remote.options(max_restarts=0, max_task_retries=0, **options).remote(*arguments)

    def kill(self, handle: Any) -> None:
        """Ends an actor's process, without waiting for that."""
        ray.kill(handle, no_restart=True)

    def watch(self, actor: RayActor) -> None:
        """Has an actor be seen dead where the session ends."""
        with self._starting:
            self._actors.add(actor)
            if self._watcher is None:
                arguments = (weakref.ref(self),)
                self._watcher = threading.Thread(target=_watch, args=arguments, name="gymbridge-ray-watch", daemon=True)
                self._watcher.start()

    # ---------------------------------------------------------------- in the thread that watches

    def is_watched(self) -> bool:
        """Whether there are actors to watch; if not, who asks is not the watcher any more."""
        with self._starting:
            if any(not actor.has_ended for actor in list(self._actors)):
                return True
            self._watcher = None
            return False

    def look_at_head(self) -> None:
        """Where the head cannot be reached, takes actors that do not answer for dead."""
        self.is_headless = not _is_open(self._head)
        if not self.is_headless:
            return
        _logger.warning("%s", self.headless)
        asked = [(actor, actor.asked()) for actor in list(self._actors) if not actor.has_ended]
        deadline = perf_counter() + _ANSWER_SECONDS
        for actor, future in asked:
            try:
                future.result(max(0.0, deadline - perf_counter()))
            except Exception:
                actor.lose(f"{self.headless}, and the actor is silent")

    @property
    def headless(self) -> str:
        """What there is to say where the head cannot be reached."""
        return f"the Ray cluster is gone: its head cannot be reached at {':'.join(map(str, self._head))}"

    def require_usable(self) -> None:
        """Refuses to start actors where Ray could not.

        Raises:
            WorkerStartError: the session is over, or the head of the cluster cannot be reached.
        """
        if not self.is_current:
            raise WorkerStartError(f"no actor can be started: {OVER}")
        self.is_headless = not _is_open(self._head)
        if self.is_headless:
            raise WorkerStartError(f"no actor can be started: {self.headless}")

    def free_resources(self) -> dict[str, float] | None:
        """What the cluster has free; None where that cannot be told: without its head Ray would wait, then end us."""
        if not self.is_current or not _is_open(self._head):
            return None
        return {name: amount for name, amount in ray.available_resources().items() if not name.startswith("node:")}

    # ---------------------------------------------------------------- the end

    def leave(self, *, closed: bool) -> None:
        """One engine less uses it; with the last, a session that was made for them is ended.

        Args:
            closed: the engine was closed; where it was only let go of, this may be called in the middle of anything.
        """
        if os.getpid() != self._pid:  # a fork, which has none of the threads
            return
        with _lock:
            self.users -= 1
            if self.users or not closed or not self._is_ours:
                return
            self.end_asking()
            # it might ask something that starts another cluster, once this one is ended
            self._asker.join(0.0 if self.is_headless else _SECONDS_TO_END)
            if self.is_current:
                ray.shutdown()

    def end_asking(self) -> None:
        """Has the thread that asks Ray end, once it has asked all."""
        self._requests.put(None)


def join_session() -> RaySession:
    """The session of this process, for one engine more: the program's own, or one with a local cluster of its own.

    Raises:
        RuntimeError: this process is a client of Ray's, and no part of a cluster; or it is a fork of one that is
            connected.

    What ``ray.init`` raises comes through.
    """
    global _session
    if _is_fork_of_connected:
        raise RuntimeError(
            'backend="ray": this process is a fork of one that is connected with Ray, expected a process that connects '
            "itself: start it by spawn"
        )
    with _lock:
        if _session is None or not _session.is_current:
            if _session is not None:
                _session.end_asking()
            is_ours = not ray.is_initialized()
            if is_ours:
                ray.init()
            elif ray.util.client.ray.is_connected():
                raise RuntimeError(
                    'backend="ray": this process is connected by ray.init("ray://..."), expected a process that is '
                    "part of the cluster: run the program on one of its machines"
                )
            _session = RaySession(is_ours)
        _session.users += 1
        return _session


_session: RaySession | None = None
_lock = threading.RLock()
_is_fork_of_connected = False


def _note_fork() -> None:
    """In a forked child, which has Ray's connection and none of the threads that serve it."""
    global _lock, _session, _is_fork_of_connected
    _lock = threading.RLock()
    _session = None
    _is_fork_of_connected = _is_fork_of_connected or ray.is_initialized()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def _key() -> tuple[str, str]:
    """What tells one connection of this process from another; of none, empty."""
    try:
        context = ray.get_runtime_context()
        return context.get_node_id(), context.get_job_id()
    except Exception:  # it has just been ended, in another thread
        return "", ""


def _is_open(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, _HEAD_SECONDS).close()
    except OSError:
        return False
    return True


def _ask(requests: SimpleQueue[Callable[[], object] | None]) -> None:
    """In a thread: does what is posted, until it is given None."""
    while (request := requests.get()) is not None:
        request()
        del request  # which has what envs were sent


def _watch(session_of: weakref.ref[RaySession]) -> None:
    """In a thread: looks at a session, until there is nothing to look for."""
    next_look = perf_counter() + _HEAD_SECONDS
    while True:
        sleep(_LOOK_SECONDS)
        session = session_of()
        if session is None or not session.is_watched():
            return
        with suppress(BrokenPipeError):
            session.look()
            if perf_counter() >= next_look:
                session.look_at_head()
                next_look = perf_counter() + _HEAD_SECONDS
        del session
