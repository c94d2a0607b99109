"""What a TensorDict env says of itself to a batch in another process, before that chooses how to run it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from gymbridge.engine.gym_host import GymEnvDescription

if TYPE_CHECKING:
    from gymbridge.envs.gym_face import GymFaceOptions

__all__ = ["EnvKind", "require_like_envs"]


class EnvKind(NamedTuple):
    """Device of an env, and what it wraps.

    Attributes:
        device: of the env.
        has_dynamic_specs: whether a leaf has a dim of any size.
        options: how a gymnasium env in a ``GymEnv`` looks; None for any other env.
        gym_env: what that gymnasium env says of itself.
        difference: how the envs of one that is a batch of ours differ; None if they do not.
    """

    device: torch.device | None
    has_dynamic_specs: bool
    options: GymFaceOptions | None = None
    gym_env: GymEnvDescription | None = None
    difference: str | None = None


def require_like_envs(row: int, difference: str | None) -> None:
    """Refuses a batch of envs that differ as an env of another batch.

    Raises:
        ValueError: naming the env.
    """
    if difference is not None:
        raise ValueError(
            f"env {row}: got a batch of envs that differ ({difference}), expected one of like envs; give all envs to "
            f"one batch"
        )
