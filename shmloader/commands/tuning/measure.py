"""One measurement of tune(): which batches count, in which order samples are read, and what memory a setting takes."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import cycle
from typing import Any, NamedTuple

import torch.utils.data
from torch.utils.data import BatchSampler, IterableDataset

from shmloader.checks import requirements
from shmloader.dataloader import DataLoader
from shmloader.device.accelerator import accelerator_of
from shmloader.device.pinning import IN_TRANSIT
from shmloader.options import Options
from shmloader.ring.growth import FIRST_COMMIT
from shmloader.system.processes import own_bytes
from shmloader.trainer.schedule import FURTHER_BYTES, schedule_of

WARM = 0.4  # of a measurement's time at most: until the batches are used up that were made while workers started
OF_SAMPLES = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last")


class Setting(NamedTuple):
    """The options of a loader that `tune` varies, with their values."""

    num_workers: int
    prefetch_factor: int = 2
    schedule: str = "round_robin"
    chunk_size: int | None = None

    def options(self) -> dict[str, Any]:
        """Arguments of the loader, without those that have their defaults."""
        return {name: value for name, value in self._asdict().items() if value != self._field_defaults.get(name)}

    def __str__(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.options().items())


class Sample(NamedTuple):
    """One measurement of a setting."""

    batches_per_s: float = 0.0
    input_wait: float = 0.0  # the share of the time that the consumer spent in next(), 0 to 1
    batches: int = 0  # how many were measured
    failure: str = ""  # why nothing could be measured


@dataclass
class Measure:
    """Measures settings of one loader, on its dataset.

    All measurements share one order of samples, and each continues where the one before ended.  So none finds the files
    of another one in the page cache, unless the whole dataset was read.
    """

    dataset: Any
    options: dict[str, Any]  # arguments of DataLoader that are not varied: see endless()
    consumer: Callable[[Any], Any]  # called with each batch
    ranks: int  # how many processes of this machine have such a loader
    end: float  # when all measurements must end, by the monotonic clock
    slot_bytes: int = 0  # of the largest so far
    worker_bytes: int = 0  # of the largest so far, without shared memory

    def loader(self, setting: Setting) -> DataLoader[Any]:
        """A loader with this setting, which has not started anything."""
        loader: DataLoader[Any] = DataLoader(self.dataset, **self.options, **setting.options())
        if why := requirements.why_not(loader):
            raise RuntimeError(f"tune measures loaders that ride shmloader's ring. This one does not: {why}")
        return loader

    def __call__(self, setting: Setting, seconds: float) -> Sample:
        """Measure a setting for so many seconds, without its start.  An error is part of the result after the first.

        Workers that are alike publish at about the same time, so batches come in bursts of `num_workers`.  So whole
        bursts are left out at the start, as many as may have been made in advance, and whole bursts are counted.
        """
        loader, is_first = self.loader(setting), not self.slot_bytes
        loader.timeout = loader.timeout or max(0.1, self.end - time.monotonic())  # a batch may take longer than that
        burst, count, left_out, first = setting.num_workers, 0, 0, 0.0
        too_few = "the stream or the sampler ended after {} batches, too few to measure. Use a longer one, or repeat it"
        try:
            with loader:
                for batch in (batches := iter(loader)):
                    now, count = time.monotonic(), count + 1
                    passed = now - (first := first or now)
                    if not self.slot_bytes:
                        self._note(batches)  # here, because a stream may end
                    if count <= burst * (loader.prefetch_factor or 1) + 1 and passed <= WARM * seconds:
                        left_out = count
                        loader.stats("last")  # counts from here
                    elif passed >= seconds and ((count - left_out) % burst == 0 or passed >= 2 * seconds):
                        break
                    self.consumer(batch)
                    del batch  # a loop drops a batch when it has the next one, but this may be the last
                self._note(batches)
        except Exception as error:
            too_few = "only {} batches came in the time allowed. Give tune more seconds"
            if time.monotonic() < self.end:
                if is_first:
                    raise
                last = str(error).strip().splitlines()[-1:]  # those before it are the traceback of a worker
                return Sample(failure=": ".join([type(error).__name__, *last]))
        stats = loader.stats("last")
        failure = "" if stats.batches else too_few.format(count)
        return Sample(stats.batches_per_s, stats.input_wait or 0.0, stats.batches, failure)

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
        return self.ranks * (slots * max(self.slot_bytes, FIRST_COMMIT) + setting.num_workers * self.worker_bytes)


def endless(base: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a loader whose samplers are the base's, but go on where they were, and never end."""
    if isinstance(base.dataset, IterableDataset):
        return options
    others: dict[str, Any] = {name: value for name, value in options.items() if name not in OF_SAMPLES}
    if (batches := base.batch_sampler) is None:
        return {**others, "batch_size": None, "sampler": cycle(base.sampler)}
    if type(batches) is BatchSampler:  # batches are cut from the endless order, so none is smaller
        return {**others, "batch_sampler": BatchSampler(cycle(batches.sampler), batches.batch_size, True)}
    return {**others, "batch_sampler": cycle(batches)}


def options_of(loader: Any, others: Collection[str] = ()) -> dict[str, Any]:
    """The options of a loader, ours or torch's, without those that are varied, and without `others`' samplers."""
    names = inspect.signature(torch.utils.data.DataLoader.__init__).parameters.keys() - {"self", "dataset", *OF_SAMPLES}
    if isinstance(loader.dataset, IterableDataset):
        names |= {"batch_size", "drop_last"}
    elif loader.batch_sampler is None:
        names |= {"batch_size", "sampler"}
    elif not {"batch_sampler", "sampler", "shuffle"} & set(others):
        names.add("sampler" if "batch_size" in others else "batch_sampler")
    found = {name: getattr(loader, name) for name in sorted(names)}
    found |= Options.of(loader).as_arguments() if isinstance(loader, DataLoader) else {}
    return {name: value for name, value in found.items() if name not in Setting._fields}
