"""The result of `tune`: the table, the pick, the notes, and the line to paste."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from torch.utils.data import default_collate

from shmloader.commands.tuning.measure import Measure
from shmloader.commands.tuning.search import IDLE, Row, Search
from shmloader.dataloader import DataLoader
from shmloader.ring.growth import in_units

HEADINGS = ("workers", "prefetch", "schedule", "chunk", "batches/s", "input wait", "memory", "runs")
TABLE = "{:>7}  {:>8}  {:>11}  {:>5}  {:>9}  {:>10}  {:>9}  {:>4}"
PICK = "  <- pick"  # ends the line of the pick in the table
ROUGH = 20  # batches: fewer give a rough figure
UNSTEADY = 0.15  # spread of one setting's measurements


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
        return {**vars(self), "pick": self.pick.to_dict(), "rows": [row.to_dict() for row in self.rows]}

    def __str__(self) -> str:
        rows = sorted(self.rows, key=lambda row: row.cost)
        table = [_line(row) + PICK if row is self.pick else _line(row) for row in rows]
        speed, wait = _figure(self.pick.batches_per_s), self.pick.input_wait
        pick = f"pick: {speed} batches/s, {wait:.0%} of the time is waiting for input"
        notes = [f"note: {note}" for note in self.notes]
        return "\n".join([TABLE.format(*HEADINGS), *table, "", pick, *notes, "", self.line])


def _line(row: Row) -> str:
    its = row.setting
    figures = [_figure(row.batches_per_s), f"{row.input_wait:.0%}", in_units(row.memory_bytes)]
    cells = [its.num_workers, its.prefetch_factor, its.schedule, its.chunk_size or "-"]
    return (
        f"{TABLE.format(*cells, *(['failed', '-', '-'] if row.failure else figures), row.runs)}  {row.failure}".rstrip()
    )


def _figure(value: float) -> str:
    """A number of three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def line_of(options: dict[str, Any], pick: Row) -> str:
    """The loader to paste, with the user's other options.  Functions and objects appear by the option's own name."""
    usual = {name: each.default for name, each in inspect.signature(DataLoader.__init__).parameters.items()}
    given = {name: value for name, value in options.items() if value not in (usual[name], default_collate)}
    plain = (bool, int, float, str, type(None))
    words = [f"{name}={value!r}" if isinstance(value, plain) else f"{name}={name}" for name, value in given.items()]
    return f"shmloader.DataLoader(dataset, {', '.join([*words, str(pick.setting)])})"


def notes_of(search: Search, pick: Row, measured: Measure, cores: int, ranks: int, is_stream: bool) -> tuple[str, ...]:
    """Why the search ended, and what was not measured: sentences, the most important first."""
    its, heavy, budget = pick.setting, search.too_heavy, in_units(search.budget)
    example = f"{heavy[0]}, for example, needs {in_units(search.weigh(heavy[0]))}" if heavy else ""
    notes = {
        f"the pick takes {in_units(pick.memory_bytes)}, more than the budget of {budget}: the workers' memory grew "
        "while they were measured, and no setting takes less": pick.memory_bytes > search.budget,
        "the stream must give each worker its own part, by get_worker_info(); otherwise every worker reads all "
        "samples, and they repeat": is_stream and its.num_workers > 1,
        "the consumer takes the time, so no loader makes this quicker": pick.input_wait < IDLE,
        f"the limit of {search.most_workers} workers (most_workers) was reached, and more may help": (
            its.num_workers >= search.most_workers > 1
        ),
        f"{len(heavy)} settings were not measured, because they need more memory than the budget of {budget}. {example}"
        f", in slots of {in_units(measured.slot_bytes)} and workers of {in_units(measured.worker_bytes)}": heavy,
        f"there was no time for {', '.join(map(str, search.untried))}. Give tune more seconds": search.untried,
        f"only {pick.batches} batches of the pick came. Give tune more seconds for a reliable figure": (
            pick.batches < ROUGH
        ),
        f"measurements of the pick differ by {pick.spread:.0%}: something else ran, or samples differ much": (
            pick.spread > UNSTEADY
        ),
        f"that is more workers than cores ({cores} for each rank). It pays if samples wait for a disk, a network or a "
        "lock, and if that can serve so many at once": its.num_workers > cores,
        f"memory is counted for {ranks} ranks, each with {cores} of the cores; what the others do to disk, network and "
        "memory bandwidth was not measured, unless they were running": ranks > 1,
        "batches come in the same order; but samples that draw random numbers draw others than in torch": (
            its.schedule == "steal" or its.chunk_size is not None
        ),
    }
    return tuple(text for text, holds in notes.items() if holds)
