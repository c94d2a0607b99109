"""Environments that read and write TensorDicts."""

from __future__ import annotations

from gymbridge.envs.base import EnvBase
from gymbridge.envs.checking import check_env_specs
from gymbridge.envs.creator import EnvCreator
from gymbridge.envs.gym_env import GymEnv
from gymbridge.envs.metadata import EnvMetaData
from gymbridge.envs.rollout_progress import RolloutProgress
from gymbridge.envs.transitions import step_mdp

__all__ = ["EnvBase", "EnvCreator", "EnvMetaData", "GymEnv", "RolloutProgress", "check_env_specs", "step_mdp"]
