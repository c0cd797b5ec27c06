"""Numbers on a command line: sizes such as 8G, counts and seconds, and the errors if they are out of range."""

from __future__ import annotations

import argparse
import math
import threading
from functools import partial

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def bytes_of(text: str) -> int:
    """Bytes from "38535168", "36.75M" or "8GiB"; units are powers of 1024."""
    bare = text.strip().upper().removesuffix("B").removesuffix("I")
    unit = bare[-1:] if bare[-1:] in UNITS else ""
    try:
        number = float(bare.removesuffix(unit))
    except ValueError:
        number = math.nan
    if not 1 <= number * UNITS[unit] < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size in bytes. Use a positive number, with K, M, G or T.")
    return int(number * UNITS[unit])


def _whole(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {least} or more.")
    return number


positive, not_negative = partial(_whole, least=1), partial(_whole, least=0)


def some_seconds_of(text: str) -> float:
    """Seconds, more than 0."""
    if not (number := seconds_of(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time to measure for. Use a positive number of seconds.")
    return number


def seconds_of(text: str) -> float:
    """Seconds, 0 or more, and no more than a clock can wait."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number <= threading.TIMEOUT_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds.")
    return number
