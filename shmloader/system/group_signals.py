"""Workers survive a signal to their whole process group: Ctrl-C, SIGTERM, SIGHUP (`workers_outlive_signals`).

NOTE [ Group signals ]

    1. A scheduler that needs its machine back sends SIGTERM to each process of a job (torchrun, Slurm, Kubernetes).  A
       terminal sends SIGINT (Ctrl-C) or SIGHUP to each process of the group.  The trainer may catch the signal, take
       some more batches and save.  It cannot if its workers have died of the same signal.
    2. So a worker drops these three, by a handler in C (process.pyx).  The kernel restarts system calls after it.  Two
       cases are not dropped.  A SIGTERM from the trainer ends the worker at once, because multiprocessing ends its
       daemons like that at exit.  And a signal that a worker sends itself acts as in torch.
    3. A worker does not ignore them (SIG_IGN), because an ignored signal stays ignored after exec.  So a program that
       the dataset starts could not be ended.  And at exit multiprocessing would wait for ever for a daemon that ignores
       its SIGTERM.
    4. This holds from the first moment: the thread that starts a worker blocks the three, fork and exec pass the block
       on, and the worker unblocks them when its handler is in place.  It does not hold under forkserver, because the
       server would pass the block on to every process that it forks.  A signal to the group may then end a worker that
       is still importing torch; and it ends the server, so the next worker takes as long to start as the first.
    5. A handler that `worker_init_fn` or the dataset sets in a worker replaces this one.
       `workers_outlive_signals=False` leaves all of it to torch.
    6. Of two pending SIGTERMs the kernel keeps only the first, with its sender.  A worker may have the scheduler's
       SIGTERM pending, because it is stopped, waits for a disk or just starts.  Then the trainer's SIGTERM is lost, and
       multiprocessing would wait for the worker for ever.  So at exit the worker gets a signal of another number first,
       which the pending SIGTERM does not replace (at_exit.py).
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
    """Block the three in this thread, and so in a process that it starts.

    Args:
        context: Starts the process.
    """
    method = getattr(context, "get_start_method", str)()
    if method not in ("fork", "spawn"):  # a fork server would keep them blocked for every process that it starts
        yield
        return
    if method == "spawn":
        # multiprocessing starts this process before the first one that it spawns, and then unblocks SIGINT and SIGTERM
        # unconditionally: the first worker would start without a block.
        resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, GROUP)
    _before[threading.get_ident()] = before
    try:
        yield
    finally:
        del _before[threading.get_ident()]
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_before: dict[int, set[int]] = {}  # the signals that each thread that starts a worker had blocked before


@contextmanager
def unblocked() -> Iterator[None]:
    """Within blocked_at_start(): block only what was blocked before it.  Pending signals are delivered now."""
    before = _before.get(threading.get_ident())
    if before is None:
        yield
        return
    blocked = signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
