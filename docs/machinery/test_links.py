"""Every link that stays in the site leads to a page, a file and a heading that are there.
No page loads a script, a picture or a stylesheet from another site.
"""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit


class Found(HTMLParser):
    """What a page links to, and the places that can be linked to."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.places: set[str] = {"", "top"}
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("href", "src") and value is not None:
                self.links.add(value)
            elif name in ("id", "name") and value is not None:
                self.places.add(value)


def test_no_link_leads_nowhere(site: Path) -> None:
    pages = {page: Found(page) for page in site.glob("*.html")}
    assert len(pages) > 20
    wrong = []
    for page, found in pages.items():
        for link in found.links:
            if urlsplit(link).scheme or link.startswith("//"):
                continue
            path, place = urldefrag(link)
            present = (page.parent / unquote(path.partition("?")[0])).resolve() if path else page
            if not present.exists():
                wrong.append(f"{page.name}: {link} is not there")
            elif present in pages and unquote(place) not in pages[present].places:
                wrong.append(f"{page.name}: {link} has no such place")
    assert not wrong, "\n".join(wrong)


def test_no_page_asks_others_for_anything(site: Path) -> None:
    """A page that is read without a network looks the same: styles, scripts and fonts are all here."""
    for page in site.glob("*.html"):
        text = page.read_text()
        for part in text.split("<")[1:]:
            tag = part.split(">")[0]
            if tag.startswith(("script", "img", "iframe")) or (tag.startswith("link") and "stylesheet" in tag):
                assert 'src="http' not in tag, (page, tag)
                assert 'href="http' not in tag, (page, tag)


def test_links_outside_are_listed(site: Path) -> None:
    listed = (site.parent / "external-links.txt").read_text()
    assert "https://keepachangelog.com" in listed
