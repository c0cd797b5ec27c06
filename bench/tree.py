"""What a process and all that descends from it have used: processor time, page faults, shared memory."""

from __future__ import annotations

import os
import time
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")
ZOMBIE = "Z"


def members(session: int) -> set[int]:
    """The processes of a session that have not ended.  All that a child of child.py starts is in that child's."""
    return {
        int(entry)
        for entry in os.listdir("/proc")
        if entry.isdigit() and (of := _stat(int(entry))) and int(of[3]) == session and of[0] != ZOMBIE
    }


def used(session: int) -> tuple[float, int]:
    """Seconds of processor time and minor page faults of a session's processes so far, the ended ones included.

    The time of those that are alive is exact; that of those that have ended comes in ticks of 10 ms.
    """
    seconds, faults = 0.0, 0
    for pid in members(session):
        of = _stat(pid)
        if of:
            faults += int(of[7]) + int(of[8])
            seconds += _seconds(pid) + (int(of[13]) + int(of[14])) / TICK
    return seconds, faults


def shared_memory() -> int:
    """Bytes of shared memory that the whole machine uses now, in /dev/shm and in memfds."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("Shmem:"):
                return int(line.split()[1]) * 1024
    return 0


def resident() -> int:
    """Bytes of memory that this process has now."""
    with open("/proc/self/statm", encoding="ascii") as fields:
        return int(fields.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _seconds(pid: int) -> float:
    try:
        return time.clock_gettime(~pid << 3 | 2)  # CPUCLOCK_SCHED of that process: what clock_getcpuclockid(3) gives
    except OSError:  # it has just ended
        return 0.0


def _stat(pid: int) -> list[str]:
    """The fields of proc(5)'s stat from the third, the state, on; empty where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
