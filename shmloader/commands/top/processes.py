"""What top shows of a process, as the kernel reports it: its state, its memory, and its own pid."""

from __future__ import annotations

import contextlib
import mmap

from shmloader.system.processes import status_of

# the letters of states, and what each means for a process that waits for this one
STATES = {
    "R": "runs",
    "S": "sleeps",
    "D": "is in the kernel (disk, network)",
    "T": "is stopped by a signal",
    "t": "is stopped by a debugger",
    "Z": "is dead",
    "X": "is dead",
    "": "is gone",
}


def state_of(pid: int) -> str:
    """The letter of a process's state, one of STATES; empty if it is gone."""
    return status_of(pid, "State")[:1]


def inner_pid(pid: int) -> int:
    """The pid by which a process knows itself, which is another one in a container."""
    words = status_of(pid, "NSpid").split()
    return int(words[-1]) if words else pid


def resident_bytes(pid: int) -> int:
    """The bytes of a process in memory, without files and shared memory.  Pages that it shares by fork count in full.

    The kernel reads them off counters, so asking costs the process nothing.
    """
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/statm", encoding="ascii") as file:
        _, resident, shared, *_ = map(int, file.read().split())
        return (resident - shared) * mmap.PAGESIZE
    return 0
