"""The memory of a crew's board: a few lines, by which its workers are called."""

from __future__ import annotations

import os
from multiprocessing import reduction
from typing import Any

from shmloader.core.board import LINE_BYTES
from shmloader.core.ring import Mapping
from shmloader.ring.geometry import PAGE, up
from shmloader.system import nameless
from shmloader.system.parents_death import follow


class BoardSegment:
    """Shared memory for one board.  A worker gets it by fork, or pickled while it is being spawned.

    Args:
        workers: How many workers the crew has.

    Raises:
        OSError: No descriptor or memory is left.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.trainer = os.getpid()
        self.size = up((workers + 1) * LINE_BYTES, PAGE)
        self._fd = nameless.memory("shmloader_crew")
        try:
            nameless.set_size(self._fd, self.size)
            nameless.allocate(self._fd, 0, self.size)
            self.mapping = Mapping(self._fd, self.size)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the descriptor.  Mappings live on."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __getstate__(self) -> dict[str, Any]:
        return {
            "workers": self.workers,
            "trainer": self.trainer,
            "size": self.size,
            "_fd": reduction.DupFd(self._fd),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        follow(state["trainer"])
        fd = state.pop("_fd").detach()
        self.__dict__.update(state, _fd=fd)
        self.mapping = Mapping(fd, self.size)
