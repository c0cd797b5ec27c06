"""The result of `loader.stats()`: what each field means, and to_dict(), which names the figures for a logger."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Times:
    """Durations of one kind.

    Attributes:
        count: How many there were.
        total_s: Their sum, in seconds, as the others are.
        mean_s, p50_s, p90_s, p99_s: Their mean, and the times below which 50, 90 and 99 % of them are, to 3 %.
    """

    count: int = 0
    total_s: float = 0.0
    mean_s: float = 0.0
    p50_s: float = 0.0
    p90_s: float = 0.0
    p99_s: float = 0.0


@dataclass(frozen=True)
class WorkerStats:
    """How one worker spent its time.

    Attributes:
        worker: Its number.
        published: How many batches it made, or chunks of batches.
        busy_s: Seconds that it was at work on them: fetch_s + collate_s.  For a stream, also to find its end.
        fetch_s: Of these, seconds until the samples were there.
        collate_s: Of these, seconds to collate them and to write what did not lie in the slot already.
        idle_s: Seconds without work while the trainer waited for another worker's batch.
        slot_wait_s: Seconds without work because all slots were filled: the consumer was slower.  Neither this nor
            idle_s counts the time between two epochs.
        waited_for_s: Seconds that the trainer waited for a batch of this worker.
        cpu_share: The part of busy_s in which it ran on a core; above 1 if several of its threads did.  None: not known
            yet, because the kernel is asked at most 20 times a second.
        delayed_share: The part of busy_s in which it could have run, but had no core.
        node: The machine of a far worker; None: it runs on this one.  Of a far worker, fetch_s goes from the request,
            or the batch before, to the answer; collate_s is the time to receive the bytes; cpu_share and delayed_share
            are its stand-in's.
    """

    worker: int
    published: int
    busy_s: float
    fetch_s: float
    collate_s: float
    idle_s: float
    slot_wait_s: float
    waited_for_s: float
    cpu_share: float | None
    delayed_share: float | None
    node: str | None = None


@dataclass(frozen=True)
class Hot:
    """A function in which workers spend their time, according to samples of their stacks (SHMLOADER_DETAIL=1).

    Attributes:
        function: Its name.
        file, line: Where in it most samples were.
        share: The part of all samples in which it was the innermost function of the dataset's own code, or was called
            by that.
    """

    function: str
    file: str
    line: int
    share: float


@dataclass(frozen=True)
class Stats:
    """The measurements of a loader, over all its iterators, since `since`.

    Times are in seconds, amounts of memory in bytes, shares from 0 to 1.  A figure that is not known is None.  If
    batches do not ride the ring (`why_not_ring`), only the user's time in next() and between calls is known.

    Attributes:
        since: "start", "epoch" or "last".
        elapsed_s: Seconds since then.
        why_not_ring: Why batches do not ride the ring; None if they do.
        num_workers: How many workers the loader has.
        batches: How many next() has given.
        batches_per_s: Per second spent in next() and between its calls; the time between epochs does not count.
        input_wait: The share of that time that was spent in next(): what the loader costs the loop.
        wait: Each next(), from its call to its return; the first one of an epoch counts from iter().
        step: From next() returning to next() being called again, in one epoch: the loop's own work.
        first_wait: Of `wait`, the first one of each epoch.
        starting_s: Seconds in next() until each worker had given its first batch of an epoch, which takes as many calls
            as there are workers.
        taken_batches: How many were taken from the ring; more than `batches` if some were dropped, or are prefetched.
        samples, samples_per_s: Samples in the batches that were taken, and how many a second.
        batch_bytes: How large a batch was in its slot, on average.
        ready_batches: How many batches were ready when next() was called, on average.
        empty_share: The share of calls of next() that found no batch ready.
        claim_wait: From opening a batch, or a chunk, to a worker claiming it.
        fetch, collate: Fetching the samples of a batch or chunk, and collating them, in a worker.
        order_wait: From a batch being ready until all earlier ones are.
        take_wait: From a batch being the next in order until it is taken.
        lent: From handing a batch out until the user has dropped it, and its slot is free.
        held_batches: How many batches the loop holds at once, according to 95 % of the dropped ones: with 2, a batch is
            dropped when the next one has come.  None while none was dropped.
        waits: Seconds in which next() waited for a batch, by the batch's stage: "open" (no worker could begin it),
            "claim" (its worker was at an earlier one), "fetch", "collate", "wake" (it was ready, and the trainer was
            waking up); and "hand_out", the trainer's own work in all calls.  With `device=`, these are the calls of the
            thread that copies.
        lent_slots: Batches that the user holds now, whose bytes lie in the ring.
        copied_spare: Batches that were copied out because the user held `spare_slots` batches already.
        copied_kept: Batches that were copied out because a worker kept a reference to them.
        copied_unlocked: Batches that were copied because their slots were not page-locked yet.
        grown_slots: How often a slot had to grow.
        ring_bytes: The memory of the slots of all living rings.
        moved_slots: How many slots lie, or lay, in a memfd because /dev/shm was too small.
        to_device: The copies to the device, measured for one batch in 16.
        bad_samples: How many samples were replaced, in all epochs.
        worker_deaths: Workers that died and were replaced.
        workers: The stats of each worker.
        hot: With SHMLOADER_DETAIL=1, the functions in which workers spend their time, the largest share first.
    """

    since: str
    elapsed_s: float
    why_not_ring: str | None
    num_workers: int
    batches: int
    batches_per_s: float
    input_wait: float | None
    wait: Times
    step: Times
    first_wait: Times
    starting_s: float = 0.0
    taken_batches: int | None = None
    samples: int | None = None
    samples_per_s: float | None = None
    batch_bytes: float | None = None
    ready_batches: float | None = None
    empty_share: float | None = None
    claim_wait: Times | None = None
    fetch: Times | None = None
    collate: Times | None = None
    order_wait: Times | None = None
    take_wait: Times | None = None
    lent: Times | None = None
    held_batches: int | None = None
    waits: dict[str, float] | None = None
    lent_slots: int | None = None
    copied_spare: int | None = None
    copied_kept: int | None = None
    copied_unlocked: int | None = None
    grown_slots: int | None = None
    ring_bytes: int | None = None
    moved_slots: int | None = None
    to_device: Times | None = None
    bad_samples: int = 0
    worker_deaths: int | None = None
    workers: tuple[WorkerStats, ...] | None = None
    hot: tuple[Hot, ...] | None = None

    def to_dict(self, prefix: str = "loader/") -> dict[str, float]:
        """All numbers as a flat dict for a logger: {"loader/input_wait": 0.12, "loader/wait_p99_s": ...}.

        A figure that is None is left out.  The workers' figures are sums (`workers_busy_s`), except the longest
        `waited_for_s`.

        Args:
            prefix: Each name begins with it.

        Example:
            >>> writer = torch.utils.tensorboard.SummaryWriter()
            >>> for name, value in loader.stats("last").to_dict().items():
            ...     writer.add_scalar(name, value, step)
            >>> wandb.log(loader.stats("last").to_dict("input/"))
        """
        flat: dict[str, float] = {}
        for field in dataclasses.fields(self):
            flat.update(_flat(field.name, getattr(self, field.name)))
        for name in ("busy_s", "fetch_s", "collate_s", "idle_s", "slot_wait_s"):
            if self.workers:
                flat[f"workers_{name}"] = sum(getattr(worker, name) for worker in self.workers)
        if self.workers:
            flat["workers_waited_for_s_max"] = max(worker.waited_for_s for worker in self.workers)
        return {f"{prefix}{name}": float(value) for name, value in flat.items()}


def _flat(name: str, value: Any) -> dict[str, float]:
    if isinstance(value, Times):
        return {f"{name}_{key}": each for key, each in vars(value).items()}
    if isinstance(value, dict):
        return {f"{name}_{key}_s": each for key, each in value.items()}
    return {name: value} if isinstance(value, (int, float)) else {}
