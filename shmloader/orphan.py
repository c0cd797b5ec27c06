"""A worker whose trainer is gone ends at once, whatever it is doing then."""

from __future__ import annotations

import os
import select
import threading
from functools import cache

from shmloader._process import die_with_parent


@cache
def follow(trainer: int) -> None:
    """End this process when the trainer ends; now, if it has ended already.

    Under fork and spawn the trainer is the parent, and the kernel sees to it.  Under forkserver the parent is the
    server, which does not leave before its workers do: a thread sleeps on the trainer's descriptor instead.
    """
    if die_with_parent() == trainer:
        return
    try:
        death = os.pidfd_open(trainer)
    except ProcessLookupError:
        os._exit(1)
    threading.Thread(target=_end_with, args=(death,), name="shmloader_trainer", daemon=True).start()


def _end_with(death: int) -> None:
    poll = select.poll()
    poll.register(death, select.POLLIN)
    poll.poll()
    os._exit(1)
