"""Does an env return what its specs say?"""

from __future__ import annotations

import torch
from tensordict import TensorDictBase

from gymbridge.envs.base import EnvBase
from gymbridge.errors import EnvSpecError
from gymbridge.specs import Composite

__all__ = ["check_env_specs"]


def check_env_specs(env: EnvBase, *, num_steps: int = 10, seed: int | None = 0) -> None:
    """Steps an env with random actions and compares all that it returns with its specs, key by key.

    Args:
        env: the env; it is reset, seeded and stepped.
        num_steps: steps, across episodes.
        seed: for the env and for torch's random generator, whose state is put back; None seeds neither.

    Raises:
        EnvSpecError: one line for each key that is missing or that no spec has, and for each shape, dtype, device or
            value that is not as its spec says.

    Example:
        >>> from gymbridge.envs import GymEnv
        >>> check_env_specs(GymEnv("CartPole-v1"))
    """
    root_spec = _merged(env, env.full_observation_spec, env.full_done_spec)
    next_spec = _merged(env, env.full_observation_spec, env.full_reward_spec, env.full_done_spec)
    faults: dict[str, None] = {}
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
            env.set_seed(seed)
        root = env.reset()
        _note(faults, "reset", root_spec.faults(root))
        for _ in range(num_steps):
            stepped, root = env.step_and_maybe_reset(env.rand_action(root))
            _note(faults, "step", next_spec.faults(stepped.get("next"), ("next",)))
            _note(faults, "step", _device_faults(env, stepped))
            root = root.select(*root_spec.keys(True, True), *env.full_state_spec.keys(True, True), strict=False)
            _note(
                faults, "step_and_maybe_reset", root_spec.faults(root.select(*root_spec.keys(True, True), strict=False))
            )
    if faults:
        raise EnvSpecError(type(env).__name__, list(faults))


def _merged(env: EnvBase, *specs: Composite) -> Composite:
    merged = Composite(shape=env.batch_size, device=env.device)
    for spec in specs:
        for key, leaf in spec.items(True, True):
            merged.set(key, leaf)
    return merged


def _note(faults: dict[str, None], where: str, lines: list[str]) -> None:
    """Each fault once, with where it was first seen."""
    for line in lines:
        faults.setdefault(f"{where}: {line}")


def _device_faults(env: EnvBase, stepped: TensorDictBase) -> list[str]:
    if stepped.device != env.device:
        return [f"the TensorDict has device {stepped.device}, expected {env.device}"]
    return []
