"""Does an env return what its specs say?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from tensordict import TensorDictBase

from gymbridge.envs.done_groups import FLAGS
from gymbridge.envs.spec_keys import leaf_keys
from gymbridge.envs.tensordicts import leaf_paths, row_of
from gymbridge.errors import EnvSpecError
from gymbridge.spaces.naming import kind_of
from gymbridge.specs import Composite, StackedComposite

if TYPE_CHECKING:
    from gymbridge.envs.base import EnvBase

__all__ = ["check_env_specs", "output_faults"]


def check_env_specs(env: EnvBase, *, num_steps: int = 10, seed: int | None = 0) -> None:
    """Steps an env with random actions and compares all that it returns with its specs, key by key.

    Args:
        env: the env; it is reset, seeded and stepped, and to be reset before it is used again.
        num_steps: steps, across episodes.
        seed: for the env and for torch's random generator, whose state is put back; None seeds neither.

    Raises:
        EnvSpecError: one line for each key that is missing or that no spec has, and for each shape, dtype, device or
            value that is not as its spec says; for gymnasium envs, for each item, shape, dtype, type or value that is
            not as their spaces say.
        TypeError: something that is no ``EnvBase``.

    Example:
        >>> from gymbridge.envs import GymEnv
        >>> check_env_specs(GymEnv("CartPole-v1"))
    """
    from gymbridge.envs.base import EnvBase

    if not isinstance(env, EnvBase):
        raise TypeError(
            f"got {env!r} of type {type(env).__name__}, expected an EnvBase; GymEnv makes one of a gymnasium.Env"
        )
    with torch.random.fork_rng(devices=[], enabled=seed is not None), torch.no_grad():
        if seed is not None:
            torch.manual_seed(seed)
            env.set_seed(seed)
        # first the env's own outputs, since steps of an env that gives anything else may not get through
        faults = env._output_faults(num_steps, seed) or _step_faults(env, num_steps)
    if faults:
        raise EnvSpecError(type(env).__name__, faults)


def output_faults(env: EnvBase, num_steps: int) -> list[str]:
    """What an env's own ``_reset`` and ``_step`` return against the specs; flags may be missing, they are completed."""
    observations, flags = env.full_observation_spec, env.full_done_spec
    first, following = _all_of([observations, flags]), _all_of([observations, env.full_reward_spec, flags])
    faults: dict[str, None] = {}
    root = env._reset(None)
    _note(faults, "_reset", _raw_faults(env, first, root))
    before = root
    for _ in range(num_steps):
        given = env.full_state_spec.rand()
        if isinstance(root, TensorDictBase):
            given.update(root.select(*env.full_state_spec.keys(True, True), strict=False))
        given = env.rand_action(given)
        before, root = root, env._step(given)
        _note(faults, "_step", _raw_faults(env, following, root))
        _note(faults, "_step", _memory_faults(before, root))
        if not isinstance(root, TensorDictBase) or _any_flag(root):
            root = env._reset(None)
            _note(faults, "_reset", _raw_faults(env, first, root))
    return list(faults)


def _any_flag(made: TensorDictBase) -> bool:
    return any(bool(made.get(path).any()) for path in leaf_paths(made) if path[-1] in FLAGS)


def _raw_faults(env: EnvBase, spec: Composite, made: object) -> list[str]:
    """As the spec's own, but that flags may be missing, or lack their last dim, and states may be there."""
    if not isinstance(made, TensorDictBase):
        return [f"got {kind_of(made)}, expected a TensorDict"]
    if made.batch_size != env.batch_size:
        return [f"got batch size {[*made.batch_size]}, expected {[*env.batch_size]}"]
    observed, made = set(leaf_keys(spec)), made.copy()
    states = [key for key in leaf_keys(env.full_state_spec) if key not in observed and made.get(key, None) is not None]
    faults = [fault for key in states for fault in env.full_state_spec[key].faults(made.get(key), key)]
    shown = made.exclude(*states).copy() if states else made
    given: dict[tuple[str, ...], list[str]] = {}
    for *path, name in leaf_keys(env.full_done_spec):
        flag, leaf = shown.get((*path, name), None), env.full_done_spec[(*path, name)]
        if flag is None:
            shown.set((*path, name), leaf.zero())
            continue
        given.setdefault(tuple(path), []).append(name)
        if flag.shape == leaf.shape[:-1]:
            shown.set((*path, name), flag.unsqueeze(-1))
    faults += spec.faults(shown)
    return faults or [fault for path, names in given.items() for fault in _flag_faults(shown, path, names)]


def _memory_faults(before: object, after: object) -> list[str]:
    """Tensors that are handed out again: what the caller got before would change."""
    if not (isinstance(before, TensorDictBase) and isinstance(after, TensorDictBase)):
        return []
    places = {_place(value) for value in before.values(True, True) if isinstance(value, torch.Tensor)} - {0}
    again = [
        key for key, value in after.items(True, True) if isinstance(value, torch.Tensor) and _place(value) in places
    ]
    return [
        f"{key}: got the memory that an earlier output has, expected a tensor of its own, a clone for example"
        for key in again
    ]


def _place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.device.type != "meta" else 0


def _step_faults(env: EnvBase, num_steps: int) -> list[str]:
    """What ``reset``, ``step`` and ``step_and_maybe_reset`` return against the specs."""
    faults: dict[str, None] = {}
    root = env.reset()
    _note(faults, "reset", [*_shown_faults(env, root), *_device_faults(env, root)])
    for _ in range(num_steps):
        given = env.rand_action(_with_states(env, root))
        if env.partial_reset:
            stepped, root = env.step_and_maybe_reset(given)
        else:  # where some envs of a batch ended, all are reset
            stepped = env.step(given)
            root = env.reset() if env._ended(stepped["next"]).any() else env.step_mdp(stepped)
        following = stepped.get("next")
        _note(faults, "step", [*_shown_faults(env, following, ("next",)), *_device_faults(env, stepped)])
        _note(faults, "step_and_maybe_reset", _shown_faults(env, root))
    return list(faults)


def _shown_faults(env: EnvBase, made: TensorDictBase, path: tuple[str, ...] = ()) -> list[str]:
    """A root, or what stands under ``"next"``, against the specs; states may be there. Unlike envs each for itself."""
    kinds = ("observation", "reward", "done") if path else ("observation", "done")
    specs, states = [env._spec_of(kind) for kind in kinds], env.full_state_spec
    if not any(isinstance(spec, StackedComposite) for spec in (*specs, states)):
        return _all_of([*specs, _states_in(made, states)]).faults(made, path)
    return [
        f"env {row}: {fault}"
        for row in range(env.batch_size[0])
        for own in [row_of(made, row)]
        for fault in _all_of([*(spec[row] for spec in specs), _states_in(own, states[row])]).faults(own, path)
    ]


def _states_in(made: TensorDictBase, states: Composite) -> Composite:
    return states.select(*(key for key in leaf_keys(states) if made.get(key, None) is not None))


def _with_states(env: EnvBase, root: TensorDictBase) -> TensorDictBase:
    """With a random state at each key that the env reads and has not written."""
    states = env.full_state_spec
    if isinstance(states, StackedComposite):
        pairs = [(row_of(root, row), states[row]) for row in range(env.batch_size[0])]
    else:
        pairs = [(root, states)]
    for own, spec in pairs:
        for key, leaf in spec.items(True, True):
            if own.get(key, None) is None:
                own.set(key, leaf.rand())
    return root


def _all_of(specs: Sequence[Composite]) -> Composite:
    """All keys of the specs; the first has the batch size and the device."""
    merged = specs[0].clone()
    for spec in specs[1:]:
        merged.update(spec.clone())
    return merged


def _note(faults: dict[str, None], where: str, lines: Iterable[str]) -> None:
    """Each fault once, with where it was first seen."""
    for line in lines:
        faults.setdefault(f"{where}: {line}")


def _flag_faults(made: TensorDictBase, path: tuple[str, ...], given: Sequence[str]) -> list[str]:
    """``done`` has to be ``terminated | truncated``; where one of the two is missing, it has to be theirs at least."""
    flags = {name: made.get((*path, name)) for name in FLAGS}
    ended = flags["terminated"] | flags["truncated"]
    agree = torch.equal(flags["done"], ended) if len(given) == len(FLAGS) else not (ended & ~flags["done"]).any()
    if "done" not in given or agree:
        return []
    shown = {name: flag.flatten().tolist() for name, flag in flags.items()}
    return [f"{'.'.join((*path, 'done'))}: got {shown}, expected done to be terminated | truncated"]


def _device_faults(env: EnvBase, made: TensorDictBase) -> list[str]:
    if made.device != env.device:
        return [f"the TensorDict has device {made.device}, expected {env.device}"]
    return []
