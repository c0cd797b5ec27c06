"""Events on streams, and whether a graph is captured on a stream, without the GIL if possible.

Each of these calls may wait for a lock of the driver, and another thread may hold that lock while it waits for the GIL.
So they go to NVIDIA's driver directly, without the GIL and without torch's objects.  If there is only a runtime, as
with ROCm, they go to torch, which holds the GIL in Event.query() and Stream.is_capturing().

A stream is given by torch's three numbers: id, device, type of the device.
"""

from __future__ import annotations

import contextlib
import sys
from functools import cache
from typing import Any

import torch

from shmloader.private import of_torch

if sys.platform == "linux":
    from shmloader.core.cuda import Refused, has_context, is_captured, is_of_others, open_driver, record_on


@cache
def has_driver() -> bool:
    """Whether the driver can be asked."""
    return sys.platform == "linux" and torch.version.hip is None and open_driver()


def record(stream: tuple[int, int, int]) -> Any:
    """An event after the present work of this stream, of a device in use."""
    if has_driver():
        with contextlib.suppress(Refused):  # then torch raises the error that the user should see
            return record_on(address_of(stream), stream[1])
    event = torch.cuda.Event()
    event.record(_stream_of(stream))
    return event


def passed(event: Any) -> bool:
    """Whether an event that was recorded has passed."""
    try:
        return bool(event.query())
    except Refused:
        torch.cuda.Event().record()  # raises torch's error if the device has failed for good
        raise


def is_capturing(stream: tuple[int, int, int]) -> bool:
    """Whether a graph is captured on this stream."""
    if has_driver():
        with contextlib.suppress(Refused):  # as above
            return is_captured(address_of(stream), stream[1])
    return of_torch.is_capturing(_stream_of(stream))


def is_in_use(device: int) -> bool:
    """Whether this process has a context on this device."""
    return has_context(device) if has_driver() else of_torch.has_primary_context(device)


def address_of(stream: tuple[int, int, int]) -> int:
    """The driver's handle of this stream."""
    return stream[0] if stream[0] == 0 or is_of_others(stream) else _address_of_torchs(stream)


@cache
def _address_of_torchs(stream: tuple[int, int, int]) -> int:
    return int(_stream_of(stream).cuda_stream)  # torch's own streams live as long as the process


def _stream_of(stream: tuple[int, int, int]) -> Any:
    return torch.cuda.Stream(stream_id=stream[0], device_index=stream[1], device_type=stream[2])
