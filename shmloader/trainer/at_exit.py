"""What becomes of workers, and of those who wait for them, when the interpreter goes down: NOTE [ Shutdown ], 1."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import weakref
from multiprocessing.util import Finalize
from typing import Any

from shmloader._multiprocessing import ends_workers
from shmloader._torch import is_exiting
from shmloader.core.process import end
from shmloader.trainer.watch import runs

_GOING = 4.0  # seconds that a daemon thread is given to go with the process

_crews: dict[int, weakref.WeakSet[Any]] = {}  # by process: each Crew that it made


def enlist(crew: Any) -> None:
    """Have this crew looked after when the process goes down that made it.

    A trainer may have been forked itself.  Multiprocessing then ends its workers too, but runs no finalizer of the
    process that it was forked from, and the crews of that one are not its own.
    """
    mine = _crews.get(os.getpid())
    if mine is None:
        Finalize(None, _wake_all, exitpriority=0)  # twice, where two threads come here at once: that does no harm
        Finalize(None, _alarm_all, exitpriority=-1)  # below 0: after multiprocessing has ended them
        mine = _crews.setdefault(os.getpid(), weakref.WeakSet())
    mine.add(crew)


def _my_crews() -> list[Any]:
    return list(_crews.get(os.getpid(), ()))


def _wake_all() -> None:
    """Multiprocessing is about to send SIGTERM and to wait: for ever, if a worker was stopped (kill -STOP).

    Nor would one end that drops a SIGTERM of somebody else's together with this one: NOTE [ Group signals ], 6.
    A worker that has no handlers yet dies of what is sent here.  torch's handler for SIGCHLD would raise for it, in the
    midst of the exit.
    """
    for crew in _my_crews():
        crew.unwatch()
        for worker in crew.workers:
            if worker.pid and runs(worker):
                with contextlib.suppress(OSError):
                    if crew.outlives and worker.exitcode is None:  # else nobody waits for it, and its pid may be reused
                        end(worker.pid)
                    os.kill(worker.pid, signal.SIGCONT)


def _alarm_all() -> None:
    """Multiprocessing has ended the workers, and the threads that watch them may get no time to say so."""
    for crew in _my_crews():
        crew.alarm_if_unended()


def raise_at_exit() -> None:
    """Raise if the interpreter is going down: a thread that is started then never begins, and start() waits for it.

    Other threads than the main one are daemons by then, which go with the process without a word.  They are given time
    for that: only who waits for such a thread finds that it has raised.
    """
    if is_exiting() or ends_workers() or sys.is_finalizing():
        if threading.current_thread() is not threading.main_thread():
            time.sleep(_GOING)
        raise RuntimeError(
            "the interpreter is shutting down and has ended the workers of its DataLoaders. Take the last batch before "
            "that, and not in a __del__() or at a module's end."
        )
