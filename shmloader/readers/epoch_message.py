"""An epoch as a message: what a conductor sends of it, and the epoch in which a reader counts.
A rank that only reads makes its state_dict() of that, or raises if the sampler keeps a state of its own.

A reader counts the batches that it has received.  Everything else in a state comes from the conductor, because the
conductor draws.
"""

from __future__ import annotations

from typing import Any

from shmloader.core.indices import Indices
from shmloader.resume.epoch import Epoch
from shmloader.resume.source import Source
from shmloader.resume.state import State, state_of


def message_of(epoch: Epoch) -> dict[str, Any]:
    """What a conductor sends of an epoch."""
    source = epoch.source
    return {
        "number": epoch.number,
        "base_seed": epoch.base_seed,
        "served": epoch.served,
        "start": epoch.start.as_dict() if epoch.start.begun else None,
        "ranks": (epoch.rank, epoch.ranks),
        "fixed": dict(epoch.fixed),
        "batch_size": epoch.batch_size,
        "draws": source.constant_state() if isinstance(source, Source) else None,
    }


class _ConductorsSource(Indices):
    """Stands for the conductor's source: it gives no index, but its part of a state."""

    def __init__(self, draws: dict[str, Any] | None) -> None:
        super().__init__(iter(()))
        self._draws = draws

    def state(self, batches: int, must: bool = True) -> dict[str, Any]:
        if self._draws is None:
            raise RuntimeError(
                "state_dict() was called in a rank that only reads. The sampler keeps a state of its own, and only the "
                "first rank of the group has it. Call state_dict() there, and load the result in all ranks."
            )
        return self._draws

    def is_changed(self) -> bool:
        """The conductor looks after that: Place.holds()."""
        return False

    def put_back(self, loader: Any) -> dict[str, Any]:
        """Nothing was drawn here: Place.give_up()."""
        return {}


def epoch_from(message: dict[str, Any]) -> Epoch:
    """The epoch that a reader makes of message_of()."""
    start = State() if message["start"] is None else state_of(message["start"])
    number, base_seed, served = message["number"], message["base_seed"], message["served"]
    made = Epoch(number, base_seed, served, start, message["ranks"], message["fixed"], False, 0)
    made.batch_size = message["batch_size"]
    made.source = _ConductorsSource(message["draws"])  # type: ignore[assignment]
    return made
