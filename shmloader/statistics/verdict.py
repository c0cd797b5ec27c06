"""The verdict of loader.report(): input-bound, balanced or consumer-bound, by the share of the time in next().
It decides in which order causes are tried, whether the verdict is sure or only likely, and which notes follow it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Literal

from shmloader.statistics import causes
from shmloader.statistics.causes import Cause, copies, ms, plural, were
from shmloader.statistics.evidence import DELAYED, Evidence

INPUT = 0.10  # from this share of its time in next() on, a loop is input-bound
CONSUMER = 0.03  # below this share, it is consumer-bound
FEW = 50  # with fewer batches, no verdict is sure
_NAMED = 8  # workers that a note names
SHORT = 0.5  # seconds; in less time, no verdict is sure

Kind = Literal["input-bound", "balanced", "consumer-bound", "unknown"]

ORDER = (
    causes.rank,
    causes.device,
    causes.first_batch,
    causes.no_workers,
    causes.spare_slots,
    causes.hand_out,
    causes.worker,
    causes.order,
    causes.cores,
    causes.work,
)


@dataclass(frozen=True)
class Verdict:
    """The finding.

    Attributes:
        kind: "input-bound": next() takes 10 % of the time or more.  "consumer-bound": less than 3 %.  "balanced":
            between these.  "unknown": nothing was measured yet.
        share: The share of the time in next(); None if nothing was measured.
        sure: Whether share and cause are so clear that chance and other processes cannot explain them.
        text: The verdict in a sentence.
        cause: Why it waits; None if it does not wait, or no known cause applies.
        notes: Further remarks.
    """

    kind: Kind
    share: float | None
    sure: bool
    text: str
    cause: Cause | None = None
    notes: tuple[str, ...] = ()


def verdict_of(evidence: Evidence) -> Verdict:
    """The verdict that follows from the evidence."""
    share = evidence.share
    if share is None or evidence.stats.wait.count < 2:
        return Verdict(
            "unknown", None, False, "nothing to judge yet: iterate over the loader first", None, notes(evidence)
        )
    kind: Kind = "input-bound" if share >= INPUT else "consumer-bound" if share < CONSUMER else "balanced"
    cause = cause_of(evidence, kind)
    if cause is not None and cause.name in ("device", "rank"):  # these make the step longer, and not the wait
        kind = "input-bound"
    sure = is_sure(evidence, kind, cause)
    return Verdict(kind, share, sure, text(evidence, kind, share, sure), cause, notes(evidence, cause))


def cause_of(evidence: Evidence, kind: Kind) -> Cause | None:
    """The first cause that applies.  For a loop that hardly waits, only causes that make the step longer."""
    found = (cause(evidence) for cause in (ORDER[:2] if kind == "consumer-bound" else ORDER))
    return next((cause for cause in found if cause is not None), None)


def is_sure(evidence: Evidence, kind: Kind, cause: Cause | None) -> bool:
    """Whether each part of the last batches gives the same verdict, and the cause is sure too."""
    stats = evidence.stats
    if stats.wait.count < FEW or stats.wait.total_s + stats.step.total_s < SHORT:
        return False
    if cause is not None and cause.name in ("device", "rank", "first_batch"):
        return cause.sure
    if not evidence.settings.num_workers:
        share = evidence.share or 0.0
        return share >= 2 * INPUT or share < CONSUMER / 2  # so far beyond a limit that its parts need no check
    if len(evidence.shares) < 2:
        return False
    around, spread = mean(evidence.shares), 2 * stdev(evidence.shares) / math.sqrt(len(evidence.shares))
    if kind == "consumer-bound":
        return around + spread < CONSUMER
    if kind == "balanced":
        return False
    return around - spread >= INPUT and cause is not None and cause.sure


def text(evidence: Evidence, kind: Kind, share: float, sure: bool) -> str:
    """The verdict in a sentence."""
    sentence = f"{kind} ({'sure' if sure else 'likely'}): "
    wait, step, first = evidence.stats.wait.mean_s, evidence.step_s, evidence.stats.first_wait
    if first.count == 1:
        wait = evidence.wait_s
    sentence += f"{share:.1%} of the loop's time went into next(), {ms(wait)} of {ms(wait + step)} per batch"
    if first.count == 1:
        if evidence.settings.num_workers:
            left_out = f"each worker's first batch ({ms(evidence.stats.starting_s)} in all)"
        else:
            left_out = f"the first batch ({ms(evidence.stats.starting_s)})"
        sentence += f", not counting the wait for {left_out}"
    if kind != "consumer-bound":
        return sentence
    sentence += ". The loader keeps up; the loop's own step takes the time"
    if evidence.stats.ready_batches is not None:
        sentence += f" ({evidence.stats.ready_batches:.1f} batches were ready when it asked)"
    enough = evidence.needed_workers
    if evidence.workers and 0 < enough < evidence.settings.num_workers * 0.75:
        sentence += f". {plural(max(1, enough), 'worker')} of {evidence.settings.num_workers} would be enough"
    return sentence


def notes(evidence: Evidence, cause: Cause | None = None) -> tuple[str, ...]:
    """Further remarks, for any verdict."""
    stats, copied = evidence.stats, copies(evidence)
    few = 0.1 * (stats.taken_batches or 0)
    kept, unlocked, moved = stats.copied_kept or 0, stats.copied_unlocked or 0, stats.moved_slots or 0
    grown, bad, deaths = stats.grown_slots or 0, stats.bad_samples, stats.worker_deaths or 0
    no_samples = evidence.settings.detail and not stats.hot
    found = {
        ": ".join(copied or ()): copied is not None and (cause is None or cause.name != "spare_slots"),
        f"{plural(kept, 'batch', 'es')} copied out, because a collate function or a dataset keeps what it returned: "
        "return a copy instead": kept,
        f"{plural(unlocked, 'batch', 'es')} copied, because their slots were not page-locked yet": unlocked > few,
        f"/dev/shm is too small: {plural(moved, 'slot')} of the ring moved to a memfd, which is as fast. "
        "SHMLOADER_RING_MEMORY=memfd puts them there from the start; docker run --shm-size makes /dev/shm "
        "larger": moved,
        f"slots had to grow {plural(grown, 'time')}: batches differ much in size": grown > few,
        f"{plural(bad, 'sample')} raised and {were(bad)} replaced: loader.bad_samples": bad,
        f"{plural(deaths, 'worker')} died and {were(deaths)} replaced": deaths,
        _empty_parts(evidence): evidence.without_batch,
        f"workers wait for a core {evidence.delayed_share:.0%} of the time: other processes use this machine": (
            evidence.delayed_share >= DELAYED and len(evidence.workers) <= evidence.cores
        ),
        "SHMLOADER_DETAIL=1 has no samples yet: workers sample one batch in 16, every 10 ms": no_samples
        and stats.why_not_ring is None,
        "SHMLOADER_DETAIL=1 has no effect: it samples the workers of a loader that rides the ring": (
            no_samples and stats.why_not_ring is not None
        ),
        f"only next() is measured, because batches do not ride the ring: {stats.why_not_ring}": (
            stats.why_not_ring is not None
        ),
    }
    return tuple(text for text, holds in found.items() if holds)


def _empty_parts(evidence: Evidence) -> str:
    """The workers whose parts of the stream gave no batch, and what to change."""
    settings, idle = evidence.settings, evidence.without_batch
    one, named = len(idle) == 1, ", ".join(map(str, idle[:_NAMED]))
    more = f" and {len(idle) - _NAMED} more" if len(idle) > _NAMED else ""
    text = f"worker{'' if one else 's'} {named}{more} gave no batch in a whole epoch: {'its' if one else 'their'} "
    text += f"part{'' if one else 's'} of the stream {settings.dataset} had no samples"
    if settings.drop_last:
        text += ", or fewer than a batch, which drop_last=True drops"
    if settings.num_workers == 1:
        return text
    text += f". Divide the stream evenly among workers (get_worker_info()), into {settings.num_workers} shards or more"
    useful = settings.num_workers - len(idle)
    return text + (f"; or num_workers={useful}" if useful else "")
