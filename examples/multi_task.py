"""Three tasks in one batch: envs whose observations and actions differ, and a policy that serves them all.

python examples/multi_task.py
python examples/multi_task.py --engine parallel  # the same numbers, with the envs in worker processes

A batch of unlike envs hands out lazy stacks: each row keeps its own shapes, and a slice of rows of one task is read
like any batch. The policy here is a controller for each task, written by hand where you would have networks. Prints
each task's mean return with random actions and with the controllers: the most that CartPole gives is 500; MountainCar
loses 1 a step, 200 at most, until it is up the hill; Pendulum loses up to 16 a step, and little once it stands. Where
no episode has ended in so many steps, there is a "-".
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import torch
from tensordict import TensorDictBase
from torch.nn.utils.rnn import pad_sequence

from gymbridge import ParallelEnv, SerialEnv

ENGINES = {"serial": SerialEnv, "parallel": ParallelEnv}


def balance(observation: torch.Tensor) -> torch.Tensor:
    """CartPole: pushes to the side to which the pole falls, and a little to the middle."""
    position, velocity, angle, turning = observation.unbind(-1)
    return (0.05 * position + 0.1 * velocity + angle + 0.3 * turning > 0).long()


def gather_speed(observation: torch.Tensor) -> torch.Tensor:
    """MountainCar: pushes in the direction in which it goes."""
    _, velocity = observation.unbind(-1)
    return torch.where(velocity < 0, 0, 2)


def swing_up(observation: torch.Tensor) -> torch.Tensor:
    """Pendulum: swings up with all its force, and holds itself up at the top."""
    cosine, sine, turning = observation.unbind(-1)
    hold = -10 * sine - 2 * turning
    energy = turning.square() / 6 + 5 * (cosine - 1)  # that it has more than it has at rest at the top
    force = torch.where(cosine > 0.8, hold, -2 * energy.sign() * turning.sign())
    return force.clamp(-2, 2).unsqueeze(-1)


CONTROLLERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "CartPole-v1": balance,
    "MountainCar-v0": gather_speed,
    "Pendulum-v1": swing_up,
}


def rows_of_tasks(num_envs: int) -> dict[str, slice]:
    """Which rows of the batch each task has."""
    return {task: slice(i * num_envs, (i + 1) * num_envs) for i, task in enumerate(CONTROLLERS)}


class Policy:
    """Writes the actions of all rows, task by task."""

    def __init__(self, rows: dict[str, slice]):
        self.rows = rows

    def __call__(self, td: TensorDictBase) -> TensorDictBase:
        for task, rows in self.rows.items():
            part = td[rows]  # shares its rows with td
            part["action"] = CONTROLLERS[task](part["observation"])
        return td


def episode_returns(rewards: torch.Tensor, done: torch.Tensor) -> list[float]:
    """The returns of the episodes that ended, from [N, T] each."""
    returns = []
    for row_rewards, row_done in zip(rewards, done, strict=True):
        ends = (row_done.nonzero().flatten() + 1).tolist()
        returns += [float(row_rewards[start:end].sum()) for start, end in zip([0, *ends], ends, strict=False)]
    return returns


def mean(returns: list[float]) -> float | None:
    """None where no episode has ended."""
    return sum(returns) / len(returns) if returns else None


def main(argv: Sequence[str] | None = None) -> dict[str, tuple[float | None, float | None]]:
    """Runs both policies; each task's mean return with random actions and with the controllers."""
    parser = argparse.ArgumentParser(description="Three tasks in one batch, and a policy that serves them all.")
    parser.add_argument("--num-envs", type=int, default=2, help="of each task")
    parser.add_argument("--steps", type=int, default=500, help="of each env, which is the longest episode")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", choices=ENGINES, default="serial", help="parallel: in worker processes")
    args = parser.parse_args(argv)
    rows = rows_of_tasks(args.num_envs)
    ids = [task for task in rows for _ in range(args.num_envs)]
    means: dict[str, list[float | None]] = {task: [] for task in rows}
    with ENGINES[args.engine](len(ids), ids) as env:
        for policy in (None, Policy(rows)):  # None takes random actions
            env.set_seed(args.seed)
            rollout = env.rollout(args.steps, policy, break_when_any_done=False)
            for task in rows:
                following = rollout[rows[task]]["next"]  # of one task: dense
                returns = episode_returns(following["reward"].squeeze(-1), following["done"].squeeze(-1))
                means[task].append(mean(returns))

    print(f"{'task':16}{'observation':>14}{'action':>10}{'random':>10}{'controller':>12}")
    for task, (by_chance, controlled) in means.items():
        first = rollout[rows[task]][0, 0]
        shapes = [str(list(first[key].shape)) for key in ("observation", "action")]
        told = ["-" if value is None else f"{value:.1f}" for value in (by_chance, controlled)]
        print(f"{task:16}{shapes[0]:>14}{shapes[1]:>10}{told[0]:>10}{told[1]:>12}")
    first_observations = [row["observation"][0] for row in rollout.unbind(0)]
    padded = pad_sequence(first_observations, batch_first=True)
    print(f"all observations of a step padded with zeros, for one network that takes them all: {list(padded.shape)}")
    return {task: (by_chance, controlled) for task, (by_chance, controlled) in means.items()}


if __name__ == "__main__":
    main()
