"""The check of an env, whatever it is."""

from __future__ import annotations

import functools
import reprlib
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gymnasium as gym

from gymbridge.contract.calls import Options
from gymbridge.contract.findings import Fault, Findings, Report, shown
from gymbridge.contract.gymnasium_env import GymnasiumSubject
from gymbridge.contract.surroundings import CallHangs, kept_generators, limited
from gymbridge.engine.any_env import EnvBase, is_torchrl_env
from gymbridge.engine.makers import EnvMaker, is_env
from gymbridge.engine.time_limits import positive_time_limit, time_limit

__all__ = ["check", "find_faults"]

_one_at_a_time = threading.RLock()
"""The random generators that a check sets, and finds changed, belong to all threads."""


def find_faults(
    env: Any,
    *,
    num_steps: int = 1000,
    seed: int = 0,
    step_timeout: float | None = 10.0,
    start_timeout: float | None = 60.0,
    workers: bool = True,
) -> list[Fault]:
    """All that is wrong with an env for a run of many of it, errors first; see :func:`check` for the arguments.

    Example:
        >>> from gymbridge.contract import find_faults
        >>> find_faults("CartPole-v1", num_steps=100)
        []
    """
    return check(
        env, num_steps=num_steps, seed=seed, step_timeout=step_timeout, start_timeout=start_timeout, workers=workers
    ).faults


def check(
    env: Any,
    *,
    num_steps: int = 1000,
    seed: int = 0,
    step_timeout: float | None = 10.0,
    start_timeout: float | None = 60.0,
    workers: bool = True,
    progress: Callable[[str], object] | None = None,
) -> Report:
    """Looks at an env alone, beside others of its kind in this process, and in worker processes.

    Several instances are made, and closed. The shared random generators are afterwards as they were: checks in several
    threads wait for one another.

    Args:
        env: a gymnasium id; a callable that makes a ``gymnasium.Env``, a ``gymbridge.envs.EnvBase`` or, with TorchRL
            installed, a ``torchrl.envs.EnvBase``; or such an env, which stays open, and of which no others can be
            looked at. Of an id, gymnasium's own passive checker is left out.
        num_steps: steps of the longest run, with random actions. Others are of a hundred at most.
        seed: of the first episode and of the actions, 0 or more.
        step_timeout: seconds that a reset or a step may take; None for no limit. In this process it holds where the
            system can interrupt it: in the main thread, and while Python code runs or waits.
        start_timeout: seconds in which an env is made, here or in workers, and in which it closes; None for no limit.
        workers: look at worker processes too.
        progress: is called with what is looked at next.

    Returns:
        The faults, and what could not be looked at.

    Raises:
        TypeError: nothing that makes an env, or something else was made.
        ValueError: fewer than one step, a negative seed, or a time limit that is none.
        TimeoutError: the first env was not made in time.

    What the maker raises the first time comes through; so does an id that is not registered.

    Example:
        >>> import gymnasium as gym
        >>> import numpy as np
        >>> from gymbridge.contract import check
        >>> class Doubling(gym.ObservationWrapper):
        ...     def observation(self, observation):
        ...         return 2 * observation.astype(np.float64)
        >>> report = check(lambda: Doubling(gym.make("CartPole-v1")), num_steps=100)
        >>> [(fault.code, fault.key, fault.got) for fault in report.errors]
        [('observation-dtype', 'observation', 'dtype float64')]
        >>> report.not_checked
        ['worker processes, which would stop at observation-dtype']
    """
    if num_steps < 1:
        raise ValueError(f"num_steps: got {num_steps}, expected at least 1")
    if seed < 0:
        raise ValueError(f"seed: got {seed}, expected 0 or more")
    maker = _maker_of(env)
    findings = Findings()
    options = Options(
        num_steps,
        seed,
        positive_time_limit("step_timeout", step_timeout),
        time_limit("start_timeout", start_timeout),
        workers,
        progress or (lambda text: None),
    )
    with _one_at_a_time, kept_generators():
        options.progress("making an env")
        made = env if maker is None else _made_first(maker, options)
        try:
            return _checked(made, maker, findings, options)
        finally:
            if maker is not None and not findings.has("close-raises"):
                # one that is closed already may say so
                with suppress(Exception, SystemExit, CallHangs), limited(options.start_timeout):
                    made.close()


def _made_first(maker: Callable[[], Any], options: Options) -> Any:
    try:
        with limited(options.start_timeout):
            return EnvMaker(maker, {})()
    except CallHangs as error:
        raise TimeoutError(f"env: making it {error}") from None


def _maker_of(env: Any) -> Callable[[], Any] | None:
    """What makes an env; None where it is made already."""
    if is_env(env):
        return None
    if isinstance(env, str):
        return functools.partial(gym.make, env, disable_env_checker=True)
    if not callable(env):
        raise TypeError(
            f"env: got {reprlib.repr(env)} of type {type(env).__name__}, expected an env, a registered id or a "
            f"callable that makes an env"
        )
    made: Callable[[], Any] = env
    return made


def _checked(env: Any, maker: Callable[[], Any] | None, findings: Findings, options: Options) -> Report:
    if isinstance(env, gym.Env):
        make = None if maker is None else EnvMaker(maker, {})
        GymnasiumSubject(env, make, findings, options).check(maker)
        return findings.report(shown(env, str))
    if is_torchrl_env(env):
        from gymbridge.interop.torchrl import from_torchrl

        name = type(env).__name__
        env, maker = from_torchrl(env), None if maker is None else from_torchrl(maker)
    elif isinstance(env, EnvBase):
        name = type(env).__name__
    else:
        hint = "; it is a batch already: give the env that it is made of" * isinstance(env, gym.vector.VectorEnv)
        raise TypeError(
            f"env: got {reprlib.repr(env)} of type {type(env).__name__}, expected a gymnasium.Env or a "
            f"gymbridge.envs.EnvBase{hint}"
        )
    from gymbridge.contract.tensordict_env import TensorDictSubject

    make = None if maker is None else EnvMaker(maker, {})
    TensorDictSubject(env, make, findings, options).check(maker)
    return findings.report(name)
