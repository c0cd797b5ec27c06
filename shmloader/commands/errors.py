"""Errors, as a table or a terminal has room for them."""

from __future__ import annotations


def in_one_line(error: Exception) -> str:
    """What was raised.  Of an error in a worker, the last line: those before it are the traceback."""
    told = str(error).strip().splitlines()
    return f"{type(error).__name__}: {told[-1]}" if told else type(error).__name__
