"""The check of a TensorDict env."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from tensordict import TensorDict, TensorDictBase

from gymbridge.contract.calls import phase
from gymbridge.contract.differences import Record, first_difference, same
from gymbridge.contract.findings import told
from gymbridge.contract.instances import Subject, check_close, check_instances
from gymbridge.contract.surroundings import same_generators
from gymbridge.contract.tensordict_outputs import Inputs, OutputReader, any_flag, record_of
from gymbridge.contract.workers import NUM_ENVS, Runs, check_workers
from gymbridge.envs.base import EnvBase
from gymbridge.envs.checking import check_env_specs
from gymbridge.envs.env_specs import KINDS, EnvSpecs
from gymbridge.envs.metadata import EnvMetaData
from gymbridge.envs.tensordicts import cloned
from gymbridge.errors import EnvSpecError
from gymbridge.specs import StackedComposite

__all__ = ["TensorDictSubject"]

_NUM_MASKED = 4
"""Steps of the runs with masks."""

Rows: TypeAlias = dict[str, torch.Tensor]
"""Key of an entry -> its flattened rows."""


class TensorDictSubject(Subject):
    """A TensorDict env under check; the arguments are those of :class:`~.instances.Subject`."""

    env: EnvBase
    seeds_torch = True
    step_name = "_step"

    def check(self, maker: Any) -> None:
        """Looks at all there is.

        Args:
            maker: for other processes; None where there is none.
        """
        options, findings = self.options, self.findings
        options.progress("specs")
        if not self._specs_are_there():
            return
        self._check_metadata()
        options.progress(f"{options.num_steps} steps")
        reference = self.main_run(OutputReader(self.env, findings))
        hangs = findings.has("reset-hangs", "step-hangs")
        if reference and not hangs:
            options.progress("seeds and instances")
            check_instances(self, reference)
            self._check_states()
            options.progress("the contract around it")
            self._check_contract()
            self._check_masks()
        if hangs:
            findings.not_checked("what comes after a call that hangs")
        elif self.make is None:
            findings.not_checked("close: the env was given, and stays open")
        else:
            check_close(self, twice=False)  # its contract makes a second one an error
        options.progress("worker processes")
        check_workers(findings, options, maker, None, lambda: self._batches(maker))

    # ---------------------------------------------------------------- specs

    def _specs_are_there(self) -> bool:
        for kind in KINDS:
            try:
                spec = self.env._spec_of(kind)
            except Exception as error:
                self.findings.add("spec-missing", "specs", f"{kind}_spec", told(error), "a spec")
                continue
            if isinstance(spec, StackedComposite):
                self.findings.not_checked("anything: a batch of unlike envs; give one of the envs that it is made of")
                return False
        if self.findings.has("spec-missing"):
            self.findings.not_checked("anything else: that needs the specs")
            return False
        return True

    def _check_metadata(self) -> None:
        """Whether the env says the same of itself each time."""
        try:
            stable = EnvMetaData.metadata_from_env(self.env) == EnvMetaData.metadata_from_env(self.env)
            got = "others the second time"
        except Exception as error:
            stable, got = False, told(error)
        if not stable:
            self.findings.add("metadata-unstable", "metadata", "", got, "the same specs and the same repr each time")

    def compare_descriptions(self, other: Any) -> None:
        """See :class:`~.instances.Subject`."""
        described = EnvSpecs.of(other)
        if not described.is_like(self.env):
            kinds = [f"{kind}_spec" for kind in KINDS if described._spec_of(kind) != self.env._spec_of(kind)]
            got = f"others in another instance: {', '.join(kinds) or 'batch size, device or seeds'}"
            self.findings.add("instances-differ", "specs", "specs", got, "the same in each instance")

    # ---------------------------------------------------------------- runs

    @contextmanager
    def stage(self) -> Iterator[None]:
        """See :class:`~.instances.Subject`; nothing is differentiated."""
        with super().stage(), torch.no_grad():
            yield

    def episodes(self, env: Any, seed: int, num_steps: int, actions: int, reader: Any = None) -> Iterator[Record]:
        """See :class:`~.instances.Subject`."""
        draws = _Draws(actions)
        self._set_seed(env, seed)
        root = self.calls.call("reset", "_reset", env._reset, None)
        if reader is not None:
            reader.read_reset(root)
        yield record_of(root)
        for _ in range(num_steps):
            given = draws.inputs(env, root)
            inputs = Inputs(given)
            root = self.calls.call("step", "_step", env._step, given)
            if reader is not None:
                reader.read_step(given, inputs, root)
            yield record_of(root)
            if any_flag(root):
                root = self.calls.call("reset", "_reset", env._reset, None)
                if reader is not None:
                    reader.read_reset(root)
                yield record_of(root)

    def _set_seed(self, env: EnvBase, seed: int) -> None:
        """Seeds an env.

        Raises:
            PhaseOver: that raised.
        """
        self.calls.attempt("reset", "set_seed", env.set_seed, seed)

    def _check_states(self) -> None:
        """Whether a step from another state, with the same action, gives something else."""
        env, seed = self.env, self.options.seed
        keys = [*env.full_state_spec.keys(True, True)]
        if not keys or self.findings.has("step-", "reset-"):
            return
        with phase(), self.stage():
            records = []
            for state in range(3):
                self._set_seed(env, seed)
                root = self.calls.call("reset", "_reset", env._reset, None)
                given = _Draws(seed).inputs(env, root)
                if state:  # one that the env did not write
                    given.update(_Draws(seed + state).drawn(env.full_state_spec))
                records.append(record_of(self.calls.call("step", "_step", env._step, given)))
            states = {".".join((key,) if isinstance(key, str) else key) for key in keys}
            if not any(first_difference(records[:1], [record]) for record in records[1:]):
                got, expected = "the same step from another state", "one that depends on it"
                self.findings.add("state-ignored", "_step", ", ".join(sorted(states)), got, expected)

    def _check_contract(self) -> None:
        """What ``EnvBase`` refuses, of an env whose own outputs are well."""
        env, findings, options = self.env, self.findings, self.options
        if findings.has(
            "entry-", "output-", "flags-disagree", "done-after-reset", "reset-raises", "step-raises", "spec-"
        ):
            return
        with same_generators(options.seed):
            try:
                check_env_specs(env, num_steps=options.num_compared, seed=options.seed)
                if not findings.has("state-not-written"):  # without a policy nobody writes them
                    env.rollout(options.num_compared, break_when_any_done=not env.partial_reset)
            except EnvSpecError as error:
                for line in error.faults:
                    findings.add("refused", "check_env_specs", line.partition(":")[0], line, "what the specs say")
            except (Exception, SystemExit) as error:
                findings.add("refused", "reset, step or rollout", "", told(error), "no exception")

    # ---------------------------------------------------------------- masks

    def _check_masks(self) -> None:
        """Whether an env with a batch of its own that says that it honours masks does.

        Rows are compared in entries that no seed changes: rows may well share a generator, from which a mask has other
        numbers drawn.
        """
        env = self.env
        if not env.batch_size or env.numel() < 2 or not (env.partial_reset or env.partial_step):
            return
        if self.findings.has("entry-", "output-", "reset-", "step-", "spec-", "refused"):
            return
        with phase():
            alone = self._masked_run(self.options.seed, None)
            other = self._masked_run(self.options.seed + 1, None)
            keys = [key for key in alone[0] if all(_same_at(a, b, key) for a, b in zip(alone, other, strict=True))]
            if not keys:
                self.findings.not_checked("masks: each entry depends on the seed")
                return
            if env.partial_reset:
                masked = self._masked_run(self.options.seed, "_reset")
                wrong, others = "other rows than the first changed by a reset of the first", slice(1, None)
                self._compare_rows("partial-reset", keys, others, [*zip(alone[1:], masked[1:], strict=True)], wrong)
            if env.partial_step:
                masked = self._masked_run(self.options.seed, "_step")  # in which the first row is a step behind
                wrong = "a row that was not to be stepped stepped"
                self._compare_rows("partial-step", keys, 0, [*zip(alone[1:-1], masked[2:], strict=True)], wrong)

    def _compare_rows(
        self, code: str, keys: list[str], rows: int | slice, steps: Sequence[tuple[Rows, Rows]], wrong: str
    ) -> None:
        """Notes where rows that a mask spares are not as they are without one; ``steps`` are those without and with."""
        for key in keys:
            for expected, masked in steps:
                before, now = expected[key][rows], masked[key][rows]
                if not same(before, now):
                    got = f"{wrong}: {now.tolist()}"
                    self.findings.add(code, code.replace("partial-", "_"), key, got, f"{before.tolist()}")

    def _masked_run(self, seed: int, mask: str | None) -> list[Rows]:
        """What the flattened rows give in some steps with equal actions, before the second of which a mask is given."""
        env = self.env if self.make is None else self.another()
        shown = []
        try:
            with self.stage():
                self._set_seed(env, seed)
                first = torch.zeros(env.batch_size, dtype=torch.bool)
                first.view(-1)[0] = True
                root = self.calls.call("reset", "reset", env.reset)
                action = _Draws(self.options.seed).acted(env, root.copy()).select(*env.action_keys)
                for step in range(_NUM_MASKED):
                    if step == 1 and mask == "_reset":
                        root = self.calls.call("reset", "reset with a mask", env.reset, root.set("_reset", first))
                    given = root.copy().update(cloned(action))
                    given = _Draws(self.options.seed).with_states(env, given)
                    if step == 1 and mask == "_step":
                        given.set("_step", ~first)
                    stepped = self.calls.call("step", "step", env.step, given)
                    rows = {
                        key: value.reshape(env.numel(), *value.shape[env.ndim :])
                        for key, value in record_of(stepped["next"]).items()
                        if isinstance(value, torch.Tensor) and value.shape[: env.ndim] == env.batch_size
                    }
                    shown.append(rows)
                    root = env.step_mdp(stepped)
        finally:
            if env is not self.env:
                with phase():
                    self.close(env)
        return shown

    # ---------------------------------------------------------------- worker processes

    def _batches(self, maker: Any) -> Runs:
        from gymbridge import ParallelEnv, SerialEnv

        options = self.options

        def there() -> ParallelEnv:
            return ParallelEnv(
                NUM_ENVS,
                maker,
                num_workers=NUM_ENVS,
                step_timeout=options.step_timeout,
                start_timeout=options.start_timeout,
            )

        def run(env: Any) -> Iterator[Record]:
            with torch.no_grad():
                draws = _Draws(options.seed)
                env.set_seed(options.seed)
                root = env.reset()
                yield record_of(root)
                for _ in range(min(options.num_compared, 30)):
                    given = draws.acted(env, draws.with_states(env, root))
                    if env.partial_reset:
                        stepped, root = env.step_and_maybe_reset(given)
                    else:
                        stepped = env.step(given)
                        root = env.reset() if env.ended(stepped["next"]).any() else env.step_mdp(stepped)
                    yield record_of(stepped["next"])
                    yield record_of(root)

        def close(env: Any, kill: bool) -> None:
            env.close(raise_if_closed=False)

        draws_itself = type(self.env).rand_action is not EnvBase.rand_action
        return Runs(lambda: SerialEnv(NUM_ENVS, maker), there, run, close, takes_any_action=not draws_itself)


class _Draws:
    """Random actions and states, drawn beside torch's global generator.

    Args:
        seed: what they follow from.
    """

    def __init__(self, seed: int):
        self._state = torch.Generator().manual_seed(seed % 2**63).get_state()

    def drawn(self, spec: Any) -> Any:
        """A random value of a spec."""
        with self._generator():
            return spec.rand()

    def acted(self, env: EnvBase, root: TensorDictBase) -> TensorDictBase:
        """With a random action, as the env itself draws it, by an action mask perhaps."""
        with self._generator():
            return env.rand_action(root)

    @contextmanager
    def _generator(self) -> Iterator[None]:
        kept = torch.get_rng_state()
        torch.set_rng_state(self._state)
        try:
            yield
        finally:
            self._state = torch.get_rng_state()
            torch.set_rng_state(kept)

    def inputs(self, env: EnvBase, root: Any) -> TensorDictBase:
        """What a step is given: a random action, and the states of the root, or random ones where it has none."""
        if isinstance(root, TensorDictBase) and root.batch_size == env.batch_size:
            given = root.copy()
        else:
            given = TensorDict({}, env.batch_size, device=env.device)
        given = self.acted(env, self.with_states(env, given))
        return given.select(*env.action_keys, *env.full_state_spec.keys(True, True), strict=False)

    def with_states(self, env: EnvBase, given: TensorDictBase) -> TensorDictBase:
        """With a random state at each key that the env reads and nobody has written."""
        for key, leaf in env.full_state_spec.items(True, True):
            if given.get(key, None) is None:
                given.set(key, self.drawn(leaf))
        return given


def _same_at(one: Mapping[str, Any], other: Mapping[str, Any], key: str) -> bool:
    return key in one and key in other and same(one[key], other[key])
