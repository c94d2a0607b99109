"""The pages under docs/ are one site: each name, page, link and figure has its place. Sphinx looks at the rest."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)
TEXTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *PAGES]
FIGURES = sorted((DOCS / "figures").iterdir())

PACKAGES = ("", ".vector", ".envs", ".specs", ".spaces", ".contract", ".errors")
EXTRAS = ("sb3", "torchrl", "envpool", "ray")

ENTRY = re.compile(r"^\.\. (?:auto|py:)\w+:: (gymbridge[\w.]*)$", re.MULTILINE)
"""What gives a name its place on a page."""
TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^( *)(```+|~~~+)(.*)\n(?:.*\n)*?\1\2$", re.MULTILINE)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)

RUN = {"python"}
SHOWN = {"bash", "console", "diff", "text"}
DIRECTIVES = {"{eval-rst}", "{include}", "{toctree}"}


def public_names() -> list[str]:
    """``__all__`` of every public module; those that need an extra are read, not imported."""
    names = []
    for package in PACKAGES:
        module = import_module(f"gymbridge{package}")
        names += [f"gymbridge{package}.{name}" for name in module.__all__]
    for extra in EXTRAS:
        for node in ast.parse((ROOT / "gymbridge/interop" / f"{extra}.py").read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                names += [f"gymbridge.interop.{extra}.{name}" for name in ast.literal_eval(node.value)]
    return names


def without_code(text: str) -> str:
    """A page without its blocks and its code in lines, in which nothing is a heading or a link."""
    return re.sub(r"`[^`\n]+`", "``", FENCE.sub("", text))


def slug(heading: str) -> str:
    """The anchor of a heading, as forges and MyST make it."""
    shown = LINK.sub(r"\2", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")


@cache
def anchors(page: Path) -> frozenset[str]:
    return frozenset(slug(heading) for heading in HEADING.findall(FENCE.sub("", page.read_text())))


def links(page: Path) -> list[tuple[bool, str, str]]:
    """Whether each is a figure, its text and its target."""
    return [(mark == "!", text, target) for mark, text, target in LINK.findall(without_code(page.read_text()))]


def test_each_public_name_is_on_one_page() -> None:
    names = public_names()
    assert len(names) > 60
    assert {"gymbridge.SerialEnv", "gymbridge.interop.ray.RayAsyncEnvPool"} <= {*names}
    places = Counter(name for page in PAGES for name in ENTRY.findall(page.read_text()))
    assert {name: places[name] for name in names if places[name] != 1} == {}
    assert not [name for name, places_of in places.items() if places_of > 1]


def test_methods_that_docstrings_refer_to_are_on_the_page_of_their_class() -> None:
    """An inherited method is there only where the class's entry says that those are shown."""
    sources = "".join(path.read_text() for path in (ROOT / "gymbridge").rglob("*.py"))
    references = set(re.findall(r":meth:`~?gymbridge\.(?:(\w+)\.)?([A-Z]\w+)\.(\w+)`", sources))
    assert ("", "SerialEnv", "stats") in references
    pages = "".join(page.read_text() for page in (DOCS / "api").glob("*.md"))
    lost = []
    for module, name, method in references:
        path = f"gymbridge.{module}" if module else "gymbridge"
        cls = getattr(import_module(path), name)
        entry = re.search(rf"^\.\. autoclass:: {re.escape(path)}\.{name}\n((?:   .*\n)*)", pages, re.MULTILINE)
        if entry is None or (method not in vars(cls) and ":inherited-members:" not in entry[1]):
            lost.append(f"{path}.{name}.{method}")
    assert not lost


def test_each_page_is_in_one_table_of_contents() -> None:
    listed = Counter(
        (page.parent / entry).with_suffix(".md")
        for page in PAGES
        for block in TOCTREE.findall(page.read_text())
        for entry in block.split("\n\n", 1)[-1].split()
        if not entry.startswith(":")
    )
    assert listed == Counter(page for page in PAGES if page != DOCS / "index.md")


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    lost = []
    for _, _, target in links(page):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            lost.append(target)
    assert not lost


def test_links_of_a_text_that_the_site_includes_lead_to_its_pages() -> None:
    """Sphinx finds no other file from where the text is included, and a warning is an error."""
    targets = [target for _, _, target in links(ROOT / "CHANGELOG.md") if not re.match(r"\w+:", target)]
    assert "docs/gymnasium.md" in targets
    assert not [target for target in targets if not target.startswith("docs/")]


def test_links_and_anchors_are_found() -> None:
    """With a pattern that finds nothing, no link would be lost."""
    assert "quickstart.md" in {target for _, _, target in links(DOCS / "index.md")}
    assert slug("`AsyncEnvPool` in gymnasium's [words](a.md): `x_y`") == "asyncenvpool-in-gymnasiums-words-x_y"
    assert "lanes" in anchors(DOCS / "pools.md")
    assert LINK.findall("[a](b.md) ![c\nd [e]](f.svg) [g]") == [("", "a", "b.md"), ("!", "c\nd [e]", "f.svg")]
    assert without_code("a `[b](c)`\n```python\n# [d](e)\n```\nf") == "a ``\n\nf"


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_each_block_says_what_it_is(page: Path) -> None:
    """Python is run (test_documentation.py); what is only shown has another name, so that nothing is shown untried."""
    kinds = {kind.split()[0] if kind else "" for _, _, kind in FENCE.findall(page.read_text())}
    assert kinds <= RUN | SHOWN | DIRECTIVES


def test_blocks_without_a_name_are_found() -> None:
    page = "```\na\n```\n\n~~~python\nb\n~~~\n\n```{toctree}\n:caption: C\n\nd\n```\n"
    assert [kind for _, _, kind in FENCE.findall(page)] == ["", "python", "{toctree}"]


def test_each_figure_is_on_a_page_and_has_an_alt_text() -> None:
    shown = {
        (page.parent / target).resolve(): text for page in PAGES for is_figure, text, target in links(page) if is_figure
    }
    assert FIGURES
    assert {*shown} == {*FIGURES}
    assert all(len(text) > 40 for text in shown.values())


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_a_figure_is_well_formed(figure: Path) -> None:
    assert ElementTree.fromstring(figure.read_text()).tag == "{http://www.w3.org/2000/svg}svg"
