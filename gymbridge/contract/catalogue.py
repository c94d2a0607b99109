"""All faults that an env may have: how grave each is, and what to do about it.

An *error* is something that makes a run of many envs fail, or compute something else than its caller believes. A
*warning* is something to know: it costs time, or surprises, or kept the check from looking.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

__all__ = ["CATALOGUE", "FaultKind", "Severity"]

Severity: TypeAlias = Literal["error", "warning"]


class FaultKind(NamedTuple):
    """What is the same for all faults of a kind.

    Attributes:
        severity: ``"error"`` or ``"warning"``.
        advice: what to do.

    Example:
        >>> from gymbridge.contract import CATALOGUE
        >>> CATALOGUE["flag-type"]
        FaultKind(severity='error', advice='Return a bool: bool(flag).')
    """

    severity: Severity
    advice: str


def _error(advice: str) -> FaultKind:
    return FaultKind("error", advice)


def _warning(advice: str) -> FaultKind:
    return FaultKind("warning", advice)


CATALOGUE: dict[str, FaultKind] = {
    # ---------------------------------------------------------------- any env: calls
    "reset-raises": _error("Make reset work at any time: first, after an end, and in the middle of an episode."),
    "step-raises": _error("Make step take every action that is in the action space or spec."),
    "reset-hangs": _error("Have reset come back in time, or raise the limit if it is only slow."),
    "step-hangs": _error("Have step come back in time, or raise the limit if it is only slow."),
    "make-again-raises": _error(
        "Let the maker be called more than once in a process: no fixed ports, files or global names."
    ),
    "close-raises": _error("Have close free what there is to free and raise nothing."),
    "close-twice-raises": _warning("Have a second close do nothing."),
    "no-end": _warning(
        "Episodes' ends were not looked at: give more --steps, or a time limit, such as gymnasium's TimeLimit wrapper."
    ),
    # ---------------------------------------------------------------- any env: random numbers and instances
    "seed-not-repeatable": _error(
        "Draw all random numbers from a generator that the seed of reset makes anew: self.np_random after "
        "super().reset(seed=seed), or a torch.Generator that _set_seed seeds."
    ),
    "reset-carries-over": _warning(
        "Have a reset with a seed begin anew: what an episode leaves behind, counters say, makes its results depend on "
        "how many there were before."
    ),
    "seed-ignored": _warning(
        "Use the seed. If the env has no randomness, this is as it should be: many of it then differ by their actions "
        "alone."
    ),
    "instances-differ": _error(
        "Have each instance depend on its seed alone, not on how many there are or which was first."
    ),
    "instances-share-state": _error(
        "Keep state in the instance: no mutable class attributes, default arguments or module globals."
    ),
    "global-random": _error(
        "Draw from a generator of the env's own: several envs of a process share the global one, and no seed of an env "
        "reaches it."
    ),
    "torch-random": _warning(
        "Draw from a torch.Generator of the env's own: from the global one, results change with the number of workers."
    ),
    # ---------------------------------------------------------------- any env: other processes
    "maker-unpicklable": _error(
        "Make inside the maker what it now brings along, or start workers with mp_start_method='fork' (context='fork')."
    ),
    "spaces-unpicklable": _error(
        "Keep spaces, specs and metadata free of what cannot be pickled: they go to the caller."
    ),
    "worker-raises": _error(
        "Have the env need nothing that is in the caller's process alone: globals that were changed, open files, "
        "connections."
    ),
    "worker-dies": _error("Find out what ends the process: a crash in C code, os._exit, or too little memory."),
    "worker-hangs": _error(
        "Look for locks, displays and servers that only the caller's process has; or raise the limit if it is only "
        "slow."
    ),
    "worker-differs": _error(
        "Have results depend on seed and actions alone, not on the process: its id, its hash seed, its globals."
    ),
    # ---------------------------------------------------------------- gymnasium: attributes and spaces
    "space-missing": _error("Set it in __init__, to a gymnasium space."),
    "space-unsupported": _error("Give each item of a Dict space a string as its key."),
    "space-unequal": _error(
        "Write the space's __eq__: batches refuse envs with unlike spaces, and cannot tell that these are alike."
    ),
    "space-custom": _warning(
        "Register a translation with gymbridge.spaces.register_space; without, it works in gymbridge.vector alone, by "
        "message."
    ),
    "space-by-message": _warning(
        "Nothing is wrong. Where speed counts, use Box, Discrete, MultiDiscrete and MultiBinary, which go through "
        "shared memory; these samples are pickled each step."
    ),
    "space-changes": _error("Keep spaces as they are in __init__: memory and policies are laid out for them once."),
    "metadata": _error("Make metadata a dict."),
    "render-mode": _warning("List it in metadata['render_modes']."),
    "reset-signature": _error("Write reset(self, *, seed=None, options=None)."),
    "reset-seed-default": _error("Make the default of seed None: each reset without one repeats the same episode."),
    # ---------------------------------------------------------------- gymnasium: what is returned
    "reset-result": _error("Return the pair (observation, info)."),
    "step-result": _error("Return (observation, reward, terminated, truncated, info)."),
    "observation-items": _error("Return exactly the items that the space has."),
    "observation-type": _error("Return what the space says: arrays for Box, dicts for Dict, tuples for Tuple."),
    "observation-shape": _error("Return the shape of the space, or change the space."),
    "observation-dtype": _error("Cast with np.asarray(value, dtype), or change the space."),
    "observation-domain": _error("Clip the value, or widen the space."),
    "observation-nan": _error("Find the division or the root that NaN comes from: it spoils a policy for good."),
    "observation-infinite": _warning("Clip the value: a policy that sees infinity gives NaN."),
    "observation-reused": _warning(
        "Return a copy: what was handed out before changes with each step. gymbridge copies observations itself, but a "
        "buffer that keeps those of a single env has the last one many times."
    ),
    "reward-type": _error("Return a number: float(reward)."),
    "reward-array": _error("Return a number instead of an array: float(reward), or reward.item()."),
    "reward-not-finite": _error("Find where it comes from; one such reward spoils returns and normalisers for good."),
    "flag-type": _error("Return a bool: bool(flag)."),
    "flag-not-bool": _warning("Return a bool: bool(flag). Here it is taken for one, elsewhere it may not be."),
    "info-type": _error("Return a dict, {} if there is nothing to say."),
    "info-reserved-key": _warning("Choose another key: vector envs use it themselves, keys with '_' for masks."),
    "info-keys-change": _warning(
        "Return the same keys each step, if that is easy: then infos go through shared memory. Those that only ends "
        "have are well."
    ),
    "info-entry-changes": _warning("Keep shape and kind of an entry: one that changes is an array of objects."),
    "info-unpicklable": _error("Leave it out, or send what can be pickled: infos go from worker to caller."),
    "info-reused": _warning("Return a new dict each time, with copies of arrays that change."),
    "action-modified": _error("Copy the action before you change it: the caller stores it as what was done."),
    # ---------------------------------------------------------------- TensorDict envs
    "spec-missing": _error("Set it in __init__."),
    "spec-changes": _error("Keep specs as they are in __init__: memory is laid out for them once."),
    "output-type": _error("Return a TensorDict."),
    "output-batch-size": _error("Give the TensorDict the env's batch_size."),
    "entry-missing": _error("Return it, or take it out of the specs."),
    "entry-extra": _error("Give it a spec, or leave it out: without a spec it has no place in a batch."),
    "entry-type": _error("Return a tensor, or make the spec NonTensor."),
    "entry-shape": _error("Return the spec's shape, batch size first, or change the spec."),
    "entry-dtype": _error("Cast it, or change the spec's dtype."),
    "entry-device": _error("Return it on the env's device, or change the spec's device."),
    "entry-domain": _error("Clamp the value, or widen the spec."),
    "entry-nan": _error("Find the division or the root that NaN comes from: it spoils a policy for good."),
    "flags-disagree": _error("Return done = terminated | truncated, or leave done out: it is completed."),
    "done-after-reset": _error("Reset until the env is not done."),
    "output-aliases-input": _error(
        "Return a new TensorDict with tensors of its own: a clone of the action or state, not the tensor itself."
    ),
    "output-reused": _error(
        "Return tensors of its own each time, a clone for example: what was returned before changes."
    ),
    "input-modified": _error("Leave what _step is given as it is: work on clones."),
    "state-ignored": _warning("Read the state from what _step is given, or take it out of state_spec."),
    "state-not-written": _warning("Return the next state from _step, unless it is the policy that writes it."),
    "partial-reset": _error("Have _reset start only the rows that '_reset' picks, or leave partial_reset False."),
    "partial-step": _error("Have _step step only the rows that '_step' picks, or leave partial_step False."),
    "metadata-unstable": _error("Have specs and repr say the same each time they are asked for."),
    "refused": _error("See the message: the env's own outputs are well, the contract around them is not."),
}
"""Code -> the kind of fault."""
