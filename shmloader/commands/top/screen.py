"""How `shmloader top` prints one look: lines, each with a style, which the live view crops at the right edge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shmloader.commands.top.view import LaneView, LoaderView
from shmloader.ring.growth import in_units

if TYPE_CHECKING:
    from rich.text import Text

NOTHING = "no loader of this user is iterating now"
HEADINGS = ("worker", "pid", "does", "for", "batch", "busy", "batches/s", "memory")
INPUT_BOUND = 0.1  # of the time in next(): from here on it is coloured


def head(loader: LoaderView) -> list[str]:
    """Two lines on a loader."""
    rates = f"{_figure(loader.batches_per_s)} batches/s, {_figure(loader.samples_per_s)} samples/s"
    waits = f", in next() for {loader.waits_s:.1f} s" if loader.waits_s > 1 else ""
    where = f"epoch {loader.epoch}, batch {loader.batch}"
    label = printable(loader.label).replace("\n", "?")
    return [
        f"{label or 'a dataset'}: pid {loader.trainer} {loader.state}, {where}, {rates}, "
        f"{in_units(loader.bytes_per_s)}/s",
        f"  input wait {loader.input_wait:.0%}{waits}; ready {loader.ready} of {loader.under_way} under way, "
        f"{loader.most} at most; lent {loader.lent}, copied {loader.copied}; deaths {loader.deaths}; "
        f"ring {in_units(loader.ring_bytes)}",
    ]


def printable(text: str) -> str:
    """Text of another process, perhaps another user's, without control characters; line breaks stay."""
    return "\n".join("".join(each if each.isprintable() else "?" for each in line) for line in text.split("\n"))


def cells(lane: LaneView) -> tuple[str, ...]:
    """A worker's line."""
    return (
        f"{lane.worker} on {lane.node}" if lane.node else str(lane.worker),
        str(lane.pid or "-"),
        lane.doing,
        f"{lane.for_s:.1f} s",
        "-" if lane.batch is None else str(lane.batch),
        f"{lane.busy:.0%}",
        _figure(lane.batches_per_s),
        in_units(lane.memory_bytes),
    )


def lines_of(loaders: list[LoaderView], stacks: dict[int, str]) -> list[tuple[str, str]]:
    """Everything, as lines, each with rich's style of it.

    Args:
        loaders: The loaders.
        stacks: The stacks of workers that were asked, by their pids.
    """
    if not loaders:
        return [(NOTHING, "yellow")]
    lines: list[tuple[str, str]] = []
    for loader in loaders:
        rows = [HEADINGS, *map(cells, loader.lanes)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        styles = ["bold red" if lane.stuck else "yellow" if lane.awaited else "" for lane in loader.lanes]
        first, second = head(loader)
        lines += [(first, "bold"), (second, "yellow" if loader.input_wait > INPUT_BOUND else "green")]
        for row, style in zip(rows, ["dim", *styles], strict=True):
            lines.append(("  " + "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)), style))
        lines += [(f"  waits for {loader.held_up}", "bold red")] if loader.held_up else []
        for lane in loader.lanes:
            if lane.pid in stacks:
                lines += [(f"  worker {lane.worker}:", "bold"), (printable(stacks[lane.pid]), "")]
        lines.append(("", ""))
    return lines[:-1]


def plain(loaders: list[LoaderView], stacks: dict[int, str]) -> list[str]:
    """The lines without their styles."""
    return [line for line, _ in lines_of(loaders, stacks)]


def picture(loaders: list[LoaderView], stacks: dict[int, str]) -> Text:
    """The lines for rich."""
    from rich.text import Text

    lines = [*lines_of(loaders, stacks), ("", ""), ("Ctrl-C ends this; nothing that is shown is touched", "dim")]
    text = Text("\n").join(Text(line, style) for line, style in lines)
    text.no_wrap, text.overflow = True, "crop"
    return text


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
