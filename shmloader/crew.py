"""The worker processes: started, watched, stopped."""

from __future__ import annotations

import errno
import os
import pickle
import select
import threading
import time
import warnings
from multiprocessing.process import BaseProcess
from typing import Any

from shmloader._ring import TrainerSide
from shmloader._torch import raise_if_any_worker_failed, unwatch_pids, watch_pids
from shmloader.orphan import FollowingName
from shmloader.segment import Segment, too_many_files
from shmloader.worker import work

PATIENCE = 5.0  # seconds that all workers together have to leave before they are terminated; torch gives each as much


class Crew:
    """The workers of one ring.

    A worker's death is what the kernel says: a thread of the trainer sleeps on the workers' descriptors and, when one
    dies, raises the ring's alarm, which ends the wait of whoever waits for a batch, in any thread.  In the main thread
    torch's SIGCHLD handler is often quicker.

    Args:
        context: multiprocessing, or a context of it.
        ring: the trainer's side.
        segment: its memory.
    """

    def __init__(self, context: Any, ring: TrainerSide, segment: Segment) -> None:
        self.workers: list[BaseProcess] = []
        self._context = context
        self._ring = ring
        self._segment = segment
        self._dismissed: set[int] = set()
        self._ended: set[int] = set()  # added to by the watching thread
        self._watch: threading.Thread | None = None
        self._watched = False  # whether torch knows of the workers
        self._bye = -1

    def start(self, count: int, spin: bool, arguments: dict[str, Any]) -> None:
        """Start all workers, then the thread that watches them (a fork beside a thread is a risk for the child).

        Args:
            count: how many.
            spin: whether they may spin before they sleep.
            arguments: of torch's worker loop, without its queues and the worker's number.
        """
        for index in range(count):
            worker = self._context.Process(target=work, args=(self._segment, spin, index, arguments), daemon=True)
            worker.name = FollowingName(worker.name)
            try:
                worker.start()
            except (TypeError, AttributeError, pickle.PicklingError):
                warnings.warn(
                    "Got pickle error when attempting to start a worker Process. "
                    "This might be because the worker Process arguments are not picklable. "
                    "Python 3.14+ changed the multiprocessing start method in non-Mac POSIX platforms "
                    "to 'forkserver', which requires the worker Process arguments to be picklable. "
                    "You can also try multiprocessing.set_start_method('fork').",
                    stacklevel=2,
                )
                raise
            except OSError as error:
                raise _explained(error, index, count) from None
            self.workers.append(worker)
        try:
            self._start_watch()
        except OSError as error:
            raise _explained(error, count, count) from None
        watch_pids(id(self), tuple(worker.pid or 0 for worker in self.workers))
        self._watched = True

    def _start_watch(self) -> None:
        self._bye = os.eventfd(0, os.EFD_CLOEXEC)
        deaths = []
        try:
            for worker in self.workers:
                deaths.append(_death(worker))
        except BaseException:
            for death in deaths:
                os.close(death)
            raise
        watch = threading.Thread(
            target=_watch, args=(deaths, self._bye, self._ring, self._ended), name="shmloader_watch", daemon=True
        )
        watch.start()
        self._watch = watch

    def dismiss(self, index: int) -> None:
        """Let a worker leave when it has done what is open for it; its end is no death then."""
        self._dismissed.add(index)
        self._ring.dismiss(index)

    def raise_if_dead(self) -> None:
        """Raise torch's error for workers that died; called when the ring's alarm was raised."""
        self._ring.clear_alarm()  # first, so that a death seen from here on raises it again
        # not is_alive(): under forkserver that hears of a death from the server, later than the watching thread does
        dead = sorted(self._ended - self._dismissed)
        if dead:
            self._ring.alarm()  # whoever waits again is told again
        raise_if_any_worker_failed()
        if dead:
            pids = ", ".join(str(self.workers[index].pid) for index in dead)
            raise RuntimeError(f"DataLoader worker (pid(s) {pids}) exited unexpectedly")

    def stop(self) -> None:
        """End all workers, by one deadline for all of them; nothing of them is left when this returns."""
        self._ring.stop()
        if self._watch is not None:
            os.eventfd_write(self._bye, 1)
            self._watch.join()
            self._watch = None
        if self._bye >= 0:
            os.close(self._bye)
            self._bye = -1
        try:
            deadline = time.monotonic() + PATIENCE
            for worker in self.workers:
                worker.join(max(0.0, deadline - time.monotonic()))
        finally:  # the SIGCHLD handler may raise in a join
            if self._watched:
                self._watched = False
                unwatch_pids(id(self))
            for end in (BaseProcess.terminate, BaseProcess.kill):
                left = [worker for worker in self.workers if worker.is_alive()]
                for worker in left:
                    end(worker)
                deadline = time.monotonic() + PATIENCE
                for worker in left:
                    worker.join(max(0.0, deadline - time.monotonic()))


def _death(worker: BaseProcess) -> int:
    """A descriptor that becomes readable when the process ends, whoever else holds its pipes."""
    try:
        return os.pidfd_open(worker.pid or 0)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return os.dup(worker.sentinel)  # no pidfd in this kernel, or it is gone already


def _watch(deaths: list[int], bye: int, ring: TrainerSide, gone: set[int]) -> None:
    poll = select.poll()
    for fd in (*deaths, bye):
        poll.register(fd, select.POLLIN)
    try:
        while True:
            ended = [fd for fd, _ in poll.poll()]
            if bye in ended:
                return
            for fd in ended:
                poll.unregister(fd)
                gone.add(deaths.index(fd))
            ring.alarm()
    finally:
        for fd in deaths:
            os.close(fd)


def _explained(error: OSError, started: int, count: int) -> OSError:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return OSError(error.errno, f"{too_many_files()} (it is {count}, of which {started} could be started)")
    if error.errno in (errno.EAGAIN, errno.ENOMEM):
        return OSError(
            error.errno,
            f"{os.strerror(error.errno)}: {started} of {count} workers could be started; lower num_workers, or raise "
            "the limit on processes (ulimit -u) or memory (ulimit -v)",
        )
    return error
