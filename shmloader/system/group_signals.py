"""Workers go on when their whole process group is sent a signal.

NOTE [ Group signals ]

    1. A scheduler that wants its machine back sends SIGTERM to each process of a job (torchrun, Slurm, Kubernetes), a
       terminal sends SIGINT (Ctrl-C) or SIGHUP to each process of the group.  The trainer may catch it, take some more
       batches and save.  It cannot if its workers have died of the same signal.
    2. So in a worker these three are dropped, by a handler in C (process.pyx), which interrupts no system call for
       longer than it takes.  Two things are not dropped.  A SIGTERM from the trainer ends the worker at once: that is
       how multiprocessing ends its daemons at exit.  And what a worker sends itself is done as it would be in torch.
    3. They are not ignored (SIG_IGN).  That would survive exec, so that a program which the dataset starts could not be
       ended; and multiprocessing would wait for ever, at exit, for a daemon that does not obey.
    4. From its first moment: the thread that starts a worker has blocked the three, which fork and exec pass on, and
       the worker lets them through when its handler is in place.  Not under forkserver, where it is the server that
       forks.  There a signal to the group may end a worker that is still importing torch; and it ends the server, so
       the next worker takes as long to start as the first.
    5. A handler that `worker_init_fn` or the dataset sets in a worker takes the place of this one.
       `workers_outlive_signals=False` leaves all of it to torch.
    6. Of two SIGTERMs that a process has not seen yet, the kernel keeps the first, and its sender.  A worker that was
       stopped, or waits for a disk, or just starts, would take the trainer's for the scheduler's, and multiprocessing
       would wait for it for ever.  So at exit it is sent another signal before, which is queued (at_exit.py).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any

GROUP = signal.SIGTERM, signal.SIGINT, signal.SIGHUP


@contextmanager
def blocked_at_start(context: Any) -> Iterator[None]:
    """Block the three in this thread, and so in a process that is started meanwhile.

    Args:
        context: What starts it.
    """
    method = getattr(context, "get_start_method", str)()
    if method not in ("fork", "spawn"):  # a fork server would keep them blocked, for all that it ever starts
        yield
        return
    if method == "spawn":
        # multiprocessing starts this process before the first one that it spawns, and then lets SIGINT and SIGTERM
        # through, whatever was blocked before: the first worker would start without a block.
        resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, GROUP)
    _before[threading.get_ident()] = before
    try:
        yield
    finally:
        del _before[threading.get_ident()]
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_before: dict[int, set[int]] = {}  # what was blocked before, by the thread that starts a worker


@contextmanager
def unblocked() -> Iterator[None]:
    """Within blocked_at_start(): block what was blocked before it.  What came meanwhile comes now."""
    before = _before.get(threading.get_ident())
    if before is None:
        yield
        return
    blocked = signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
