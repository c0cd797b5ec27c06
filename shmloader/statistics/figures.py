"""Computes the fields of loader.stats() from counters, such as input_wait, held_batches and each worker's times.
The counters are those of an account: NOTE [ Accounts ] in account.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shmloader.core import figures as counted
from shmloader.core.figures import Figures
from shmloader.statistics.stats import Stats, Times, WorkerStats

HELD = 0.95  # the share of the dropped batches that `held_batches` covers
WAITS = {
    "open": counted.ON_OPEN,
    "claim": counted.ON_CLAIM,
    "fetch": counted.ON_FETCH,
    "collate": counted.ON_COLLATE,
    "wake": counted.ON_WAKE,
    "hand_out": counted.ON_HAND_OUT,
}


def times(figures: Figures, kind: int) -> Times:
    """The Times of a histogram."""
    count = figures.count(kind)
    if not count:
        return Times()
    total = figures.seconds(kind)
    p50, p90, p99 = (figures.percentile(kind, share) for share in (0.5, 0.9, 0.99))
    return Times(count, total, total / count, p50, p90, p99)


def stats_of(figures: Figures, since: str, elapsed: float, nodes: dict[int, str], **now: Any) -> Stats:
    """The Stats since a reading.

    Args:
        figures: The counts since then.
        since: The name of the reading.
        elapsed: How many seconds ago it was.
        nodes: The machine of each far worker, by its number.
        now: Fields of Stats that are read at this moment, and not counted over time.
    """
    wait, step, first = (times(figures, kind) for kind in (counted.WAIT, counted.STEP, counted.FIRST))
    spent = wait.total_s + step.total_s
    turns = Stats(
        since=since,
        elapsed_s=elapsed,
        batches=wait.count,
        batches_per_s=wait.count / spent if spent else 0.0,
        input_wait=wait.total_s / spent if spent else None,
        wait=wait,
        step=step,
        first_wait=first,
        starting_s=figures.amount(counted.STARTING) / 1e9,
        **now,
    )
    return turns if turns.why_not_ring is not None else _on_the_ring(turns, figures, nodes)


def _on_the_ring(turns: Stats, figures: Figures, nodes: dict[int, str]) -> Stats:
    taken, samples = figures.amount(counted.BATCHES), figures.amount(counted.SAMPLES)
    calls = max(1, figures.count(counted.SOURCE_WAIT) or figures.count(counted.WAIT))
    sent = times(figures, counted.TO_DEVICE)
    return replace(
        turns,
        taken_batches=taken,
        samples=samples,
        samples_per_s=samples / taken * turns.batches_per_s if taken else 0.0,
        batch_bytes=figures.amount(counted.BYTES) / taken if taken else 0.0,
        ready_batches=figures.amount(counted.READY_BATCHES) / calls,
        empty_share=figures.amount(counted.EMPTY) / calls,
        claim_wait=times(figures, counted.CLAIM),
        fetch=times(figures, counted.FETCH),
        collate=times(figures, counted.COLLATE),
        order_wait=times(figures, counted.ORDER),
        take_wait=times(figures, counted.READY),
        lent=times(figures, counted.LENT),
        held_batches=_held(figures.held()),
        waits={name: figures.amount(kind) / 1e9 for name, kind in WAITS.items()},
        copied_spare=figures.amount(counted.COPIED_SPARE),
        copied_kept=figures.amount(counted.COPIED_KEPT),
        copied_unlocked=figures.amount(counted.COPIED_UNLOCKED),
        grown_slots=figures.amount(counted.GROWN),
        moved_slots=(turns.moved_slots or 0) + figures.amount(counted.MOVED),
        to_device=sent if sent.count else None,
        worker_deaths=figures.amount(counted.DEATHS),
        workers=tuple(_worker(figures, k, nodes.get(k)) for k in range(figures.workers)),
    )


def _held(dropped: list[int]) -> int | None:
    """How many batches a loop holds at once.  `dropped[n]` batches were dropped after n further ones had been given."""
    count, seen = sum(dropped), 0
    if not count:
        return None
    for given, batches in enumerate(dropped):
        seen += batches
        if seen >= HELD * count:
            return given + 1
    return len(dropped)


def _worker(figures: Figures, number: int, node: str | None) -> WorkerStats:
    fields = {name: value / 1e9 for name, value in figures.of_worker(number).items()}
    probed = fields["probed_ns"]
    return WorkerStats(
        worker=number,
        published=figures.of_worker(number)["published"],
        busy_s=fields["fetched_ns"] + fields["collated_ns"],
        fetch_s=fields["fetched_ns"],
        collate_s=fields["collated_ns"],
        idle_s=fields["behind_ns"],
        slot_wait_s=max(0.0, fields["idle_ns"] - fields["behind_ns"]),
        waited_for_s=fields["waited_ns"],
        cpu_share=fields["cpu_ns"] / probed if probed else None,
        delayed_share=min(1.0, fields["delayed_ns"] / probed) if probed else None,
        node=node,
    )
