"""Specs of gymbridge as TorchRL's and back; needs the extra ``gymbridge[torchrl]``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from tensordict import NonTensorData

try:
    from torchrl import data
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "torchrl":
        raise
    raise ImportError(
        "gymbridge.interop.torchrl needs TorchRL, which is not installed: pip install 'gymbridge[torchrl]'"
    ) from error

from gymbridge import specs as own
from gymbridge.specs._shapes import concrete

__all__ = ["ChosenData", "UnsupportedSpecError", "spec_from_torchrl", "spec_to_torchrl"]


class UnsupportedSpecError(TypeError):
    """A spec, or a part of one, that the other library has no spec for."""


@dataclasses.dataclass(frozen=True)
class ChosenData:
    """The ``space`` of a :class:`~gymbridge.specs.NonTensor` that came from a ``Choice`` of data.

    Example:
        >>> ChosenData(("go", "stay")).contains("go")
        True
    """

    choices: tuple[Any, ...]

    def contains(self, x: Any) -> bool:
        """Say whether ``x`` is one of the choices."""
        return any(x is choice or bool(x == choice) for choice in self.choices)


def spec_to_torchrl(spec: own.TensorSpec) -> Any:
    """Return TorchRL's spec for the same values: shape, dtype, device, domain, mask and lock.

    ``Categorical`` and ``MultiCategorical`` with a ``start`` other than 0, which TorchRL has not got, become a
    ``Bounded`` over the same integers, ``start`` to ``start + n - 1``; so do those whose ``n`` is more than their dtype
    holds, 256 for ``uint8``, and a ``MultiCategorical`` of no values, of which TorchRL loses ``nvec``. A
    ``MultiCategorical`` of one choice becomes a ``Categorical``: TorchRL draws values without their last dim from the
    former. What TorchRL has no place for is left out: which space a spec came from (``kind``, ``space``), and what the
    bits of one-hot specs stand for (``start``, ``categorical_dtype``, the dims of ``nvec``).

    Args:
        spec: a spec of :mod:`gymbridge.specs`, of any kind.

    Returns:
        A ``torchrl.data.TensorSpec``, which shares nothing that can be changed with ``spec``.

    Raises:
        UnsupportedSpecError: a masked spec with a ``start``, a masked ``MultiCategorical`` whose ``nvec`` has more dims
            than one, an entry with a name that TorchRL's ``Composite`` keeps for itself (``"shape"``, ``"device"``,
            ``"dtype"``, ``"space"``), or a kind of spec that is no part of :mod:`gymbridge.specs`; the message has the
            key.

    Example:
        >>> from gymbridge.specs import Categorical, Composite, OneHot
        >>> spec = spec_to_torchrl(Composite(action=OneHot(3, (2, 3)), shape=(2,)))
        >>> type(spec).__module__.partition(".")[0], spec["action"].n, spec.shape
        ('torchrl', 3, torch.Size([2]))
        >>> type(spec_to_torchrl(Categorical(3, start=5))).__name__
        'BoundedDiscrete'
    """
    return _to_torchrl(spec, ())


def spec_from_torchrl(spec: Any) -> own.TensorSpec:
    """Return gymbridge's spec for the values of one of TorchRL's: shape, dtype, device, domain, mask and lock.

    A ``Choice`` of data becomes a ``NonTensor`` whose ``space`` is a :class:`ChosenData`. A ``Categorical`` whose ``n``
    is not known has that of ``set_provisional_n``, or else is a ``Bounded`` from 0 on. What gymbridge has no place for
    is left out: ``domain``, ``use_register``, ``remove_singleton``, ``batched`` and ``feature_dims`` of a
    ``NonTensor``; ``data_cls``, ``step_mdp_static`` and the dims' names of a ``Composite``.

    Args:
        spec: a ``torchrl.data.TensorSpec``, of any kind.

    Returns:
        A spec of :mod:`gymbridge.specs`, which shares nothing that can be changed with ``spec``.

    Raises:
        UnsupportedSpecError: a ``Choice`` of specs, an entry ``None`` of a ``Composite``, or a kind of spec of which
            nothing is known here; the message has the key.

    Example:
        >>> from torchrl.data import Bounded, Composite
        >>> spec = spec_from_torchrl(Composite(position=Bounded(-1, 1, (2, 3)), shape=(2,)))
        >>> type(spec["position"]).__module__.partition(".")[0], spec["position"].shape, spec.shape
        ('gymbridge', torch.Size([2, 3]), torch.Size([2]))
    """
    return _from_torchrl(spec, ())


Path = tuple[str, ...]


def _named(key: Path, what: str) -> str:
    return f"entry {key[0] if len(key) == 1 else key!r}: {what}" if key else what


def _unsupported(key: Path, got: str, expected: str) -> UnsupportedSpecError:
    return UnsupportedSpecError(_named(key, f"got {got}, expected {expected}"))


# ---------------------------------------------------------------- to TorchRL


def _to_torchrl(spec: Any, key: Path) -> Any:
    for kind, convert in _TO_TORCHRL.items():
        if isinstance(spec, kind):
            return convert(spec, key)
    raise _unsupported(key, type(spec).__name__, "a spec of gymbridge.specs")


def _bounded_to(spec: own.Bounded, key: Path) -> Any:
    return data.Bounded(spec.low.clone(), spec.high.clone(), spec.shape, spec.device, spec.dtype)


def _unbounded_to(spec: own.Unbounded, key: Path) -> Any:
    return data.Unbounded(spec.shape, spec.device, spec.dtype)


def _binary_to(spec: own.Binary, key: Path) -> Any:
    return data.Binary(spec.n, spec.shape, spec.device, spec.dtype)


def _categorical_to(spec: own.Categorical, key: Path) -> Any:
    too_many = spec.mask is None and spec.dtype != torch.bool and spec.n > torch.iinfo(spec.dtype).max
    if spec.start != 0 or too_many:  # TorchRL compares values with n in their own dtype, where it is 0
        return _range_to(spec, key)
    return data.Categorical(spec.n, spec.shape, spec.device, spec.dtype, _copied(spec.mask))


def _multi_categorical_to(spec: own.MultiCategorical, key: Path) -> Any:
    nvec = spec.nvec
    if 0 in spec.shape or not nvec.ndim or bool((spec.start.to(torch.int64) != 0).any()):
        return _range_to(spec, key)
    if spec.mask is not None and nvec.ndim > 1:
        raise _unsupported(key, f"a mask for an nvec of shape {list(nvec.shape)}", "one dim, as TorchRL's masks have")
    if nvec.shape == (1,):
        mask = None if spec.mask is None else spec.mask.unsqueeze(-2)
        return _categorical_to(own.Categorical(int(nvec), spec.shape, spec.device, spec.dtype, mask), key)
    return data.MultiCategorical(nvec.clone(), spec.shape, spec.device, spec.dtype, _copied(spec.mask))


def _range_to(spec: own.Categorical | own.MultiCategorical, key: Path) -> Any:
    """The integers of a choice as a range, which is what TorchRL has for those that do not begin at 0."""
    if spec.mask is not None:
        raise _unsupported(
            key,
            f"a mask for {type(spec).__name__} with start={spec.start}",
            "no start: TorchRL has masks of choices from 0 on; spec.to_one_hot_spec() can have both",
        )
    shape = concrete(spec.shape)
    low = torch.as_tensor(spec.start, dtype=spec.dtype, device=spec.device).to(torch.int64)
    counts = torch.as_tensor(spec.n if isinstance(spec, own.Categorical) else spec.nvec, device=spec.device)
    # In int64, which wraps around as the dtype does: torch cannot add the wider unsigned ones.
    bounds = [bound.to(spec.dtype).expand(shape).clone() for bound in (low, low + counts - 1)]
    return data.Bounded(*bounds, spec.shape, spec.device, spec.dtype)


def _one_hot_to(spec: own.OneHot, key: Path) -> Any:
    return data.OneHot(spec.n, spec.shape, spec.device, spec.dtype, mask=_copied(spec.mask))


def _multi_one_hot_to(spec: own.MultiOneHot, key: Path) -> Any:
    nvec = spec.nvec.flatten().tolist()
    return data.MultiOneHot(nvec, spec.shape, spec.device, spec.dtype, mask=_copied(spec.mask))


def _non_tensor_to(spec: own.NonTensor, key: Path) -> Any:
    if isinstance(spec.space, ChosenData):
        return data.Choice(
            [NonTensorData(choice, batch_size=spec.shape, device=spec.device) for choice in spec.space.choices]
        )
    return data.NonTensor(
        spec.shape, device=spec.device, dtype=spec.dtype, example_data=spec.example_data, batched=True
    )


def _stacked_to(spec: own.Stacked, key: Path) -> Any:
    return data.Stacked(*(_to_torchrl(member, key) for member in spec.unbind(spec.dim)), dim=spec.dim)


def _stacked_composite_to(spec: own.StackedComposite, key: Path) -> Any:
    # Locked are the members, which is enough: TorchRL cannot lock a stack with keys that it cannot stack.
    return data.StackedComposite(*(_to_torchrl(member, key) for member in spec.unbind(spec.dim)), dim=spec.dim)


def _composite_to(spec: own.Composite, key: Path) -> Any:
    for name in _NOT_NAMES_IN_TORCHRL.intersection(spec.keys()):
        raise _unsupported((*key, name), "a name that TorchRL's Composite keeps for itself", "another one")
    entries = {name: _to_torchrl(spec[name], (*key, name)) for name in spec}
    made = data.Composite(entries, shape=spec.shape, device=spec.device)
    return _locked_alike(made, spec)


_NOT_NAMES_IN_TORCHRL = frozenset({"shape", "device", "dtype", "space"})

_TO_TORCHRL: dict[type, Callable[[Any, Path], Any]] = {
    own.StackedComposite: _stacked_composite_to,  # before Composite, whose kind it is
    own.Composite: _composite_to,
    own.Stacked: _stacked_to,
    own.Bounded: _bounded_to,
    own.Unbounded: _unbounded_to,
    own.Binary: _binary_to,
    own.Categorical: _categorical_to,
    own.MultiCategorical: _multi_categorical_to,
    own.OneHot: _one_hot_to,
    own.MultiOneHot: _multi_one_hot_to,
    own.NonTensor: _non_tensor_to,
}


# ---------------------------------------------------------------- from TorchRL


def _from_torchrl(spec: Any, key: Path) -> own.TensorSpec:
    for kind, convert in _FROM_TORCHRL.items():
        if isinstance(spec, kind):
            return convert(spec, key)
    raise _unsupported(key, type(spec).__name__ if spec is not None else "None", "a spec of torchrl.data")


def _bounded_from(spec: Any, key: Path) -> own.TensorSpec:
    return own.Bounded(spec.low, spec.high, spec.shape, spec.device, spec.dtype)


def _unbounded_from(spec: Any, key: Path) -> own.TensorSpec:
    return own.Unbounded(spec.shape, spec.device, spec.dtype)


def _binary_from(spec: Any, key: Path) -> own.TensorSpec:
    # TorchRL's n of a Binary is 2, the number of values of one bit.
    n = spec.shape[-1] if spec.shape and spec.shape[-1] != -1 else None
    return own.Binary(n, spec.shape, spec.device, spec.dtype)


def _categorical_from(spec: Any, key: Path) -> own.TensorSpec:
    n = spec.space.n
    if n < 0 and spec._provisional_n is not None:  # TorchRL's own `n` raises where none is known
        n = spec._provisional_n
    if n < 0:
        return own.Bounded(0, float("inf"), spec.shape, spec.device, spec.dtype)
    return own.Categorical(n, spec.shape, spec.device, spec.dtype, _copied(spec.mask))


def _multi_categorical_from(spec: Any, key: Path) -> own.TensorSpec:
    # TorchRL spreads nvec over the whole shape: dims along which it is the same everywhere are taken for batch dims.
    nvec = spec.nvec
    if not nvec.numel():  # of a batch of none, where nothing of it is left
        return own.Bounded(0, 0, spec.shape, spec.device, spec.dtype)
    while nvec.ndim > 1 and bool((nvec == nvec[:1]).all()):
        nvec = nvec[0]
    return own.MultiCategorical(nvec.clone(), spec.shape, spec.device, spec.dtype, _copied(spec.mask))


def _one_hot_from(spec: Any, key: Path) -> own.TensorSpec:
    return own.OneHot(spec.space.n, spec.shape, spec.device, spec.dtype, mask=_copied(spec.mask))


def _multi_one_hot_from(spec: Any, key: Path) -> own.TensorSpec:
    nvec = torch.as_tensor(spec.nvec)
    return own.MultiOneHot(nvec, spec.shape, spec.device, spec.dtype, mask=_copied(spec.mask))


def _non_tensor_from(spec: Any, key: Path) -> own.TensorSpec:
    return own.NonTensor(spec.shape, spec.device, spec.dtype, spec.example_data)


def _choice_from(spec: Any, key: Path) -> own.TensorSpec:
    choices = spec._choices  # which TorchRL tells by its number only
    if not all(isinstance(choice, NonTensorData) for choice in choices):
        raise _unsupported(key, f"a Choice of {type(choices[0]).__name__}", "a Choice of NonTensorData")
    values = tuple(choice.data for choice in choices)
    return own.NonTensor(spec.shape, spec.device, None, values[0], space=ChosenData(values))


def _stacked_from(spec: Any, key: Path) -> own.TensorSpec:
    return own.Stacked(*(_from_torchrl(member, key) for member in spec._specs), dim=spec.stack_dim)


def _stacked_composite_from(spec: Any, key: Path) -> own.TensorSpec:
    return own.StackedComposite(*(_from_torchrl(member, key) for member in spec._specs), dim=spec.stack_dim)


def _composite_from(spec: Any, key: Path) -> own.TensorSpec:
    entries = {name: _from_torchrl(entry, (*key, name)) for name, entry in spec.items()}
    made: own.Composite = _locked_alike(own.Composite(entries, shape=spec.shape, device=spec.device), spec)
    return made


_FROM_TORCHRL: dict[type, Callable[[Any, Path], own.TensorSpec]] = {
    # A kind that TorchRL derives from another stands before it.
    data.StackedComposite: _stacked_composite_from,
    data.Composite: _composite_from,
    data.Stacked: _stacked_from,
    data.Bounded: _bounded_from,
    data.Unbounded: _unbounded_from,
    data.Binary: _binary_from,
    data.MultiCategorical: _multi_categorical_from,
    data.Categorical: _categorical_from,
    data.MultiOneHot: _multi_one_hot_from,
    data.OneHot: _one_hot_from,
    data.Choice: _choice_from,
    data.NonTensor: _non_tensor_from,
}


# ---------------------------------------------------------------- either way


def _copied(mask: torch.Tensor | None) -> torch.Tensor | None:
    return None if mask is None else mask.clone()


def _locked_alike(made: Any, spec: Any) -> Any:
    """``made``, locked as ``spec`` is; the Composites in it have been locked as theirs are."""
    if spec.is_locked:
        made.lock_()
    return made
