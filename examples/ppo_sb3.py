"""Stable-Baselines3's PPO learns CartPole-v1 on gymbridge's workers; it is saved, loaded again and evaluated.

python examples/ppo_sb3.py
python examples/ppo_sb3.py --engine in-process  # the same numbers, without worker processes

`gymbridge.interop.sb3.VecEnv` stands where `SubprocVecEnv` would; wrappers, algorithm and evaluation are
Stable-Baselines3's own. Prints the mean return of the last training episodes, and of 20 episodes of what was loaded: a
random policy has 22, the best one 500. Needs Stable-Baselines3: pip install "gymbridge[sb3]".
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecMonitor, VecNormalize

from gymbridge.interop.sb3 import VecEnv
from gymbridge.vector import SyncVectorEnv

DISCOUNT = 0.98
EVALUATION_EPISODES = 20


def make_env() -> gym.Env[Any, Any]:
    return gym.make("CartPole-v1")


def make_envs(engine: str, num_envs: int) -> VecMonitor:
    """A batch as Stable-Baselines3 wants it; `VecMonitor` keeps account of the episodes."""
    makers = [make_env] * num_envs
    return VecMonitor(VecEnv(makers if engine == "workers" else SyncVectorEnv(makers)))


def main(argv: Sequence[str] | None = None) -> float:
    """Trains, saves, loads, and returns the mean return of the loaded policy."""
    parser = argparse.ArgumentParser(description="Stable-Baselines3's PPO learns CartPole-v1 on gymbridge's workers.")
    parser.add_argument("--total-steps", type=int, default=50_000, help="env steps of the training")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=["workers", "in-process"], default="workers", help="where the envs run")
    parser.add_argument("--folder", type=Path, default=Path("ppo_sb3"), help="for the model and the normalisation")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)  # networks this small take longer with more: their threads wait for each other
    model_file, normalisation_file = args.folder / "model.zip", args.folder / "normalisation.pkl"
    args.folder.mkdir(parents=True, exist_ok=True)

    with closing(VecNormalize(make_envs(args.engine, args.num_envs), gamma=DISCOUNT)) as envs:
        model = PPO(
            "MlpPolicy",
            envs,
            learning_rate=1e-3,
            n_steps=64,
            batch_size=256,
            gamma=DISCOUNT,
            gae_lambda=0.9,
            seed=args.seed,  # of the envs too
            device="cpu",
        )
        model.learn(args.total_steps)
        returns = [episode["r"] for episode in model.ep_info_buffer]
        print(f"{model.num_timesteps} steps, mean return of the last {len(returns)} episodes: ", end="")
        print(f"{sum(returns) / max(1, len(returns)):.1f}")
        model.save(model_file)
        envs.save(normalisation_file)
        print(f"saved: {model_file}, {normalisation_file}")

    with closing(VecNormalize.load(normalisation_file, make_envs(args.engine, args.num_envs))) as envs:
        envs.training, envs.norm_reward = False, False  # observations as in training, returns as they are
        model = PPO.load(model_file, envs, device="cpu")
        envs.seed(args.seed)
        mean, deviation = evaluate_policy(model, envs, n_eval_episodes=EVALUATION_EPISODES)
    print(f"loaded, mean return of {EVALUATION_EPISODES} episodes: {mean:.1f} +- {deviation:.1f}")
    return float(mean)


if __name__ == "__main__":
    main()
