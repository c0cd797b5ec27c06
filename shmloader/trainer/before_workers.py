"""Before workers start: warns if the dataset holds an open file that they would share, and refuses gevent's threads.

Forked processes share the position of an open file.  If two workers read from it, each moves the position of the other,
and both get wrong bytes without an error.  Libraries for HDF5, LMDB and SQLite do not allow the use of an open file
after a fork either.  The file may have been opened by the dataset's `__init__`, or by its `__getitem__` if a sample was
made in the trainer.

Classes of other libraries are known by their names, so nothing is imported.  The search goes one level deep: the
attributes of a dataset, and the first item of a list, a tuple or a dict among them.  A loader with a worker_init_fn is
trusted, because that may open the files again.  These are harmless: what lies in a dict by process id; files that are
closed, or not open for reading; memory, pipes and devices; a file beside an mmap of it; an LMDB that is read-only and
takes no locks.

Under gevent's threads, what watches the workers would never run. The trainer sleeps in C until a batch comes, and a
greenlet runs only while all others wait in gevent's own functions. So a worker's death was never seen, and in a
greenlet the process ended by SIGSEGV. torch's iterator fails there too.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from shmloader.protocols.user_objects import with_parts
from shmloader.system.user_line import warn_once

_STANDARD = 2  # the highest descriptor of stdin, stdout and stderr
_MANY = 256  # attributes; a dict of more is not the __dict__ of an object


def warn_of_open_files(context: Any, datasets: Iterable[Any], has_init: bool) -> None:
    """Warn of open files in datasets that workers are about to inherit: once for each class of files in a dataset's.

    Args:
        context: Will start the workers.
        datasets: What they will inherit.
        has_init: Whether a function of the user's runs first in each of them.
    """
    if has_init or getattr(context, "get_start_method", str)() != "fork":
        return
    for dataset in (part for each in datasets for part in with_parts(each)):
        for what in _open_files(dataset):
            warn_once(
                f"workers are forked while {type(dataset).__name__} holds an open file, a {what}. Forked workers share "
                "its position and its locks, so they can read wrong data without an error. Close it before you iterate "
                "over the loader, and open it in each worker: in __getitem__ on the first use, or in worker_init_fn. A "
                "sample that you made in this process may have opened it"
            )


def _open_files(dataset: Any) -> Iterator[str]:
    """What a dataset holds of open files, by their classes.

    It asks for no `__dict__`.  CPython 3.11 and 3.12 make that dict when somebody asks for it, and from then on each
    `self.x` in the dataset's methods takes 40 ns longer.
    """
    values = [dataset, *gc.get_referents(dataset)]  # of its attributes; or its __dict__, if there is one already
    for value in list(values):
        if type(value) is dict and len(value) <= _MANY and os.getpid() not in value:
            values += value.values()
    is_mapped = any(_names_of(value) & {"mmap.mmap", "numpy.memmap"} for value in values)
    for value in map(_first, values):
        what = _open_file(value)
        if what is not None and not (is_mapped and isinstance(value, io.IOBase)):
            yield what


def _first(value: Any) -> Any:
    """The first item of a container; another object itself."""
    if type(value) in (list, tuple):
        return next(iter(value), None)
    if type(value) is dict and os.getpid() not in value:  # otherwise each process has its own
        return next(iter(value.values()), None)
    return None if type(value) is dict else value


def _open_file(value: Any) -> str | None:
    """What an open file is; None if it is none, or harmless."""
    for name in _names_of(value) & _KINDS.keys():
        with contextlib.suppress(Exception):  # it is closed, or of another version
            if _KINDS[name](value):
                return _name_of(type(value))
    return None


def _names_of(value: Any) -> set[str]:
    return set(map(_name_of, type(value).__mro__))


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_file(value: Any) -> bool:
    """Whether an object of Python's is a file on a disk, open for reading."""
    if value in (None, sys.stdin, sys.stdout, sys.stderr) or value.closed or not value.readable():
        return False
    if getattr(value, "_rolled", True) is False:  # a SpooledTemporaryFile in memory, which fileno() would write to disk
        return False
    fd = value.fileno()
    return fd > _STANDARD and stat.S_ISREG(os.fstat(fd).st_mode)


def _takes_locks(environment: Any) -> bool:
    """Whether an LMDB, which is open, may write or takes locks."""
    flags = environment.flags()
    return bool(flags["lock"] or not flags["readonly"])


def _has_file(connection: Any) -> bool:
    """Whether a connection to SQLite is open, and not only to memory."""
    cursor = connection.cursor()
    cursor.row_factory = None
    return any(row[2] for row in cursor.execute("PRAGMA database_list"))


_KINDS: dict[str, Callable[[Any], bool]] = {  # by the name of the class: whether it is open, and not harmless
    "_io._IOBase": _is_file,  # also gzip, bz2 and lzma
    "zipfile.ZipFile": lambda archive: _is_file(archive.fp),
    "tarfile.TarFile": lambda archive: not archive.closed and _is_file(archive.fileobj),
    **dict.fromkeys(
        ("numpy.lib.npyio.NpzFile", "numpy.lib._npyio_impl.NpzFile"), lambda archive: _is_file(archive.zip.fp)
    ),
    **dict.fromkeys(("h5py._hl.files.File", "h5py._hl.group.Group", "h5py._hl.dataset.Dataset"), bool),
    "tables.file.File": lambda file: bool(file.isopen),
    "netCDF4._netCDF4.Dataset": lambda file: bool(file.isopen()),
    **dict.fromkeys(("lmdb.Environment", "lmdb.cffi.Environment", "builtins.Environment"), _takes_locks),
    "sqlite3.Connection": _has_file,
    "PIL.ImageFile.ImageFile": lambda picture: bool(picture.tile) and _is_file(picture.fp),
}


def refuse_green_threads() -> None:
    """Call this before workers start.

    Raises:
        RuntimeError: gevent has replaced what our threads need.
    """
    monkey = sys.modules.get("gevent.monkey")
    patched = [name for name in ("threading", "select") if monkey is not None and monkey.is_module_patched(name)]
    if patched:
        raise RuntimeError(
            f"gevent has replaced {' and '.join(patched)} in this process, so the thread that watches a loader's "
            "workers cannot run. Call gevent.monkey.patch_all(thread=False, select=False), give num_workers=0, or "
            "load in a process that gevent has not patched."
        )
