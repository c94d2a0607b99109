"""Rollouts: many steps as one TensorDict."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase

from gymbridge.engine.counts import count_of
from gymbridge.envs.inputs import DeviceLike
from gymbridge.envs.rollout_progress import Show, followed
from gymbridge.envs.step_record import StepRecord
from gymbridge.envs.tensordicts import densified, leaf_paths, picked_rows, row_of

if TYPE_CHECKING:
    from gymbridge.envs.base import EnvBase

__all__ = ["rollout"]


def rollout(
    env: EnvBase,
    max_steps: int,
    policy: Callable[..., Any] | None = None,
    callback: Callable[[EnvBase, TensorDictBase], Any] | None = None,
    *,
    auto_reset: bool = True,
    auto_cast_to_device: bool = False,
    break_when_any_done: bool | None = None,
    break_when_all_done: bool | None = None,
    return_contiguous: bool | None = None,
    tensordict: TensorDictBase | None = None,
    set_truncated: bool = False,
    out: TensorDictBase | None = None,
    trust_policy: bool = False,
    storing_device: DeviceLike | None = None,
    progress: bool | Show = False,
) -> TensorDictBase:
    """Runs an env for some steps. Order and meaning of the arguments are those of TorchRL's ``EnvBase.rollout``.

    Args:
        env: the env.
        max_steps: steps at most, at least 1.
        policy: writes the action into the TensorDict that it is given and returns it; random actions without one. A
            ``torch.nn.Module`` is called with the observation's tensors instead, in the order of their keys and without
            the infos and ``"valid"``, and what it returns are the actions; unless it has ``in_keys``, or its
            ``forward`` takes one argument that is named ``td`` or ``tensordict`` or annotated as a TensorDict.
        callback: called with the env and a copy of the step's TensorDict after each step but the last. What it changes
            in place of the step's tensors is in the result; of steps before it may not be.
        auto_reset: begin with a reset. Without, ``tensordict`` is where to go on from.
        auto_cast_to_device: move what the policy reads to the policy's device, and what it wrote to the env's.
        break_when_any_done: stop when any env is done; the default. With False, done envs are reset and go on.
        break_when_all_done: stop when all envs are done; one that is done before waits, and repeats its last step.
        return_contiguous: stack to dense tensors; with False, a lazy stack. Unless told, dense where the env has no
            dynamic specs.
        tensordict: what the first reset is given, or where to go on from; envs done in it are reset first.
        set_truncated: mark the last step as truncated and done.
        out: a TensorDict ``[*B, T]`` of at least ``max_steps`` steps that the result is written into; what is returned
            is the part of it that was. It is dense, or for unlike envs a lazy stack along the first dim. Large tensors
            are written there step by step: where an error ends the rollout, a part of it may have been.
        trust_policy: call the policy with the TensorDict whatever it is.
        storing_device: where the result is kept.
        progress: show on standard error how far it has come: the steps, their number a second, the episodes that have
            ended and the mean of their returns. It is a bar on a terminal, where ``rich`` is installed, and else a line
            of text. A function is called with these figures after each step instead, a
            :class:`~gymbridge.envs.RolloutProgress`; what it raises ends the rollout.

    Returns:
        A TensorDict ``[*B, T]``, its last dim named ``"time"``.

    Raises:
        ValueError: fewer than one step, ``auto_reset=False`` without a ``tensordict``, two ways to break, waiting for
            envs that cannot wait, an ``out`` without room, or steps whose keys differ without
            ``return_contiguous=False`` (what a policy writes under ``"next"`` has to be in the root from the first
            step on).
        TypeError: an argument of another type, or a policy that returns no TensorDict.

    Example:
        >>> from gymbridge.envs import GymEnv
        >>> env = GymEnv("CartPole-v1")
        >>> steps = env.rollout(10, break_when_any_done=False)
        >>> steps.batch_size, steps["next", "reward"].shape
        (torch.Size([10]), torch.Size([10, 1]))
        >>> env.close()
    """
    max_steps = count_of("max_steps", max_steps)
    for name, function in (("policy", policy), ("callback", callback)):
        if function is not None and not callable(function):
            raise TypeError(f"{name}: got {function!r}, expected a callable")
    if not (isinstance(progress, bool) or callable(progress)):
        raise TypeError(f"progress: got {progress!r}, expected True, False or a function of the figures")
    if break_when_all_done and not env.partial_step:
        raise ValueError(
            f"break_when_all_done: {type(env).__name__} has partial_step=False, an env that ended cannot wait"
        )
    if out is not None:
        lead = env.batch_size if tensordict is None or env.batch_locked else tensordict.batch_size
        _require_room(env, out, lead, max_steps)
    if break_when_any_done and break_when_all_done:
        raise ValueError("break_when_any_done and break_when_all_done: got True for both, expected at most one")
    if break_when_any_done is None:
        break_when_any_done = not break_when_all_done
    if auto_reset:
        root = env.reset(tensordict)
    elif tensordict is None:
        raise ValueError("tensordict: got None with auto_reset=False, expected where the rollout goes on from")
    else:
        root = _reset_done(env, tensordict)

    act = _acting(env, policy, auto_cast_to_device, trust_policy)
    advance = _until_done if break_when_any_done else _until_all_done if break_when_all_done else _without_end
    contiguous = not env.has_dynamic_specs if return_contiguous is None else return_contiguous
    steps: list[TensorDictBase] = []
    record = StepRecord(max_steps, root.ndim, all_come=advance is _without_end, out=out)
    keep = record.add if contiguous else steps.append
    once = bool(break_when_all_done)
    with followed(env, max_steps, progress, once=once) if progress else nullcontext() as note:
        for step, goes_on in advance(env, act, root, max_steps):
            if note is not None:
                note(step["next"])
            if callback is not None and goes_on:
                callback(env, step.copy())
            if set_truncated and not goes_on:
                _truncate(env, step["next"])
            keep(step if storing_device is None else step.to(storing_device))
    return _stack(record if contiguous else steps, root.ndim, out)


Act: TypeAlias = "Callable[[TensorDictBase], TensorDictBase]"
Steps: TypeAlias = "Iterable[tuple[TensorDictBase, bool]]"
"""The steps one by one, each with whether another follows."""


def _until_done(env: EnvBase, act: Act, root: TensorDictBase, max_steps: int) -> Steps:
    for left in reversed(range(max_steps)):
        step = env.step(act(root))
        goes_on = left > 0 and not env._ended(step["next"]).any()
        yield step, goes_on
        if not goes_on:
            return
        root = env.step_mdp(step)


def _until_all_done(env: EnvBase, act: Act, root: TensorDictBase, max_steps: int) -> Steps:
    running = torch.ones(root.batch_size, dtype=torch.bool, device=env.device)
    previous = root  # not looked at before an env waits, which none does in the first step
    for left in reversed(range(max_steps)):
        root = act(root)
        some_wait = not running.all()
        if some_wait:
            root.set("_step", running)
        step = env.step(root)
        if some_wait:
            step = _repeated(running, step, previous)
        running = running & ~env._ended(step["next"]).to(running.device)
        goes_on = left > 0 and bool(running.any())
        yield step, goes_on
        if not goes_on:
            return
        root, previous = env.step_mdp(step), step


def _without_end(env: EnvBase, act: Act, root: TensorDictBase, max_steps: int) -> Steps:
    for _ in range(max_steps - 1):
        step, root = env.step_and_maybe_reset(act(root))
        yield step, True
    yield env.step(act(root)), False


def _require_room(env: EnvBase, out: TensorDictBase, lead: torch.Size, max_steps: int) -> None:
    """Refuses an ``out`` that the steps could not be written into.

    Raises:
        TypeError: no TensorDict.
        ValueError: another batch size, too few steps, or a key that is missing.
    """
    if not isinstance(out, TensorDictBase):
        raise TypeError(f"out: got {type(out).__name__}, expected a TensorDict")
    size = [*out.batch_size]
    if size[:-1] != [*lead] or size[-1:] < [max_steps]:
        raise ValueError(f"out: got batch size {size}, expected {[*lead, max_steps]}")
    fake = densified(env.fake_tensordict())
    pairs = [(fake, out)]
    if isinstance(fake, LazyStackedTensorDict):
        if not _has_rows(out):
            raise ValueError("out: got a dense TensorDict, expected a lazy stack along the first dim, of unlike envs")
        pairs = [(row_of(fake, row), own) for row, own in enumerate(out.unbind(0))]
    for row, own in pairs:
        present = leaf_paths(own)
        missing = [key for key in leaf_paths(row) if key not in present]
        if missing:
            raise ValueError(f"out: the keys {missing} are missing, got {present}")
        for key in leaf_paths(row):
            like, room = row.get(key), own.get(key)
            if not isinstance(like, torch.Tensor):
                continue
            shape = (*own.batch_size, *like.shape[row.ndim :])
            if room.shape != shape or room.dtype is not like.dtype:
                raise ValueError(
                    f"out: {'.'.join(key)} has shape {[*room.shape]} and {room.dtype}, expected {[*shape]} and "
                    f"{like.dtype}"
                )


def _has_rows(tensordict: TensorDictBase) -> bool:
    """Whether each env has a TensorDict of its own in it."""
    return isinstance(tensordict, LazyStackedTensorDict) and tensordict.stack_dim == 0 and tensordict.ndim > 1


def _reset_done(env: EnvBase, root: TensorDictBase) -> TensorDictBase:
    root = root.copy()
    parts = env._row_groups(root)
    if any(part.get((*path, "done"), None) is None for part, groups in parts for path in groups.paths):
        return root
    ended = env._ended(root)
    if not ended.any():
        return root
    if all(groups.paths == parts[0][1].paths for _, groups in parts):
        env._spec_plan.groups.put_resets(root, ended)
    else:  # masks of groups that only some envs have would leave the others without any
        root.set("_reset", ended)
    return env.reset(root)


def _acting(env: EnvBase, policy: Callable[..., Any] | None, cast: bool, trust: bool) -> Act:
    """What writes the actions: TensorDict in, TensorDict out."""
    if policy is None:
        return env.rand_action
    call: Callable[..., Any] = policy
    if isinstance(policy, torch.nn.Module) and not trust and not _reads_tensordicts(policy):
        call = _on_tensors(env, policy)
    device = _device_of(policy) if cast else None

    def act(root: TensorDictBase) -> TensorDictBase:
        if not cast:
            written = call(root)
        else:
            home = root.device
            written = call(root.to(device) if device is not None else root)
            if home is not None and isinstance(written, TensorDictBase):
                written = written.to(home)
        if not isinstance(written, TensorDictBase):
            raise TypeError(
                f"policy: got {type(written).__name__}, expected the TensorDict with the action; a module that returns "
                f"actions has to be a torch.nn.Module"
            )
        return root if written is root else root.update(written)

    return act


def _reads_tensordicts(policy: torch.nn.Module) -> bool:
    """Whether a module takes a TensorDict, as far as it shows."""
    if hasattr(policy, "in_keys"):
        return True
    arguments = [*inspect.signature(policy.forward).parameters.values()]
    if len(arguments) != 1:
        return False
    return arguments[0].name in ("td", "tensordict") or "TensorDict" in str(arguments[0].annotation)


def _on_tensors(env: EnvBase, policy: torch.nn.Module) -> Act:
    """A module that reads tensors and returns actions, as one that reads and writes a TensorDict."""
    reads = [key for key in env.full_observation_spec.keys(True, True) if key[0] != "info" and key != "valid"]
    writes = env.action_keys

    def call(root: TensorDictBase) -> TensorDictBase:
        actions = policy(*(root.get(key) for key in reads))
        if isinstance(actions, torch.Tensor):
            actions = (actions,)
        if len(actions) != len(writes):
            raise ValueError(f"policy: got {len(actions)} outputs, expected {len(writes)}, one for each of {writes}")
        for key, action in zip(writes, actions, strict=True):
            root.set(key, action)
        return root

    return call


def _device_of(policy: Any) -> torch.device | None:
    """Device of a module's first parameter or buffer."""
    if isinstance(policy, torch.nn.Module):
        for tensor in (*policy.parameters(), *policy.buffers()):
            return tensor.device
    device: torch.device | None = getattr(policy, "device", None)
    return device


def _stack(steps: StepRecord | list[TensorDictBase], dim: int, out: TensorDictBase | None) -> TensorDictBase:
    in_out: Collection[tuple[str, ...]] = ()
    if isinstance(steps, StepRecord):
        try:
            stacked = densified(steps.stacked())
        except ValueError as error:
            raise ValueError(f"step {error}: steps that differ are stacked with return_contiguous=False only") from None
        in_out = steps.in_out
    else:
        stacked = LazyStackedTensorDict(*steps, stack_dim=dim)
    if out is not None:
        if (num_steps := stacked.batch_size[dim]) < out.batch_size[dim]:
            out = out[(slice(None),) * dim + (slice(num_steps),)]
        _write(out, stacked.exclude(*in_out) if in_out else stacked)
        stacked = out
    stacked.names = [*[None] * dim, "time"]
    return stacked


def _write(out: TensorDictBase, steps: TensorDictBase) -> None:
    """Writes the steps in place; of unlike envs each env's into its own row."""
    if _has_rows(out):
        for row, own in enumerate(out.unbind(0)):
            _write(own, row_of(steps, row))
    else:
        out.update_(steps)


def _truncate(env: EnvBase, following: TensorDictBase) -> None:
    """Marks what a step gave as truncated, and so as done, in every group."""
    for part, groups in env._row_groups(following):
        for path in groups.paths:
            for name in ("truncated", "done"):
                part.set((*path, name), torch.ones_like(part.get((*path, name))))


def _repeated(running: torch.Tensor, step: TensorDictBase, previous: TensorDictBase) -> TensorDictBase:
    """The step of the envs that are running, and of the others the one before; each leaf stays where it is."""
    if isinstance(step, LazyStackedTensorDict) and step.stack_dim == 0:
        rows = [_repeated(running[row], own, row_of(previous, row)) for row, own in enumerate(step.tensordicts)]
        return LazyStackedTensorDict(*rows, stack_dim=0)
    chosen = step.copy()
    for key in leaf_paths(step):
        chosen.set(key, picked_rows(running, step.get(key), previous.get(key, None)))
    return chosen
