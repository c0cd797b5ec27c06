"""The site in a real browser, at the width of a desktop and of a phone: nothing overflows, and one finds things.

Screenshots of every page go to build/docs/screenshots.
"""

from __future__ import annotations

import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sync_playwright = pytest.importorskip("playwright.sync_api").sync_playwright

WIDTHS = {"desktop": 1280, "phone": 390}
HEIGHT = 844
GENERATED = {"genindex.html", "search.html", "py-modindex.html"}

# What reaches beyond the window, and is not inside a table or a block of code that scrolls by itself.  The page need
# not be wider for that: the theme lets the whole article scroll.
TOO_WIDE = """() => {
    const inside = element => {
        for (let at = element.parentElement; !at.matches('.bd-article-container, body'); at = at.parentElement) {
            const how = getComputedStyle(at);
            if (['auto', 'scroll'].includes(how.overflowX) || how.position === 'fixed') return true;
        }
        return false;
    };
    return [...document.querySelectorAll('.bd-article *, header *, footer *')]
        .filter(element => element.checkVisibility() && element.getBoundingClientRect().right > innerWidth + 1)
        .filter(element => !inside(element))
        .map(element => `${element.tagName}.${element.className} ${element.textContent.slice(0, 60)}`);
}"""

# Words of a drawing that begin inside of a box and end outside of it, or nearly.
BEYOND_ITS_BOX = """() => [...document.querySelectorAll('.drawing svg')].flatMap(drawing => {
    const boxes = [...drawing.querySelectorAll('rect.box')].map(box => box.getBBox());
    return [...drawing.querySelectorAll('text')].filter(text => {
        const at = text.getBBox(), x = at.x + at.width / 2, y = at.y + at.height / 2;
        return boxes.some(box => box.x < x && x < box.x + box.width && box.y < y && y < box.y + box.height
                          && (at.x < box.x + 3 || at.x + at.width > box.x + box.width - 3));
    }).map(text => text.textContent);
})"""


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium; on Debian: apt install chromium")
    with sync_playwright() as playwright:
        # root, as in a container, has no sandbox; the pages are our own
        opened = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@pytest.fixture(params=WIDTHS)
def page(browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": WIDTHS[request.param], "height": HEIGHT})
    opened = context.new_page()
    opened.set_default_timeout(20_000)
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    yield opened
    context.close()
    assert not errors


def width_of(page: Any) -> str:
    return next(name for name, width in WIDTHS.items() if width == page.viewport_size["width"])


def test_nothing_overflows(page: Any, address: str, site: Path) -> None:
    pictures = site.parent / "screenshots" / width_of(page)
    pictures.mkdir(parents=True, exist_ok=True)
    wide = {}
    for file in sorted(site.glob("*.html")):
        if file.name in GENERATED:
            continue
        page.goto(f"{address}/{file.name}")
        page.screenshot(path=str(pictures / f"{file.stem}.png"), full_page=file.stem in ("index", "how-it-works"))
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), file.name
        if found := page.evaluate(TOO_WIDE):
            wide[file.name] = found
    assert not wide


def test_every_drawing_is_seen(page: Any, address: str) -> None:
    page.goto(f"{address}/how-it-works.html")
    drawings = page.locator(".drawing svg")
    assert drawings.count() == 3
    for number in range(3):
        box = drawings.nth(number).bounding_box()
        assert min(box["width"], box["height"]) > 300
    assert page.evaluate(BEYOND_ITS_BOX) == []


def test_the_screen_of_top_is_seen(page: Any, address: str) -> None:
    page.goto(f"{address}/top.html")
    screen = page.locator(".screen svg")
    assert screen.count() == 1
    assert "is stopped by a signal" in screen.text_content()
    assert screen.bounding_box()["width"] > 500  # on a phone one scrolls: characters stay large enough to be read


def test_one_gets_to_a_guide(page: Any, address: str) -> None:
    page.goto(address)
    if width_of(page) == "phone":
        page.locator("button.primary-toggle").click()
    page.locator("a.nav-link:visible", has_text="Guides").first.click()
    page.wait_for_url("**/guides.html")
    page.locator(".bd-article a", has_text="Why is my GPU waiting?").first.click()
    page.wait_for_url("**/why-waiting.html")
    assert page.locator("h1").inner_text().startswith("Why is my GPU waiting?")


def test_one_finds_an_error_by_its_words(page: Any, address: str) -> None:
    page.goto(address)
    page.locator("button.search-button:visible, button.search-button-field:visible").first.click()
    words = page.locator("input[name=q]:visible").first
    words.fill("page-locked")
    words.press("Enter")
    page.wait_for_url("**/search.html*")
    page.locator("#search-results li a").first.wait_for()
    found = page.locator("#search-results li a").all_inner_texts()
    assert any("Errors" in text or "Pinning" in text for text in found), found
