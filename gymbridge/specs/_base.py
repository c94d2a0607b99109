"""What every spec is, whatever its kind: a leaf, a nested group, or a stack."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from gymbridge.errors import SpecError
from gymbridge.specs._shapes import as_dim, as_index, as_size, expanded, reshaped, size_of_args

if TYPE_CHECKING:
    from typing_extensions import Self

    from gymbridge.specs._bridge import DeviceLike
    from gymbridge.specs._shapes import Index, ShapeLike


def name_of(key: tuple[str, ...]) -> str:
    """Return a key as messages show it."""
    return "value" if not key else repr(key[0] if len(key) == 1 else key)


class TensorSpec(ABC):
    """What a tensor, or a nested group of tensors, looks like: shape, dtype, device and domain.

    The *batch dims* of a spec are the leading dims of its shape that ``expand``, ``squeeze``, ``unsqueeze``,
    ``reshape``, ``unbind`` and indexing work on. A one-hot encoding's last dim is none of them, nor are the dims of
    ``MultiCategorical``'s ``nvec``.

    A value may have more leading dims than its spec (``spec.rand((5,))`` is in ``spec``).

    Example:
        >>> from gymbridge.specs import Bounded
        >>> spec = Bounded(-1, 1, (3,))
        >>> isinstance(spec, TensorSpec), spec.is_in(spec.rand())
        (True, True)
        >>> spec.faults(spec.zero() + 2)[0]
        'value: out of domain: got 2.0 at [0] (3 wrong), expected low=-1.0 to high=1.0'
    """

    __hash__ = None  # type: ignore[assignment]  # specs are compared by content, and masks can change

    @property
    @abstractmethod
    def shape(self) -> torch.Size:
        """Shape of a value; ``-1`` is a dim of any size."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype | None:
        """dtype of a value, None where there is not one."""

    @property
    @abstractmethod
    def device(self) -> torch.device | None:
        """Device of a value, None where leaves have their own."""

    @property
    def ndim(self) -> int:
        """Number of dims of ``shape``."""
        return len(self.shape)

    @property
    def is_dynamic(self) -> bool:
        """Whether ``shape``, or that of a leaf, has a dim of any size (``-1``)."""
        return -1 in self.shape

    @property
    def _holds_data(self) -> bool:
        """Whether values are Python data, which no tensor holds."""
        return False

    @property
    def _batch_shape(self) -> torch.Size:
        return self.shape

    # -- values

    @abstractmethod
    def rand(self, shape: ShapeLike = ()) -> Any:
        """Draw a value of shape ``[*shape, *self.shape]`` with torch's generator; dynamic dims get size 1."""

    @abstractmethod
    def zero(self, shape: ShapeLike = ()) -> Any:
        """Return zeros of shape ``[*shape, *self.shape]``, in the domain or not; dynamic dims get size 1."""

    @abstractmethod
    def one(self, shape: ShapeLike = ()) -> Any:
        """Return ones of shape ``[*shape, *self.shape]``, in the domain or not; dynamic dims get size 1."""

    @abstractmethod
    def faults(self, value: Any, key: tuple[str, ...] = (), batch_dims: int | None = None) -> list[str]:
        """List what is wrong with ``value``, a line for each fault; the empty list means that it is in the spec.

        Args:
            value: a tensor, or a TensorDict for a nested spec.
            key: name of the value in messages.
            batch_dims: how many leading dims the value has beyond ``shape``; None allows any number.
        """

    def is_in(self, value: Any) -> bool:
        """Say whether ``value`` has the shape, dtype and device of this spec and lies in its domain."""
        return not self.faults(value)

    def assert_is_in(self, value: Any) -> None:
        """Raise ``SpecError`` with every fault of ``value`` unless it is in this spec."""
        if found := self.faults(value):
            raise SpecError("\n".join(found))

    @abstractmethod
    def project(self, value: Any) -> Any:
        """Return the value of the domain that is nearest to ``value``, or ``value`` itself if it is in the domain.

        Raises:
            SpecError: ``value`` has another shape, dtype or device, which is not for a projection to mend.
        """

    @abstractmethod
    def encode(self, value: Any) -> Any:
        """Return the tensor for a value of the space (numpy or Python), such as an int for a one-hot spec.

        Raises:
            SpecError: the value's shape is wrong, or the tensor cannot hold it.
        """

    @abstractmethod
    def to_numpy(self, value: Any) -> Any:
        """Return the space's value for a tensor: the inverse of ``encode``."""

    @abstractmethod
    def cardinality(self) -> int | float:
        """Return the number of values of one element of the batch (``math.inf`` where it is infinite).

        ``Bounded`` and ``Binary`` count the values of their whole shape.
        """

    @abstractmethod
    def enumerate(self, use_mask: bool = False) -> Any:
        """Return all values, ``[cardinality, *shape]``: each repeated over the batch dims.

        Args:
            use_mask: leave masked values out.
        """

    @abstractmethod
    def _stack_values(self, values: list[Any], dim: int) -> Any:
        """Stack values of specs of this kind."""

    # -- other specs

    @abstractmethod
    def clone(self) -> Self:
        """Return a copy that can be changed without a change to this one."""

    @abstractmethod
    def to(self, dest: torch.dtype | DeviceLike) -> Self:
        """Return this spec on another device, or with another dtype."""

    def expand(self, *shape: Any) -> Self:
        """Return this spec with the given shape: dims of size 1 repeated, leading dims added.

        ``-1`` keeps a dim, as in ``torch.Tensor.expand``; as a new leading dim it is a dynamic one.
        """
        new = expanded(self.shape, size_of_args(shape), self._title)
        events = self.ndim - len(self._batch_shape)
        if events and new[-events:] != self.shape[-events:]:
            raise ValueError(f"cannot expand {self._title} of shape {list(self.shape)} to {list(new)}")
        return self._expand(new[: len(new) - events])

    def squeeze(self, dim: int | None = None) -> Any:
        """Return this spec without batch dim ``dim`` if that has size 1, or without any batch dim of size 1."""
        if dim is None:
            dims = tuple(i for i, size in enumerate(self._batch_shape) if size == 1)
        else:
            dim = as_dim(dim, self.ndim, self._title)
            if dim >= len(self._batch_shape):
                raise IndexError(f"dim {dim} is not a batch dim of {self._title} of shape {list(self.shape)}")
            dims = (dim,) if self._batch_shape[dim] == 1 else ()
        return self._squeeze(dims)

    def unsqueeze(self, dim: int) -> Self:
        """Return this spec with a batch dim of size 1 put in at ``dim``."""
        dim = as_dim(dim, self.ndim + 1, self._title)
        if dim > len(self._batch_shape):
            raise IndexError(f"dim {dim} is not among the batch dims of {self._title} of shape {list(self.shape)}")
        return self._unsqueeze(dim)

    def reshape(self, *shape: Any) -> Self:
        """Return this spec with its batch dims rearranged, so that it has the given shape."""
        new = size_of_args(shape)
        events = self.ndim - len(self._batch_shape)
        if events and tuple(new[-events:]) != tuple(self.shape[-events:]):
            raise ValueError(f"cannot reshape {self._title} of shape {list(self.shape)} to {list(new)}")
        return self._reshape(reshaped(self._batch_shape, new[: len(new) - events], self._title))

    def view(self, *shape: Any) -> Self:
        """Return this spec with its batch dims rearranged, as ``reshape``."""
        return self.reshape(*shape)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """Return this spec with the batch dims from ``start_dim`` to ``end_dim`` made one."""
        shape = self._batch_shape
        first, last = (as_dim(dim, len(shape), f"the batch dims of {self._title}") for dim in (start_dim, end_dim))
        if first > last:
            raise IndexError(f"start_dim {start_dim} comes after end_dim {end_dim}")
        new = torch.Size([*shape[:first], shape[first : last + 1].numel(), *shape[last + 1 :]])
        return self._reshape(reshaped(shape, new, self._title))

    def unflatten(self, dim: int, sizes: ShapeLike) -> Self:
        """Return this spec with batch dim ``dim`` made several of ``sizes``."""
        shape = self._batch_shape
        dim = as_dim(dim, len(shape), f"the batch dims of {self._title}")
        part = reshaped(shape[dim : dim + 1], as_size(sizes), self._title)
        return self._reshape(torch.Size([*shape[:dim], *part, *shape[dim + 1 :]]))

    def unbind(self, dim: int = 0) -> tuple[TensorSpec, ...]:
        """Return the specs along batch dim ``dim``."""
        dim = as_dim(dim, len(self._batch_shape), f"the batch dims of {self._title}")
        if self._batch_shape[dim] == -1:
            raise ValueError(f"cannot unbind dynamic dim {dim} of {self._title} of shape {list(self.shape)}")
        return tuple(self._index((*[slice(None)] * dim, i)) for i in range(self._batch_shape[dim]))

    def __getitem__(self, index: Any) -> Any:
        """Index the batch dims: ints, slices, None, ``...``, bool masks and index tensors."""
        return self._index(as_index(index, self._batch_shape, self._title))

    # Each takes batch shapes and dims that are resolved, and may be of a parent with fewer batch dims than this spec.

    @abstractmethod
    def _expand(self, batch: torch.Size) -> Self: ...

    @abstractmethod
    def _squeeze(self, dims: tuple[int, ...]) -> Any: ...

    @abstractmethod
    def _unsqueeze(self, dim: int) -> Self: ...

    @abstractmethod
    def _reshape(self, batch: torch.Size) -> Self: ...

    @abstractmethod
    def _index(self, index: Index) -> Any: ...

    # -- words

    _shown: ClassVar[tuple[str, ...]] = ("shape", "dtype", "device")
    """What ``repr`` shows, in this order."""

    @property
    def _title(self) -> str:
        return type(self).__name__

    def _shown_value(self, name: str) -> str:
        value = getattr(self, name)
        return str(list(value)) if isinstance(value, torch.Size) else str(value)

    def __repr__(self) -> str:
        lines = [f"{name}={self._shown_value(name)}" for name in self._shown]
        return f"{self._title}(\n    " + ",\n    ".join(lines) + ")"
