"""Keeps our calls from breaking the capture of a CUDA graph, and counts captures.

While a CUDA graph is captured in torch's usual mode, some calls of *other* threads break the capture: querying an event
or page-locking memory, for example.  In the relaxed mode, a thread's calls break no capture, but for one: waiting for a
whole device breaks a capture on any of its streams, in every mode.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

from shmloader.private import of_torch

if sys.platform == "linux":
    from shmloader.core.cuda import count_capture

GLOBAL, RELAXED = 0, 2  # cuThreadExchangeStreamCaptureMode; a thread begins in the first

# Whoever holds it knows that no capture begins.  The collector may end a ring in a thread that holds it: so it is an
# RLock.
_beginning = threading.RLock()


def _counted(begin: Any) -> Any:
    """Count the captures that this function begins.  Captures that C++ begins are not counted.

    Each capture counts twice, before it begins and after.  If captures_begun() is the same before and after an event
    was recorded, and no capture is under way, the event belongs to no capture, not even to a finished one.
    """

    def capture_begin(*arguments: Any, **options: Any) -> Any:
        count_capture()
        try:
            with _beginning:
                return begin(*arguments, **options)
        finally:
            count_capture()

    return capture_begin


def _renew() -> None:
    """In a forked child: the thread that waited for a device when this process was forked is not here."""
    global _beginning
    _beginning = threading.RLock()


os.register_at_fork(after_in_child=_renew)

if sys.platform == "linux":  # elsewhere there is no ring whose slots could wait for a stream
    of_torch.replace_capture_begin(_counted)


def no_capture_begins() -> contextlib.AbstractContextManager[Any]:
    """A context in which no other thread begins a capture: it waits until this one leaves the context.

    Look inside it whether a graph is being captured, and wait for a device only if none is.
    """
    return _beginning


@contextlib.contextmanager
def relaxed() -> Iterator[None]:
    """A context in which no call of this thread breaks a capture."""
    before = exchange_mode(RELAXED)
    try:
        yield
    finally:
        exchange_mode(before)


def exchange_mode(mode: int) -> int:
    """Set this thread's capture mode; returns the former one."""
    exchange, value = _exchange(), ctypes.c_int(mode)
    if exchange is None or exchange(ctypes.byref(value)):  # CUDA is not initialised, for example
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
