"""One measurement of tune(): a loader with one setting, and a consumer that is the user's or sleeps.
It decides which batches count after the warm-up, in which order samples are read, and when the time is over.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

# Imported here and not in a measurement: while NumPy loads this module, Cython drops exceptions, and Ctrl-C is lost.
from numpy.random import default_rng
from torch.utils.data import IterableDataset

from shmloader import off_the_ring
from shmloader.commands.errors import in_one_line
from shmloader.commands.tuning.memory import Memory
from shmloader.commands.tuning.setting import VARIED, Sample, Setting
from shmloader.dataloader import DataLoader
from shmloader.options import DEFAULTS

WARM = 0.4  # of a measurement's time at most: until the batches are used up that were made while workers started
LARGEST_ORDER = 1 << 20  # indices that are shuffled as a whole; beyond it, each index is drawn by itself
TOO_MANY_WORKERS = ".*suggested max number of worker.*"  # torch's warning, which tune itself makes unnecessary


class Measure:
    """Measures settings of one loader, on its dataset.

    All measurements share one order of samples, and each continues where the one before ended.  So none finds the files
    of another one in the page cache, unless the whole dataset was read.

    Args:
        dataset: As for DataLoader.
        options: Arguments of DataLoader that are not varied.
        consumer: Called with each batch.
        memory: Records the memory of each loader.
        first_budget: max_ring_bytes of the first measurement, when the size of a batch is not known.
        end: When all measurements must end, by the monotonic clock.  A measurement that runs then counts up to there.
    """

    def __init__(
        self,
        dataset: Any,
        options: dict[str, Any],
        consumer: Callable[[Any], Any],
        memory: Memory,
        first_budget: int,
        end: float,
    ) -> None:
        self._dataset, self._consumer, self._memory = dataset, consumer, memory
        self._options = endless(dataset, options)
        self._first_budget, self._end = first_budget, end

    def loader(self, setting: Setting) -> DataLoader[Any]:
        """A loader with this setting, which has not started anything.

        Raises:
            RuntimeError: It would not ride the ring.
        """
        options = {**self._options, **setting.options()}
        if not self._memory.knows_slots:
            options.setdefault("max_ring_bytes", self._first_budget)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=TOO_MANY_WORKERS)
            loader: DataLoader[Any] = DataLoader(self._dataset, **options)
        if why := off_the_ring.why_not(loader):
            raise RuntimeError(f"tune measures loaders that ride shmloader's ring. This one does not: {why}")
        return loader

    def __call__(self, setting: Setting, seconds: float) -> Sample:
        """Measure a setting for this many seconds, without its start.  A failure is part of the result.

        Raises:
            Exception: An error of the very first measurement, of the dataset for example.
        """
        first = not self._memory.knows_slots
        try:
            with self.loader(setting) as loader, warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=TOO_MANY_WORKERS)
                return self._of(loader, setting, seconds)
        except Exception as error:
            if first:
                raise
            return Sample(float("inf"), 0.0, 0, in_one_line(error))

    def _of(self, loader: DataLoader[Any], setting: Setting, seconds: float) -> Sample:
        batches = iter(loader)
        took = Took(setting.num_workers)
        limit = threading.Timer(max(0.1, self._end - time.monotonic()), _interrupt, (batches,))
        limit.daemon = True
        try:
            limit.start()
            for batch in batches:
                if not self._memory.knows_slots:
                    self._memory.note(batches)  # here, because a stream may end
                if took.is_over(seconds, loader.prefetch_factor or 1):
                    break
                self._consumer(batch)
                del batch  # a loop drops a batch when it has the next one, but this may be the last
                took.asks()
            else:
                took.ends(time.monotonic() < self._end)
        finally:
            limit.cancel()
            if limit.is_alive():  # if Ctrl-C came before it started, it ends as soon as it starts
                limit.join()
        self._memory.note(batches)
        return took.sample()


def _interrupt(batches: Any) -> None:
    """Have next() return, because a batch may take longer than the time that is left."""
    with contextlib.suppress(RuntimeError):  # the process has just ended
        batches.interrupt()


class Took:
    """The times at which batches came.

    Workers that are alike publish at about the same time, so batches come in bursts of `num_workers`.  Therefore whole
    bursts are left out at the start, and whole bursts are counted.
    """

    def __init__(self, burst: int) -> None:
        self._burst = burst
        self._came = 0  # batches in all
        self._left_out = 0
        self._counted = 0
        self._first = self._asked = 0.0
        self._waited = 0.0  # in next(), since the request for the first batch that counts
        self._from = 0.0  # when the last batch came that does not count
        self._ended = False  # the stream is over
        self._whole = (0, 0.0, 0.0)  # of whole bursts: batches, the time of the last one, and the waiting until then

    def asks(self) -> None:
        """The consumer has finished a batch, and asks for the next one."""
        self._asked = time.monotonic()

    def is_over(self, seconds: float, deep: int) -> bool:
        """Record that another batch has come.  Returns whether these are enough.

        Args:
            seconds: How long to measure.
            deep: How many bursts may have been made in advance.
        """
        now = time.monotonic()
        self._came += 1
        if self._came == 1:
            self._first = now
        passed = now - self._first
        if not self._counted and self._left_out <= deep * self._burst and passed <= seconds * WARM:
            self._left_out += 1
            self._from = now
            return False
        self._counted += 1
        self._waited += now - self._asked
        if self._counted % self._burst == 0 or passed > 2 * seconds:
            self._whole = self._counted, now, self._waited
            return passed >= seconds
        return False

    def ends(self, by_itself: bool) -> None:
        """No more batches come: the stream or the time is over."""
        self._ended = by_itself

    def sample(self) -> Sample:
        """The measurement."""
        batches, until, waited = self._whole
        if not batches or until <= self._from:
            why = f"only {self._came} batches came in the time allowed. Give tune more seconds"
            if self._ended:
                why = f"the stream ended after {self._came} batches, too few to measure. Use a longer one, or repeat it"
            return Sample(float("inf"), 0.0, 0, why)
        passed = until - self._from
        return Sample(passed / batches, min(1.0, waited / passed), batches)


def endless(dataset: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The options with a sampler that never ends, and that continues where it was when it is iterated again."""
    made = dict(options)
    if isinstance(dataset, IterableDataset):
        return made
    shuffle = made.pop("shuffle", True)
    made.pop("drop_last", None)  # no batch is the last
    sampler, batches, size = made.pop("sampler", None), made.pop("batch_sampler", None), made.pop("batch_size", 1)
    if batches is not None:
        return {**made, "batch_sampler": _Endless(_forever(batches), getattr(batches, "batch_size", None))}
    indices = _order(len(dataset), shuffle) if sampler is None else _forever(sampler)
    if size is None:
        return {**made, "batch_size": None, "sampler": _Endless(indices, None)}
    return {**made, "batch_sampler": _Endless(iter(lambda: list(itertools.islice(indices, size)), []), size)}


class _Endless:
    """A sampler that continues where it was when it is iterated again."""

    def __init__(self, places: Iterator[Any], batch_size: int | None) -> None:
        self._places = places
        self.batch_size = batch_size  # a loader computes from it how many chunks a batch has

    def __iter__(self) -> Iterator[Any]:
        return self._places


def _forever(sampler: Iterable[Any]) -> Iterator[Any]:
    while True:
        gave = False
        for each in sampler:
            gave = True
            yield each
        if not gave:
            raise ValueError(f"the sampler {type(sampler).__name__} is empty, so there is nothing to measure.")


def _order(length: int, shuffle: bool) -> Iterator[int]:
    """Indices below `length`, again and again."""
    if length <= 0:
        raise ValueError("the dataset is empty, so there is nothing to measure.")
    draws = default_rng(0)  # our own generator, so that the user's generators stay as they are
    while True:
        if not shuffle:
            yield from range(length)
        elif length <= LARGEST_ORDER:
            yield from draws.permutation(length).tolist()
        else:
            yield from draws.integers(length, size=LARGEST_ORDER).tolist()


def options_of(loader: Any, others: Collection[str] = ()) -> dict[str, Any]:
    """The options of a loader that exists, without those that are varied.

    Args:
        loader: Ours or torch's.
        others: Names of options that the caller gives itself, and that are left out here.
    """
    names = [
        *("collate_fn", "pin_memory", "pin_memory_device", "drop_last", "timeout", "worker_init_fn", "generator"),
        *("multiprocessing_context", "persistent_workers", "in_order"),
    ]
    if isinstance(loader, DataLoader):
        names += [name for name in DEFAULTS if name not in VARIED]
    options = {name: getattr(loader, name) for name in names}
    if isinstance(loader.dataset, IterableDataset):
        return {**options, "batch_size": loader.batch_size}
    if loader.batch_sampler is None:
        return {**options, "batch_size": None, "sampler": loader.sampler}
    if "batch_sampler" in others or "sampler" in others or "shuffle" in others:
        return options
    if "batch_size" in others:
        return {**options, "sampler": loader.sampler}
    return {**options, "batch_sampler": loader.batch_sampler}


def sleeper(step_s: float) -> Callable[[Any], None]:
    """A consumer that sleeps this many seconds for each batch."""
    return (lambda batch: time.sleep(step_s)) if step_s else (lambda batch: None)
