"""The check of a gymnasium env."""

from __future__ import annotations

import copy
import inspect
import pickle
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import cloudpickle
from gymnasium import spaces

from gymbridge.contract.calls import phase
from gymbridge.contract.differences import Record, changed, flat
from gymbridge.contract.findings import shown, told
from gymbridge.contract.gymnasium_outputs import OutputReader, copied_space
from gymbridge.contract.instances import Subject, check_close, check_instances
from gymbridge.contract.surroundings import CallHangs, limited
from gymbridge.contract.workers import NUM_ENVS, Runs, check_workers
from gymbridge.engine.contract import has_ended
from gymbridge.engine.copies import copied
from gymbridge.engine.env_calls import is_coroutine_env
from gymbridge.spaces.naming import SpaceLeaf, action_tree, observation_tree

__all__ = ["GymnasiumSubject"]

_OF_RESET = ("observation", "info")
_OF_STEP = ("observation", "reward", "terminated", "truncated", "info")

_BY_MESSAGE = (spaces.Text, spaces.Graph, spaces.Sequence, spaces.OneOf)


class GymnasiumSubject(Subject):
    """A gymnasium env under check; the arguments are those of :class:`~.instances.Subject`."""

    def check(self, maker: Any) -> None:
        """Looks at all there is.

        Args:
            maker: for other processes; None where there is none.
        """
        options, findings = self.options, self.findings
        options.progress("spaces and signatures")
        if is_coroutine_env(self.env):
            got, expected = "coroutines, which only AsyncEnvPool(..., backend='asyncio') awaits", "what they give"
            findings.add("reset-result", "reset and step", "", got, expected)
            findings.not_checked("anything else: nobody awaits the env's coroutines")
            return
        if not self._spaces_are_there():
            return
        self._look_at_spaces()
        self._look_at_metadata()
        self._takes_seed, takes_options = self._takes("seed"), self._takes("options")
        options.progress(f"{options.num_steps} steps")
        reference = self.main_run(OutputReader(self.env, findings))
        hangs = findings.has("reset-hangs", "step-hangs")
        if takes_options and not hangs:
            with phase():
                self.calls.call("reset", "reset(options={})", self.env.reset, options={})
        if self._takes_seed and reference and not hangs:
            options.progress("seeds and instances")
            if self._is_declared_random():
                findings.not_checked("seeds: its spec says that it is nondeterministic")
            else:
                check_instances(self, reference)
        if not hangs:
            self._note_step_after_an_end()
            if self.make is None:
                findings.not_checked("close: the env was given, and stays open")
            else:
                check_close(self, twice=True)
        if hangs:
            findings.not_checked("what comes after a call that hangs")
        options.progress("worker processes")
        description = (self.env.observation_space, self.env.action_space, self.env.metadata, self.env.render_mode)
        check_workers(findings, options, maker, description, lambda: self._batches(maker))

    # ---------------------------------------------------------------- attributes

    def _spaces_are_there(self) -> bool:
        for name, tree in (("observation_space", observation_tree), ("action_space", action_tree)):
            try:
                space, got = getattr(self.env, name), ""
            except Exception as error:
                space, got = None, told(error)
            if not isinstance(space, spaces.Space):
                self.findings.add("space-missing", "spaces", name, got or shown(space), "a gymnasium Space")
                continue
            try:
                tree(space)
            except TypeError as error:
                self.findings.add("space-unsupported", "spaces", name, str(error), "string keys")
        if self.findings.has("space-missing", "space-unsupported"):
            self.findings.not_checked("anything else: that needs the spaces")
            return False
        return True

    def _look_at_spaces(self) -> None:
        translations = sys.modules.get("gymbridge.spaces.translation")
        for name, tree in (("observation_space", observation_tree), ("action_space", action_tree)):
            space = getattr(self.env, name)
            if not _equals_its_copy(space):
                got = f"{shown(space, str)}, which is not equal to its copy"
                self.findings.add("space-unequal", "spaces", name, got, "equal spaces to be equal")
            for leaf in tree(space).leaves:
                key = _item_name(name, leaf)
                if leaf.is_array:
                    continue
                is_known = isinstance(leaf.space, _BY_MESSAGE)
                if is_known or (translations is not None and translations.translation_of(leaf.space)):
                    size = _pickled_size(leaf.space)
                    got = f"{leaf.space}, whose samples are pickled{size}"
                    self.findings.add("space-by-message", "spaces", key, got, "arrays, for speed")
                else:
                    got = f"{leaf.space} of type {type(leaf.space).__name__}"
                    self.findings.add("space-custom", "spaces", key, got, "a space of gymnasium's, or a registered one")

    def _look_at_metadata(self) -> None:
        metadata, mode = self.env.metadata, self.env.render_mode
        if not isinstance(metadata, Mapping):
            got = f"{metadata!r} of type {type(metadata).__name__}"
            self.findings.add("metadata", "metadata", "metadata", got, "a dict")
        elif mode is not None and mode not in (modes := metadata.get("render_modes") or []):
            self.findings.add("render-mode", "metadata", "render_mode", repr(mode), f"one of {[*modes]}")

    def _takes(self, argument: str) -> bool:
        """Whether the env's ``reset``, below all wrappers, takes an argument by its name."""
        try:
            parameters = inspect.signature(self.env.unwrapped.reset).parameters
        except (TypeError, ValueError):  # nothing that Python can look into
            return True
        by_name = {
            name: parameter
            for name, parameter in parameters.items()
            if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        }
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        if argument not in by_name and not takes_all:
            got = f"reset({', '.join(map(str, parameters.values()))})"
            self.findings.add("reset-signature", "reset", argument, got, f"one that takes {argument}=…")
            return False
        if argument == "seed" and argument in by_name:
            default = by_name[argument].default
            if default is not None and default is not inspect.Parameter.empty:
                self.findings.add("reset-seed-default", "reset", "seed", f"the default {default!r}", "None")
        return True

    def compare_descriptions(self, other: Any) -> None:
        """See :class:`~.instances.Subject`."""
        for name in ("observation_space", "action_space"):
            one, its = getattr(self.env, name), getattr(other, name, None)
            if copied_space(one) is not one and its != one:  # else equal ones cannot be told
                self.findings.add("instances-differ", "spaces", name, f"{its} in another instance", f"{one}")

    def _is_declared_random(self) -> bool:
        return bool(getattr(self.env.spec, "nondeterministic", False))

    # ---------------------------------------------------------------- runs

    def episodes(self, env: Any, seed: int, num_steps: int, actions: int, reader: Any = None) -> Iterator[Record]:
        """See :class:`~.instances.Subject`."""
        seeded = {"seed": seed} if self._takes_seed else {}
        action_space = _to_draw_from(env.action_space)
        action_space.seed(actions)
        result = self.calls.call("reset", "reset", env.reset, **seeded)
        if reader is not None:
            reader.read_reset("reset", result)
        yield _record(result, _OF_RESET)
        for _ in range(num_steps):
            action = action_space.sample()
            kept = copied(action)
            outcome = self.calls.call("step", "step", env.step, action)
            if (key := changed(action, kept, "action")) is not None:
                self.findings.add(
                    "action-modified", "step", key, "the caller's action with other values", "it unchanged"
                )
            yield _record(outcome, _OF_STEP)
            if reader is not None:
                reader.read_step(outcome)
            if has_ended(outcome):
                result = self.calls.call("reset", "reset", env.reset)
                if reader is not None:
                    reader.read_reset("reset", result)
                yield _record(result, _OF_RESET)

    def _note_step_after_an_end(self) -> None:
        """Notes what a step after an episode's end does, which gymbridge never asks for."""
        if self.findings.has("reset-", "step-", "flag-type", "no-end"):
            return
        env, action_space = self.env, _to_draw_from(self.env.action_space)
        action_space.seed(self.options.seed)
        with phase(), self.stage(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some warn of it
            self.calls.call("reset", "reset", env.reset)
            for _ in range(self.options.num_steps):
                if has_ended(self.calls.call("step", "step", env.step, action_space.sample())):
                    break
            else:
                return
            try:
                with limited(self.options.step_timeout):
                    env.step(action_space.sample())
            except (Exception, SystemExit, CallHangs) as error:
                self.findings.note(f"a step after an episode's end raises {told(error)}")
            else:
                self.findings.note("a step after an episode's end is taken")

    # ---------------------------------------------------------------- worker processes

    def _batches(self, maker: Any) -> Runs:
        from gymbridge.vector import AsyncVectorEnv, SyncVectorEnv

        options, makers = self.options, [maker] * NUM_ENVS

        def there() -> AsyncVectorEnv[Any, Any]:
            return AsyncVectorEnv(
                makers,
                num_workers=NUM_ENVS,
                step_timeout=options.step_timeout,
                start_timeout=options.start_timeout,
            )

        def run(envs: Any) -> Iterator[Record]:
            action_space = _to_draw_from(envs.action_space)
            action_space.seed(options.seed)
            yield _record(envs.reset(seed=options.seed), _OF_RESET)
            for _ in range(options.num_compared):
                yield _record(envs.step(action_space.sample()), _OF_STEP)

        def close(envs: Any, kill: bool) -> None:
            _ = envs.close(terminate=True) if kill else envs.close()

        return Runs(lambda: SyncVectorEnv(makers), there, run, close)


def _record(result: Any, names: tuple[str, ...]) -> Record:
    """What a call gave, without infos, which may well have times and the like; nothing where it is malformed."""
    if not (isinstance(result, tuple) and len(result) == len(names)):
        return {}
    return {
        key: value
        for name, part in zip(names, result, strict=True)
        if name != "info"
        for key, value in flat(copied(part), name)
    }


def _item_name(space: str, leaf: SpaceLeaf) -> str:
    """A leaf of a space, by the items that lead to it."""
    items = leaf.key[1:] if leaf.key[:1] in (("observation",), ("action",)) else leaf.key
    return ".".join((space, *items))


def _equals_its_copy(space: Any) -> bool:
    """Whether batches can tell that two envs have the same space."""
    try:
        own = copy.deepcopy(space)
    except Exception:  # which is another matter
        return True
    try:
        return bool(own == space)
    except Exception:
        return False


def _to_draw_from(space: Any) -> Any:
    """A copy, whose random numbers are no business of the env's; the very space where it cannot be copied."""
    try:
        return copy.deepcopy(space)
    except Exception:  # a custom one, with a lock say
        return space


def _pickled_size(space: Any) -> str:
    """The size of a random sample, where there is one."""
    try:
        sampled = copy.deepcopy(space)
        sampled.seed(0)
        return f", {len(cloudpickle.dumps(sampled.sample(), protocol=pickle.HIGHEST_PROTOCOL))} bytes for one"
    except Exception:  # a custom space
        return ""
