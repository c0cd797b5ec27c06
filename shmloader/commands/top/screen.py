"""How `shmloader top` prints one look, as text or in colours, and which columns a narrow terminal leaves out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shmloader.commands.top.view import LaneView, LoaderView
from shmloader.ring.growth import in_units

if TYPE_CHECKING:
    from rich.console import RenderableType

NOTHING = "no loader of this user is iterating now"
HEADINGS = ("worker", "pid", "does", "for", "batch", "busy", "batches/s", "memory")
BUSY = HEADINGS.index("busy")
LEAST = HEADINGS.index("for")  # columns that are always shown
INPUT_BOUND = 0.1  # of the time in next(): from here on it is coloured
BAR = 10  # characters of a share
LINES = 4  # that a loader has at least, beside its workers' lines
WIDE = 104  # columns of a terminal: in fewer, the bar and the memory would cut off what a worker does


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


def plain(loaders: list[LoaderView], stacks: dict[int, str]) -> list[str]:
    """Everything, as lines.

    Args:
        loaders: The loaders.
        stacks: The stacks of workers that were asked, by their pids.
    """
    if not loaders:
        return [NOTHING]
    lines: list[str] = []
    for loader in loaders:
        rows = [HEADINGS, *map(cells, loader.lanes)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines += head(loader)
        lines += ["  " + "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]
        lines += [f"  waits for {loader.held_up}"] if loader.held_up else []
        for lane in loader.lanes:
            lines += [f"  worker {lane.worker}:", printable(stacks[lane.pid])] if lane.pid in stacks else []
        lines.append("")
    return lines[:-1]


def picture(loaders: list[LoaderView], stacks: dict[int, str], columns: int, rows: int = 1 << 30) -> RenderableType:
    """Everything, for rich.

    Args:
        loaders: The loaders.
        stacks: The stacks of workers that were asked, by their pids.
        columns, rows: The size of the terminal.
    """
    from rich.console import Group
    from rich.text import Text

    if not loaders:
        return Text(NOTHING, style="yellow")
    parts: list[Any] = []
    if sum(LINES + len(loader.lanes) for loader in loaders) > rows:  # rich cuts off the rest
        workers = sum(len(loader.lanes) for loader in loaders)
        text = f"{len(loaders)} loaders, {workers} workers: too many for {rows} lines; --once shows all, top PID fewer"
        parts.append(Text(text, style="bold yellow"))
    for loader in loaders:
        first, second = head(loader)
        parts += [
            Text(first, style="bold"),
            Text(second, style="yellow" if loader.input_wait > INPUT_BOUND else "green"),
        ]
        parts.append(_lanes(loader, columns))
        if loader.held_up:
            parts.append(Text(f"  waits for {loader.held_up}", style="bold red"))
        for lane in loader.lanes:
            if lane.pid in stacks:
                parts += [Text(f"  worker {lane.worker}:", style="bold"), Text(printable(stacks[lane.pid]))]
        parts.append(Text())
    parts.append(Text("Ctrl-C ends this; nothing that is shown is touched", style="dim"))
    return Group(*parts)


def _lanes(loader: LoaderView, columns: int) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 1), header_style="dim")
    wide = columns >= WIDE
    shown = len(HEADINGS) if wide else HEADINGS.index("memory")
    widths = [max(map(len, column)) + 2 for column in zip(HEADINGS, *map(cells, loader.lanes), strict=True)]
    while not wide and shown > LEAST and sum(widths[:shown]) > columns:  # otherwise rich would cut off each of them
        shown -= 1
    for heading in HEADINGS[:shown]:
        table.add_column(heading, justify="left" if heading in ("does", "busy") else "right", no_wrap=True)
    for lane in loader.lanes:
        style = "bold red" if lane.stuck else "yellow" if lane.awaited else ""
        text: list[Any] = list(cells(lane)[:shown])
        filled = round(lane.busy * BAR)
        bar = Text("█" * filled + "·" * (BAR - filled) + " " if wide else "", style=style or "green")
        if shown > BUSY:
            text[BUSY] = Text.assemble(bar, f"{text[BUSY]:>4}")
        table.add_row(*text, style=style)
    return table


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
