"""Far workers that are processes of this machine, so that the wire is measured without a cluster."""

from __future__ import annotations

import multiprocessing
import pickle
from typing import Any

from shmloader.far.facts import facts
from shmloader.far.maker import end_process, serve
from shmloader.far_workers import FarSession, FarWorkers, Ticket


def _work(ticket: Ticket, pickled: bytes) -> None:
    serve(ticket, lambda: pickle.loads(pickled), facts(), end_process)


class Nearby(FarWorkers):
    """Far workers over loopback.

    Args:
        num: How many.
    """

    heartbeat, libraries = 60.0, "warn"

    def __init__(self, num: int) -> None:
        self.num = num

    def address(self) -> str:
        return "127.0.0.1"

    def begin(self, tickets: list[Ticket], arguments: dict[str, Any]) -> FarSession:
        return _Session(tickets, pickle.dumps(dict(arguments)))


class _Session(FarSession):
    def __init__(self, tickets: list[Ticket], pickled: bytes) -> None:
        spawning = multiprocessing.get_context("spawn")
        self._processes = [spawning.Process(target=_work, args=(each, pickled), daemon=True) for each in tickets]
        for process in self._processes:
            process.start()

    def wait(self) -> None:
        """They connect when they are there."""

    def place(self, far: int) -> str:
        return f"It is process {self._processes[far].pid} of this machine."

    def close(self) -> None:
        for process in self._processes:
            process.join(5)
            process.kill()
            process.join()
