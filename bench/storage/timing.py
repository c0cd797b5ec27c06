"""Processor time of a process and those that it has started."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Collection
from pathlib import Path

__all__ = ["cpu_seconds", "others"]


def others() -> set[int]:
    """The processes that this one has started: a server, for example, which is not to be counted."""
    return {process.pid or 0 for process in multiprocessing.active_children()}


def cpu_seconds(without: Collection[int] = ()) -> float:
    """Processor time of this process and its workers.

    Args:
        without: Processes that are not counted.
    """
    ticks = 0
    for pid in {os.getpid(), *others()}.difference(without):
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(words[11]) + int(words[12])
    return ticks / os.sysconf("SC_CLK_TCK")
