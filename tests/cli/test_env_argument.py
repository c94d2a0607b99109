"""How an env is named on the command line, and what is said of a name that is none."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cli_envs
import gymnasium as gym
import pytest

from gymbridge.cli import CommandError
from gymbridge.cli.env_argument import env_called


@pytest.mark.parametrize(
    ("name", "kind", "import_line", "expression"),
    [
        ("CartPole-v1", gym.Env, "", '"CartPole-v1"'),
        ("cli_envs:CLI-Registered-v0", cli_envs.Counting, "", '"cli_envs:CLI-Registered-v0"'),
        ("cli_envs:Counting", cli_envs.Counting, "from cli_envs import Counting", "Counting"),
        ("cli_envs:Holder.make", cli_envs.Counting, "from cli_envs import Holder", "Holder.make"),
    ],
)
def test_ids_and_makers_are_found(name: str, kind: type, import_line: str, expression: str) -> None:
    env = env_called(name)
    assert isinstance(env.made().unwrapped, kind)
    assert (env.import_line, env.expression) == (import_line, expression)


def test_what_is_pasted_makes_the_env() -> None:
    env = env_called("cli_envs:Holder.make")
    names: dict[str, Any] = {}
    exec(f"{env.import_line}\nmaker = {env.expression}", names)
    assert isinstance(names["maker"](), cli_envs.Counting)


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Writes a module into the current directory, which is not where Python looks for modules."""
    monkeypatch.chdir(tmp_path)

    def write(module: str, text: str) -> None:
        monkeypatch.delitem(sys.modules, module, raising=False)
        (tmp_path / f"{module}.py").write_text(text)

    return write


@pytest.mark.parametrize("name", ["envs_of_a_folder:make", "envs_of_a_folder.py:make"])
def test_a_file_in_the_current_directory_is_found(name: str, in_folder: Callable[[str, str], None]) -> None:
    in_folder("envs_of_a_folder", "from cli_envs import Counting as make")
    env = env_called(name)
    assert isinstance(env.made(), cli_envs.Counting)
    assert env.import_line == "from envs_of_a_folder import make"
    del sys.modules["envs_of_a_folder"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("CartPol-v1", "CartPol-v1: got no registered id, expected one or MODULE:MAKER (NameNotFound: "),
        ("no_module_of_that_name:make", "there is no module 'no_module_of_that_name'"),
        ("CartPole", "there is CartPole-v0, CartPole-v1"),
        ("cli_envs:missing", "module 'cli_envs' has no 'missing', and no env of that id is registered"),
        ("cli_envs:", "expected MODULE:MAKER or MODULE:ID; there is Counting, "),
        ("cli_envs:counting", "; there is Counting"),
        ("cli_envs:Sized", "needs arguments (missing a required argument: 'size'), expected one without any"),
        ("cli_envs:", "module 'cli_envs' has no ''"),
        ("cli_envs:not_callable", "got an object of type int, expected a callable that makes an env"),
        ("cli_envs:Leaving", "making the env raised SystemExit: 0"),
        ("cli_envs:Unmade", "making the env raised LookupError: no such map: [moon]"),
        ("cli_envs:no_env", "the maker gave an object of type object, expected a gymnasium.Env or a "),
        ("cli_envs:vector_env", "it is a batch already"),
    ],
)
def test_what_is_no_env_is_told_in_a_line(name: str, said: str) -> None:
    with pytest.raises(CommandError) as raised:
        env_called(name).made()
    assert str(raised.value).startswith(name)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_whose_name_is_no_identifier_can_be_pasted(in_folder: Callable[[str, str], None]) -> None:
    in_folder("my odd-envs", "from cli_envs import Counting as make")
    env = env_called("my odd-envs.py:make")
    names: dict[str, Any] = {}
    exec(f"{env.import_line}\nmade = {env.expression}()", names)
    assert isinstance(names["made"], cli_envs.Counting)
    del sys.modules["my odd-envs"]


def test_a_file_whose_name_is_taken_is_told(in_folder: Callable[[str, str], None]) -> None:
    """Python has its own module of that name already, and would give that."""
    Path("random.py").write_text("def make(): ...")
    with pytest.raises(CommandError, match=r"another module is called random: .*random\.py; rename the file"):
        env_called("random.py:make")


def test_an_attribute_that_is_loaded_when_it_is_asked_for_may_fail(in_folder: Callable[[str, str], None]) -> None:
    in_folder("loads_lazily", "def __getattr__(name):\n    raise ImportError(f'{name} needs more')")
    with pytest.raises(CommandError, match=r"loads_lazily\.make raised ImportError: make needs more"):
        env_called("loads_lazily:make")
    del sys.modules["loads_lazily"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import nothing_of_that_name", "importing {} raised ModuleNotFoundError: No module named 'nothing_of_that_"),
        ("1 / 0", "importing {} raised ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "importing {} ended with SystemExit(3)"),
    ],
)
def test_a_module_that_fails_is_told_in_a_line(text: str, said: str, in_folder: Callable[[str, str], None]) -> None:
    in_folder("envs_that_fail", text)
    with pytest.raises(CommandError, match=r"^envs_that_fail:make: ") as raised:
        env_called("envs_that_fail:make")
    assert said.format("envs_that_fail") in str(raised.value)


def test_a_dot_for_a_colon_is_recognised(in_folder: Callable[[str, str], None]) -> None:
    in_folder("my_own_envs", "")
    with pytest.raises(CommandError, match="is named with a colon: my_own_envs:make"):
        env_called("my_own_envs.make")


def test_a_file_without_a_maker_is_recognised(in_folder: Callable[[str, str], None]) -> None:
    in_folder("my_own_envs", "")
    with pytest.raises(CommandError, match="MODULE:MAKER names a callable in it"):
        env_called("my_own_envs.py")
