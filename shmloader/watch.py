"""The thread that sleeps until a worker dies."""

from __future__ import annotations

import errno
import os
import select
import threading
import time
from contextlib import nullcontext
from multiprocessing.process import BaseProcess

from shmloader._ring import TrainerSide
from shmloader.signals import let_through


class Watch:
    """Watches workers, and raises the ring's alarm when one of them ends.

    Args:
        workers: started; none may be added later.
        ring: the trainer's side.
        ended: where the numbers of those that have ended are added, before the alarm.

    Raises:
        OSError: EMFILE, no descriptor is left; it takes one a worker, and one to be told to stop.
        RuntimeError: no further thread can be started.
    """

    def __init__(self, workers: list[BaseProcess], ring: TrainerSide, ended: set[int]) -> None:
        deaths: list[int] = []
        self._bye = os.eventfd(0, os.EFD_CLOEXEC)
        try:
            for worker in workers:
                deaths.append(_death(worker))
            self.thread = threading.Thread(
                target=_watch, args=(deaths, self._bye, ring, ended), name="shmloader_watch", daemon=True
            )
            self.thread.start()
        except BaseException:
            for fd in (*deaths, self._bye):
                os.close(fd)
            raise

    def stop(self) -> None:
        """End the thread.  Not to be called by itself; the second time it does nothing."""
        if self._bye >= 0:
            os.eventfd_write(self._bye, 1)
            self.thread.join()
            bye, self._bye = self._bye, -1
            os.close(bye)


def wait_for_ends(workers: list[BaseProcess], seconds: float, listening: bool) -> list[BaseProcess]:
    """Wait until all workers have ended, or for so long.

    Not by their `join()`: that waits on a pipe, which a process that a worker has started may hold open, and a signal
    heard in it can have it forget that the worker has ended.

    Args:
        workers: some that live.
        seconds: how long.
        listening: whether signals are heard meanwhile; what a handler raises ends the wait.

    Returns:
        Those that have ended.
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
            while left and (remaining := end - time.monotonic()) > 0:
                for fd, _ in poll.poll(remaining * 1000):
                    poll.unregister(fd)
                    ended.append(left.pop(fd))
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
        return os.dup(worker.sentinel)  # no pidfd in this kernel, or it is gone already


def _watch(deaths: list[int], bye: int, ring: TrainerSide, ended: set[int]) -> None:
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
            ring.alarm()
    finally:
        for fd in deaths:
            os.close(fd)
