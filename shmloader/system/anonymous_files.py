"""Files in memory without a name: how they are made, also where a sandbox refuses memfd_create, and are written.
And what a sandbox's refusal of a system call is, and the text about it.

NOTE [ Sandboxes ]

A sandbox filters system calls: a container's seccomp profile, a scheduler's, gVisor.  It answers a call that it does
not allow, or does not know, by EPERM, ENOSYS or EACCES (AppArmor, SELinux).  torch's own loader makes few of the calls
that we make, so it works where ours are refused.  Ours works there, too:

    memfd_create        Files without a name lie in /dev/shm.  So does a ring, and cannot move out of it (segment.py).
    pidfd_open          The trainer sleeps on its workers' pipes (watch.py).  A worker of a fork server looks for its
                        trainer once a second (parents_death.py).  A served loader and its readers notice each
                        other's death by their connection alone.
    prctl               A worker watches its trainer as one of a fork server does (parents_death.py).
    madvise             Pages that were given back stay allocated until the ring ends.

Where there is no /proc, no limit is known (limits.py).  Where ftruncate or fallocate is refused, torch's loader cannot
share a tensor either.

tests/system/test_sandboxes.py refuses each of these calls.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any

from shmloader.system.limits import available_memory

SHM_MOUNT = "/dev/shm"
MiB = 1 << 20
_UNASKED = MiB  # bytes of a file that are written before the first check of free memory
_STEP = 64 * MiB  # bytes between two checks


def is_refusal(error: OSError) -> bool:
    """Whether a sandbox may have refused a system call, or the kernel is too old for it."""
    return error.errno in (errno.EPERM, errno.ENOSYS, errno.EACCES)


def refused(call: str, error: OSError) -> str:
    """The text about such a call: what happened, and the remedy."""
    return (
        f"{call} is refused here ({error.strerror}). Allow this system call in the sandbox (a container's seccomp "
        "profile)"
    )


def memory(name: str, *, seals: bool = False) -> int:
    """A descriptor of an empty file in memory, which is the caller's to close.

    Args:
        name: By which /proc shows it, if it is a memfd.
        seals: Whether the file can be sealed, if it is a memfd.

    Raises:
        OSError: No descriptor is left, or a sandbox refuses memfd_create and /dev/shm cannot be written to.
    """
    flags = os.MFD_CLOEXEC | (os.MFD_ALLOW_SEALING if seals else 0)
    try:
        return os.memfd_create(name, flags)
    except OSError as error:
        if not is_refusal(error):
            raise
        with tempfile.TemporaryFile(dir=SHM_MOUNT, buffering=0) as file:
            return os.dup(file.fileno())


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
