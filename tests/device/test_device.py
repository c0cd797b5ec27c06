"""`device=`: batches are copied ahead by a thread, in order, and whatever is raised arrives at its place.

The device is a double, whose tensors are on the CPU and are filled when the double's streams come to it.
"""

from __future__ import annotations

import collections
import dataclasses
import gc
import pickle
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from conftest import Augmented, assert_same, seed_all
from gpu_double import DoubleGpu, installed

import shmloader
from shmloader.batch.replace_tensors import replaced, tensors_of
from shmloader.device import to_device
from shmloader.device.prefetch import Prefetcher
from shmloader.transforms import normalize_on_device


class Numbered(torch.utils.data.Dataset):
    """Item k is full of k; some raise."""

    def __init__(
        self, length: int = 100, size: int = 500, errors: dict[int, type[BaseException]] | None = None
    ) -> None:
        self.length, self.size, self.errors = length, size, errors or {}

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if index in self.errors:
            raise self.errors[index](f"item {index}")
        return torch.full((500,), index)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    yield from installed(monkeypatch)


def on_device_loader(dataset: Any = None, **options: Any) -> shmloader.DataLoader[Any]:
    options = {"num_workers": 2, "batch_size": None, "device": "cuda", **options}
    return shmloader.DataLoader(dataset or Numbered(), **options)


def right(double: DoubleGpu, batches: list[Any]) -> bool:
    double.synchronize()
    return all(torch.equal(batch, torch.full((500,), k)) for k, batch in enumerate(batches))


# --------------------------------------------------------------------------------------------------------- delivery


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("lag", [0, 5, 60])
def test_all_batches_arrive_in_order(gpu: Any, workers: int, lag: int) -> None:
    double = gpu(lag=lag)
    batches = list(on_device_loader(Numbered(200), num_workers=workers))
    assert len(batches) == 200 and right(double, batches)
    assert "shmloader_ahead" in double.threads


class Shared(torch.utils.data.Dataset):
    """Item k is tensors that share memory, which is full of k, and one that does not."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, k: int) -> Any:
        whole = torch.full((40, 50), float(k))
        return [whole[2:7], whole, whole[:1].expand(64, 40, 50), torch.ones(3), [whole.t()[3]]]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_views_are_copied_as_one_block(gpu: Any, num_workers: int) -> None:
    double = gpu(lag=3)
    got = []
    for batch in on_device_loader(Shared(), num_workers=num_workers):
        double.synchronize()
        got.append(batch)
    assert_same(got, [Shared()[k] for k in range(12)])
    for part, whole, mask, other, (column,) in got:
        start = whole.untyped_storage().data_ptr()
        assert all(view.untyped_storage().data_ptr() == start for view in (part, mask, column))
        assert mask.stride() == (0, 0, 1) and whole.untyped_storage().nbytes() <= 8064 and other.storage_offset() == 0
        column.fill_(77)
        assert whole[:, 3].tolist() == [77.0] * 40 and mask[5, 1, 3] == 77


def test_the_consumers_stream_waits_and_not_the_consumer(gpu: Any) -> None:
    double = gpu(lag=10**6)
    iterator = iter(on_device_loader(Numbered(20)))
    with double.stream(7):
        batches = [next(iterator) for _ in range(6)]  # the ninth is timed, so its copy is waited for
        assert not right_now(batches[0]), "nothing was done yet"
        assert double.arrived[0] is batches[-1], "its memory is kept for the stream that uses it"
        used = [double.copy(batch) for batch in batches]
    double.lags[7] = 0  # this stream alone would go on
    double.synchronize()
    assert right(double, used)
    iterator.close()


def right_now(batch: torch.Tensor) -> bool:
    return bool((batch == batch[0]).all()) and int(batch[0]) >= 0


def test_the_thread_is_as_far_ahead_as_it_may_be(monkeypatch: pytest.MonkeyPatch, gpu: Any) -> None:
    gpu()
    sent: list[int] = []

    def count(batch: torch.Tensor) -> torch.Tensor:
        sent.append(1)
        return batch

    for depth in (1, 4):
        sent.clear()
        monkeypatch.setattr(to_device, "AHEAD", depth)
        iterator = iter(on_device_loader(Numbered(30), on_device=count))
        for k in range(6):
            wait_for(lambda: len(sent) >= depth + k)  # noqa: B023
            time.sleep(0.05)
            assert len(sent) == depth + k
            next(iterator)
        iterator.close()


def test_same_batches_as_torch(gpu: Any) -> None:
    double = gpu(lag=3)
    seed_all()
    theirs = list(torch.utils.data.DataLoader(Augmented(), batch_size=4, shuffle=True, num_workers=2))
    seed_all()
    ours = list(shmloader.DataLoader(Augmented(), batch_size=4, shuffle=True, num_workers=2, device="cuda"))
    double.synchronize()
    assert_same(ours, theirs)


@pytest.mark.parametrize("start", [{"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}, {}])
def test_epoch_after_epoch(gpu: Any, start: dict[str, Any]) -> None:
    double = gpu(lag=2)
    loader = on_device_loader(Numbered(30), **{"num_workers": 0, **start})
    for _ in range(3):
        assert right(double, list(loader))
    for _ in range(2):
        iterator = iter(loader)  # and some that are left half-way
        assert right(double, [next(iterator) for _ in range(7)])
    assert right(double, list(loader))
    loader.close()
    assert right(double, list(loader))


@pytest.mark.parametrize(
    "options",
    [{"on_worker_death": "respawn"}, {"in_order": False}, {"timeout": 20}, {"schedule": "steal"}],
    ids=str,
)
def test_with_other_options(gpu: Any, options: dict[str, Any]) -> None:
    double = gpu()
    iterator = iter(on_device_loader(Numbered(40), **options))
    batches = [next(iterator)]
    if "on_worker_death" in options:
        iterator._workers[0].kill()
    batches += list(iterator)
    double.synchronize()
    assert sorted(int(batch[0]) for batch in batches) == list(range(40))


def test_batches_in_chunks(gpu: Any) -> None:
    double = gpu(lag=5)
    loader = on_device_loader(Numbered(400), batch_size=8, chunk_size=2, schedule="steal")
    batches = list(loader)
    double.synchronize()
    assert all(torch.equal(batch[:, 0], torch.arange(8 * k, 8 * k + 8)) for k, batch in enumerate(batches))
    assert len(batches) == 50 and double.clones < 50


def test_jobs(gpu: Any) -> None:
    double = gpu(lag=5)
    with shmloader.AsyncDataLoader(lambda size: [torch.ones(3)] * size, 4, "cuda", chunk_size=2) as loader:
        batches = [next(loader) for _ in range(30)]
    double.synchronize()
    assert all(torch.equal(batch, torch.ones(4, 3)) for batch in batches)


@pytest.mark.filterwarnings("ignore:the ring could not be page-locked")
def test_where_slots_cannot_be_locked(gpu: Any) -> None:
    double = gpu(lag=9, refuses=lambda size: "no")
    assert right(double, list(on_device_loader()))
    assert double.clones == 100


# -------------------------------------------------------------------------------------------------------- structure

Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass(frozen=True)
class Sample:
    image: torch.Tensor
    name: str


class Movable:
    def __init__(self, data: torch.Tensor) -> None:
        self.data, self.moved = data, ""

    def to(self, device: Any) -> Movable:
        other = Movable(self.data + 1)
        other.moved = str(device)
        return other


class Tagged(dict):  # type: ignore[type-arg]
    tag = ""


def nested() -> Any:
    tagged = Tagged(x=torch.ones(2))
    tagged.tag = "kept"
    return [
        {"a": torch.ones(2), "b": ("text", b"bytes", 3, None)},
        Point(torch.zeros(1), [torch.ones(1), 2.5]),
        (torch.ones(1), range(3)),
        Sample(torch.ones(3), "name"),
        tagged,
        numpy.ones(2),
        torch.Size([1, 2]),
        torch.float32,
    ]


def test_the_structure_is_kept() -> None:
    batch = nested()
    tensors: list[torch.Tensor] = []

    def double(tensor: torch.Tensor) -> torch.Tensor:
        tensors.append(tensor)
        return tensor * 2

    moved = replaced(batch, double, lambda value: value)
    assert len(tensors) == 6
    wanted = nested()
    for tensor in tensors_of(wanted):
        tensor.mul_(2)
    assert_same(moved[:2] + moved[3:], wanted[:2] + wanted[3:])
    assert_same(moved[2], (torch.ones(1) * 2, [0, 1, 2]))  # as torch's pin_memory() has it
    assert moved[4].tag == "kept" and batch[4]["x"].sum() == 2, "the batch itself is as it was"


@pytest.mark.parametrize("workers", [0, 1])
def test_objects_with_a_to_of_their_own_are_asked(gpu: Any, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    double = gpu()
    monkeypatch.setattr(double, "to", lambda value: value.to("double"))
    loader = on_device_loader(Numbered(4), collate_fn=lambda item: [Movable(item), "text"], num_workers=workers)
    for k, (movable, text) in enumerate(loader):
        assert movable.moved == "double" and text == "text" and int(movable.data[0]) == k + 1


# -------------------------------------------------------------------------------------------------------- exceptions


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [ValueError, KeyError])
def test_what_the_dataset_raises_is_raised_at_its_place(gpu: Any, workers: int, kind: type[Exception]) -> None:
    double = gpu(lag=2)
    iterator = iter(on_device_loader(Numbered(20, errors={0: kind, 7: kind, 8: kind, 19: kind}), num_workers=workers))
    got: list[Any] = []
    for k in range(20):
        if k in (0, 7, 8, 19):
            with pytest.raises(kind, match=f"item {k}"):
                next(iterator)
            got.append(torch.full((500,), k))
        else:
            got.append(next(iterator))
    assert right(double, got)
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(iterator)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_is_no_error_is_raised_too(gpu: Any, kind: type[BaseException]) -> None:
    gpu()
    iterator = iter(on_device_loader(Numbered(20, errors={3: kind}), num_workers=0))
    for _ in range(3):
        next(iterator)
    with pytest.raises(kind, match="item 3"):
        next(iterator)
    iterator.close()


def test_a_stop_iteration_of_the_dataset_ends_the_epoch(gpu: Any) -> None:
    gpu()
    assert len(list(on_device_loader(Numbered(20, errors={5: StopIteration}), num_workers=0))) == 5


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_what_on_device_raises_is_raised_at_its_place(gpu: Any, device: str) -> None:
    double = gpu()
    seen: list[int] = []

    def on_device(batch: Any) -> Any:
        double.synchronize()
        seen.append(1)
        if len(seen) == 4:
            raise ValueError("the fourth")
        return batch * 2

    iterator = iter(on_device_loader(Numbered(10), on_device=on_device, device=device))
    for k in range(3):
        assert int(next(iterator)[0]) == 2 * k
    with pytest.raises(ValueError, match="the fourth"):
        next(iterator)
    assert [int(batch[0]) for batch in iterator] == [8, 10, 12, 14, 16, 18]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_stop_iteration_of_on_device_is_an_error_and_no_end(gpu: Any, device: str) -> None:
    gpu()
    numbers = iter([1, 2])
    iterator = iter(on_device_loader(Numbered(4), on_device=lambda batch: next(numbers), device=device))
    assert [next(iterator), next(iterator)] == [1, 2]
    for _ in range(2):
        with pytest.raises(RuntimeError, match="on_device raised StopIteration"):
            next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


# ------------------------------------------------------------------------------------------------------------- the end


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("end", ["close", "drop", "with"])
def test_nothing_is_left_of_what_is_left_half_way(gpu: Any, workers: int, end: str) -> None:
    double = gpu(lag=4)
    loader = on_device_loader(num_workers=workers)
    iterator = iter(loader)
    batches = [next(iterator) for _ in range(5)]
    thread = iterator._pin_memory_thread
    assert thread is not None and thread.is_alive()
    if end == "close":
        iterator.close()
        iterator.close()
        with pytest.raises(StopIteration):
            next(iterator)
    elif end == "with":
        with iterator:
            pass
    else:
        del iterator
        gc.collect()
    assert not thread.is_alive() and right(double, batches)


def test_the_collector_may_end_it_in_its_own_thread(monkeypatch: pytest.MonkeyPatch, gpu: Any) -> None:
    monkeypatch.setattr(to_device, "AHEAD", 8)
    gpu()
    held: list[Any] = []
    is_held, dropped = threading.Event(), threading.Event()

    def on_device(batch: Any) -> Any:
        if int(batch[0]) == 5 and is_held.wait(100):  # batches are made as soon as there is an iterator
            workers.extend(held[0]._workers)
            iterator = weakref.ref(held.pop())
            while iterator() is not None:
                gc.collect()  # does nothing while another thread collects
            dropped.set()
        return batch

    workers: list[Any] = []
    held.append(iter(on_device_loader(on_device=on_device)))
    held[0].cycle = held[0]  # it goes when the collector comes, and that is in the thread
    is_held.set()
    assert dropped.wait(100)
    wait_for(lambda: workers and not any(worker.is_alive() for worker in workers))
    wait_for(lambda: not any(thread.name.startswith("shmloader") for thread in threading.enumerate()))


def wait_for(what: Any) -> None:
    end = time.monotonic() + 100
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_closing_while_a_batch_is_waited_for(gpu: Any) -> None:
    gpu()
    started, ended = threading.Event(), []

    class OneSecond(Numbered):
        def __getitem__(self, index: int) -> Any:
            time.sleep(min(index, 1))
            return index

    iterator = iter(on_device_loader(OneSecond(30), num_workers=1))

    def consume() -> None:
        got = [next(iterator)]
        started.set()
        got.extend(iterator)
        ended.append(got)

    consumer = threading.Thread(target=consume)
    consumer.start()
    started.wait()
    time.sleep(0.3)
    iterator.close()
    consumer.join(100)
    assert not consumer.is_alive() and ended == [[0]]


def test_the_iterator_is_what_frameworks_know(gpu: Any) -> None:
    gpu()
    loader = on_device_loader(num_workers=2, persistent_workers=True)
    iterator = iter(loader)
    assert isinstance(iterator, Prefetcher) and isinstance(
        iterator, torch.utils.data.dataloader._MultiProcessingDataLoaderIter
    )
    assert loader._iterator is iterator and len(iterator._workers) == 2 and iterator._pin_memory_thread.is_alive()
    assert len(iterator) == 100
    next(iterator)
    assert iterator._num_yielded == 1
    with pytest.raises(NotImplementedError):
        pickle.dumps(iterator)
    iterator._shutdown_workers()
    assert not any(worker.is_alive() for worker in iterator._workers)
    loader._iterator = None
    assert isinstance(iter(on_device_loader(num_workers=0)), torch.utils.data.dataloader._SingleProcessDataLoaderIter)


# ------------------------------------------------------------------------------------------------------------- the cpu


def test_on_the_cpu_it_is_plain_delivery() -> None:
    loader = on_device_loader(device="cpu")
    iterator = iter(loader)
    assert not isinstance(iterator, Prefetcher)
    assert [int(batch[0]) for batch in iterator] == list(range(100))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_on_the_cpu_the_function_runs(workers: int, persistent: bool) -> None:
    options = {"persistent_workers": True} if persistent and workers else {}
    loader = on_device_loader(
        device=torch.device("cpu"), num_workers=workers, on_device=lambda batch: batch + 1, **options
    )
    for _ in range(2):
        iterator = iter(loader)
        assert [int(batch[0]) for batch in iterator] == list(range(1, 101))
        assert isinstance(iterator, Prefetcher) and iterator._run is None
    loader.close()


# ----------------------------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("options", "text"),
    [
        pytest.param(
            {"device": "cuda"},
            r"device='cuda' is no device of this torch .*finds no accelerator. Use 'cpu'",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
        ({"device": "nonsense"}, "device should be a torch.device or its name, but got device='nonsense'"),
        ({"device": 1.5}, "device should be a torch.device or its name, but got device=1.5"),
        ({"device": "cpu", "on_device": 3}, "on_device should be callable with a batch, or None, but got on_device=3"),
        ({"on_device": print}, "on_device was given without device"),
    ],
    ids=str,
)
def test_bad_arguments(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        shmloader.DataLoader(Numbered(), **options)


def test_a_device_that_is_not_there(gpu: Any) -> None:
    gpu()
    shmloader.DataLoader(Numbered(), device="cuda:0")
    with pytest.raises(ValueError, match=r"device='cuda:1' does not exist. This process sees 1,"):
        shmloader.DataLoader(Numbered(), device="cuda:1")
    with pytest.raises(ValueError, match=r"device='xpu' is no device of this torch .*whose accelerator is 'cuda'"):
        shmloader.DataLoader(Numbered(), device="xpu")


def test_the_cpu_needs_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking for an accelerator starts CUDA's driver, and no process that is forked after that can use CUDA."""
    asked = []
    for name in ("is_available", "current_accelerator", "device_count", "current_device_index"):
        monkeypatch.setattr(torch.accelerator, name, lambda *_, name=name: asked.append(name))
    with on_device_loader(device="cpu", on_device=lambda batch: batch + 1) as loader:
        assert [int(batch[0]) for batch in loader] == list(range(1, 101))
    assert not asked


# ---------------------------------------------------------------------------------------------------------- transforms


def test_normalize_on_device() -> None:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    images = torch.randint(0, 256, (4, 3, 5, 7), dtype=torch.uint8)
    labels = torch.arange(4)
    other = torch.ones(4, 2, 5, 7, dtype=torch.uint8)
    normalize = pickle.loads(pickle.dumps(normalize_on_device(mean, std, torch.float32)))
    got, kept, two = normalize([images, labels, other])
    wanted = (images / 255 - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(std).view(-1, 1, 1)
    torch.testing.assert_close(got, wanted)
    assert got.is_contiguous(memory_format=torch.channels_last) and kept is labels and two is other
    half = normalize_on_device(mean, std, memory_format=torch.contiguous_format)({"x": images})["x"]
    assert half.dtype is torch.float16 and half.is_contiguous()
    torch.testing.assert_close(half, wanted.half(), rtol=2e-3, atol=2e-3)
    for bad in (((0.5,), (0.5, 0.5)), ((0.5,), (0.0,))):
        with pytest.raises(ValueError, match="one value for each channel"):
            normalize_on_device(*bad)
