"""Actions between the tensors of a TensorDict and the arrays that an env takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Discrete, MultiDiscrete

from gymbridge.errors import SpecError
from gymbridge.spaces.leaves import leaf_spec
from gymbridge.spaces.naming import action_tree
from gymbridge.spaces.samples import decoded_leaf

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from gymnasium import Space
    from numpy.typing import NDArray

    from gymbridge.spaces.naming import SpaceLeaf
    from gymbridge.specs._bridge import DeviceLike
    from gymbridge.specs._leaf import LeafSpec

__all__ = ["ActionCodec", "objects_in"]


class ActionCodec:
    """Turns tensors of actions into numpy arrays of the space's values, leaf by leaf, and back.

    Leading dims are those of the batch, whatever their number. Shapes and dtypes are the caller's to check; one-hot
    encodings are checked here.

    Args:
        space: action space of one env.
        device: where the tensors that ``encode`` gives are; None is torch's default device.
        categorical_action_encoding: False where the tensors have one-hot encodings of ``Discrete`` and
            ``MultiDiscrete`` (bools).

    Attributes:
        leaves: the leaves of the space, in the order in which ``encode`` and ``decode`` have them.

    Raises:
        UnsupportedSpaceError: a part of the space has no translation, or no tensor holds it.

    Example:
        >>> import numpy as np
        >>> from gymnasium.spaces import Discrete
        >>> import torch
        >>> codec = ActionCodec(Discrete(3, start=5), categorical_action_encoding=False)
        >>> codec.decode([torch.tensor([[False, True, False], [False, False, True]])])
        [array([6, 7])]
        >>> codec.encode([np.array([6])])
        [tensor([[False,  True, False]])]
        >>> codec.decode([torch.tensor([[False, True, False], [False, True, True]])])
        Traceback (most recent call last):
        gymbridge.errors.SpecError: action[1]: got [False, True, True], expected exactly one True
    """

    def __init__(self, space: Space[Any], *, device: DeviceLike = None, categorical_action_encoding: bool = True):
        self.leaves: tuple[SpaceLeaf, ...] = action_tree(space).leaves
        self._specs = [leaf_spec(leaf.space, leaf.key, device, categorical_action_encoding) for leaf in self.leaves]
        decoders = [
            _ObjectDecoder(leaf, spec)
            if not leaf.is_array
            else _as_array
            if categorical_action_encoding
            else _decoder(leaf)
            for leaf, spec in zip(self.leaves, self._specs, strict=True)
        ]
        self._decoders = decoders
        self._only = decoders[0] if len(decoders) == 1 else None

    def decode(self, tensors: Sequence[torch.Tensor]) -> list[NDArray[Any]]:
        """Return the actions as arrays ``[*B, *leaf.shape]`` of the leaf's dtype, which may share a tensor's memory.

        A leaf that is no array has an array ``[*B]`` of objects.

        Raises:
            SpecError: a one-hot encoding does not have exactly one True for each choice; the message names it.
        """
        if self._only is not None:
            return [self._only(tensors[0])]
        return [decode(tensor) for decode, tensor in zip(self._decoders, tensors, strict=True)]

    def encode(self, arrays: Sequence[Any]) -> list[torch.Tensor]:
        """Return the tensors for actions ``[*B, *leaf.shape]``, in new memory: the inverse of ``decode``.

        Raises:
            SpecError: an array has a wrong shape, or values that the tensor cannot hold; the message names it.
        """
        return [self._encoded(*each) for each in zip(self.leaves, self._specs, arrays, strict=True)]

    @staticmethod
    def _encoded(leaf: SpaceLeaf, spec: Any, array: Any) -> torch.Tensor:
        try:
            tensor: torch.Tensor = spec.encode(array)
        except SpecError as error:
            raise SpecError(f"{leaf.name}: {error}") from error
        return tensor


def _as_array(tensor: torch.Tensor) -> NDArray[Any]:
    try:
        return tensor.numpy()
    except (RuntimeError, TypeError):  # it requires grad, or is on another device
        return tensor.numpy(force=True)


def _decoder(leaf: SpaceLeaf) -> Callable[[torch.Tensor], NDArray[Any]]:
    """The function that turns the tensors of a leaf into its values, where choices are one-hot."""
    if isinstance(leaf.space, Discrete):
        return _OneHotDecoder(leaf, np.array([leaf.space.n]))
    if isinstance(leaf.space, MultiDiscrete):
        if not leaf.space.nvec.size:  # no choices and so no bits
            return lambda bits: np.zeros((*bits.shape[:-1], *leaf.shape), leaf.dtype)
        return _OneHotDecoder(leaf, leaf.space.nvec)
    return _as_array


class _ObjectDecoder:
    """The data of a non-tensor entry, or what a user's translation makes of a tensor, as an array of objects."""

    def __init__(self, leaf: SpaceLeaf, spec: LeafSpec):
        self._leaf = leaf
        self._spec = spec

    def __call__(self, entry: Any) -> NDArray[Any]:
        batch = entry.shape[: len(entry.shape) - len(self._spec.shape)]
        return objects_in(decoded_leaf(self._leaf, entry, self._spec, batch), batch)


def objects_in(nested: Any, batch: Sequence[int]) -> NDArray[Any]:
    """An array ``[*batch]`` of the objects in nested sequences, which stay as they are."""
    objects = np.empty(batch, object)
    for at in np.ndindex(*batch):
        value = nested
        for index in at:
            value = value[index]
        objects[at] = value
    return objects


class _OneHotDecoder:
    """Bits ``[*B, sum(nvec)]`` to values ``[*B, *leaf.shape]``."""

    def __init__(self, leaf: SpaceLeaf, nvec: NDArray[Any]):
        self._leaf = leaf
        self._counts = nvec.astype(np.int64).ravel()
        self._total = int(self._counts.sum())
        self._offsets = self._counts.cumsum() - self._counts
        self._first = np.asarray(leaf.space.start, leaf.dtype).ravel()  # type: ignore[attr-defined]

    def __call__(self, tensor: torch.Tensor) -> NDArray[Any]:
        bits = _as_array(tensor)
        rows = bits.size // self._total
        # The k-th True overall must be in the bits of the k-th choice overall.
        index = np.flatnonzero(bits)
        if index.size != rows * self._offsets.size:
            raise self._fault(bits)
        base = np.arange(0, bits.size, self._total)[:, None] + self._offsets
        index = index.reshape(rows, self._offsets.size) - base
        if ((index < 0) | (index >= self._counts)).any():
            raise self._fault(bits)
        values: NDArray[Any] = index.astype(self._leaf.dtype) + self._first
        return values.reshape((*bits.shape[:-1], *self._leaf.shape))

    def _fault(self, bits: NDArray[Any]) -> SpecError:
        """The error for the first choice that has not exactly one True."""
        choices = np.add.reduceat(bits, self._offsets, axis=-1, dtype=np.int64)
        *row, choice = (int(i[0]) for i in (choices != 1).nonzero())
        start = self._offsets[choice]
        got = bits[tuple(row)][start : start + self._counts[choice]].tolist()
        place = f"[{', '.join(map(str, row))}]" if row else ""
        which = f" for choice {choice}" if self._offsets.size > 1 else ""
        return SpecError(f"{self._leaf.name}{place}: got {got}{which}, expected exactly one True")
