"""The interpreter's exit: what happens to workers, and to threads that wait for them.  NOTE [ Shutdown ], 1."""

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

from shmloader.core.process import end
from shmloader.private.of_multiprocessing import ends_workers
from shmloader.private.of_torch import is_exiting
from shmloader.trainer.watch import runs

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
