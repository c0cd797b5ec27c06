"""Ways to copy batches and to drop them: on which stream, in which thread, and who has the batch until when.

Copies are begun with `non_blocking=True` and kept, so that every byte of them can be looked at in the end.  On the
software CUDA a copy waits before it reads its source; on a GPU there is a kernel in front of it that takes as long.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from software_cuda import runtime

import shmloader

SIZE = 1 << 12  # int64 elements a batch
BATCHES = 100
LATE = 5, 50  # milliseconds
CYCLES = 10_000_000  # of a GPU, about as long


class Numbered(torch.utils.data.Dataset):
    """Item k is full of k."""

    def __init__(self, length: int, size: int = SIZE) -> None:
        self.length, self.size = length, size

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return torch.full((self.size,), index)


def loader(length: int = BATCHES, **options: Any) -> shmloader.DataLoader[Any]:
    options = {"num_workers": 2, "batch_size": None, "pin_memory": True, **options}
    made: shmloader.DataLoader[Any] = shmloader.DataLoader(Numbered(length), **options)
    assert made.rides_ring
    return made


def copied(batch: torch.Tensor) -> torch.Tensor:
    """A copy of the batch that is begun, on the current stream."""
    if not runtime.is_software():
        torch.cuda._sleep(CYCLES)
    return batch.to("cuda", non_blocking=True)


def changed(copies: Iterable[torch.Tensor]) -> int:
    """How many of the copies are not what they should be."""
    torch.cuda.synchronize()
    return sum(not bool((each.cpu() == k).all()) for k, each in enumerate(copies))


# ---------------------------------------------------------------------------------------- on which stream it is current


@contextlib.contextmanager
def current() -> Iterator[None]:
    yield


def side() -> Any:
    return torch.cuda.stream(_made("side", torch.cuda.Stream))


def new_each_time() -> Any:
    return torch.cuda.stream(torch.cuda.Stream())


def high_priority() -> Any:
    return torch.cuda.stream(_made("high", lambda: torch.cuda.Stream(priority=-1)))


@contextlib.contextmanager
def set_and_reset() -> Iterator[None]:
    before = torch.cuda.current_stream()
    torch.cuda.set_stream(_made("set", torch.cuda.Stream))
    yield
    torch.cuda.set_stream(before)


@contextlib.contextmanager
def set_for_any_accelerator() -> Iterator[None]:
    before = torch.accelerator.current_stream()
    torch.accelerator.set_stream(_made("any", torch.cuda.Stream))
    yield
    torch.accelerator.set_stream(before)


def the_stream_itself() -> Any:
    return _made("itself", torch.cuda.Stream)


def of_any_accelerator() -> Any:
    return _made("raw", lambda: torch.Stream(device="cuda"))


def external() -> Any:
    """A stream that others have made."""
    return torch.cuda.stream(torch.cuda.ExternalStream(created()))


def external_again() -> Any:
    """The same loop for tests that go through thousands: each is a thread of the software CUDA."""
    return torch.cuda.stream(_made("external", lambda: torch.cuda.ExternalStream(created())))


def captured() -> Any:
    """A stream for captures alone."""
    return _made("captured", lambda: torch.cuda.ExternalStream(created()))


def created() -> int:
    handle = ctypes.c_void_p()
    assert not int(torch.cuda.cudart().cudaStreamCreate(ctypes.addressof(handle)))
    assert handle.value is not None
    return handle.value


@contextlib.contextmanager
def nested() -> Iterator[None]:
    with side(), new_each_time():
        yield


_streams: dict[str, Any] = {}


def _made(name: str, make: Callable[[], Any]) -> Any:
    return _streams.get(name) or _streams.setdefault(name, make())


STREAMS = [
    current, side, new_each_time, high_priority, set_and_reset, the_stream_itself, of_any_accelerator, external, nested,
]  # fmt: skip
if hasattr(torch.accelerator, "set_stream"):
    STREAMS.append(set_for_any_accelerator)
for _stream in (the_stream_itself, of_any_accelerator):
    if not hasattr(torch.Stream, "__enter__"):  # torch before 2.7
        STREAMS.remove(_stream)


# ---------------------------------------------------------------------------------------------- how batches are dropped


def plain(batches: Any, stream: Any) -> list[Any]:
    copies = []
    for batch in batches:
        with stream():
            copies.append(copied(batch))
    return copies


def enumerated(batches: Any, stream: Any) -> list[Any]:
    """What enumerate() gives it also keeps, until after the next next()."""
    copies = []
    for _, batch in enumerate(batches):
        with stream():
            copies.append(copied(batch))
        del batch
    return copies


def generated(batches: Any, stream: Any) -> list[Any]:
    return plain((batch for batch in batches), stream)


def with_a_bar(batches: Any, stream: Any) -> list[Any]:
    tqdm = pytest.importorskip("tqdm").tqdm
    tqdm.monitor_interval = 0  # no thread
    return plain(tqdm(batches, file=io.StringIO()), stream)


def dropped_on_the_stream(batches: Any, stream: Any) -> list[Any]:
    copies = []
    for batch in batches:
        with stream():
            copies.append(copied(batch))
            del batch
    return copies


def dropped_on_another_stream(batches: Any, stream: Any) -> list[Any]:
    copies, other = [], torch.cuda.Stream()
    for batch in batches:
        with stream():
            copies.append(copied(batch))
        with torch.cuda.stream(other):
            del batch
    return copies


def waited_for(batches: Any, stream: Any) -> list[Any]:
    copies = []
    for batch in batches:
        with stream():
            copies.append(copied(batch))
            torch.cuda.default_stream().wait_stream(torch.cuda.current_stream())
    return copies


def dropped_by_another_thread(batches: Any, stream: Any) -> list[Any]:
    """A thread with a stream of its own drops what this one has copied."""
    copies, dropped = [], queue.SimpleQueue[Any]()

    def drop() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            while dropped.get() is not None:
                pass

    thread = threading.Thread(target=drop)
    thread.start()
    for batch in batches:
        with stream():
            copies.append(copied(batch))
        dropped.put(batch)
        del batch
    dropped.put(None)
    thread.join()
    return copies


def copied_by_another_thread(batches: Any, stream: Any) -> list[Any]:
    """A thread that has been on its stream for ever copies; this one drops."""
    copies: list[Any] = []
    handed, done = queue.SimpleQueue[Any](), queue.SimpleQueue[None]()

    def copy() -> None:
        with stream():
            while (batch := handed.get()) is not None:
                copies.append(copied(batch))
                del batch
                done.put(None)

    thread = threading.Thread(target=copy)
    thread.start()
    for batch in batches:
        handed.put(batch)
        done.get()
    handed.put(None)
    thread.join()
    return copies


def copied_by_a_thread_that_ends(batches: Any, stream: Any) -> list[Any]:
    copies: list[Any] = []

    def copy(batch: Any) -> None:
        entered = stream()
        entered.__enter__()  # and never left: the thread's stream goes with it
        copies.append(copied(batch))
        del batch

    for batch in batches:
        thread = threading.Thread(target=copy, args=(batch,))
        thread.start()
        thread.join()
    return copies


LOOPS = [
    plain, enumerated, generated, with_a_bar, dropped_on_the_stream, dropped_on_another_stream, waited_for,
    dropped_by_another_thread, copied_by_another_thread, copied_by_a_thread_that_ends,
]  # fmt: skip
