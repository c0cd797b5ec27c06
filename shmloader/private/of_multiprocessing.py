"""All private names of multiprocessing that shmloader uses, each with the effect if a Python version lacks it.

In Python 3.10 to 3.14 these are:

    Popen._fds                          the list of descriptors that a spawned process will have.
                                        Without it the dataset is pickled again for each worker (spawn_arguments.py).
    ForkingPickler._extra_reducers      the reducers that users have registered for its processes, by type.
                                        Without it such objects are pickled in batches as in files.
    BaseProcess._popen.close            closes the trainer's descriptors of a process that has ended.
                                        Without it they are closed when the process's object dies.

    util.is_exiting                     whether multiprocessing is ending its daemons, at the interpreter's exit.
                                        Without it a thread that waits for a batch then reports a lost worker.

    forkserver._forkserver._preload_modules, ._forkserver_pid
                                        the modules that the fork server imports first, and whether it runs.
                                        Without it each worker imports torch, unless users preload it.

Two more names have no underscore, but are not documented either: `context.get_spawning_popen` and the classes
`popen_spawn_posix.Popen` and `popen_forkserver.Popen`.
"""

from __future__ import annotations

from multiprocessing import forkserver, popen_forkserver, popen_spawn_posix, reduction, util
from multiprocessing.context import get_spawning_popen
from multiprocessing.process import BaseProcess
from typing import Any

EXTRA_REDUCERS: dict[type, Any] = getattr(reduction.ForkingPickler, "_extra_reducers", {})


def given_descriptors() -> list[int] | None:
    """The list of descriptors that the process which is being spawned will have; add to it.

    None if no process is being spawned, or if it is spawned in a way that is not multiprocessing's own.
    """
    popen = get_spawning_popen()
    if type(popen) not in (popen_spawn_posix.Popen, popen_forkserver.Popen):
        return None
    given = getattr(popen, "_fds", None)
    return given if type(given) is list else None


def ends_workers() -> bool:
    """Whether multiprocessing is ending this process's daemons, workers among them, at the interpreter's exit."""
    ask: Any = getattr(util, "is_exiting", None)
    return ask is not None and bool(ask())


def close_pipes(process: BaseProcess) -> None:
    """Close this process's descriptors for a child that has ended.  A context may have its own class of processes."""
    close = getattr(getattr(process, "_popen", None), "close", None)
    if close is not None:
        close()


def preload_in_fork_server(module: str) -> None:
    """Have the fork server import a module beside `__main__`, unless it runs, or the user has set its imports."""
    server = getattr(forkserver, "_forkserver", None)
    runs = getattr(server, "_forkserver_pid", 0) is not None
    if not runs and getattr(server, "_preload_modules", None) == ["__main__"]:
        forkserver.set_forkserver_preload(["__main__", module])
