"""Prints findings for people: a paragraph each, coloured if rich is installed and the output is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from shmloader.commands.doctor.finding import Finding

STYLES = {"fine": "green", "note": "yellow", "attention": "bold red"}
WIDTH = 13  # of the column with the subject


def show(findings: Iterable[Finding]) -> None:
    """Print each finding as soon as its check ends, because the last one takes two seconds."""
    for finding in findings:
        first, *others = lines(finding)
        _print_first(first, finding.level)
        for line in others:
            print(line, flush=True)


def lines(finding: Finding) -> list[str]:
    """State, meaning and remedy."""
    found = [f"{finding.level:<10} {finding.what:<{WIDTH}} {finding.state}"]
    if finding.meaning:
        found.append(f"{'':<{WIDTH + 11}} that means: {finding.meaning}")
    if finding.remedy:
        found.append(f"{'':<{WIDTH + 11}} to do: {finding.remedy}")
    return found


def _print_first(line: str, level: str) -> None:
    if sys.stdout.isatty():
        try:
            from rich.console import Console
            from rich.text import Text
        except ImportError:
            pass
        else:
            text = Text(line)
            text.stylize(STYLES[level], 0, len(level))
            Console().print(text, soft_wrap=True)
            return
    print(line, flush=True)
