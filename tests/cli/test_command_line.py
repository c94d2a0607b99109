"""The frame of the command line: help, what is imported, errors, statuses."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from gymbridge import cli
from gymbridge.cli import info, main
from gymbridge.cli.bench_engines import ENGINES

ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-m", "gymbridge"]


def run(*arguments: str, env: dict[str, str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *arguments], env=env, cwd=cwd, capture_output=True, text=True, timeout=100)


def status_of(*arguments: str) -> int:
    """Of a call that argparse may end."""
    try:
        return main(arguments)
    except SystemExit as exit_:
        return int(exit_.code or 0)


def test_help_lists_every_command_with_its_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("--help") == 0
    said = " ".join(capsys.readouterr().out.split())
    for name in cli.COMMANDS:
        summary = (import_module(f"gymbridge.cli.{name}").__doc__ or "").partition("\n")[0]
        assert summary
        assert f"{name} {summary}" in said


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_a_help_of_its_own(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(name, "--help") == 0
    assert "--traceback" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (["--help"], ("rich", "torch", "tensordict", "numpy", "gymnasium")),
        (["info", "--json"], ("torch", "tensordict", "matplotlib")),
    ],
)
def test_what_is_not_needed_is_not_imported(
    arguments: list[str], heavy: tuple[str, ...], subprocess_env: dict[str, str]
) -> None:
    program = (
        """
import sys
from gymbridge.cli import main, info
info.cuda_devices = list  # a machine with a GPU asks torch
"""
        if arguments[0] == "info"
        else "import sys\nfrom gymbridge.cli import main\n"
    )
    program += f"""
try:
    main({arguments})
except SystemExit:
    pass
print(sorted({set(heavy)} & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], env=subprocess_env, capture_output=True, text=True)
    assert done.stderr.strip() == "[]"
    assert done.stdout


def test_without_rich_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    assert status_of("demo") == 2
    assert "pip install 'gymbridge[cli]'" in capsys.readouterr().err
    monkeypatch.setattr(info, "installed", lambda name: "not installed" if name == "rich" else "1.2")
    assert status_of("info") == 0  # which tells what is missing
    assert re.search(r"^extra cli +.*pip install 'gymbridge\[cli\]'$", capsys.readouterr().out, re.MULTILINE)


def test_without_a_command_the_commands_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    said = capsys.readouterr().err
    assert all(re.search(rf"^ +{name} ", said, re.MULTILINE) for name in cli.COMMANDS)


def test_help_breaks_no_name_at_a_hyphen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for columns in ("60", "80", "100"):
        monkeypatch.setenv("COLUMNS", columns)
        assert status_of("bench", "--help") == 0
        said = capsys.readouterr().out
        assert all(name in said for name in ENGINES)


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["info", "--nonsense"], ["tune", "CartPole-v1"]])
def test_what_it_does_not_know_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(*arguments) == 2
    assert "usage: gymbridge" in capsys.readouterr().err


def test_an_error_is_a_line_and_a_traceback_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "cli_envs:Unmade"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "gymbridge bench: cli_envs:Unmade: making the env raised LookupError: no such map: [moon]"
    ]
    assert main(["bench", "cli_envs:Unmade", "--traceback"]) == 2
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert "and a second line" in said


def test_a_reader_that_goes_away_is_no_error(subprocess_env: dict[str, str]) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [*PROGRAM, "info"], env=subprocess_env, stdout=write, stderr=subprocess.PIPE, text=True, timeout=100
        )
    finally:
        os.close(write)
    assert done.returncode == 1
    assert done.stderr == ""


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_stream_that_is_closed_is_done_without(stream: str, subprocess_env: dict[str, str]) -> None:
    """What goes to the one does not go to the other then."""
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    closing = f"import os, sys; os.close({1 if stream == 'stdout' else 2}); os.execv(sys.executable, sys.argv[1:])"
    program = [sys.executable, "-c", closing, *PROGRAM, "check", "NoSuch-v0"]
    done = subprocess.run(program, env=subprocess_env, text=True, timeout=100, **both)  # type: ignore[call-overload]
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == (1 if stream == "stdout" else 0)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's full device")
@pytest.mark.parametrize("arguments", [["info"], ["info", "--json"]])
def test_a_full_disk_is_a_line(arguments: list[str], subprocess_env: dict[str, str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*PROGRAM, *arguments], env=subprocess_env, stdout=full, stderr=subprocess.PIPE, text=True, timeout=100
        )
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["gymbridge info: OSError: [Errno 28] No space left on device"]


def test_what_nobody_foresaw_is_a_line_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Odd(BaseException):
        pass

    def raise_odd() -> None:
        raise Odd("not an Exception")

    monkeypatch.setattr("gymbridge.cli.info.findings", raise_odd)
    assert main(["info"]) == 2
    assert capsys.readouterr().err == "gymbridge info: Odd: not an Exception\n"
    assert main(["info", "--traceback"]) == 2
    assert "raise_odd" in capsys.readouterr().err


def test_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("--version") == 0
    assert re.fullmatch(r"gymbridge \d+\.\d+\S*\n", capsys.readouterr().out)


def test_the_console_script_is_this_program(subprocess_env: dict[str, str]) -> None:
    scripts = (ROOT / "pyproject.toml").read_text().partition("[project.scripts]")[2].split("[")[0]
    assert scripts.strip() == 'gymbridge = "gymbridge.cli:main"'
    done = run("--version", env=subprocess_env)
    assert (done.returncode, done.stdout.split()[0]) == (0, "gymbridge")


def commands_in(page: str) -> list[str]:
    """The commands that a page shows after a prompt, with the lines that continue them."""
    blocks = re.findall(r"^```(?:console|bash)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line.removeprefix("$ ") for line in lines if line.removeprefix("$ ").startswith("gymbridge ")]


def test_commands_in_the_documentation_are_understood() -> None:
    shown = [command for page in (ROOT / "docs").rglob("*.md") for command in commands_in(page.read_text())]
    known = [shlex.split(command.partition("|")[0], comments=True)[1:] for command in shown]
    known = [arguments for arguments in known if arguments[0] in cli.COMMANDS]
    assert {arguments[0] for arguments in known} >= {"bench", "tune", "demo", "info"}
    for arguments in known:
        command = import_module(f"gymbridge.cli.{arguments[0]}")
        cli._parser(arguments[0], command).parse_args(arguments)  # raises SystemExit where it does not
