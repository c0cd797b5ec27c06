"""Ends a worker as soon as its trainer is gone, whatever the worker does then, even while it unpickles its
arguments."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from multiprocessing.context import get_spawning_popen
from typing import Any

PROCESS = "shmloader.core.process"
_follower = 0  # the pid of the process that called follow(); a forked child has another one


def follow(trainer: int) -> None:
    """End this process when the trainer ends; at once, if it has ended already.

    Under fork and spawn the trainer is the parent, and the kernel does it.  Under forkserver the parent is the server,
    and a thread sleeps on the trainer's descriptor instead.  In a sandbox it may do so under fork and spawn, too, or
    may have to look again and again: NOTE [ Sandboxes ].  Called again in the same process, it does nothing.

    Args:
        trainer: The trainer's pid.
    """
    global _follower
    if _follower == os.getpid():
        return
    _follower = os.getpid()
    if _process().die_with(trainer):
        return
    try:
        end: tuple[Any, int] = _end_with, os.pidfd_open(trainer)
    except ProcessLookupError:
        os._exit(1)
    except OSError:  # no descriptor is left; a kernel before 5.3, such as RHEL 8's; or a sandbox
        end = _end_after, trainer
    threading.Thread(target=end[0], args=end[1:], name="shmloader_trainer", daemon=True).start()


def _end_with(death: int) -> None:
    poll = select.poll()
    poll.register(death, select.POLLIN)
    poll.poll()
    os._exit(1)


def _end_after(trainer: int) -> None:
    """Check once a second whether the trainer exists, because there is nothing to sleep on."""
    while True:
        try:
            os.kill(trainer, 0)
        except OSError:  # it is gone, or another user's process has its number now
            os._exit(1)
        time.sleep(1)


def begin(trainer: int, outlives: bool) -> None:
    """The first step of a worker.

    Args:
        trainer: The trainer's pid.
        outlives: Whether the worker survives signals to its group: NOTE [ Group signals ].
    """
    if outlives:
        _process().outlive_signals(trainer)
    follow(trainer)


class FollowingName(str):
    """A process's name that makes a process which is spawned with it follow its trainer.

    A spawned worker unpickles its name first of all.  Next it imports the trainer's script, and with it torch.  That
    takes seconds, in which none of our other code runs.  If the trainer were killed then, the worker would be left
    behind.  This file is run by its path, because sys.path is not the trainer's yet, and alone, because the package
    imports torch.  Pickled for any other reason (a log record carries the process's name), it is an ordinary name.

    Args:
        name: The process's.
        outlives: As in begin().
    """

    def __new__(cls, name: str, outlives: bool) -> FollowingName:
        following = super().__new__(cls, name)
        following._outlives = outlives
        return following

    _outlives: bool

    def __reduce__(self) -> tuple[Any, ...]:
        if get_spawning_popen() is None:
            return str, (str(self),)
        following = "__import__('runpy').run_path(script)['begin'](trainer, outlives) or name"
        known = {"script": __file__, "trainer": os.getpid(), "outlives": self._outlives, "name": str(self)}
        return eval, (following, known)


def _process() -> Any:
    """The extension of that name, loaded by its path (see FollowingName)."""
    if PROCESS not in sys.modules:
        core = os.path.join(os.path.dirname(os.path.dirname(__file__)), "core")
        spec = PathFinder.find_spec(PROCESS, [core])
        if spec is None or spec.loader is None:
            raise ImportError(
                f"{PROCESS} has not been built. Run pip install shmloader, or pip install -e . in a checkout."
            )
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[PROCESS] = module
    return sys.modules[PROCESS]
