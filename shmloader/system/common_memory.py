"""Memory without a name that all processes of a user find: every job on a machine has the same.

NOTE [ Common memory ]

Jobs that were started apart are to share memory, and it is to be gone when the last of them is, however they end.  What
has a name in a folder stays behind after kill -9, so the memory has none that outlives it.

    1. It is a memfd: the kernel frees it with the last descriptor and the last mapping, whoever dies how.
    2. It is found in /proc.  Each process that uses it holds a descriptor, and the kernel shows that to all processes
       of the same user as /proc/PID/fd/NUMBER, a link to "/memfd:NAME (deleted)".  Who opens that link has the same
       memory, and keeps it, even if the other one ends in that moment.  So there is nothing to pass on, no server, and
       nobody whose death would take it away from the others.
    3. Two that look at the same time find nothing and would make two.  So whoever finds nothing looks again, and makes
       it, under a lock on the file of its pid namespace, /proc/self/ns/pid, which every process has and none can leave
       behind.  The kernel releases it with its holder.  Its reach is that of /proc: a process that does not see the
       other's processes does not wait for them either.  It is held for milliseconds, when a machine's first dataset
       is made, and never while samples are.
    4. Any user of the namespace could keep that lock.  So it is waited for no longer than PATIENCE.  Then two memories
       may come to be, each with a budget of its own: a waste, and no error.
    5. It is sealed when it is whole, and only sealed memory of this process's user counts as found.  So nobody sees
       half of a beginning, no mapping loses its end, and nobody reads what another user put there.
    6. A process that is given a dataset by pickle knows in which process and where the memory was, and looks there
       first.

Rejected: a name in /dev/shm or a file in a temporary folder (left behind); System V memory (as well, and limited);
passing descriptors through a socket (whoever serves it must live as long as all others); a name in the abstract
namespace of sockets (any user may take it, and it belongs to the network namespace, which containers share or not
whatever their processes do).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from shmloader.system.processes import processes_of

__all__ = ["Place", "held", "open_common"]

PATIENCE = 10.0  # seconds
_LOCK = "/proc/self/ns/pid"

Place = tuple[int, int, int]  # a process, its descriptor, the file's number


def open_common(name: str, make: Callable[[int], Any], first: Place | None = None) -> int:
    """A descriptor of the memory of this name, made where there is none.

    Args:
        name: of the memory, of up to 200 letters.
        make: writes what is to be in new memory, whose descriptor it is given; nobody finds that before it returns.
        first: where it was found before.

    Returns:
        A descriptor, which is the caller's to close.

    Raises:
        OSError: There is no /proc, or no memory can be made.
    """
    if first is not None and (fd := _opened(f"/proc/{first[0]}/fd/{first[1]}", first[2])) is not None:
        return fd
    os.stat(_LOCK)  # without /proc each process would make memory of its own
    if (fd := _found(name)) is not None:
        return fd
    with _alone():
        if (fd := _found(name)) is not None:
            return fd
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
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
    """Nobody else looks for memory meanwhile, or has done so for too long."""
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
        folder = f"/proc/{pid}/fd"
        try:
            numbers = os.listdir(folder)
        except OSError:  # it has ended, or may not be seen
            continue
        for number in numbers:
            with contextlib.suppress(OSError):
                if os.readlink(f"{folder}/{number}") == link and (fd := _opened(f"{folder}/{number}")) is not None:
                    return fd
    return None


def _opened(path: str, inode: int | None = None) -> int | None:
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)  # it may be anything by now
        if _is_common(fd, inode):
            return fd
        os.close(fd)
    return None


def _is_common(fd: int, inode: int | None) -> bool:
    """Whether it is such memory, of this user, and whole: it is sealed last, and nothing but a memfd has seals."""
    try:
        status = os.fstat(fd)
        is_sealed = bool(fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)
    except OSError:
        return False
    return is_sealed and status.st_uid == os.geteuid() and inode in (None, status.st_ino)
