"""Hypothesis strategies of gymnasium spaces, of samples of them, and of infos. No torch here."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from hypothesis import strategies as st

BOX_DTYPES = tuple(
    np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    )
)
"""All that numpy has but longdouble, which gymnasium takes and cannot sample."""

INTEGER_DTYPES = tuple(dtype for dtype in BOX_DTYPES if dtype.kind in "iu")
HAS_DISCRETE_DTYPE = "dtype" in inspect.signature(spaces.Discrete.__init__).parameters

"""gymnasium 1.1 has ``Discrete`` in int64 only."""
SHAPES = ((), (1,), (2,), (2, 3), (1, 2, 2), (0,), (2, 0))
DICT_KEYS = (
    *("position", "velocity", "x", "observation", "0", "1"),
    *("reward", "done", "terminated", "truncated", "action", "next", "info", "env_index", "valid"),
    *("_x", "_reset", "_user", "_", "a.b", "", " ", "é"),
)
"""Usual keys, those that mean something to a TensorDict env, and odd ones."""


def typed_discretes(*cases: tuple[int, int, type]) -> list[spaces.Discrete]:
    """``Discrete`` spaces of other dtypes than int64, from ``(n, start, dtype)``; none where gymnasium has none."""
    if not HAS_DISCRETE_DTYPE:
        return []
    return [spaces.Discrete(n, start=start, dtype=dtype) for n, start, dtype in cases]


@st.composite
def boxes(draw: st.DrawFn, dtypes: tuple[np.dtype, ...] = BOX_DTYPES, shapes: tuple = SHAPES) -> spaces.Box:
    """A ``Box`` of any dtype, each element with finite or, where the dtype has them, infinite bounds."""
    dtype = draw(st.sampled_from(dtypes))
    shape = draw(st.sampled_from(shapes))
    size = int(np.prod(shape))
    if dtype.kind == "b":
        return spaces.Box(0, 1, shape, dtype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        # sampling draws from [low, high + 1) as int64 or uint64, so leave the very last values out
        top = min(int(limits.max), 2**62)
        low, high = sorted((draw(st.integers(max(int(limits.min), -(2**62)), top)), draw(st.integers(0, top))))
        if draw(st.booleans()):
            return spaces.Box(low, high, shape, dtype)
        lows = np.full(shape, low, dtype)
        highs = np.full(shape, high, dtype)
        return spaces.Box(lows, highs, shape, dtype)
    finite = st.floats(-100, 100, width=16).map(lambda bound: bound + 0.0)  # numpy samples nothing in [0.0, -0.0]
    bounds = [
        (
            draw(st.sampled_from((-np.inf, None))),
            draw(st.sampled_from((np.inf, None))),
            *sorted((draw(finite), draw(finite))),
        )
        for _ in range(size)
    ]
    lows = np.array([low if infinite is None else infinite for infinite, _, low, _ in bounds], dtype).reshape(shape)
    highs = np.array([high if infinite is None else infinite for _, infinite, _, high in bounds], dtype).reshape(shape)
    return spaces.Box(lows, highs, shape, dtype)


@st.composite
def discretes(draw: st.DrawFn) -> spaces.Discrete:
    """A ``Discrete`` of any integer dtype, with a ``start`` that may be negative."""
    if not HAS_DISCRETE_DTYPE:
        return spaces.Discrete(draw(st.integers(1, 6)), start=draw(st.integers(-5, 100)))
    dtype = draw(st.sampled_from(INTEGER_DTYPES))
    start = draw(st.integers(-5 if dtype.kind == "i" else 0, 100))
    return spaces.Discrete(draw(st.integers(1, 6)), start=start, dtype=dtype.type)


@st.composite
def multi_discretes(draw: st.DrawFn) -> spaces.MultiDiscrete:
    """A ``MultiDiscrete`` of any integer dtype, with one or more dimensions and a ``start``."""
    dtype = draw(st.sampled_from(INTEGER_DTYPES))
    shape = draw(st.sampled_from(((1,), (3,), (2, 2), (1, 2, 2))))
    size = int(np.prod(shape))
    nvec = np.array(draw(st.lists(st.integers(1, 6), min_size=size, max_size=size)), dtype).reshape(shape)
    lowest = -5 if dtype.kind == "i" else 0
    starts = draw(st.lists(st.integers(lowest, 100), min_size=size, max_size=size))
    return spaces.MultiDiscrete(nvec, dtype=dtype.type, start=np.array(starts, dtype).reshape(shape))


def multi_binaries() -> st.SearchStrategy[spaces.MultiBinary]:
    """A ``MultiBinary`` with one or more dimensions."""
    return st.builds(spaces.MultiBinary, st.sampled_from((1, 3, (2, 2), (1, 2, 2))))


def leaf_spaces() -> st.SearchStrategy[spaces.Space]:
    """A space that is one array."""
    return st.one_of(boxes(), discretes(), multi_discretes(), multi_binaries())


def object_spaces() -> st.SearchStrategy[spaces.Space]:
    """A space whose samples are no arrays: ``Text``, ``Sequence``, ``Graph`` or ``OneOf``."""
    arrays = st.one_of(discretes(), boxes(shapes=((), (2,))))
    parts = st.one_of(arrays, arrays, st.just(spaces.Text(3)))
    return st.one_of(
        st.builds(lambda low, more: spaces.Text(low + more, min_length=low), st.integers(0, 2), st.integers(1, 3)),
        st.builds(spaces.Sequence, parts),
        st.builds(lambda part: spaces.Sequence(part, stack=True), arrays),
        st.builds(
            spaces.Graph,
            st.sampled_from((spaces.Box(-1, 1, (2,)), spaces.Discrete(3))),
            st.sampled_from((spaces.Box(-1, 1, (2,)), spaces.Discrete(2), None)),
        ),
        st.lists(parts, min_size=1, max_size=3).map(spaces.OneOf),
    )


def any_spaces(
    *, min_items: int = 0, max_leaves: int = 6, leaves: st.SearchStrategy[spaces.Space] | None = None
) -> st.SearchStrategy[spaces.Space]:
    """A space nested to any depth.

    Args:
        min_items: fewest items of a ``Dict`` or ``Tuple``; 0 for empty ones too.
        max_leaves: about how many leaves a space has at most.
        leaves: what it is made of; spaces of one array unless told.
    """

    def groups(parts: st.SearchStrategy[spaces.Space]) -> st.SearchStrategy[spaces.Space]:
        return st.one_of(
            st.lists(parts, min_size=min_items, max_size=3).map(spaces.Tuple),
            st.dictionaries(st.sampled_from(DICT_KEYS), parts, min_size=min_items, max_size=3).map(spaces.Dict),
        )

    return st.recursive(leaf_spaces() if leaves is None else leaves, groups, max_leaves=max_leaves)


def batchable(space: spaces.Space) -> bool:
    """Whether gymnasium itself can batch the space and sample the batch."""
    try:
        batch_space(space, 2).sample()
    except (ValueError, TypeError, OverflowError, AssertionError):
        return False
    return True


def samples(space: spaces.Space) -> st.SearchStrategy[Any]:
    """Samples of a space."""
    return st.integers(0, 2**31 - 1).map(lambda seed: sample_of(space, seed))


def sample_of(space: spaces.Space, seed: int) -> Any:
    """The first sample that a space gives after it is seeded."""
    space.seed(seed)
    return space.sample()


# ---------------------------------------------------------------- infos

INFO_KEYS = ("lives", "time", "x", "text", "episode", "a.b", "", "é")
INFO_NAMES = st.sampled_from(INFO_KEYS)


class Thing:
    """An object that no array can hold, equal to those with the same name."""

    def __init__(self, name: str):
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thing) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"Thing({self.name!r})"


def _arrays(dtype: str, shape: tuple[int, ...]) -> st.SearchStrategy[np.ndarray]:
    size = int(np.prod(shape))
    return st.lists(st.integers(0, 100), min_size=size, max_size=size).map(
        lambda values: np.array(values, dtype).reshape(shape)
    )


INFO_VALUES: tuple[st.SearchStrategy[Any], ...] = (
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.booleans(),
    st.integers(-128, 127).map(np.int8),
    st.integers(0, 2**64 - 1).map(np.uint64),
    st.floats(width=16).map(np.float16),
    st.floats(width=32).map(np.float32),
    st.floats().map(np.float64),
    st.booleans().map(np.bool_),
    st.complex_numbers().map(np.complex128),
    st.complex_numbers(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.none(),
    st.lists(st.integers(0, 3), max_size=3),
    st.tuples(st.integers(0, 3), st.text(max_size=2)),
    st.sampled_from("ab").map(Thing),
    _arrays("float32", (2,)),
    _arrays("int64", (2, 2)),
    _arrays("bool", (3,)),
    _arrays("uint8", ()),
    _arrays("float64", (0,)),
    _arrays("object", (2,)),
    _arrays("U2", (2,)),
)
"""One strategy a kind of value."""
NUMBER_KINDS = 11
"""So many of them, the first, are numbers."""


def info_sequences(
    *lengths: int, depth: int = 2, mixed: bool = False
) -> st.SearchStrategy[tuple[list[dict[str, Any]], ...]]:
    """Lists of infos in which an entry comes and goes, but is always of one kind, dicts of such entries included.

    Args:
        lengths: longest length of each list.
        depth: how deep dicts nest.
        mixed: an entry may also be of one kind here and of another there.
    """

    def of_schema(schema: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
        return st.fixed_dictionaries({}, optional={key: of_kind(kind) for key, kind in schema.items()})

    def of_kind(kind: Any) -> st.SearchStrategy[Any]:
        if isinstance(kind, tuple):
            return st.one_of(*map(of_kind, kind))
        return of_schema(kind) if isinstance(kind, dict) else INFO_VALUES[kind]

    kinds: st.SearchStrategy[Any] = st.integers(0, len(INFO_VALUES) - 1)
    if mixed:
        numbers = st.integers(0, NUMBER_KINDS - 1)
        groups = st.dictionaries(INFO_NAMES, kinds, max_size=2)
        kinds = st.one_of(kinds, st.tuples(numbers, numbers), st.tuples(kinds, kinds), st.tuples(kinds, groups))
    schemas = st.dictionaries(INFO_NAMES, kinds, max_size=4)
    for _ in range(depth - 1):
        schemas = st.dictionaries(INFO_NAMES, st.one_of(kinds, kinds, schemas), max_size=4)
    return schemas.flatmap(
        lambda schema: st.tuples(*(st.lists(of_schema(schema), min_size=1, max_size=length) for length in lengths))
    )
