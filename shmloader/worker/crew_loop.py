"""A worker that serves several loaders, one batch of whichever after another: NOTE [ Crew ] in shared_workers.py.

What one loader's code finds in here is what it finds in workers of its own.  So whatever is the process's and of a
loader (the random states, what get_worker_info() says, torch's map of collate functions) is put aside when the worker
turns to another loader, and taken up again when it comes back.
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
from shmloader.core.board import Board, Hand
from shmloader.core.process import outlive_signals
from shmloader.core.worker import WorkerSide
from shmloader.ring.board_segment import BoardSegment
from shmloader.ring.segment import Segment
from shmloader.system import handed_over
from shmloader.system.call_stacks import Paper
from shmloader.system.handed_over import Channel, Message, Unpacking
from shmloader.system.parents_death import begin
from shmloader.worker.exceptions import caught
from shmloader.worker.loop import Worker

JOIN, PART = 1, 2  # kinds of messages; 0: what one should say is lost
COLLECT_EVERY = 8  # loaders with frozen datasets that parted: see _CrewLoop._collect()
SHARED = ("dataset", "collate_fn", "init_fn")  # of a loader, what a worker may have been started with


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
        outlives: Whether it goes on when its group is sent a signal: NOTE [ Group signals ].
        arguments: For each of SHARED, those of the loaders that were there at the start, by the loader's number.
    """
    begin(segment.trainer, outlives)
    _torch.set_worker_signal_handlers()
    if outlives:
        outlive_signals(segment.trainer)  # again: torch has a handler for SIGTERM, too
    gc.freeze()  # what is here by now is here to stay: see work() in loop.py
    if paper is not None:
        paper.tell()
    inherited = dict(arguments)
    arguments.clear()
    with contextlib.suppress(KeyboardInterrupt):  # the trainer raises it as well
        _CrewLoop(segment, channel, spin, worker_id, inherited).run()
    _torch.set_worker_info(None)


class _Seat:
    """What a worker has of one loader.

    Args:
        worker: It.
        side: Its side of the loader's ring.
        segment: The ring's memory.
        frozen_dataset: Sees its dataset, if the collector passes over that; None: it does not.
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
        """Keep what is the process's and of this loader."""
        self.side.turn_away()
        self._aside = (
            random.getstate(),
            numpy.random.get_state(),
            torch.get_rng_state(),
            _torch.worker_info(),
            dict(default_collate_fn_map),
        )

    def take_up(self) -> None:
        """Have it be the process's again."""
        of_random, of_numpy, of_torch, info, entries = self._aside
        random.setstate(of_random)
        numpy.random.set_state(of_numpy)
        torch.set_rng_state(of_torch)
        _torch.restore_worker_info(info)
        _set_entries(entries)
        self.worker.take_up()
        self.side.turn_to()

    def close(self) -> None:
        """Leave the ring's memory."""
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
        self._entries = dict(default_collate_fn_map)  # as they are before any loader's are in there
        self._seats: dict[int, _Seat] = {}  # by the number of the ring
        self._sides: list[WorkerSide] = []
        self._current: _Seat | None = None
        self._frozen_parts = 0  # loaders that have parted, whose datasets the collector has passed over since

    def run(self) -> None:
        """Make batches, and do what messages say, until the trainer closes its end."""
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
        """Do what the next message says; false where there are no more."""
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
            except Exception:  # in its own workers, the process would end by that
                error = caught(f"in DataLoader worker process {self._me}")
        self._entries = dict(default_collate_fn_map)  # modules that were imported may have added some
        is_sound = error is None
        worker = Worker(segment, side, **arguments) if is_sound else Worker.that_cannot_begin(segment, side, error)
        frozen_dataset = None
        if arguments.get(
            "persists"
        ):  # it is here to stay, and no collection is to walk through it: see work() in loop.py
            frozen_dataset = _seen(arguments["dataset"]) if token < 0 else _forked
            gc.freeze()
        del arguments
        self._current = self._seats[message.number] = _Seat(worker, side, segment, frozen_dataset)
        self._sides = [seat.side for seat in self._seats.values()]

    def _inherited_by(self, token: int) -> dict[str, Any]:
        """What this process was started with of a loader.  It is given once, because use changes it.  -1: nothing."""
        if token < 0:
            return {}
        return {name: self._inherited[name].pop(token) for name in SHARED}

    def _part(self, number: int) -> Callable[[], Any] | None:
        """Serve a ring no longer, which is about to be closed.  Returns what sees its dataset, if that was frozen."""
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
        """Have the dataset of a loader that is gone be gone too: it may be part of a cycle.

        A collection that looks at frozen objects looks at all of them, also at the trainer's that were forked.  It
        takes half a second for a million objects and copies their pages.  So it is made where the dataset lives on,
        and otherwise after a few loaders, because a part of a dataset may be a cycle.
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
    """In place of a weak reference to a dataset that was forked: the trainer's own loader keeps it, also in here."""


def _seen(dataset: Any) -> Callable[[], Any]:
    """A weak reference to a dataset, or what says that it lives on if its class allows none."""
    try:
        return weakref.ref(dataset)
    except TypeError:
        return lambda: True


def _set_entries(entries: dict[Any, Any]) -> None:
    if entries != default_collate_fn_map or list(entries) != list(default_collate_fn_map):
        default_collate_fn_map.clear()
        default_collate_fn_map.update(entries)
