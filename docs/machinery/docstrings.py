"""Docstrings as Sphinx wants them: they are written for readers of the source.
Indented lines become code, docs/NAME.md becomes a link, and DataLoader's arguments are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from sphinx.application import Sphinx

# Their arguments have a page of their own.
OPTIONS_APART = ("shmloader.DataLoader", "shmloader.dataloader.DataLoader")
SECTIONS = ("Args:", "Attributes:", "Example:", "Limits:", "Raises:", "Returns:")


def process(app: Sphinx, what: str, name: str, described: object, options: object, lines: list[str]) -> None:
    if name in OPTIONS_APART:
        lines[:] = without_arguments(lines)
    lines[:] = [re.sub(r"\bdocs/([\w-]+)\.md", r":doc:`\1`", line) for line in with_literal_blocks(lines)]


def without_arguments(lines: list[str]) -> Iterator[str]:
    inside = False
    for line in lines:
        if line and not line.startswith(" "):
            inside = line == "Args:"
            if inside:
                yield from ("Its arguments are in :doc:`options`.", "")
        if not inside:
            yield line


def with_literal_blocks(lines: list[str]) -> Iterator[str]:
    """Lines that stand further right, behind an empty one and outside of a section, are code."""
    section, before = False, ""
    for number, line in enumerate(lines):
        if line and not line.startswith(" "):
            section = line in SECTIONS
        if line.startswith("    ") and not section and before and not before.startswith(" ") and not lines[number - 1]:
            yield from ("::", "")
        yield line
        before = line or before


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", process, priority=100)  # before napoleon's
    return {"parallel_read_safe": True}
