"""Infos of numbers as records: what has a form, and that what comes out is what went in, in types and bits."""

from __future__ import annotations

import pickle
import struct
import subprocess
import sys
from collections import OrderedDict
from enum import Enum, IntEnum
from typing import Any

import numpy as np
import pytest
from agreement import assert_same
from hypothesis import given
from hypothesis import strategies as st

from gymbridge.engine.block import Block
from gymbridge.engine.info_forms import CAPACITY, InfoForm, info_tree
from gymbridge.engine.info_records import FORMS_KEY, INFO_LEAVES, OF_RESET, OF_STEP, InfoRecords, forget_infos
from gymbridge.engine.layout import Layout

CHARS = "?bBhHiIlLqQefdgFDG"


class Level(IntEnum):
    ONE = 1


class Key(str, Enum):
    X = "x"


class MyFloat(float):
    pass


class MyArray(np.ndarray):
    pass


def form_of(info: Any) -> InfoForm:
    tree = info_tree(info)
    assert tree is not None
    return InfoForm(tree)


def there_and_back(info: dict[str, Any]) -> dict[str, Any]:
    form = form_of(info)
    memory = bytearray(b"\xff" * (form.nbytes + 128))
    assert form.pack_into(memory, 64, info)
    assert memory[:64] == b"\xff" * 64
    assert memory[64 + form.nbytes :] == b"\xff" * 64
    return form.unpack_from(memory, 64)


def arrays_of(char: str) -> st.SearchStrategy[np.ndarray]:
    """Arrays of any bits, NaNs of every kind among them."""
    dtype = np.dtype(char)
    shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)

    def filled(shape: tuple[int, ...]) -> st.SearchStrategy[np.ndarray]:
        size = int(np.prod(shape))
        if char in "?gG":  # not every bit pattern is a value
            values = st.lists(st.booleans() if char == "?" else st.floats(), min_size=size, max_size=size)
            return values.map(lambda each: np.array(each, dtype).reshape(shape))
        nbytes = size * dtype.itemsize
        return st.binary(min_size=nbytes, max_size=nbytes).map(lambda raw: np.ndarray(shape, dtype, raw).copy())

    return shapes.flatmap(filled)


NUMBERS = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.booleans(),
    *(arrays_of(char) for char in CHARS),
    *(arrays_of(char).filter(lambda array: array.size).map(lambda array: array.reshape(-1)[0]) for char in CHARS),
)
INFOS = st.recursive(
    st.dictionaries(st.text("xy z\ud800", max_size=2), NUMBERS, max_size=3),
    lambda inner: st.dictionaries(st.text("abc", max_size=2), st.one_of(NUMBERS, inner), max_size=3),
    max_leaves=4,
)


@given(INFOS)
def test_an_info_comes_back_as_it_went(info: dict[str, Any]) -> None:
    assert_same(there_and_back(info), info)


@pytest.mark.parametrize("char", CHARS)
def test_every_dtype_has_a_form(char: str) -> None:
    array = np.zeros((2, 3), char)
    assert_same(there_and_back({"a": array, "s": array[0, 0]}), {"a": array, "s": array[0, 0]})


@pytest.mark.parametrize("bits", [0x7FF8_0000_0000_0001, 0xFFF8_DEAD_BEEF_0001, 0x7FF0_0000_0000_0001])
def test_the_payload_of_a_nan_is_kept(bits: int) -> None:
    value = struct.unpack("d", struct.pack("Q", bits))[0]
    single = np.frombuffer(np.uint32(0x7F800001).tobytes(), np.float32)  # one that signals: a cast would change it
    back = there_and_back({"python": value, "numpy": np.float64(value), "single": single[0], "array": single})
    assert struct.pack("d", back["python"]) == struct.pack("d", value)
    assert back["numpy"].tobytes() == np.float64(value).tobytes()
    assert back["single"].tobytes() == back["array"].tobytes() == single.tobytes()


def test_what_comes_back_is_the_callers_own() -> None:
    form = form_of({"x": np.zeros(2)})
    memory = bytearray(form.nbytes)
    array = form.unpack_from(memory, 0)["x"]
    array += 1
    assert array.flags.owndata
    assert bytes(memory) == bytes(form.nbytes)


@pytest.mark.parametrize(
    "info",
    [
        {"x": 2**63},
        {"x": -(2**63) - 1},
        {"x": 1j},
        {"x": None},
        {"x": "1"},
        {"x": b"1"},
        {"x": [1]},
        {"x": (1, 2)},
        {"x": Level.ONE},
        {"x": MyFloat(1)},
        {"x": np.zeros(2).view(MyArray)},
        {"x": np.ma.zeros(2)},
        {"x": np.zeros(2, ">f4" if sys.byteorder == "little" else "<f4")},
        {"x": np.zeros(2, [("a", "f4")])},
        {"x": np.zeros(2, object)},
        {"x": np.zeros(2, "U2")},
        {"x": np.zeros(2, "M8[s]")},
        {"x": np.zeros(2, np.dtype("f4", metadata={"unit": "m"}))},
        {"x": np.datetime64(1, "s")},
        {"x": np.zeros(CAPACITY + 1, np.uint8)},
        {"x": OrderedDict(y=1)},
        {"x": {"y": {"z": "text"}}},
        {"_x": 1},
        {"x": {"_y": 1}},
        {"final_obs": 1},
        {"x": {"final_info": 1}},
        {1: 1},
        {Key.X: 1},
        {np.str_("x"): 1},
        {"x": 1, 2: 2},
        OrderedDict(x=1),
        [("x", 1)],
        None,
    ],
    ids=repr,
)
def test_what_has_no_form(info: Any) -> None:
    assert info_tree(info) is None


def test_dicts_that_nest_without_end_have_no_form() -> None:
    info: dict[str, Any] = {}
    info["x"] = info
    assert info_tree(info) is None


@pytest.mark.parametrize(
    "other",
    [
        {"a": 1, "b": np.zeros(2)},
        {"b": np.zeros(2), "a": 1, "c": {"d": 1.0}},
        {"a": 1, "b": np.zeros(2), "c": {"d": 1.0}, "e": 1},
        {"a": 1.0, "b": np.zeros(2), "c": {"d": 1.0}},
        {"a": True, "b": np.zeros(2), "c": {"d": 1.0}},
        {"a": Level.ONE, "b": np.zeros(2), "c": {"d": 1.0}},
        {"a": 2**63, "b": np.zeros(2), "c": {"d": 1.0}},
        {"a": 1, "b": np.zeros(3), "c": {"d": 1.0}},
        {"a": 1, "b": np.zeros((2, 1)), "c": {"d": 1.0}},
        {"a": 1, "b": np.zeros(2, np.int64), "c": {"d": 1.0}},
        {"a": 1, "b": np.zeros(2, ">f8" if sys.byteorder == "little" else "<f8"), "c": {"d": 1.0}},
        {"a": 1, "b": np.zeros(2).view(MyArray), "c": {"d": 1.0}},
        {"a": 1, "b": np.zeros(2), "c": {"d": np.float64(1)}},
        {"a": 1, "b": np.zeros(2), "c": {"e": 1.0}},
        {"a": 1, "b": np.zeros(2), "c": OrderedDict(d=1.0)},
        {"a": 1, "b": np.zeros(2), "c": 1.0},
        {np.str_("a"): 1, "b": np.zeros(2), "c": {"d": 1.0}},
        {},
    ],
    ids=repr,
)
def test_an_info_of_another_form_is_not_taken(other: dict[str, Any]) -> None:
    info = {"a": 1, "b": np.zeros(2), "c": {"d": 1.0}}
    form = form_of(info)
    memory = bytearray(form.nbytes)
    assert form.pack_into(memory, 0, info)
    assert not form.pack_into(memory, 0, other)


@pytest.mark.parametrize(
    "array", [np.arange(12.0).reshape(3, 4).T, np.arange(24.0).reshape(4, 6)[:, ::2], np.float64(3)]
)
def test_arrays_of_any_order_come_back_in_their_own(array: Any) -> None:
    assert_same(there_and_back({"x": array})["x"], array)


def test_a_dtype_that_is_equal_to_numpys_own_is_taken() -> None:
    """Unpickled arrays may have a dtype object of their own."""
    form = form_of({"x": np.zeros(2, np.float32)})
    array = np.zeros(2, np.dtype("=f4").newbyteorder().newbyteorder())
    assert array.dtype is not np.dtype("f4")
    assert form.pack_into(bytearray(form.nbytes), 0, {"x": array})


def test_entries_are_aligned() -> None:
    info = {"a": True, "b": 1.0, "c": np.uint8(1), "d": np.zeros(2, np.longdouble), "e": False, "f": np.zeros(3, "f4")}
    for entry in form_of(info).entries.values():
        assert entry.offset % entry.dtype.alignment == 0


def test_numbers_tell_forms_apart_and_are_the_same_in_every_process() -> None:
    infos = [{"x": 1}, {"x": 1.0}, {"x": True}, {"x": np.int64(1)}, {"x": np.array(1)}, {"y": 1}, {"x": {"x": 1}}]
    infos += [{"x": 1, "y": 1}, {"y": 1, "x": 1}, {"x": np.zeros(1, int)}, {"x": {}}]
    numbers = [form_of(info).number for info in infos]
    assert len(set(numbers)) == len(numbers)
    assert 0 not in numbers
    assert [pickle.loads(pickle.dumps(form_of(info))).number for info in infos] == numbers
    code = "from gymbridge.engine.info_forms import *; print(InfoForm(info_tree({'x': 1})).number)"
    assert int(subprocess.check_output([sys.executable, "-c", code], text=True)) == numbers[0]


# ---------------------------------------------------------------- what a host keeps


def block_of(num_rows: int) -> Block:
    return Block(Layout(num_rows, input=[], next=INFO_LEAVES, root=[]))


def test_a_host_keeps_some_dozens_of_forms() -> None:
    """An env that invents a key each step fills no memory; what had a form keeps it."""
    records = InfoRecords(block_of(1))
    numbers = [records.put(0, OF_STEP, {f"key {number}": number}) for number in range(1000)]
    known = [number for number in numbers if number]
    assert 12 <= len(known) <= 100
    assert numbers[: len(known)] == known
    assert [records.put(0, OF_STEP, {f"key {number}": 0}) for number in range(len(known))] == known
    assert records.put(0, OF_STEP, {"another": 1}) == 0
    texts = [records.put(0, OF_STEP, {f"text {number}": "x"}) for number in range(1000)]
    assert not any(texts)
    sizes = [len(own) for own in vars(records).values() if isinstance(own, dict)]
    assert len(sizes) == 3
    assert max(sizes) <= 200


@pytest.mark.parametrize(("size", "fits"), [(CAPACITY - 8, True), (CAPACITY - 7, False)])
def test_a_record_is_as_large_as_its_place(size: int, fits: bool) -> None:
    block = block_of(2)
    records = InfoRecords(block)
    infos = [{"x": np.full(size, row, np.uint8), "y": row} for row in range(4)]
    numbers = [records.put(row // 2, row % 2, info) for row, info in enumerate(infos)]
    assert [bool(number) for number in numbers] == [fits] * 4
    if fits:
        form = records.form(numbers[0])
        memory = block.next["_infos", "records"].reshape(-1).data
        for row, info in enumerate(infos):
            assert_same(form.unpack_from(memory, row * CAPACITY), info)


@pytest.mark.parametrize("empty", [OrderedDict(), OrderedDict(x=1), None, 3])
def test_only_dicts_have_records(empty: Any) -> None:
    assert InfoRecords(block_of(1)).put(0, OF_STEP, empty) == 0


def test_infos_that_never_have_a_form_are_not_looked_at_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """But those are whose keys some info with a form has."""
    records = InfoRecords(block_of(1))
    numeric = records.put(0, OF_STEP, {"x": 1})
    for _ in range(50):
        assert records.put(0, OF_STEP, {"x": "text"}) == 0
        assert records.put(0, OF_STEP, {"text": "text"}) == 0
    assert records.put(0, OF_STEP, {"x": 2}) == numeric
    assert records.put(0, OF_STEP, {"x": 2.0}) not in (0, numeric)
    monkeypatch.setattr("gymbridge.engine.info_records.info_tree", lambda info: pytest.fail("looked at again"))
    assert records.put(0, OF_STEP, {"text": "text"}) == 0


@pytest.mark.parametrize("info", [{str(key): 1.0 for key in range(CAPACITY)}, {"text": "x"}], ids=["large", "text"])
def test_infos_too_large_or_among_many_others_are_not_looked_at_for_ever(
    info: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    records = InfoRecords(block_of(1))
    for number in range(50):
        assert records.put(0, OF_STEP, info) == 0
        if number == 1:
            assert not any(records.put(0, OF_STEP, {f"once {other}": "x"}) for other in range(50))
    monkeypatch.setattr("gymbridge.engine.info_records.info_tree", lambda info: pytest.fail("looked at again"))
    assert records.put(0, OF_STEP, info) == 0


def test_only_rows_with_an_op_forget_their_infos() -> None:
    block = block_of(3)
    records = InfoRecords(block)
    for row in range(3):
        for which in (OF_STEP, OF_RESET):
            records.numbers[2 * row + which] = records.put(row, which, {"x": row})
    forms = block.next[FORMS_KEY]
    records.clear(bytes([0, 2, 0]))
    assert (forms != 0).tolist() == [[True, True], [False, False], [True, True]]
    forget_infos(block, [2])
    assert (forms != 0).tolist() == [[True, True], [False, False], [False, False]]
    records.clear(bytes([1, 1, 1]))
    assert not forms.any()
