"""Where the layout puts each leaf, and the block that it describes."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from space_strategies import BOX_DTYPES, SHAPES

from gymbridge.engine.block import Block
from gymbridge.engine.layout import ALIGNMENT, Layout, Leaf

leaves = st.lists(
    st.builds(
        Leaf,
        st.tuples(st.sampled_from("abc"), st.sampled_from("xyz")),
        st.sampled_from(SHAPES),
        st.sampled_from((*BOX_DTYPES, np.dtype(np.longdouble))),
    ),
    max_size=5,
    unique_by=lambda leaf: leaf.key,
)
layouts = st.builds(
    lambda num, a, b, c: Layout(num, input=a, next=b, root=c), st.integers(1, 9), leaves, leaves, leaves
)


@given(layouts)
def test_fields_are_aligned_and_do_not_overlap(layout: Layout) -> None:
    fields = [field for section in layout.sections.values() for field in section.values()]
    fields.sort(key=lambda field: (field.offset, field.nbytes))  # an empty one may stand where the next does
    end = 0
    for field in fields:
        assert field.offset % ALIGNMENT == 0
        assert field.offset >= end
        assert field.shape[0] == layout.num_rows
        end = field.offset + field.nbytes
    assert layout.nbytes >= end


@given(layouts)
def test_each_array_of_a_block_is_memory_of_its_own(layout: Layout) -> None:
    block = Block(layout)
    arrays = {(name, key): array for name in ("input", "next", "root") for key, array in getattr(block, name).items()}
    assert {key: layout.sections[key[0]][key[1]].shape for key in arrays} == {k: a.shape for k, a in arrays.items()}
    for number, ((section, key), array) in enumerate(arrays.items()):
        assert array.dtype == layout.sections[section][key].dtype
        assert array.flags.c_contiguous
        assert array.flags.aligned
        assert not array.any()
        array[...] = number % 2
    for number, array in enumerate(arrays.values()):
        assert (array == number % 2).all()
    for control in (block.op, block.state, block.source):
        assert bytes(control) == bytes(layout.num_rows)


@given(layouts)
def test_a_layout_pickles(layout: Layout) -> None:
    again = pickle.loads(pickle.dumps(layout))
    assert (again.num_rows, again.nbytes, again.sections) == (layout.num_rows, layout.nbytes, layout.sections)


def test_a_key_twice_in_a_section_is_refused() -> None:
    leaf = Leaf(("a", "b"), (), np.dtype(np.float32))
    Layout(2, input=[leaf], next=[leaf], root=[leaf])
    with pytest.raises(ValueError, match=r"section 'next' has the key 'a.b' twice"):
        Layout(2, input=[], next=[leaf, leaf], root=[])
