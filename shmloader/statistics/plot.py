"""The picture of a report: a lane for the loop, one for each worker, and where the loop's time went."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shmloader.statistics.causes import ms
from shmloader.statistics.stats import Stats
from shmloader.statistics.verdict import Verdict

if TYPE_CHECKING:
    from shmloader.core.figures import Taken

MOST = 160  # batches: with more, their bars would be too thin to see
FETCH, COLLATE, READY, WAIT, STEP = "#3b6ea8", "#8fb4d9", "#e8e8e8", "#c94f3d", "#b9d3b0"
PARTS = {
    "open": "no batch was open",
    "claim": "its worker was at an earlier one",
    "fetch": "its samples were fetched",
    "collate": "it was collated",
    "wake": "it was ready, the loop was waking up",
    "hand_out": "handing out, and the sampler",
}


def draw(path: str | os.PathLike[str], verdict: Verdict, stats: Stats, log: Sequence[Taken]) -> None:
    """Draw a report from its parts."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(
            "report().plot() needs matplotlib, which is not installed. Run pip install matplotlib. "
            "print(report) works without it."
        ) from None
    log = [taken for taken in log if taken.asked_at and taken.handed_out_at][-MOST:]
    if not log:
        raise ValueError("there is nothing to draw. No batch was taken from a ring yet, or this loader has no ring.")
    workers = sorted({taken.worker for taken in log})
    figure = Figure(figsize=(11, 2.6 + 0.3 * len(workers) + 1.6), dpi=140, layout="constrained")
    lanes, shares = figure.subplots(2, 1, height_ratios=(1.6 + 0.3 * len(workers), 1.2))
    cause = verdict.cause
    title = verdict.text if cause is None else f"{verdict.text}\n{cause.name}: {cause.change}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=10, wrap=True)
    _draw_lanes(lanes, log, workers)
    _draw_shares(shares, stats)
    figure.savefig(path)


def _draw_lanes(axes: Any, log: list[Taken], workers: list[int]) -> None:
    began = min(taken.asked_at for taken in log)

    def bars(row: int, spans: list[tuple[int, int]], colour: str, height: float = 0.8) -> None:
        at = [((since - began) / 1e9, (until - since) / 1e9) for since, until in spans if until > max(since, began)]
        axes.broken_barh(at, (row - height / 2, height), facecolors=colour, edgecolor="white", linewidth=0.3)

    turns = {taken.asked_at: taken.handed_out_at for taken in log}
    asked = sorted(turns)
    bars(0, [(turns[one], after) for one, after in itertools.pairwise(asked)], STEP)
    bars(0, list(turns.items()), WAIT)
    for row, worker in enumerate(workers, 1):
        found = [taken for taken in log if taken.worker == worker]
        bars(row, [(taken.published_at, taken.taken_at) for taken in found], READY, 0.3)
        bars(row, [(taken.claimed_at, taken.fetched_at) for taken in found], FETCH)
        bars(row, [(taken.fetched_at, taken.published_at) for taken in found], COLLATE)
    axes.set_yticks(range(len(workers) + 1), ["loop", *(f"worker {worker}" for worker in workers)])
    axes.invert_yaxis()
    axes.set_xlim(0, (max(taken.handed_out_at for taken in log) - began) / 1e9)
    axes.set_xlabel(f"seconds; the last {len({(taken.epoch, taken.batch) for taken in log})} batches")
    names = {"waits in next()": WAIT, "its step": STEP, "fetch": FETCH, "collate": COLLATE, "ready, not taken": READY}
    for name, colour in names.items():
        axes.barh([0], [0], color=colour, label=name)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=5, frameon=False, fontsize=8)
    _unframe(axes)


def _draw_shares(axes: Any, stats: Stats) -> None:
    """Where the loop's time went, from left to right."""
    at = 0.0
    waits = stats.waits or {}
    rest = max(0.0, stats.wait.total_s - sum(waits.values()))  # iter() of the first batches
    parts = [("the loop's own step", stats.step.total_s, STEP)]
    reds = ("#7a2018", "#a8362a", "#c94f3d", "#dc7a6a", "#ebaaa0", "#f5d3cd")
    parts += [(PARTS[name], waits[name], red) for (name, red) in zip(PARTS, reds, strict=True) if name in waits]
    parts += [("starting workers", rest, "#777777")]
    whole = sum(size for _, size, _ in parts) or 1.0
    for name, size, colour in parts:
        if size / whole >= 0.005:
            axes.barh([0], [size / whole], left=[at], color=colour, label=f"{name}: {size / whole:.0%}, {ms(size)}")
            at += size / whole
    axes.set_xlim(0, 1)
    axes.set_yticks([])
    axes.set_xticks([])
    axes.legend(loc="upper left", bbox_to_anchor=(0, 0), ncols=3, frameon=False, fontsize=8)
    _unframe(axes)


def _unframe(axes: Any) -> None:
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
