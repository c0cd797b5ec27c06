"""One measurement of tune(): which batches count, in which order samples are read, and what memory a setting takes."""

from __future__ import annotations

import bisect
import contextlib
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

from torch.utils.data import BatchSampler, IterableDataset

from shmloader.checks import off_the_ring
from shmloader.commands.tuning.search import VARIED, Sample, Setting
from shmloader.dataloader import DataLoader
from shmloader.device.accelerator import accelerator_of
from shmloader.device.pinning import IN_TRANSIT
from shmloader.options import Options
from shmloader.ring.geometry import FIRST_COMMIT
from shmloader.system.processes import own_bytes
from shmloader.trainer.schedule import FURTHER_BYTES, schedule_of

WARM = 0.4  # of a measurement's time at most: until the batches are used up that were made while workers started
INFINITE = float("inf")


class Measure:
    """Measures settings of one loader, on its dataset.

    All measurements share one order of samples, and each continues where the one before ended.  So none finds the files
    of another one in the page cache, unless the whole dataset was read.

    Args:
        dataset: As for DataLoader.
        options: Arguments of DataLoader that are not varied.
        consumer: Called with each batch.
        ranks: How many processes of this machine have such a loader.
        budget: max_ring_bytes of the first measurement, when the size of a batch is not known.
        end: When all measurements must end, by the monotonic clock.
    """

    def __init__(
        self, dataset: Any, options: dict[str, Any], consumer: Callable[[Any], Any], ranks: int, budget: int, end: float
    ) -> None:
        self._dataset, self._options, self._consumer = dataset, endless(dataset, options), consumer
        self._ranks, self._budget, self._end = ranks, budget, end
        self.slot_bytes = self.worker_bytes = 0  # of the largest so far; of a worker without shared memory

    def loader(self, setting: Setting) -> DataLoader[Any]:
        """A loader with this setting, which has not started anything."""
        options = {**self._options, **setting.options()}
        if not self.slot_bytes:
            options.setdefault("max_ring_bytes", self._budget)
        loader: DataLoader[Any] = DataLoader(self._dataset, **options)
        if why := off_the_ring.why_not(loader):
            raise RuntimeError(f"tune measures loaders that ride shmloader's ring. This one does not: {why}")
        return loader

    def __call__(self, setting: Setting, seconds: float) -> Sample:
        """Measure a setting for so many seconds, without its start.  An error is part of the result after the first."""
        loader, is_first = self.loader(setting), not self.slot_bytes
        loader.timeout = loader.timeout or max(0.1, self._end - time.monotonic())  # a batch may take longer than that
        took = Took(setting.num_workers, loader.prefetch_factor or 1, seconds)
        try:
            with loader:
                asked, batches = time.monotonic(), iter(loader)
                for batch in batches:
                    if not self.slot_bytes:
                        self._note(batches)  # here, because a stream may end
                    if took.is_over(asked):
                        break
                    self._consumer(batch)
                    del batch  # a loop drops a batch when it has the next one, but this may be the last
                    asked = time.monotonic()
                self._note(batches)
        except Exception as error:
            if is_first and time.monotonic() < self._end:
                raise
            if time.monotonic() < self._end:
                last = str(error).strip().splitlines()[-1:]  # those before it are the traceback of a worker
                return Sample(INFINITE, 0.0, 0, ": ".join([type(error).__name__, *last]))
            return took.sample("only {} batches came in the time allowed. Give tune more seconds")
        return took.sample("the stream ended after {} batches, too few to measure. Use a longer one, or repeat it")

    def _note(self, batches: Any) -> None:
        """Record what an iterator and its workers take now."""
        with contextlib.suppress(AttributeError, RuntimeError):  # it has ended
            ring = batches._ring
            self.slot_bytes = max(self.slot_bytes, *(ring.committed(slot) for slot in range(ring.payloads)))
        for worker in list(getattr(batches, "_workers", ())):
            self.worker_bytes = max(self.worker_bytes, own_bytes(worker.pid))

    def weigh(self, setting: Setting) -> int:
        """Bytes that a setting takes in all ranks: workers, and slots (see _Further in trainer/schedule.py)."""
        loader = self.loader(setting)
        options = Options.of(loader)
        size, slots = schedule_of(loader, options).size, options.spare_slots
        if slots and accelerator_of(loader, options) is not None:
            slots += IN_TRANSIT
        slots += min(max(size.at_first, FURTHER_BYTES // max(1, self.slot_bytes)), size.batches)
        return self._ranks * (slots * max(self.slot_bytes, FIRST_COMMIT) + setting.num_workers * self.worker_bytes)


class Took:
    """The times at which batches came.

    Workers that are alike publish at about the same time, so batches come in bursts of `num_workers`.  Therefore whole
    bursts are left out at the start, as many as may have been made in advance, and whole bursts are counted.
    """

    def __init__(self, burst: int, deep: int, seconds: float) -> None:
        self._burst, self._early, self._seconds = burst, deep * burst + 1, seconds
        self._came: list[float] = []
        self._waited: list[float] = []  # seconds in next() before each batch

    def is_over(self, asked: float) -> bool:
        """Record that a batch has come, which was asked for at this time.  Returns whether these are enough."""
        self._came.append(time.monotonic())
        self._waited.append(self._came[-1] - asked)
        first, end = self._counted()
        return self._came[-1] - self._came[0] >= self._seconds and first < end == len(self._came)

    def _counted(self) -> tuple[int, int]:
        """The first batch that counts, and the one after the last."""
        warm_until, late = self._came[0] + self._seconds * WARM, self._came[0] + 2 * self._seconds
        first = min(self._early, bisect.bisect_right(self._came, warm_until))
        burst = self._burst if self._came[-1] <= late else 1
        return first, first + (len(self._came) - first) // burst * burst

    def sample(self, too_few: str) -> Sample:
        """The measurement; a failure if too few batches came."""
        first, end = self._counted() if self._came else (0, 0)
        passed = self._came[end - 1] - self._came[first - 1] if first < end else 0.0
        if not passed:
            return Sample(INFINITE, 0.0, 0, too_few.format(len(self._came)))
        return Sample(passed / (end - first), min(1.0, sum(self._waited[first:end]) / passed), end - first)


class Endless:
    """A sampler that starts again where it ends, and that continues where it was when it is iterated again."""

    def __init__(self, sampler: Any) -> None:
        self.batch_size = getattr(sampler, "batch_size", None)  # a loader computes from it how many chunks a batch has
        self._order = self._forever(sampler)

    def __iter__(self) -> Iterator[Any]:
        return self._order

    def _forever(self, sampler: Any) -> Iterator[Any]:
        gave = True
        while gave:
            gave = False
            for each in sampler:
                gave = True
                yield each
        raise ValueError(f"the sampler {type(sampler).__name__} is empty, so there is nothing to measure.")


def endless(dataset: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a loader whose samplers never end.  torch's own loader decides which samplers these are."""
    if isinstance(dataset, IterableDataset):
        return options
    made: DataLoader[Any] = DataLoader(dataset, num_workers=1, **options)
    own = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last")
    others = {name: value for name, value in options.items() if name not in own}
    if (batches := made.batch_sampler) is None:
        return {**others, "batch_size": None, "sampler": Endless(made.sampler)}
    if type(batches) is BatchSampler:  # batches are cut from the endless order, so none is smaller
        return {**others, "batch_sampler": BatchSampler(Endless(batches.sampler), batches.batch_size, True)}
    return {**others, "batch_sampler": Endless(batches)}


def options_of(loader: Any, others: Collection[str] = ()) -> dict[str, Any]:
    """The options of a loader, ours or torch's, without those that are varied, and without `others`' samplers."""
    names = ["collate_fn", "pin_memory", "pin_memory_device", "timeout", "worker_init_fn", "generator", "in_order"]
    names += ["multiprocessing_context", "persistent_workers"]
    if isinstance(loader.dataset, IterableDataset):
        names += ["batch_size", "drop_last"]
    elif loader.batch_sampler is None:
        names += ["batch_size", "sampler"]
    elif not {"batch_sampler", "sampler", "shuffle"} & set(others):
        names.append("sampler" if "batch_size" in others else "batch_sampler")
    torchs = {name: getattr(loader, name) for name in names}
    if not isinstance(loader, DataLoader):
        return torchs
    ours = Options.of(loader).as_arguments()
    return torchs | {name: value for name, value in ours.items() if name not in VARIED}
