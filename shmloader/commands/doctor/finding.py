"""One finding of the doctor, and the loader for which the machine is checked, with the memory that its rings take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["fine", "note", "attention"]


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        what: Its subject: "/dev/shm".
        level: "fine"; "note": it works, and the user should know something; "attention": something should be changed.
        state: What the check found: "64.0 MiB, all free".
        meaning: What that means for the loader; may be empty if all is fine.
        remedy: What to do; empty if there is nothing to do.
    """

    what: str
    level: Level
    state: str
    meaning: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Wanted:
    """The loader for which the machine is checked, one in each rank.

    Attributes:
        batch_bytes: The size of one batch, all its tensors together.
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
        """The slots of one ring."""
        return self.workers * self.prefetch_factor + self.spare_slots

    @property
    def ring_bytes(self) -> int:
        """The memory of all ranks' rings together."""
        from shmloader.ring.geometry import SPARE_COMMIT  # here, because there is no such module off Linux

        return self.ranks * self.slots * (self.batch_bytes + SPARE_COMMIT)

    @property
    def rings(self) -> str:
        """The subject of the arithmetic: "a ring", or "8 ranks with a ring each"."""
        return "a ring" if self.ranks == 1 else f"{self.ranks} ranks with a ring each"

    @property
    def need(self) -> str:
        """The arithmetic of ring_bytes."""
        from shmloader.ring.growth import in_units

        return f"{self.rings} of {self.slots} slots x {in_units(self.batch_bytes)} takes {in_units(self.ring_bytes)}"
