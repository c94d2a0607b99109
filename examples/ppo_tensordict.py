"""PPO learns CartPole-v1 on TensorDicts.

python examples/ppo_tensordict.py                    # until the last 100 episodes' mean return is over 450
python examples/ppo_tensordict.py --engine parallel  # the same numbers, with the envs in worker processes

Needs matplotlib for the learning curve: pip install "gymbridge[examples]". `ppo_gymnasium.py` is the same through the
`gymnasium.vector` API.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Sequence

import torch
from tensordict import TensorDictBase
from torch import nn
from torch.distributions import Categorical

from gymbridge import ParallelEnv, SerialEnv

ENGINES = {"serial": SerialEnv, "parallel": ParallelEnv}

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
    """Policy and value function, each a network of its own. Called with a TensorDict, it writes the action."""

    def __init__(self, observation_size: int, num_actions: int):
        super().__init__()
        self.actor = mlp(observation_size, num_actions, last_gain=0.01)  # all actions equally likely at first
        self.critic = mlp(observation_size, 1, last_gain=1.0)

    def policy(self, td: TensorDictBase) -> Categorical:
        return Categorical(logits=self.actor(td["observation"]))

    def forward(self, td: TensorDictBase) -> TensorDictBase:
        policy = self.policy(td)
        td["action"] = policy.sample()
        td["log_prob"] = policy.log_prob(td["action"])  # what a policy writes is in the rollout too
        return td


def mlp(inputs: int, outputs: int, last_gain: float) -> nn.Sequential:
    layers = [nn.Linear(inputs, 64), nn.Linear(64, 64), nn.Linear(64, outputs)]
    for layer, gain in zip(layers, (2**0.5, 2**0.5, last_gain), strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


def add_advantages(agent: Agent, rollout: TensorDictBase) -> None:
    """Writes generalised advantage estimates and the values to learn, [N, T, 1], into a rollout [N, T].

    A terminated episode is worth nothing after its end. One that was truncated is worth the value of its final
    observation, which stands under "next", as the observation after any other step does.
    """
    following = rollout["next"]
    value, next_value = agent.critic(rollout["observation"]), agent.critic(following["observation"])
    error = following["reward"] + DISCOUNT * next_value * ~following["terminated"] - value
    goes_on = ~following["done"]  # an episode does not see the next one's advantages
    advantage = torch.zeros_like(error)
    estimate = torch.zeros_like(error[:, 0])
    for t in reversed(range(rollout.shape[1])):
        estimate = error[:, t] + DISCOUNT * GAE_LAMBDA * estimate * goes_on[:, t]
        advantage[:, t] = estimate
    rollout["advantage"], rollout["value_target"] = advantage, value + advantage


def update(agent: Agent, optimizer: torch.optim.Optimizer, rollout: TensorDictBase) -> None:
    """Improves the agent by a rollout: PPO's clipped loss."""
    transitions = rollout.select("observation", "action", "log_prob", "advantage", "value_target").reshape(-1)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(transitions)).split(MINIBATCH):
            batch = transitions[rows]
            ratio = (agent.policy(batch).log_prob(batch["action"]) - batch["log_prob"]).exp()
            advantage = batch["advantage"].squeeze(-1)
            advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
            gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
            value_loss = (agent.critic(batch["observation"]) - batch["value_target"]).square().mean()
            loss = VALUE_WEIGHT * value_loss - gain
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), MAX_GRADIENT_NORM)
            optimizer.step()


def plot(path: str, episodes: list[tuple[int, float]]) -> None:
    from matplotlib.figure import Figure  # needs no display

    steps, returns = zip(*episodes, strict=True)
    means = [sum(returns[max(0, i - 99) : i + 1]) / min(i + 1, 100) for i in range(len(returns))]
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    axes.plot(steps, returns, ".", alpha=0.2, label="an episode")
    axes.plot(steps, means, label="mean of the last 100 episodes")
    axes.set(title="PPO on CartPole-v1", xlabel="env steps", ylabel="return")
    axes.legend()
    figure.savefig(path)


def main(argv: Sequence[str] | None = None) -> float:
    """Trains, draws the learning curve, and returns the mean return of the last 100 episodes."""
    parser = argparse.ArgumentParser(description="PPO learns CartPole-v1 on TensorDicts.")
    parser.add_argument("--total-steps", type=int, default=400_000, help="env steps at most")
    parser.add_argument("--target-return", type=float, default=450.0, help="stop when the mean return is over this")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=ENGINES, default="serial", help="parallel: in worker processes")
    parser.add_argument("--plot", metavar="FILE", default="ppo_tensordict.png", help="learning curve; '' for none")
    args = parser.parse_args(argv)
    if args.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("the learning curve needs matplotlib: pip install 'gymbridge[examples]', or --plot '' for none")

    torch.set_num_threads(1)  # networks this small take longer with more: their threads wait for each other
    env = ENGINES[args.engine](args.num_envs, "CartPole-v1")
    env.set_seed(args.seed)
    torch.manual_seed(args.seed)
    agent = Agent(env.observation_spec["observation"].shape[-1], env.action_spec.n)
    optimizer = torch.optim.Adam(agent.parameters(), LEARNING_RATE, eps=1e-5)

    episodes: list[tuple[int, float]] = []  # when each ended, in env steps, and its return
    mean_return = 0.0
    start = time.perf_counter()
    with env:
        td = env.reset()
        running_return = torch.zeros_like(env.reward_spec.zero())
        steps = updates = 0
        while steps < args.total_steps:
            with torch.no_grad():
                rollout = env.rollout(ROLLOUT_STEPS, agent, auto_reset=False, tensordict=td, break_when_any_done=False)
                td = env.step_mdp(rollout[:, -1])  # where the next rollout goes on; it first resets what has ended
                add_advantages(agent, rollout)
            update(agent, optimizer, rollout)

            following = rollout["next"]
            for reward, done in zip(following["reward"].unbind(1), following["done"].unbind(1), strict=True):
                steps += args.num_envs
                running_return += reward
                episodes += [(steps, value) for value in running_return[done].tolist()]
                running_return[done] = 0
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
