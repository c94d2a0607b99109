"""What is printed is broken between words where it would be too wide for a terminal, and is one line elsewhere."""

from __future__ import annotations

import io
import re
from itertools import pairwise

import pytest
from rich.console import Console
from rich.text import Text

from gymbridge.cli import bench, check, progress, tune
from gymbridge.cli.env_profile import EnvProfile
from gymbridge.cli.paragraphs import print_paragraph
from gymbridge.cli.tune_batches import BatchCall
from gymbridge.cli.tune_search import Outcome
from gymbridge.contract import Fault, Report

WORDS = (
    "Draw from a generator of the env's own: several envs of a process share the global one, and no seed reaches it."
)


def printed(text: str | Text, label: str = "", *, width: int, terminal: bool) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)
    print_paragraph(console, text, label)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue().splitlines()


@pytest.mark.parametrize("width", [30, 40, 80])
def test_no_word_is_broken_in_a_terminal_and_lines_stand_beside_the_label(width: int) -> None:
    lines = printed(WORDS, "  do        ", width=width, terminal=True)
    assert len(lines) > 1
    assert all(len(line) <= width for line in lines)
    assert lines[0].startswith("  do        Draw ")
    assert all(re.match(r" {12}\S", line) for line in lines[1:])
    assert " ".join(line[12:] for line in lines) == WORDS
    for line, following in pairwise(lines):  # no line could have had another word
        assert len(line) + 1 + len(following.split()[0]) > width


def test_elsewhere_it_is_one_line() -> None:
    assert printed(Text(WORDS, "bold"), "do ", width=40, terminal=False) == [f"do {WORDS}"]


def test_markup_in_it_is_text() -> None:
    assert printed("no such map: [bold]moon[/]", "[red] ", width=80, terminal=True) == [
        "[red] no such map: [bold]moon[/]"
    ]


def terminal_of(columns: int) -> Console:
    return Console(file=io.StringIO(), width=columns, force_terminal=True, color_system=None, legacy_windows=False)


def shown_on(console: Console) -> str:
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_faults_fit_a_terminal() -> None:
    fault = Fault("global-random", "reset", "", WORDS, "others")
    console = terminal_of(80)
    check._show(console, "my_env:make", Report("my_env:make", [fault], not_checked=[WORDS]))
    lines = shown_on(console).splitlines()
    assert max(map(len, lines)) <= 80
    assert " ".join(" ".join(lines).split()).count(WORDS) == 2


def test_engines_that_are_not_timed_fit_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    console = terminal_of(60)
    monkeypatch.setattr(bench, "own_console", lambda **_: console)
    bench._tell_what_is_not_timed({}, dict.fromkeys(("sb3-a", "sb3-b", "sb3-c"), "needs it, which is not installed"))
    lines = shown_on(console).splitlines()
    assert max(map(len, lines)) <= 60
    assert " ".join(" ".join(lines).split()) == "not timed: sb3-a, sb3-b, sb3-c: needs it, which is not installed"


CALL = 'TensorDictVectorEnv(AsyncEnvPool([make_env] * 4, backend="threading"))'


def test_a_table_of_calls_tells_them_whole() -> None:
    console = terminal_of(80)
    outcome = Outcome(BatchCall(CALL, (), "vector", 0, 1.0, 1, "copying"), not_tried=WORDS)
    profile = EnvProfile("gymnasium", False, 1.0, 1, 1.0, 1.0, 1.0, 1.0, 1, 1.0, None, 4, 1.0, 1.0)
    named = ("env", "num_envs", "api", "date", "machine", "python", "gymbridge", "gymnasium", "torch")
    tune._show(console, dict.fromkeys(named, "4"), profile, [outcome], outcome, "the fastest")
    table = [line for line in shown_on(console).splitlines() if line.startswith("│")]
    assert "".join(line.split("│")[1].replace(" ", "") for line in table) == CALL.replace(" ", "")


def test_progress_shows_its_bar_however_long_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    console = terminal_of(80)
    monkeypatch.setattr(progress, "Console", lambda **_: console)
    with progress.work_progress() as shown:
        shown.stage("timing the best in turn", 2)
        shown.turn(CALL)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown_on(console))
    assert re.search(r"timing the best in turn ━{10} {11}\d:\d\d:\d\d TensorDictVectorEnv\S*…", text), text
