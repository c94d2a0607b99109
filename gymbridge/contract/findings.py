"""What a check has found."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Callable, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from gymbridge.contract.catalogue import CATALOGUE, Severity

__all__ = ["Fault", "Findings", "Report", "shown", "told", "told_from_worker"]

_LONGEST = 300
"""Characters of a value or a message that are shown."""


@dataclass(frozen=True)
class Fault:
    """Something that is wrong with an env.

    Attributes:
        code: what kind of fault, a key of :data:`~gymbridge.contract.CATALOGUE`.
        where: the call, ``"step"`` say, or what was looked at.
        key: the entry, ``"observation.arm"`` say; empty where it is of none.
        got, expected: in words.
        count: how often it was seen.

    Example:
        >>> from gymbridge.contract import Fault
        >>> print(Fault("observation-dtype", "step", "observation", "dtype float64", "float32"))
        error: step: observation: got dtype float64, expected float32 [observation-dtype]
          Cast with np.asarray(value, dtype), or change the space.
    """

    code: str
    where: str
    key: str
    got: str
    expected: str
    count: int = 1

    @property
    def severity(self) -> Severity:
        """``"error"`` or ``"warning"``."""
        return CATALOGUE[self.code].severity

    @property
    def advice(self) -> str:
        """What to do about it."""
        return CATALOGUE[self.code].advice

    def as_dict(self) -> dict[str, Any]:
        """All that there is to say, for JSON."""
        return {**asdict(self), "severity": self.severity, "advice": self.advice}

    def __str__(self) -> str:
        place = ": ".join(part for part in (self.where, self.key) if part)
        seen = f", {self.count} times" if self.count > 1 else ""
        return (
            f"{self.severity}: {place}: got {self.got}, expected {self.expected}{seen} [{self.code}]\n  {self.advice}"
        )


@dataclass(frozen=True)
class Report:
    """What a check has found, and what it could not look at.

    Attributes:
        env: the env in words.
        faults: errors first, each in the order in which it was met.
        not_checked: what could not be looked at, and why.
        notes: what is neither right nor wrong.

    Example:
        >>> from gymbridge.contract import Fault
        >>> fault = Fault("observation-dtype", "step", "observation", "dtype float64", "float32")
        >>> report = Report("MyEnv", [fault])
        >>> len(report.errors), len(report.warnings), report.without({"observation-dtype"}).faults
        (1, 0, [])
    """

    env: str
    faults: list[Fault] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def errors(self) -> list[Fault]:
        """The faults that are errors."""
        return [fault for fault in self.faults if fault.severity == "error"]

    @property
    def warnings(self) -> list[Fault]:
        """The faults that are warnings."""
        return [fault for fault in self.faults if fault.severity == "warning"]

    def without(self, codes: Set[str]) -> Report:
        """The same without faults of some kinds."""
        return replace(self, faults=[fault for fault in self.faults if fault.code not in codes])

    def as_dict(self) -> dict[str, Any]:
        """All that there is to say, for JSON."""
        return {
            "env": self.env,
            "faults": [fault.as_dict() for fault in self.faults],
            "not_checked": self.not_checked,
            "notes": self.notes,
        }


class Findings:
    """Collects faults; one of a kind at one key is told once, with the places where it was seen.

    Example:
        >>> findings = Findings()
        >>> for where in ("reset", "step", "step"):
        ...     findings.add("observation-dtype", where, "observation", "dtype float64", "float32")
        >>> [(fault.where, fault.count) for fault in findings.report("MyEnv").faults]
        [('reset, step', 3)]
    """

    def __init__(self) -> None:
        self._faults: dict[tuple[str, str], Fault] = {}
        self._not_checked: dict[str, None] = {}
        self._notes: dict[str, None] = {}

    def add(self, code: str, where: str, key: str, got: str, expected: str) -> None:
        """Notes a fault; ``code`` is one of the catalogue."""
        if code not in CATALOGUE:
            raise KeyError(f"code: got {code!r}, expected one of the catalogue")
        seen = self._faults.get((code, key))
        if seen is None:
            self._faults[code, key] = Fault(code, where, key, _cut(got), _cut(expected))
            return
        places = seen.where.split(", ")
        places += [where] if where not in places else []
        self._faults[code, key] = replace(seen, where=", ".join(places), count=seen.count + 1)

    def not_checked(self, what: str) -> None:
        """Notes what could not be looked at, and why."""
        self._not_checked[what] = None

    def note(self, what: str) -> None:
        """Notes what is neither right nor wrong."""
        self._notes[what] = None

    def has(self, *codes: str) -> bool:
        """Whether there is a fault of one of these kinds; a code that ends in ``-`` stands for all that begin so."""
        return any(
            code == found or (code.endswith("-") and found.startswith(code))
            for found, _ in self._faults
            for code in codes
        )

    def report(self, env: str) -> Report:
        """What was found."""
        faults = sorted(self._faults.values(), key=lambda fault: fault.severity)
        return Report(env, faults, [*self._not_checked], [*self._notes])


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def shown(value: Any, words: Callable[[Any], str] = repr) -> str:
    """A value in words, which are the env's own and may fail.

    Example:
        >>> class Odd:
        ...     def __repr__(self):
        ...         raise LookupError("no words")
        >>> shown(1), shown(Odd())
        ('1', '<Odd, of which repr raises LookupError>')
    """
    try:
        return words(value)
    except Exception as error:
        return f"<{type(value).__name__}, of which {words.__name__} raises {type(error).__name__}>"


def told(error: BaseException) -> str:
    """An exception in a line: type, message, and the place where it was raised.

    Example:
        >>> try:
        ...     {}["key"]
        ... except KeyError as error:
        ...     text = told(error)
        >>> text.startswith("KeyError: 'key' (")
        True
    """
    frames = traceback.extract_tb(error.__traceback__)
    return _in_a_line(error, [(frame.filename, frame.lineno, frame.name) for frame in frames])


_REMOTE_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def told_from_worker(error: BaseException) -> str:
    """The same of an exception that came from a worker, whose place its remote traceback has, if there is one."""
    return _in_a_line(error, _REMOTE_FRAME.findall(str(error.__cause__ or "")))


def _in_a_line(error: BaseException, frames: Sequence[tuple[str, Any, str]]) -> str:
    """An exception; each frame is a file, a line and a function, and the last one is told."""
    message = shown(error, str).strip()
    place = ""
    if frames:
        file, line, function = frames[-1]
        place = f" ({os.path.basename(file)}:{line}, in {function})"
    return f"{type(error).__name__}{f': {message}' if message else ''}{place}"
