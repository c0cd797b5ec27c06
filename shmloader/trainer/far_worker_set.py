"""The workers of one ring, some of which are stand-ins for far workers: NOTE [ Far workers ] in far/stand_in.py.
It decides against which batch the loss of a far worker counts.
"""

from __future__ import annotations

import os
from multiprocessing.process import BaseProcess
from typing import Any

from shmloader.far.door import Door
from shmloader.far.stand_in import stand_in
from shmloader.far_workers import FarSession, FarWorkers
from shmloader.system.signals import held, let_through
from shmloader.trainer.watch import not_started
from shmloader.trainer.worker_set import WorkerSet

SECRET = 32  # bytes


class FarWorkerSet(WorkerSet):
    """Local workers first, and then a stand-in for each far worker.

    Args:
        far: The far workers.
        local: How many local ones there are.
        nodes: Gets the machine of each far worker, by its number.

    All others are WorkerSet's.
    """

    def __init__(self, *ring: Any, far: FarWorkers, local: int, nodes: dict[int, str], **others: Any) -> None:
        super().__init__(*ring, **others)
        self._far = far
        self._local = local
        self._nodes = nodes
        self._doors: list[Door] = []
        self._session: FarSession | None = None

    def start(self, count: int, spin: bool, arguments: dict[str, Any]) -> None:
        """Put the far workers to work, then start local workers and stand-ins.  Args: as for WorkerSet.

        Far workers load the dataset on their machines meanwhile.
        """
        far, address = self._far, self._far.address()
        with held():
            for number in range(self._local, count):
                try:
                    door = Door(address, number, count, os.urandom(SECRET), far.heartbeat, far.in_flight)
                except OSError as error:
                    raise _no_door(error, address, number, count) from None
                self._doors.append(door)
            with let_through():  # to pickle the dataset may take long
                self._session = far.begin([door.ticket for door in self._doors], arguments)
        super().start(count, spin, arguments)
        self._session.wait()

    def _process(self, index: int, first: int) -> BaseProcess:
        if index < self._local:
            return super()._process(index, first)
        door = self._door(index)
        door.forget_note()
        return self._process_of(stand_in, index, first, door)  # without the dataset, so none is pickled for it

    def _door(self, index: int) -> Door:
        return self._doors[index - self._local]

    def note_nodes(self) -> None:
        """Look on which machines the far workers are now.  Where one is lost, its last machine stays."""
        for door in self._doors:
            if node := door.node():
                self._nodes[door.ticket.number] = node

    # --------------------------------------------------------------------------------------------------- deaths

    def _end_by_server(self, index: int) -> str:
        return self._far_end(index) or super()._end_by_server(index)

    def _replace_one(self, index: int) -> None:
        self.workers[index].join()  # its note is complete then
        if (why := self._far_end(index)) and index not in self._hung:
            self._hung[index] = why
        super()._replace_one(index)

    def _far_end(self, index: int) -> str:
        """Why a stand-in ended, if that was for its far worker; otherwise empty."""
        if index < self._local or not (note := self._door(index).note()[0]):
            return ""
        return f"{note} {self._place(index)}"

    def _begun(self, index: int) -> tuple[bool, list[int]]:
        """Whether a stand-in lost its far worker with batches under way, and which of them that had begun."""
        holds = self._ring.sequences.holds(index)
        note, begun = self._door(index).note() if index >= self._local else ("", None)
        return bool(note and holds), [sequence for sequence in holds if sequence == begun]

    def _is_to_blame(self, index: int) -> bool:
        lost, begun = self._begun(index)
        return not lost or bool(begun)

    def _suspects(self, index: int) -> list[int]:
        return self._begun(index)[1] or super()._suspects(index)

    def _place(self, index: int) -> str:
        return "" if self._session is None else self._session.place(index - self._local)

    def _holding(self, index: int, sequence: int) -> str:
        held_so = super()._holding(index, sequence)
        if index < self._local:
            return held_so
        return f"{held_so}\nIt stands in for far worker {index}. {self._place(index)}"

    # -------------------------------------------------------------------------------------------------- stopping

    def _stop_ring(self) -> None:
        try:
            super()._stop_ring()
        finally:
            for door in self._doors:
                door.close()  # a stand-in waits there, or for its far worker, and not for the ring
            if self._session is not None:
                self._session.close()

    def _close_pipes(self) -> None:
        super()._close_pipes()
        self.note_nodes()
        for door in self._doors:
            door.close_note()


def _no_door(error: OSError, address: str, number: int, count: int) -> OSError:
    """The error to raise if this process cannot listen for a far worker: the system's, with limit and remedy."""
    if (told := not_started(error, number, count)) is not error:
        return told
    return OSError(
        error.errno,
        f"far worker {number} cannot connect to {address!r}: {error.strerror or error}. It must be an address of this "
        "machine that the other machines reach. Give far_workers another address, or none for the one that it finds.",
    )
