"""A terminal as it looks with `shmloader top`: SVG, by top's own code, in the colours of the page.

`{screen} NAME` puts one into a page.  `python docs/machinery/screens.py FOLDER` writes them all to files.  The figures
are of a run on two cores, two seconds after `kill -STOP` of worker 2: a look at a run of now would differ with each
build.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.segment import Segment

from shmloader.commands.top.screen import picture
from shmloader.commands.top.view import LaneView, LoaderView

COLUMNS = 80
ACROSS, DOWN = 8, 18  # pixels of a character
MARGIN = 12
MiB = 1 << 20


def lane(worker: int, pid: int, for_s: float, busy: float, rate: float, memory: float, **other: Any) -> LaneView:
    waits: dict[str, Any] = {"doing": "waits", "batch": None, "stuck": False, "awaited": False}
    return LaneView(
        worker, pid, for_s=for_s, busy=busy, batches_per_s=rate, memory_bytes=int(memory * MiB), **(waits | other)
    )


def top() -> list[list[Segment]]:
    stopped = {"doing": "is stopped by a signal", "batch": 278, "stuck": True, "awaited": True}
    loader = LoaderView(
        label="Pictures",
        trainer=25909,
        state="sleeps",
        batches_per_s=15.1,
        samples_per_s=483,
        bytes_per_s=int(69.3 * MiB),
        input_wait=0.39,
        waits_s=1.8,
        ready=6,
        under_way=8,
        most=8,
        epoch=0,
        batch=278,
        lent=2,
        copied=0,
        deaths=0,
        ring_bytes=int(46.6 * MiB),
        held_up="batch 278, held by worker 2 (pid 25932), which is stopped by a signal",
        lanes=[
            lane(0, 25930, 1.5, 0.72, 4.1, 154.5),
            lane(1, 25931, 1.7, 0.68, 4.0, 154.5),
            lane(2, 25932, 2.1, 0.62, 3.6, 155.4, **stopped),
            lane(3, 25933, 1.7, 0.72, 4.1, 155.4),
        ],
    )
    console = Console(file=io.StringIO(), width=COLUMNS, force_terminal=True, color_system="standard")
    return console.render_lines(picture([loader], {}), pad=False)


def svg(lines: Iterable[list[Segment]], title: str) -> str:
    """Lines of a terminal: a `text` for each run of characters of one style, where it stands."""
    parts, rows = [], 0
    for row, line in enumerate(lines):
        column, rows = 0, row + 1
        for segment in line:
            if segment.text.strip():
                parts.append(
                    f'<text x="{MARGIN + ACROSS * column}" y="{MARGIN + DOWN * row + 13}" class="{kind(segment)}" '
                    f'textLength="{ACROSS * segment.cell_length}" xml:space="preserve">{escape(segment.text)}</text>'
                )
            column += segment.cell_length
    across, down = 2 * MARGIN + ACROSS * COLUMNS, 2 * MARGIN + DOWN * rows
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {across} {down}" role="img" '
        f'aria-label="{escape(title)}"><title>{escape(title)}</title>{"".join(parts)}</svg>'
    )


def kind(segment: Segment) -> str:
    style = segment.style
    if style is None:
        return ""
    colour = style.color.name if style.color is not None else ""
    return " ".join(name for name in ("bold" * bool(style.bold), "dim" * bool(style.dim), colour) if name)


SCREENS: dict[str, tuple[Callable[[], list[list[Segment]]], str]] = {
    "top": (top, "shmloader top: worker 2 is stopped by a signal and holds the batch that the trainer waits for")
}


def setup(app: Any) -> dict[str, Any]:
    from docutils import nodes
    from sphinx.util.docutils import SphinxDirective

    class Screen(SphinxDirective):
        required_arguments = 1

        def run(self) -> list[nodes.Node]:
            look, title = SCREENS[self.arguments[0]]
            return [nodes.raw("", f'<div class="screen">{svg(look(), title)}</div>', format="html")]

    app.add_directive("screen", Screen)
    return {"parallel_read_safe": True}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, (look, title) in SCREENS.items():
        (folder / f"{name}.svg").write_text(svg(look(), title))
