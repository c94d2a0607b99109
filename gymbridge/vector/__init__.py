"""The gymnasium face: ``gymnasium.vector`` environments over gymbridge's engine, by changing one import."""

from __future__ import annotations

from gymnasium.vector import AutoresetMode

from gymbridge.vector.registration import VectorizeMode, make_vec
from gymbridge.vector.sync_vector_env import SyncVectorEnv

__all__ = ["AutoresetMode", "SyncVectorEnv", "VectorizeMode", "make_vec"]
