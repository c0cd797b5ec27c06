"""shmloader.tune(): measures how many workers, and which options, a dataset needs here.
It decides which options are varied, limits memory (a share of what is free), and refuses far workers.
"""

from __future__ import annotations

import contextlib
import numbers
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from shmloader.checks import off_the_ring
from shmloader.protocols.row_wise import is_row_wise
from shmloader.resume.samplers import within
from shmloader.system.cores import rank_here, ranks_here, share_of_cores
from shmloader.system.limits import available_memory

if TYPE_CHECKING:
    from shmloader.commands.tuning.result import Tuning

MOST_WORKERS = 64
SHARE_OF_MEMORY = 0.8  # of what is available now; the model and other programs need the rest
TOO_MANY_WORKERS = ".*suggested max number of worker.*"  # torch's warning, which tune itself makes unnecessary


def tune(
    dataset: Any,
    *,
    step_s: float | None = None,
    consumer: Callable[[Any], Any] | None = None,
    seconds: float = 60.0,
    memory_bytes: int | None = None,
    ranks: int | None = None,
    most_workers: int = MOST_WORKERS,
    progress: bool = True,
    **options: Any,
) -> Tuning:
    """Measure how many workers, and which `prefetch_factor`, `schedule` and `chunk_size`, a dataset needs here.

    It makes loaders, one after the other, and takes batches from each for some seconds.  It doubles the workers as long
    as that helps, then tries the other options, then measures again, in turns, what is about as good as the best.  The
    pick is the cheapest of these: the one with the fewest workers, then the fewest unusual options, then the least
    memory.  A setting that the memory does not hold is never measured or picked.

    Afterwards no process and no shared memory is left, also after Ctrl-C.  torch's global generator, the loader's and
    its samplers' are restored.

    Args:
        dataset: As for `DataLoader`; or a loader, ours or torch's, whose dataset, batches and other options are used.
        step_s: Seconds that your step takes for a batch; the consumer sleeps that long (default None: 0, which measures
            how quick the loader can be).
        consumer: Your own step instead, called with each batch.  Let it wait for the device.
        seconds: The time for all measurements together (default 60).  It can take longer by one batch, and by up to 5
            seconds in which workers end.
        memory_bytes: The most that the rings and workers of all ranks of this machine may take together (default None:
            80 % of what the machine, or the container, has available now).
        ranks: How many processes of this machine will have such a loader (default None: LOCAL_WORLD_SIZE, or 1).  Each
            gets its share of the memory and of the cores: meanwhile, this thread and the workers stay on one share.
        most_workers: The most workers to try, in one rank (default 64).
        progress: Whether to draw a progress bar, by tqdm, if that is installed and the output is a terminal.
        **options: Further options of `DataLoader`: batch_size, collate_fn and so on.  An option that you give is not
            varied.  `shuffle` is True by default.

    Returns:
        The table, the pick, and what was not measured; see `Tuning`.

    Raises:
        ValueError: An argument is out of its range.
        MemoryError: Not even one worker fits.
        RuntimeError: The loader would not ride the ring.
        Exception: What the dataset raises in the first measurement.

    Example:
        >>> found = shmloader.tune(dataset, batch_size=64, step_s=0.05)
        >>> print(found.line)
        shmloader.DataLoader(dataset, batch_size=64, num_workers=12)
    """
    if why := off_the_ring.why_not_here():
        raise RuntimeError(f"tune measures loaders that ride shmloader's ring: {why}")
    from shmloader.commands.tuning import measure, result, search  # here: some platforms lack the core, which they need

    _check(step_s, consumer, seconds, memory_bytes=memory_bytes, ranks=ranks, most_workers=most_workers, **options)
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
    fixed = {name: options.pop(name) for name in search.VARIED if options.get(name) is not None}
    began, ranks = time.monotonic(), ranks or ranks_here()
    budget = memory_bytes or int(available_memory() * SHARE_OF_MEMORY)
    can_steal = not is_stream and options.get("in_order", True)
    size = getattr(options.get("batch_sampler"), "batch_size", options.get("batch_size", 1))
    is_cut = can_steal and isinstance(size, int) and is_row_wise(options.get("collate_fn") or default_collate)
    consumes = consumer or (lambda batch: time.sleep(step_s) if step_s else None)

    def measured(setting: search.Setting, its_seconds: float) -> search.Sample:
        if bar is not None:
            bar.set_description(str(setting), refresh=False)
            bar.n = min(time.monotonic() - began, seconds)
            bar.refresh()
        return measures(setting, its_seconds)

    with share_of_cores(ranks, rank_here()) as cores, warnings.catch_warnings(), contextlib.ExitStack() as kept:
        warnings.filterwarnings("ignore", message=TOO_MANY_WORKERS)
        if (bar := _bar(progress, seconds)) is not None:
            kept.callback(bar.close)
        for generator in _drawn(options):
            kept.callback(generator.set_state, generator.get_state())
        measures = measure.Measure(dataset, options, consumes, ranks, max(1, budget // ranks), began + seconds)
        most, cut = fixed.get("num_workers", most_workers), size if is_cut else 0
        found = search.Search(measured, measures.weigh, budget, seconds, most, cut, can_steal, fixed)
        pick = found.run()
    notes, line = result.notes_of(found, pick, measures, cores, ranks, is_stream), result.line_of(options, pick)
    return result.Tuning(pick, tuple(found.rows.values()), notes, line, budget, time.monotonic() - began)


def _bar(wanted: bool, seconds: float) -> Any:
    """A progress bar over the seconds; None: there is none."""
    if wanted and sys.stderr.isatty():
        with contextlib.suppress(ImportError):
            from tqdm import tqdm

            return tqdm(total=seconds, leave=False, bar_format="{desc} {bar} {n:.0f}/{total:.0f} s")
    return None


def _check(step_s: float | None, consumer: Any, seconds: float, **given: Any) -> None:
    if step_s is not None and consumer is not None:
        raise ValueError("step_s and consumer were both given. Each states how long a step takes. Give one of them.")
    if step_s is not None and not (isinstance(step_s, numbers.Real) and 0 <= step_s <= threading.TIMEOUT_MAX):
        raise ValueError(f"step_s should be a number of seconds, 0 or more, but got step_s={step_s!r}.")
    if consumer is not None and not callable(consumer):
        raise ValueError(f"consumer should be callable with a batch, but got consumer={consumer!r}")
    if not (isinstance(seconds, numbers.Real) and 0 < seconds <= threading.TIMEOUT_MAX):
        raise ValueError(f"seconds should be positive and finite, but got seconds={seconds!r}. The default is 60.")
    for name in ("memory_bytes", "ranks", "most_workers", "num_workers", "prefetch_factor", "batch_size"):
        value = given.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1):
            raise ValueError(f"{name} should be a positive integer, but got {name}={value!r}")


def _drawn(options: dict[str, Any]) -> list[torch.Generator]:
    """The generators from which measurements draw: torch's own, for the seeds of workers, and those of the samplers."""
    samplers = [*within(options.get("sampler")), *within(options.get("batch_sampler"))]
    drawn = [torch.default_generator, options.get("generator"), *(getattr(one, "generator", None) for one in samplers)]
    return [one for one in drawn if isinstance(one, torch.Generator)]
