"""A batch of envs written in torch, trained by a program that knows `gymnasium.vector` and numpy alone.

python examples/custom_tensordict_env.py
python examples/custom_tensordict_env.py --device cuda

`Docking` is a `gymbridge.envs.EnvBase`: a spacecraft for each row, all moved by one torch operation, on any device.
`TensorDictVectorEnv` makes a `gymnasium.vector.VectorEnv` of it. The training is the cross-entropy method: each row
flies by weights of its own, and the next generation is drawn around the best. Prints how many craft of a generation
docked and their mean return, and at last those of 256 craft with the final weights, beside as many without a pilot.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDict, TensorDictBase

from gymbridge.envs import EnvBase, check_env_specs
from gymbridge.specs import Bounded, Composite, Unbounded
from gymbridge.vector import TensorDictVectorEnv

Array = npt.NDArray[Any]


class Docking(EnvBase):
    """Spacecraft in a plane that are to reach the origin, slowly.

    An action is a thrust. An episode terminates where a craft docks (near the origin, and slow) or is lost (too far
    away), and is truncated after 100 steps. A step earns what it comes nearer; docking is worth 10, a loss costs 10.
    """

    partial_step = True  # "_step" and "_reset" masks are honoured
    partial_reset = True

    def __init__(self, num_envs: int, device: str = "cpu"):
        super().__init__(batch_size=[num_envs], device=device)
        batch: dict[str, Any] = {"shape": [num_envs], "device": device}
        self.observation_spec = Composite(
            position=Unbounded((num_envs, 2), device=device), velocity=Unbounded((num_envs, 2), device=device), **batch
        )
        self.action_spec = Bounded(-1, 1, (num_envs, 2), device=device)
        self.reward_spec = Unbounded((num_envs, 1), device=device)
        self.position = torch.zeros(num_envs, 2, device=device)
        self.velocity = torch.zeros(num_envs, 2, device=device)
        self.steps = torch.zeros(num_envs, 1, dtype=torch.int64, device=device)
        self.generator = torch.Generator(device)

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        mask = self.picked(tensordict, "_reset")
        angle = 2 * torch.pi * torch.rand(self.batch_size, generator=self.generator, device=self.device)
        start = 3 * torch.stack([angle.cos(), angle.sin()], dim=-1)
        self.position = torch.where(mask, start, self.position)
        self.velocity = torch.where(mask, 0.0, self.velocity)
        self.steps = torch.where(mask, 0, self.steps)
        return TensorDict({"position": self.position, "velocity": self.velocity}, self.batch_size)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        mask = self.picked(tensordict, "_step")
        distance_before = self.position.norm(dim=-1, keepdim=True)
        velocity = self.velocity + 0.1 * tensordict["action"]
        self.velocity = torch.where(mask, velocity, self.velocity)
        self.position = torch.where(mask, self.position + 0.2 * velocity, self.position)
        self.steps = self.steps + mask
        distance, speed = self.position.norm(dim=-1, keepdim=True), self.velocity.norm(dim=-1, keepdim=True)
        docked, lost = (distance < 0.2) & (speed < 0.2), distance > 6
        return TensorDict(
            {
                "position": self.position,
                "velocity": self.velocity,
                "reward": distance_before - distance + 10.0 * docked - 10.0 * lost,
                "terminated": docked | lost,
                "truncated": (self.steps >= 100) & ~(docked | lost),
            },
            self.batch_size,
        )

    def picked(self, tensordict: TensorDictBase | None, key: str) -> torch.Tensor:
        """The mask in `tensordict`, [num_envs, 1]; all rows where there is none."""
        mask = None if tensordict is None else tensordict.get(key, None)
        return torch.ones_like(self.steps, dtype=torch.bool) if mask is None else mask.unsqueeze(-1)

    def _set_seed(self, seed: int | None) -> None:
        if seed is not None:
            self.generator.manual_seed(seed)


# From here on there is gymnasium and numpy alone.


def flat(observations: dict[str, Array]) -> Array:
    """A Dict space's observations [N, …] as one array [N, size], with a column of ones."""
    columns = [value.reshape(len(value), -1) for value in observations.values()]
    return np.concatenate([*columns, np.ones((len(columns[0]), 1))], axis=1)


def fly(envs: gym.vector.VectorEnv[Any, Any, Any], weights: Array, seed: int) -> tuple[Array, Array]:
    """Row i flies one episode by `weights[i]`; each row's return, and whether it docked: it terminated with a gain."""
    observations, _ = envs.reset(seed=seed)
    returns, docked = np.zeros(envs.num_envs), np.zeros(envs.num_envs, bool)
    running = np.ones(envs.num_envs, bool)
    while running.any():
        actions = np.tanh(np.einsum("nao,no->na", weights, flat(observations))).astype(np.float32)
        observations, rewards, terminations, truncations, _ = envs.step(actions)
        returns += rewards * running
        docked |= running & terminations & (rewards > 0)
        running &= ~(terminations | truncations)
    return returns, docked


def train(envs: gym.vector.VectorEnv[Any, Any, Any], generations: int, seed: int) -> Array:
    """The cross-entropy method: weights [num_actions, num_features] of a linear policy."""
    generator = np.random.default_rng(seed)
    space = envs.single_observation_space
    num_features = gym.spaces.flatdim(space) + 1
    action_space = envs.single_action_space
    assert isinstance(action_space, gym.spaces.Box)
    mean = np.zeros((action_space.shape[0], num_features))
    deviation = np.ones_like(mean)
    for generation in range(generations):
        weights = mean + deviation * generator.normal(size=(envs.num_envs, *mean.shape))
        returns, docked = fly(envs, weights, seed + generation * envs.num_envs)
        elite = weights[np.argsort(returns)[-max(2, envs.num_envs // 8) :]]
        mean, deviation = elite.mean(axis=0), elite.std(axis=0) + 0.05
        print(f"generation {generation}: {docked.mean():4.0%} docked, mean return {returns.mean():.1f}")
    return mean


def main(argv: Sequence[str] | None = None) -> tuple[float, float]:
    """Trains; the shares of craft that dock with the final weights, and without a pilot."""
    parser = argparse.ArgumentParser(description="A custom TensorDict env, trained through gymnasium.vector.")
    parser.add_argument("--num-envs", type=int, default=256)
    parser.add_argument("--generations", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args(argv)
    check_env_specs(Docking(3, args.device))  # says, key by key, where an env is not what its specs say

    with closing(TensorDictVectorEnv(Docking(args.num_envs, args.device))) as envs:
        print(f"observations: {envs.single_observation_space}")
        print(f"actions: {envs.single_action_space}")
        weights = train(envs, args.generations, args.seed)
        shares = []
        for name, pilot in (("trained", weights), ("no pilot", np.zeros_like(weights))):
            everyones = np.broadcast_to(pilot, (args.num_envs, *weights.shape))
            returns, docked = fly(envs, everyones, seed=args.seed + 1_000_000)
            print(f"{name}: {docked.mean():.0%} of {args.num_envs} docked, mean return {returns.mean():.1f}")
            shares.append(float(docked.mean()))
    return shares[0], shares[1]


if __name__ == "__main__":
    main()
