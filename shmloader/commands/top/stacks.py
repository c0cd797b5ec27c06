"""Asks a worker from outside for its Python stack.

A signal makes a worker write its stacks (NOTE [ Call stacks ]) into memory of which it holds a descriptor.  That
interrupts the worker for some microseconds; system calls continue.  A worker that is stopped, or in the kernel, does
not answer.
"""

from __future__ import annotations

import os

from shmloader.commands.top.rings import STACKS
from shmloader.system.call_stacks import TELL, ask, kernels_word, without_machinery
from shmloader.system.processes import catches, files_of


def stack_of(pid: int) -> str:
    """The stacks of all threads of a worker, or why there are none."""
    if not catches(pid, TELL):  # the signal would kill it
        return f"  (it is still being started, or has ended; its state is {kernels_word(pid)})"
    papers = _papers(pid)
    if not papers:  # the ring may name any process, and a pid may have been reused, so leave that process alone
        return "  (it is no worker that could be asked)"
    try:
        before = {fd: os.fstat(fd).st_size for fd in papers}
        ask(pid, lambda: sum(os.fstat(fd).st_size - size for fd, size in before.items()))
        read = [os.pread(fd, os.fstat(fd).st_size - size, size) for fd, size in before.items()]
        text = b"".join(read).decode(errors="replace")
    except (ProcessLookupError, PermissionError) as error:
        return f"  ({error.strerror})"
    finally:
        for fd in papers:
            os.close(fd)
    return without_machinery(text) or f"  (it does not answer; its state is {kernels_word(pid)})"


def _papers(pid: int) -> list[int]:
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
