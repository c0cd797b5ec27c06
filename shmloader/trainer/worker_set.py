"""The worker processes: started, watched, replaced, stopped.
It decides what `on_worker_death` and `timeout` do, how many deaths a batch may cause, how long workers have to end.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import re
import reprlib
import signal
import threading
import warnings
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any, NoReturn

from shmloader.core.trainer import TrainerSide
from shmloader.private.of_multiprocessing import close_pipes, preload_in_fork_server
from shmloader.private.of_torch import raise_if_any_worker_failed, unwatch_pids, watch_pids
from shmloader.ring.segment import Segment
from shmloader.ring.tasks import read_listed, read_task
from shmloader.system.call_stacks import StackMemory
from shmloader.system.cleanup import take_all
from shmloader.system.parents_death import FollowingName
from shmloader.system.signals import blocked_at_start, held
from shmloader.system.spawn_arguments import SpawnArguments
from shmloader.trainer.before_workers import refuse_green_threads, warn_of_open_files
from shmloader.trainer.watch import (
    NOT_PICKLED,
    OUT_OF_MEMORY,
    Watch,
    end_of,
    enlist,
    killed_at_start,
    not_started,
    raise_at_exit,
    runs,
    send,
    wait_for_ends,
)
from shmloader.worker.loop import work

# How many seconds all workers together have to leave, then to obey SIGTERM, then to end after SIGKILL.  After SIGKILL
# they end at once, unless they get no core or wait for a disk.  The last limit is for a process that the kernel cannot
# end: it must not hold the trainer for ever.  torch gives 5 seconds to each worker, one after another.
PATIENCE, TERMINATED, KILLED = 4.0, 0.5, 5.0
REAPED = 0.5  # seconds that the fork server, which sees a worker's end, has to report it
MOST_DEATHS = 3  # over one batch: one may be bad luck, the third is the batch's fault


class WorkerSet:
    """The workers of one ring.

    The kernel reports a worker's death.  A thread of the trainer sleeps on the workers' descriptors, and raises the
    ring's alarm when one of them dies.  The alarm wakes the thread that waits for a batch, and that thread replaces the
    worker or raises an error.  If deaths are errors, torch's SIGCHLD handler in the main thread often comes first.

    Args:
        context: multiprocessing, or a context of it.
        ring: The trainer's side.
        segment: The ring's memory.
        respawn: Whether dead workers are replaced; if not, a death is an error.
        reissue: Whether the batch that a dead worker held can be made again; it cannot if the dataset is a stream.
        timeout: How many seconds a batch may take, 0 for any number.
        outlives: Whether workers survive a signal to their group: NOTE [ Group signals ].
    """

    def __init__(
        self,
        context: Any,
        ring: TrainerSide,
        segment: Segment,
        *,
        respawn: bool,
        reissue: bool,
        timeout: float,
        outlives: bool,
    ) -> None:
        self.workers: list[BaseProcess] = []
        self._context = context
        self._ring = ring
        self._segment = segment
        self._respawn = respawn
        self._reissue = reissue
        self._timeout = timeout
        self.outlives = outlives
        self._stacks: StackMemory | None = None
        self._arguments = SpawnArguments({})
        self._deaths: dict[tuple[int, int], int] = {}  # by sequence, or worker and time, how many died over it
        self._hung: dict[int, str] = {}  # workers killed because they held a batch too long, with the text of the error
        self._dismissed: set[int] = set()
        self._ended: set[int] = set()  # added to by the watching thread
        self._watch: Watch | None = None
        self._watched = False  # whether torch knows of the workers
        self._stopped = False
        self.ended = False  # stop() has nothing left to do
        self._changing = threading.RLock()  # one thread may replace workers while another one ends them
        enlist(self)

    # ------------------------------------------------------------------------------------------------- starting

    def start(self, count: int, spin: bool, arguments: dict[str, Any]) -> None:
        """Start all workers, then the thread that watches them, because forking beside a thread endangers the child.

        Args:
            count: How many.
            spin: Whether they may pause on their cores before they sleep.
            arguments: What all workers are given alike (loop.py).
        """
        refuse_green_threads()
        warn_of_open_files(self._context, [arguments["dataset"]], arguments["init_fn"] is not None)
        if getattr(self._context, "get_start_method", str)() == "forkserver":
            preload_in_fork_server("shmloader.worker.preloaded")
        self._spin, self._arguments, self._count = spin, SpawnArguments(arguments), count
        with held():
            try:
                self._stacks = StackMemory()  # also without `timeout`, because `top --stack` uses it
            except OSError as error:
                raise not_started(error, 0, count) from None
        for index in range(count):
            with held():  # so that stop() knows of every worker that was started
                self.workers.append(self._start_one(index, 0))
        if self._respawn:
            self._arguments.all_started()
        else:
            self._arguments.close()
        with held():
            self._start_watch()
        if not self._respawn:  # torch's handler turns each death into an error
            self._watched = True  # first, so that stop() undoes it even if a signal breaks off the next line
            watch_pids(id(self), tuple(worker.pid or 0 for worker in self.workers))

    def _start_one(self, index: int, first: int) -> BaseProcess:
        worker = self._process(index, first)
        name = getattr(worker, "name", None)  # a context may have its own class of processes
        try:
            if name is not None:
                worker.name = FollowingName(name, self.outlives)
            with blocked_at_start(self._context) if self.outlives else contextlib.nullcontext():
                worker.start()
        except (TypeError, AttributeError, pickle.PicklingError):
            warnings.warn(NOT_PICKLED, stacklevel=2)
            raise
        except (EOFError, ConnectionError) as error:  # the fork server is gone, or what it has started
            raise RuntimeError(killed_at_start(index, error)) from error
        except OSError as error:
            raise not_started(error, index, self._count) from None
        finally:
            if name is not None:
                worker.name = name
        return worker

    def _process(self, index: int, first: int) -> BaseProcess:
        """A worker that is not started yet."""
        return self._process_of(work, index, first, self._arguments)

    def _process_of(self, target: Callable[..., None], index: int, first: int, given: Any) -> BaseProcess:
        arguments = self._segment, self._spin, index, first, self._stacks, self.outlives, given
        worker: BaseProcess = self._context.Process(target=target, args=arguments, daemon=True)
        return worker

    def _start_watch(self) -> None:
        try:
            self._watch = Watch(self.workers, self._ring, self._segment.mapping, self._ended)
        except OSError as error:
            raise not_started(error, self._count, self._count) from None

    def _stop_watch(self) -> None:
        if self._watch is not None:
            self._watch.stop()
            self._watch = None

    def cannot_stop_in(self, thread: threading.Thread) -> bool:
        """Whether this thread must not call stop(), because stop() joins it."""
        return self._watch is not None and self._watch.thread is thread

    def dismiss(self, index: int) -> None:
        """Let a worker leave when it has done what is open for it.  Then its end is no death."""
        self._dismissed.add(index)
        self._ring.dismiss(index)

    # --------------------------------------------------------------------------------------------------- deaths

    def look_after(self) -> None:
        """Replace the workers that died, or raise torch's error for them.  Called when the ring's alarm was raised.

        Raises:
            RuntimeError: A worker died and may not be replaced, or it was the third to die over one batch; or the
                interpreter is going down, so that all workers have been ended and no thread can be started.
        """
        # Not is_alive(): under forkserver the server reports a death to it, later than the kernel does to that thread.
        # A worker that was dismissed may leave, but not while something is open for it.
        try:
            self._ring.clear_alarm()  # first, so that a death from here on raises it again
            ended = self._ended.copy()  # because the watching thread adds to it
            dead = sorted(index for index in ended if index not in self._dismissed or self._ring.sequences.owes(index))
            raise_at_exit()
            if self._respawn:
                self._replace(dead)
            else:
                self._raise_for(dead)
        except BaseException:
            self._ring.alarm()  # so that the next thread that waits raises it as well
            raise

    def _raise_for(self, dead: list[int]) -> None:
        try:
            raise_if_any_worker_failed()
        except RuntimeError as error:
            self.raise_explained(error)
        if dead:
            raise RuntimeError(self._text_of_death(dead, "\n".join(self._end_by_server(index) for index in dead)))

    def _end_by_server(self, index: int) -> str:
        """How a worker ended.  torch reports only children of this process, and not those of the fork server."""
        worker = self.workers[index]
        with contextlib.suppress(AssertionError):  # a process of another class
            worker.join(REAPED)
        return "" if worker.exitcode is None else end_of(worker)

    def raise_explained(self, error: RuntimeError) -> NoReturn:
        """Raise torch's error for a worker that died, with what it held; any other error as it is.

        torch has two errors for a death: one of its SIGCHLD handler, and one that it raises from it if the trainer was
        waiting for a batch.  Here the user gets both texts in one error.
        """
        died = re.match(r"DataLoader worker \(pid (\d+)\)", str(error))
        lost = [k for k, worker in enumerate(self.workers) if died and worker.pid == int(died[1])]
        if not lost:
            raise error
        raise RuntimeError(self._text_of_death(lost, str(error).strip())) from error

    def _text_of_death(self, dead: list[int], cause: str) -> str:
        pids = ", ".join(str(self.workers[index].pid) for index in dead)
        lines = [f"DataLoader worker (pid(s) {pids}) exited unexpectedly", cause, self._loss(dead)]
        return "\n".join(filter(None, lines))

    def _loss(self, dead: list[int]) -> str:
        batches = [self._batch(sequence) for index in dead for sequence in self._ring.sequences.holds(index)]
        if batches:
            return f"It held {' and '.join(batches)}."
        was_killed = any(self.workers[index].exitcode == -signal.SIGKILL for index in dead)
        return f"It held no batch.{f' {OUT_OF_MEMORY}' if was_killed else ''}"

    def _batch(self, sequence: int) -> str:
        """What the user knows a sequence by: its batch, its indices, and its rows if it is a part of a batch."""
        batch, row, rows = self._ring.sequences.about(sequence)
        listed = self._ring.sequences.rows_of(sequence)
        if listed is not None:
            task, _ = read_listed(self._ring.task(sequence))
            part = f"rows {_indices.repr(listed)} of "
        else:
            task = read_task(self._ring.task(sequence))
            part = f"rows {row} to {row + len(task) - 1} of " if rows else ""
        return f"{part}batch {batch} of this epoch (indices {_indices.repr(task)})"

    def _replace(self, dead: list[int]) -> None:
        with held(), self._changing:
            # If nobody is dead, there is one thing to do: to start a watch that could not be started before.
            if self._stopped or (not dead and self._watch is not None):
                return
            self._stop_watch()  # there must be no such thread during a fork, and it must know the new workers
            try:
                for index in dead:
                    self._replace_one(index)
            finally:
                self._start_watch()

    def _replace_one(self, index: int) -> None:
        """Start another process as this worker.  Nothing is lost by that: NOTE [ Slot ring ]."""
        worker = self.workers[index]
        worker.join()  # once it is reaped, it can write nothing more
        ended = self._hung.pop(index, None) or end_of(worker)
        if not self._reissue:
            raise RuntimeError(
                f"{ended}\n{self._loss([index])}\non_worker_death='respawn' cannot replace it, because the position "
                "of an IterableDataset is lost with its worker. Load your last state_dict into a new loader, and "
                "continue from there."
            )
        if self._is_to_blame(index):
            self._count_death(index, ended)
        self._ring.revoke(index)
        self.workers[index] = self._start_one(index, self._ring.sequences.oldest)
        self._ended.discard(index)

    def _is_to_blame(self, index: int) -> bool:
        """Whether what this worker did here may have been its death."""
        return True

    def _suspects(self, index: int) -> list[int]:
        """The sequences over which this worker may have died, the likeliest first."""
        return self._ring.sequences.owes(index)

    def _count_death(self, index: int, ended: str) -> None:
        """Raise if it is one too many over one batch."""
        debts = self._suspects(index)
        # where work is stolen, several workers may die over one sequence
        stuck = (-1, debts[0]) if debts else (index, self._ring.sequences.oldest)
        deaths = self._deaths.get(stuck, 0) + 1
        oldest = self._ring.sequences.oldest
        self._deaths = {over: count for over, count in self._deaths.items() if over[1] >= oldest}
        self._deaths[stuck] = deaths
        if deaths >= MOST_DEATHS:
            place = self._batch(debts[0]) if debts else "no batch at all"
            raise RuntimeError(
                f"{ended}\n{MOST_DEATHS} workers have died while making {place}, so the last one is not replaced. Look "
                "at these samples first."
            )

    # --------------------------------------------------------------------------------------------------- hanging

    def raise_or_kill(self, awaited: list[int]) -> None:
        """The batch has not come within the timeout: raise, or kill the worker that holds it and have it replaced.

        Args:
            awaited: The sequences that are waited for; any of them would do.  If there are none, it has come meanwhile.

        Raises:
            RuntimeError: torch's error, with the worker that holds the batch, for how long, and its stack.  If no
                worker has begun the batch yet, none is named.
        """
        if not awaited:
            return
        owners = {self._ring.sequences.owner(sequence) for sequence in awaited}
        late = [index for index in range(len(self.workers)) if index in owners]
        blamed = {index: debts[0] for index in late if (debts := self._ring.sequences.owes(index))}
        states = {index: self._holding(index, sequence) for index, sequence in blamed.items()}
        if self._ring.ready() or self._ring.alarmed:  # asking for stacks took time: the batch came, or a worker died
            return
        error = "\n".join([f"DataLoader timed out after {self._timeout} seconds", *states.values()])
        if not self._respawn or not blamed:
            raise RuntimeError(error)
        for index, sequence in blamed.items():
            if sequence in self._ring.sequences.owes(index):
                self._hung[index] = error
                self.workers[index].kill()  # the watching thread sees it, and it is a death like any other

    def _holding(self, index: int, sequence: int) -> str:
        """What a worker does with the sequence that it owes, and where it is."""
        pid = self.workers[index].pid or 0
        who = f"Worker {index} (pid {pid})"
        if sequence in self._ring.sequences.holds(index):
            what = f"{who} has held {self._batch(sequence)} for {self._ring.sequences.held_for(sequence):.1f} seconds."
        else:
            what = f"{who} has not begun {self._batch(sequence)}."
        with self._changing:  # another thread may be ending all this
            if self._stopped or self._stacks is None:
                return what
            return f"{what} It is here:\n{self._stacks.stack_of(pid)}"

    # -------------------------------------------------------------------------------------------------- stopping

    def part(self) -> None:
        """Let no thread start a worker here from now on.  stop() takes no lock after it: NOTE [ Shutdown ], 9."""
        with held():
            if not self._stopped:
                with self._changing:
                    self._stopped = True

    def stop(self) -> None:
        """End all workers, with one deadline for all of them.  When it returns, nothing of them is left.

        Each step is taken, even if an earlier one has raised.  The error is raised after the last step.  A second call
        takes all steps again, which is harmless.
        """
        steps: list[Callable[[], None]] = [
            self._stop_ring,
            self._stop_watch,
            self._arguments.close,
            self._close_stacks,
            self.unwatch,  # a worker that dies while it leaves takes no batch with it
            self._let_leave,
            self._terminate,
            self._kill,
            self._close_pipes,
        ]
        failed = set(steps)

        def take(step: Callable[[], None]) -> None:
            step()
            failed.remove(step)

        with held():
            self.part()
            try:
                take_all(functools.partial(take, step) for step in steps)
            finally:
                self.ended = failed <= {self._let_leave, self._terminate}  # the next steps make up for a wait cut short

    @property
    def are_left(self) -> bool:
        """Whether any worker lives, and may use the ring's memory."""
        return any(map(runs, self.workers))

    def alarm_if_unended(self) -> None:
        """Wake a thread that waits for a batch, so that it sees that other code has ended the workers."""
        if not self.ended:
            self._ring.alarm()

    def _stop_ring(self) -> None:
        if not self._ring.stopped and self.are_left:  # otherwise the ring may be closed
            self._ring.stop()

    def _close_stacks(self) -> None:
        if self._stacks is not None:
            self._stacks.close()

    def _let_leave(self) -> None:
        self._wait(PATIENCE)

    def unwatch(self) -> None:
        """Have torch's handler for SIGCHLD forget the workers, because they are about to be ended."""
        if self._watched:
            with contextlib.suppress(ValueError):  # it was interrupted before torch knew of them
                unwatch_pids(id(self))
            self._watched = False

    def _terminate(self) -> None:
        for worker in self.workers:
            send(worker, signal.SIGTERM)
        self._wait(TERMINATED)

    def _kill(self) -> None:
        for worker in self.workers:
            send(worker, signal.SIGKILL)
        self._wait(KILLED, listening=False)  # they go now, and then their memory

    def _close_pipes(self) -> None:
        """Close the trainer's ends of the pipes to workers that have ended.  Later a signal might come in between."""
        for worker in self.workers:
            if not runs(worker):
                close_pipes(worker)

    def _wait(self, seconds: float, listening: bool = True) -> None:
        """Wait for the workers that are left.  If a signal's handler raises, for example Ctrl-C, that ends the wait."""
        for worker in wait_for_ends([each for each in self.workers if runs(each)], seconds, listening):
            if worker.is_alive():  # only under forkserver: the server reaps it, and reports that a moment later
                worker.join(REAPED)


_indices = reprlib.Repr()
_indices.maxlist = _indices.maxtuple = 64  # a batch's indices, whole where they can be read at a glance
