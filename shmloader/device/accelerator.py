"""The interface to accelerators: which one a loader page-locks for, and all calls that pinning and delivery need.

There are two classes.  Accelerator uses torch's functions for all makes, and copies into torch's own page-locked
memory.  Cuda is for NVIDIA's and AMD's (ROCm answers to torch.cuda), and can page-lock memory that others have
allocated.  The tests add a third, whose copies are late on purpose.

The driver itself (libcuda) page-locks the memory, if there is one, because it only returns its errors.  The runtime
(torch.cuda.cudart()) also keeps the error for this thread, and the next launch of a kernel would raise it.  So after an
error of the runtime we launch a kernel, and catch the error there.

All calls that could break the capture of a graph are made in the thread's relaxed mode (captures.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from shmloader.device import events
from shmloader.device.captures import RELAXED, exchange_mode, relaxed
from shmloader.device.streams import CUDA, WATCHED
from shmloader.options import Options
from shmloader.private import of_torch

if sys.platform == "linux":
    from shmloader.core.cuda import Reclaim, is_of_others, since
    from shmloader.core.ring import Slots

PORTABLE = 1  # cuMemHostRegister, cudaHostRegister: page-locked for all contexts

_streams: dict[torch.device, list[tuple[Any, threading.Thread]]] = {}  # to copy on, and which thread does or did
_choosing = threading.Lock()  # held while a thread chooses one of them


@dataclass(frozen=True)
class Streams:
    """The streams that may have copies out of batches: NOTE [ Streams ].

    Besides those that can be queried: events on streams that may be gone, a stream that nobody was seen to choose, and
    whether all streams are known.
    """

    those: Collection[Any]
    events: list[Any]
    unknown: Any = None
    all: bool = True


def kind() -> str | None:
    """The type of device that batches can be delivered to here, besides "cpu"; None if there is none."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if device is None or (device.type == "cuda" and not torch.backends.cuda.is_built()):  # a double, in tests
        return None
    return device.type


def count() -> int:
    """How many of them there are."""
    return torch.accelerator.device_count()


def find(device: torch.device | None = None) -> Accelerator | None:
    """The accelerator of this device (default: the current one); None for the CPU, or if there is none."""
    if device is not None and device.type == "cpu":
        return None
    present = kind()
    if present is None:
        return None
    index = torch.accelerator.current_device_index() if device is None or device.index is None else device.index
    at = torch.device(present, index)
    return Cuda(at) if present == "cuda" else Accelerator(at)


def accelerator_of(loader: Any, options: Options) -> Accelerator | None:
    """The accelerator for which a loader's slots are page-locked; None if they need not be.

    If it is None, `_make_ring` in trainer/iterator.py makes no Pinning.  The user gets batches in ordinary slots, and
    `is_pinned()` is False.  So it is with `pin_memory=True` on a machine without an accelerator.
    """
    if options.device is not None and torch.device(options.device).type != "cpu":
        return find(torch.device(options.device))
    return find() if loader.pin_memory else None


class Accelerator:
    """An accelerator of any make, by torch's functions for all of them.

    Args:
        device: The device, with its index.
    """

    registers = False  # whether register() can work at all
    devices: tuple[int, ...] = ()  # the indices for `current`

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # The stream that is current in this thread, on the device of this index.  None, because the page-locked memory
        # is torch's here, and torch watches the streams itself.
        self.current: Callable[[int], Any] = lambda index: None
        self._module: Any = torch.get_device_module(device)

    def register(self, address: int, size: int) -> str:
        """Page-lock these bytes of this process; returns the reason if that is refused, or an empty string."""
        return f"torch cannot page-lock memory for {self.device.type} that it has not allocated itself"

    def unregister(self, address: int) -> None:
        """Undo register(address, ...), if that is possible here.  No copy from there may be under way."""

    def clone(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a CPU tensor in torch's page-locked memory, which torch itself does not reuse too early."""
        with self.relaxed():
            return torch.empty_like(tensor, pin_memory=True).copy_(tensor)

    def room(self, size: int) -> torch.Tensor:
        """So many bytes of that memory, for tensors that share its storage."""
        with self.relaxed():
            return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)

    def streams(self, noted: Iterable[Any], lent: int | None) -> Streams:
        """The streams that may have copies out of batches, as far as they are known.

        Args:
            noted: The streams that were current where the batches died, as `current` gives them.
            lent: When the first of the batches was lent; None if no other thread has had them.
        """
        return Streams((), [])

    def capturing(self, streams: Streams) -> bool:
        """Whether a graph is being captured on one of these."""
        return False

    def record(self, streams: Streams) -> list[Any]:
        """Events that pass when all present work of these streams is done."""
        return [self.mark()]

    def mark(self) -> Any:
        """An event that passes when all present work of this thread's current stream, on this device, is done."""
        event = self._module.Event()
        event.record(self._module.current_stream(self.device))
        return event

    def passed(self, event: Any) -> bool:
        """Whether an event has passed."""
        return events.passed(event)

    def wait(self, event: Any) -> None:
        """Wait for an event of mark().  Other threads run meanwhile."""
        event.synchronize()

    def quick_reclaim(self, slots: Slots, lent: list[int], unshared: list[bool]) -> Callable[[], bool] | None:
        """A function that frees slots as Pinning._reclaim() does, in a few microseconds; None if there is none.

        It returns False if Pinning._reclaim() must do it.

        Args:
            slots: The slots of a ring.
            lent: When each was lent last.
            unshared: For each slot, whether only the thread that copies can have had its batch.
        """
        return None

    def synchronize(self) -> None:
        """Wait until all streams of all devices are done."""
        self._module.synchronize(self.device)

    def relaxed(self) -> contextlib.AbstractContextManager[None]:
        """A context in which no call breaks a capture of a graph."""
        return contextlib.nullcontext()

    def enter(self) -> None:
        """The first call of a thread of ours: from then on it uses this device, and breaks no capture."""
        self._module.set_device(self.device)

    def own_stream(self) -> None:
        """Give this thread its own stream to copy on, if possible that of a thread that has ended.

        Each epoch has its own thread.  torch keeps freed memory of a device for the stream for which it was allocated.
        With a new stream for each epoch, the last epoch's memory would stay with its stream.  And torch has only 32
        streams, which it gives out in turn, so the loader's stream would soon be the user's own.
        """
        with _choosing:
            streams = _streams.setdefault(self.device, [])
            ended = next((each for each in streams if not each[1].is_alive()), None)
            if ended is None:
                stream = self._module.Stream(device=self.device)
            else:
                stream, _ = ended
                streams.remove(ended)
            streams.append((stream, threading.current_thread()))
        self._module.set_stream(stream)

    def failed(self) -> bool:
        """Whether the device has failed for good.  Call it after an exception."""
        try:
            self._module.current_stream(self.device).query()
        except RuntimeError:  # an error that stays: each call raises it from then on
            return True
        return False

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Start to copy a tensor to the device, on this thread's stream."""
        return tensor.to(self.device, non_blocking=True)

    def to(self, value: Any) -> Any:
        """Start to copy an object that has its own `.to()`."""
        try:
            return value.to(self.device, non_blocking=True)
        except TypeError:  # its `.to()` has no non_blocking
            return value.to(self.device)

    def arrive(self, event: Any, tensors: Iterable[torch.Tensor]) -> None:
        """Have this thread's stream, but not the thread, wait for the event, and keep the tensors for the stream."""
        stream = self._module.current_stream(self.device)
        self._wait(stream, event)
        for tensor in tensors:
            if tensor.device.type == self.device.type:
                for part in _parts(tensor):
                    part.record_stream(stream)  # otherwise the next batch gets its memory while this one is in use

    def _wait(self, stream: Any, event: Any) -> None:
        stream.wait_event(event)


class Cuda(Accelerator):
    """NVIDIA's and AMD's accelerators."""

    registers = True

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.current = of_torch.current_cuda_stream  # in C: no Python runs when a lease dies
        self.devices = tuple(range(torch.cuda.device_count()))  # all, because `.to("cuda:1")` works under cuda:0
        self._defaults = {(0, index, CUDA) for index in self.devices}

    # ------------------------------------------------------------------------------------------------ page-locking

    def register(self, address: int, size: int) -> str:
        if size == 0:
            return "there is nothing to page-lock"  # the driver would return an error for it
        driver = _driver()
        why = self._by_runtime(address, size) if driver is None else self._by_driver(driver, address, size)
        if not why and not _is_pinned(address):
            self.unregister(address)
            why = "torch does not see it as page-locked"
        return why

    def _by_driver(self, driver: Any, address: int, size: int) -> str:
        with self._context(driver) as code:
            code = code or driver.cuMemHostRegister_v2(ctypes.c_void_p(address), ctypes.c_size_t(size), PORTABLE)
            return _driver_error(driver, code)

    def _by_runtime(self, address: int, size: int) -> str:
        code = int(torch.cuda.cudart().cudaHostRegister(address, size, PORTABLE))
        if code:
            # The runtime keeps the error for this thread.  torch has no cudaGetLastError, so a launch must take it.
            with contextlib.suppress(RuntimeError):
                torch.ones(1, dtype=torch.float32, device=self.device).add_(1)
            torch.cuda.synchronize(self.device)
        return f"error {code} of the runtime" if code else ""

    def unregister(self, address: int) -> None:
        driver = _driver()
        if driver is None:
            torch.cuda.cudart().cudaHostUnregister(address)
            return
        with self._context(driver) as code:
            if not code:
                driver.cuMemHostUnregister(ctypes.c_void_p(address))

    @contextlib.contextmanager
    def _context(self, driver: Any) -> Iterator[int]:
        """Make the device's primary context, which torch uses, current in this thread; returns an error's number.

        A new thread has no context, and torch.cuda.set_device() need not set one.
        """
        context, index = _primary_context(self.device.index), ctypes.c_void_p()
        code = driver.cuCtxPushCurrent_v2(context) if context else 201  # CUDA_ERROR_INVALID_CONTEXT
        try:
            yield code
        finally:
            if not code:
                driver.cuCtxPopCurrent_v2(ctypes.byref(index))

    # ------------------------------------------------------------------------------------------ streams and events

    def streams(self, noted: Iterable[Any], lent: int | None) -> Streams:
        here = {self.current(index) for index in self.devices}
        found = here.union(*noted)
        left: list[Any] = []  # events
        unknown: set[Any] = set()
        if lent is not None:
            chosen, gone, left = since(lent) if WATCHED else (set(), set(), [])
            unknown = {stream for stream in found - chosen - gone if stream[0]}
            found = (found - gone) | chosen | self._defaults
        gone_unseen = {stream for stream in unknown - here if is_of_others(stream)}  # it may have been destroyed
        # An event on a device that this process does not use would take some hundred megabytes there.
        used = [stream for stream in found - gone_unseen if events.is_in_use(stream[1])]
        known = lent is None or (WATCHED and not gone_unseen)
        return Streams(used, left, next(iter(unknown), None), known)

    def capturing(self, streams: Streams) -> bool:
        here = [self.current(index) for index in self.devices if events.is_in_use(index)]
        try:
            return any(map(events.is_capturing, {*here, *streams.those}))
        except RuntimeError:  # the driver's answer for the default stream while one that blocks it is captured
            return True

    def record(self, streams: Streams) -> list[Any]:
        return [*streams.events, *map(events.record, streams.those)]

    def quick_reclaim(self, slots: Slots, lent: list[int], unshared: list[bool]) -> Callable[[], bool] | None:
        if not WATCHED or not events.has_driver():
            return None
        return Reclaim(slots, self.devices, lent, unshared, events.address_of)

    def synchronize(self) -> None:
        for index in self.devices:
            if events.is_in_use(index):
                torch.cuda.synchronize(index)

    def relaxed(self) -> contextlib.AbstractContextManager[None]:
        return relaxed()

    def enter(self) -> None:
        torch.cuda.init()
        super().enter()
        exchange_mode(RELAXED)  # from now on

    def _wait(self, stream: Any, event: Any) -> None:
        if events.is_capturing(self.current(self.device.index)):
            with self.relaxed():
                event.synchronize()  # a capture may not wait for an outside event, so the thread waits
        else:
            super()._wait(stream, event)


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that hold a tensor's memory: the tensor itself, unless it is sparse or nested."""
    if tensor.is_nested:
        return list(tensor.unbind())
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor]


def _is_pinned(address: int) -> bool:
    """Whether torch finds the memory at this address page-locked."""
    return torch.frombuffer((ctypes.c_char * 1).from_address(address), dtype=torch.uint8).is_pinned()


@cache
def _driver() -> Any:
    """NVIDIA's driver; None if there is none, as with ROCm."""
    if torch.version.hip is not None:
        return None
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        for name in ("cuMemHostRegister_v2", "cuMemHostUnregister", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"):
            getattr(driver, name)
    except (OSError, AttributeError):
        return None
    return driver


@cache
def _primary_context(index: int) -> ctypes.c_void_p | None:
    """torch's context on this device, retained until the process ends; None if the driver refuses."""
    driver = _driver()
    device, context = ctypes.c_int(), ctypes.c_void_p()
    torch.cuda.init()  # cuInit, and torch's own state
    if driver.cuDeviceGet(ctypes.byref(device), index) or driver.cuDevicePrimaryCtxRetain(
        ctypes.byref(context), device
    ):
        return None
    return context


def _driver_error(driver: Any, code: int) -> str:
    if not code:
        return ""
    name = ctypes.c_char_p()
    driver.cuGetErrorName(code, ctypes.byref(name))
    return (name.value or f"error {code} of the driver".encode()).decode()
