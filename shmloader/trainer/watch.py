"""The thread that sleeps until a worker ends, and the texts of errors about workers that have ended, or did not start.

The thread raises the ring's alarm for every end.  WorkerSet.look_after() decides whether it was a death.  With
on_worker_death="respawn", TrainerSide.revoke() then opens the dead worker's batches again for the process that replaces
it; otherwise the loader raises.

At the interpreter's exit, the functions at the end of this file stop workers, and threads that wait for them:
NOTE [ Shutdown ], 1.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import sys
import threading
import time
import weakref
from contextlib import nullcontext, suppress
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any

from shmloader.core.process import end
from shmloader.core.ring import Mapping
from shmloader.core.trainer import TrainerSide
from shmloader.private.of_multiprocessing import ends_workers
from shmloader.private.of_torch import is_exiting
from shmloader.ring.segment import too_many_files
from shmloader.system.signals import let_through


class Watch:
    """A thread that watches workers, and raises the ring's alarm when one of them ends.

    Args:
        workers: The workers, all started.  None may be added later.
        ring: The trainer's side.
        mapping: The ring's memory, which stays mapped for as long as the thread lives.
        ended: The thread adds the index of each worker that has ended, and then raises the alarm.

    Raises:
        OSError: EMFILE: no descriptor is left for each worker and for the request to stop.
        RuntimeError: This user may have no further thread.
    """

    def __init__(self, workers: list[BaseProcess], ring: TrainerSide, mapping: Mapping, ended: set[int]) -> None:
        deaths: list[int] = []
        self._bye: tuple[int, ...] = os.pipe()  # no eventfd: NOTE [ Sandboxes ]
        try:
            for worker in workers:
                deaths.append(_death(worker))
            self.thread = threading.Thread(
                target=_watch,
                args=(deaths, self._bye[0], weakref.ref(ring), mapping, ended),
                name="shmloader_watch",
                daemon=True,
            )
            self.thread.start()
        except BaseException:
            for fd in (*deaths, *self._bye):
                os.close(fd)
            raise

    def stop(self) -> None:
        """End the thread.  The thread itself must not call this.  A second call does nothing."""
        if self._bye:
            os.write(self._bye[1], b"\0")
            self.thread.join()
            bye, self._bye = self._bye, ()
            for fd in bye:
                os.close(fd)


SERVER_GONE = 255  # the exit code that multiprocessing assumes for a process whose fork server is gone


def runs(worker: BaseProcess) -> bool:
    """Whether a worker's process exists.  If its fork server was killed, multiprocessing takes it for dead."""
    if worker.is_alive():
        return True
    if worker.exitcode != SERVER_GONE:
        return False
    try:
        death = os.pidfd_open(worker.pid or 0)
    except OSError:
        return False
    try:
        poll = select.poll()
        poll.register(death, select.POLLIN)
        return not poll.poll(0)
    finally:
        os.close(death)


def send(worker: BaseProcess, number: signal.Signals) -> None:
    """Send a worker SIGTERM or SIGKILL, if it runs."""
    if not runs(worker):
        return
    if worker.exitcode is None:
        worker.kill() if number == signal.SIGKILL else worker.terminate()
    elif worker.pid:  # its fork server is gone, and then multiprocessing sends it no signal
        with suppress(ProcessLookupError):
            os.kill(worker.pid, number)


def wait_for_ends(workers: list[BaseProcess], seconds: float, listening: bool) -> list[BaseProcess]:
    """Wait until all workers have ended, or until the time is over.

    Their `join()` would not do.  It waits on a pipe, which a process that the worker has started may hold open.  And if
    a signal's handler raises in it, it may forget that the worker has ended.

    Args:
        workers: Workers that may still run.
        seconds: How long to wait at most.
        listening: Whether signal handlers run meanwhile; what a handler raises ends the wait.

    Returns:
        The workers that have ended.
    """
    end = time.monotonic() + seconds
    poll = select.poll()
    deaths: list[int] = []
    left: dict[int, BaseProcess] = {}
    ended: list[BaseProcess] = []
    try:
        for worker in workers:
            try:
                deaths.append(_death(worker))
                left[deaths[-1]] = worker
            except OSError:  # no descriptor is left
                left[worker.sentinel] = worker
        for fd in left:
            poll.register(fd, select.POLLIN)
        with let_through() if listening else nullcontext():
            while left:
                remaining = end - time.monotonic()
                # at least once, because this process may have had no core since the deadline was set
                for fd, _ in poll.poll(max(0.0, remaining) * 1000):
                    poll.unregister(fd)
                    ended.append(left.pop(fd))
                if remaining <= 0:
                    break
    finally:
        for fd in deaths:
            os.close(fd)
    return ended


def _death(worker: BaseProcess) -> int:
    """A descriptor that becomes readable when the process ends, whoever else holds its pipes."""
    try:
        return os.pidfd_open(worker.pid or 0)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return os.dup(worker.sentinel)  # this kernel has no pidfd, or the process is gone already


def _watch(deaths: list[int], bye: int, ring: weakref.ref[TrainerSide], mapping: Mapping, ended: set[int]) -> None:
    # The interpreter's end stops this thread wherever it is, and what it holds is never freed.  It holds the ring only
    # weakly, because the ring knows the epoch, the epoch its sampler, the sampler the dataset, the dataset its module.
    # It does hold the memory: if that is page-locked, copies may be under way until the process is gone.
    poll = select.poll()
    for fd in (*deaths, bye):
        poll.register(fd, select.POLLIN)
    try:
        while True:
            readable = [fd for fd, _ in poll.poll()]
            if bye in readable:
                return
            for fd in readable:
                poll.unregister(fd)
                ended.add(deaths.index(fd))
            alarmed = ring()
            if alarmed is not None:
                alarmed.alarm()
            del alarmed
    finally:
        for fd in deaths:
            os.close(fd)


# --------------------------------------------------------------------------------------------------- texts


OUT_OF_MEMORY = (
    "Linux kills processes (SIGKILL) when the machine or the container runs out of memory (see `dmesg`). "
    "In that case use fewer workers, or have the dataset hold less."
)

NOT_PICKLED = (  # torch's text
    "Got pickle error when attempting to start a worker Process. "
    "This might be because the worker Process arguments are not picklable. "
    "Python 3.14+ changed the multiprocessing start method in non-Mac POSIX platforms "
    "to 'forkserver', which requires the worker Process arguments to be picklable. "
    "You can also try multiprocessing.set_start_method('fork')."
)


def end_of(worker: BaseProcess) -> str:
    """torch's words for how a worker ended."""
    code = worker.exitcode
    who = f"DataLoader worker (pid {worker.pid})"
    if code is not None and code < 0:
        return f"{who} is killed by signal: {signal.strsignal(-code)}."
    return f"{who} exited unexpectedly with exit code {code}."


def killed_at_start(index: int, error: Exception) -> str:
    """The text of the error if a worker ends while it is being started.

    Args:
        index: The worker's number.
        error: What multiprocessing raised.
    """
    what = f"DataLoader worker {index} ended while it was being started ({error or type(error).__name__})."
    return f"{what}\nIt was killed, or the fork server, which starts workers, was. {OUT_OF_MEMORY}"


def not_started(error: OSError, started: int, count: int) -> OSError:
    """The error to raise if the system starts no more workers: the system's own, with the limit that was met.

    Args:
        error: The system's.
        started: How many workers there are.
        count: How many there should be.
    """
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return OSError(error.errno, f"{too_many_files()} ({started} of {count} workers could be started)")
    if error.errno in (errno.EAGAIN, errno.ENOMEM):
        return OSError(
            error.errno,
            f"{os.strerror(error.errno)}: {started} of {count} workers could be started. Lower num_workers, or raise "
            "the limit on processes (ulimit -u) or memory (ulimit -v).",
        )
    return error


_GOING = 4.0  # seconds that a daemon thread sleeps, because it should end with the process meanwhile

_worker_sets: dict[int, weakref.WeakSet[Any]] = {}  # by process: each WorkerSet that it made


def enlist(worker_set: Any) -> None:
    """Handle this set of workers at the exit of the process that made it.

    A trainer may itself be a forked process.  At its exit multiprocessing ends its workers too, but does not run the
    finalizers that its parent registered.  Its parent's worker sets are not its own, so each process has its own.
    """
    mine = _worker_sets.get(os.getpid())
    if mine is None:
        Finalize(None, _wake_all, exitpriority=0)  # twice if two threads come here at once, which is harmless
        Finalize(None, _alarm_all, exitpriority=-1)  # below 0: after multiprocessing has ended them
        mine = _worker_sets.setdefault(os.getpid(), weakref.WeakSet())
    mine.add(worker_set)


def _my_worker_sets() -> list[Any]:
    return list(_worker_sets.get(os.getpid(), ()))


def _wake_all() -> None:
    """Wake stopped workers, because multiprocessing is about to send SIGTERM and to wait for their ends.

    It would wait forever for a worker that was stopped (kill -STOP), and for a worker that ignores this SIGTERM because
    another process sent one as well: NOTE [ Group signals ], 6.  A worker without handlers dies of the signal sent
    here.  torch's handler for SIGCHLD would then raise in the middle of the exit.
    """
    for worker_set in _my_worker_sets():
        worker_set.unwatch()
        for worker in worker_set.workers:
            if worker.pid and runs(worker):
                with contextlib.suppress(OSError):
                    if worker_set.outlives and worker.exitcode is None:  # otherwise its pid may be another process's
                        end(worker.pid)
                    os.kill(worker.pid, signal.SIGCONT)


def _alarm_all() -> None:
    """Raise the rings' alarms, because the watching threads may get no time to do it: the workers have just ended."""
    for worker_set in _my_worker_sets():
        worker_set.alarm_if_unended()


def raise_at_exit() -> None:
    """Raise if the interpreter is exiting, because a thread that is started then never begins, and start() hangs.

    At that point all threads but the main one are daemons, and end silently with the process.  So a daemon sleeps here
    before it raises.  Its error appears only if the process does not end meanwhile, because it waits for this thread.
    """
    if is_exiting() or ends_workers() or sys.is_finalizing():
        if threading.current_thread() is not threading.main_thread():
            time.sleep(_GOING)
        raise RuntimeError(
            "the interpreter is shutting down and has ended the workers of its DataLoaders. Take the last batch before "
            "that, and not in a __del__() or at a module's end."
        )
