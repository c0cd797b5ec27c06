"""Of which kind a file system is, and whether it is local.  On any other, opening a file takes as long as a server."""

from __future__ import annotations

import os
from functools import cache

__all__ = ["is_local", "kinds_of"]

MOUNTS = "/proc/self/mountinfo"
_FAR = (
    *("9p", "afs", "beegfs", "ceph", "cifs", "fuse", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "orangefs", "panfs"),
    *("smb3", "smbfs", "virtiofs", "wekafs"),
)


@cache
def is_local(device: int) -> bool:
    """Whether the file system of a device (`st_dev`) is local.  One that /proc does not list counts as local."""
    return not any(kind.partition(".")[0] in _FAR for kind in kinds_of(device))  # fuse.sshfs, but not fuseblk


def kinds_of(device: int) -> set[str]:
    """The kinds of file system that /proc lists for a device; none if it does not list the device."""
    name = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open(MOUNTS, encoding="utf-8", errors="replace") as mounts:  # 36 35 0:44 / /data rw - nfs4 server:/ rw
            return {line.partition(" - ")[2].split(" ")[0] for line in mounts if f" {name} " in line}
    except OSError:
        return set()
