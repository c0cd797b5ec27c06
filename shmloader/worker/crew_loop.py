"""A worker that makes batches of several loaders: NOTE [ Crew ] in shared_workers.py.
board.pyx chooses the loader that it makes the next batch for.

The code of each loader finds here what it would find in workers of its own.  Some of that belongs to the process: the
random states, the result of get_worker_info(), torch's map of collate functions.  When the worker turns to another
loader, it puts these aside.  When it comes back, it restores them.
"""

from __future__ import annotations

import contextlib
import gc
import random
import weakref
from collections.abc import Callable
from typing import Any

import numpy
import torch

from shmloader import _torch
from shmloader._torch import default_collate_fn_map
from shmloader.batch.exceptions import caught
from shmloader.core.board import Board, Hand
from shmloader.core.process import outlive_signals
from shmloader.core.worker import WorkerSide
from shmloader.ring.board_segment import BoardSegment
from shmloader.ring.segment import Segment
from shmloader.system import handed_over
from shmloader.system.call_stacks import Paper
from shmloader.system.handed_over import Channel, Message, Unpacking
from shmloader.system.parents_death import begin
from shmloader.worker.loop import Worker

JOIN, PART = 1, 2  # kinds of messages; 0: the message was lost on the way
COLLECT_EVERY = 8  # after this many loaders with frozen datasets have parted: see _CrewLoop._collect()
SHARED = ("dataset", "collate_fn", "init_fn")  # a loader's arguments that a worker may have had since its start
INHERITED = (*SHARED, "numbers")  # with those that such a dataset has


def work_in_crew(
    segment: BoardSegment,
    channel: Channel,
    spin: bool,
    worker_id: int,
    paper: Paper | None,
    outlives: bool,
    arguments: dict[str, Any],
) -> None:
    """Be worker number `worker_id` of a crew, until the trainer closes its end of the channel.

    Args:
        segment: The board's memory.
        channel: To the trainer.
        spin: Whether it may pause on its core before it sleeps.
        paper: Where to write its stack when the trainer asks.
        outlives: Whether it survives signals to its group: NOTE [ Group signals ].
        arguments: For each name in INHERITED, a dict with the arguments of the loaders that existed at the start, by
            the loader's number.
    """
    begin(segment.trainer, outlives)
    _torch.set_worker_signal_handlers()
    if outlives:
        outlive_signals(segment.trainer)  # again, because torch has set a handler for SIGTERM
    gc.freeze()  # the objects that exist now live as long as the worker: see work() in loop.py
    if paper is not None:
        paper.tell()
    inherited = dict(arguments)
    arguments.clear()
    with contextlib.suppress(KeyboardInterrupt):  # the trainer raises it too
        _CrewLoop(segment, channel, spin, worker_id, inherited).run()
    _torch.set_worker_info(None)


class _Seat:
    """A worker's part in one loader.

    Args:
        worker: Makes the loader's batches.
        side: Its side of the loader's ring.
        segment: The ring's memory.
        frozen_dataset: Returns the dataset if it is alive and the collector skips it; None: the collector skips none.
    """

    def __init__(
        self, worker: Worker, side: WorkerSide, segment: Segment, frozen_dataset: Callable[[], Any] | None
    ) -> None:
        self.worker = worker
        self.side = side
        self.frozen_dataset = frozen_dataset
        self._segment = segment
        self._aside: tuple[Any, ...] = ()

    def put_aside(self) -> None:
        """Save the loader's part of the process's state."""
        self.side.turn_away()
        self._aside = (
            random.getstate(),
            numpy.random.get_state(),
            torch.get_rng_state(),
            _torch.worker_info(),
            dict(default_collate_fn_map),
        )

    def take_up(self) -> None:
        """Restore what put_aside() has saved."""
        of_random, of_numpy, of_torch, info, entries = self._aside
        random.setstate(of_random)
        numpy.random.set_state(of_numpy)
        torch.set_rng_state(of_torch)
        _torch.restore_worker_info(info)
        _set_entries(entries)
        self.worker.take_up()
        self.side.turn_to()

    def close(self) -> None:
        """Unmap the ring's memory."""
        self._segment.close()


class _CrewLoop:
    """What a worker process of a crew does.  Args: see work_in_crew()."""

    def __init__(
        self, segment: BoardSegment, channel: Channel, spin: bool, me: int, inherited: dict[str, dict[int, Any]]
    ) -> None:
        self._segment = segment
        self._channel = channel
        self._me = me
        self._hand = Hand(Board(segment.mapping, segment.workers), me, spin)
        self._inherited = inherited
        self._entries = dict(default_collate_fn_map)  # the entries before any loader has added its own
        self._seats: dict[int, _Seat] = {}  # by the number of the ring
        self._sides: list[WorkerSide] = []
        self._current: _Seat | None = None
        self._frozen_parts = 0  # loaders that have parted since the last collection of frozen objects

    def run(self) -> None:
        """Make batches, and handle messages, until the trainer closes its end."""
        try:
            while True:
                claimed = self._hand.claim(self._sides)
                if claimed is None:
                    if not self._obey():
                        return
                else:
                    self._make(*claimed)
        finally:
            for seat in self._seats.values():
                seat.worker.end()

    def _make(self, side: WorkerSide, written: Any) -> None:
        """Make what was claimed of a loader's ring; a function, because a variable of run() would keep that loader."""
        seat = self._current
        if seat is None or seat.side is not side:
            seat = self._turn_to(next(seat for seat in self._seats.values() if seat.side is side))
        seat.worker.make(written)

    def _turn_to(self, seat: _Seat) -> _Seat:
        self._put_aside()
        seat.take_up()
        self._current = seat
        return seat

    def _put_aside(self) -> None:
        if self._current is not None:
            self._current.put_aside()
            self._current = None

    def _obey(self) -> bool:
        """Handle the next message; false if the trainer has closed its end."""
        message = handed_over.receive(self._channel.socket)
        if message is None:
            return False
        if message.kind == JOIN:
            self._join(message)
            self._hand.heard()
        elif message.kind == PART:
            frozen_dataset = self._part(message.number)
            self._hand.heard()  # first, because the trainer may wait for it
            self._collect(frozen_dataset)
        else:
            self._hand.heard()
        return True

    def _join(self, message: Message) -> None:
        """Serve a loader's ring from now on."""
        self._put_aside()
        _set_entries(self._entries)
        _torch.set_worker_info(None)
        error = None
        with Unpacking(message) as values:
            segment, spin, token = values.next()
            segment.board = self._segment.mapping
            side = WorkerSide(segment, spin, self._me, 0, message.first)
            arguments: dict[str, Any] = {}
            try:
                arguments = self._inherited_by(token) | values.next()
            except Exception:  # a worker with one loader would end with it; this one has other loaders
                error = caught(f"in DataLoader worker process {self._me}")
        self._entries = dict(default_collate_fn_map)  # modules that were imported may have added some
        is_sound = error is None
        worker = Worker(segment, side, **arguments) if is_sound else Worker.that_cannot_begin(segment, side, error)
        frozen_dataset = None
        if arguments.get("persists"):  # the dataset lives long, so the collector should skip it: see work() in loop.py
            frozen_dataset = _seen(arguments["dataset"]) if token < 0 else _forked
            gc.freeze()
        del arguments
        self._current = self._seats[message.number] = _Seat(worker, side, segment, frozen_dataset)
        self._sides = [seat.side for seat in self._seats.values()]

    def _inherited_by(self, token: int) -> dict[str, Any]:
        """The loader's arguments that this process got at its start.  Each is given once, because use changes it.

        Args:
            token: The loader's number; -1: it did not exist then.
        """
        if token < 0:
            return {}
        return {name: self._inherited[name].pop(token) for name in INHERITED}

    def _part(self, number: int) -> Callable[[], Any] | None:
        """Stop serving a ring, because it is about to be closed; returns the seat's `frozen_dataset`."""
        seat = self._seats.pop(number, None)
        if seat is None:
            return None
        self._sides = [seat.side for seat in self._seats.values()]
        seat.worker.end()
        seat.close()
        if self._current is seat:
            self._current = None
            _torch.set_worker_info(None)
            _set_entries(self._entries)
        return seat.frozen_dataset

    def _collect(self, frozen_dataset: Callable[[], Any] | None) -> None:
        """Free the dataset of a loader that is gone.  It may be part of a cycle, so this takes a collection.

        A collection of frozen objects walks through all of them, also through those that were forked with the trainer.
        It takes half a second for a million objects, and copies their pages.  So it is made at once only if the dataset
        is still alive.  Otherwise it is made after COLLECT_EVERY loaders, because a part of it may be in a cycle.
        """
        if frozen_dataset is None:
            gc.collect()
            return
        self._frozen_parts += 1
        if self._frozen_parts == COLLECT_EVERY or frozen_dataset() is not None:
            self._frozen_parts = 0
            gc.unfreeze()
            gc.collect()
            gc.freeze()


def _forked() -> None:
    """Stands for a weak reference to a forked dataset, which no collection frees: the trainer's own loader keeps it."""


def _seen(dataset: Any) -> Callable[[], Any]:
    """A weak reference to a dataset; or a function that returns True, if the class allows no weak references."""
    try:
        return weakref.ref(dataset)
    except TypeError:
        return lambda: True


def _set_entries(entries: dict[Any, Any]) -> None:
    if entries != default_collate_fn_map or list(entries) != list(default_collate_fn_map):
        default_collate_fn_map.clear()
        default_collate_fn_map.update(entries)
