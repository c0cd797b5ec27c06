"""Sandboxes for scripts: one that answers a system call by an error, as a container's seccomp profile does, and one
without /proc.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

# the architecture as the kernel's audit names it, and the numbers of system calls
_MACHINES = {
    "x86_64": (
        0xC000003E,
        {
            "madvise": 28,
            "ftruncate": 77,
            "prctl": 157,
            "sched_getaffinity": 204,
            "timer_create": 222,
            "fallocate": 285,
            "eventfd2": 290,
            "memfd_create": 319,
            "pidfd_open": 434,
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            "eventfd2": 19,
            "ftruncate": 46,
            "fallocate": 47,
            "timer_create": 107,
            "sched_getaffinity": 123,
            "prctl": 167,
            "madvise": 233,
            "memfd_create": 279,
            "pidfd_open": 434,
        },
    ),
}
KNOWS = platform.machine() in _MACHINES


class _Program(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def refuse(error: int, *calls: str) -> None:
    """Have the kernel answer these system calls of this process, and of all that it starts, by this errno.

    Raises:
        OSError: No filter of system calls can be installed here.
    """
    machine, numbers = _MACHINES[platform.machine()]
    load, is_equal, answer = 0x20, 0x15, 0x06  # BPF_LD | W | ABS, BPF_JMP | JEQ | K, BPF_RET | K
    allow, errno = 0x7FFF0000, 0x00050000
    instructions = [(load, 0, 0, 4), (is_equal, 1, 0, machine), (answer, 0, 0, allow), (load, 0, 0, 0)]
    for left, call in enumerate(reversed(calls)):  # those left jump over each other, and over `allow`
        instructions.insert(4, (is_equal, left + 1, 0, numbers[call]))
    instructions += [(answer, 0, 0, allow), (answer, 0, 0, errno | error)]
    program = _Program(len(instructions), b"".join(struct.pack("HBBI", *each) for each in instructions))
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, seccomp, filtering = 38, 22, 2
    if libc.prctl(no_new_privileges, 1, 0, 0, 0) or libc.prctl(seccomp, filtering, ctypes.byref(program)):
        raise OSError(ctypes.get_errno(), "no filter of system calls can be installed here")


def hide_proc() -> None:
    """In a script: have no /proc; print a message and end if that is forbidden."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_mounts, recursive, private = 0x20000, 0x4000, 1 << 18
    if (
        libc.unshare(new_mounts)
        or libc.mount(b"none", b"/", None, recursive | private, None)
        or libc.mount(b"tmpfs", b"/proc", b"tmpfs", 0, None)
    ):
        print("not permitted")
        sys.exit()
    assert not os.listdir("/proc")
