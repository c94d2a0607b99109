"""One call at a time: a front's block is written by a call and read by the same call."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

__all__ = ["OneCallAtATime", "exclusive"]

_Method = TypeVar("_Method", bound=Callable[..., Any])


class OneCallAtATime:
    """What has methods that are :func:`exclusive`."""

    _call_under_way: str | None = None


def exclusive(method: _Method) -> _Method:
    """A method that is refused while another exclusive one of the same object is under way.

    Whether the other runs in another thread or has called back, through an env that knows its batch: both would write
    and read the same rows.

    Raises:
        RuntimeError: naming the call that is refused and the one that is under way.

    Example:
        >>> class Counter(OneCallAtATime):
        ...     @exclusive
        ...     def count(self):
        ...         return self.count()
        >>> Counter().count()
        Traceback (most recent call last):
        RuntimeError: count: refused while a call of count is under way, in this thread or another
    """
    name = method.__name__

    @wraps(method)
    def guarded(self: OneCallAtATime, *args: Any, **kwargs: Any) -> Any:
        # no call stands between look and mark, nor between mark and try: the interpreter changes threads and raises
        # KeyboardInterrupt at calls and loops only. A lock would stay locked by an interrupt right after its acquire.
        if self._call_under_way is not None:
            raise RuntimeError(
                f"{name}: refused while a call of {self._call_under_way} is under way, in this thread or another"
            )
        self._call_under_way = name
        try:
            return method(self, *args, **kwargs)
        finally:
            self._call_under_way = None

    return cast(_Method, guarded)
