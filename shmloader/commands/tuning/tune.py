"""shmloader.tune(): measures how many workers, and which options, a dataset needs here.
It decides which options are varied, limits memory (a share of what is free), and refuses far workers.
"""

from __future__ import annotations

import contextlib
import numbers
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.data
from torch.utils.data import IterableDataset, default_collate

from shmloader import off_the_ring
from shmloader.commands.tuning.setting import VARIED, Setting
from shmloader.resume.seek import within
from shmloader.row_wise import is_row_wise
from shmloader.system.cores import rank_here, ranks_here, share_of_cores
from shmloader.system.limits import available_memory

if TYPE_CHECKING:
    from shmloader.commands.tuning.result import Tuning
    from shmloader.commands.tuning.search import Space

MOST_WORKERS = 64
SHARE_OF_MEMORY = 0.8  # of what is available now; the model and other programs need the rest


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
    from shmloader.commands.tuning.measure import Measure, options_of, sleeper  # here, because these need the core,
    from shmloader.commands.tuning.memory import Memory  # which some platforms do not have
    from shmloader.commands.tuning.notes import notes_of
    from shmloader.commands.tuning.result import Tuning, line_of
    from shmloader.commands.tuning.search import Search

    _check(step_s, consumer, seconds)
    _check_counts(memory_bytes=memory_bytes, ranks=ranks, most_workers=most_workers)
    _check_counts(**{name: options[name] for name in ("num_workers", "prefetch_factor", "batch_size") & options.keys()})
    if (options.get("far_workers") or getattr(dataset, "far_workers", None)) is not None:
        raise ValueError(
            "tune() varies the number of local workers, and does not measure far ones. Tune a loader without "
            "far_workers, and set num_workers to what tune() finds."
        )
    if isinstance(dataset, torch.utils.data.DataLoader):
        options = {**options_of(dataset, options), **options}
        dataset = dataset.dataset
    elif not isinstance(dataset, IterableDataset):
        options = {"batch_size": 1, "shuffle": True, **options}
    ranks = ranks or ranks_here()
    budget = memory_bytes or int(available_memory() * SHARE_OF_MEMORY)
    fixed = {name: options.pop(name) for name in VARIED if options.get(name) is not None}
    space = _space(dataset, options, fixed, most_workers)
    memory = Memory(ranks)
    began = time.monotonic()
    with share_of_cores(ranks, rank_here()) as cores, _generators_kept(options), _bar(progress, seconds) as tell:
        consumes = consumer or sleeper(step_s or 0.0)
        measure = Measure(dataset, options, consumes, memory, max(1, budget // ranks), began + seconds)
        search = Search(
            space, measure, lambda setting: memory.weigh(setting, measure.loader), budget, seconds, tell=tell
        )
        pick = search.run()
    return Tuning(
        pick,
        tuple(search.rows.values()),
        tuple(notes_of(search, pick, memory, budget, cores, space.most_workers, isinstance(dataset, IterableDataset))),
        line_of(options, pick),
        budget,
        time.monotonic() - began,
    )


def _check(step_s: float | None, consumer: Any, seconds: float) -> None:
    if step_s is not None and consumer is not None:
        raise ValueError("step_s and consumer were both given. Each states how long a step takes. Give one of them.")
    if step_s is not None and not (isinstance(step_s, numbers.Real) and 0 <= step_s <= threading.TIMEOUT_MAX):
        raise ValueError(f"step_s should be a number of seconds, 0 or more, but got step_s={step_s!r}.")
    if consumer is not None and not callable(consumer):
        raise ValueError(f"consumer should be callable with a batch, but got consumer={consumer!r}")
    if not (isinstance(seconds, numbers.Real) and 0 < seconds <= threading.TIMEOUT_MAX):
        raise ValueError(f"seconds should be positive and finite, but got seconds={seconds!r}. The default is 60.")


def _check_counts(**given: Any) -> None:
    for name, value in given.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1):
            raise ValueError(f"{name} should be a positive integer, but got {name}={value!r}")


def _space(dataset: Any, options: dict[str, Any], fixed: dict[str, Any], most_workers: int) -> Space:
    """What can be varied for this dataset."""
    from shmloader.commands.tuning.search import Space

    is_map = not isinstance(dataset, IterableDataset) and options.get("in_order", True)
    cut = is_map and is_row_wise(options.get("collate_fn") or default_collate)
    batches: Any = options.get("batch_sampler")
    size: Any = options.get("batch_size", 1) if batches is None else getattr(batches, "batch_size", None)
    return Space(fixed.get("num_workers", most_workers), size if cut and isinstance(size, int) else 0, is_map, fixed)


@contextlib.contextmanager
def _generators_kept(options: dict[str, Any]) -> Iterator[None]:
    """Restore torch's generator, from which each iterator draws its seed, and those of the samplers."""
    drawn = [torch.default_generator, options.get("generator")]
    for name in ("sampler", "batch_sampler"):
        drawn += [getattr(sampler, "generator", None) for sampler in within(options.get(name))]
    before = [(one, one.get_state()) for one in drawn if isinstance(one, torch.Generator)]
    try:
        yield
    finally:
        for one, state in before:
            one.set_state(state)


@contextlib.contextmanager
def _bar(wanted: bool, seconds: float) -> Iterator[Callable[[Setting], None]]:
    """A progress bar over the seconds; yields a function to call with each setting before it is measured."""
    if not wanted or not sys.stderr.isatty():
        yield lambda setting: None
        return
    try:
        from tqdm import tqdm
    except ImportError:
        print(f"measuring for up to {seconds:g} s ...", file=sys.stderr)
        yield lambda setting: None
        return
    began = time.monotonic()
    with tqdm(total=seconds, leave=False, bar_format="{desc} {bar} {n:.0f}/{total:.0f} s") as bar:

        def tell(setting: Setting) -> None:
            bar.set_description(", ".join(f"{name}={value}" for name, value in setting.options().items()), False)
            bar.n = min(time.monotonic() - began, seconds)
            bar.refresh()

        yield tell
