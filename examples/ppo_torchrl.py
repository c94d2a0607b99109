"""PPO of TorchRL's parts learns CartPole-v1: its collector, transforms, loss and replay buffer on gymbridge's workers.

python examples/ppo_torchrl.py
python examples/ppo_torchrl.py --engine serial  # the same numbers, with the envs in this process

`to_torchrl` makes a TorchRL env of gymbridge's batch; all else is TorchRL's own. Prints the mean return of the episodes
as they end, and at last that of 20 episodes in which the policy takes its best action: a random policy has 22, the best
one 500. Needs TorchRL: pip install "gymbridge[torchrl]".
"""

from __future__ import annotations

import argparse
import math
from collections import deque
from collections.abc import Sequence
from contextlib import closing

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.envs import Compose, ExplorationType, RewardSum, StepCounter, TransformedEnv, set_exploration_type
from torchrl.modules import MLP, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from gymbridge import ParallelEnv, SerialEnv
from gymbridge.interop.torchrl import to_torchrl

ENGINES = {"parallel": ParallelEnv, "serial": SerialEnv}

ROLLOUT_STEPS = 64  # of each env, between two updates of the networks
EPOCHS = 10  # passes over a batch
MINIBATCH = 256
LEARNING_RATE = 1e-3
DISCOUNT = 0.98
GAE_LAMBDA = 0.9
MAX_GRADIENT_NORM = 0.5
EVALUATION_EPISODES = 20


def make_env(engine: str, num_envs: int, seed: int) -> TransformedEnv:
    """A batch for TorchRL, in which each episode's return so far and its length are entries too."""
    env = TransformedEnv(to_torchrl(ENGINES[engine](num_envs, "CartPole-v1")), Compose(RewardSum(), StepCounter()))
    env.set_seed(seed)
    return env


def make_networks(observation_size: int, num_actions: int) -> tuple[ProbabilisticActor, ValueOperator]:
    def mlp(outputs: int) -> MLP:
        return MLP(observation_size, outputs, num_cells=[64, 64], activation_class=nn.Tanh)

    logits = TensorDictModule(mlp(num_actions), in_keys=["observation"], out_keys=["logits"])
    actor = ProbabilisticActor(
        logits,
        in_keys=["logits"],
        distribution_class=torch.distributions.Categorical,  # actions are integers here
        return_log_prob=True,
    )
    return actor, ValueOperator(mlp(1), in_keys=["observation"])


def evaluate(actor: ProbabilisticActor, engine: str, seed: int) -> float:
    """The mean return of the first episode of each of some envs, with the policy's most likely actions."""
    best_actions = set_exploration_type(ExplorationType.DETERMINISTIC)
    with closing(make_env(engine, EVALUATION_EPISODES, seed)) as env, torch.no_grad(), best_actions:
        rollout = env.rollout(500, actor, break_when_any_done=False, break_when_all_done=True)
    first_end = rollout["next", "done"].int().argmax(dim=1, keepdim=True)
    return float(rollout["next", "episode_reward"].gather(1, first_end).mean())


def main(argv: Sequence[str] | None = None) -> float:
    """Trains, and returns the mean return of the evaluation."""
    parser = argparse.ArgumentParser(description="PPO of TorchRL's parts learns CartPole-v1 on gymbridge's workers.")
    parser.add_argument("--total-steps", type=int, default=50_000, help="env steps of the training")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=ENGINES, default="parallel", help="parallel: in worker processes")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)  # networks this small take longer with more: their threads wait for each other
    torch.manual_seed(args.seed)

    env = make_env(args.engine, args.num_envs, args.seed)
    actor, critic = make_networks(env.observation_spec["observation"].shape[-1], env.action_spec.n)
    advantage = GAE(gamma=DISCOUNT, lmbda=GAE_LAMBDA, value_network=critic)
    loss = ClipPPOLoss(actor, critic, entropy_coeff=0.0, critic_coeff=0.5, normalize_advantage=True)
    optimizer = torch.optim.Adam(loss.parameters(), LEARNING_RATE)
    frames_per_batch = args.num_envs * ROLLOUT_STEPS
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(frames_per_batch), sampler=SamplerWithoutReplacement(), batch_size=MINIBATCH
    )
    collector = Collector(
        env,
        actor,
        frames_per_batch=frames_per_batch,
        total_frames=math.ceil(args.total_steps / frames_per_batch) * frames_per_batch,
        auto_register_policy_transforms=False,  # the policy has no state that a reset would have to clear
    )

    steps = 0
    last_returns: deque[float] = deque(maxlen=100)
    try:
        for number, batch in enumerate(collector, start=1):  # [num_envs, ROLLOUT_STEPS]
            steps += batch.numel()
            following = batch["next"]
            last_returns.extend(following["episode_reward"][following["done"]].tolist())
            with torch.no_grad():
                advantage(batch)
            buffer.empty()
            buffer.extend(batch.reshape(-1))
            for _ in range(EPOCHS):
                for minibatch in buffer:  # each transition once
                    losses = loss(minibatch)
                    optimizer.zero_grad()
                    (losses["loss_objective"] + losses["loss_critic"]).backward()
                    nn.utils.clip_grad_norm_(loss.parameters(), MAX_GRADIENT_NORM)
                    optimizer.step()
            if number % 10 == 0:
                mean = sum(last_returns) / max(1, len(last_returns))
                print(f"{steps:>7} steps, mean return of the last {len(last_returns)} episodes: {mean:.1f}")
    finally:
        collector.shutdown()  # and env

    mean = evaluate(actor, args.engine, args.seed)
    print(f"{steps} steps, mean return of {EVALUATION_EPISODES} episodes: {mean:.1f}")
    return mean


if __name__ == "__main__":
    main()
