"""The list of links that lead out of the site: nobody looks whether they answer, but a person can."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx


def note(app: Sphinx, document: nodes.document, docname: str) -> None:
    found: dict[str, set[str]] = app.env.__dict__.setdefault("external_links", {})
    found[docname] = {
        link["refuri"] for link in document.findall(nodes.reference) if link.get("refuri", "").startswith("http")
    }


def write(app: Sphinx, error: Exception | None) -> None:
    found: dict[str, set[str]] = app.env.__dict__.get("external_links", {})
    lines = [f"{link}  ({name})" for name, links in sorted(found.items()) for link in sorted(links)]
    Path(app.outdir, "..", "external-links.txt").resolve().write_text("\n".join(lines) + "\n")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-resolved", note)
    app.connect("build-finished", write)
    return {"parallel_read_safe": False}
