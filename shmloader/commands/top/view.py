"""The state of a ring as top shows it, computed from two looks: rates, the input wait, and what each worker does.
It decides which worker holds up the trainer, and whether a worker is stuck.
"""

from __future__ import annotations

import collections
import contextlib
import mmap
from dataclasses import dataclass

from shmloader.commands.top.rings import Held
from shmloader.core.onlooker import EntryNow, LaneNow, Totals
from shmloader.system.processes import status_of

WINDOW = 5_000_000_000  # nanoseconds over which rates are taken
HELD_UP = 1.0  # seconds in next() after which the worker that holds the batch is shown

# the letters of states, and what each means for a process that waits for this one
STATES = {
    "R": "runs",
    "S": "sleeps",
    "D": "is in the kernel (disk, network)",
    "T": "is stopped by a signal",
    "t": "is stopped by a debugger",
    "Z": "is dead",
    "X": "is dead",
    "": "is gone",
}


@dataclass(frozen=True)
class Look:
    """A ring at one moment."""

    totals: Totals
    lanes: list[LaneNow]
    entries: list[EntryNow]


@dataclass(frozen=True)
class LaneView:
    """A worker.

    Attributes:
        worker, pid: Its number and pid; pid 0 if it has not started, or is gone.
        doing: "starts", "waits", "fetches" or "collates"; or its state in the kernel, if it cannot run.
        for_s: For how many seconds.
        batch: The number in its epoch of the batch that it has claimed; None if it has none.
        busy: The share of its time that it fetched and collated, 0 to 1.
        batches_per_s: The batches that it published, or chunks of batches.
        memory_bytes: Its memory, without files and the ring.
        stuck: Whether it is stopped, dead or gone.
        awaited: Whether the trainer waits for the batch that it holds.
        node: The machine of a far worker, of which pid is the stand-in; empty: it runs on this one.
    """

    worker: int
    pid: int
    doing: str
    for_s: float
    batch: int | None
    busy: float
    batches_per_s: float
    memory_bytes: int
    stuck: bool
    awaited: bool
    node: str = ""


@dataclass(frozen=True)
class LoaderView:
    """A loader.

    Attributes:
        label: Its dataset's name.
        trainer: The pid.
        state: The state of the trainer in the kernel.
        batches_per_s, samples_per_s, bytes_per_s: What the trainer took.
        input_wait: The share of the time that the trainer waited in `next()`, 0 to 1.
        waits_s: For how many seconds it has been in `next()` now; 0 if it is not.
        ready, under_way, most: Batches that are ready, that are opened, and that may be.
        epoch, batch: The epoch's number in this iterator, and how many of its batches were taken.
        lent, copied: Batches that the user holds, and how many were copied out so far.
        deaths: Of workers, so far.
        ring_bytes: The memory of the slots.
        held_up: The holder of the batch that the trainer waits for; empty until it has waited for HELD_UP.
        lanes: Its workers.
    """

    label: str
    trainer: int
    state: str
    batches_per_s: float
    samples_per_s: float
    bytes_per_s: float
    input_wait: float
    waits_s: float
    ready: int
    under_way: int
    most: int
    epoch: int
    batch: int
    lent: int
    copied: int
    deaths: int
    ring_bytes: int
    held_up: str
    lanes: list[LaneView]


class Watched:
    """A ring that top looks at again and again."""

    def __init__(self) -> None:
        self._looks: collections.deque[Look] = collections.deque()

    def look(self, held: Held) -> LoaderView:
        """Look at it, and compare with the look WINDOW ago, or with the first one.

        Raises:
            ValueError: It is closed.
        """
        ring = held.ring
        now = Look(ring.totals(), ring.lanes(), ring.in_flight())
        if ring.closed:  # the words that were read mean nothing
            raise ValueError("the ring is closed")
        self._looks.append(now)
        while len(self._looks) > 2 and now.totals.now - self._looks[1].totals.now >= WINDOW:
            self._looks.popleft()
        return _view(held, self._looks[0], now)


def _view(held: Held, before: Look, now: Look) -> LoaderView:
    was, totals = before.totals, now.totals
    passed = max(1, totals.now - was.now) / 1e9
    waits_s = max(0, totals.now - totals.asked_at) / 1e9 if totals.asked_at else 0.0
    awaited = _awaited(now.entries)
    claimed = _claimed(now.entries)
    awaited_of = awaited.owner if awaited is not None and waits_s > HELD_UP else -1
    lanes = [
        _lane(held, was_lane, lane, totals.now, passed, claimed.get(lane.worker), lane.worker == awaited_of)
        for was_lane, lane in zip(before.lanes, now.lanes, strict=True)
    ]
    return LoaderView(
        label=totals.label,
        trainer=held.trainer,
        state=STATES.get(state_of(held.trainer), "runs"),
        batches_per_s=(totals.taken - was.taken) / passed,
        samples_per_s=(totals.samples - was.samples) / passed,
        bytes_per_s=(totals.bytes - was.bytes) / passed,
        input_wait=min(1.0, max(0, _waited(totals) - _waited(was)) / 1e9 / passed),
        waits_s=waits_s,
        ready=len({entry.payload for entry in now.entries if entry.state == "ready"}),
        under_way=len({entry.payload for entry in now.entries if entry.state != "void"}),
        most=held.ring.batches,
        epoch=totals.epoch,
        batch=_batch(now.entries, totals),
        lent=totals.lent,
        copied=totals.copied,
        deaths=totals.deaths,
        ring_bytes=sum(held.ring.slot_bytes()),
        held_up=_who(awaited, lanes) if waits_s > HELD_UP else "",
        lanes=lanes,
    )


def _waited(totals: Totals) -> int:
    """Nanoseconds that the user waited, including the call that is under way."""
    if totals.user_waited_ns or totals.user_stepped_ns:  # a prefetch thread takes from the ring
        return totals.user_waited_ns
    return totals.waited_ns + (max(0, totals.now - totals.asked_at) if totals.asked_at else 0)


def _batch(entries: list[EntryNow], totals: Totals) -> int:
    """The number of the next batch to take: the lowest of this epoch that is under way."""
    numbers = [entry.batch for entry in entries if entry.state != "void" and entry.epoch == totals.epoch]
    return min(numbers, default=0)


def _awaited(entries: list[EntryNow]) -> EntryNow | None:
    """The sequence that the trainer takes next, if it is not ready."""
    under_way = [entry for entry in entries if entry.state in ("open", "claimed")]
    return min(under_way, key=lambda entry: entry.sequence, default=None)


def _who(awaited: EntryNow | None, lanes: list[LaneView]) -> str:
    if awaited is None:
        return "nothing is under way: the trainer waits for the sampler, or for a worker to start"
    if awaited.owner < 0:
        return f"batch {awaited.batch}, which no worker has claimed yet"
    if awaited.state == "open":
        return f"batch {awaited.batch}, which worker {awaited.owner} has not claimed yet"
    lane = next((lane for lane in lanes if lane.worker == awaited.owner), None)
    if lane is None or not lane.pid:
        return f"batch {awaited.batch}, held by worker {awaited.owner}, which is gone"
    on = f" on {lane.node}" if lane.node else ""
    found = f"{on} (pid {lane.pid}), which {lane.doing}"
    return f"batch {awaited.batch}, held by worker {awaited.owner}{found}"


def _claimed(entries: list[EntryNow]) -> dict[int, int]:
    """The lowest batch that each worker has claimed.  Workers without one are left out."""
    found: dict[int, int] = {}
    for entry in entries:
        if entry.state == "claimed":
            found[entry.owner] = min(entry.batch, found.get(entry.owner, entry.batch))
    return found


def _lane(
    held: Held, was: LaneNow, lane: LaneNow, now: int, passed: float, batch: int | None, awaited: bool
) -> LaneView:
    pid = held.pid_of(lane.pid) if lane.pid else 0
    state = state_of(pid) if pid else ""
    stuck = state not in ("R", "S", "D") and bool(lane.pid)
    works = lane.doing in ("fetches", "collates") and not stuck
    since = max(0, now - lane.since) / 1e9 if lane.since else 0.0
    busy_ns = lane.fetched_ns + lane.collated_ns - was.fetched_ns - was.collated_ns
    return LaneView(
        worker=lane.worker,
        pid=pid,
        doing=STATES.get(state, "runs") if stuck else lane.doing,
        for_s=since,
        batch=batch,
        busy=min(1.0, max(busy_ns / 1e9, min(since, passed) if works else 0.0) / passed),
        batches_per_s=max(0, lane.published - was.published) / passed,
        memory_bytes=resident_bytes(pid) if pid else 0,
        stuck=stuck,
        awaited=awaited,
        node=held.nodes.get(pid, ""),
    )


def state_of(pid: int) -> str:
    """The letter of a process's state, one of STATES; empty if it is gone."""
    return status_of(pid, "State")[:1]


def resident_bytes(pid: int) -> int:
    """The bytes of a process in memory, without files and shared memory.  Pages that it shares by fork count in full.

    The kernel reads them off counters, so asking costs the process nothing.
    """
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/statm", encoding="ascii") as file:
        _, resident, shared, *_ = map(int, file.read().split())
        return (resident - shared) * mmap.PAGESIZE
    return 0
