"""What a conductor tells its readers of an epoch, and the epoch that a reader makes of it.

A reader counts by itself what it has got.  Everything else in a state is the conductor's, who draws.
"""

from __future__ import annotations

from typing import Any

from shmloader.core.indices import Indices
from shmloader.resume.epoch import Epoch
from shmloader.resume.source import Source
from shmloader.resume.state import State, state_of


def told_of(epoch: Epoch) -> dict[str, Any]:
    """What readers are told of an epoch."""
    source = epoch.source
    return {
        "number": epoch.number,
        "base_seed": epoch.base_seed,
        "served": epoch.served,
        "start": epoch.start.as_dict() if epoch.start.begun else None,
        "ranks": (epoch.rank, epoch.ranks),
        "fixed": dict(epoch.fixed),
        "draws": source.told() if isinstance(source, Source) else None,
    }


class _Drawn(Indices):
    """Stands for the conductor's source."""

    def __init__(self, draws: dict[str, Any] | None) -> None:
        super().__init__(iter(()))
        self._draws = draws

    def state(self, batches: int) -> dict[str, Any]:
        if self._draws is None:
            raise RuntimeError(
                "state_dict() is asked of a rank that reads, and only the first rank of the group knows the state of a "
                "sampler that keeps its own: ask that rank, and load its state in all of them"
            )
        return self._draws


def epoch_of(told: dict[str, Any], loader: Any) -> Epoch:
    """The epoch that a reader counts in."""
    start = State() if told["start"] is None else state_of(told["start"])
    made = Epoch(told["number"], told["base_seed"], told["served"], start, told["ranks"], told["fixed"], False, 0)
    made.source = _Drawn(told["draws"])  # type: ignore[assignment]
    return made
