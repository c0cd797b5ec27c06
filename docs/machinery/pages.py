"""Two directives for pages that a part of the project may bring, and the list of links that lead out.

`{pages}` is a toctree without the entries that there is no page for; `{if-page} NAME` has its text only where there is
one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.directives.other import TocTree
from sphinx.util.docutils import SphinxDirective


class Pages(TocTree):
    def run(self) -> list[nodes.Node]:
        found = [line for line in self.content if line.strip() in self.env.found_docs]
        self.content = StringList(found, source=self.env.docname)
        return super().run()


class IfPage(SphinxDirective):
    has_content = True
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        if self.arguments[0] not in self.env.found_docs:
            return []
        return self.parse_content_to_nodes()


def note_external_links(app: Sphinx, document: nodes.document, docname: str) -> None:
    """Remember the addresses outside that a page links to: nobody looks whether they answer."""
    found: dict[str, set[str]] = app.env.__dict__.setdefault("external_links", {})
    found[docname] = {
        link["refuri"] for link in document.findall(nodes.reference) if link.get("refuri", "").startswith("http")
    }


def write_external_links(app: Sphinx, error: Exception | None) -> None:
    found: dict[str, set[str]] = app.env.__dict__.get("external_links", {})
    lines = [f"{link}  ({name})" for name, links in sorted(found.items()) for link in sorted(links)]
    Path(app.outdir, "..", "external-links.txt").resolve().write_text("\n".join(lines) + "\n")


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("pages", Pages)
    app.add_directive("if-page", IfPage)
    app.connect("doctree-resolved", note_external_links)
    app.connect("build-finished", write_external_links)
    return {"parallel_read_safe": False}
