"""Every Python example in README.md and docs/ runs, as a reader would run it: one script a page, top to bottom."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

EXTRAS = {
    "ray": "gymbridge.interop.ray",
    "stable_baselines3": "gymbridge.interop.sb3",
    "torchrl": "gymbridge.interop.torchrl",
    "envpool": "gymbridge.interop.envpool",
}
"""Libraries of the optional extras, without which a page that imports them is skipped, and what else needs them."""


def script(page: str) -> str:
    """The page's Python blocks, each line on the line that it has in the page, so that tracebacks point there."""
    lines = [""] * page.count("\n")
    for block in PYTHON_BLOCK.finditer(page):
        first = page.count("\n", 0, block.start(1))
        code = block[1].splitlines()
        lines[first : first + len(code)] = code
    return "\n".join(lines)


def needed_extras(program: str) -> list[str]:
    """The optional libraries that a program imports."""
    modules = set()
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add(node.module or "")
    return [
        library
        for library, face in EXTRAS.items()
        if any(name == face or name.partition(".")[0] == library for name in modules)
    ]


def missing_extras(program: str) -> list[str]:
    """Those that are not installed."""
    return [library for library in needed_extras(program) if find_spec(library) is None]


def with_code() -> Iterator[Any]:
    """The pages with Python examples."""
    for page in PAGES:
        if PYTHON_BLOCK.search(text := page.read_text()):
            yield pytest.param(page, marks=[pytest.mark.extras] if needed_extras(script(text)) else [], id=page.name)


def test_what_needs_an_extra_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "EXTRAS", {"not_there": "gymbridge.interop.nothing", "pytest": "gymbridge.vector"})
    assert missing_extras("import pytest\nimport gymbridge.vector") == []
    for line in ("import not_there.a as b", "from not_there import a", "from gymbridge.interop.nothing import a"):
        assert missing_extras(f"if True:\n    {line}") == ["not_there"], line


def test_script_keeps_the_lines_of_a_page() -> None:
    page = "# T\n\n```python\na = 1\n```\n\n```bash\nrm x\n```\n```python\nb = 2\n\nc = 3\n```\n"
    assert script(page).splitlines() == ["", "", "", "a = 1", "", "", "", "", "", "", "b = 2", "", "c = 3"]


def test_every_python_block_is_found() -> None:
    # A block that is opened in another way (```py, indented) would not run.
    for page in PAGES:
        text = page.read_text()
        opened = re.findall(r"^\s*(?:```|~~~)\s*\{?(?:py|code)", text, re.MULTILINE | re.IGNORECASE)
        assert len(opened) == len(PYTHON_BLOCK.findall(text)), page


@pytest.mark.parametrize("page", [*with_code()])
def test_examples_of_a_page_run(page: Path, tmp_path: Path, subprocess_env: dict[str, str]) -> None:
    if missing := missing_extras(script(page.read_text())):
        pytest.skip(f"{', '.join(missing)} is not installed")
    program = tmp_path / f"examples_of_{page.stem}.py"  # which is no library's name
    program.write_text(script(page.read_text()))
    done = subprocess.run([sys.executable, program], cwd=tmp_path, env=subprocess_env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
