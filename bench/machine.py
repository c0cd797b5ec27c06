"""On what was measured, and when."""

from __future__ import annotations

import os
import platform
import time

import torch

import shmloader


def machine() -> dict[str, str | int]:
    """The processor, the software and the date, without names of hosts, users or paths."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_GiB": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "shmloader": shmloader.__version__,
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def in_one_line(of: dict[str, str | int]) -> str:
    return (
        f"{of['cpu']}, {of['cores']} cores, {of['memory_GiB']} GiB, Linux {of['kernel']}; torch {of['torch']}, "
        f"Python {of['python']}, shmloader {of['shmloader']}; {of['date']}"
    )


def _cpu() -> str:
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()  # arm64 tells no name
