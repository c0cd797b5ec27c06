"""What a child leaves behind, removed: its processes, and their files in /dev/shm.

A loader that crashes or hangs, and some that do not, leave workers running and segments that nobody will unlink.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from pathlib import Path

from bench.tree import members

SHM = Path("/dev/shm")
GRACE = 3.0  # seconds for a resource tracker to unlink what its dead processes had registered
LIMIT = 30.0  # seconds after which a process that SIGKILL does not end (the kernel is at work for it) is left alone
TRACKER = b"multiprocessing.resource_tracker"


def sweep(session: int) -> None:
    """Kill every process of a session and remove what they had in /dev/shm.

    Python's resource trackers are spared for a while: they know which of the names are left, and unlink them as soon
    as all the others have ended.

    Args:
        session: its number, that of its leader.  The leader is not to be reaped before: its number would be free.
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
    """Names of the files in /dev/shm that a process maps: Python's, which do not say whose they are."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return set()
    return set(re.findall(r" /dev/shm/(psm_\w+)$", maps, re.MULTILINE))


def _maker(name: str) -> int:
    """The process that torch's name of a segment names: torch_<pid>_<number>_<number>."""
    number = name.split("_")[1]
    return int(number) if number.isdigit() else -1
