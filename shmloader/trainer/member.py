"""The workers of a crew, as one of its iterators uses them: NOTE [ Crew ] in shared_workers.py.
It has them join and leave the iterator's ring.  shared_workers.py decides which ring counts the death of a worker.
"""

from __future__ import annotations

import contextlib
import pickle
import threading
import time
import weakref
from multiprocessing.process import BaseProcess
from typing import Any

from shmloader.core.handlers import is_handlers
from shmloader.core.late_signals import is_in_del
from shmloader.core.trainer import TrainerSide
from shmloader.ring.segment import Segment
from shmloader.system.handed_over import HandedOver
from shmloader.system.signals import held, let_through
from shmloader.trainer.closing import CREW_CLOSED
from shmloader.trainer.later_code import is_of_script
from shmloader.trainer.shared_workers import SharedWorkers
from shmloader.trainer.watch import runs
from shmloader.trainer.worker_set import PATIENCE, WorkerSet
from shmloader.worker.crew_loop import INHERITED


class Member(WorkerSet):
    """The workers of one iterator, which serve other iterators of the crew as well.

    Args:
        shared: The crew's workers.
        iterator: The iterator.
        steals: Whether any of them may claim what is open.

    The other arguments are WorkerSet's.

    Attributes:
        number: Of its ring.
        active: Whether it is iterated.
    """

    def __init__(
        self,
        shared: SharedWorkers,
        ring: TrainerSide,
        segment: Segment,
        *,
        iterator: weakref.ref[Any],
        respawn: bool,
        reissue: bool,
        timeout: float,
        steals: bool,
    ) -> None:
        super().__init__(
            shared._context, ring, segment, respawn=respawn, reissue=reissue, timeout=timeout, outlives=shared.outlives
        )
        self._changing = shared.changing
        self._shared = shared
        self._reference = iterator
        self._steals = steals
        self._folded = False
        self._is_filled = False  # at the end, by a worker that did not answer in time
        self.number = shared.next_ring()
        self.active = False
        self._given: dict[str, Any] = {}
        self._handed: dict[bool, HandedOver] = {}

    def iterator(self) -> Any:
        """Its iterator; None if that is gone, or if another thread, which is in its `__del__()`, ends it."""
        found = self._reference()
        return None if found is None or found.is_dying else found

    # ------------------------------------------------------------------------------------------------- joining

    def start(self, count: int, spin: bool, arguments: dict[str, Any]) -> None:
        """Have the workers join.  Args: as for WorkerSet."""
        shared, iterator = self._shared, self.iterator()
        loader = None if iterator is None else iterator.loader()
        self._loader = -1 if loader is None else shared.number_of(loader)
        self._spin, self._given, self._count = spin, arguments, count
        with held(), self._changing:
            shared.have(spin)
            self.workers[:] = shared.workers
            shared.signals.members[self.number] = weakref.ref(self)
            for index in range(count):
                self._join(index, 0)
            if not self._respawn:
                self._close_handed()
            if self._who_died():
                self.note_deaths()

    def _join(self, index: int, first: int) -> None:
        """Have one worker serve this ring, from this sequence on."""
        shared = self._shared
        inherits = bool(self._given["persists"]) and shared.takes_inheritance(index, self._loader, self._given)
        handed = self._handed.get(inherits)
        if handed is None or not handed.for_all:
            if handed is not None:
                handed.close()
            handed = self._handed[inherits] = self._hand_over(inherits)  # a handler may run, and close this
            if self._stopped:
                self._close_handed()
            self._refuse_if_closed()
        if name := shared.defined_later(index, handed.named):
            raise RuntimeError(
                f"{name} was defined, or defined again, after the crew's workers were started, so they do not have "
                f"this {name}. Call crew.close(), so that the next iter() starts workers that have it. "
                "Or define it in a module."
            )
        worker = shared.workers[index]
        shared.signals.messages.join(index, self.number, first, handed, lambda: self._awaits(worker))
        self._refuse_if_closed()

    def _awaits(self, worker: BaseProcess) -> bool:
        """Whether this worker may still join."""
        self._refuse_if_closed()
        return runs(worker)

    def _refuse_if_closed(self) -> None:
        """Raise if the ring was closed: by a signal's handler, because only this thread may change the workers now."""
        if self._stopped:
            raise RuntimeError(CREW_CLOSED)

    def _hand_over(self, inherits: bool) -> HandedOver:
        given = {name: part for name, part in self._given.items() if not (inherits and name in INHERITED)}
        try:
            return HandedOver((self._segment, self._spin, self._loader if inherits else -1), given, notes=is_of_script)
        except (TypeError, AttributeError, pickle.PicklingError, RuntimeError) as error:
            if self._stopped or is_handlers(error):
                raise
            raise type(error)(
                f"{error}\nThe crew's workers already run, so {self.dataset_name}, its collate_fn and its "
                "worker_init_fn must be pickled for them. One of the three cannot be pickled. Define it at the top of "
                "a module. Or have the workers inherit the dataset: let the crew fork them, give this loader "
                "persistent_workers=True, and make it before you iterate any loader of the crew."
            ) from error

    @property
    def dataset_name(self) -> str:
        """What its dataset is, for others' errors."""
        return type(self._given.get("dataset")).__name__

    def _close_handed(self) -> None:
        while self._handed:
            self._handed.popitem()[1].close()

    # --------------------------------------------------------------------------------------------------- deaths

    def note_deaths(self) -> None:
        """Raise the ring's alarm for the workers that have died.  Also by the thread that watches them."""
        if died := self._who_died():
            self._ended.update(died)
            self._ring.alarm()

    def _who_died(self) -> list[int]:
        return [index for index, worker in enumerate(self.workers) if self._shared.has_died(index, worker)]

    def holds(self, index: int, worker: BaseProcess) -> bool:
        """Whether this process has begun a batch of this ring."""
        if self._stopped or index >= len(self.workers) or self.workers[index] is not worker:
            return False
        with contextlib.suppress(RuntimeError):  # it was closed meanwhile
            return bool(self._ring.sequences.holds(index))
        return False

    def _replace(self, dead: list[int]) -> None:
        with held(), self._changing:
            if self._stopped:
                return
            if dead:
                self._shared.refuse_in_handler()  # before a death is counted
            for index in dead:
                if self._shared.has_died(index, self.workers[index]):
                    self._replace_one(index)
                else:  # the watching thread has noted it again, while this one replaced it
                    self._ended.discard(index)

    def _is_to_blame(self, index: int) -> bool:
        holder = self._shared.held_by(self.workers[index], index)
        return holder is None or holder == self.number

    def _start_one(self, index: int, first: int) -> BaseProcess:
        self._shared.have(self._spin)
        worker = self._shared.workers[index]
        self.workers[index] = worker
        self._join(index, first)
        return worker

    def _may_kill(self, index: int, sequence: int) -> bool:
        return sequence in self._ring.sequences.holds(index)

    def _holding(self, index: int, sequence: int) -> str:
        self._paper = self._shared.paper
        held = super()._holding(index, sequence)
        others = [other for other in self._shared.signals.living() if other is not self]
        for other in others:
            if other.holds(index, self.workers[index]):
                return (
                    f"{held}\nThe worker is making a batch for another loader of its crew (dataset: "
                    f"{other.dataset_name})."
                )
        return held

    def dismiss(self, index: int) -> None:
        """Note that a worker has nothing more to give here.  It continues for other loaders."""
        self._dismissed.add(index)

    # ----------------------------------------------------------------------------------------------- who is at work

    def works(self) -> None:
        """Called when an epoch begins."""
        self._shared.begins(self)
        if self._folded:
            self._folded = False
            if (iterator := self.iterator()) is not None:
                iterator.unfold()

    def rests(self) -> None:
        """Called when an epoch is over."""
        self._shared.ends(self)

    def fold(self) -> None:
        """Give the memory of free slots back while other loaders are iterated."""
        iterator = self.iterator()
        if not self._folded and not self._stopped and iterator is not None:
            try:
                iterator.fold()
            except RuntimeError:
                if not self._stopped:  # otherwise a signal's handler has closed it meanwhile
                    raise
            self._folded = True

    # ------------------------------------------------------------------------------------------------- parting

    def cannot_stop_in(self, thread: threading.Thread) -> bool:
        """Whether this thread must not call stop(): NOTE [ Shutdown ], 8, in iterator.py."""
        return self._shared.cannot_stop_in(thread) or (is_in_del() and not self.part(waits=False))

    def unwatch(self) -> None:
        """torch's handler for SIGCHLD does not know these workers."""

    @property
    def lives(self) -> bool:
        """Whether any worker may use the ring's memory: its payloads, that is.  See NOTE [ Crew ], 4."""
        return self._is_filled if self.ended else self._may_be_filled()

    def _may_be_filled(self) -> bool:
        return any(self._may_fill(index) for index in range(len(self.workers)))

    def _may_fill(self, index: int) -> bool:
        worker, shared = self.workers[index], self._shared
        if shared.workers[index] is worker and shared.signals.messages.has_parted(index, self.number):
            return False
        if not runs(worker):
            return False
        with contextlib.suppress(RuntimeError):
            return bool(self._ring.sequences.owes(index)) or (self._steals and self._ring.under_way > 0)
        return False

    def _part(self) -> None:
        """Have all workers part from the ring."""
        died = self._shared.has_died
        for index, worker in enumerate(self.workers):
            if died(index, worker):
                self._shared.held_by(worker, index)  # others may ask when this ring is gone
        self._stopped, self.active = True, False
        self._ring.stop()
        for index, worker in enumerate(self.workers):
            if not died(index, worker):
                self._shared.signals.messages.part(index, self.number)

    def stop(self) -> None:
        """Have all workers part from the ring.  When it returns, none fills a payload, unless it does not answer."""
        with held():
            try:
                self.part()
            finally:
                try:
                    self._wait_for_those_who_fill()
                finally:
                    self._close_handed()
                    self._is_filled = self._may_be_filled()  # before it is forgotten who has parted
                    self._shared.signals.members.pop(self.number, None)
                    self._shared.signals.messages.forget(self.number)
                    self._given = {}
                    self.ended = True

    def _wait_for_those_who_fill(self) -> None:
        end = time.monotonic() + PATIENCE
        for index in range(len(self.workers)):
            while self._may_fill(index) and (left := end - time.monotonic()) > 0:
                if self._changing.acquire(blocking=False):  # otherwise try again: NOTE [ Shutdown ], 9
                    try:
                        self._shared.signals.messages.flush(index)
                    finally:
                        self._changing.release()
                with let_through():
                    self._shared.signals.messages.wait_parted(index, self.number, left)
        late = [index for index in range(len(self.workers)) if self._may_fill(index)]
        if late and all(other is self for other in self._shared.signals.living()):
            for index in late:  # no other loader needs it, and the next one to join starts another
                self.workers[index].kill()
                self.workers[index].join(PATIENCE)
