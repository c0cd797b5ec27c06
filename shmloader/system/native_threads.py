"""Warns before a fork beside threads of native libraries, because the worker may hang or crash.
Decides which libraries do not survive it: polars, jax, gRPC, older lance, and those with an OpenMP of their own, such
as scikit-learn.

NOTE [ Fork beside threads ]

A forked process has one thread.  In it, a library that gives work to a pool of threads waits for ever, unless it starts
the pool again after the fork.  We tried each library: used it, forked, and used it in the child.  polars, jax, lance
0.30 and an OpenMP that torch does not use (scikit-learn's) hung, and gRPC crashed.  These worked: numpy's OpenBLAS,
pyarrow, tokenizers, OpenCV, lance 14 (since October 2025 lance starts its threads again), and gRPC with
GRPC_ENABLE_FORK_SUPPORT=1.  torch's own pools work because torch gives a worker one thread.  LightGBM, XGBoost and
faiss were not tried; their wheels bring the same OpenMP as scikit-learn's.

A library that was imported and not used has no such threads, and the child may use it.  So a module in sys.modules
proves nothing.  We look for its threads by their names, in /proc.  Threads of OpenMP have no names.  They wait inside
their library, so the address at which the kernel will resume them shows to which copy of the library they belong.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shmloader.system.user_line import is_first, warn_once

TASKS = "/proc/self/task"
MAPS = "/proc/self/maps"


@dataclass(frozen=True)
class Library:
    """A library that does not work in a process that was forked beside its threads.

    Attributes:
        module: Its name in sys.modules.
        threads: Matches the names of its threads.  None: they have the process's name, and wait inside an OpenMP.
        until: The first major version that works.  None: there is none.
        remedy: A variable of the environment: if it is 1 or true, the library works.
    """

    module: str
    threads: re.Pattern[str] | None
    until: int | None = None
    remedy: str = ""

    def is_imported(self) -> bool:
        """Whether this process has imported it, in a version that breaks."""
        module = sys.modules.get(self.module)
        if module is None or os.environ.get(self.remedy, "").lower() in ("1", "true"):
            return False
        if self.until is None:
            return True
        first = re.match(r"\d+", str(getattr(module, "__version__", "")))
        return first is not None and int(first[0]) < self.until


LIBRARIES = (
    Library("polars", re.compile(r"polars-\d")),
    Library("lance", re.compile(r"lance_"), until=1),
    Library("grpc", re.compile(r"event_engine"), remedy="GRPC_ENABLE_FORK_SUPPORT"),
    Library("jax", re.compile(r"tf_XLA")),
    *(Library(module, None) for module in ("sklearn", "lightgbm", "xgboost", "faiss")),
)

BREAK_BY_NAME = [library.module for library in LIBRARIES if library.threads is not None and library.until is None]


def libraries_with_threads() -> list[str]:
    """The names of the libraries whose threads run in this process, and do not survive a fork."""
    imported = [library for library in LIBRARIES if library.is_imported()]
    if not imported or not os.path.isdir(TASKS):  # almost every process has none, and reads nothing
        return []
    named = [library for library in imported if library.threads is not None]
    names = set(_names()) if named else set()
    found = [one.module for one in named if one.threads and any(map(one.threads.match, names))]
    unnamed = tuple(library.module for library in imported if library.threads is None)
    return found + (_of_openmp(unnamed) if unnamed else [])


def warn_before_fork(context: Any) -> None:
    """Warn of libraries that will not work in workers: of each once in a process.

    Args:
        context: Will start the workers.
    """
    if getattr(context, "get_start_method", str)() != "fork":
        return
    names = " and ".join(module for module in libraries_with_threads() if is_first(("threads of", module)))
    if names:
        warn_once(
            f"workers are forked beside threads of {names}, which do not survive a fork. A worker that uses {names} "
            'can hang or crash. Give the loader multiprocessing_context="forkserver" or "spawn", or use it here only '
            "after the workers have started"
        )


# ------------------------------------------------------------------------------------------------------- the threads


def _names() -> Iterator[str]:
    for task in os.listdir(TASKS):
        with contextlib.suppress(OSError), open(f"{TASKS}/{task}/comm") as file:  # the thread may have ended
            yield file.read().rstrip("\n")


def _of_openmp(modules: tuple[str, ...]) -> list[str]:
    """The modules whose own OpenMP has threads that wait for work."""
    copies = _copies(modules)
    if not copies:
        return []
    places = list(_places())
    return [module for module, (low, high) in copies if any(low <= place < high for place in places)]


def _places() -> Iterator[int]:
    """The address at which each thread that waits in the kernel will continue."""
    for task in os.listdir(TASKS):
        with contextlib.suppress(OSError), open(f"{TASKS}/{task}/syscall") as file:  # some kernels lack this file
            if len(words := file.read().split()) > 2:  # a thread that does not wait has "running"
                yield int(words[-1], 16)


@functools.cache
def _copies(modules: tuple[str, ...]) -> list[tuple[str, tuple[int, int]]]:
    """The addresses of the code of each module's own OpenMP.

    A wheel brings its copy in a folder beside its package, `scikit_learn.libs` for example.  A module without one, or
    one that was imported after torch, uses torch's.  The copies are mapped before the imports of the modules end, so
    one search is enough.
    """
    with open(MAPS) as file:
        lines = [line.split() for line in file if "omp" in line and ".libs/" in line]
    found = []
    for words in lines:
        folder = words[-1].rpartition("/")[0].rpartition("/")[2].removesuffix(".libs")
        module = _FOLDERS.get(folder, folder)
        if module in modules and "x" in words[1]:
            low, _, high = words[0].partition("-")
            found.append((module, (int(low, 16), int(high, 16))))
    return found


_FOLDERS = {"scikit_learn": "sklearn", "faiss_cpu": "faiss", "faiss_gpu": "faiss"}
