"""The control groups of this process, in which the kernel shows limits and use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def folders(controller: str) -> Iterator[Path]:
    """The folders of this process's groups, up to the root, of version 2 and of this controller of version 1.

    Args:
        controller: "memory", "cpu" or "pids".
    """
    try:
        lines = MEMBERSHIP.read_text().splitlines()
    except OSError:  # there is no /proc.  A container's own group is the root of what it sees
        lines = ["0::/", f"1:{controller}:/"]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = CGROUPS / controller if controllers else CGROUPS
        if not root.exists():  # "cpu" is a link to "cpu,cpuacct", which some systems lack
            root = CGROUPS / controllers
        for group in (PurePosixPath(path), *PurePosixPath(path).parents):  # a container's own group may be the root
            yield root / group.relative_to("/")
