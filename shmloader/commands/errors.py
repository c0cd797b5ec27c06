"""Errors in one line, as a table or a terminal needs them."""

from __future__ import annotations


def in_one_line(error: Exception) -> str:
    """The error in one line.  Of an error in a worker, the last line: those before it are the traceback."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__
