"""The thread that sleeps until a worker dies."""

from __future__ import annotations

import errno
import os
import select
import threading
from multiprocessing.process import BaseProcess

from shmloader._ring import TrainerSide


class Watch:
    """Watches workers, and raises the ring's alarm when one of them ends.

    Args:
        workers: started; none may be added later.
        ring: the trainer's side.
        ended: where the numbers of those that have ended are added, before the alarm.

    Raises:
        OSError: EMFILE, no descriptor is left; it takes one a worker, and one to be told to stop.
    """

    def __init__(self, workers: list[BaseProcess], ring: TrainerSide, ended: set[int]) -> None:
        deaths: list[int] = []
        self._bye = os.eventfd(0, os.EFD_CLOEXEC)
        try:
            for worker in workers:
                deaths.append(_death(worker))
        except BaseException:
            for fd in (*deaths, self._bye):
                os.close(fd)
            raise
        self._thread = threading.Thread(
            target=_watch, args=(deaths, self._bye, ring, ended), name="shmloader_watch", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the thread; once."""
        os.eventfd_write(self._bye, 1)
        self._thread.join()
        os.close(self._bye)


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
