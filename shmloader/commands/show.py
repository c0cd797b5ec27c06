"""Prints a line, in colour if rich is installed and the output is a terminal."""

from __future__ import annotations

import sys


def show(line: str, style: str, letters: int) -> None:
    """Print a line at once.

    Args:
        line: The line.
        style: Rich's, of its first letters.
        letters: How many these are.
    """
    if sys.stdout.isatty():
        try:
            from rich.console import Console
            from rich.text import Text
        except ImportError:
            pass
        else:
            text = Text(line)
            text.stylize(style, 0, letters)
            Console().print(text, soft_wrap=True)
            return
    print(line, flush=True)
