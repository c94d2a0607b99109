"""Makers that several threads call at once, each of which may import the modules that another is importing."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["made_by"]

_PATIENCE = 10.0
"""Seconds."""


class _FirstCalls:
    """How many threads call a maker for the first time."""

    def __init__(self) -> None:
        self._num_calls = 0
        self._have_ended = threading.Condition()
        self.turn = threading.Lock()
        """Of those that call theirs again."""

    def __enter__(self) -> None:
        with self._have_ended:
            self._num_calls += 1

    def __exit__(self, *_: object) -> None:
        with self._have_ended:
            self._num_calls -= 1
            self._have_ended.notify_all()

    def await_end(self) -> None:
        """Waits until no thread does, but not for ever: one may be in a maker that waits for who waits here."""
        with self._have_ended:
            self._have_ended.wait_for(lambda: not self._num_calls, _PATIENCE)


_first_calls = _FirstCalls()


def _forget_calls() -> None:
    """In a forked child, where the threads that called them are not."""
    global _first_calls
    _first_calls = _FirstCalls()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_calls)


def made_by(maker: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What a maker gives; called again, and alone, where it met a module that another thread had half imported.

    Two threads that import modules which import each other would wait for ever; Python breaks that, and one of them
    sees a module that is not whole. In the main thread, where a process's envs are made one after the other, there is
    nothing to meet, and a maker is called once.

    Args:
        maker, args, kwargs: what is called.

    Example:
        >>> made_by(dict, (), {"a": 1})
        {'a': 1}
    """
    if threading.current_thread() is threading.main_thread():
        return maker(*args, **kwargs)
    calls = _first_calls
    with calls:
        try:
            return maker(*args, **kwargs)
        except (ImportError, AttributeError, KeyError, RuntimeError) as error:
            if not _met_half_a_module(error):
                raise
    calls.await_end()
    with calls.turn:
        return maker(*args, **kwargs)


def _met_half_a_module(error: Exception) -> bool:
    """Whether Python's import raised it where it broke a deadlock of threads that import each other's modules."""
    if isinstance(error, RuntimeError):
        return type(error).__name__ == "_DeadlockError"
    if not isinstance(error, KeyError):
        return "partially initialized module" in str(error)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename.startswith("<frozen importlib.")
