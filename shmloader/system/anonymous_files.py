"""Files in memory without a name: how they are made, also where a sandbox refuses memfd_create, and are written.

NOTE [ Sandboxes ]

A sandbox filters system calls: a container's seccomp profile, a scheduler's, gVisor.  It answers a call that it does
not allow, or does not know, by EPERM, ENOSYS or EACCES (AppArmor, SELinux).  torch's own loader makes few of the calls
that we make, so it works where ours are refused.  Ours works there, too:

    memfd_create        A file has no name in /dev/shm, or else in the folder for temporary files.  A ring lies in
                        /dev/shm, and cannot move out of it (segment.py).
    ftruncate           A byte is written at the file's end.
    fallocate           Zeros are written where the file has no pages.
    pidfd_open          The trainer sleeps on its workers' pipes (watch.py).  A worker of a fork server looks for its
                        trainer once a second (parents_death.py).  A served loader and its readers notice each
                        other's death by their connection alone.
    prctl               A worker watches its trainer as one of a fork server does (parents_death.py).
    sched_getaffinity   All cores of the machine count (limits.py).
    madvise             Pages that were given back stay allocated until the ring ends.

Where there is no /proc, no limit is known (limits.py).

tests/system/test_sandboxes.py refuses each of these calls.
"""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any

from shmloader.system.limits import available_memory, is_refusal, refused

SHM_MOUNT = "/dev/shm"
MiB = 1 << 20
_UNASKED = MiB  # bytes of a file that are written before the first check of free memory
_STEP = 64 * MiB  # bytes between two checks


def memory(name: str, *, seals: bool = False) -> int:
    """A descriptor of an empty file in memory, which is the caller's to close.

    Args:
        name: By which /proc shows it, if it is a memfd.
        seals: Whether the file can be sealed, if it is a memfd.

    Raises:
        OSError: No descriptor is left, or the file cannot be made anywhere.
    """
    flags = os.MFD_CLOEXEC | (os.MFD_ALLOW_SEALING if seals else 0)
    try:
        return os.memfd_create(name, flags)
    except OSError as error:
        if not is_refusal(error):
            raise
        refusal = error
    for folder in (SHM_MOUNT, None):
        try:
            with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
                return os.dup(file.fileno())
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
    raise OSError(
        refusal.errno,
        f"{refused('memfd_create', refusal)}, or make {SHM_MOUNT} or the folder for temporary files (TMPDIR) writable",
    ) from None


def set_size(fd: int, size: int) -> None:
    """Have a file end at `size`.  Where ftruncate is refused, a file that is longer stays so.

    Raises:
        OSError: The file may not be so long.
    """
    try:
        os.ftruncate(fd, size)
    except OSError as error:
        if not is_refusal(error):
            raise
        if size > os.fstat(fd).st_size:
            os.pwrite(fd, b"\0", size - 1)


def allocate(fd: int, at: int, size: int) -> None:
    """Allocate pages for these bytes of a file.  Bytes that have pages stay as they are.

    Raises:
        OSError: ENOSPC, ENOMEM: there are no pages.
    """
    try:
        os.posix_fallocate(fd, at, size)
    except OSError as error:
        if not is_refusal(error):
            raise
        # Workers that make chunks of one batch allocate pages of one slot.  Without the lock, one that has found a hole
        # could write zeros over what another one has written there meanwhile.
        fcntl.lockf(fd, fcntl.LOCK_EX, size, at)
        try:
            _fill_holes(fd, at, at + size)
        finally:
            fcntl.lockf(fd, fcntl.LOCK_UN, size, at)


def _fill_holes(fd: int, at: int, end: int) -> None:
    """Write zeros where a file has no pages."""
    while at < end:
        hole = os.lseek(fd, at, os.SEEK_HOLE)
        if hole >= end:
            return
        try:
            after = min(end, os.lseek(fd, hole, os.SEEK_DATA))
        except OSError as error:
            if error.errno != errno.ENXIO:  # there is no data behind it
                raise
            after = end
        while hole < after:
            hole += os.pwrite(fd, bytes(min(MiB, after - hole)), hole)
        at = after


class AnonymousFile:
    """Such a file, as long as it is open.  A process that is being spawned gets its descriptor.

    Args:
        name: As for memory().
    """

    def __init__(self, name: str) -> None:
        self._fd = memory(name)

    def close(self) -> None:
        """Give it back.  A second call does no harm."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_fd": reduction.DupFd(self._fd)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _fd=state["_fd"].detach())


class Filler:
    """Writes a file, and checks for free memory before it takes it.  Otherwise the OOM killer would come."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._allowed = _UNASKED

    def write(self, data: memoryview, at: int, no_room: Callable[[str], MemoryError]) -> None:
        """Write all these bytes at a place.

        Raises:
            MemoryError: The machine, its control group or a limit has no room for them: no_room(), given what says so.
        """
        if at + data.nbytes > self._allowed:
            if data.nbytes > (available := available_memory()):
                raise no_room(f"{available // MiB} MiB are available")
            self._allowed = at + max(data.nbytes, min(_STEP, available))
        done = 0
        while done < data.nbytes:
            try:
                done += os.pwrite(self._fd, data[done : done + 256 * MiB], at + done)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
                    raise
                raise no_room(os.strerror(error.errno)) from None
