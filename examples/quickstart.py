"""Eight CartPole envs, stepped twice: as TensorDicts, and through the `gymnasium.vector` API.

python examples/quickstart.py
"""

from __future__ import annotations

import time

import gymbridge
from gymbridge.vector import make_vec

NUM_ENVS = 8
STEPS = 1000


def report(what: str, seconds: float) -> None:
    print(f"  {STEPS} vector steps {what}: {NUM_ENVS * STEPS / seconds:,.0f} env steps a second\n")


def tensordict_rollouts() -> None:
    print(f"gymbridge.SerialEnv({NUM_ENVS}, 'CartPole-v1'): TensorDicts")
    with gymbridge.SerialEnv(NUM_ENVS, "CartPole-v1") as env:
        env.set_seed(0)

        rollout = env.rollout(200, break_when_any_done=False)
        ended = rollout["next", "done"].sum()
        print(f"  a random policy, 200 steps: batch_size {list(rollout.batch_size)}, {ended} episodes ended")
        print(f"  a batch holds {', '.join(sorted(rollout.keys()))} and, under 'next', what followed")

        td = env.reset()
        start = time.perf_counter()
        for _ in range(STEPS):
            td = env.rand_action(td)
            _, td = env.step_and_maybe_reset(td)
        report("with random actions", time.perf_counter() - start)


def vector_steps() -> None:
    print(f"gymbridge.vector.make_vec('CartPole-v1', num_envs={NUM_ENVS}): the gymnasium.vector API")
    envs = make_vec("CartPole-v1", num_envs=NUM_ENVS, vectorization_mode="sync")
    envs.action_space.seed(0)
    observations, _ = envs.reset(seed=0)
    print(f"  observations are {type(observations).__name__}, shape {observations.shape}, {observations.dtype}")

    ended = 0
    start = time.perf_counter()
    for _ in range(STEPS):
        _, _, terminations, truncations, _ = envs.step(envs.action_space.sample())
        ended += (terminations | truncations).sum()
    seconds = time.perf_counter() - start
    envs.close()
    print(f"  {ended} episodes ended")
    report("with random actions", seconds)


if __name__ == "__main__":
    tensordict_rollouts()
    vector_steps()
