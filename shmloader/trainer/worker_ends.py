"""The texts of errors about a worker's end.

A thread notices the end (watch.py).  WorkerSet.look_after() then decides what follows: an error, or another process in
the worker's place, for which TrainerSide.revoke() opens the dead worker's batches again.
"""

from __future__ import annotations

import signal
from multiprocessing.process import BaseProcess

OUT_OF_MEMORY = (
    "Linux kills processes (SIGKILL) when the machine or the container runs out of memory (see `dmesg`). "
    "In that case use fewer workers, or have the dataset hold less."
)


def end_of(worker: BaseProcess) -> str:
    """torch's words for how a worker ended."""
    code = worker.exitcode
    who = f"DataLoader worker (pid {worker.pid})"
    if code is not None and code < 0:
        return f"{who} is killed by signal: {signal.strsignal(-code)}."
    return f"{who} exited unexpectedly with exit code {code}."
