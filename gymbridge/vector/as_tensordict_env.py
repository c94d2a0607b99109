"""Any gymnasium vector env as a TensorDict env: what it is, what it can do, and the env that this makes."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import vector as gymnasium_vector
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.wrappers import vector as wrappers

from gymbridge.envs.gym_face import GymFaceOptions
from gymbridge.envs.inputs import DeviceLike
from gymbridge.envs.vector_env import GymVectorEnv, VectorEnvTraits
from gymbridge.specs import Composite
from gymbridge.vector.autoreset import Autoreset
from gymbridge.vector.engine_vector_env import EngineVectorEnv
from gymbridge.vector.tensordict_vector_env import TensorDictVectorEnv

__all__ = ["from_vector_env"]

_GYMNASIUMS = (gymnasium_vector.SyncVectorEnv, gymnasium_vector.AsyncVectorEnv)
_OURS = (EngineVectorEnv, TensorDictVectorEnv)
_CALLS = ("reset", "step", "reset_async", "reset_wait", "step_async", "step_wait")


def from_vector_env(
    vector_env: VectorEnv[Any, Any, Any],
    *,
    autoreset_mode: AutoresetMode | str | None = None,
    reset_mask: bool | None = None,
    device: DeviceLike | None = None,
    categorical_action_encoding: bool = True,
    info: Composite | None = None,
    reward_dtype: torch.dtype = torch.float32,
) -> GymVectorEnv:
    """A gymnasium vector env as a TensorDict env of batch size ``[N]``.

    Specs are those of the single spaces, keys as :class:`~gymbridge.envs.GymEnv` has them. Where the vector env honours
    reset masks or is of mode ``SAME_STEP``, episodes are as in any :class:`~gymbridge.envs.EnvBase`, whatever the
    autoreset mode: ``next`` has the final observation, and the root that ``step_and_maybe_reset`` returns has the first
    one of the next episode.

    A vector env of mode ``NEXT_STEP`` that ignores masks has a dead step after each episode's end. There the root has
    the final observation and ``done``; the action is ignored; ``next`` has the first observation of the next episode
    and a False at ``("next", "valid")``, bool ``[N, 1]``, a leaf that only such envs have (at the root it tells of the
    step before). :func:`gymbridge.valid_transitions` leaves such steps out.

    ``"_step"`` masks are refused. ``"_reset"`` masks are refused where the vector env ignores them, except for envs
    that it resets itself.

    Args:
        vector_env: the vector env, ours, gymnasium's or your own, with or without wrappers. Its spaces are those of the
            outermost wrapper. It is closed with the env, and must not be reset or stepped directly, nor given another
            ``autoreset_mode``, which the next call refuses; its ``copy`` may be set.
        autoreset_mode: for a vector env that does not say it at ``metadata["autoreset_mode"]``.
        reset_mask: whether ``reset(options={"reset_mask": mask})`` resets what the mask picks and nothing else, and no
            step resets it again. None: known of gymnasium's and our vector envs, and of gymnasium's wrappers around
            them; False for others. What keeps statistics of whole episodes and loses them in a masked reset
            (``NormalizeReward``, ``NormalizeObservation``; ``RecordEpisodeStatistics`` over gymnasium's own) counts as
            one that ignores masks, unless the mode is ``DISABLED``, where nothing else resets one env and the
            statistics are wrong, as in gymnasium; so does gymnasium's ``AsyncVectorEnv`` of mode ``NEXT_STEP`` with
            ``shared_memory=False``, which resets again.
        device: device of what is returned; None for the CPU, without a device on the TensorDicts.
        categorical_action_encoding: discrete actions are int64 numbers; with False, one-hot vectors.
        info: None drops the infos. A ``Composite`` of specs without a batch names those to keep: leaves under
            ``"info"``, with a bool ``[N]`` under ``("info", "_mask")`` that says which envs have the entry. At the end
            of an episode they are those of the end: with ``SAME_STEP`` what stands in ``final_info``, and what
            ``RecordEpisodeStatistics`` adds.
        reward_dtype: dtype of the reward ``[N, 1]``.

    Returns:
        An :class:`~gymbridge.envs.EnvBase`, with the vector env at ``env``. Public attributes of the vector env
        (``render``, ``np_random``, ``call`` …) are attributes of it too.

    Raises:
        TypeError: no vector env, or an ``info`` or ``reward_dtype`` of another type.
        ValueError: an autoreset mode that is not told, or that is not the vector env's own; ``reset_mask=True`` for one
            that is known to reset again.
        UnsupportedSpaceError: a space without a translation.

    Example:
        >>> import gymnasium as gym
        >>> env = from_vector_env(gym.make_vec("CartPole-v1", 3, vectorization_mode="sync"))
        >>> td = env.rand_action(env.reset())
        >>> td, td_ = env.step_and_maybe_reset(td)
        >>> td["next", "reward"].shape, td_["observation"].shape
        (torch.Size([3, 1]), torch.Size([3, 4]))
        >>> env.rollout(200, break_when_any_done=False).batch_size
        torch.Size([3, 200])
        >>> env.close()
    """
    if not isinstance(vector_env, VectorEnv):
        raise TypeError(
            f"vector_env: got {vector_env!r} of type {type(vector_env).__name__}, expected a gymnasium.vector.VectorEnv"
        )
    if info is not None and not isinstance(info, Composite):  # 'auto' is GymEnv's, which makes another env to find them
        why = ": finding them would step the vector env" if isinstance(info, str) else ""
        raise TypeError(f"info: got {info!r}, expected None or a Composite of the entries to keep{why}")
    options = GymFaceOptions(
        categorical_action_encoding=categorical_action_encoding, info_spec=info, reward_dtype=reward_dtype
    )
    traits = _traits(vector_env, _mode(vector_env, autoreset_mode), reset_mask)
    return GymVectorEnv(vector_env, traits, device=device, options=options)


def _mode(vector_env: VectorEnv[Any, Any, Any], told: Any) -> AutoresetMode:
    """The mode that a vector env says it has, else the one that the caller says."""
    base = vector_env.unwrapped
    said: Any = (vector_env.metadata or {}).get("autoreset_mode")
    if isinstance(base, (*_GYMNASIUMS, *_OURS)):  # gymnasium 1.1 shares one metadata among all of a class of envs
        said = base.autoreset_mode
    if said is None and told is None:
        raise ValueError(
            f"autoreset_mode: {vector_env} says nothing of it at metadata['autoreset_mode'], expected one of "
            f"{[mode.value for mode in AutoresetMode]} as the argument autoreset_mode"
        )
    own, wanted = (None if mode is None else Autoreset(mode).mode for mode in (said, told))
    if own is not None and wanted is not None and own is not wanted:
        raise ValueError(f"autoreset_mode: got {wanted.value!r}, expected {own.value!r}, which {vector_env} has")
    found = own or wanted
    assert found is not None  # for the type checker: one of the two is there
    return found


def _traits(vector_env: VectorEnv[Any, Any, Any], mode: AutoresetMode, told: bool | None) -> VectorEnvTraits:
    """What a vector env can do, as far as its class tells, or the caller."""
    if told is not None and not isinstance(told, bool):
        raise TypeError(f"reset_mask: got {told!r}, expected True, False or None")
    layers: list[VectorEnv[Any, Any, Any]] = [vector_env]
    while isinstance(layers[-1], VectorWrapper):
        layers.append(layers[-1].env)
    *around, base = layers
    known = isinstance(base, (*_GYMNASIUMS, *_OURS)) and _is_as_made(base)
    passes_on = all(type(layer).__module__.startswith("gymnasium.") for layer in around)
    resets_again = (
        known
        and mode is AutoresetMode.NEXT_STEP
        and isinstance(base, gymnasium_vector.AsyncVectorEnv)
        and not base.shared_memory
    )
    if told and resets_again:
        raise ValueError(
            f"reset_mask: got True, expected False or None: {base} with shared_memory=False resets an env whose "
            f"episode has ended once more in the next step"
        )
    engine_runs_it = not isinstance(base, TensorDictVectorEnv) or base._engine_env is not None
    honoured = known and passes_on and not resets_again
    if isinstance(base, TensorDictVectorEnv):
        honoured = honoured and base.env.partial_reset
    return VectorEnvTraits(
        mode,
        takes_reset_mask=(honoured and _survive_masks(around, base, mode)) if told is None else told,
        takes_seeds=known and passes_on and engine_runs_it,
        gives_own=known and not around and hasattr(base, "copy"),
        resets_again=resets_again,
        entries_of_ends=frozenset(
            getattr(layer, "_stats_key", "episode")
            for layer in around
            if isinstance(layer, wrappers.RecordEpisodeStatistics)
        ),
        counts=isinstance(base, _OURS) and hasattr(getattr(base, "env", base), "stats"),
    )


def _is_as_made(base: VectorEnv[Any, Any, Any]) -> bool:
    """Whether reset and step are those of the class that is known, and no subclass has its own."""
    own_worker = isinstance(base, gymnasium_vector.AsyncVectorEnv) and getattr(base, "worker", None) is not None
    methods = [getattr(type(base), name) for name in _CALLS if hasattr(type(base), name)]
    return not own_worker and all(method.__module__.split(".")[0] in ("gymnasium", "gymbridge") for method in methods)


def _survive_masks(around: list[VectorEnv[Any, Any, Any]], base: VectorEnv[Any, Any, Any], mode: AutoresetMode) -> bool:
    """Whether the wrappers are right after a masked reset, or there is no other way to reset."""
    if any(isinstance(layer, wrappers.NormalizeObservation) for layer in around):
        return False  # refuses masks
    if mode is AutoresetMode.DISABLED:
        return True
    if any(isinstance(layer, wrappers.NormalizeReward) for layer in around):
        return False  # loses the returns of all envs, or counts the first step after the reset as none
    counting = sum(isinstance(layer, wrappers.RecordEpisodeStatistics) for layer in around)
    # takes the mask out of the options after the envs had it, as gymnasium's own do before it sees it
    return counting == 0 or (counting == 1 and isinstance(base, _OURS))
