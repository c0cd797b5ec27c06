"""shmloader.tune(): measures how many workers, and which options, a dataset needs here.
It decides which options are varied, limits memory (a share of what is free), refuses far workers, and has the result.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

import shmloader
from shmloader.checks import requirements
from shmloader.protocols.row_wise import is_row_wise
from shmloader.resume.samplers import within
from shmloader.system.limits import available_memory, rank_here, ranks_here, share_of_cores

if TYPE_CHECKING:  # off Linux there is no core, which they need
    from shmloader.commands.tuning.measure import Sample, Setting
    from shmloader.commands.tuning.search import Row, Search

HEADING = "workers  prefetch     schedule  chunk  batches/s  input wait     memory  runs"
PICK = "  <- pick"  # ends the line of the pick in the table
SHARE_OF_MEMORY = 0.8  # of what is available now; the model and other programs need the rest
TOO_MANY_WORKERS = ".*suggested max number of worker.*"  # torch's warning, which tune itself makes unnecessary


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
        table = [f"{row}{PICK if row is self.pick else ''}" for row in sorted(self.rows, key=lambda row: row.cost)]
        pick = f"pick: {self.pick.rate} batches/s, {self.pick.input_wait:.0%} of the time is waiting for input"
        return "\n".join([HEADING, *table, "", pick, *(f"note: {note}" for note in self.notes), "", self.line])


def tune(
    dataset: Any,
    *,
    step_s: float | None = None,
    consumer: Callable[[Any], Any] | None = None,
    seconds: float = 60.0,
    memory_bytes: int | None = None,
    ranks: int | None = None,
    most_workers: int = 64,
    progress: bool = True,
    **options: Any,
) -> Tuning:
    """Measure how many workers, and which `prefetch_factor`, `schedule` and `chunk_size`, a dataset needs here.

    It makes loaders, one after the other, and takes batches from each for some seconds.  The pick is the one with the
    fewest workers of those that are about as quick as the best; docs/tune.md says how it searches.  Afterwards no
    process and no shared memory is left, also after Ctrl-C, and the generators that it drew from are restored.

    Args:
        dataset: As for `DataLoader`; or a loader, ours or torch's, whose dataset, batches and other options are used.
        step_s: Seconds that your step takes for a batch (default None: 0, which measures how quick the loader can be).
        consumer: Your own step instead, called with each batch.  Let it wait for the device.
        seconds: The time for all measurements together (default 60); a last batch and the workers' end may exceed it.
        memory_bytes: The most that the rings and workers of all ranks of this machine may take together (default None:
            80 % of what the machine, or the container, has available now).
        ranks: How many processes of this machine will have such a loader (default None: LOCAL_WORLD_SIZE, or 1).  Each
            gets its share of the memory and of the cores: meanwhile, this thread and the workers stay on one share.
        most_workers: The most workers to try, in one rank (default 64).
        progress: Whether to say what is being measured, if stderr is a terminal.
        **options: Further options of `DataLoader`: batch_size, collate_fn and so on.  An option that you give is not
            varied.  `shuffle` is True by default.

    Raises:
        ValueError: An argument is out of its range.
        MemoryError: Not even one worker fits.
        RuntimeError: The loader would not ride the ring.
        Exception: What the dataset raises in the first measurement.

    Example:
        >>> found = shmloader.tune(dataset, batch_size=64, step_s=0.05)
        >>> print(found.line)
        shmloader.DataLoader(dataset, batch_size=64, num_workers=12)
        >>> loader = shmloader.DataLoader(dataset, batch_size=64, **found.options)
    """
    if why := requirements.why_not_here():
        raise RuntimeError(f"tune measures loaders that ride shmloader's ring: {why}")
    from shmloader.commands.tuning import measure, search

    if step_s is not None and consumer is not None:
        raise ValueError("step_s and consumer were both given. Each states how long a step takes. Give one of them.")
    positive = {"seconds": seconds, "memory_bytes": memory_bytes, "ranks": ranks, "most_workers": most_workers}
    for name, value in positive.items():
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{name} should be positive and finite, but got {name}={value!r}.")
    if (options.get("far_workers") or getattr(dataset, "far_workers", None)) is not None:
        raise ValueError(
            "tune() varies the number of local workers, and does not measure far ones. Tune a loader without "
            "far_workers, and set num_workers to what tune() finds."
        )
    is_stream = isinstance(getattr(dataset, "dataset", dataset), IterableDataset)
    if isinstance(dataset, DataLoader):
        options = {**measure.options_of(dataset, options), **options}
        dataset = dataset.dataset
    elif not is_stream and not {"sampler", "batch_sampler"} & options.keys():
        if not len(dataset):
            raise ValueError("the dataset is empty, so there is nothing to measure.")
        options = {"batch_size": 1, "shuffle": True, **options}
    fixed = {name: options.pop(name) for name in measure.Setting._fields if options.get(name) is not None}
    base: Any = shmloader.DataLoader(dataset, num_workers=1, **options)
    size = 0
    if is_stream or not base.in_order:
        fixed = {"schedule": "round_robin", **fixed}
    elif is_row_wise(base.collate_fn):
        size = getattr(base.batch_sampler, "batch_size", None) or 0
    began, ranks = time.monotonic(), ranks or ranks_here()
    budget = memory_bytes or int(available_memory() * SHARE_OF_MEMORY)
    consumes = consumer or (lambda batch: time.sleep(step_s) if step_s else None)
    shows = progress and sys.stderr.isatty()

    def measured(setting: Setting, its_seconds: float) -> Sample:
        if shows:  # over what was there, and erase the rest of the line
            passed = f"{time.monotonic() - began:.0f}/{seconds:.0f} s"
            print(f"\r{passed}  {setting}", end="\033[K", file=sys.stderr, flush=True)
        return measures(setting, its_seconds)

    with share_of_cores(ranks, rank_here()), warnings.catch_warnings(), contextlib.ExitStack() as kept:
        warnings.filterwarnings("ignore", message=TOO_MANY_WORKERS)
        owners = [base, *within(base.sampler), *within(base.batch_sampler)]
        own = [getattr(owner, "generator", None) for owner in owners]
        for generator in [torch.default_generator, *(each for each in own if isinstance(each, torch.Generator))]:
            kept.callback(generator.set_state, generator.get_state())
        if shows:
            kept.callback(print, "\r\033[K", end="", file=sys.stderr, flush=True)
        measures = measure.Measure(dataset, measure.endless(base, options), consumes, ranks, began + seconds)
        most = fixed.get("num_workers", most_workers)
        found = search.Search(measured, measures.weigh, budget, seconds, most, size, fixed)
        pick = found.run()
    rows, notes = tuple(found.rows.values()), notes_of(found, pick, is_stream)
    return Tuning(pick, rows, notes, line_of(options, pick), budget, time.monotonic() - began)


def line_of(options: dict[str, Any], pick: Row) -> str:
    """The loader to paste, with the user's other options.  Functions and objects appear by the option's own name."""
    usual = {name: each.default for name, each in inspect.signature(shmloader.DataLoader).parameters.items()}
    given = {name: value for name, value in options.items() if value not in (usual[name], default_collate)}
    plain = (bool, int, float, str, type(None))
    words = [f"{name}={value!r}" if isinstance(value, plain) else f"{name}={name}" for name, value in given.items()]
    return f"shmloader.DataLoader(dataset, {', '.join([*words, str(pick.setting)])})"


def notes_of(search: Search, pick: Row, is_stream: bool) -> tuple[str, ...]:
    """Why the search ended, and what was not measured: sentences, the most important first."""
    from shmloader.ring.growth import in_units

    its, heavy, budget = pick.setting, list(dict.fromkeys(search.too_heavy)), in_units(search.budget)
    example = f"{heavy[0]} needs {in_units(search.weigh(heavy[0]))}" if heavy else ""
    notes = {
        f"the pick takes {in_units(pick.memory_bytes)}, more than the budget of {budget}: the workers' memory grew "
        "while they were measured, and no setting takes less": pick.memory_bytes > search.budget,
        "the stream must give each worker its own part, by get_worker_info(); otherwise every worker reads all "
        "samples, and they repeat": is_stream and its.num_workers > 1,
        "the consumer takes the time, so no loader makes this quicker": pick.input_wait < 0.01,
        "no more workers were allowed (most_workers), and they may help": its.num_workers >= search.most_workers > 1,
        f"{len(heavy)} settings were not measured, because the memory is {budget}, and for example {example}": heavy,
        f"there was no time for {', '.join(map(str, search.untried))}. Give tune more seconds": search.untried,
        f"measurements of the pick differ by {pick.spread:.0%}: other things ran, or samples do": pick.spread > 0.15,
        "batches come in the same order; but samples that draw random numbers draw others than in torch": (
            its.schedule == "steal" or its.chunk_size is not None
        ),
    }
    return tuple(text for text, holds in notes.items() if holds)
