"""Has the software CUDA make copies late, refuse page-locking, fail for good, or lie about events, as tests want.
It also reads counts, such as violations and calls with the GIL held.  Where CUDA is real, nothing of that is known.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

_Function = ctypes.CFUNCTYPE(None)
_ordered: list[Any] = []  # what the library still has


@cache
def library() -> Any:
    """The software runtime, which torch has loaded; None where it has loaded another one, or none."""
    this_process = ctypes.CDLL(None)
    if not hasattr(this_process, "software_cuda_count"):
        return None
    this_process.software_cuda_count.restype = ctypes.c_long
    this_process.software_cuda_count.argtypes = [ctypes.c_char_p]
    this_process.software_cuda_registered.restype = ctypes.c_long
    this_process.software_cuda_under_way.restype = ctypes.c_long
    this_process.software_cuda_late.argtypes = [ctypes.c_double, ctypes.c_double]
    this_process.software_cuda_refuse.argtypes = [ctypes.c_int, ctypes.c_long]
    this_process.software_cuda_before.argtypes = [ctypes.c_char_p, _Function]
    this_process.software_cuda_blocked.argtypes = [ctypes.c_char_p, ctypes.c_int]
    this_process.software_cuda_blocked.restype = ctypes.c_long
    this_process.software_cuda_blocking.restype = ctypes.c_char_p
    pointer, number, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
    this_process.software_cuda_call.argtypes = [pointer, number, pointer, pointer]
    this_process.software_cuda_operate.argtypes = [pointer, number, number, pointer, pointer, size, ctypes.c_long]
    return this_process


def is_software() -> bool:
    """Whether torch's CUDA is the software one."""
    return library() is not None


def count(what: str) -> int:
    """One of faults.c's counters; 0 on a real device."""
    return int(library().software_cuda_count(what.encode())) if is_software() else 0


def registered() -> int:
    """How many ranges are page-locked by registration; 0 on a real device, which does not tell."""
    return int(library().software_cuda_registered()) if is_software() else 0


def under_way() -> int:
    """How many copies that touch page-locked memory are not done."""
    return int(library().software_cuda_under_way()) if is_software() else 0


def late(least: float, most: float) -> None:
    """Have copies out of page-locked memory be so many milliseconds late from now on."""
    if is_software():
        library().software_cuda_late(least, most)


def refuse(error: int, after: int = 0) -> None:
    """Have page-locking fail with this error once it has worked so many times; 0: no more."""
    library().software_cuda_refuse(error, after)


def stick(error: int) -> None:
    """Have the device fail for good."""
    library().software_cuda_stick(error)


def before(call: str, function: Callable[[], None]) -> None:
    """Do this where this call, one of blocking_calls(), is made next, by the thread that makes it."""
    _ordered.append((call.encode(), _Function(function)))
    library().software_cuda_before(*_ordered[-1])


def lie(on: bool) -> None:
    """Have the driver say of every event that it has passed; the runtime, which torch asks, goes on as before."""
    library().software_cuda_lie(on)


def blocking_calls() -> dict[str, tuple[int, int]]:
    """By name: how often each call that may block was made, and how often with the GIL held (SOFTWARE_CUDA_GIL=1)."""
    found, k = {}, 0
    while (name := library().software_cuda_blocking(k)) is not None:
        found[name.decode()] = (
            library().software_cuda_blocked(name, 0),
            library().software_cuda_blocked(name, 1),
        )
        k += 1
    return found
