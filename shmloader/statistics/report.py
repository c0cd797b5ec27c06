"""How `loader.report()` is printed, as text or by rich: the verdict, the figures behind it, a table of workers."""

from __future__ import annotations

import functools
import os
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shmloader.ring.growth import in_units
from shmloader.statistics.causes import ms, plural, rate
from shmloader.statistics.stats import Stats, Times, WorkerStats
from shmloader.statistics.verdict import Verdict

if TYPE_CHECKING:
    from shmloader.core.figures import Taken

WIDTH, INDENT = 110, 10


@dataclass(frozen=True)
class Report:
    """Whether a loop waits for its batches, why, and what to change.  Print it; rich prints it in colour.

    Attributes:
        verdict: The finding: `kind`, `share`, `sure`, `cause` (with `name`, `why`, `change`, `effect`), `notes`.
        stats: The figures behind it.
        log: The last batches, one by one, for `plot`.
        of_dataset: Lines that the dataset adds to the report: titles and texts.
    """

    verdict: Verdict
    stats: Stats
    log: Sequence[Taken] = ()
    of_dataset: Sequence[tuple[str, str]] = ()

    def __str__(self) -> str:
        wrapped = functools.partial(textwrap.fill, width=WIDTH, break_long_words=False, break_on_hyphens=False)
        indent = " " * INDENT
        return "\n".join(
            wrapped(f"{title + ':':{INDENT}}{text}", subsequent_indent=indent) if title else wrapped(text)
            for title, text in self.lines()
        )

    def lines(self) -> list[tuple[str, str]]:
        """The lines of the report, each with its title; the verdict has none."""
        messages = [("", self.verdict.text)]
        if (cause := self.verdict.cause) is not None:
            messages += [("cause", cause.why), ("change", cause.change), ("effect", cause.effect)]
        elif self.verdict.kind == "input-bound":
            messages += [("cause", "no known cause applies; the figures below, and plot(), show where the time goes")]
        messages += [("also", note) for note in self.verdict.notes]
        messages += self.of_dataset
        if self.stats.batches:
            messages.append(("measured", measured(self.stats)))
        messages += [("far", line) for line in lines_of_nodes(self.stats)]
        messages += [("", line) for line in table_of_workers(self.stats)]
        return messages

    def __rich__(self) -> Any:
        from rich.panel import Panel
        from rich.text import Text

        colours = {"input-bound": "red", "balanced": "yellow", "consumer-bound": "green", "unknown": "dim"}
        colour = colours[self.verdict.kind]
        lines = [Text(f"{title + ':':{INDENT}}{text}" if title else text) for title, text in self.lines()]
        lines[0].stylize(colour)
        return Panel(Text("\n").join(lines), border_style=colour, title="loader", title_align="left")

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the last batches: what each worker did when, when the loop waited, and where its time went.

        Args:
            path: The file.  Its ending is the format: .png, .svg, .pdf.

        Raises:
            ImportError: matplotlib is not installed.
            ValueError: No batch was taken from a ring, so there is nothing to draw.
        """
        from shmloader.statistics.plot import draw

        draw(path, self.verdict, self.stats, self.log)


def measured(stats: Stats) -> str:
    """The figures behind the verdict, in a line or two."""
    text = f"{plural(stats.batches, 'batch', 'es')} in {stats.elapsed_s:.1f} s, "
    text += f"{rate(stats.batches_per_s)}; next() {_spread(stats.wait)}, step {_spread(stats.step)}"
    if stats.first_wait.count:
        text += f"; the first batch of an epoch {ms(stats.first_wait.mean_s)}"
    if stats.fetch is not None and stats.collate is not None and stats.order_wait is not None:
        text += f"; fetch {_spread(stats.fetch)}, collate {_spread(stats.collate)}"
        text += f"; ready, but an earlier one was not: {_spread(stats.order_wait)}"
        text += f"; {stats.ready_batches:.1f} ready when asked for, none in {stats.empty_share:.0%} of the calls"
    if stats.to_device is not None:
        text += f"; to the device {_spread(stats.to_device)}"
    return text


def _spread(times: Times) -> str:
    return f"{ms(times.p50_s)} (p99 {ms(times.p99_s)})"


def lines_of_nodes(stats: Stats) -> list[str]:
    """A line for each machine with far workers: how many, their share of the batches, how quick, and bytes a second."""
    of_nodes: dict[str, list[WorkerStats]] = {}
    for worker in stats.workers or ():
        if worker.node is not None:
            of_nodes.setdefault(worker.node, []).append(worker)
    whole = sum(worker.published for worker in stats.workers or ())
    lines = []
    for node, workers in sorted(of_nodes.items()):
        made = sum(worker.published for worker in workers)
        text = f"{plural(len(workers), 'worker')} on {node} made {plural(made, 'batch', 'es')}"
        if made and stats.elapsed_s:
            busy = sum(worker.busy_s for worker in workers)
            bytes_per_s = made * (stats.batch_bytes or 0) / stats.elapsed_s
            text += f", {_share(made, whole)} of all, in {ms(busy / made)} each, {in_units(round(bytes_per_s))}/s"
        lines.append(text)
    return lines


WORKERS = ("worker", "batches", "each", "fetch", "idle", "no slot", "on a core", "no core", "waited for")


def rows_of_workers(stats: Stats) -> list[tuple[str, ...]]:
    """A row for each worker; if there are many, only those that differ most."""
    rows: list[tuple[str, ...]] = []
    workers = [worker for worker in stats.workers or () if worker.published or worker.busy_s]
    waited = sum(worker.waited_for_s for worker in workers)
    if len(workers) > 16:
        workers = sorted(workers, key=lambda worker: -worker.waited_for_s)[:16]
    for worker in workers:
        spent = worker.busy_s + worker.idle_s + worker.slot_wait_s
        rows.append((
            str(worker.worker) if worker.node is None else f"{worker.worker} on {worker.node}",
            f"{worker.published:,}",
            ms(worker.busy_s / worker.published) if worker.published else "",
            _share(worker.fetch_s, worker.busy_s),
            _share(worker.idle_s, spent),
            _share(worker.slot_wait_s, spent),
            "" if worker.cpu_share is None else f"{worker.cpu_share:.0%}",
            "" if worker.delayed_share is None else f"{worker.delayed_share:.0%}",
            _share(worker.waited_for_s, waited),
        ))  # fmt: skip
    return rows


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else ""


def table_of_workers(stats: Stats) -> list[str]:
    """The table of rows_of_workers(), as lines of text."""
    rows = rows_of_workers(stats)
    if not rows:
        return []
    widths = [max(len(row[k]) for row in [WORKERS, *rows]) for k in range(len(WORKERS))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in [WORKERS, *rows]]
