"""Tells a sandbox's refusal of a system call from other errors, and names the call.

NOTE [ Sandboxes ]

A sandbox filters system calls: a container's seccomp profile, a scheduler's, gVisor.  It answers a call that it does
not allow, or does not know, by EPERM, ENOSYS or EACCES (AppArmor, SELinux).  torch's own loader makes few of the calls
that we make, so it works where ours are refused.  Ours works there, too:

    memfd_create        A file has no name in /dev/shm, or else in the folder for temporary files (anonymous_files.py).
                        A ring lies in /dev/shm, and cannot move out of it (segment.py).
    pidfd_open          The trainer sleeps on its workers' pipes (watch.py).  A worker of a fork server looks for its
                        trainer once a second (parents_death.py).  A served loader and its readers notice each
                        other's death by their connection alone.
    prctl               A worker watches its trainer as one of a fork server does (parents_death.py).
    madvise             Pages that were given back stay allocated until the ring ends.

Where there is no /proc, no limit is known (limits.py).  Where ftruncate or fallocate is refused, torch's loader cannot
share a tensor either.

tests/system/test_sandboxes.py refuses each of these calls.
"""

from __future__ import annotations

import errno

__all__ = ["is_refusal", "refused"]


def is_refusal(error: OSError) -> bool:
    """Whether a sandbox may have refused a system call, or the kernel is too old for it."""
    return error.errno in (errno.EPERM, errno.ENOSYS, errno.EACCES)


def refused(call: str, error: OSError) -> str:
    """The text about such a call: what happened, and the remedy."""
    return (
        f"{call} is refused here ({error.strerror}). Allow this system call in the sandbox (a container's seccomp "
        "profile)"
    )
