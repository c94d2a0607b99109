"""The TensorDicts of a batched env in the form that a gymnasium vector env has: results out, actions in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDict, TensorDictBase

from gymbridge.engine.gym_host import GymEnvDescription
from gymbridge.envs.base import EnvBase
from gymbridge.envs.inputs import DeviceLike
from gymbridge.envs.tensordicts import entry
from gymbridge.specs import Composite
from gymbridge.specs._bridge import array_of
from gymbridge.vector.spec_leaves import ActionWriter, ObservationReader, handed_out
from gymbridge.vector.spec_requirements import require_one_space
from gymbridge.vector.tensordict_infos import TensorDictInfoReader
from gymbridge.vector.torch_output import require_dtype

__all__ = ["TensorDictForm", "require_output"]

Mask = npt.NDArray[np.bool_]


class TensorDictForm:
    """Reads what an env's rows give, and writes what they are given, as users of a vector env have it.

    Args:
        env: of batch size ``[N]``.
        gym_env: of gymnasium envs, how one describes itself: its spaces are told as they are.
        as_torch: tensors are handed out, and no arrays.
        device: where tensors are to be; None where the env has them.

    Attributes:
        single_observation_space, single_action_space: the spaces of one env.

    Raises:
        ValueError: what :func:`~gymbridge.vector.spec_requirements.require_one_space` refuses.
        TypeError: a dtype that the device lacks.
        UnsupportedSpaceError: a spec without a space.

    Example:
        >>> from gymbridge import SerialEnv
        >>> env = SerialEnv(3, "CartPole-v1")
        >>> form = TensorDictForm(env, None, as_torch=False, device=None)
        >>> form.single_action_space, form.observation(env.reset(), copy=True).shape
        (Discrete(2), (3, 4))
    """

    def __init__(self, env: EnvBase, gym_env: GymEnvDescription | None, *, as_torch: bool, device: torch.device | None):
        self._as_torch = as_torch
        self._device = device
        observations = env.full_observation_spec
        infos = observations.get("info", None)
        has_infos = isinstance(infos, Composite)
        observations = observations.exclude("info") if has_infos else observations
        require_one_space(env, observations)
        self._specs = {
            "observation": observations,
            "action": env.full_action_spec,
            "reward": env.full_reward_spec,
            "done": env.full_done_spec,
        }
        self._infos = TensorDictInfoReader(infos if has_infos else None)
        self._spaces = (None, None) if gym_env is None else (gym_env.observation_space, gym_env.action_space)
        self._read_specs()
        if device is not None:
            for leaf in self._observations.tree.leaves:
                if leaf.is_array:
                    require_dtype(leaf.name, leaf.dtype, device)
            if env.full_reward_spec["reward"].dtype is torch.float64:
                require_dtype("reward", np.dtype(np.float64), device)

    def _read_specs(self) -> None:
        observation_space, action_space = self._spaces
        self._observations = ObservationReader(self._specs["observation"], observation_space)
        self._actions = ActionWriter(self._specs["action"], action_space)
        self.single_observation_space = self._observations.single_space
        self.single_action_space = self._actions.single_space

    def of_rows(self, num_rows: int) -> TensorDictForm:
        """The same of so many of the env's rows, ``N`` at most."""
        form = object.__new__(type(self))
        form._as_torch, form._device = self._as_torch, self._device
        form._infos, form._spaces = self._infos, self._spaces
        form._specs = {kind: spec[:num_rows] for kind, spec in self._specs.items()}
        form._read_specs()
        return form

    # ---------------------------------------------------------------- what comes out

    def parts(self, td: TensorDictBase, *, copy: bool) -> list[Any]:
        """The leaves of the observations, each an array or a tensor of all rows, or a tuple of objects.

        Args:
            td: of all rows.
            copy: in memory of their own.
        """
        if self._as_torch:
            return self._observations.tensors(td, copy, self._device)
        return self._observations.arrays(td, copy)

    def joined(self, parts: Sequence[Any]) -> Any:
        """An observation of these leaves."""
        return self._observations.tree.unflatten(parts)

    def observation(self, td: TensorDictBase, *, copy: bool) -> Any:
        """The observations of all rows."""
        return self.joined(self.parts(td, copy=copy))

    def final_observations(self, parts: Sequence[Any], ended: Mask) -> npt.NDArray[Any]:
        """An object array with the observation of each row whose episode ended, as one env of the space has it."""
        final = np.full(ended.shape, None, object)
        for row in np.flatnonzero(ended):
            values = [part[row] if isinstance(part, tuple) else _own(part[row]) for part in parts]
            final[row] = self.joined(values)
        return final

    def outcome(self, td: TensorDictBase, *, copy: bool) -> tuple[Any, Any, Any]:
        """Rewards, terminations and truncations, an array or a tensor ``[N]`` each."""
        values = [entry(td, name) for name in ("reward", "terminated", "truncated")]
        if not self._as_torch:
            reward, *flags = (array_of(value).reshape(-1) for value in values)
            return (reward.astype(np.float64), *(flag.copy() for flag in flags))  # type: ignore[return-value]
        return tuple(handed_out(value.detach().reshape(-1), copy, self._device) for value in values)  # type: ignore[return-value]

    def no_outcome(self) -> TensorDict:
        """Rewards that are zero and flags that are False: of rows that were reset."""
        reward, done = self._specs["reward"], self._specs["done"]
        return TensorDict({**dict(reward.zero()), **dict(done.zero())}, reward.shape)

    def infos(self, td: TensorDictBase, rows: Mask) -> dict[str, Any]:
        """The infos of some rows; see :class:`~gymbridge.vector.tensordict_infos.TensorDictInfoReader`."""
        return self._infos(td, rows)

    # ---------------------------------------------------------------- what goes in

    def write_actions(self, td: TensorDictBase, actions: Any, ignored: Mask | None = None) -> None:
        """Sets the actions; see :meth:`~gymbridge.vector.spec_leaves.ActionWriter.write`."""
        self._actions.write(td, actions, ignored=ignored)


def require_output(output: str, device: DeviceLike | None) -> None:
    """Refuses options of what is handed out that there are not.

    Raises:
        ValueError: another output than ``"numpy"`` and ``"torch"``, or a device for numpy output.
    """
    if output not in ("numpy", "torch"):
        raise ValueError(f"output: got {output!r}, expected 'numpy' or 'torch'")
    if output == "numpy" and device is not None:
        raise ValueError(f"device: got {device!r} with output='numpy'; a device needs output='torch'")


def _own(value: Any) -> Any:
    """A row of a batch as a value of its own."""
    return value.clone() if isinstance(value, torch.Tensor) else value.copy()
