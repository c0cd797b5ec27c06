"""How much memory, and how many processes, this process can still get: from the machine and its control groups.

A container that may use 8 GiB on a machine with 64 sees all 64 in /proc/meminfo.  If it takes more than its 8, it gets
no error; the OOM killer comes.  So we ask before pages are committed, which is rare (growth.py).
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

MEMINFO = Path("/proc/meminfo")
CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")

# of version 2 and of version 1: limit, use, and the caches that the kernel drops before it kills
FILES = (
    ("memory.max", "memory.current", ("inactive_file", "active_file")),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
)


def available_memory() -> int:
    """Bytes that can still be committed: MemAvailable, or less if a control group allows less."""
    return min([_of_the_machine(), *_of_the_groups()])


def allowed_memory() -> int:
    """The bytes that all processes of the machine, or of a control group that allows fewer, may have together."""
    limits = [_of_the_machine("MemTotal:")]
    for folder in folders("memory"):
        for limit, _, _ in FILES:
            with contextlib.suppress(OSError, ValueError):  # there is no such file, or it has "max"
                limits.append(int((folder / limit).read_text()))
    return min(limits)


def available_processes() -> int | None:
    """How many more processes and threads the control groups of this process allow; None if none has a limit."""
    left = []
    for folder in folders("pids"):
        with contextlib.suppress(OSError, ValueError):  # there is no such file, or it has "max"
            allowed = int((folder / "pids.max").read_text())
            left.append(max(0, allowed - int((folder / "pids.current").read_text())))
    return min(left, default=None)


def folders(controller: str) -> Iterator[Path]:
    """The folders of this process's control groups, up to the root, of version 2 and of this controller of version 1.

    Args:
        controller: "memory", "cpu" or "pids".
    """
    try:
        lines = MEMBERSHIP.read_text().splitlines()
    except OSError:  # there is no /proc
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = CGROUPS / controller if controllers else CGROUPS
        if not root.exists():  # "cpu" is a link to "cpu,cpuacct", which some systems lack
            root = CGROUPS / controllers
        for group in (PurePosixPath(path), *PurePosixPath(path).parents):  # a container's own group may be the root
            yield root / group.relative_to("/")


def _of_the_machine(name: str = "MemAvailable:") -> int:
    try:
        with open(MEMINFO, encoding="ascii") as lines:
            for line in lines:
                if line.startswith(name):
                    return int(line.split()[1]) * 1024
    except OSError:  # without /proc, all of it
        pass
    return os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE


def _of_the_groups() -> Iterator[int]:
    """How many bytes are left to each group of this process, up to the root; nothing for groups without a limit."""
    for folder in folders("memory"):
        for limit, used, caches in FILES:
            with contextlib.suppress(OSError, ValueError):  # there is no such file, or it has "max"
                allowed = int((folder / limit).read_text())
                yield max(0, allowed - int((folder / used).read_text()) + _sum_of(folder / "memory.stat", caches))


def _sum_of(stat: Path, names: tuple[str, ...]) -> int:
    with contextlib.suppress(OSError):
        figures = dict(line.split() for line in stat.read_text().splitlines())
        return sum(int(figures.get(name, 0)) for name in names)
    return 0
