"""How all questions handle their results: record the machine, print them, write them."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

import shmloader

ROOT = Path(__file__).resolve().parents[2]
WIDTH = 176  # columns of a table, unless the output is a wider terminal


def console() -> Console:
    out = Console()
    return out if out.width >= WIDTH else Console(width=WIDTH)


def failures(measurements: list[dict[str, Any]]) -> list[str]:
    """One line for each measurement that failed, named by the labels of its turn."""
    return [
        f"round {each['round'] + 1}, {', '.join(str(each[key]) for key in each if key not in ('round', 'failure'))}: "
        f"{each['failure']}"
        for each in measurements
        if "failure" in each
    ]


def table(title: str, names: Iterable[str], figures: Iterable[str], **options: Any) -> Table:
    """A table that has nothing in it yet.

    Args:
        title: of it.
        names, figures: the headings of its first columns, and of the others, which stand at the right.
        options: of rich's table.
    """
    made = Table(title=title, title_justify="left", **options)
    for heading in names:
        made.add_column(heading, no_wrap=True)
    for heading in figures:
        made.add_column(heading, justify="right", no_wrap=True)
    return made


def by_round(measurements: list[dict[str, Any]], key: str) -> list[dict[str, dict[str, Any]]]:
    """For each round what was measured in it, by what it is found by, without what failed."""
    rounds: dict[int, dict[str, dict[str, Any]]] = {}
    for found in measurements:
        if "failure" not in found:
            rounds.setdefault(found["round"], {})[found[key]] = found
    return list(rounds.values())


def versions(distributions: Iterable[str]) -> dict[str, str]:
    """The versions of these packages, as far as they are installed."""
    found = {}
    for distribution in sorted(set(distributions)):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[distribution] = importlib.metadata.version(distribution)
    return found


def print_end(out: Console, result: dict[str, Any], *notes: str) -> None:
    """What failed, notes on the figures, and the machine."""
    print_lines(out, failures(result["measurements"]), style="red")
    print_lines(out, [*notes, in_one_line(result["machine"])])


def print_lines(out: Console, lines: list[str], style: str = "") -> None:
    for line in lines:
        out.print(Text(line, style=style), soft_wrap=True)


def write(result: dict[str, Any], path: Path) -> None:
    """Write a JSON, all of it or nothing: a reader, or an interrupted run, has the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    try:
        beside.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


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
        "commit": commit(ROOT),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def in_one_line(figures: dict[str, str | int]) -> str:
    of_commit = f" ({figures['commit']})" if figures.get("commit") else ""  # the first results have none
    return (
        f"{figures['cpu']}, {figures['cores']} cores, {figures['memory_GiB']} GiB, Linux {figures['kernel']}; torch "
        f"{figures['torch']}, Python {figures['python']}, shmloader {figures['shmloader']}{of_commit}; "
        f"{figures['date']}"
    )


def commit(checkout: Path) -> str:
    """The commit of a checkout, with -dirty if it has changes; empty if it is no checkout."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ran.stdout.strip() if ran.returncode == 0 else ""


def _cpu() -> str:
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()  # arm64 has no model name there
