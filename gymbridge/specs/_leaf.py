"""The part that all specs of one tensor share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import torch

from gymbridge.errors import SpecError
from gymbridge.specs._base import TensorSpec, name_of
from gymbridge.specs._bridge import IntegerRange, PickledTensor, array_of, as_device, as_torch_dtype, tensor_of
from gymbridge.specs._shapes import Indexing, as_size, concrete, fits_end

if TYPE_CHECKING:
    from typing_extensions import Self

    from gymbridge.specs._bridge import DeviceLike, DtypeLike
    from gymbridge.specs._shapes import Index, ShapeLike

Operation: TypeAlias = Callable[[torch.Tensor], torch.Tensor]

MAX_ENUMERATION = 1 << 24
"""``enumerate`` refuses to build more values than this."""


class LeafSpec(TensorSpec):
    """A spec of one tensor.

    A kind says in ``_batch_held`` which of its attributes hold tensors (or None) whose leading dims are the batch
    dims, with size 1 for a dynamic dim; what happens to the batch dims happens to them too. ``_compared`` names the
    tensors that make two specs of one form differ. No tensor is ever written in place, so that specs may share them,
    and what can be learnt from them once is learnt before they move to a device, so that nothing waits for one.
    """

    _batch_held: ClassVar[tuple[str, ...]] = ()
    _compared: ClassVar[tuple[str, ...]] = ()

    space_type: type | None = None
    """The type of custom space that this spec was made from, which alone can tell the space back (not compared)."""

    def __init__(self, shape: ShapeLike, device: DeviceLike, dtype: DtypeLike):
        self._shape = as_size(shape)
        self._device = as_device(device)
        self._dtype = as_torch_dtype(dtype)

    @property
    def shape(self) -> torch.Size:
        """Shape of a value; ``-1`` is a dim of any size."""
        return self._shape

    @property
    def dtype(self) -> torch.dtype:
        """dtype of a value."""
        return self._dtype

    @property
    def device(self) -> torch.device:
        """Device of a value."""
        return self._device

    @property
    def _event_shape(self) -> torch.Size:
        """The trailing dims, which are not batch dims."""
        return torch.Size([])

    @property
    def _batch_shape(self) -> torch.Size:
        return self._shape[: len(self._shape) - len(self._event_shape)]

    @property
    def _space_ndim(self) -> int:
        """Number of dims of a value in the space's encoding."""
        return self.ndim

    # -- values

    def _drawn_shape(self, shape: ShapeLike) -> torch.Size:
        return torch.Size([*as_size(shape), *concrete(self._shape)])

    def rand(self, shape: ShapeLike = ()) -> torch.Tensor:
        """Draw a value of shape ``[*shape, *self.shape]`` with torch's generator; dynamic dims get size 1."""
        return self._draw(self._drawn_shape(shape))

    @abstractmethod
    def _draw(self, shape: torch.Size) -> torch.Tensor: ...

    def zero(self, shape: ShapeLike = ()) -> torch.Tensor:
        """Return zeros of shape ``[*shape, *self.shape]``, in the domain or not; dynamic dims get size 1."""
        return torch.zeros(self._drawn_shape(shape), dtype=self._dtype, device=self._device)

    def one(self, shape: ShapeLike = ()) -> torch.Tensor:
        """Return ones of shape ``[*shape, *self.shape]``, in the domain or not; dynamic dims get size 1."""
        return torch.ones(self._drawn_shape(shape), dtype=self._dtype, device=self._device)

    def faults(self, value: Any, key: tuple[str, ...] = (), batch_dims: int | None = None) -> list[str]:
        """List what is wrong with ``value``, a line for each fault."""
        found = self._form_faults(value, name_of(key), batch_dims)
        if not found and (wrong := self._out_of_domain(value)) is not None and bool(wrong.any()):
            found.append(f"{name_of(key)}: out of domain: {self._domain_fault(value, wrong)}")
        return found

    def _form_faults(self, value: Any, name: str, batch_dims: int | None = None) -> list[str]:
        if not isinstance(value, torch.Tensor):
            return [f"{name}: got {type(value).__name__}, expected a tensor of dtype {self._dtype}"]
        found = []
        lead = value.ndim - self.ndim
        if not fits_end(value.shape, self._shape) or (batch_dims is not None and lead != batch_dims):
            expected = ["..." if batch_dims is None else f"{batch_dims} batch dims"] if batch_dims != 0 else []
            shown = ", ".join([*expected, *map(str, self._shape)])
            found.append(f"{name}: shape: got {list(value.shape)}, expected [{shown}]")
        if value.dtype != self._dtype:
            found.append(f"{name}: dtype: got {value.dtype}, expected {self._dtype}")
        if value.device != self._device:
            found.append(f"{name}: device: got {value.device}, expected {self._device}")
        return found

    @abstractmethod
    def _out_of_domain(self, value: torch.Tensor) -> torch.Tensor | None:
        """Return where ``value`` leaves the domain, or None for no domain."""

    @property
    def _domain(self) -> str:
        """The domain, as messages show it."""
        return "any value"

    def _domain_fault(self, value: torch.Tensor, wrong: torch.Tensor) -> str:
        first = tuple(int(i) for i in wrong.nonzero()[0])
        return f"got {value[first].tolist()} at {list(first)} ({int(wrong.sum())} wrong), expected {self._domain}"

    def project(self, value: Any) -> torch.Tensor:
        """Return the value of the domain that is nearest to ``value``, or ``value`` itself if it is in the domain."""
        if found := self._form_faults(value, "value"):
            raise SpecError("\n".join(found))
        wrong = self._out_of_domain(value)
        return self._projected(value) if wrong is not None and bool(wrong.any()) else value

    @abstractmethod
    def _projected(self, value: torch.Tensor) -> torch.Tensor: ...

    def encode(self, value: Any) -> torch.Tensor:
        """Return the tensor for a value of the space (numpy or Python); leading batch dims are kept."""
        tensor = tensor_of(value, self._dtype, self._device)
        if not fits_end(tensor.shape, self._shape):
            raise SpecError(f"value: shape: got {list(tensor.shape)}, expected {self._trailing(self._shape)}")
        return tensor

    def to_numpy(self, value: torch.Tensor) -> Any:
        """Return the space's value for a tensor: the inverse of ``encode``."""
        if not isinstance(value, torch.Tensor):
            raise SpecError(f"value: got {type(value).__name__}, expected a tensor of dtype {self._dtype}")
        if not fits_end(value.shape, self._shape):
            raise SpecError(f"value: shape: got {list(value.shape)}, expected {self._trailing(self._shape)}")
        return array_of(value).copy()

    @staticmethod
    def _trailing(shape: torch.Size) -> str:
        return f"[{', '.join(['...', *map(str, shape)])}]"

    def _enumerable(self) -> int:
        """Return the cardinality, unless it is too high to build all values."""
        count = self.cardinality()
        if isinstance(count, float) or count > MAX_ENUMERATION:
            raise NotImplementedError(
                f"{self._title} of shape {list(self._shape)} has {count} values, too many to list"
            )
        return count

    def _over_batch(self, values: torch.Tensor) -> torch.Tensor:
        """Repeat values ``[count, *event]`` over the batch dims."""
        batch = concrete(self._batch_shape)
        values = values.to(self._device, self._dtype)
        return values.reshape(len(values), *[1] * len(batch), *self._event_shape).expand(-1, *batch, *self._event_shape)

    def _stack_values(self, values: list[Any], dim: int) -> Any:
        return torch.stack(values, dim)

    # -- other specs

    def clone(self) -> Self:
        """Return a copy that can be changed without a change to this one."""
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)
        return new

    def to(self, dest: torch.dtype | DeviceLike) -> Self:
        """Return this spec on another device, or with another dtype."""
        if isinstance(dest, torch.dtype):
            return self if dest == self._dtype else self._with_dtype(dest)
        device = as_device(dest)
        return self if device == self._device else self._with_device(device)

    @abstractmethod
    def _with_dtype(self, dtype: torch.dtype) -> Self: ...

    def _with_device(self, device: torch.device) -> Self:
        new = LeafSpec.clone(self)
        new._device = device
        new._change_held(tuple(vars(self)), lambda tensor: tensor.to(device))
        return new

    def _mapped(self, operation: Operation, batch: torch.Size) -> Self:
        """Return this spec with ``batch`` as its batch shape and what has batch dims put through ``operation``."""
        new = LeafSpec.clone(self)
        new._shape = torch.Size([*batch, *self._event_shape])
        new._change_held(self._batch_held, operation)
        return new

    def _change_held(self, names: tuple[str, ...], operation: Operation) -> None:
        for name in names:
            held = getattr(self, name)
            if isinstance(held, torch.Tensor):
                setattr(self, name, operation(held))
            elif isinstance(held, IntegerRange):
                setattr(self, name, held.mapped(operation))

    def _expand(self, batch: torch.Size) -> Self:
        dims, sizes = len(self._batch_shape), concrete(batch)
        return self._mapped(lambda tensor: tensor.expand((*sizes, *tensor.shape[dims:])), batch)

    def _squeeze(self, dims: tuple[int, ...]) -> Self:
        batch = torch.Size([size for dim, size in enumerate(self._batch_shape) if dim not in dims])
        return self._mapped(lambda tensor: tensor.squeeze(dims) if dims else tensor, batch)

    def _unsqueeze(self, dim: int) -> Self:
        batch = torch.Size([*self._batch_shape[:dim], 1, *self._batch_shape[dim:]])
        return self._mapped(lambda tensor: tensor.unsqueeze(dim), batch)

    def _reshape(self, batch: torch.Size) -> Self:
        dims = len(self._batch_shape)
        return self._mapped(lambda tensor: tensor.reshape((*batch, *tensor.shape[dims:])), batch)

    def _index(self, index: Index) -> Self:
        indexing = Indexing(index, self._batch_shape)
        return self._mapped(indexing, indexing.shape)

    def __getstate__(self) -> dict[str, Any]:
        return {k: PickledTensor.of(v) if isinstance(v, torch.Tensor) else v for k, v in self.__dict__.items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({k: v.tensor() if isinstance(v, PickledTensor) else v for k, v in state.items()})

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self) or not isinstance(other, LeafSpec):
            return NotImplemented
        mine, theirs = ((spec._shape, spec._dtype, spec._device) for spec in (self, other))
        return mine == theirs and all(_same(getattr(self, name), getattr(other, name)) for name in self._compared)

    __hash__ = None


def _same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one is other or torch.equal(one, other)


def shown_numbers(tensor: torch.Tensor) -> str:
    """Return numbers for a message: one if they are all the same, else the array, shortened."""
    array = array_of(tensor)
    if array.size and bool((array == array.flat[0]).all()):
        return str(array.flat[0])
    return " ".join(str(array).split())
