"""How Sphinx builds the documentation: `make docs`.  What of it is code is in machinery/."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import shmloader  # noqa: E402  of the checkout: the path is set above

project = "shmloader"
author = "The shmloader authors"
copyright = "The shmloader authors, MIT license"
version = release = shmloader.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "machinery.docstrings",
    "machinery.drawings",
    "machinery.external_links",
    "machinery.option_pages",
    "machinery.screens",
]
exclude_patterns = ["machinery"]
default_role = "literal"  # docstrings have `code` in single backticks
highlight_language = "none"  # a fence that names no language is what a program has printed
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the text says the types
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True  # a line an attribute, and not a heading
nitpicky = False  # types of torch's and Python's: their sites are not asked.  test_links.py checks every link inside

html_theme = "pydata_sphinx_theme"
html_title = "shmloader"
html_static_path = ["machinery/static"]
html_css_files = ["shmloader.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 8,
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
ALONE = ("index", "tour", "options", "api", "errors", "how-it-works", "benchmarks", "limits", "changelog")
html_sidebars: dict[str, list[str]] = {page: [] for page in ALONE}  # a single page has no list of its own
