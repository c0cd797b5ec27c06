"""Every name of multiprocessing's that is not public, in one place; what is lost where a Python does not have it.

As of Python 3.10 to 3.14 there are:

    Popen._fds                          of a process that is spawned: the descriptors that it is given, a list.
                                        Without it the dataset is pickled for each worker anew (spawn_arguments.py).
    ForkingPickler._extra_reducers      what users registered for its processes, by type.
                                        Without it such objects are pickled in batches as in files.
    BaseProcess._popen.close            closes what the trainer has of a process that has ended.
                                        Without it that is closed when the process's object dies.

    util.is_exiting                     whether multiprocessing ends its daemons, at the interpreter's exit.
                                        Without it a thread that waits for a batch then says that a worker was lost.

    forkserver._forkserver._forkserver_pid
                                        the fork server, to see how it ended.
                                        Without it, who cannot start a worker is told less.

And two that are not underscored, yet not documented either: `context.get_spawning_popen` and the classes
`popen_spawn_posix.Popen` and `popen_forkserver.Popen`.
"""

from __future__ import annotations

import os
import time
from multiprocessing import forkserver, popen_forkserver, popen_spawn_posix, reduction, util
from multiprocessing.context import get_spawning_popen
from multiprocessing.process import BaseProcess
from typing import Any

EXTRA_REDUCERS: dict[type, Any] = getattr(reduction.ForkingPickler, "_extra_reducers", {})


def given_descriptors() -> list[int] | None:
    """The descriptors that the process which is being spawned will have, to be added to.

    None where none is being spawned, or where it is spawned in a way that is not multiprocessing's own.
    """
    popen = get_spawning_popen()
    if type(popen) not in (popen_spawn_posix.Popen, popen_forkserver.Popen):
        return None
    given = getattr(popen, "_fds", None)
    return given if type(given) is list else None


def ends_workers() -> bool:
    """Whether multiprocessing is ending this process's daemons, workers among them: the interpreter is going down."""
    ask: Any = getattr(util, "is_exiting", None)
    return ask is not None and bool(ask())


def close_pipes(process: BaseProcess) -> None:
    """Close what this process has of one that has ended.  A context may have processes of its own making."""
    close = getattr(getattr(process, "_popen", None), "close", None)
    if close is not None:
        close()


def end_of_fork_server(patience: float = 0.5) -> int | None:
    """How the fork server of this process ended, as an exit code; None where it lives, or nobody knows.

    It is not reaped, because multiprocessing does that.

    Args:
        patience: Seconds that it has to end: its pipes are closed a little earlier.
    """
    pid = getattr(getattr(forkserver, "_forkserver", None), "_forkserver_pid", None)
    end = time.monotonic() + patience
    while pid:
        try:
            found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # another one has reaped it
            return None
        if found is not None:
            return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        if time.monotonic() > end:
            return None
        time.sleep(0.01)
    return None
