"""How Sphinx builds the site, without the network: ``tox run -e docs-site``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from gymbridge import __version__  # noqa: E402

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "gymbridge"
author = "The gymbridge developers"
copyright = author
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = "gymbridge"
html_show_sphinx = False

myst_heading_anchors = 3  # so that pages link to each other's headings as on a forge: pools.md#lanes
suppress_warnings = ["myst.strikethrough"]

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # signatures of a line; docstrings say what is taken
autodoc_inherit_docstrings = False  # an override without a text of its own is told of where it is overridden
# Pages are the same whether or not the libraries of the extras are installed.
autodoc_mock_imports = ["envpool", "ray", "stable_baselines3", "torchrl"]
napoleon_custom_sections = [
    "Returns",  # as text: what stands before a colon in it is no type
    ("Attributes", "params_style"),
]

# References to gymbridge's public names are checked. Those of other libraries have no pages here, and neither have the
# modules within, which docstrings of the source refer to.
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!gymbridge\b).*"), ("py:.*", r"gymbridge\.engine\b.*")]


def keep_colon(app: Sphinx, what: str, name: str, value: object, options: Any, lines: list[str]) -> None:
    """Gives napoleon an empty first line of a property: what stands before a colon there would be its type."""
    if what == "property":
        lines[:0] = ["..", ""]


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", keep_colon, priority=400)  # before napoleon
