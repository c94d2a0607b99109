"""Pickling what is sent to workers, and saying what stands in its way."""

from __future__ import annotations

import functools
import io
import pickle
import re
import reprlib
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import cloudpickle

from gymbridge.errors import UnpicklableError

__all__ = ["can_be_pickled", "dumps", "dumps_plainly", "loads", "what_cannot_be_pickled"]

_DEEPEST = 20


def dumps(value: Any, what: str) -> bytes:
    """Pickles ``value`` with cloudpickle.

    Args:
        value: anything.
        what: its name in the error.

    Raises:
        UnpicklableError: it cannot be pickled; the message names the part of it that stands in the way.

    Example:
        >>> import threading
        >>> lock = threading.Lock()
        >>> dumps(lambda: lock, "the maker of env 3")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        gymbridge.errors.UnpicklableError: the maker of env 3 cannot be sent to a worker process: its global ...
    """
    try:
        pickled: bytes = cloudpickle.dumps(value)
    except Exception as error:
        path, culprit = what_cannot_be_pickled(value)
        part = f"{', '.join(path)} is" if path else "it is"
        raise UnpicklableError(
            f"{what} cannot be sent to a worker process: {part} {reprlib.repr(culprit)} of type "
            f"{type(culprit).__qualname__}, which cannot be pickled ({error}). Make it inside the maker, or start the "
            f'workers with mp_start_method="fork" (context="fork" in gymnasium\'s signature), which hands it over '
            f"unpickled."
        ) from error
    return pickled


def dumps_plainly(value: Any) -> bytes:
    """Pickles ``value`` without cloudpickle, and so quickly; what belongs to no module that is imported is refused.

    ``pickle`` itself would look for a class that came here by value in its module, and import that: it runs the
    caller's code, takes long, and the class in it is another one.

    Raises:
        Exception: of any kind; it cannot be pickled so.

    Example:
        >>> pickle.loads(dumps_plainly({"answer": 42}))
        {'answer': 42}
    """
    file = io.BytesIO()
    _PlainPickler(file, pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


class _PlainPickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (type, types.FunctionType)) and obj.__module__ not in sys.modules:
            raise pickle.PicklingError(f"{obj!r} came here by value")
        return NotImplemented


def loads(pickled: bytes | bytearray | memoryview) -> Any:
    """Unpickles ``pickled``; classes that are here already, whoever sent them first, stay as they are.

    cloudpickle knows a class that it has pickled by value when it comes back, but has it take everything that came with
    it: copies of its lists, and methods that see copies of the globals.

    Example:
        >>> class Counter:
        ...     instances = []
        >>> instances = Counter.instances
        >>> type(loads(cloudpickle.dumps(Counter()))) is Counter, Counter.instances is instances
        (True, True)
    """
    if not _BY_VALUE.search(pickled):  # which copies nothing
        return pickle.loads(pickled)
    return _Unpickler(io.BytesIO(pickled)).load()


_BY_VALUE = re.compile(b"_class_setstate")


class _Unpickler(pickle.Unpickler):
    """Puts functions of its own in the place of two of cloudpickle's, as far as it knows these."""

    def __init__(self, file: io.BytesIO):
        super().__init__(file)
        self._here: set[int] = set()
        self._known = getattr(cloudpickle.cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_ID", {})

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if module == "cloudpickle.cloudpickle":
            if name in ("_make_skeleton_class", "_make_skeleton_enum"):
                return functools.partial(self._class, found)
            if name == "_class_setstate":
                return functools.partial(self._with_state, found)
        return found

    def _class(self, make: Any, *arguments: Any) -> Any:
        *_, tracker_id, _ = arguments
        is_here = tracker_id is not None and tracker_id in self._known
        made = make(*arguments)
        if is_here:
            self._here.add(id(made))
        return made

    def _with_state(self, set_state: Any, kind: Any, state: Any) -> Any:
        return kind if id(kind) in self._here else set_state(kind, state)


def what_cannot_be_pickled(value: Any) -> tuple[list[str], Any]:
    """The innermost part of ``value`` that cannot be pickled: the way to it, in words, and the part.

    Example:
        >>> import threading
        >>> path, culprit = what_cannot_be_pickled({"a": [1, threading.Lock()]})
        >>> path, type(culprit).__name__
        (["its item 'a'", 'its item 1'], 'lock')
    """
    path: list[str] = []
    seen = {id(value)}
    while len(path) < _DEEPEST:
        for name, part in _parts(value):
            if id(part) not in seen and not can_be_pickled(part):
                path.append(f"its {name}")
                value = part
                seen.add(id(part))
                break
        else:
            break
    return path, value


def can_be_pickled(value: Any) -> bool:
    """Whether a value can go to a process that does not know this one's modules."""
    try:
        cloudpickle.dumps(value)
    except Exception:
        return False
    return True


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What pickling ``value`` would pickle with it, as (name, part)."""
    if isinstance(value, types.FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, functools.partial):
        yield "function", value.func
        yield from ((f"argument {index}", part) for index, part in enumerate(value.args))
        yield from ((f"argument {name!r}", part) for name, part in value.keywords.items())
    elif isinstance(value, types.MethodType):
        yield "object", value.__self__
        yield "function", value.__func__
    elif isinstance(value, Mapping):
        yield from ((f"item {key!r}", part) for key, part in value.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"item {index}", part) for index, part in enumerate(value))
    elif isinstance(value, type):
        yield from ((f"class attribute {name!r}", part) for name, part in vars(value).items() if name != "__dict__")
    else:
        yield from ((f"attribute {name!r}", part) for name, part in getattr(value, "__dict__", {}).items())
        yield "class", type(value)


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"closure variable {name!r}", cell.cell_contents
        except ValueError:  # not bound yet
            continue
    yield from ((f"default argument {index}", part) for index, part in enumerate(function.__defaults__ or ()))
    yield from ((f"default of argument {name!r}", part) for name, part in (function.__kwdefaults__ or {}).items())
    for name in _global_names(function.__code__):
        if name in function.__globals__:
            yield f"global variable {name!r}", function.__globals__[name]
    yield from ((f"attribute {name!r}", part) for name, part in vars(function).items())


def _global_names(code: types.CodeType) -> set[str]:
    """Names that the code, or a function inside it, may look up outside."""
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return set(code.co_names).union(*map(_global_names, inner))
