"""A command that hangs, and what is left of a measurement that was killed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def hangs(note: Path) -> list[str]:
    """A command that notes the pids of its parent and itself, and then takes too long."""
    return ["sh", "-c", f"echo $PPID $$ > '{note}'; exec sleep 1000"]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(it_is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 100
    while not it_is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)
