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

And two that are not underscored, yet not documented either: `context.get_spawning_popen` and the classes
`popen_spawn_posix.Popen` and `popen_forkserver.Popen`.
"""

from __future__ import annotations

from multiprocessing import popen_forkserver, popen_spawn_posix, reduction, util
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
