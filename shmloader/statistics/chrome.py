"""A trace in the format that Perfetto and Chrome read: lanes of slices, and arrows between them.

The format is the "Trace Event Format": a list of objects whose `ph` says what each is.  X is a slice with its duration,
M names a lane, b and e are the two ends of something that has no lane, s and f those of an arrow.  Times are
microseconds there, and nanoseconds in here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shmloader.core.log import Taken

TRAINER = 0  # its lane; worker k's is k + 1
AHEAD = 1 << 20  # the lane of the thread that is ahead of the user, where there is one

Event = dict[str, Any]


@dataclass(frozen=True)
class Span:
    """Something that took from one moment to another: a next() of the user's, or a batch being sent to a device."""

    began_at: int
    ended_at: int


@dataclass(frozen=True)
class Recorded:
    """What was recorded of a loader.  Times are time.monotonic_ns()'s.

    Attributes:
        label: What its dataset is.
        trainer: The pid.
        workers: The pids, as far as they are known.
        taken: What the ring noted of each sequence.
        turns: The next() of the user's.
        sent: Batches that went through a stage: to a device, or `on_device`.
        ahead: Whether that was in a thread of its own, which takes batches from the ring.
        began_at: When recording began.
    """

    label: str
    trainer: int
    workers: list[int]
    taken: list[Taken]
    turns: list[Span]
    sent: list[Span]
    ahead: bool
    began_at: int


def trace_of(recorded: Recorded) -> dict[str, Any]:
    """The whole file, as JSON has it."""
    taker = AHEAD if recorded.ahead else TRAINER
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
    """What the lanes are called, and in which order they lie."""
    yield {"ph": "M", "name": "process_name", "tid": 0, "args": {"name": f"shmloader: {recorded.label}"}}
    lanes = {TRAINER: "trainer"}
    if taker == AHEAD:
        lanes[AHEAD] = "prefetch thread"
    pids = dict(enumerate(recorded.workers))
    for worker in sorted({*pids, *(taken.worker for taken in recorded.taken)}):
        lanes[worker + 1] = f"worker {worker}" + (f" (pid {pids[worker]})" if worker in pids else "")
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
    """The worker's lane."""
    lane, of = taken.worker + 1, _numbers(taken)
    if not taken.claimed_at or not taken.published_at:
        return
    if taken.claimed_at <= taken.fetched_at < taken.published_at:
        yield _slice(lane, "fetch", taken.claimed_at, taken.fetched_at, of)
        yield _slice(lane, "collate", taken.fetched_at, taken.published_at, of)
    else:  # its samples never came: an exception
        yield _slice(lane, "make", taken.claimed_at, taken.published_at, of)


def _took(taken: Taken, taker: int) -> Iterator[Event]:
    """What who takes did until it had the batch, and then with it; within its next()."""
    if taken.chunk or not taken.asked_at or not taken.taken_at:
        return
    ends = taken.handed_out_at or taken.taken_at
    if taker == AHEAD:
        yield _slice(taker, "next batch", taken.asked_at, ends, _numbers(taken))
    yield _slice(taker, "wait", taken.asked_at, taken.taken_at, _numbers(taken))
    if ends > taken.taken_at:
        yield _slice(taker, "read", taken.taken_at, ends, _numbers(taken))


def _arrow(number: int, taken: Taken, taker: int) -> Iterator[Event]:
    """From where a worker publishes to where its batch is taken."""
    if taken.asked_at and taken.claimed_at < taken.published_at and taken.taken_at:
        common = {"cat": "batch", "name": "publish", "id": number}
        # within the two slices, for an arrow from the very end of one would belong to what follows
        begins = max(taken.claimed_at, taken.published_at - 1)
        yield {"ph": "s", "tid": taken.worker + 1, "ts": begins, **common}
        yield {"ph": "f", "bp": "e", "tid": taker, "ts": max(taken.asked_at, taken.taken_at - 1, begins), **common}


def _between(number: int, taken: Taken) -> Iterator[Event]:
    """What a batch is in while nobody works on it: open, ready, lent."""
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


def _slice(lane: int, name: str, begins: int, ends: int, of: dict[str, int]) -> Event:
    return {"ph": "X", "name": name, "tid": lane, "ts": begins, "dur": max(0, ends - begins), "args": of}


def _numbers(taken: Taken) -> dict[str, int]:
    said = {"batch": taken.batch, "epoch": taken.epoch, "sequence": taken.sequence}
    return {**said, "chunk": taken.chunk} if taken.chunk else said
