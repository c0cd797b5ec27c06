"""Asks a worker from outside for its Python stack.

A signal makes a worker write its stacks (NOTE [ Call stacks ]) into memory of which it holds a descriptor.  That
interrupts the worker for some microseconds; system calls continue.  A worker that is stopped, or in the kernel, does
not answer.
"""

from __future__ import annotations

import os

from shmloader.commands.top.rings import STACKS
from shmloader.system.call_stacks import stacks_in
from shmloader.system.processes import files_of


def stack_of(pid: int) -> str:
    """The stacks of all threads of a worker, or why there are none."""
    memories = _stack_memories(pid)
    try:
        return stacks_in(pid, memories)
    finally:
        for fd in memories:
            os.close(fd)


def _stack_memories(pid: int) -> list[int]:
    """The memory that the worker may write to, open for reading: one for each ring that it was forked beside."""
    opened: dict[tuple[int, int], int] = {}
    for number, target in files_of(pid).items():
        if target == STACKS:
            try:
                fd = os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:  # the process has ended, or belongs to another user
                continue
            found = os.fstat(fd)
            if (found.st_dev, found.st_ino) in opened:
                os.close(fd)
            else:
                opened[found.st_dev, found.st_ino] = fd
    return list(opened.values())
