"""The memory that a setting takes in all ranks of the machine: slots of the ring, and the workers' own memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from shmloader.commands.tuning.setting import Setting
from shmloader.device.accelerator import accelerator_of
from shmloader.device.pinning import IN_TRANSIT
from shmloader.options import Options
from shmloader.ring.geometry import FIRST_COMMIT
from shmloader.system.processes import own_bytes
from shmloader.trainer.schedule import FURTHER_BYTES, schedule_of


class Memory:
    """The memory that loaders were seen to take, and estimates for others.

    Args:
        ranks: How many processes of this machine have such a loader.
    """

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.slot_bytes = 0  # of the largest slot so far
        self.worker_bytes = 0  # of the largest worker so far, without shared memory

    @property
    def knows_slots(self) -> bool:
        """Whether a batch has been seen."""
        return self.slot_bytes > 0

    def note(self, iterator: Any) -> None:
        """Record what an iterator and its workers take now."""
        ring = getattr(iterator, "_ring", None)
        if ring is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self.slot_bytes = max(self.slot_bytes, *(ring.committed(slot) for slot in range(ring.payloads)))
        for worker in list(getattr(iterator, "_workers", ())):
            self.worker_bytes = max(self.worker_bytes, own_bytes(worker.pid))

    def weigh(self, setting: Setting, loader_of: Callable[[Setting], Any]) -> int:
        """Bytes that a setting takes in all ranks."""
        rings = slots_of(loader_of(setting), self.slot_bytes) * max(self.slot_bytes, FIRST_COMMIT)
        return self.ranks * (rings + setting.num_workers * self.worker_bytes)


def slots_of(loader: Any, slot_bytes: int) -> int:
    """How many slots of this size a loader's ring may fill (see _Further in trainer/schedule.py)."""
    options = Options.of(loader)
    size = schedule_of(loader, options).size
    batches = min(max(size.at_first, FURTHER_BYTES // max(1, slot_bytes)), size.batches)
    spare = options.spare_slots
    return int(batches + spare + (IN_TRANSIT if spare and accelerator_of(loader, options) is not None else 0))
