"""How Sphinx builds the site, without the network: ``tox run -e docs-site``."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from gymbridge import __version__  # noqa: E402

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
autodoc_preserve_defaults = True
# Pages are the same whether or not the libraries of the extras are installed.
autodoc_mock_imports = ["envpool", "ray", "stable_baselines3", "torchrl"]
napoleon_use_rtype = False
napoleon_use_ivar = True

# References to gymbridge's public names are checked. Those of other libraries have no pages here, and neither have the
# modules within, which docstrings of the source refer to.
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!gymbridge\b).*"), ("py:.*", r"gymbridge\.engine\b.*")]
