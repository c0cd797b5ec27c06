"""What accelerator.py does where no device is needed: which streams a copy may be on, other makes, which one is found.

test_gpu.py and tests/software_cuda show what it does with CUDA.
"""

from __future__ import annotations

import contextlib
import types
from typing import Any

import pytest
import torch

from shmloader.device import accelerator
from shmloader.device.accelerator import Accelerator as Other
from shmloader.device.accelerator import Cuda, Streams
from shmloader.private import of_torch

# ----------------------------------------------------------------------------- what no loop on a device comes to


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    """One of three devices, of which the first two are in use; none is there."""
    current = {0: (0, 0, 1), 1: (7, 1, 1), 2: (14, 2, 1)}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(current))
    monkeypatch.setattr(of_torch, "current_cuda_stream", current.__getitem__)
    monkeypatch.setattr(of_torch, "has_primary_context", lambda index: index < 2)
    return Cuda(torch.device("cuda", 1))


HERE = {(0, 0, 1), (7, 1, 1)}  # current in this thread, on the devices that are in use
OURS, GONE, ADDRESS = (33, 0, 1), (0x7000, 0, 1), (0x8000, 0, 1)  # torch's numbers are odd; others' are addresses


@pytest.mark.parametrize(
    ("noted", "lent", "chosen", "gone", "wanted"),
    [
        ([], None, {OURS}, set(), HERE),  # nobody but this thread has had the batch
        ([], 5, {OURS}, set(), {*HERE, (0, 1, 1), OURS}),
        ([[(99, 1, 1), (5, 2, 1)]], 5, {(99, 1, 1)}, set(), {*HERE, (0, 1, 1), (99, 1, 1)}),
        ([[GONE]], 5, set(), {GONE}, {*HERE, (0, 1, 1)}),  # it can no longer be queried: there is an event
        ([[GONE]], 5, {GONE}, {GONE}, {*HERE, (0, 1, 1), GONE}),  # it is current again
        ([[ADDRESS]], 5, set(), set(), {*HERE, (0, 1, 1)}),  # it may be gone, and there is no event
    ],
)
def test_the_streams_that_a_copy_may_be_on(
    device: Cuda, monkeypatch: pytest.MonkeyPatch, noted: Any, lent: Any, chosen: Any, gone: Any, wanted: Any
) -> None:
    monkeypatch.setattr(accelerator, "WATCHED", True)
    monkeypatch.setattr(accelerator, "since", lambda begin: (chosen, gone, ["event"] * len(gone)))
    found = device.streams(noted, lent)
    assert set(found.those) == wanted and len(found.those) == len(wanted) and len(found.events) == len(gone)
    assert found.all is (noted != [[ADDRESS]])
    assert found.unknown in ({None} if lent is None else {(7, 1, 1), ADDRESS}), "which nobody was seen to choose"
    monkeypatch.setattr(accelerator, "WATCHED", False)
    assert not device.streams([], 5).all


def test_a_stream_that_cannot_be_asked_may_be_captured(device: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(stream: Any) -> bool:
        raise RuntimeError("CUDA error: operation would make the legacy stream depend on a capturing blocking stream")

    monkeypatch.setattr(accelerator.events, "is_capturing", raises)
    assert device.capturing(Streams([(0, 0, 1)], []))


def test_a_consumer_that_captures_a_graph_waits_for_the_copy_itself(
    device: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its stream may not wait for what is outside of the graph."""
    waited: list[str] = []
    stream: Any = types.SimpleNamespace(wait_event=lambda event: waited.append("the stream"))
    copied: Any = types.SimpleNamespace(synchronize=lambda: waited.append("the thread"))
    monkeypatch.setattr(accelerator, "relaxed", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    for captures in (True, False):
        monkeypatch.setattr(accelerator.events, "is_capturing", lambda stream, captures=captures: captures)
        device.arrive(copied, [torch.zeros(1)])  # on the CPU: nothing is kept for a stream
    assert waited == ["the thread", "the stream"]


def test_what_torch_does_not_see_is_undone(device: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    undone: list[int] = []
    runtime = types.SimpleNamespace(cudaHostRegister=lambda *_: 0, cudaHostUnregister=undone.append)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(accelerator, "_driver", lambda: None)
    monkeypatch.setattr(accelerator, "_is_pinned", lambda address: False)
    assert "torch does not see it" in device.register(0x7000_0000_1000, 4096)
    assert undone == [0x7000_0000_1000]


# --------------------------------------------------------------------------------------------------- other accelerators


class Module:
    """What torch has for every accelerator: torch.xpu, say.  One thread, one device at a time."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.streams: list[Any] = ["the device's own"]
        self.undone: set[Any] = set()  # streams that have something to do
        self.behind: list[Any] = []  # what the consumer's stream waits for

    def Event(self) -> Any:
        return _Mark(self)

    def Stream(self, device: torch.device) -> Any:
        return f"stream {len(self.streams)} of {device}"

    def current_stream(self, device: torch.device) -> Any:
        return self

    def wait_event(self, event: Any) -> None:
        self.behind.append(event)

    def set_stream(self, stream: Any) -> None:
        self.streams.append(stream)

    def set_device(self, device: torch.device) -> None:
        self.device = device

    def synchronize(self, device: torch.device) -> None:
        self.undone.clear()


class _Mark:
    def __init__(self, module: Module) -> None:
        self._module, self._on = module, None

    def record(self, stream: Module) -> None:
        self._on = stream.streams[-1]

    def query(self) -> bool:
        return self._on is not None and self._on not in self._module.undone


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Module:
    module = Module()
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    monkeypatch.setattr(accelerator, "_streams", {})
    return module


def test_another_accelerator_page_locks_nothing(module: Module) -> None:
    device = Other(torch.device("xpu", 2))
    assert not device.registers and "xpu" in device.register(0x7000_0000_1000, 4096)


def test_another_accelerator_copies_on_a_stream_of_its_own(module: Module) -> None:
    device = Other(torch.device("xpu", 2))
    device.enter()
    device.own_stream()
    assert module.device == torch.device("xpu", 2) and "xpu:2" in module.streams[-1]
    module.undone.add(module.streams[-1])
    copied, before_reuse = device.mark(), device.record(Streams([], []))
    assert not device.passed(copied) and not any(map(device.passed, before_reuse))
    device.arrive(copied, [torch.ones(1)])
    assert module.behind == [copied]
    device.synchronize()
    assert device.passed(copied) and all(map(device.passed, before_reuse))
    assert not device.capturing(Streams([], []))


def test_another_accelerator_has_objects_move_themselves(module: Module) -> None:
    class Movable:
        def to(self, where: torch.device) -> str:
            return str(where)

    assert Other(torch.device("xpu", 2)).to(Movable()) == "xpu:2"


# ----------------------------------------------------------------------------------------------------------- finding it


@pytest.fixture
def present(module: Module, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have torch say that this kind of accelerator is there, and whether torch was built for CUDA."""

    def say(kind: str, built: bool = True) -> None:
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(kind))
        monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 4)
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: 8)
        monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: built)

    return say


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_where_there_is_none_none_is_found() -> None:
    assert accelerator.kind() is None and accelerator.find() is None


def test_one_that_torch_was_not_built_for_is_not_found(present: Any) -> None:
    present("cuda", built=False)
    assert accelerator.kind() is None and accelerator.find() is None


@pytest.mark.parametrize(("asked", "index"), [(None, 4), ("cuda", 4), ("cuda:2", 2)])
def test_which_device_is_found(asked: str | None, index: int, present: Any) -> None:
    present("cuda")
    assert accelerator.kind() == "cuda" and accelerator.count() == 8
    found = accelerator.find(None if asked is None else torch.device(asked))
    assert isinstance(found, Cuda) and found.device == torch.device("cuda", index)


def test_the_cpu_is_no_accelerator(present: Any) -> None:
    present("cuda")
    assert accelerator.find(torch.device("cpu")) is None


def test_of_any_other_make(present: Any) -> None:
    present("xpu")
    assert type(accelerator.find()) is Other


def test_what_holds_the_memory_of_a_tensor() -> None:
    dense = torch.eye(4)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    for tensor, parts in (
        (dense, 1),
        (dense.to_sparse(), 2),
        (dense.to_sparse_csr(), 3),
        (dense.to_sparse_csc(), 3),
        (dense.to_sparse_bsr((2, 2)), 3),
        (nested, 2),
    ):
        held = accelerator._parts(tensor)
        assert len(held) == parts and all(part.layout is torch.strided for part in held)
