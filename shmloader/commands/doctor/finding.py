"""What the doctor says: one finding a line, about the loader that the user wants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["fine", "note", "attention"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        what: What it is: "/dev/shm".
        level: "fine"; "note": it works, and there is something to know; "attention": something should be changed.
        state: What was found: "64.0 MiB, all free".
        meaning: What that means for the loader; it may be empty where all is fine.
        remedy: What to do; empty where there is nothing to do.
    """

    what: str
    level: Level
    state: str
    meaning: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Wanted:
    """The loader that the machine is looked at for, one in each rank.

    Attributes:
        batch_bytes: Of one batch, all its tensors together.
        workers, prefetch_factor, spare_slots: The loader's options.
        ranks: How many processes of this machine have such a loader.
    """

    batch_bytes: int
    workers: int
    prefetch_factor: int
    spare_slots: int
    ranks: int

    @property
    def slots(self) -> int:
        """Of one ring."""
        return self.workers * self.prefetch_factor + self.spare_slots

    @property
    def ring_bytes(self) -> int:
        """Of all ranks' rings together."""
        from shmloader.ring.geometry import SPARE_COMMIT  # here, for off Linux there is no such module

        return self.ranks * self.slots * (self.batch_bytes + SPARE_COMMIT)

    @property
    def rings(self) -> str:
        """Whose memory that is: "a ring", or "8 ranks with a ring each"."""
        return "a ring" if self.ranks == 1 else f"{self.ranks} ranks with a ring each"

    @property
    def need(self) -> str:
        """The arithmetic of ring_bytes."""
        from shmloader.ring.growth import in_units

        return f"{self.rings} of {self.slots} slots x {in_units(self.batch_bytes)} takes {in_units(self.ring_bytes)}"
