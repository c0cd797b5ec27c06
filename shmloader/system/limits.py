"""How much memory, how many processes and how many cores this process can get: from the machine and its control groups.

A container that may use 8 GiB on a machine with 64 sees all 64 in /proc/meminfo.  If it takes more than its 8, it gets
no error; the OOM killer comes.  So we ask before pages are committed, which is rare (growth.py).

Of cores, affinity and a container's quota count, and ranks share them.  may_spin() decides whether there are enough of
them for processes to spin while they wait.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

MEMINFO = Path("/proc/meminfo")
CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")

# of version 2 and of version 1: limit, use, and the caches that the kernel drops before it kills
FILES = (
    ("memory.max", "memory.current", ("inactive_file", "active_file")),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
)


def is_refusal(error: OSError) -> bool:
    """Whether a sandbox may have refused a system call, or the kernel is too old for it."""
    return error.errno in (errno.EPERM, errno.ENOSYS, errno.EACCES)


def refused(call: str, error: OSError) -> str:
    """The text about such a call: what happened, and the remedy."""
    return (
        f"{call} is refused here ({error.strerror}). Allow this system call in the sandbox (a container's seccomp "
        "profile)"
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


@dataclass(frozen=True)
class Cores:
    """The machine's cores, those that this process may run on (affinity), and the quota of its control groups.

    `quota` is a number of cores, 1.5 for example; None if no group has one.
    """

    machine: int
    affinity: int
    quota: float | None

    @property
    def usable(self) -> float:
        """How many cores' time this process can get."""
        return self.affinity if self.quota is None else min(self.affinity, self.quota)


def cores() -> Cores:
    """The cores of this process now."""
    affinity = len(affinity_of_this() or ()) or os.cpu_count() or 1
    return Cores(os.cpu_count() or affinity, affinity, min(_quotas(), default=None))


def affinity_of_this() -> set[int] | None:
    """The cores on which this thread may run; None: a sandbox does not say, or Python has no such call."""
    try:
        return os.sched_getaffinity(0)
    except AttributeError:  # not on Linux, or a test of the user's has taken it away
        return None
    except OSError as error:
        if not is_refusal(error):
            raise
        return None


def hides_cores() -> bool:
    """Whether a sandbox hides on which cores this process may run, so that torch's check would raise."""
    return hasattr(os, "sched_getaffinity") and affinity_of_this() is None


def have_other_cores() -> None:
    """Stands in for torch's check, which compares the number of workers with the cores of this machine.

    Far workers have other cores, and a sandbox may hide the cores.
    """


def may_spin(processes: int) -> bool:
    """Whether there are enough cores for this many processes of each rank to spin while they wait, and one core more.

    A control group's quota counts.  If a container has the time of 2 cores on a machine with 64, spinning would use
    that time up, and then the kernel stops all of the container's processes for a while.

    Args:
        processes: The number of a loader's workers and its trainer.
    """
    return int(cores().usable / ranks_here()) > processes


def ranks_here() -> int:
    """How many ranks share this machine's cores, as torchrun declares it; 1 if it is not declared."""
    setting = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(setting)) if setting.isdecimal() else 1


def rank_here() -> int:
    """Which of the ranks of this machine this process is, as torchrun declares it; 0 if it is not declared."""
    setting = os.environ.get("LOCAL_RANK", "")
    return int(setting) if setting.isdecimal() else 0


@contextlib.contextmanager
def share_of_cores(ranks: int, rank: int) -> Iterator[int]:
    """Have this thread, and the processes that it starts, run on one rank's share of the cores.

    Args:
        ranks: How many share them.  If there are fewer cores than ranks, nothing changes.
        rank: Which share.

    Yields:
        How many cores' time they get, at least 1.  A control group's quota may make it fewer than cores.
    """
    before = affinity_of_this() or set()
    each = len(before) // ranks
    usable = cores().usable
    if ranks < 2 or not each:
        yield max(1, int(usable))
        return
    mine = sorted(before)[rank % ranks * each :][:each]
    os.sched_setaffinity(0, mine)
    try:
        yield max(1, int(usable / ranks))
    finally:
        os.sched_setaffinity(0, before)


def _quotas() -> Iterator[float]:
    for folder in folders("cpu"):
        with contextlib.suppress(OSError, ValueError):  # there is no such file, or it has "max"
            quota, period = (folder / "cpu.max").read_text().split()
            yield int(quota) / int(period)
        with contextlib.suppress(OSError, ValueError):
            quota_us = int((folder / "cpu.cfs_quota_us").read_text())
            if quota_us > 0:  # -1: there is none
                yield quota_us / int((folder / "cpu.cfs_period_us").read_text())
