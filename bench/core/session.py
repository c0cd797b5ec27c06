"""The processes of a session: their processor time, page faults and memory.
Those that are left are killed, and their files in /dev/shm are removed.

Each measurement leads its own session (child.py), and all processes that it starts belong to it.  A loader that crashes
or hangs, and some that do not, leave workers running and segments in /dev/shm that nobody will unlink.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import time
from pathlib import Path

SHM = Path("/dev/shm")
GRACE = 3.0  # seconds for a resource tracker to unlink what its dead processes had registered
LIMIT = 30.0  # seconds after which a process that SIGKILL does not end (it is busy in the kernel) is left alone
TRACKER = b"multiprocessing.resource_tracker"
TICK = os.sysconf("SC_CLK_TCK")
ZOMBIE = "Z"


def members(session: int) -> set[int]:
    """The processes of a session that have not ended.  All that a child of child.py starts is in that child's."""
    return {
        pid
        for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
        if _session(pid) == session and (fields := _stat(pid)) and fields[0] != ZOMBIE
    }


def used(session: int) -> tuple[float, int]:
    """Seconds of processor time and minor page faults of a session's processes so far, the ended ones included.

    The time of those that are alive is exact, and so is that of those that this process has reaped.  That of others
    that have ended comes in ticks of 10 ms.
    """
    seconds, faults = 0.0, 0
    for pid in members(session):
        found = _stat(pid)
        if found:
            faults += int(found[7]) + int(found[8])
            seconds += _seconds(pid) + (_reaped() if pid == os.getpid() else (int(found[13]) + int(found[14])) / TICK)
    return seconds, faults


def memory(session: int, with_shared: bool = True) -> int:
    """Bytes of memory of a session's processes together.  A page that several of them map counts once.

    Args:
        with_shared: False leaves out shared memory (/dev/shm and memfds).
    """
    signs = {"Pss:": 1024, "Pss_Shmem:": 0 if with_shared else -1024}
    found = 0
    for pid in members(session):
        with contextlib.suppress(OSError):  # it has just ended
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text(errors="replace").splitlines()
            figures = [line.split()[:2] for line in lines]
            found += sum(signs[name] * int(figure) for name, figure in figures if name in signs)
    return found


def shared_memory() -> int:
    """Bytes of shared memory that the whole machine uses now, in /dev/shm and in memfds."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("Shmem:"):
                return int(line.split()[1]) * 1024
    return 0


def sharpen() -> None:
    """Have sleeps of this process, and of all that it forks, end on time.

    By default the kernel may let each last 50 us longer, which is 3 % of the shortest that a question asks for.
    """
    Path("/proc/self/timerslack_ns").write_text("1", encoding="ascii")


def sweep(session: int) -> None:
    """Kill every process of a session and remove its files in /dev/shm.

    Python's resource trackers are spared for a while, because they know which names are left, and unlink them when all
    the other processes have ended.

    Args:
        session: its number, that of its leader.  Do not reap the leader before, because its number would be free.
    """
    seen: set[int] = set()
    mapped: set[str] = set()
    began = time.monotonic()
    while (living := members(session)) and time.monotonic() < began + LIMIT:
        for pid in living - seen:
            mapped |= _segments(pid)
        seen |= living
        trackers = {pid for pid in living if _is_tracker(pid)}
        for pid in living if time.monotonic() > began + GRACE else living - trackers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)
    for name in mapped | {path.name for path in SHM.glob("torch_*") if _maker(path.name) in seen}:
        (SHM / name).unlink(missing_ok=True)


def _is_tracker(pid: int) -> bool:
    try:
        return TRACKER in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _segments(pid: int) -> set[str]:
    """Names of the files in /dev/shm that a process maps: Python's, whose names do not show their owner."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return set()
    return set(re.findall(r" /dev/shm/(psm_\w+)$", maps, re.MULTILINE))


def _maker(name: str) -> int:
    """The process in torch's name of a segment: torch_<pid>_<number>_<number>."""
    number = name.split("_")[1]
    return int(number) if number.isdigit() else -1


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)  # a hundredth of the time of proc(5)'s stat
    except OSError:  # it has just ended
        return -1


def _seconds(pid: int) -> float:
    try:
        return time.clock_gettime(~pid << 3 | 2)  # CPUCLOCK_SCHED of that process: what clock_getcpuclockid(3) gives
    except OSError:  # it has just ended
        return 0.0


def _reaped() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _stat(pid: int) -> list[str]:
    """The fields of proc(5)'s stat from the third, the state, on; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
