"""What is known of an env without having one: its specs, a fake TensorDict, devices."""

from __future__ import annotations

import io
import reprlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import cloudpickle
import gymnasium as gym
import torch
from tensordict import LazyStackedTensorDict, TensorDictBase, is_non_tensor

from gymbridge.engine.gym_host import close_all
from gymbridge.engine.makers import EnvMaker, make_all
from gymbridge.envs.base import EnvBase
from gymbridge.envs.gym_env import GymEnv
from gymbridge.envs.inputs import DeviceLike, NestedKey, env_device
from gymbridge.envs.tensordicts import cloned
from gymbridge.specs import Composite
from gymbridge.specs._shapes import fits, size_of_args

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["EnvMetaData"]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class EnvMetaData:
    """What an env says of itself, apart from the env: it can be kept, compared, pickled and sent to another process.

    It has copies of what it is given, and both are locked: change a ``clone()`` of them. Two are equal where specs,
    words and the fake TensorDict's keys, shapes, dtypes and devices are; the values in it mean nothing.

    Args:
        tensordict: a stepped TensorDict ``[*B]`` with the right keys, shapes, dtypes and devices, as the env's
            ``fake_tensordict`` gives it.
        specs: the env's ``input_spec`` and ``output_spec``, of batch shape ``B``.
        env_str: the env in words, its ``repr``.
        batch_locked: the env takes TensorDicts of its own batch size only.

    Raises:
        ValueError: the TensorDict has another batch size, or another device, than the specs.

    Example:
        >>> from gymbridge.envs import EnvMetaData
        >>> data = EnvMetaData.metadata_from_env("CartPole-v1")
        >>> data.specs["output_spec", "full_observation_spec", "observation"].shape
        torch.Size([4])
        >>> data.expand(8).tensordict["next", "reward"].shape
        torch.Size([8, 1])
        >>> data.device, data.device_map["next", "reward"]
        (None, device(type='cpu'))
    """

    tensordict: TensorDictBase
    specs: Composite
    env_str: str
    batch_locked: bool

    def __post_init__(self) -> None:
        if not fits(self.tensordict.batch_size, self.specs.shape):
            raise ValueError(
                f"tensordict: got batch size {[*self.tensordict.batch_size]}, expected that of the specs, "
                f"{[*self.specs.shape]}"
            )
        if self.tensordict.device != self.specs.device:
            raise ValueError(
                f"tensordict: got device {self.tensordict.device}, expected that of the specs, {self.specs.device}"
            )
        object.__setattr__(self, "tensordict", cloned(self.tensordict).lock_())
        object.__setattr__(self, "specs", self.specs.clone().lock_())

    @classmethod
    def metadata_from_env(cls, env: EnvBase | gym.Env[Any, Any] | str | Callable[..., Any]) -> Self:
        """The metadata of an env, or of one that is made for this and closed.

        Args:
            env: an ``EnvBase``; a ``gymnasium.Env``, which is described as :class:`~gymbridge.envs.GymEnv` shows it;
                a gymnasium id; or a callable that makes one of the two. A batched env that has not started is started;
                of an :class:`~gymbridge.envs.EnvCreator` the metadata that it keeps are taken.

        Raises:
            TypeError: none of these, or a callable that made none.
            UnsupportedSpaceError: a space without a translation.

        and what the maker raises.
        """
        if isinstance(env, EnvBase):
            # the specs first: reading them starts a batched env, which may learn its device only then
            specs = env.specs
            return cls(
                tensordict=env.fake_tensordict(), specs=specs, env_str=repr(env), batch_locked=bool(env.batch_locked)
            )
        if isinstance(env, gym.Env):
            return cls.metadata_from_env(GymEnv(env))
        if not isinstance(env, str) and not callable(env):
            raise TypeError(
                f"env: got {reprlib.repr(env)} of type {type(env).__name__}, expected an EnvBase, a gymnasium.Env, a "
                f"registered id or a callable that makes an env"
            )
        kept = getattr(env, "meta_data", None)  # an EnvCreator has them
        if isinstance(kept, cls):
            return kept
        made = make_all([env if isinstance(env, EnvMaker) else EnvMaker(env, {})], gym.Env, EnvBase)
        try:
            metadata = cls.metadata_from_env(made[0])
        except BaseException:
            with suppress(Exception):  # what went wrong first is what the caller is to see
                close_all(made)
            raise
        close_all(made)
        return metadata

    @property
    def batch_size(self) -> torch.Size:
        """``B``: the leading dims of all that the env returns."""
        return self.specs.shape

    @property
    def device(self) -> torch.device | None:
        """Device of all that the env returns; None where each leaf has its own, which ``device_map`` tells."""
        return self.specs.device

    @property
    def device_map(self) -> dict[NestedKey, torch.device | None]:
        """Device of each leaf of the fake TensorDict; None for one that is no tensor and has none.

        In a stack of envs that differ, a key's device is that of the first env that has the key.
        """
        return _devices(self.tensordict)

    @property
    def has_dynamic_specs(self) -> bool:
        """Whether a spec has a dim of any size (``-1``)."""
        return self.specs.is_dynamic

    def expand(self, *shape: Any) -> Self:
        """The metadata of a batch of such envs: ``shape`` is the whole new batch size, and ends in the present one.

        As in ``torch.Tensor.expand``, a dim of size 1 may grow and ``-1`` keeps a dim. ``env_str`` stays as it is.

        Raises:
            ValueError: a shape that does not end in the batch size, or ``-1`` for a new dim.
        """
        size = size_of_args(shape)
        if any(dim < 0 for dim in size[: max(len(size) - len(self.batch_size), 0)]):
            raise ValueError(f"expand: got {[*size]} for batch size {[*self.batch_size]}, expected a size for new dims")
        specs = self.specs.expand(size)
        return replace(self, tensordict=self.tensordict.expand(specs.shape), specs=specs)

    def clone(self) -> Self:
        """A copy, with tensors of its own."""
        return replace(self)

    def to(self, device: DeviceLike) -> Self:
        """The metadata of the env after ``to(device)``: everything on that device. ``env_str`` stays as it is.

        Raises:
            ValueError: the device ``"meta"``.
        """
        device = env_device(device)
        return replace(self, tensordict=self.tensordict.to(device), specs=self.specs.to(device))

    def __getstate__(self) -> dict[str, Any]:
        """As attributes, with the TensorDict in torch's own format: pickled tensors of uint16 to uint64 do not load."""
        kept = io.BytesIO()
        torch.save(self.tensordict, kept, pickle_module=cloudpickle)
        return {**self.__dict__, "tensordict": kept.getvalue()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        tensordict = torch.load(io.BytesIO(state["tensordict"]), weights_only=False)
        self.__dict__.update({**state, "tensordict": tensordict.lock_()})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EnvMetaData):
            return NotImplemented
        mine, theirs = ((data.env_str, data.batch_locked, data.specs, _form(data.tensordict)) for data in (self, other))
        return mine == theirs

    __hash__ = None  # type: ignore[assignment]  # as the specs in it

    def __repr__(self) -> str:
        names = ("batch_size", "device", "batch_locked", "has_dynamic_specs", "specs")
        values = {**{name: getattr(self, name) for name in names}, "batch_size": [*self.batch_size]}
        lines = ",\n".join(f"{name}={value}" for name, value in values.items()).replace("\n", "\n    ")
        return f"{type(self).__name__}(\n    {lines})"


def _devices(tensordict: Any) -> dict[NestedKey, torch.device | None]:
    """Device of each leaf, by its key."""
    found: dict[NestedKey, torch.device | None] = {}
    if isinstance(tensordict, LazyStackedTensorDict):
        for row in tensordict.tensordicts:
            found = {**_devices(row), **found}
        return found
    for name, value in tensordict.items():
        if isinstance(value, torch.Tensor) or is_non_tensor(value):
            found[name] = value.device
        else:
            inner = _devices(value)
            found |= {(name, *((key,) if isinstance(key, str) else key)): inner[key] for key in inner}
    return found


def _form(value: Any) -> Any:
    """Shapes, dtypes and devices of a TensorDict, as plain data that can be compared."""
    if is_non_tensor(value):
        return "data", value.batch_size, value.device
    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype, value.device
    if isinstance(value, LazyStackedTensorDict):
        return value.stack_dim, [_form(row) for row in value.tensordicts]
    return value.batch_size, value.device, {name: _form(entry) for name, entry in value.items()}
