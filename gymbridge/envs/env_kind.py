"""What a TensorDict env says of itself to a batch in another process, before that chooses how to run it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from gymbridge.engine.gym_host import GymEnvDescription

if TYPE_CHECKING:
    from gymbridge.envs.gym_face import GymFaceOptions

__all__ = ["EnvKind"]


class EnvKind(NamedTuple):
    """Device of an env, and what it wraps.

    Attributes:
        device: of the env.
        has_dynamic_specs: whether a leaf has a dim of any size.
        options: how a gymnasium env in a ``GymEnv`` looks; None for any other env.
        gym_env: what that gymnasium env says of itself.
    """

    device: torch.device | None
    has_dynamic_specs: bool
    options: GymFaceOptions | None = None
    gym_env: GymEnvDescription | None = None
