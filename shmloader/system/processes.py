"""Reads the kernel's facts about a process of this user: its status, start, memory, signals and open files."""

from __future__ import annotations

import contextlib
import os


def status_of(pid: int, name: str) -> str:
    """A line of the kernel's status of a process; empty if there is none."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith(f"{name}:"):
                return line.split(":", 1)[1].strip()
    return ""


def start_of(pid: int) -> int | None:
    """When a process was started, in clock ticks since boot; None if it is gone, or dead and not reaped yet.

    A pid and this number identify a process, because two processes with the same pid do not start in the same tick.
    """
    stat = f"/proc/{pid}/stat"
    with contextlib.suppress(OSError, IndexError), open(stat, encoding="utf-8", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()  # its name may have brackets in it
        return None if fields[0] in "ZX" else int(fields[19])
    return None


def own_bytes(pid: int) -> int:
    """The bytes of a process's own memory; 0 if it is gone.  Shared memory does not count.

    Pages that it shares by fork count by its part of them.  The kernel walks through all pages of the process for that,
    and the process can get no new pages meanwhile.
    """
    found = {}
    with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if value.endswith("kB\n"):
                found[name] = int(value.split()[0]) * 1024
    return found.get("Pss_Anon", found.get("Private_Dirty", 0))  # the first as of Linux 5.9


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal.  Once it has one it keeps it, unless the user's code resets it."""
    return _is_among(pid, "SigCgt", number)


def has_not_taken(pid: int, number: int) -> bool:
    """Whether a signal to a process is pending, because the process is stopped, in the kernel, or without a core."""
    return _is_among(pid, "ShdPnd", number)


def _is_among(pid: int, name: str, number: int) -> bool:
    with contextlib.suppress(ValueError):
        return bool(int(status_of(pid, name), 16) >> number - 1 & 1)
    return False  # the status is not known


def files_of(pid: int) -> dict[int, str]:
    """The target of each descriptor of a process; empty if this process may not see them."""
    found = {}
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for number in os.listdir(folder):
            with contextlib.suppress(OSError):  # it was closed meanwhile
                found[int(number)] = os.readlink(f"{folder}/{number}")
    return found


def processes_of(user: int | None) -> list[int]:
    """The pids of all processes of a user; None: of all users."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                if user is None or os.stat(f"/proc/{name}").st_uid == user:
                    found.append(int(name))
    return found
