"""A trace in the format that Perfetto and Chrome read: lanes of slices, and arrows between them.

The format is the "Trace Event Format": a list of objects, whose `ph` is their kind.  X is a slice with its duration,
M names a lane, b and e are the two ends of a span without a lane, s and f those of an arrow.  Times are microseconds in
the file, and nanoseconds in this module.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from shmloader.core.figures import Taken

TRAINER = 0  # its lane; worker k's is k + 1
PREFETCH = 1 << 20  # the lane of the prefetch thread, if there is one

Event = dict[str, Any]


@dataclass(frozen=True)
class Span:
    """A span of time: one of the user's calls of next(), or the copy of a batch to a device."""

    began_at: int
    ended_at: int


@dataclass
class Recorded:
    """Everything that was recorded about a loader.  Times are those of time.monotonic_ns().

    Attributes:
        label: Its dataset's name.
        trainer: The pid.
        began_at: When recording began.
        workers: The workers' pids, as far as they are known.
        taken: The ring's record of each sequence.
        turns: The user's calls of next().
        sent: Batches that went through a stage: to a device, or `on_device`.
        by_thread: Whether a prefetch thread did that.  Then it is also the one that takes batches from the ring.
        nodes: The machine of each far worker, by its number.
    """

    label: str
    trainer: int
    began_at: int
    workers: list[int] = field(default_factory=list)
    taken: list[Taken] = field(default_factory=list)
    turns: list[Span] = field(default_factory=list)
    sent: list[Span] = field(default_factory=list)
    by_thread: bool = False
    nodes: dict[int, str] = field(default_factory=dict)


def trace_of(recorded: Recorded) -> dict[str, Any]:
    """The whole file, as JSON."""
    taker = PREFETCH if recorded.by_thread else TRAINER
    events = [*_names(recorded, taker), *_turns(recorded.turns)]
    events += [_slice(taker, "to device", span.began_at, span.ended_at, {}) for span in recorded.sent]
    for number, taken in enumerate(recorded.taken):
        events += [*_made(taken), *_took(taken, taker), *_arrow(number, taken, taker), *_between(number, taken)]
    base = min((event["ts"] for event in events if "ts" in event), default=recorded.began_at)
    for event in events:
        event["pid"] = recorded.trainer
        if "ts" in event:
            event["ts"] = (event["ts"] - base) / 1000
        if "dur" in event:
            event["dur"] /= 1000
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"made by": "shmloader", "monotonic clock at 0, in ns": str(base)},
    }


def _names(recorded: Recorded, taker: int) -> Iterator[Event]:
    """The names of the lanes, and their order."""
    yield {"ph": "M", "name": "process_name", "tid": 0, "args": {"name": f"shmloader: {recorded.label}"}}
    lanes = {TRAINER: "trainer"}
    if taker == PREFETCH:
        lanes[PREFETCH] = "prefetch thread"
    pids = dict(enumerate(recorded.workers))
    for worker in sorted({*pids, *(taken.worker for taken in recorded.taken)}):
        on = f" on {recorded.nodes[worker]}" if worker in recorded.nodes else ""
        lanes[worker + 1] = f"worker {worker}{on}" + (f" (pid {pids[worker]})" if worker in pids else "")
    for order, (lane, name) in enumerate(lanes.items()):
        yield {"ph": "M", "name": "thread_name", "tid": lane, "args": {"name": name}}
        yield {"ph": "M", "name": "thread_sort_index", "tid": lane, "args": {"sort_index": order}}


def _turns(turns: list[Span]) -> Iterator[Event]:
    """The user's lane: next(), and the step between two of them."""
    for turn in turns:
        yield _slice(TRAINER, "next()", turn.began_at, turn.ended_at, {})
    for before, after in itertools.pairwise(turns):
        if before.ended_at <= after.began_at:  # two threads may share an iterator
            yield _slice(TRAINER, "step", before.ended_at, after.began_at, {})


def _made(taken: Taken) -> Iterator[Event]:
    """The slices in the worker's lane: fetch and collate."""
    lane, found = taken.worker + 1, _numbers(taken)
    if not taken.claimed_at or not taken.published_at:
        return
    if taken.claimed_at <= taken.fetched_at < taken.published_at:
        yield _slice(lane, "fetch", taken.claimed_at, taken.fetched_at, found)
        yield _slice(lane, "collate", taken.fetched_at, taken.published_at, found)
    else:  # it has no samples: the batch is an exception
        yield _slice(lane, "make", taken.claimed_at, taken.published_at, found)


def _took(taken: Taken, taker: int) -> Iterator[Event]:
    """The slices of the thread that takes: the wait for the batch, and reading it, both inside its next()."""
    if taken.chunk or not taken.asked_at or not taken.taken_at:
        return
    ends = taken.handed_out_at or taken.taken_at
    if taker == PREFETCH:
        yield _slice(taker, "next batch", taken.asked_at, ends, _numbers(taken))
    yield _slice(taker, "wait", taken.asked_at, taken.taken_at, _numbers(taken))
    if ends > taken.taken_at:
        yield _slice(taker, "read", taken.taken_at, ends, _numbers(taken))


def _arrow(number: int, taken: Taken, taker: int) -> Iterator[Event]:
    """An arrow from the point where a worker publishes a batch to the point where the trainer takes it."""
    if taken.asked_at and taken.claimed_at < taken.published_at and taken.taken_at:
        common = {"cat": "batch", "name": "publish", "id": number}
        # inside the two slices, because an arrow from the very end of one would belong to the following slice
        begins = max(taken.claimed_at, taken.published_at - 1)
        yield {"ph": "s", "tid": taken.worker + 1, "ts": begins, **common}
        yield {"ph": "f", "bp": "e", "tid": taker, "ts": max(taken.asked_at, taken.taken_at - 1, begins), **common}


def _between(number: int, taken: Taken) -> Iterator[Event]:
    """The stages in which a batch waits: open, ready, lent."""
    if taken.chunk:
        return
    spans = [
        ("open", taken.opened_at, taken.claimed_at),
        ("ready", taken.published_at, taken.taken_at),
        ("lent", taken.handed_out_at, taken.dropped_at),
    ]
    for name, begins, ends in spans:
        if begins and ends > begins:
            common = {"cat": name, "name": name, "id": number, "tid": TRAINER}
            yield {"ph": "b", "ts": begins, "args": _numbers(taken), **common}
            yield {"ph": "e", "ts": ends, **common}


def _slice(lane: int, name: str, begins: int, ends: int, figures: dict[str, int]) -> Event:
    return {"ph": "X", "name": name, "tid": lane, "ts": begins, "dur": max(0, ends - begins), "args": figures}


def _numbers(taken: Taken) -> dict[str, int]:
    fields = {"batch": taken.batch, "epoch": taken.epoch, "sequence": taken.sequence}
    return {**fields, "chunk": taken.chunk} if taken.chunk else fields
