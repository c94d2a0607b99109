"""What two runs of an env gave, compared to the bit."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

__all__ = ["Difference", "Record", "changed", "first_difference", "flat", "same"]

Record: TypeAlias = dict[str, Any]
"""What one call of an env gave: key, with the names of the groups that it is in -> value."""


class Difference(NamedTuple):
    """Where two runs differ first.

    Attributes:
        call: number of the call, 0 for the first reset.
        key: of the entry.
        one, other: what each has there, in words.
    """

    call: int
    key: str
    one: str
    other: str


def first_difference(one: Sequence[Record], other: Sequence[Record]) -> Difference | None:
    """Where two runs differ first, over the calls that both have made; None where they do not.

    Example:
        >>> first_difference([{"x": 1}, {"x": 2}], [{"x": 1}, {"x": 3}])
        Difference(call=1, key='x', one='2', other='3')
    """
    for call, (left, right) in enumerate(zip(one, other, strict=False)):
        for key in {**left, **right}:
            if key not in left or key not in right or not same(left[key], right[key]):
                return Difference(call, key, _shown(left, key), _shown(right, key))
    return None


def _shown(record: Record, key: str) -> str:
    if key not in record:
        return "nothing"
    value = record[key]
    return reprlib.repr(value.tolist() if hasattr(value, "tolist") else value)


def flat(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The entries of nested dicts, tuples and lists; each with its key.

    Example:
        >>> [*flat({"arm": {"angle": 1}, "pair": (2, 3)}, "observation")]
        [('observation.arm.angle', 1), ('observation.pair.0', 2), ('observation.pair.1', 3)]
    """
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from flat(part, f"{name}.{key}")
    elif isinstance(value, (tuple, list)):
        for index, part in enumerate(value):
            yield from flat(part, f"{name}.{index}")
    else:
        yield name, value


def changed(now: Any, before: Any, name: str) -> str | None:
    """The key of the first entry in which a value is not what it was; None where it is."""
    found = first_difference([dict(flat(before, name))], [dict(flat(now, name))])
    return None if found is None else found.key


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same to the bit; NaN is the same as itself.

    Example:
        >>> same(np.array([1.0, np.nan]), np.array([1.0, np.nan])), same(1, np.array([1, 1]))
        (True, False)
    """
    if one is other:
        return True
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(one, torch.Tensor):
        if not isinstance(other, torch.Tensor) or (one.dtype, one.shape) != (other.dtype, other.shape):
            return False
        if one.device.type == "meta" or other.device.type == "meta":  # no values
            return bool(one.device == other.device)
        return bool(_bytes(one).equal(_bytes(other)))
    if isinstance(one, (np.ndarray, np.generic, float, int)):
        left, right = np.asarray(one), np.asarray(other)
        if left.dtype != right.dtype or left.shape != right.shape:
            return False
        if not left.dtype.hasobject:
            return left.tobytes() == right.tobytes()
        if left.ndim:
            return all(same(a, b) for a, b in zip(left.ravel(), right.ravel(), strict=True))
    try:
        has_no_eq = type(one).__eq__ is object.__eq__  # type: ignore[comparison-overlap]
        if has_no_eq and type(one) is type(other):  # no copy would be equal to it
            return same_attributes(one, other)
        return bool(one == other)
    except Exception:  # values may compare in ways of their own
        return False


def same_attributes(one: Any, other: Any) -> bool:
    """Whether two objects of a type have the same attributes; what else they may be made of is not looked at."""
    left, right = getattr(one, "__dict__", {}), getattr(other, "__dict__", {})
    return left.keys() == right.keys() and all(
        key == its and same(part, own)
        for name in left
        for (key, part), (its, own) in zip(flat(left[name], name), flat(right[name], name), strict=True)
    )


def _bytes(tensor: Any) -> Any:
    """A tensor as bytes, which compare in every dtype."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(sys.modules["torch"].uint8) if flat.numel() else flat
