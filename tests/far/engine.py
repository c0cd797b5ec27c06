"""An engine of far workers that needs no Ray: processes of this machine, which start again when they die."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import threading
from multiprocessing import connection, get_context
from typing import Any

from shmloader.far.maker import serve
from shmloader.far_workers import FarSession, FarWorkers, Ticket

CONTEXT = get_context("forkserver")  # its server imports torch, and the processes that it forks do not


def work(ticket: Ticket, pickled: bytes) -> None:
    """What a far worker's process does."""
    serve(ticket, lambda: pickle.loads(pickled), f"node-{ticket.number}")


class Here(FarWorkers):
    """Far workers that are near.

    Args:
        num: How many.
        heartbeat, in_flight: As in FarWorkers.
        restarts: Whether one that dies is started again.
    """

    def __init__(self, num: int, heartbeat: float = 60.0, restarts: bool = True, in_flight: int = 2) -> None:
        self.num, self.heartbeat, self.restarts = num, heartbeat, restarts
        self.in_flight = in_flight
        self.session: Session | None = None
        self.tickets: list[Ticket] = []

    def address(self) -> str:
        return "127.0.0.1"

    def change(self, ticket: Ticket) -> Ticket:
        """What a test does to tickets, so that far workers take another way."""
        return ticket

    def begin(self, tickets: list[Ticket], arguments: dict[str, Any]) -> FarSession:
        self.tickets = tickets
        self.session = Session([self.change(each) for each in tickets], pickle.dumps(dict(arguments)), self.restarts)
        return self.session


class Session(FarSession):
    def __init__(self, tickets: list[Ticket], pickled: bytes, restarts: bool) -> None:
        self.tickets, self.pickled, self.restarts = tickets, pickled, restarts
        self.closed = False
        self.deaths = 0
        self.processes = [self.started(ticket) for ticket in tickets]
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def started(self, ticket: Ticket) -> Any:
        process = CONTEXT.Process(target=work, args=(ticket, self.pickled), daemon=True)
        process.start()
        return process

    def watch(self) -> None:
        """Start those that were killed again; one whose loader is closed leaves by itself, with exit code 0."""
        living = dict(enumerate(self.processes))
        while living:
            connection.wait([process.sentinel for process in living.values()])
            for far, process in [*living.items()]:
                if process.is_alive():
                    continue
                process.join()
                if process.exitcode and self.restarts and not self.closed:
                    self.deaths += 1
                    living[far] = self.processes[far] = self.started(self.tickets[far])
                else:
                    del living[far]

    def kill(self, far: int, number: int = signal.SIGKILL) -> None:
        with contextlib.suppress(ProcessLookupError):  # it was killed before, and is about to be started again
            os.kill(self.processes[far].pid, number)

    def wait(self) -> None:
        pass

    def place(self, far: int) -> str:
        if not self.processes:
            return ""
        return f"It is process {self.processes[far].pid} of this machine."

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.thread.join(30)
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join()
            process.close()
