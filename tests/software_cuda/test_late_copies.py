"""No order of drop, stream and thread gives a changed byte: copies that are late, batches that die where they like."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from software_cuda import runtime
from software_cuda.loops import (
    BATCHES,
    LATE,
    LOOPS,
    STREAMS,
    changed,
    copied,
    created,
    enumerated,
    external,
    loader,
    side,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]


@pytest.fixture(autouse=True)
def late() -> Iterator[None]:
    runtime.late(*LATE)
    yield
    runtime.late(0, 0)


QUICK = side, external  # of the streams; with all others, one loop is enough for what CI runs
WAYS = [
    pytest.param(loop, stream, marks=[] if stream in QUICK or loop is enumerated else pytest.mark.long)
    for loop in LOOPS
    for stream in STREAMS
]


@pytest.mark.parametrize(("loop", "stream"), WAYS)
def test_no_byte_changes(loop: Any, stream: Any) -> None:
    copies = loop(loader(), stream)
    wrong = changed(copies)
    assert (len(copies), wrong) == (BATCHES, 0)


def test_a_stream_that_is_destroyed_when_its_batch_has_died() -> None:
    """The thread has left the stream, so the next hand-out cannot find it as a current one."""
    copies = []
    for batch in loader():
        handle = created()
        with torch.cuda.stream(torch.cuda.ExternalStream(handle)):
            copies.append(copied(batch))
        del batch
        assert not int(torch.cuda.cudart().cudaStreamDestroy(handle))
    wrong = changed(copies)
    assert (len(copies), wrong) == (BATCHES, 0)


def behind_others(data: torch.Tensor) -> torch.Tensor:
    """A copy on a stream that has more to do than the thread's own."""
    with side():
        return [copied(data) for _ in range(3)].pop()


class Half:
    """An object of the user's, which copies itself on a stream of its own."""

    def __init__(self, data: torch.Tensor) -> None:
        self.data = data

    def to(self, device: Any, non_blocking: bool = False) -> Any:
        return behind_others(self.data)


def as_array(item: torch.Tensor) -> Any:
    return item[:7], item.numpy()


def as_object(item: torch.Tensor) -> Any:
    return item[:7], Half(item.clone())


@pytest.mark.parametrize("collate", [as_array, as_object])
def test_what_is_copied_by_the_user_in_the_thread_that_is_ahead(collate: Any) -> None:
    """An array goes to `on_device` as it is, still in its slot; and it dies there."""

    def on_device(batch: Any) -> Any:
        found = batch[1]
        if isinstance(found, numpy.ndarray):
            found = behind_others(torch.from_numpy(found))
        copies.append(found)
        return batch[0]

    copies: list[torch.Tensor] = []
    made = loader(50, pin_memory=False, device="cuda", collate_fn=collate, on_device=on_device)
    found = list(made)
    wrong = changed(copies)
    assert (len(copies), wrong, changed(found)) == (50, 0, 0)


def test_threads_that_share_a_stream_of_others() -> None:
    """Both leave it again and again, and each leaves an event behind on it."""
    stream = torch.cuda.ExternalStream(created())
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    errors: list[BaseException] = []

    def enter() -> None:
        try:
            for _ in range(2000):
                with torch.cuda.stream(stream):
                    pass
        except BaseException as error:
            errors.append(error)

    try:
        threads = [threading.Thread(target=enter) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not errors
