"""On a GPU: slots are page-locked, no byte changes under a late copy, and no capture of a graph is broken.

`make test-cuda` runs these where there is no GPU, over tests/software_cuda.  test_pinning.py, test_copies_under_way.py
and test_device.py hold the same, and more, with a device that is none.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import mmap
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from conftest import assert_same, into_environment
from software_cuda import runtime
from software_cuda.loops import Numbered

import shmloader
from shmloader.device import accelerator, pinning, to_device
from shmloader.device.prefetch import Prefetcher
from shmloader.system import user_line
from shmloader.transforms import normalize_on_device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]

SIZE = 1 << 18  # int64 elements: 2 MiB a batch
LATE = 2_000_000  # cycles, about a millisecond


@pytest.fixture(autouse=True)
def nothing_locked_is_left() -> Iterator[None]:
    yield
    gc.collect()
    for _ in range(3):
        torch.cuda.synchronize()
        pinning._free_late()
    assert not pinning._late


@pytest.fixture
def clones(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each tensor that is copied on the host."""
    counted: list[int] = []
    clone = accelerator.Cuda.clone

    def counting(self: Any, tensor: torch.Tensor) -> torch.Tensor:
        counted.append(1)
        return clone(self, tensor)

    monkeypatch.setattr(accelerator.Cuda, "clone", counting)
    return counted


def pinned(length: int, size: int = SIZE, **options: Any) -> shmloader.DataLoader[Any]:
    options = {"num_workers": 2, "batch_size": None, "pin_memory": True, **options}
    return on_the_ring(shmloader.DataLoader(Numbered(length, size), **options))


def on_the_ring(loader: shmloader.DataLoader[Any]) -> shmloader.DataLoader[Any]:
    """The loader; not for torch's own iterator to pass these tests in the place of ours."""
    assert loader.rides_ring or not loader.num_workers
    return loader


class Wrong:
    """Counts, on the device and without waiting, the elements that are not what they should be."""

    def __init__(self) -> None:
        self.count = torch.zeros((), dtype=torch.int64, device="cuda")
        self.batches = 0

    def look(self, batches: torch.Tensor) -> None:
        self.count += (batches != self.batches).sum()
        self.batches += 1

    def elements(self) -> int:
        torch.cuda.synchronize()
        return int(self.count)


# --------------------------------------------------------------------------------------------------------- page-locking


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_slots_are_page_locked(start: str, clones: list[int]) -> None:
    with iter(pinned(400, multiprocessing_context=start)) as iterator:
        for k in range(400):
            batch = next(iterator)
            assert batch.is_pinned() and batch[::5000].is_pinned() and int(batch[-1]) == k
            while any(iterator._pinning._asked):  # the thread is at it
                time.sleep(0.0001)
            del batch
            torch.cuda.synchronize()  # what has died is given back by the next next()
        assert len(clones) <= iterator._ring.payloads, "a slot was not page-locked, though there was time"


@pytest.mark.parametrize("by", ["driver", "runtime"])
def test_a_refusal_leaves_no_error_behind(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.cuda.init()
    if by == "runtime":
        monkeypatch.setattr(accelerator, "_driver", lambda: None)
    device = accelerator.find()
    assert device is not None
    size = 1 << 16
    with mmap.mmap(-1, size) as memory:
        view = torch.frombuffer(memory, dtype=torch.uint8)  # is_pinned() goes by where the storage starts
        address = view.data_ptr()
        assert device.register(address, size) == ""
        assert view.is_pinned()
        assert device.register(address, size) != "", "twice is refused"
        assert device.register(address, 0) != ""
        assert float(torch.ones(2, device="cuda").sum()) == 2
        torch.cuda.synchronize()
        device.unregister(address)
        assert not view.is_pinned()
        del view


def test_where_it_is_refused_batches_are_page_locked_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator.Cuda, "register", lambda self, address, size: "for the test")
    monkeypatch.setattr(user_line, "_met", set())
    loader = pinned(50)
    with pytest.warns(UserWarning, match="could not be page-locked .for the test"):
        iterator = iter(loader)
    assert isinstance(iterator, Prefetcher)
    for k, batch in enumerate(iterator):
        assert batch.is_pinned() and int(batch[0]) == k


def test_slots_that_grow(clones: list[int]) -> None:
    class Growing(Numbered):
        def __getitem__(self, index: int) -> Any:
            return torch.full((1000 + 500 * index,), index)

    wrong = Wrong()
    for batch in on_the_ring(shmloader.DataLoader(Growing(600), num_workers=2, batch_size=None, pin_memory=True)):
        assert batch.is_pinned()
        wrong.look(batch.to("cuda", non_blocking=True))
    assert wrong.elements() == 0 and wrong.batches == 600


class Custom:
    def __init__(self, data: torch.Tensor) -> None:
        self.data, self.was_pinned = data, False

    def pin_memory(self) -> Custom:
        self.data, self.was_pinned = self.data.pin_memory(), True
        return self


def test_custom_types_and_pickled_tensors() -> None:
    def collate(item: torch.Tensor) -> Any:
        return [Custom(item), item.float().requires_grad_(), "text"]

    for k, (custom, grad, text) in enumerate(pinned(40, 1000, collate_fn=collate)):
        assert custom.was_pinned and custom.data.is_pinned() and grad.is_pinned() and text == "text"
        assert int(custom.data[0]) == k == int(grad[0])


# ------------------------------------------------------------------------------------------------------- late copies


def plain(loader: Any, late: int) -> Wrong:
    wrong = Wrong()
    for batch in loader:
        torch.cuda._sleep(late)
        wrong.look(batch.to("cuda", non_blocking=True))
    return wrong


def test_no_byte_changes_in_ten_thousand_batches(clones: list[int]) -> None:
    wrong = plain(pinned(10_000, 1 << 14), LATE // 20)
    assert wrong.elements() == 0 and wrong.batches == 10_000
    assert len(clones) < 10_000, "all were copied on the host: nothing was shown"


@pytest.mark.parametrize("look", ["short", "long"])
def test_without_events_bytes_change(look: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That the tests above can fail."""
    if look == "long":
        monkeypatch.setattr(accelerator.Cuda, "quick_reclaim", lambda *arguments: None)
        monkeypatch.setattr(accelerator.Cuda, "passed", lambda self, event: True)
    elif not runtime.is_software():
        pytest.skip("a driver does not lie")
    else:
        runtime.lie(True)
    try:
        iterator = iter(pinned(300, 1 << 14))
        # all copies are done before the slots are unmapped: otherwise the device itself would fault
        assert plain(itertools.islice(iterator, 250), 20 * LATE).elements() > 0
        iterator.close()
    finally:
        if look == "short":
            runtime.lie(False)


def test_strict_pinning_waits_for_a_stream_that_nobody_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHMLOADER_STRICT_PINNING", "1")
    wrong, stream = Wrong(), torch.cuda.Stream()
    found = []
    for batch in pinned(200, 1 << 14):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(LATE)
            found.append(batch.to("cuda", non_blocking=True))
    torch.cuda.synchronize()
    for batch in found:
        wrong.look(batch)
    assert wrong.elements() == 0 and wrong.batches == 200


# ------------------------------------------------------------------------------------------------------------- device=


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_on_the_device(workers: int) -> None:
    wrong = Wrong()
    for batch in pinned(300, num_workers=workers, pin_memory=False, device="cuda"):
        assert batch.device == torch.device("cuda", torch.cuda.current_device())
        torch.cuda._sleep(LATE // 4)
        wrong.look(batch)
    assert wrong.elements() == 0 and wrong.batches == 300


def test_ten_thousand_batches_on_the_device(clones: list[int]) -> None:
    wrong = Wrong()
    for batch in pinned(10_000, 1 << 14, device="cuda"):
        torch.cuda._sleep(LATE // 20)
        wrong.look(batch)
        batch.fill_(-1)  # and its memory is not given to the next one while it is in use
    assert wrong.elements() == 0 and wrong.batches == 10_000
    assert len(clones) < 10_000, "all were copied on the host: nothing was shown"


def test_a_late_consumer_on_a_stream_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(to_device, "AHEAD", 4)
    wrong, stream = Wrong(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for batch in pinned(500, 1 << 16, device="cuda"):
            torch.cuda._sleep(LATE)
            wrong.look(batch)
            del batch
    assert wrong.elements() == 0 and wrong.batches == 500


def test_images_travel_as_bytes() -> None:
    class Images(Numbered):
        def __getitem__(self, index: int) -> Any:
            return {"image": torch.full((3, 32, 32), index, dtype=torch.uint8), "label": index, "name": f"n{index}"}

    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)
    loader = shmloader.DataLoader(
        Images(200), batch_size=8, num_workers=2, device="cuda", on_device=normalize_on_device(mean, std)
    )
    for k, batch in enumerate(on_the_ring(loader)):
        image = batch["image"]
        assert image.dtype is torch.float16 and image.is_contiguous(memory_format=torch.channels_last)
        wanted = (8 * k / 255 - torch.tensor(mean)) / torch.tensor(std)
        torch.testing.assert_close(image[0, :, 0, 0].cpu().float(), wanted, rtol=2e-3, atol=2e-3)
        assert_same(batch["label"].cpu(), torch.arange(8 * k, 8 * k + 8))
        assert batch["name"] == [f"n{n}" for n in range(8 * k, 8 * k + 8)]


def test_epochs_and_early_ends() -> None:
    loader = pinned(100, 1 << 12, device="cuda", persistent_workers=True)
    for _ in range(3):
        wrong = Wrong()
        for batch in loader:
            wrong.look(batch)
        assert wrong.elements() == 0 and wrong.batches == 100
        next(iter(loader))
    loader.close()


# ------------------------------------------------------------------------------------------------------------ a fork

FORKS = """
import os, torch, shmloader
loader = shmloader.DataLoader(torch.arange(8.), batch_size=2, num_workers=1)
assert loader.rides_ring and len(list(loader)) == 4
child = os.fork()
if not child:
    assert torch.ones(2).to("cuda").cpu().tolist() == [1, 1]
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_a_child_may_use_the_gpu_if_no_batch_goes_there() -> None:
    """CUDA cannot be used in the child of a process that has asked it anything; so such a loader asks it nothing."""
    ran = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr


# -------------------------------------------------------------------------------------------------------------- graphs


STRICT = {"device": "cuda", "SHMLOADER_STRICT_PINNING": "1"}


@pytest.mark.parametrize("options", [{"pin_memory": True}, {"device": "cuda"}, STRICT], ids=str)
def test_a_capture_is_not_broken(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    """Loaders go on, in this thread and in another one, while graphs are captured in the mode that forgives least."""
    options = into_environment(monkeypatch, options)
    static = torch.ones(1 << 12, device="cuda", dtype=torch.int64)
    (static * 2 + 1).sum()
    torch.cuda.synchronize()
    over = threading.Event()
    wrong: list[int] = []

    def consume() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            while not over.is_set():
                for k, batch in enumerate(pinned(200, 1 << 12, **options)):
                    if (
                        int(batch[0]) != k
                    ):  # of a batch on the device this waits, which the mode forbids: not asked then
                        wrong.append(k)
                    if over.is_set():
                        break

    # to look at a batch on the device, as consume() does, another thread would have to wait: the mode forbids that
    consumer = threading.Thread(target=consume) if "pin_memory" in options else None
    if consumer is not None:
        consumer.start()
    iterator = iter(pinned(2000, 1 << 12, **options))
    try:
        for _ in range(20):
            next(iterator)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="global"):
                batch = next(iterator) if "pin_memory" in options else None
                out = (static * 2 + 1).sum()
            assert batch is None or batch.is_pinned()
            graph.replay()
            assert int(out) == 3 * static.numel()
    finally:
        over.set()
        if consumer is not None:
            consumer.join()
    assert not wrong


class Capture(threading.Thread):
    """Begins to capture a graph on a stream of its own.  end() ends the capture."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.over, self.result = threading.Event(), threading.Event(), 0.0
        self.static = torch.ones(8, device="cuda")

    def run(self) -> None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(torch.cuda.Stream()):
            graph.capture_begin(capture_error_mode="global")
            self.begun.set()
            self.over.wait()
            out = self.static * 2
            graph.capture_end()
            graph.replay()
        torch.cuda.synchronize()
        self.result = float(out.sum())

    def end(self) -> float:
        self.over.set()
        self.join()
        return self.result


def test_a_capture_begins_when_nobody_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strict pinning waits for the whole device, which breaks a capture that has begun since we looked."""
    capture, early = Capture(), []
    synchronize = accelerator.Cuda.synchronize

    def late(self: Any) -> None:
        if not early:
            capture.start()
            early.append(capture.begun.wait(0.3))
        synchronize(self)

    monkeypatch.setattr(accelerator.Cuda, "synchronize", late)
    monkeypatch.setenv("SHMLOADER_STRICT_PINNING", "1")
    for _ in pinned(10, 1 << 12, pin_memory=True):
        if early:
            capture.begun.wait()
    assert early == [False]
    assert capture.end() == 16.0


def test_nobody_waits_for_the_device_when_a_capture_has_just_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has begun on a stream that was not current yet when the batches' streams were looked up."""
    capture, looked = Capture(), pinning.no_capture_begins

    def late() -> Any:
        if not capture.is_alive():
            capture.start()
            capture.begun.wait()
        return looked()

    monkeypatch.setattr(pinning, "no_capture_begins", late)
    monkeypatch.setenv("SHMLOADER_STRICT_PINNING", "1")
    batches = iter(pinned(10, 1 << 12, pin_memory=True))
    for _ in batches:
        if capture.is_alive():
            break
    assert capture.end() == 16.0
    monkeypatch.undo()
    for _ in batches:
        pass


def test_streams_of_others_may_be_left_while_a_graph_is_captured() -> None:
    """An event is left behind on each; those that were left before are asked whether they have passed."""
    handle = ctypes.c_void_p()
    assert not int(torch.cuda.cudart().cudaStreamCreate(ctypes.addressof(handle)))
    stream = torch.cuda.ExternalStream(handle.value)
    static = torch.ones(8, device="cuda")
    left, over = threading.Event(), threading.Event()

    def change() -> None:
        while not over.is_set():
            with torch.cuda.stream(stream):
                pass
            left.set()

    graph = torch.cuda.CUDAGraph()
    changer = threading.Thread(target=change)
    with torch.cuda.graph(graph, capture_error_mode="global"):
        changer.start()
        for _ in range(3):
            left.clear()
            left.wait()
        out = static * 2
        over.set()
        changer.join()
    graph.replay()
    assert float(out.sum()) == 16
