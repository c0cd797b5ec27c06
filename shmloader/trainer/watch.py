"""The thread that sleeps until a worker ends.

It raises the ring's alarm for every end.  WorkerSet.look_after() decides whether it was a death.  With
on_worker_death="respawn", TrainerSide.revoke() then opens the dead worker's batches again for the process that replaces
it; otherwise the loader raises.
"""

from __future__ import annotations

import errno
import os
import select
import threading
import time
import weakref
from contextlib import nullcontext
from multiprocessing.process import BaseProcess

from shmloader.core.ring import Mapping
from shmloader.core.trainer import TrainerSide
from shmloader.system.signals import let_through


class Watch:
    """A thread that watches workers, and raises the ring's alarm when one of them ends.

    Args:
        workers: The workers, all started.  None may be added later.
        ring: The trainer's side.
        mapping: The ring's memory, which stays mapped for as long as the thread lives.
        ended: The thread adds the index of each worker that has ended, and then raises the alarm.

    Raises:
        OSError: EMFILE: no descriptor is left for each worker and for the request to stop.  EAGAIN: this user may have
            no further thread.
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
            _start(self.thread)
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


def _start(thread: threading.Thread) -> None:
    try:
        thread.start()
    except RuntimeError as error:  # what Python makes of EAGAIN
        if "can't start new thread" not in str(error):
            raise
        raise BlockingIOError(errno.EAGAIN, str(error)) from None


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
