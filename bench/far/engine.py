"""Far workers that are processes of this machine, so that the wire is measured without a cluster."""

from __future__ import annotations

import multiprocessing
import pickle
from typing import Any

from bench.far.delay import between
from shmloader.far.maker import serve
from shmloader.far_workers import FarSession, FarWorkers, Ticket


def _work(ticket: Ticket, pickled: bytes) -> None:
    serve(ticket, lambda: pickle.loads(pickled), "here")


class Nearby(FarWorkers):
    """Far workers over loopback.

    Args:
        num: How many.
        delay: Seconds that a byte takes in each direction, through a process between both; None: there is none.
        in_flight: How many batches each is asked for at once.
    """

    heartbeat = 60.0

    def __init__(self, num: int, delay: float | None = None, in_flight: int = 2) -> None:
        self.num = num
        self.in_flight = in_flight
        self._delay = delay
        self.pids: list[int] = []  # of the far workers' processes, once there are any

    def address(self) -> str:
        return "127.0.0.1"

    def begin(self, tickets: list[Ticket], arguments: dict[str, Any]) -> FarSession:
        session = _Session(tickets, pickle.dumps(dict(arguments)), self._delay)
        self.pids = session.pids
        return session


class _Session(FarSession):
    def __init__(self, tickets: list[Ticket], pickled: bytes, delay: float | None) -> None:
        spawning = multiprocessing.get_context("spawn")
        self._between: list[Any] = []
        if delay is not None:
            found, answer = spawning.Pipe(False)
            self._between.append(spawning.Process(target=between, args=(tickets, delay, answer), daemon=True))
            self._between[0].start()
            tickets = found.recv()
        self._processes = [spawning.Process(target=_work, args=(each, pickled), daemon=True) for each in tickets]
        for process in self._processes:
            process.start()
        self.pids = [process.pid for process in self._processes if process.pid is not None]

    def wait(self) -> None:
        """They connect when they are there."""

    def place(self, far: int) -> str:
        return f"It is process {self._processes[far].pid} of this machine."

    def close(self) -> None:
        for process in self._between:  # before the far workers, which see then that the trainer listens no more
            process.kill()
            process.join()
        for process in self._processes:
            process.join(5)
            process.kill()
            process.join()
