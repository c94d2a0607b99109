"""What is around an env while it is called: the process's random generators, and a time limit."""

from __future__ import annotations

import pickle
import random
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np

__all__ = ["CallHangs", "global_generators", "kept_generators", "limited", "same_generators"]


class CallHangs(BaseException):
    """A call took too long; no ``Exception``, so that an env which catches these does not catch it."""


@contextmanager
def limited(seconds: float | None) -> Iterator[None]:
    """Ends what takes longer than ``seconds`` with :class:`CallHangs`, where this thread and this system can.

    It can in the main thread, and while Python code runs or waits. A timer of somebody else's that ends before is left
    as it is; one that ends later goes on afterwards.

    Example:
        >>> with limited(60.0):
        ...     print("in time")
        in time
    """
    is_main = threading.current_thread() is threading.main_thread()
    if seconds is None or not is_main or not hasattr(signal, "setitimer"):
        yield
        return
    left, interval = signal.getitimer(signal.ITIMER_REAL)
    if 0 < left <= seconds:
        yield
        return

    def end(number: int, frame: Any) -> None:
        raise CallHangs(f"took longer than {seconds:g} s")

    handler, begun = signal.signal(signal.SIGALRM, end), perf_counter()
    try:
        # again and again: one that comes inside a destructor or a callback is lost
        signal.setitimer(signal.ITIMER_REAL, seconds, 0.1)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, handler)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - (perf_counter() - begun), 1e-3), interval)


def global_generators() -> dict[str, bytes]:
    """Where the random generators stand that all code of this process shares: of Python, numpy and torch.

    Torch's is told only where torch is imported.

    Example:
        >>> before = global_generators()
        >>> with kept_generators():
        ...     _ = random.random()
        ...     [name for name, state in global_generators().items() if state != before[name]]
        ['random']
    """
    states = {
        "random": pickle.dumps(random.getstate()),
        "np.random": pickle.dumps(np.random.get_state(legacy=False)),  # noqa: NPY002  # that of all code is meant
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        states["torch"] = torch.get_rng_state().numpy().tobytes()
    return states


@contextmanager
def kept_generators() -> Iterator[None]:
    """A context after which the shared generators are where they were."""
    python, numpy = random.getstate(), np.random.get_state(legacy=False)  # noqa: NPY002
    torch = sys.modules.get("torch")
    torch_state = None if torch is None else torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        if torch is not None:
            torch.set_rng_state(torch_state)


@contextmanager
def same_generators(seed: int = 0) -> Iterator[None]:
    """A context that the shared generators begin in the same state each time, and after which they are as they were.

    So two runs in it that differ do so by what is the env's own.

    Example:
        >>> def draw():
        ...     with same_generators():
        ...         return random.random()
        >>> draw() == draw()
        True
    """
    with kept_generators():
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.default_generator.manual_seed(seed % 2**63)  # of the CPU, as what is kept
        yield
