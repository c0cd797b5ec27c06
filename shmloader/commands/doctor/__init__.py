"""`shmloader doctor`: checks whether this machine or environment limits a loader.
Here are a finding, and the loader for which the machine is checked, with the memory that its rings take.
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class Finding(NamedTuple):
    """The result of one check."""

    level: Literal["fine", "note", "attention"]  # "note": it works, and the user should know something
    state: str  # what the check found: "64.0 MiB, all free"
    meaning: str = ""  # for the loader
    remedy: str = ""  # what to do; empty if there is nothing to do


class Wanted(NamedTuple):
    """The loader for which the machine is checked, one in each rank."""

    batch_bytes: int  # of one batch, all its tensors together
    workers: int
    prefetch_factor: int
    spare_slots: int
    ranks: int  # processes of this machine that have such a loader

    @property
    def slots(self) -> int:
        """The slots of one ring."""
        return self.workers * self.prefetch_factor + self.spare_slots

    @property
    def ring_bytes(self) -> int:
        """The memory of all ranks' rings together."""
        from shmloader.ring.growth import SPARE_COMMIT  # here, because there is no such module off Linux

        return self.ranks * self.slots * (self.batch_bytes + SPARE_COMMIT)

    @property
    def need(self) -> str:
        """The arithmetic of ring_bytes."""
        from shmloader.ring.growth import in_units

        rings = "a ring" if self.ranks == 1 else f"{self.ranks} ranks with a ring each"
        return f"{rings} of {self.slots} slots x {in_units(self.batch_bytes)} takes {in_units(self.ring_bytes)}"
