"""CUDA's driver, runtime and streams as far as accelerator.py calls them, for machines without tests/software_cuda.

It keeps what a device keeps (which memory is page-locked, which context is current, which error is remembered, what a
stream still has to do, who captures) and refuses what CUDA refuses.  So tests ask it how things stand, and not which
calls were made.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from shmloader.device import accelerator, captures, events
from shmloader.private import of_torch

OURS = 0xC0  # torch's primary context
INVALID_VALUE, INVALID_CONTEXT, REGISTERED, NOT_REGISTERED = 1, 201, 712, 713
GLOBAL, RELAXED = 0, 2
PORTABLE = 1


class Stream:
    """Runs functions in order when the test lets it; `done` counts them."""

    def __init__(self, device: CudaDouble) -> None:
        self.device = device
        self.asked = self.done = 0
        self.captures = False
        self.waits_for: list[Event] = []

    def is_capturing(self) -> bool:
        return self.captures

    def wait_event(self, event: Event) -> None:
        if self.captures:
            raise RuntimeError("CUDA error: a capturing stream depends on uncaptured work")
        self.waits_for.append(event)

    def is_behind(self, event: Event) -> bool:
        """Whether nothing that is put into it from now on runs before the event has passed."""
        return event in self.waits_for or event.query()


class Event:
    def __init__(self) -> None:
        self._behind: tuple[Stream, int] | None = None

    def record(self, stream: Stream) -> None:
        self._behind = stream, stream.asked

    def query(self) -> bool:
        return self._behind is None or self._behind[0].done >= self._behind[1]

    def synchronize(self) -> None:
        assert self._behind is not None
        stream, asked = self._behind
        if any(other.captures for other in stream.device.streams.values()) and stream.device.mode == GLOBAL:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        stream.done = max(stream.done, asked)


class CudaDouble:
    """Three devices, of which the first two are in use.

    Attributes:
        locked: the page-locked ranges, size by address.
        in_all_contexts: whether what was locked last is locked for every context of the process.
        refuses: the number of the error with which registering is refused; 0: it is not.
        contexts: those that are current, the innermost last.
        remembered: the runtime's error that the next launch of a kernel raises.
        mode: how captures of graphs take this thread's calls.
        streams: by their numbers; one that has not been named is made by asking for it.
        current: the numbers of the stream that is current, by device.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.locked: dict[int, int] = {}
        self.refuses = 0
        self.in_all_contexts = False
        self.contexts: list[int] = []
        self.remembered = 0
        self.mode = GLOBAL
        self.streams: dict[tuple[int, int, int], Stream] = {}
        self.current = {0: (0, 0, 1), 1: (7, 1, 1), 2: (14, 2, 1)}
        self.sees_locked = True  # what torch says of page-locked memory
        here = {
            accelerator: {"_driver": lambda: self, "_is_pinned": self._is_pinned},
            captures: {"_exchange": lambda: self.exchange},
            events: {"has_driver": lambda: False},
            torch.cuda: {
                "init": lambda: None,
                "cudart": lambda: self,
                "device_count": lambda: len(self.current),
                "synchronize": lambda device: self._launch(),
                "Event": Event,
                "Stream": lambda stream_id, device_index, device_type: self.stream(stream_id, device_index),
                "current_stream": lambda device: self.stream(*self.current[torch.device(device).index][:2]),
            },
            torch: {"ones": self._ones},
            of_torch: {
                "current_cuda_stream": lambda index: self.current[index],
                "has_primary_context": lambda index: index < 2,
            },
        }
        for module, names in here.items():
            for name, stands_in in names.items():
                monkeypatch.setattr(module, name, stands_in)

    def without_driver(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As with ROCm: only the runtime is there."""
        monkeypatch.setattr(accelerator, "_driver", lambda: None)

    # ------------------------------------------------------------------------------------------------ page-locking

    def _is_pinned(self, address: int) -> bool:
        return self.sees_locked and any(at <= address < at + size for at, size in self.locked.items())

    def _register(self, address: int, size: int, flags: int) -> int:
        if not size:
            return INVALID_VALUE
        if self.refuses:
            return self.refuses
        if any(address < at + n and at < address + size for at, n in self.locked.items()):
            return REGISTERED
        self.locked[address] = size
        self.in_all_contexts = flags & PORTABLE != 0
        return 0

    def _unregister(self, address: int) -> int:
        return 0 if self.locked.pop(address, None) else NOT_REGISTERED

    def _in_context(self) -> bool:
        return self.contexts[-1:] == [OURS]

    # the driver, through ctypes: it returns its errors

    def cuDeviceGet(self, device: Any, index: int) -> int:
        device._obj.value = index
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:
        context._obj.value = OURS
        return 0

    def cuCtxPushCurrent_v2(self, context: Any) -> int:
        self.contexts.append(context.value)
        return 0

    def cuCtxPopCurrent_v2(self, context: Any) -> int:
        context._obj.value = self.contexts.pop()
        return 0

    def cuMemHostRegister_v2(self, address: Any, size: Any, flags: int) -> int:
        return self._register(address.value, size.value, flags) if self._in_context() else INVALID_CONTEXT

    def cuMemHostUnregister(self, address: Any) -> int:
        return self._unregister(address.value) if self._in_context() else INVALID_CONTEXT

    def cuGetErrorName(self, code: int, name: Any) -> int:
        name._obj.value = {801: b"CUDA_ERROR_NOT_SUPPORTED"}.get(code, b"CUDA_ERROR_UNKNOWN")
        return 0

    # the runtime, through torch: it remembers its errors as well

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        code = self._register(address, size, flags)
        self.remembered = code or self.remembered
        return code

    def cudaHostUnregister(self, address: int) -> int:
        return self._unregister(address)

    def _launch(self) -> None:
        code, self.remembered = self.remembered, 0
        if code:
            raise RuntimeError(f"CUDA error {code}")

    def _ones(self, *sizes: int, device: Any = "cpu", dtype: Any = None) -> Any:
        if torch.device(device).type == "cpu":
            return torch.zeros(*sizes, dtype=dtype) + 1
        self._launch()
        return types.SimpleNamespace(add_=lambda value: None)

    # ------------------------------------------------------------------------------------------------- streams

    def stream(self, stream_id: int, device_index: int = 0) -> Stream:
        return self.streams.setdefault((stream_id, device_index, 1), Stream(self))

    def work(self, *numbers: tuple[int, int, int]) -> None:
        """Give these streams something to do, which they do not do yet."""
        for number in numbers:
            self.stream(*number[:2]).asked += 1

    def finish(self, *numbers: tuple[int, int, int]) -> None:
        """Have them do all of it."""
        for number in numbers:
            self.stream(*number[:2]).done = self.stream(*number[:2]).asked

    def exchange(self, mode: Any) -> int:
        self.mode, mode._obj.value = mode._obj.value, self.mode
        return 0

    @contextlib.contextmanager
    def capturing(self, number: tuple[int, int, int]) -> Iterator[None]:
        """A graph is captured on this stream."""
        self.stream(*number[:2]).captures = True
        try:
            yield
        finally:
            self.stream(*number[:2]).captures = False
