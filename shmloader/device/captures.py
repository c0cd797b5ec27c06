"""That no call of ours breaks the capture of a graph, and how we learn that one has begun.

While a CUDA graph is captured in torch's usual mode, many calls of *another* thread break the capture: to query an
event, to page-lock memory.  A thread can declare that it has nothing to do with the capture: its mode is then the
relaxed one.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

from shmloader import _torch

GLOBAL, RELAXED = 0, 2  # cuThreadExchangeStreamCaptureMode; a thread begins with the first


_begun = 0


def captures_begun() -> int:
    """How many captures have begun, or were about to, from the import of shmloader on.

    Whoever finds no capture, records an event and then finds this number as it was has recorded no part of a capture.
    Captures that C++ begins are not counted.
    """
    return _begun


def _counted(begin: Any) -> Any:
    def capture_begin(*arguments: Any, **options: Any) -> Any:
        global _begun
        _begun += 1
        return begin(*arguments, **options)

    return capture_begin


_torch.replace_capture_begin(_counted)


@contextlib.contextmanager
def relaxed() -> Iterator[None]:
    """A context in which no call of this thread breaks a capture."""
    before = exchange_mode(RELAXED)
    try:
        yield
    finally:
        exchange_mode(before)


def relax() -> None:
    """The same for all that this thread does from now on."""
    exchange_mode(RELAXED)


def exchange_mode(mode: int) -> int:
    """Set this thread's capture mode; returns what it was before."""
    exchange, value = _exchange(), ctypes.c_int(mode)
    if exchange is None or exchange(ctypes.byref(value)):  # as before CUDA is initialised
        return GLOBAL
    return value.value


@cache
def _exchange() -> Any:
    """The function that exchanges this thread's capture mode; None if there is none."""
    hip = torch.version.hip is not None
    try:
        library = ctypes.CDLL(None) if hip else ctypes.CDLL("libcuda.so.1")
        return getattr(library, "hipThreadExchangeStreamCaptureMode" if hip else "cuThreadExchangeStreamCaptureMode")
    except (OSError, AttributeError):
        return None
