"""Calls a function, such as one that raises or sends a signal, at any chosen line of what a thread executes.
Lines that no signal can reach are passed over.
"""

from __future__ import annotations

import _weakrefset
import enum
import linecache
import os
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from shmloader.system import signals

# After a trace function has raised in enum.py, CPython 3.11 behaves as if a KeyError were still being handled.  And any
# exception in the last few lines of a weak reference's callback is lost.
UNTRACED = (enum.__file__, weakref.__file__, _weakrefset.__file__)
# CPython handles signals at calls, where a function begins, and at jumps back.  None comes between such a point and
# these lines, which are the whole of a `finally`, or the end of iter().  A trace function would raise there.
UNREACHED = ("self._steps.beginning = 0", "self._occupant = 0", "return iterator")


def _is_unreached(frame: FrameType) -> bool:
    code, line = frame.f_code, frame.f_lineno
    text = linecache.getline(code.co_filename, line).strip()
    if text.startswith("with "):  # here again when its block ends: __exit__() is called before any signal is handled
        return frame.f_lasti > min(start for start, _, number in code.co_lines() if number == line)
    return text in UNREACHED


class AtLine:
    """Calls something at one line of what is executed in this thread, of all there are in some files.

    Args:
        at: which line, counted from 1; 0: none, they are only counted.
        what: what is called.
        files: of these alone; empty: of all.
    """

    def __init__(self, at: int, what: Callable[[], None], files: tuple[str, ...] = ()) -> None:
        self.lines = 0
        self.was_held = False  # whether signals were held back there
        self._at, self._what, self._files = at, what, files
        self._pid = os.getpid()

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        file = frame.f_code.co_filename
        if os.getpid() != self._pid or file in UNTRACED or (self._files and file not in self._files):
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self._at and _is_unreached(frame):
                self._at += 1
            elif self.lines == self._at:
                self.was_held = signals._hold is not None and signals._hold.depth > 0
                self._what()
        return self._trace

    def __enter__(self) -> AtLine:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
