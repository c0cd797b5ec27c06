"""The worker processes of a `shmloader.Crew`, which serve all its loaders.
It decides when they start and end, what they inherit by a fork, which ring counts a worker's death, and which loaders
at rest give memory back.

NOTE [ Crew ]

Training and validation are two loaders, and usually only one of them is iterated at a time.  With workers of their own,
they would keep twice the processes and twice the memory, or would start workers for each pass.  A crew is one set of
workers for both.

    1. Loaders share the processes, and take turns with the memory.  Everything else belongs to one loader, exactly as
       without a crew: each iterator has a ring with its own control words, order, payloads and figures, and handles
       deaths by itself.  So the protocol stays the same (NOTE [ Slot ring ] in ring.pxd), and so do resume, statistics
       and leases.  We decided against one ring for all loaders, whose entries would name their loader.  Each loader
       takes batches in its own order, so a slow loader would occupy entries that the others need.  The ring would have
       to keep deaths, payload sizes, budgets, page-locking and `spare_slots` for each loader.  Each step of the hot
       path would look for its loader.  A further ring costs only its control words, some 100 KiB.
    2. A worker serves several rings but sleeps on one bell.  That bell lies in a cache line of the crew's board
       (board.pyx).  Each ring's trainer rings that bell, and not the one in its ring.  A worker announces that it is
       about to sleep, looks into all rings and for messages, and only then sleeps.  tests/core/model/crew_model.py
       models that part.
    3. A worker makes the batch that is needed first.  In each ring, the worker looks at the batch that it would make
       there, and counts the batches that the trainer takes before that one.  It chooses the ring with the smallest
       count.  If two rings have the same count, they take turns.  So a loader that is iterated alone gets all workers,
       and of two that are iterated at once, the one that has less ready gets more.  None starves.  A batch that was
       begun is finished first.
    4. To join or leave a ring, a worker gets a message through a socket (handed_over.py).  For each worker, the board
       counts the messages that were sent to the worker, and those that the worker has carried out.  The message to join
       carries the ring's descriptors, and what the loader has pickled once for all workers.  The trainer may close a
       ring when each worker with an open or claimed batch there has received the message to leave it.  The other
       workers have nothing open there, so they can claim nothing.  The payloads' pages are freed at once.  The control
       words are freed when the last worker has unmapped them.
    5. A process has one set of random states, one get_worker_info() and one map of torch's collate functions, but each
       loader needs all three for itself.  So crew_loop.py swaps them when a worker turns to another loader.
    6. `persistent_workers` means what it means without a crew.  With it, a worker gets its copy of the dataset and its
       seeds once, at the loader's first epoch.  Without it, each iter() gives workers the dataset as it is then, seeds
       them, and calls `worker_init_fn`.  User code cannot see that the processes live on.
       If workers are forked after a loader with `persistent_workers` was made, they inherit its dataset by the fork.
    7. A dead worker is dead for every ring, and each ring reacts by its own `on_worker_death`.  The first ring that
       respawns starts another process.  Each ring that respawns revokes what it had given the dead worker, and has the
       new one join.  If the dead worker held a batch of a ring, or was joining a ring, that ring counts the death as
       its own fault.  The others do not.
    8. A ring that is at rest folds (Slots.fold) as soon as another loader of the crew is iterated: its free payloads
       give their pages back.  Its next epoch commits pages again, as its first one did.  So training and validation,
       one after the other, take the memory of one.  A ring that was left in mid-epoch keeps what is ready.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from shmloader._multiprocessing import preload_in_fork_server
from shmloader.attributes import attribute
from shmloader.core.board import Board
from shmloader.core.late_signals import in_del
from shmloader.core.ring import Mapping
from shmloader.resume.epochs import Numbers
from shmloader.ring.board_segment import BoardSegment
from shmloader.system import handed_over
from shmloader.system.by_identity import ByIdentity
from shmloader.system.call_stacks import Paper
from shmloader.system.endings import take_all
from shmloader.system.green_threads import refuse_green_threads
from shmloader.system.native_threads import warn_before_fork
from shmloader.system.own_lock import OwnLock
from shmloader.system.signals import held, held_in_del
from shmloader.system.spawn_arguments import Parcel
from shmloader.template.context import Share, TemplateContext
from shmloader.template.of_dataset import DatasetTemplates
from shmloader.trainer.closing import CREW_CLOSED
from shmloader.trainer.later_code import Code, code_of_script, defined_later
from shmloader.trainer.messages import Messages
from shmloader.trainer.open_files import warn_of_open_files
from shmloader.trainer.watch import runs
from shmloader.trainer.worker_set import WorkerSet
from shmloader.worker.crew_loop import INHERITED, SHARED, work_in_crew

MOST_WORKERS = 0xFFFF


class _Signals:
    """Takes the place of a ring where several rings share workers: it alarms all of them, and stops all workers.

    The watching thread holds it weakly, and it holds the rings weakly.
    """

    def __init__(self, board: Board) -> None:
        self.board = board
        self.members: dict[int, weakref.ref[Any]] = {}
        self.messages = Messages(board)
        self.stopped = False

    def living(self) -> list[Any]:
        """The members that there are."""
        return [member for reference in list(self.members.values()) if (member := reference()) is not None]

    def alarm(self) -> None:
        """A worker has died."""
        self.board.died()
        for member in self.living():
            member.note_deaths()

    def stop(self) -> None:
        """Have all workers leave."""
        self.stopped = True
        for index in range(self.board.workers):
            self.messages.leave(index)


class SharedWorkers(WorkerSet):
    """The workers of a crew, once any of its loaders is iterated.

    Args:
        count: How many.
        context: multiprocessing, or a context of it.
        template: Whether a template process forks them.
        outlives: Whether workers survive a signal to their group.
    """

    def __init__(self, count: int, context: Any, template: bool, outlives: bool) -> None:
        self._owner = os.getpid()
        self.count = count
        self._ending = threading.RLock()  # two threads may close the crew
        self._templates = DatasetTemplates() if template else None
        if self._templates is not None:
            plain = multiprocessing.get_context(context) if isinstance(context, str) else context
            share = Share(self._templates, weakref.ref(self))
            context = TemplateContext(share, plain.get_context(), 0, outlives)
        segment: Any = BoardSegment(count)
        signals: Any = _Signals(Board(segment.mapping, count))
        self.signals = signals
        super().__init__(context, signals, segment, respawn=True, reissue=True, timeout=0, outlives=outlives)
        self._loaders: ByIdentity[int] = ByIdentity()
        self._inherits: list[dict[int, tuple[Callable[[], Any], ...]]] = [{} for _ in range(count)]
        self._code: list[Code | None] = [None] * count  # that a forked worker has of the script
        self._numbers = itertools.count(1)
        self._held_by: weakref.WeakKeyDictionary[BaseProcess, int | None] = weakref.WeakKeyDictionary()
        self._refuses = False
        self._starter = 0  # the thread in have()

    @property
    def changing(self) -> Any:
        """Held by whoever starts workers, or joins or leaves them."""
        return self._changing

    @property
    def board(self) -> Board:
        """Where the workers' bells are."""
        board: Board = self.signals.board
        return board

    @property
    def board_memory(self) -> Mapping:
        """The same, as memory."""
        return self._segment.mapping

    @property
    def is_usable(self) -> bool:
        """Whether they belong to this process, and iterators may join them."""
        return self._owner == os.getpid() and not (self._stopped or self._refuses)

    @property
    def is_refused(self) -> bool:
        """Whether this process has begun to end them, and they have not ended."""
        return self._owner == os.getpid() and self._refuses and not self.ended

    def refuse(self) -> bool:
        """Let no other iterator join, because the workers are about to be ended; whether they can be.

        An iterator that joined later, from another thread, would be missing among those that are closed.  It would wait
        for its first batch for ever.
        """
        if self._owner != os.getpid() or self.ended:
            return False
        with held(), self._changing:
            self._refuses = True
        return True

    @property
    def paper(self) -> Paper | None:
        """Where workers write their stacks."""
        return self._paper

    # ------------------------------------------------------------------------------------------------- loaders

    def number_of(self, loader: Any) -> int:
        """The number of a loader, by which workers know what they inherit of it."""
        return self._loaders.setdefault(loader, next(self._numbers))

    def next_ring(self) -> int:
        """A number for a ring that is about to be joined."""
        return next(self._numbers)

    def takes_inheritance(self, index: int, number: int, arguments: dict[str, Any]) -> bool:
        """Whether this worker was forked with these objects of a loader.  It takes them only once."""
        had = self._inherits[index].pop(number, None)
        return had is not None and all(was() is arguments[name] for name, was in zip(SHARED, had, strict=True))

    def defined_later(self, index: int, named: list[Any]) -> str:
        """The name of what this code of the script needs, and this worker does not have; empty: none."""
        code = self._code[index]
        return "" if code is None else defined_later(named, code)

    def _inheritance(self) -> Parcel:
        """The objects that workers forked now inherit: those of the living loaders with persistent workers."""
        given: dict[str, dict[int, Any]] = {name: {} for name in INHERITED}
        method = getattr(self._context, "get_start_method", str)()
        if method in ("fork", "template"):
            for loader, number in self._loaders.items():
                if loader.persistent_workers:
                    parts = loader.dataset, loader.collate_fn, loader.worker_init_fn, Numbers(loader.dataset)
                    for name, part in zip(INHERITED, parts, strict=True):
                        given[name][number] = part
        return Parcel(given)

    # ------------------------------------------------------------------------------------------------- starting

    def have(self, spin: bool) -> None:
        """Have all workers at work: the first time, and where some have ended.

        Raises:
            RuntimeError: The crew was closed, or a signal's handler calls this while this thread is in it.
        """
        if self._refuses:
            raise RuntimeError(CREW_CLOSED)
        self.refuse_in_handler()
        try:
            self._starter = threading.get_ident()
            self._spin, self._count = spin, self.count
            missing = [k for k in range(self.count) if k >= len(self.workers) or not runs(self.workers[k])]
            if not missing and self._watch is not None:
                return
            self._start_missing(missing)
        finally:
            self._starter = 0
            if self._stopped:
                self.end()
        if self._stopped:  # by a handler, since the last worker was started
            raise RuntimeError(CREW_CLOSED)
        # The thread may have been stopped before it saw these deaths, and other rings may not have looked after them.
        for member in self.signals.living():
            member.note_deaths()

    def _start_missing(self, missing: list[int]) -> None:
        """Start these workers, and the thread that watches all of them."""
        if self._paper is None:
            refuse_green_threads()
            warn_before_fork(self._context)
            if getattr(self._context, "get_start_method", str)() == "forkserver":
                preload_in_fork_server("shmloader.worker.preloaded")
            self._paper = Paper()
        self._stop_watch()  # there must be no such thread during a fork
        try:
            self._arguments = self._inheritance()
            given = self._arguments
            has_init = any(function is not None for function in given["init_fn"].values())
            warn_of_open_files(self._context, given["dataset"].values(), has_init)
            for index in missing:
                self._start_member(index)
                if self._stopped:
                    raise RuntimeError(CREW_CLOSED)
        finally:
            self._arguments.close()
            self._arguments = Parcel({})  # it would keep the datasets
            if self.workers and not self._stopped:
                self._start_watch()

    def refuse_in_handler(self) -> None:
        """Raise if this thread is in have(), whose half-started worker this would take for none, and start again.

        Raises:
            RuntimeError: It is.
        """
        if self._starter == threading.get_ident():
            raise RuntimeError(
                "a loader of a crew was iterated while this thread starts the crew's workers. The call came from a "
                "signal handler. Set a flag there, and iterate in your loop."
            )

    def _start_member(self, index: int) -> None:
        """Start the process that is this worker from now on."""
        messages = self.signals.messages
        ours, theirs = handed_over.pair()
        try:
            if index < len(self.workers):
                self.held_by(self.workers[index], index)  # the board knows it until it is renewed
            # The collector may end an iterator in here, which sends a message.  It goes to neither process: the new one
            # would count a message that is not in its socket, and wait for it for ever.
            messages.close(index)
            messages.renew(index)
            messages.open(index, ours)
            self._theirs = theirs
            is_forked = getattr(self._context, "get_start_method", str)() == "fork"
            self._code[index] = code_of_script() if is_forked else None
            worker = self._start_one(index, 0)
        except BaseException:
            messages.close(index)
            ours.close()
            raise
        finally:
            theirs.close()
        if index < len(self.workers):
            self.workers[index] = worker
        else:
            self.workers.append(worker)
        self._ended.discard(index)
        given = self._arguments
        self._inherits[index] = {
            number: tuple(_weak(given[name][number]) for name in SHARED) for number in given["dataset"]
        }

    def _process(self, index: int, first: int) -> BaseProcess:
        arguments = self._segment, self._theirs, self._spin, index, self._paper, self.outlives, self._arguments
        worker: BaseProcess = self._context.Process(target=work_in_crew, args=arguments, daemon=True)
        return worker

    # --------------------------------------------------------------------------------------------------- deaths

    def has_died(self, index: int, worker: BaseProcess) -> bool:
        """Whether the watching thread has seen the end of this process, or another one has taken its place."""
        return self.workers[index] is not worker or index in self._ended

    def held_by(self, worker: BaseProcess, index: int) -> int | None:
        """The ring whose batch a dead worker held, or which it was joining; None: it did neither.

        To be asked before any ring revokes, and before another process takes its place.
        """
        if worker not in self._held_by:
            holders = [member.number for member in self.signals.living() if member.holds(index, worker)]
            self._held_by[worker] = holders[0] if holders else self.signals.messages.joining(index)
        return self._held_by[worker]

    # ----------------------------------------------------------------------------------------------- who is at work

    def begins(self, member: Any) -> None:
        """A member is iterated: those at rest give back what they do not use."""
        with self._changing:
            member.active = True
            for other in self.signals.living():
                if other is not member and not other.active:
                    other.fold()

    def ends(self, member: Any) -> None:
        """A member's epoch is over."""
        with self._changing:
            member.active = False
            if any(other.active for other in self.signals.living()):
                member.fold()

    # ------------------------------------------------------------------------------------------------- the end

    def end_with(self, loaders: list[Any]) -> None:
        """End the iterators of these loaders, and iterators whose loader no longer exists.  Then end all workers."""
        take_all(self._ends(loaders))

    def _ends(self, loaders: list[Any]) -> Iterator[Callable[[], None]]:
        for loader in loaders:
            yield loader._end_workers
        for member in self.signals.living():
            if (iterator := member.iterator()) is not None:
                yield iterator.close
        yield self.end

    def end(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """End all workers.  Twice is harmless; in a forked child it does nothing."""
        if is_finalizing() or self._owner != os.getpid() or self.ended:
            return
        if self.cannot_stop_in(threading.current_thread()):  # the collector runs in there, and the end waits for it
            threading.Thread(target=self.end, name="shmloader_end").start()
            return
        with held():
            self.part()  # before the lock: NOTE [ Shutdown ], 9
            if self._starter == threading.get_ident():
                return  # a signal's handler.  have() does the rest, because a worker is about to get the descriptors
            with self._ending:
                if not self.ended:
                    self._end()

    def _end(self) -> None:
        try:
            self.stop()
        finally:
            for index in range(self.count):
                if not (index < len(self.workers) and runs(self.workers[index])):
                    self.signals.messages.close(index)
            if self._templates is not None:
                self._templates.leave(self)
            self._segment.close()

    @in_del
    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing() or not hasattr(self, "_changing") or self.ended:
            return
        with held_in_del(self):
            self.end()


def _weak(part: Any) -> Callable[[], Any]:
    """A function that returns the object, or None once it is gone.  It keeps an object that has no weak references."""
    try:
        return weakref.WeakMethod(part) if attribute(part, "__self__") is not None else weakref.ref(part)
    except TypeError:
        return lambda: part


def shared_by(crew: Any) -> SharedWorkers:
    """The workers of a public Crew in this process: new ones if the old ones have ended, or are a parent process's."""
    with _lock.here:
        found: SharedWorkers | None = crew._workers
        if found is None or not found.is_usable:
            given = crew.multiprocessing_context
            context = torch.multiprocessing if given is None else given
            found = SharedWorkers(crew.num_workers, context, crew.template, crew.workers_outlive_signals)
            crew._workers = found
            for loader in crew.loaders():
                found.number_of(loader)
        return found


_lock = OwnLock()
