"""Equal seeds, other seeds, and other instances in the same process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Protocol

from gymbridge.contract.calls import Calls, Options, phase
from gymbridge.contract.differences import Difference, Record, first_difference
from gymbridge.contract.findings import Findings
from gymbridge.contract.surroundings import same_generators

__all__ = ["OutputReader", "Subject", "check_close", "check_instances"]


class OutputReader(Protocol):
    """Notes all that is wrong with what an env returns; how it is read is each kind's own."""

    num_ends: int

    def finish(self) -> None:
        """Notes what shows after the last call only."""


class Subject(ABC):
    """An env under check.

    Args:
        env: the first instance.
        make: makes another; None where there is nothing that does.
        findings: where faults go.
        options: how it is checked.

    Attributes:
        seeds_torch: a seed reaches torch's shared generator too.
        step_name: the method that makes a step, as faults tell it.
    """

    seeds_torch = False
    step_name = "step"

    def __init__(self, env: Any, make: Callable[[], Any] | None, findings: Findings, options: Options):
        self.env = env
        self.make = make
        self.findings = findings
        self.options = options
        self.calls = Calls(findings, options.step_timeout, options.start_timeout, self.seeds_torch)

    @abstractmethod
    def episodes(
        self, env: Any, seed: int, num_steps: int, actions: int, reader: OutputReader | None = None
    ) -> Iterator[Record]:
        """What an instance gives: a reset with the seed, then steps with actions that follow from the seed ``actions``.

        Args:
            env: the instance.
            seed: of its first episode.
            num_steps: how many.
            actions: the actions' seed.
            reader: reads all that comes, of the subject's kind; None where it is only compared.

        Raises:
            PhaseOver: it cannot go on.
        """

    @abstractmethod
    def compare_descriptions(self, other: Any) -> None:
        """Notes how another instance says something else of itself than the first."""

    def stage(self) -> AbstractContextManager[None]:
        """A context of a run: what is around it is the same in each."""
        return same_generators(self.options.seed)

    def run(self, env: Any, seed: int) -> list[Record]:
        """A run to be compared with others."""
        with self.stage():
            return [*self.episodes(env, seed, self.options.num_compared, self.options.seed)]

    def main_run(self, reader: OutputReader) -> list[Record]:
        """The longest run, in which all that comes is read; what it gave until something raised."""
        options = self.options
        given: list[Record] = []
        with phase(), self.stage():
            for record in self.episodes(self.env, options.seed, options.num_steps, options.seed, reader):
                if len(given) < options.num_compared:
                    given.append(record)
            if not reader.num_ends:
                got = f"no end in {options.num_steps} steps with random actions"
                self.findings.add("no-end", self.step_name, "", got, "an end")
        reader.finish()
        return given

    def another(self) -> Any:
        """Another instance.

        Raises:
            PhaseOver: it could not be made.
        """
        assert self.make is not None
        return self.calls.call("make-again", "make", self.make)

    def close(self, env: Any) -> None:
        """Closes an instance.

        Raises:
            PhaseOver: that raised.
        """
        self.calls.call("close", "close", env.close)


def check_instances(subject: Subject, reference: Sequence[Record]) -> None:
    """Compares the first run of an env with its second, and with those of other instances.

    Args:
        subject: the env, after its first run.
        reference: what that gave; its seed is that of the options.
    """
    seed, findings, env = subject.options.seed, subject.findings, subject.env
    with phase(), ExitStack() as closing:
        reference = reference[: subject.options.num_compared]
        repeated = first_difference(reference, subject.run(env, seed))
        if subject.make is None:
            findings.not_checked("other instances in this process: there is an env, but nothing that makes another")
            if repeated is not None:
                _differ(findings, "seed-not-repeatable", f"seed {seed} twice", repeated)
            elif _same(reference, subject.run(env, seed + 1)):
                _seed_ignored(subject)
            return

        def another() -> Any:
            made = subject.another()
            closing.callback(_close, subject, made)
            return made

        other = another()
        if not findings.has("space-changes", "spec-changes"):
            subject.compare_descriptions(other)
        in_other = first_difference(reference, subject.run(other, seed))
        if in_other is not None and repeated is not None:
            _differ(findings, "seed-not-repeatable", f"seed {seed} twice", repeated)
        elif in_other is not None:
            _differ(findings, "instances-differ", f"seed {seed} in two instances", in_other)
        elif repeated is not None:
            _differ(findings, "reset-carries-over", f"seed {seed} twice in one instance", repeated)
        third = another()
        is_clean = not findings.has("global-random")  # else the same in each run, as the shared generators are
        if (
            is_clean
            and _same(reference, subject.run(third, seed + 1))
            and _same(reference, subject.run(another(), seed + 2))
        ):
            _seed_ignored(subject)
        if in_other is None and is_clean and not findings.has("torch-random"):
            one, beside = (another(), another()) if repeated is not None else (other, third)
            mixed = first_difference(reference, _beside_another(subject, one, beside))
            if mixed is not None:
                _differ(findings, "instances-share-state", "an instance alone, and in turn with another", mixed)


def _same(one: Sequence[Record], other: Sequence[Record]) -> bool:
    return first_difference(one, other) is None


def _beside_another(subject: Subject, env: Any, beside: Any) -> list[Record]:
    """The run of an env whose calls take turns with those of another."""
    seed, num_steps = subject.options.seed, subject.options.num_compared
    shown = []
    with subject.stage():
        others = subject.episodes(beside, seed + 1, num_steps, seed + 1)
        for record in subject.episodes(env, seed, num_steps, seed):
            shown.append(record)
            next(others, None)
    return shown


def _seed_ignored(subject: Subject) -> None:
    seed, calls = subject.options.seed, subject.options.num_compared
    subject.findings.add(
        "seed-ignored",
        "reset",
        "seed",
        f"the same {calls} steps from the seeds {seed} and {seed + 1}",
        "other random numbers from another seed",
    )


def _differ(findings: Findings, code: str, what: str, found: Difference) -> None:
    when = f"call {found.call}" if found.call else "the first reset"
    findings.add(code, what, found.key, f"{found.one} and {found.other} in {when}", "the same in both")


def _close(subject: Subject, env: Any) -> None:
    with phase():
        subject.close(env)


def check_close(subject: Subject, *, twice: bool) -> None:
    """Closes the first instance, and once more where that is to do nothing."""
    with phase():
        subject.close(subject.env)
        if twice:
            subject.calls.call("close-twice", "a second close", subject.env.close)
