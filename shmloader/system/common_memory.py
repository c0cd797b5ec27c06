"""Memory without a name that all processes of a user find, so that all jobs on a machine share it.

NOTE [ Common memory ]

Jobs that were started separately should share memory.  When the last of them ends, in whatever way, the memory should
be gone.  A name in a folder stays behind after kill -9, so this memory has no name that outlives it.

    1. It is a memfd: the kernel frees it with the last descriptor and the last mapping, however the processes died.
    2. Processes find it in /proc.  Each process that uses it holds a descriptor, and the kernel shows that to all
       processes of the same user as /proc/PID/fd/NUMBER, a link to "/memfd:NAME (deleted)".  A process that opens that
       link has the same memory, and keeps it, even if the other one ends at that moment.  So nothing is passed on,
       there is no server, and no death takes the memory away from the others.
    3. Two processes that search at the same time could both find nothing, and make two memories.  So a process that
       finds nothing takes a lock on the file of its pid namespace, /proc/self/ns/pid.  Under the lock it searches
       again, and makes the memory if there still is none.  Every process has that file, and none can leave it behind.
       The kernel releases the lock when its holder ends.  The lock reaches as far as /proc does: a process that does
       not see another one does not wait for it either.  A process holds the lock for milliseconds, and only while it
       searches or makes the memory.  The cache of decoded pictures does that when a dataset is made, and never while
       samples are made.
    4. Any user of the namespace could keep that lock, so no process waits longer than PATIENCE for it.  After that
       there may be two memories, each with its own budget.  That wastes memory but is no error.
    5. The memory is sealed when it is complete, and only sealed memory of this process's user counts as found.  So no
       process sees it half made, nobody can shorten it while it is mapped, and no process reads what another user put
       there.
    6. A process that gets a dataset by pickle knows which process had the memory and where, and looks there first.

Rejected: a name in /dev/shm or a file in a temporary folder (they stay behind); System V memory (it stays behind, too,
and is limited); passing descriptors through a socket (its server would have to live as long as all others); a name in
the abstract namespace of sockets (any user may take the name; and it is known in one network namespace, which is not
the same set of processes as one /proc).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from shmloader.system.limits import is_refusal, refused
from shmloader.system.processes import files_of, processes_of

__all__ = ["Place", "held", "open_common"]

PATIENCE = 10.0  # seconds
_LOCK = "/proc/self/ns/pid"

Place = tuple[int, int, int]  # a pid, its descriptor, the file's inode


def open_common(name: str, make: Callable[[int], Any], first: Place | None = None) -> int:
    """A descriptor of the memory of this name, which is made if it does not exist.

    Args:
        name: of the memory, of up to 200 letters.
        make: writes the first contents of new memory, by its descriptor; no process finds the memory before it returns.
        first: where it was found before.

    Returns:
        A descriptor, which is the caller's to close.

    Raises:
        OSError: There is no /proc, or no memory can be made.
    """
    if first is not None and (fd := _opened(f"/proc/{first[0]}/fd/{first[1]}", first[2])) is not None:
        return fd
    os.stat(_LOCK)  # raises without /proc, where each process would make its own memory
    if (fd := _found(name)) is not None:
        return fd
    with _alone():
        if (fd := _found(name)) is not None:
            return fd
        try:
            fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise OSError(error.errno, refused("memfd_create", error)) if is_refusal(error) else error from None
        try:
            make(fd)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)  # a mapping must not lose its end
        except BaseException:
            os.close(fd)
            raise
        return fd


def held(fd: int) -> Place:
    """Where other processes find the memory of a descriptor of this one."""
    return os.getpid(), fd, os.fstat(fd).st_ino


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """While this is entered, no other process searches for memory, unless the wait for the lock took too long."""
    lock = os.open(_LOCK, os.O_RDONLY | os.O_CLOEXEC)
    try:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    break
                time.sleep(0.002)
        yield
    finally:
        os.close(lock)


def _found(name: str) -> int | None:
    link = f"/memfd:{name} (deleted)"
    for pid in processes_of(os.getuid()):
        for number, target in files_of(pid).items():
            if target == link and (fd := _opened(f"/proc/{pid}/fd/{number}")) is not None:
                return fd
    return None


def _opened(path: str, inode: int | None = None) -> int | None:
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)  # the link may lead to any file now
        if _is_common(fd, inode):
            return fd
        os.close(fd)
    return None


def _is_common(fd: int, inode: int | None) -> bool:
    """Whether it is such memory of this user, and complete.  Only a memfd has seals, and they are set last."""
    try:
        status = os.fstat(fd)
        is_sealed = bool(fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)
    except OSError:
        return False
    return is_sealed and status.st_uid == os.geteuid() and inode in (None, status.st_ino)
