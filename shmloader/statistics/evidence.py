"""The evidence for a verdict: the measurements, the loader's settings, and the machine.
It computes how busy or idle workers are, which one is the slowest, and how many workers or cores would feed the loop.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import torch.distributed
from torch.utils.data import IterableDataset

from shmloader.far_workers import local_workers
from shmloader.options import Options
from shmloader.protocols.row_wise import is_row_wise
from shmloader.statistics.account import wants_detail
from shmloader.statistics.stats import Stats, WorkerStats

if TYPE_CHECKING:
    from shmloader.core.figures import Taken

DELAYED = 0.25  # the share of its work that a worker waits for a core: above it, cores are short
BLOCKS = 8  # parts into which the last batches are divided, to see how much the share of waiting varies


@dataclass(frozen=True)
class Settings:
    """The settings of a loader.

    Attributes:
        num_workers, prefetch_factor, spare_slots, schedule, chunk_size, persistent_workers: Options.
        device: Where batches are delivered; None: on the CPU.
        dataset: Its class's name.
        is_stream: Whether it is an IterableDataset.
        in_order: Whether batches come in order.
        can_be_cut: Whether a batch can be made of chunks.
        drop_last: Whether a stream's last batch is dropped if it is not full.
        detail: Whether workers sample their stacks.
        far: How many of the workers are far ones.
    """

    num_workers: int = 0
    prefetch_factor: int = 2
    spare_slots: int = 2
    schedule: str = "round_robin"
    chunk_size: int | None = None
    persistent_workers: bool = False
    device: str | None = None
    dataset: str = "Dataset"
    is_stream: bool = False
    in_order: bool = True
    can_be_cut: bool = True
    drop_last: bool = False
    detail: bool = False
    far: int = 0


@dataclass(frozen=True)
class Evidence:
    """Everything from which a verdict follows.

    Attributes:
        stats: The measurements.
        settings: The loader's settings.
        cores: How many cores this process and its workers can use at once.
        shares: The share of waiting in each of the last BLOCKS of batches; empty if it is not known.
        ranks: How many seconds each rank waits for a batch; empty if the other ranks were not asked.
        rank: This rank's index in `ranks`.
        memory_bytes: How much more memory this rank can get.
        without_batch: The workers whose streams gave no batch in a whole epoch.
    """

    stats: Stats
    settings: Settings
    cores: float = 1.0
    shares: Sequence[float] = ()
    ranks: Sequence[float] = ()
    rank: int = 0
    memory_bytes: float = math.inf
    without_batch: Sequence[int] = ()

    # ----------------------------------------------------------------------------------------------- the loop

    @property
    def wait_s(self) -> float:
        """Seconds that next() took for a batch, without the workers' first batches of an epoch."""
        first = self.stats.first_wait.count * max(1, self.settings.num_workers)
        count = max(1, self.stats.wait.count - first)
        return max(0.0, self.stats.wait.total_s - self.stats.starting_s) / count

    @property
    def step_s(self) -> float:
        """Seconds of the loop's own work for a batch."""
        return self.stats.step.mean_s

    @property
    def steady_share(self) -> float:
        """The share of waiting, without the workers' first batches of an epoch."""
        return self.wait_s / (self.wait_s + self.step_s) if self.wait_s + self.step_s else 0.0

    @property
    def first_share(self) -> float:
        """The share of all waiting that was for the workers' first batches of an epoch."""
        return self.stats.starting_s / self.stats.wait.total_s if self.stats.wait.total_s else 0.0

    @property
    def share(self) -> float | None:
        """The share of waiting that the verdict judges.  With one epoch, the start is left out: it is not typical."""
        return self.steady_share if self.stats.first_wait.count == 1 else self.stats.input_wait

    # -------------------------------------------------------------------------------------------- the workers

    @property
    def workers(self) -> Sequence[WorkerStats]:
        """The workers that have made a batch.  A worker counts a batch before its time, so the time may still be 0."""
        return [worker for worker in self.stats.workers or () if worker.published and worker.busy_s]

    def workers_s(self, name: str) -> float:
        """The sum of a field over the workers."""
        return float(sum(getattr(worker, name) for worker in self.workers))

    @property
    def work_s(self) -> float:
        """How many seconds a worker needs for a batch."""
        batches = self.stats.taken_batches or 0
        return self.workers_s("busy_s") / batches if batches else 0.0

    @property
    def busy_share(self) -> float:
        """The share of their time that workers worked, between the first and the last batch of an epoch."""
        busy = self.workers_s("busy_s")
        rest = self.workers_s("idle_s") + self.workers_s("slot_wait_s")
        return busy / (busy + rest) if busy else 0.0

    @property
    def idle_share(self) -> float:
        """The share of their time that workers had no work while the trainer waited for another worker's batch."""
        busy, idle = self.workers_s("busy_s"), self.workers_s("idle_s")
        return idle / (busy + idle + self.workers_s("slot_wait_s")) if busy else 0.0

    def _of_busy(self, name: str) -> float | None:
        known = [(worker.busy_s, getattr(worker, name)) for worker in self.workers]
        known = [(busy, share) for busy, share in known if share is not None]
        busy = sum(busy for busy, _ in known)
        return sum(busy * share for busy, share in known) / busy if busy else None

    @property
    def cpu_share(self) -> float | None:
        """The share of its work in which a worker ran on a core."""
        return self._of_busy("cpu_share")

    @property
    def delayed_share(self) -> float:
        """The share of its work in which the worker could have run, but had no core."""
        return min(0.95, self._of_busy("delayed_share") or 0.0)

    @property
    def runs_share(self) -> float:
        """The share of its work that a worker would run on a core, if a core were always free for it."""
        return min(1.0, (self.cpu_share or 0.0) / (1 - self.delayed_share))

    @property
    def collate_share(self) -> float:
        """The share of its work that is collating."""
        busy = self.workers_s("busy_s")
        return self.workers_s("collate_s") / busy if busy else 0.0

    @property
    def straggler(self) -> tuple[WorkerStats, float] | None:
        """The slowest worker, and how many times longer than the others' median its batches take."""
        workers = self.workers
        if len(workers) < 2:
            return None
        each = {worker.worker: self.each_s(worker) for worker in workers}
        slowest = max(workers, key=lambda worker: each[worker.worker])
        others = median(time for number, time in each.items() if number != slowest.worker)
        return (slowest, each[slowest.worker] / others) if others else None

    @staticmethod
    def each_s(worker: WorkerStats) -> float:
        """This worker's time for a batch, without its waits for a core, because other processes may have that core."""
        return worker.busy_s * (1 - min(0.9, worker.delayed_share or 0.0)) / worker.published

    # ------------------------------------------------------------------------ the effect of more or fewer workers

    @property
    def got_cores(self) -> float:
        """How many cores the workers had: all that there are, or fewer if workers had to wait for a core."""
        spent = self.stats.wait.total_s + self.stats.step.total_s
        if self.delayed_share < DELAYED or not spent:
            return self.cores
        return min(self.cores, max(0.1, self.workers_s("busy_s") * (self.cpu_share or 0.0) / spent))

    def rate(self, workers: int) -> float:
        """Batches a second that this number of workers would give this loop, computed from the measurements.

        The number of cores limits computing, but not sleeping or waiting for a disk.  A worker's waits for a core do
        not count as work, because fewer workers would wait less.
        """
        work = self.work_s * (1 - self.delayed_share)
        if not work:
            return 0.0
        rate = workers / work
        if on_core := self.work_s * (self.cpu_share or 0.0):
            rate = min(rate, self.got_cores / on_core)
        return min(rate, 1 / self.step_s) if self.step_s else rate

    def times_faster(self, times: float) -> float:
        """The factor by which this loop speeds up if the loader gives batches this many times as fast."""
        return min(times, (self.wait_s + self.step_s) / self.step_s) if self.step_s else times

    @property
    def needed_workers(self) -> int:
        """How many workers would feed this loop, if the machine had enough cores."""
        if not self.step_s:
            return self.settings.num_workers
        return math.ceil(self.work_s * (1 - self.delayed_share) / self.step_s * 1.05)

    @property
    def held_workers(self) -> float:
        """How many workers the memory has room for: the present ones, and those whose batches fit into the rest."""
        each = self.settings.prefetch_factor * (self.stats.batch_bytes or 0.0)
        return self.settings.num_workers + (self.memory_bytes // each if each else math.inf)

    @property
    def needed_cores(self) -> float:
        """How many cores needed_workers would keep busy."""
        if not self.step_s:
            return self.cores
        return self.work_s * (self.cpu_share or 0.0) / self.step_s


def settings_of(loader: Any) -> Settings:
    """The settings of a loader."""
    options = Options.of(loader)
    return Settings(
        num_workers=loader.num_workers,
        prefetch_factor=loader.prefetch_factor or 2,
        spare_slots=options.spare_slots,
        schedule=options.schedule,
        chunk_size=options.chunk_size,
        persistent_workers=loader.persistent_workers,
        device=None if options.device is None else str(options.device),
        dataset=type(loader.dataset).__name__,
        is_stream=isinstance(loader.dataset, IterableDataset),
        in_order=loader.in_order,
        can_be_cut=loader.batch_sampler is not None and is_row_wise(loader.collate_fn),
        drop_last=loader.drop_last,
        detail=wants_detail(),
        far=loader.num_workers - local_workers(loader),
    )


def shares_of(log: Sequence[Taken]) -> list[float]:
    """The share of waiting in each of BLOCKS parts of the last batches; empty if these are too few."""
    turns = []
    handed_out, epoch = 0, -1
    for taken in log:
        if taken.chunk or not taken.asked_at or not taken.handed_out_at:
            continue
        if handed_out and taken.epoch == epoch and taken.asked_at >= handed_out:
            turns.append((taken.handed_out_at - taken.asked_at, taken.asked_at - handed_out))
        handed_out, epoch = taken.handed_out_at, taken.epoch
    if len(turns) < 2 * BLOCKS:
        return []
    size = len(turns) / BLOCKS
    blocks = [turns[int(k * size) : int((k + 1) * size)] for k in range(BLOCKS)]
    return [sum(wait for wait, _ in block) / max(1, sum(map(sum, block))) for block in blocks]


def with_ranks(evidence: Evidence) -> Evidence:
    """The evidence, with each rank's wait for a batch added: in a step that synchronises, all wait for the slowest.

    Raises:
        Exception: torch.distributed's own, if it is not initialised, or not all ranks have asked by its timeout.
    """
    waits: list[float] = [0.0] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(waits, evidence.wait_s)
    return dataclasses.replace(evidence, ranks=waits, rank=torch.distributed.get_rank())
