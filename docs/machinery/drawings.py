"""The drawings of the pages that explain the ring: SVG, made here, in the colours of the page.

`{drawing} NAME` puts one into a page.  `python docs/machinery/drawings.py FOLDER` writes them all to files.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

WIDTH = 440  # a phone shows a drawing at three quarters of that


class Drawing:
    """Shapes that are put down one by one; `svg()` is the whole."""

    def __init__(self, height: int, title: str) -> None:
        self.height, self.title = height, title
        self.parts: list[str] = []

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> None:
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>')

    def box(self, x: float, y: float, width: float, height: float, kind: str = "") -> None:
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="5" class="box {kind}"/>'
        )

    def label(self, x: float, y: float, width: float, lines: list[str], kind: str = "", font: str = "mono") -> None:
        """A box, by the middle of its top, with lines of text in it."""
        height = 10 + 16 * len(lines)
        self.box(x - width / 2, y, width, height, kind)
        for number, line in enumerate(lines):
            self.text(x, y + 18 + 16 * number, line, font)

    def line(self, x: float, y: float, to_x: float, to_y: float, kind: str = "line") -> None:
        self.parts.append(f'<path d="M{x:.1f} {y:.1f}L{to_x:.1f} {to_y:.1f}" class="{kind}"/>')

    def arrow(self, x: float, y: float, to_x: float, to_y: float) -> None:
        angle = math.atan2(to_y - y, to_x - x)
        back = [(to_x - 8 * math.cos(angle + turn), to_y - 8 * math.sin(angle + turn)) for turn in (-0.4, 0.4)]
        self.line(x, y, (back[0][0] + back[1][0]) / 2, (back[0][1] + back[1][1]) / 2)
        tip = " ".join(f"{px:.1f},{py:.1f}" for px, py in [(to_x, to_y), *back])
        self.parts.append(f'<polygon points="{tip}" class="tip"/>')

    def sector(self, x: float, y: float, inner: float, outer: float, angles: tuple[float, float], kind: str) -> None:
        """A part of a ring, between two angles."""
        (sin0, cos0), (sin1, cos1) = ((math.sin(angle), math.cos(angle)) for angle in angles)
        self.parts.append(
            f'<path d="M{x + inner * cos0:.1f} {y + inner * sin0:.1f}L{x + outer * cos0:.1f} {y + outer * sin0:.1f}'
            f"A{outer} {outer} 0 0 1 {x + outer * cos1:.1f} {y + outer * sin1:.1f}"
            f"L{x + inner * cos1:.1f} {y + inner * sin1:.1f}"
            f'A{inner} {inner} 0 0 0 {x + inner * cos0:.1f} {y + inner * sin0:.1f}Z" class="box {kind}"/>'
        )

    def svg(self) -> str:
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" role="img" '
            f'aria-label="{escape(self.title)}"><title>{escape(self.title)}</title>{"".join(self.parts)}</svg>'
        )


def ring() -> str:
    """2 workers, prefetch_factor=2: four entries, and a payload slot each; spare_slots=2 more."""
    drawing = Drawing(520, "The ring: four entries that name payload slots, and two slots that are lent")
    x, y = 150, 150
    entries = [("12", "READY", "ready"), ("13", "CLAIMED, 1", "mine"), ("14", "READY", "ready"), ("15", "OPEN, 1", "")]
    for number, (sequence, state, kind) in enumerate(entries):
        begin = -math.pi / 2 + number * math.pi / 2 + 0.02
        drawing.sector(x, y, 55, 128, (begin, begin + math.pi / 2 - 0.04), kind)
        middle = begin + math.pi / 4
        at_x, at_y = x + 92 * math.cos(middle), y + 92 * math.sin(middle)
        drawing.text(at_x, at_y - 4, f"seq {sequence}")
        drawing.text(at_x, at_y + 12, state, "mono")
    drawing.text(x, y - 4, "entry =")
    drawing.text(x, y + 13, "seq % 4", "mono")
    drawing.arrow(300, 40, 218, 62)
    drawing.text(304, 36, "the trainer takes", "", "start")
    drawing.text(304, 53, "this one next,", "", "start")
    drawing.text(304, 70, "in order", "", "start")
    for at, notes in (
        (110, ("seq 14 is ready", "and waits its turn")),
        (170, ("seq 13: worker 1", "fills its slot now")),
    ):
        for k, words in enumerate(notes):
            drawing.text(304, at + 16 * k, words, "small", "start")
    top = 348
    fields = {0: "seq 15", 1: "seq 14", 2: "seq 13", 3: "seq 12", 4: "seq 11", 5: "free"}
    kinds = {1: "ready", 2: "mine", 3: "ready", 4: "lent"}
    for slot, words in fields.items():
        drawing.box(14 + 70 * slot, top, 62, 54, kinds.get(slot, ""))
        drawing.text(45 + 70 * slot, top + 23, f"slot {slot}", "mono")
        drawing.text(45 + 70 * slot, top + 42, words, "small")
    for slot, start in {0: (26, 182), 1: (92, 266), 2: (200, 270), 3: (281, 148)}.items():
        drawing.arrow(*start, 45 + 70 * slot, top - 4)
    drawing.text(290, 272, "each entry names the slot", "small", "start")
    drawing.text(290, 288, "that its batch goes to", "small", "start")
    drawing.arrow(325, top + 60, 325, top + 92)
    drawing.label(235, top + 94, 400, ["images, labels: tensors over slot 4, lent to you"], "lent", "")
    drawing.text(235, top + 144, "When the last view of them dies, the slot is free again.", "small")
    drawing.text(235, top + 160, "Until then slot 5 takes its place.", "small")
    return drawing.svg()


def trip() -> str:
    """A batch's way, from the sampler to the training loop."""
    drawing = Drawing(640, "A batch's way: opened, claimed, filled, published, taken, lent, freed")
    lanes = {"trainer": 74, "ring": 220, "worker 1": 366}
    for name, x in lanes.items():
        drawing.line(x, 40, x, 630, "lane")
        drawing.label(x, 8, 120, [name], "", "")
    left, middle, right = lanes.values()
    word = [
        (76, "OPEN(7, 1)", ""),
        (154, "CLAIMED(7, 1)", "mine"),
        (334, "READY(7, 1)", "ready"),
        (462, "OPEN(11, 1)", ""),
    ]
    for y, state, kind in word:
        drawing.label(middle, y, 122, [state], kind)

    def step(y: float, x: float, lines: list[str], to: float | None = None) -> None:
        drawing.label(x, y, 132, lines, "", "small")
        if to is not None:
            middle_of = y + 5 + 8 * len(lines)
            drawing.arrow(x + (66 if to > x else -66), middle_of, to + (-61 if to > x else 61), middle_of)

    step(60, left, ["1 open: writes the", "indices, names a", "free slot"], middle)
    step(146, right, ["2 claim: one", "compare-and-swap"], middle)
    step(206, right, ["3 fetches samples"])
    step(250, right, ["4 collates them", "straight into", "the slot"])
    step(326, right, ["5 publish: one", "compare-and-swap"], middle)
    step(334, left, ["6 take: in order"])
    drawing.arrow(middle - 61, 347, left + 66, 347)
    step(378, left, ["7 you get tensors", "over the slot:", "no copy"])
    step(446, left, ["8 opens seq 11 at", "once, with another", "free slot"], middle)
    step(520, left, ["... you train ..."])
    step(576, left, ["9 the last view dies:", "the slot is free"])
    drawing.text(right, 400, "Nobody takes a lock.", "small clear")
    drawing.text(right, 416, "No file, no descriptor", "small clear")
    drawing.text(right, 432, "and no mapping is made", "small clear")
    drawing.text(right, 448, "for a batch.", "small clear")
    return drawing.svg()


def death() -> str:
    """A worker is killed while it holds a batch."""
    drawing = Drawing(590, "A death: the claim names the worker, so its batch is opened again for the one that follows")
    lanes = {"trainer": 74, "word of seq 7": 220, "worker 1": 366}
    for name, x in lanes.items():
        drawing.line(x, 40, x, 556, "lane")
        drawing.label(x, 8, 128, [name], "", "")
    left, middle, right = lanes.values()

    def step(y: float, x: float, lines: list[str], kind: str = "", to: float | None = None) -> None:
        drawing.label(x, y, 136, lines, kind, "small")
        if to is not None:
            at = y + 5 + 8 * len(lines)
            drawing.arrow(x + (68 if to > x else -68), at, to + (-61 if to > x else 61), at)

    drawing.label(middle, 60, 122, ["CLAIMED(7, 1)"], "mine")
    step(60, right, ["pid 4711 claims"], "", middle)
    step(110, right, ["SIGKILL"], "dead")
    drawing.text(middle, 112, "still CLAIMED(7, 1):", "small clear")
    drawing.text(middle, 128, "it says who had it", "small clear")
    step(162, left, ["the kernel says that", "the process ended,", "no timeout guesses"])
    drawing.arrow(right - 68, 136, left + 68, 178)
    step(242, left, ["it is reaped: now", "nothing of it", "can write any more"])
    drawing.label(middle, 332, 122, ["OPEN(7, 1)"])
    step(324, left, ["revoke: one", "compare-and-swap"], "", middle)
    step(384, left, ["starts a process", "as worker 1"], "")
    drawing.arrow(left + 68, 405, right - 68, 405)
    step(384, right, ["pid 4802 goes on", "from the same", "random states"])
    drawing.label(middle, 462, 122, ["CLAIMED(7, 1)"], "mine")
    step(462, right, ["claims it again"], "", middle)
    drawing.label(middle, 514, 122, ["READY(7, 1)"], "ready")
    step(514, right, ["the same values"], "", middle)
    drawing.arrow(middle - 61, 527, left + 68, 527)
    step(514, left, ["takes it in order"])
    drawing.text(WIDTH / 2, 574, "By default nobody takes its place: the trainer raises torch's error.", "small")
    return drawing.svg()


DRAWINGS: dict[str, Callable[[], str]] = {"ring": ring, "trip": trip, "death": death}


def setup(app: Any) -> dict[str, Any]:
    from docutils import nodes
    from sphinx.util.docutils import SphinxDirective

    class Draw(SphinxDirective):
        required_arguments = 1

        def run(self) -> list[nodes.Node]:
            drawn = DRAWINGS[self.arguments[0]]()
            return [nodes.raw("", f'<div class="drawing">{drawn}</div>', format="html")]

    app.add_directive("drawing", Draw)
    return {"parallel_read_safe": True}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in DRAWINGS.items():
        (folder / f"{name}.svg").write_text(draw())
