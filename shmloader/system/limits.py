"""How much memory this process can still get, from the machine and from the control groups it is in.

A container that may use 8 GiB on a machine with 64 sees all 64 in /proc/meminfo.  If it takes more than its 8, nothing
is refused: the OOM killer comes.  So we ask before pages are committed, which is rare (growth.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")

# of version 2 and of version 1: limit, use, and the caches that the kernel gives up before it kills
FILES = (
    ("memory.max", "memory.current", ("inactive_file", "active_file")),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
)


def available_memory() -> int:
    """Bytes that can still be committed: MemAvailable, or less where a control group allows less."""
    return min([_of_the_machine(), *_of_the_groups()])


def _of_the_machine() -> int:
    with open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 1 << 62  # a kernel before 3.14 does not say


def _of_the_groups() -> Iterator[int]:
    """How many bytes are left to each group of this process, up to the root; nothing for groups without a limit."""
    for folder in _groups():
        for limit, used, caches in FILES:
            with contextlib.suppress(OSError, ValueError):  # it is not there, or it says "max"
                allowed = int((folder / limit).read_text())
                yield max(0, allowed - int((folder / used).read_text()) + _sum_of(folder / "memory.stat", caches))


def _groups() -> Iterator[Path]:
    with contextlib.suppress(OSError):
        for line in MEMBERSHIP.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            root = CGROUPS / "memory" if controllers else CGROUPS
            for group in (PurePosixPath(path), *PurePosixPath(path).parents):  # in a container, its own may be the root
                yield root / group.relative_to("/")


def _sum_of(stat: Path, names: tuple[str, ...]) -> int:
    with contextlib.suppress(OSError):
        figures = dict(line.split() for line in stat.read_text().splitlines())
        return sum(int(figures.get(name, 0)) for name in names)
    return 0
