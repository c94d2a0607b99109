"""What a TensorDict env returns, read call by call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase, is_leaf_nontensor

from gymbridge.contract.differences import Record, same
from gymbridge.contract.findings import Findings
from gymbridge.envs.base import EnvBase
from gymbridge.envs.done_groups import FLAGS
from gymbridge.envs.env_specs import KINDS, EnvSpecs
from gymbridge.envs.spec_keys import leaf_keys
from gymbridge.envs.tensordicts import leaf_paths
from gymbridge.spaces.naming import kind_of
from gymbridge.specs import Composite, TensorSpec

__all__ = ["Inputs", "OutputReader", "any_flag", "record_of"]

Key = tuple[str, ...]


class Inputs:
    """What a step is given, as it is before.

    Args:
        given: the TensorDict, which the env may add to.

    Attributes:
        values: the very values.
        as_they_were: the same in memory of their own.
    """

    def __init__(self, given: TensorDictBase):
        self.values: Record = dict(_leaves(given, ""))
        self.as_they_were = record_of(given)


class OutputReader:
    """Notes all that is wrong with what an env's own ``_reset`` and ``_step`` return.

    Args:
        env: the env.
        findings: where faults go.
    """

    def __init__(self, env: EnvBase, findings: Findings):
        self._env = env
        self._findings = findings
        self._specs = EnvSpecs.of(env)
        self._before: Any = None
        self._states = dict.fromkeys(leaf_keys(env.full_state_spec), 0)
        self.num_steps = 0
        self.num_ends = 0

    def read_reset(self, made: Any) -> None:
        """Reads what ``_reset`` returned."""
        env = self._env
        if not self._specs.is_like(env):
            for kind in KINDS:
                now, before = env._spec_of(kind), self._specs._spec_of(kind)
                if now != before:
                    self._findings.add("spec-changes", "reset", f"{kind}_spec", f"{now} after a reset", f"{before}")
            self._specs = EnvSpecs.of(env)
        if not self._read("_reset", made, [env.full_observation_spec, env.full_done_spec]):
            return
        for key in leaf_paths(made):
            if key[-1] in FLAGS and bool(made.get(key).any()):
                self._findings.add("done-after-reset", "_reset", ".".join(key), "True", "False")
        self._before = made

    def read_step(self, given: TensorDictBase, inputs: Inputs, made: Any) -> None:
        """Reads what ``_step`` returned.

        Args:
            given: what it was given.
            inputs: what was in that.
            made: what it returned.
        """
        env = self._env
        self.num_steps += 1
        self.num_ends += any_flag(made)
        if made is given:
            self._findings.add("output-aliases-input", "_step", "", "the TensorDict that it was given", "a new one")
            return
        self._read_given(inputs.values, inputs.as_they_were)
        specs = [env.full_observation_spec, env.full_reward_spec, env.full_done_spec]
        if not self._read("_step", made, specs):
            return
        for key in self._states:
            self._states[key] += made.get(key, None) is not None
        self._read_memory("output-aliases-input", inputs.values, made, "memory of an input", "memory of its own")
        if isinstance(self._before, TensorDictBase) and not self._findings.has("output-aliases-input"):
            before = dict(_leaves(self._before, ""))  # of which an input may be, so one of the two is told
            self._read_memory("output-reused", before, made, "memory of an earlier output", "memory of its own")
        self._before = made

    def finish(self) -> None:
        """Notes what shows after the last call only."""
        for key, count in self._states.items():
            if self.num_steps and not count:
                self._findings.add("state-not-written", "_step", ".".join(key), "no next state", "the state")

    # ---------------------------------------------------------------- the parts

    def _read(self, where: str, made: Any, specs: list[Composite]) -> bool:
        """Whether it is a TensorDict that can be looked at further."""
        env = self._env
        if not isinstance(made, TensorDictBase):
            self._findings.add("output-type", where, "", kind_of(made), "a TensorDict")
            return False
        if made.batch_size != env.batch_size:
            got, expected = f"batch size {[*made.batch_size]}", f"{[*env.batch_size]}"
            self._findings.add("output-batch-size", where, "", got, expected)
            return False
        self._read_entries(where, made, specs)
        if not self._findings.has("entry-"):
            self._read_flags(where, made)
        return True

    def _read_entries(self, where: str, made: TensorDictBase, specs: list[Composite]) -> None:
        if isinstance(made, LazyStackedTensorDict):
            for row, own in enumerate(made.unbind(made.stack_dim)):
                at = (*[slice(None)] * made.stack_dim, row)
                self._read_entries(f"{where}, row {row}", own, [spec[at] for spec in specs])
            return
        states = self._env.full_state_spec
        expected = {key: spec[key] for spec in specs for key in leaf_keys(spec)}
        optional = {key: states[key] for key in self._states if key not in expected}
        found = set()
        for key in leaf_paths(made):
            found.add(key)
            leaf = expected.get(key, optional.get(key))
            if leaf is None:
                if key not in self._env.reward_keys and key[0] not in self._env.reward_keys:  # a reset may have one
                    known = sorted(".".join(other) for other in expected)
                    self._findings.add("entry-extra", where, ".".join(key), "an entry of no spec", f"only {known}")
                continue
            self._read_leaf(where, key, leaf, made.get(key))
        for key in expected:
            if key not in found and key[-1] not in FLAGS:  # flags are completed
                expects = f"one of shape {[*expected[key].shape]}"
                self._findings.add("entry-missing", where, ".".join(key), "no entry", expects)

    def _read_leaf(self, where: str, key: Key, leaf: TensorSpec, value: Any) -> None:
        name, is_tensor = ".".join(key), isinstance(value, torch.Tensor)
        if is_tensor and key[-1] in FLAGS and value.shape == leaf.shape[:-1]:
            value = value.unsqueeze(-1)  # as it is completed
        if is_tensor != (leaf.dtype is not None) or isinstance(value, TensorDictBase) > is_leaf_nontensor(type(value)):
            kind = "a tensor" if leaf.dtype is not None else "data that are no tensor"
            self._findings.add("entry-type", where, name, f"a {type(value).__name__}", kind)
            return
        if not is_tensor:
            for line in leaf.faults(value, key, 0):
                self._add_line("entry-domain" if "out of domain" in line else "entry-shape", where, name, line)
            return
        if not _fits(value.shape, leaf.shape):
            self._findings.add("entry-shape", where, name, f"shape {[*value.shape]}", f"{[*leaf.shape]}")
        if value.dtype != leaf.dtype:
            self._findings.add("entry-dtype", where, name, f"dtype {value.dtype}", f"{leaf.dtype}")
        if value.device != leaf.device and self._env.device is None:  # else it is moved there
            self._findings.add("entry-device", where, name, f"device {value.device}", f"{leaf.device}")
        if self._findings.has("entry-shape", "entry-dtype", "entry-device"):
            return
        if value.is_floating_point() and bool((wrong := value.isnan()).any()):
            self._findings.add(
                "entry-nan", where, name, f"NaN in {int(wrong.sum())} of {value.numel()} values", "numbers"
            )
            return
        for line in leaf.faults(value, key, 0):
            self._add_line("entry-domain", where, name, line)

    def _add_line(self, code: str, where: str, name: str, line: str) -> None:
        """A line of a spec's own: ``'key': out of domain: got …, expected …``."""
        got, _, expected = line.partition("got ")[2].rpartition(", expected ")
        self._findings.add(code, where, name, got, expected)

    def _read_flags(self, where: str, made: TensorDictBase) -> None:
        """Notes a ``done`` that is not ``terminated | truncated``; where one is missing, it may be True alone."""
        groups: dict[Key, dict[str, torch.Tensor]] = {}
        for key in leaf_paths(made):
            if key[-1] in FLAGS:
                groups.setdefault(key[:-1], {})[key[-1]] = made.get(key)
        for path, flags in groups.items():
            done = flags.pop("done", None)
            if done is None or not flags:
                continue
            ended = torch.stack([flag.reshape(done.shape) for flag in flags.values()]).any(0)
            if not torch.equal(done, ended) if len(flags) == 2 else bool((ended & ~done).any()):
                shown = {name: flag.flatten().tolist() for name, flag in flags.items()}
                got = f"done {done.flatten().tolist()} and {shown}"
                self._findings.add("flags-disagree", where, ".".join((*path, "done")), got, "terminated | truncated")

    def _read_given(self, before: Record, as_it_was: Record) -> None:
        """Notes inputs that were changed in place; the TensorDict itself is the env's own."""
        for key, value in before.items():
            if not same(value, as_it_was[key]):
                self._findings.add("input-modified", "_step", key, "an input with other values", "it unchanged")

    def _read_memory(self, code: str, before: Record, made: TensorDictBase, got: str, expected: str) -> None:
        """Notes tensors that lie where those of ``before`` do."""
        places = {_place(value) for value in before.values() if isinstance(value, torch.Tensor)} - {0}
        for key, value in _tensors(made):
            if _place(value) in places:
                self._findings.add(code, "_step", key, got, expected)


def any_flag(made: Any) -> bool:
    """Whether an episode ended, or what was made says nothing of it."""
    if not isinstance(made, TensorDictBase):
        return True
    return any(bool(value.any()) for key, value in _tensors(made) if key.rpartition(".")[2] in FLAGS)


def record_of(made: Any) -> Record:
    """What a call gave, in memory of its own; nothing where that is no TensorDict."""
    if not isinstance(made, TensorDictBase):
        return {}
    return {
        key: value.detach().clone() if isinstance(value, torch.Tensor) else value for key, value in _leaves(made, "")
    }


def _tensors(made: TensorDictBase) -> Iterator[tuple[str, torch.Tensor]]:
    return ((key, value) for key, value in _leaves(made, "") if isinstance(value, torch.Tensor))


def _leaves(made: TensorDictBase, name: str) -> Iterator[tuple[str, Any]]:
    """Key and value of each leaf; the rows of a lazy stack are groups, since they may differ."""
    if isinstance(made, LazyStackedTensorDict) and not is_leaf_nontensor(type(made)):
        for row, own in enumerate(made.unbind(made.stack_dim)):
            yield from _leaves(own, f"{name}row {row}.")
        return
    for key in made.keys():
        value = made.get(key)
        if not isinstance(value, TensorDictBase):
            yield f"{name}{key}", value
        elif is_leaf_nontensor(type(value)):
            yield f"{name}{key}", value.tolist()
        else:
            yield from _leaves(value, f"{name}{key}.")


def _place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.device.type != "meta" else 0


def _fits(shape: torch.Size, expected: torch.Size) -> bool:
    return len(shape) == len(expected) and all(want in (-1, got) for got, want in zip(shape, expected, strict=True))
