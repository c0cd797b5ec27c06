"""Finds the modules that start threads while a template process imports them.

A process that is forked beside other threads has none of them, and the locks that they held stay locked in it.  So a
template process must have only its first thread.  This file is run by its path before the user's script is imported,
when sys.path is not the trainer's yet.  So it imports nothing from the package.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any


class Threads:
    """Counts the threads of this process at each import, as the first finder of sys.meta_path.  It finds no module."""

    started_threads: list[str]  # the modules that were imported while native threads started

    def __init__(self) -> None:
        self.started_threads = []
        self._importing = "the interpreter"
        self._count = count()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Python calls this when the import of a module begins."""
        self.look(_importer() if name.partition(".")[0] in sys.stdlib_module_names else name)

    def look(self, next_import: str) -> None:
        """Note the module that was imported since the last look, if there are more threads now."""
        now = count()
        if now > self._count:
            self.started_threads.append(self._importing)
        self._importing, self._count = next_import, now


def _importer() -> str:
    """The module that is importing another one."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "the interpreter"))


def count() -> int:
    """The number of threads of this process."""
    return os.stat("/proc/self/task").st_nlink - 2  # a folder's links: its name, its own ".", and ".." of each folder


def begin() -> None:
    """Begin to count.  Before that, have numpy's OpenBLAS start no threads."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    sys.meta_path.insert(0, Threads())


def end() -> list[str]:
    """End the count.

    Returns:
        The modules that started threads, if any of these are left; otherwise none.
    """
    native: list[str] = []
    counters: list[Any] = [each for each in sys.meta_path if hasattr(each, "started_threads")]
    for finder in counters:
        finder.look("")
        native += finder.started_threads
        sys.meta_path.remove(finder)
    return names_of_threads(native)


def names_of_threads(native: list[str]) -> list[str]:
    """The names of whatever started the threads that this process has beside its first one.

    Args:
        native: Modules that may have started threads that Python does not know of.
    """
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    left = count() - 1
    if left <= 0:
        return []
    names = {_module_of(thread) for thread in others}
    if left > len(others) or not names:
        names |= set(native)
    return sorted(names) or [f"a thread named {_command()!r}"]


def _module_of(thread: threading.Thread) -> str:
    """The module that defines the code of a Python thread."""
    target = getattr(thread, "_target", None)
    if target is None:
        target = type(thread)
    return str(getattr(target, "__module__", None) or thread.name)


def _command() -> str:
    """The kernel's name of a thread other than the first."""
    for task in os.listdir("/proc/self/task"):
        if int(task) != os.getpid():
            with open(f"/proc/self/task/{task}/comm", encoding="utf-8", errors="replace") as file:
                return file.read().strip()
    return ""
