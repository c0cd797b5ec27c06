"""What commands take: functions (MODULE:FUNCTION), sizes such as 8G, counts and seconds; with the errors about them."""

from __future__ import annotations

import argparse
import math
import os
import pkgutil
import sys
import threading
from functools import partial
from typing import Any

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


def _seconds(text: str, least: float, most: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from {least:g} to {most:g}.")
    return number


seconds_of = partial(_seconds, least=0.0, most=threading.TIMEOUT_MAX)
some_seconds_of = partial(_seconds, least=1e-9, most=threading.TIMEOUT_MAX)
patience_of = partial(_seconds, least=1e-9, most=math.inf)


def function_of(name: str) -> Any:
    """The function that "module:function" names; the module may be in the working directory.

    Raises:
        ValueError: The name has no colon, or names something that cannot be called.
        ImportError, AttributeError: There is no such module or function.
    """
    if not all(name.partition(":")):
        raise ValueError(f"{name!r} names no function. Write MODULE:FUNCTION, such as train:make_dataset.")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())  # a console script has its own folder there
    if not callable(found := pkgutil.resolve_name(name)):
        raise ValueError(f"{name!r} cannot be called. It is {found!r}. Name a function that returns what is wanted.")
    return found
