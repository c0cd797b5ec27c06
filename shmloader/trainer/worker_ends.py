"""The texts of errors about workers that have ended, or could not be started.

A thread notices the end (watch.py).  WorkerSet.look_after() then decides what follows: an error, or another process in
the worker's place, for which TrainerSide.revoke() opens the dead worker's batches again.
"""

from __future__ import annotations

import errno
import os
import signal
from multiprocessing.process import BaseProcess

from shmloader.ring.segment import too_many_files

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
    return (
        f"DataLoader worker {index} ended while it was being started ({error or type(error).__name__}).\n"
        f"The worker was killed, or the fork server, which starts workers. {OUT_OF_MEMORY}"
    )


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
            "the limit on processes (ulimit -u) or memory (ulimit -v)."
            + (" The thread that watches the workers could not be started." if started == count else ""),
        )
    return error
