"""Files in memory without a name: how they are made, also where a sandbox refuses memfd_create, and are written."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any

from shmloader.system.limits import available_memory
from shmloader.system.sandboxes import is_refusal, refused

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
