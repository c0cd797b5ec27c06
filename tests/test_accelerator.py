"""The calls to CUDA, in order and drained, as far as they can be seen without a GPU: driver and torch are stand-ins."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

from shmloader import _torch, accelerator
from shmloader.accelerator import Cuda, Other, Streams


class Driver:
    """libcuda, as ctypes shows it: functions that return a number."""

    def __init__(self, register: int = 0) -> None:
        self.calls: list[Any] = []
        self.register = register

    def cuDeviceGet(self, device: Any, index: int) -> int:
        device._obj.value = index
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:
        context._obj.value = 0xC0
        return 0

    def cuCtxPushCurrent_v2(self, context: Any) -> int:
        self.calls.append(("push", context.value))
        return 0

    def cuCtxPopCurrent_v2(self, context: Any) -> int:
        self.calls.append("pop")
        return 0

    def cuMemHostRegister_v2(self, address: Any, size: Any, flags: int) -> int:
        self.calls.append(("register", address.value, size.value, flags))
        return self.register

    def cuMemHostUnregister(self, address: Any) -> int:
        self.calls.append(("unregister", address.value))
        return 0

    def cuGetErrorName(self, code: int, name: Any) -> int:
        name._obj.value = b"CUDA_ERROR_NOT_SUPPORTED"
        return 0


class Runtime:
    """torch.cuda.cudart()."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.calls: list[Any] = []

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        self.calls.append((address, size, flags))
        return self.code

    def cudaHostUnregister(self, address: int) -> int:
        self.calls.append(address)
        return 0


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a Cuda over a driver, or a runtime."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(_torch, "current_cuda_stream", lambda index: (index * 7, index, 1))
    monkeypatch.setattr(accelerator, "_is_pinned", lambda address: True)

    def make(driver: Driver | None) -> Cuda:
        monkeypatch.setattr(accelerator, "_driver", lambda: driver)
        accelerator._primary_context.cache_clear()
        return Cuda(torch.device("cuda", 1))

    yield make
    accelerator._primary_context.cache_clear()


def test_by_the_driver_within_the_primary_context(cuda: Any) -> None:
    driver = Driver()
    device = cuda(driver)
    assert device.register(0x7000_0000_1000, 1 << 33) == ""
    device.unregister(0x7000_0000_1000)
    assert driver.calls == [
        ("push", 0xC0),
        ("register", 0x7000_0000_1000, 1 << 33, 1),
        "pop",
        ("push", 0xC0),
        ("unregister", 0x7000_0000_1000),
        "pop",
    ]
    assert device.register(0x1000, 0) != "" and len(driver.calls) == 6, "none of nothing: that would be an error"


def test_a_refusal_by_the_driver_is_named(cuda: Any) -> None:
    driver = Driver(register=801)
    assert cuda(driver).register(0x1000, 4096) == "CUDA_ERROR_NOT_SUPPORTED"
    assert driver.calls[-1] == "pop"


def test_what_torch_does_not_see_is_undone(cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "_is_pinned", lambda address: False)
    driver = Driver()
    assert "torch does not see it" in cuda(driver).register(0x1000, 4096)
    assert ("unregister", 0x1000) in driver.calls


@pytest.mark.parametrize("raises", [False, True])
def test_by_the_runtime_its_error_is_drained(cuda: Any, monkeypatch: pytest.MonkeyPatch, raises: bool) -> None:
    runtime, drained = Runtime(801), []

    def launch(*sizes: int, **options: Any) -> Any:
        drained.append("launch")
        if raises:
            raise RuntimeError("CUDA error: operation not supported")
        return types.SimpleNamespace(add_=lambda value: None)

    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch, "ones", launch)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: drained.append("synchronize"))
    device = cuda(None)
    assert device.register(0x1000, 4096) == "error 801 of the runtime"
    assert runtime.calls == [(0x1000, 4096, 1)] and drained == ["launch", "synchronize"]
    runtime.code = 0
    assert device.register(0x1000, 4096) == "" and drained == ["launch", "synchronize"]
    device.unregister(0x1000)
    assert runtime.calls[-1] == 0x1000


HERE = {(0, 0, 1), (7, 1, 1)}  # current in this thread, on the devices that are in use
OURS, GONE, ADDRESS = (33, 0, 1), (0x7000, 0, 1), (0x8000, 0, 1)  # torch's numbers are odd; others' are addresses


@pytest.mark.parametrize(
    ("noted", "lent", "chosen", "gone", "wanted"),
    [
        ([], None, {OURS}, set(), HERE),  # nobody but this thread has had the batch
        ([], 5, {OURS}, set(), {*HERE, (0, 1, 1), OURS}),
        ([[(99, 1, 1), (5, 2, 1)]], 5, {(99, 1, 1)}, set(), {*HERE, (0, 1, 1), (99, 1, 1)}),
        ([[GONE]], 5, set(), {GONE}, {*HERE, (0, 1, 1)}),  # it cannot be asked any more: there is an event
        ([[GONE]], 5, {GONE}, {GONE}, {*HERE, (0, 1, 1), GONE}),  # it is current again
        ([[ADDRESS]], 5, set(), set(), None),  # it may be gone, and there is no event
    ],
)
def test_the_streams_that_a_copy_may_be_on(
    cuda: Any, monkeypatch: pytest.MonkeyPatch, noted: Any, lent: Any, chosen: Any, gone: Any, wanted: Any
) -> None:
    monkeypatch.setattr(accelerator, "WATCHED", True)
    monkeypatch.setattr(accelerator, "since", lambda begin: (chosen, gone, ["event"] * len(gone)))
    monkeypatch.setattr(_torch, "has_primary_context", lambda index: index < 2)
    found = cuda(Driver()).streams(noted, lent)
    if wanted is None:
        assert found is None
    else:
        assert set(found.those) == wanted and len(found.those) == len(wanted) and len(found.events) == len(gone)
        assert found.unknown == (None if lent is None else (7, 1, 1)), "which nobody was seen to choose"


def test_where_streams_cannot_be_watched_they_cannot_be_told(cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "WATCHED", False)
    assert cuda(Driver()).streams([], 5) is None


def test_events_are_recorded_on_them(cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[Any] = []

    class Event:
        def record(self, stream: Any) -> None:
            recorded.append(stream)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "Stream", lambda stream_id, device_index, device_type: (stream_id, device_index))
    events = cuda(Driver()).record(Streams([(0, 0, 1), OURS], ["of one that is gone"]))
    assert len(events) == 3 and events[0] == "of one that is gone" and recorded == [(0, 0), (33, 0)]


def test_whether_a_graph_is_captured(cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def stream(stream_id: int, device_index: int, device_type: int) -> Any:
        if stream_id == 6:
            raise RuntimeError(
                "CUDA error: operation would make the legacy stream depend on a capturing blocking stream"
            )
        return types.SimpleNamespace(is_capturing=lambda: stream_id == 5)

    current = [False]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "Stream", stream)
    device = cuda(Driver())
    assert not device.capturing(Streams([(4, 0, 1)], []))
    assert device.capturing(Streams([(4, 0, 1), (5, 0, 1)], []))
    assert device.capturing(Streams([(6, 0, 1)], []))
    current[0] = True
    assert device.capturing(Streams([], []))


def test_the_capture_mode_is_exchanged_and_given_back(cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = [1]

    def exchange(mode: Any) -> int:
        modes.append(mode._obj.value)
        mode._obj.value = modes[-2]
        return 0

    monkeypatch.setattr(accelerator, "_exchange", lambda: exchange)
    device = cuda(Driver())
    with pytest.raises(KeyError), device.relaxed():
        assert modes[-1] == accelerator.RELAXED
        raise KeyError
    assert modes[-1] == 1
    monkeypatch.setattr(accelerator, "_exchange", lambda: lambda mode: 3)  # CUDA is not initialised
    assert accelerator._exchange_capture_mode(accelerator.RELAXED) == accelerator.GLOBAL


def test_a_consumer_that_captures_waits_itself(cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    stream = types.SimpleNamespace(wait_event=lambda event: calls.append("stream"))
    event = types.SimpleNamespace(synchronize=lambda: calls.append("thread"))
    capturing = [False]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    device = cuda(Driver())
    device.arrive(event, [])
    capturing[0] = True
    device.arrive(event, [torch.ones(1)])  # on the CPU: nothing is kept for a stream
    assert calls == ["stream", "thread"]


class Module:
    """What torch has for every accelerator: torch.xpu, say."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.stream = types.SimpleNamespace(wait_event=lambda event: self.calls.append(("wait", event)))

    def Event(self) -> Any:
        return types.SimpleNamespace(record=lambda stream: self.calls.append("record"), query=lambda: True)

    def Stream(self, device: torch.device) -> Any:
        return "new"

    def current_stream(self, device: torch.device) -> Any:
        return self.stream

    def set_stream(self, stream: Any) -> None:
        self.calls.append(("set", stream))

    def set_device(self, device: torch.device) -> None:
        self.calls.append(("device", str(device)))

    def synchronize(self, device: torch.device) -> None:
        self.calls.append("synchronize")


def test_other_accelerators_copy_and_never_register(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Module()
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    device = Other(torch.device("xpu", 2))
    assert not device.registers and "xpu" in device.register(0x1000, 4096)
    device.enter()
    device.own_stream()
    event = device.mark()
    assert device.passed(event) and device.record(Streams([], [])) and not device.capturing(Streams([], []))
    device.arrive("event", [torch.ones(1)])
    device.synchronize()
    assert module.calls == [("device", "xpu:2"), ("set", "new"), "record", "record", ("wait", "event"), "synchronize"]

    class Movable:
        def to(self, where: torch.device) -> str:
            return str(where)

    assert device.to(Movable()) == "xpu:2"


def test_which_accelerator_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert accelerator.kind() is None and accelerator.find() is None
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 4)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    assert accelerator.kind() is None  # a stand-in, in a torch without CUDA
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    assert accelerator.kind() == "cuda" and accelerator.count() == 8
    for asked, index in ((None, 4), (torch.device("cuda"), 4), (torch.device("cuda:2"), 2)):
        found = accelerator.find(asked)
        assert isinstance(found, Cuda) and found.device == torch.device("cuda", index)
    assert accelerator.find(torch.device("cpu")) is None
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("xpu"))
    monkeypatch.setattr(torch, "get_device_module", lambda device: Module())
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
