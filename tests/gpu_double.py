"""A fake GPU behind the seam of shmloader/device/accelerator.py: its streams are queues, and do their work late.
It notes what no device would forgive, such as memory that is unregistered under a copy.

A "copy to the device" reads the bytes of its source when its turn comes, as a DMA engine does; whoever fills the source
before that has changed the batch.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import gc
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from shmloader.core.cuda import moment
from shmloader.device import pinning
from shmloader.device.accelerator import Streams
from shmloader.system import user_line


class Event:
    """Passed when its turn in all the streams that it was put into has come."""

    def __init__(self) -> None:
        self.left = 0


class DoubleGpu:
    """An accelerator with any number of streams; stream 0 is current in a thread that has not chosen another.

    Args:
        lag: operations that a stream leaves undone when further ones come; it does them in order, each once.
        lags: the same for certain streams.
        refuses: called with the size of what is to be registered; the reason, or "".
    """

    registers = True
    devices = (0,)

    def __init__(
        self,
        lag: int = 0,
        lags: dict[int, int] | None = None,
        refuses: Callable[[int], str] = lambda size: "",
    ) -> None:
        self.lag, self.lags, self.refuses = lag, lags or {}, refuses
        self.registered: dict[int, int] = {}
        self.sizes: list[int] = []  # of all registrations
        self.clones = self.waits = 0
        self._rooms: list[tuple[StorageWeakRef, int, int]] = []  # torch's own memory
        self.is_broken = False
        self.wrong: list[str] = []  # what no device would forgive
        self.captured: set[int] = set()
        self.recorded = self.asked = self.synchronized = 0
        self.threads: set[str] = set()  # names of those that entered
        self._streams: dict[int, collections.deque[Callable[[], bool]]] = collections.defaultdict(collections.deque)
        self._copying: list[tuple[int, int]] = []  # sources of copies that are not done
        self._here = threading.local()
        self._chosen: dict[int, int] = {}  # by thread
        self._left: dict[int, int] = {}  # by stream, when
        self._next = 100
        self._lock = threading.RLock()

    # ------------------------------------------------------------------------------------------------ page-locking

    def register(self, address: int, size: int) -> str:
        with self._lock:
            self._must_be_relaxed_or_idle("register")
            if why := self.refuses(size):
                return why
            if any(address < at + n and at < address + size for at, n in self.registered.items()):
                self.wrong.append("registered twice")
            self.registered[address] = size
            self.sizes.append(size)
        return ""

    def unregister(self, address: int) -> None:
        with self._lock:
            self._must_be_relaxed_or_idle("unregister")
            size = self.registered.pop(address, None)
            if size is None:
                self.wrong.append("unregistered what was not registered")
            elif any(address <= at < address + size for at, _ in self._copying):
                self.wrong.append("unregistered under a copy")

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        at, size = tensor.data_ptr(), tensor.nbytes
        return self._range(at, size) is not None or self._room(at) is not None or hasattr(tensor, "cloned")

    def clone(self, tensor: torch.Tensor) -> torch.Tensor:
        self.clones += 1
        clone = tensor.clone()
        clone.cloned = True  # type: ignore[attr-defined]
        return clone

    def room(self, size: int) -> torch.Tensor:
        room = torch.empty(size, dtype=torch.uint8)
        with self._lock:
            self._rooms.append((StorageWeakRef(room.untyped_storage()), room.data_ptr(), size))
        return room

    def _room(self, address: int) -> int | None:
        """Where the block of torch's begins in which this address lies."""
        with self._lock:
            self._rooms = [room for room in self._rooms if not room[0].expired()]
            return next((at for _, at, size in self._rooms if at <= address < at + size), None)

    def _range(self, address: int, size: int) -> int | None:
        with self._lock:
            for at, n in self.registered.items():
                if at <= address < at + n:
                    if address + size > at + n:
                        self.wrong.append("a copy spans two registrations")
                    return at
        return None

    # ---------------------------------------------------------------------------------------------------- streams

    def current(self, index: int) -> int:
        return getattr(self._here, "stream", 0)

    @contextlib.contextmanager
    def stream(self, number: int) -> Iterator[None]:
        before = self.current(0)
        self._choose(number)
        try:
            yield
        finally:
            self._choose(before)

    def _choose(self, stream: int) -> None:
        """What streams.py watches on CUDA."""
        self._left[self.current(0)] = moment()
        self._here.stream = self._chosen[threading.get_ident()] = stream

    def wait_stream(self, other: int) -> None:
        """The current stream waits for all that is in another."""
        with self.stream(other):
            event = self.mark()
        self._put(self.current(0), lambda: event.left == 0)

    def _put(self, stream: int, operation: Callable[[], bool]) -> None:
        with self._lock:
            self._streams[stream].append(operation)
            self._work()

    def _work(self, lag: int | None = None) -> None:
        """Do what has come, until each stream has only `lag` operations left, or waits for another."""
        moved = True
        while moved:
            moved = False
            for stream, waiting in list(self._streams.items()):
                left = self.lags.get(stream, self.lag) if lag is None else lag
                while len(waiting) > left and waiting[0]():
                    waiting.popleft()
                    moved = True

    def synchronize(self) -> None:
        with self._lock:
            self.synchronized += 1
            self._work(0)

    # ----------------------------------------------------------------------------------------------------- events

    def streams(self, noted: Iterable[Any], lent: int | None) -> Streams:
        found = {self.current(0), *(stream for streams in noted for stream in streams)}
        if lent is not None:
            found |= {0, *self._chosen.values(), *(stream for stream, when in self._left.items() if when > lent)}
        return Streams(found, [])

    def capturing(self, streams: Streams) -> bool:
        return bool(self.captured & {self.current(0), *streams.those})

    def record(self, streams: Streams) -> list[Any]:
        with self._lock:
            self._must_be_relaxed_or_idle("record")
            event = Event()
            for stream in streams.those:
                self._record(event, stream)
            return [event]

    def mark(self) -> Any:
        event = Event()
        with self._lock:
            self._record(event, self.current(0))
        return event

    def _record(self, event: Event, stream: int) -> None:
        if stream in self.captured:
            self.wrong.append("recorded on a stream that is captured")
        self.recorded += 1
        event.left += 1

        def pass_by() -> bool:
            event.left -= 1
            return True

        self._put(stream, pass_by)

    def passed(self, event: Event) -> bool:
        self._must_be_relaxed_or_idle("ask")
        self.asked += 1
        return event.left == 0

    def wait(self, event: Event) -> None:
        with self._lock:
            self.waits += 1
            self._work(0)
        assert event.left == 0, "the copying thread would wait for ever"

    def quick_reclaim(self, slots: Any, lent: list[int], unshared: list[bool]) -> None:
        """There is none: what it does differently, tests/software_cuda shows."""

    def relaxed(self) -> Any:
        return self._relaxed()

    @contextlib.contextmanager
    def _relaxed(self) -> Iterator[None]:
        before, self._here.relaxed = getattr(self._here, "relaxed", False), True
        try:
            yield
        finally:
            self._here.relaxed = before

    def _must_be_relaxed_or_idle(self, what: str) -> None:
        if self.captured and not getattr(self._here, "relaxed", False):
            self.wrong.append(f"{what} broke a capture")

    # ----------------------------------------------------------------------------------------------------- copies

    def enter(self) -> None:
        self.threads.add(threading.current_thread().name)
        self._here.relaxed = True

    def own_stream(self) -> None:
        with self._lock:
            self._choose(self._next)
            self._next += 1

    def failed(self) -> bool:
        return self.is_broken

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """To the "device": memory that is filled when the copy's turn comes."""
        copied = torch.full_like(tensor, -1 if tensor.is_signed() else 77, memory_format=torch.contiguous_format)
        source, size, to = tensor.data_ptr(), tensor.nbytes, copied.data_ptr()
        registered = self._range(source, size)
        if self._room(source) not in (None, tensor.untyped_storage().data_ptr()):
            self.wrong.append("torch does not find the block that a copy reads")
        held = [copied] if registered is not None else [copied, tensor]  # torch keeps its own memory until that is done
        with self._lock:
            self._copying.append((source, size))

        def do() -> bool:
            if registered is not None and registered not in self.registered:
                self.wrong.append("copied from what is no longer registered")
            else:
                ctypes.memmove(to, source, size)
            self._copying.remove((source, size))
            held.clear()
            return True

        self._put(self.current(0), do)
        return copied

    def to(self, value: Any) -> Any:
        return value.to("double", non_blocking=True)

    def arrive(self, event: Any, tensors: Iterable[torch.Tensor]) -> None:
        self.arrived = list(tensors)
        self._put(self.current(0), lambda: event.left == 0)


def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., DoubleGpu]]:
    """For a fixture: what has the loaders find a double; in the end nothing it was asked for was wrong, or is left."""
    made: list[DoubleGpu] = []

    def install(**options: Any) -> DoubleGpu:
        double = DoubleGpu(**options)
        made.append(double)
        monkeypatch.setattr("shmloader.device.accelerator.find", lambda device=None: None if is_cpu(device) else double)
        monkeypatch.setattr("shmloader.device.accelerator.kind", lambda: "cuda")
        monkeypatch.setattr("shmloader.device.accelerator.count", lambda: 1)
        return double

    monkeypatch.setattr(user_line, "_met", user_line._met - {"not page-locked"})
    # torch's own raises where it has no device
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, device=None: tensor)
    yield install
    gc.collect()
    for double in made:
        double.captured.clear()
        double.synchronize()
    for _ in range(3):  # the first records events, a further one finds them passed
        pinning._free_late()
        for double in made:
            double.synchronize()
    for double in made:
        assert not double.wrong
        assert not double.registered, "what was page-locked is so for ever"
    assert not pinning._late


def is_cpu(device: torch.device | None) -> bool:
    return device is not None and device.type == "cpu"
