"""What all benches do with their results: run measurements, keep failures, write the JSON, print."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from bench import child

WIDTH = 176  # columns of a table, where the output is not a terminal wider than that


def console() -> Console:
    out = Console()
    return out if out.width >= WIDTH else Console(width=WIDTH)


def measured(
    function: str,
    arguments: dict[str, Any],
    timeout: float,
    python: str = sys.executable,
    checkout: Path | None = None,
) -> dict[str, Any]:
    """What the function returns, run in a process of its own; {"failure": why} where it returns nothing."""
    try:
        result: dict[str, Any] = child.run(function, arguments, timeout, python, checkout)
    except child.ChildError as failure:
        return {"failure": str(failure)}
    return result


def failures(measurements: list[dict[str, Any]], *named_by: str) -> list[str]:
    """One line for each measurement that failed, named by these of its keys."""
    return [
        f"round {of['round'] + 1}, {', '.join(str(of[key]) for key in named_by)}: {of['failure']}"
        for of in measurements
        if "failure" in of
    ]


def print_lines(out: Console, lines: list[str], style: str = "") -> None:
    for line in lines:
        out.print(Text(line, style=style), soft_wrap=True)


def write(result: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
