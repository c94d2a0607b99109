"""What is imported, and what is not."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys

import gymnasium as gym
import numpy as np

import gymbridge
from gymbridge.vector import AsyncVectorEnv, SyncVectorEnv, make_vec

for mode in ("NextStep", "SameStep", "Disabled"):
    envs = SyncVectorEnv([lambda: gym.make("CartPole-v1", max_episode_steps=3)] * 2, autoreset_mode=mode)
    envs.reset(seed=0)
    for _ in range(3):
        envs.step(envs.action_space.sample())
    envs.reset(options={"reset_mask": np.array([True, True])})
    envs.close()
envs = AsyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2)
envs.reset(seed=0)
envs.step(envs.action_space.sample())
envs.close()
make_vec("Taxi-v4" if "Taxi-v4" in gym.registry else "Taxi-v3", 2, "sync").close()
print(sorted({"torch", "tensordict"} & set(sys.modules)))
"""


def test_numpy_output_needs_neither_torch_nor_tensordict() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout.strip() == "[]", done.stderr
