"""The Python stack of a worker that does not answer, which it writes when it gets a signal.
Decides which signals ask for it, how long the trainer waits (PATIENCE, 0.5 s), and which frames are left out.

NOTE [ Call stacks ]

    The trainer asks a worker for its stack by a signal.  A Python handler writes it, between two bytecodes, when stacks
    are consistent.  A worker that never leaves a call of C never reaches that handler.  If no answer comes, the trainer
    sends a second signal, whose handler is faulthandler's: it writes the stack from C, also while a call holds the GIL.
    faulthandler's handler must not be the first.  In a worker that runs Python code it reads frames that the
    interpreter is about to change, and that could end the worker with a segmentation fault: NOTE [ Stack samples ].
    The trainer sends no second signal while the first is pending in the kernel, because the worker may be stopped.
    Otherwise the kernel would deliver both when the worker continues, perhaps in the middle of Python code.

    Threads of ours that wait for work are left out.  A worker may have sixteen that read files (storage/threads.py).
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import time
from collections.abc import Callable
from typing import Any

from shmloader.system.anonymous_files import AnonymousFile
from shmloader.system.processes import catches, has_not_taken, status_of

TELL = signal.SIGRTMAX - 4  # a signal that programs rarely use; the one next to it ends orphans (process.pyx)
TELL_FROM_C = signal.SIGRTMAX - 7  # for a worker that does not answer the first one
PATIENCE = 0.5  # seconds: a worker that has written nothing after this time cannot write
SETTLED = 0.02  # seconds: if nothing more came for this time, the answer is complete

_IDLE = re.compile(r'shmloader/storage/threads\.py", line \d+ in _work$')

# What gives further text of this process, in the form of stacks: the files of samples that are being made.
FURTHER: list[Callable[[], str]] = []


class StackMemory(AnonymousFile):
    """Nameless memory into which the workers of a ring write their stacks, one at a time."""

    def __init__(self) -> None:
        super().__init__("shmloader_stacks")

    def tell(self) -> None:
        """In a worker's main thread: write the stacks of all threads here whenever the trainer asks."""
        faulthandler.register(TELL_FROM_C, file=self._fd, all_threads=True, chain=False)
        signal.signal(TELL, self._write_all)
        signal.siginterrupt(TELL, False)

    def _write_all(self, number: int, frame: Any) -> None:
        faulthandler.dump_traceback(file=self._fd, all_threads=True)
        for stacks in FURTHER:
            os.write(self._fd, stacks().encode())

    def stack_of(self, pid: int) -> str:
        """In the trainer: the Python stacks of a worker, or why there are none."""
        return stacks_in(pid, [self._fd])


def stacks_in(pid: int, files: list[int]) -> str:
    """The Python stacks of a worker, or why there are none.

    Args:
        pid: The worker's.
        files: Descriptors of the memory that it may write them to.
    """
    why = "it is still being started, or has ended"
    if catches(pid, TELL):  # otherwise the signal would kill it
        if not files:  # the process may be any, because a pid may have been reused, so leave it alone
            return "  (it is no worker that could be asked)"
        before = {fd: os.fstat(fd).st_size for fd in files}
        try:
            ask(pid, lambda: sum(os.fstat(fd).st_size - size for fd, size in before.items()))
        except ProcessLookupError:
            return "  (it is gone)"
        except PermissionError as error:
            return f"  ({error.strerror})"
        text = b"".join(os.pread(fd, 1 << 20, size) for fd, size in before.items())
        if kept := without_machinery(text.decode(errors="replace")):
            return kept
        why = "it does not answer"
    return f"  ({why}; its state is {status_of(pid, 'State') or 'unknown'})"  # "D (disk sleep)", "T (stopped)"


def ask(pid: int, written: Callable[[], int]) -> None:
    """Have a worker write its stacks; returns when it has written them, or cannot.

    Args:
        pid: The worker's, which catches TELL.
        written: Returns how many bytes it has written.

    Raises:
        ProcessLookupError: The process is gone.
        PermissionError: It belongs to another user.
    """
    for number in (TELL, TELL_FROM_C):
        if has_not_taken(pid, TELL):  # it would take both signals at once later, and mix two answers
            return
        os.kill(pid, number)
        end = time.monotonic() + PATIENCE
        before = 0
        while time.monotonic() < end:
            time.sleep(SETTLED)
            now = written()
            if now and now == before:
                return
            before = now
        if before:
            return


def without_machinery(text: str) -> str:
    """The stack from the call of the dataset on, without the frames below it, those that wrote it, and idle threads."""
    kept: list[str] = []
    below = False
    for line in text.splitlines():
        below = below and line.startswith("  ")  # a title line begins each thread; CPython 3.14 adds "<invalid frame>"
        if kept and _IDLE.search(line) and not kept[-1].startswith("  "):
            below = True  # the thread is in no call of another function, so it waits for work
            while kept and not kept[-1].startswith("  "):
                kept.pop()
        if not below and f'"{__file__}"' not in line:
            kept.append(line)
        below = below or line.endswith(" in _fill")
    return "\n".join(kept).lstrip("\n")
