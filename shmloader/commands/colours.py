"""Colours of a terminal, for the commands that print lines."""

from __future__ import annotations

import os
import sys

CODES = {"green": "32", "yellow": "33", "red": "1;31"}


def coloured(text: str, colour: str) -> str:
    """The text in this colour, if the output is a terminal that shows colours."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\033[{CODES[colour]}m{text}\033[0m"
