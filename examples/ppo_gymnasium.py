"""PPO learns CartPole-v1 through the `gymnasium.vector` API.

python examples/ppo_gymnasium.py                 # until the last 100 episodes' mean return is over 450
python examples/ppo_gymnasium.py --engine async  # the same numbers, with the envs in worker processes

Needs matplotlib for the learning curve: pip install "gymbridge[examples]". `ppo_tensordict.py` is the same on
TensorDicts.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Sequence
from contextlib import closing

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

from gymbridge.vector import AutoresetMode, make_vec

ROLLOUT_STEPS = 64  # of each env, between two updates of the networks
EPOCHS = 10  # passes over a rollout
MINIBATCH = 256
LEARNING_RATE = 1e-3
DISCOUNT = 0.98
GAE_LAMBDA = 0.9
CLIP = 0.2
VALUE_WEIGHT = 0.5
MAX_GRADIENT_NORM = 0.5


class Agent(nn.Module):
    """Policy and value function, each a network of its own."""

    def __init__(self, observation_size: int, num_actions: int):
        super().__init__()
        self.actor = mlp(observation_size, num_actions, last_gain=0.01)  # all actions equally likely at first
        self.critic = mlp(observation_size, 1, last_gain=1.0)

    def policy(self, observations: torch.Tensor) -> Categorical:
        return Categorical(logits=self.actor(observations))

    def value(self, observations: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.critic(observations).squeeze(-1)
        return values


def mlp(inputs: int, outputs: int, last_gain: float) -> nn.Sequential:
    layers = [nn.Linear(inputs, 64), nn.Linear(64, 64), nn.Linear(64, outputs)]
    for layer, gain in zip(layers, (2**0.5, 2**0.5, last_gain), strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


def advantages(
    rewards: torch.Tensor, values: torch.Tensor, terminated: torch.Tensor, done: torch.Tensor
) -> torch.Tensor:
    """Generalised advantage estimates [T, N], from values [T + 1, N]: of each step's observation and of the one after.

    A terminated episode is worth nothing after its end. One that was truncated is worth the value of its final
    observation, which with NEXT_STEP autoreset is what the step handed out, so it stands in the next row.
    """
    estimates = torch.zeros_like(rewards)
    estimate = torch.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        error = rewards[t] + DISCOUNT * values[t + 1] * ~terminated[t] - values[t]
        estimate = error + DISCOUNT * GAE_LAMBDA * estimate * ~done[t]  # an episode does not see the next one's
        estimates[t] = estimate
    return estimates


def update(
    agent: Agent,
    optimizer: torch.optim.Optimizer,
    observations: torch.Tensor,
    actions: torch.Tensor,
    estimates: torch.Tensor,
    values: torch.Tensor,
) -> None:
    """Improves the agent by a rollout of M transitions: PPO's clipped loss."""
    with torch.no_grad():
        old_log_probs = agent.policy(observations).log_prob(actions)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(actions)).split(MINIBATCH):
            log_probs = agent.policy(observations[rows]).log_prob(actions[rows])
            ratio = (log_probs - old_log_probs[rows]).exp()
            advantage = estimates[rows]
            advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
            gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
            value_loss = (agent.value(observations[rows]) - (values + estimates)[rows]).square().mean()
            loss = VALUE_WEIGHT * value_loss - gain
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), MAX_GRADIENT_NORM)
            optimizer.step()


def plot(path: str, episodes: list[tuple[int, float]]) -> None:
    from matplotlib.figure import Figure  # needs no display

    steps, returns = zip(*episodes, strict=True)
    means = [np.mean(returns[max(0, i - 99) : i + 1]) for i in range(len(returns))]
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    axes.plot(steps, returns, ".", alpha=0.2, label="an episode")
    axes.plot(steps, means, label="mean of the last 100 episodes")
    axes.set(title="PPO on CartPole-v1", xlabel="env steps", ylabel="return")
    axes.legend()
    figure.savefig(path)


def main(argv: Sequence[str] | None = None) -> float:
    """Trains, draws the learning curve, and returns the mean return of the last 100 episodes."""
    parser = argparse.ArgumentParser(description="PPO learns CartPole-v1 through the gymnasium.vector API.")
    parser.add_argument("--total-steps", type=int, default=400_000, help="env steps at most")
    parser.add_argument("--target-return", type=float, default=450.0, help="stop when the mean return is over this")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=["sync", "async"], default="sync", help="async: in worker processes")
    parser.add_argument("--plot", metavar="FILE", default="ppo_gymnasium.png", help="learning curve; '' for none")
    args = parser.parse_args(argv)
    if args.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("the learning curve needs matplotlib: pip install 'gymbridge[examples]', or --plot '' for none")

    torch.set_num_threads(1)  # networks this small take longer with more: their threads wait for each other
    torch.manual_seed(args.seed)
    envs = make_vec(
        "CartPole-v1",
        args.num_envs,
        vectorization_mode=args.engine,
        vector_kwargs={"autoreset_mode": AutoresetMode.NEXT_STEP},
    )
    envs = gym.wrappers.vector.RecordEpisodeStatistics(envs)
    observation_space, action_space = envs.single_observation_space, envs.single_action_space
    assert isinstance(observation_space, gym.spaces.Box)
    assert isinstance(action_space, gym.spaces.Discrete)
    observation_size = observation_space.shape[0]
    agent = Agent(observation_size, int(action_space.n))
    optimizer = torch.optim.Adam(agent.parameters(), LEARNING_RATE, eps=1e-5)

    shape = (ROLLOUT_STEPS, args.num_envs)
    observations = torch.zeros(ROLLOUT_STEPS + 1, args.num_envs, observation_size)
    actions = torch.zeros(shape, dtype=torch.int64)
    rewards = torch.zeros(shape)
    terminated, done, alive = (torch.zeros(shape, dtype=torch.bool) for _ in range(3))

    episodes: list[tuple[int, float]] = []  # when each ended, in env steps, and its return
    mean_return = 0.0
    start = time.perf_counter()
    with closing(envs):
        observation, _ = envs.reset(seed=args.seed)
        ended = torch.zeros(args.num_envs, dtype=torch.bool)
        steps = updates = 0
        while steps < args.total_steps:
            for t in range(ROLLOUT_STEPS):
                observations[t] = torch.from_numpy(observation)
                with torch.no_grad():
                    actions[t] = agent.policy(observations[t]).sample()
                alive[t] = ~ended  # the step after an episode's end only resets the env, whatever the action
                observation, reward, terminations, truncations, infos = envs.step(actions[t].numpy())
                rewards[t] = torch.from_numpy(reward)
                terminated[t] = torch.from_numpy(terminations)
                done[t] = ended = torch.from_numpy(terminations | truncations)
                steps += args.num_envs
                if "episode" in infos:
                    episodes += [(steps, float(value)) for value in infos["episode"]["r"][infos["_episode"]]]
            observations[ROLLOUT_STEPS] = torch.from_numpy(observation)

            with torch.no_grad():
                values = agent.value(observations)
            estimates = advantages(rewards, values, terminated, done)
            update(agent, optimizer, observations[:-1][alive], actions[alive], estimates[alive], values[:-1][alive])

            updates += 1
            last = [value for _, value in episodes[-100:]]
            mean_return = sum(last) / max(1, len(last))
            if updates % 20 == 0:
                print(f"{steps:>7} steps, {len(episodes):>4} episodes, mean return of the last 100: {mean_return:.1f}")
            if len(last) == 100 and mean_return > args.target_return:
                break

    seconds = time.perf_counter() - start
    print(f"{steps} steps in {seconds:.1f} s, mean return of the last 100 episodes: {mean_return:.2f}")
    if args.plot and episodes:
        plot(args.plot, episodes)
        print(f"learning curve: {args.plot}")
    return mean_return


if __name__ == "__main__":
    main()
