"""The result of `tune`: the table, the pick, the line to paste, and notes."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from torch.utils.data import default_collate

from shmloader.commands.tuning.setting import Row
from shmloader.dataloader import DataLoader
from shmloader.ring.growth import in_units

HEADINGS = ("workers", "prefetch", "schedule", "chunk", "batches/s", "input wait", "memory", "runs", "")


@dataclass(frozen=True)
class Tuning:
    """The result of `shmloader.tune`.  str() has all of it in words.

    Attributes:
        pick: The setting to use: the cheapest that is about as quick as the best one.
        rows: All settings that were measured, in that order.  Each has `batches_per_s`, `input_wait` (the share of its
            time that the consumer waited), `memory_bytes` (in all ranks), `runs`, `spread`, and `failure`.
        notes: Why the search ended, and what could not be measured.
        line: The loader to paste into a script.
        budget_bytes: The memory that settings might take, in all ranks.
        seconds: How long it took.

        >>> found = shmloader.tune(dataset, batch_size=64, step_s=0.05)
        >>> print(found)
        >>> loader = shmloader.DataLoader(dataset, batch_size=64, **found.options)
    """

    pick: Row
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    line: str
    budget_bytes: int
    seconds: float

    @property
    def options(self) -> dict[str, Any]:
        """The pick as arguments of DataLoader: `num_workers`, and what differs from the defaults."""
        return self.pick.setting.options()

    def to_dict(self) -> dict[str, Any]:
        """The result in JSON types."""
        return {
            "pick": self.pick.to_dict(),
            "line": self.line,
            "notes": list(self.notes),
            "rows": [row.to_dict() for row in self.rows],
            "budget_bytes": self.budget_bytes,
            "seconds": self.seconds,
        }

    def cells(self) -> list[tuple[str, ...]]:
        """The table, a row for each setting, the fewest workers first."""
        rows = sorted(self.rows, key=lambda row: (row.setting.num_workers, row.setting.unusual))
        return [_cells(row, "<- pick" if row is self.pick else "") for row in rows]

    def __str__(self) -> str:
        return "\n".join([*aligned([HEADINGS, *self.cells()]), "", *self.sentences()])

    def sentences(self) -> list[str]:
        """The pick, the notes and the line, a sentence each."""
        row = self.pick
        text = f"{figure(row.batches_per_s)} batches/s, {row.input_wait:.0%} of the time is waiting for input"
        return [f"pick: {text}", *(f"note: {note}" for note in self.notes), "", self.line]


def _cells(row: Row, mark: str) -> tuple[str, ...]:
    setting = row.setting
    named = (str(setting.num_workers), str(setting.prefetch_factor), setting.schedule, str(setting.chunk_size or "-"))
    if row.failure:
        return (*named, "failed", "-", "-", str(len(row.samples)), row.failure)
    return (
        *named,
        figure(row.batches_per_s),
        f"{row.input_wait:.0%}",
        in_units(row.memory_bytes),
        str(len(row.samples)),
        mark,
    )


def aligned(rows: list[tuple[str, ...]]) -> list[str]:
    """Lines with the columns below one another."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for *cells, last in rows:
        right = [f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=False)]
        lines.append("  ".join([*right, last]).rstrip())
    return lines


def figure(value: float) -> str:
    """A number of three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def line_of(options: dict[str, Any], row: Row) -> str:
    """The loader to paste.

    Args:
        options: The user's other arguments.  Functions and objects appear by the option's own name.
        row: The pick.
    """
    usual = inspect.signature(DataLoader.__init__).parameters
    given = {name: value for name, value in options.items() if value is not usual[name].default}
    if given.get("collate_fn") is default_collate:
        del given["collate_fn"]
    plain = (bool, int, float, str, type(None))
    words = [f"{name}={value!r}" if isinstance(value, plain) else f"{name}={name}" for name, value in given.items()]
    words += [f"{name}={value!r}" for name, value in row.setting.options().items()]
    return f"shmloader.DataLoader(dataset, {', '.join(words)})"
