"""Delivered batches are the user's for as long as any tensor, view or array over them lives; see NOTE [ Lease ]."""

from __future__ import annotations

import copy
import gc
import hashlib
import io
import pickle
import threading
from typing import Any

import numpy
import pytest
import torch
from conftest import BOTH, assert_same, bits
from scripts import run_script
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import collate, default_collate_fn_map

import shmloader


class Numbered(torch.utils.data.Dataset):
    """Item k is full of k, in a tensor and an array."""

    def __init__(self, length: int = 200, size: int = 300) -> None:
        self.length, self.size = length, size

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return {"x": torch.full((self.size,), float(index)), "n": numpy.full((7,), index), "label": index}


def ours(length: int = 200, **options: Any) -> shmloader.DataLoader[Any]:
    return shmloader.DataLoader(Numbered(length), **{"num_workers": 2, **options})


def right(batch: Any, first: int, size: int = 1) -> bool:
    wanted = torch.arange(first, first + size)
    return (
        bool((batch["x"] == wanted[:, None]).all())
        and bool((batch["n"] == wanted[:, None]).all())
        and torch.equal(batch["label"], wanted)
    )


@pytest.mark.parametrize("spare", [0, 2, 5])
def test_a_list_of_all_batches(spare: int) -> None:
    batches = list(ours(spare_slots=spare))
    assert_same(batches, list(BOTH[0](Numbered(200))))


@pytest.mark.parametrize("spare", [0, 1, 2, 5])
@pytest.mark.parametrize("keep", [1, 3, 7])
def test_windows_of_kept_batches(spare: int, keep: int) -> None:
    window: list[Any] = []
    for k, batch in enumerate(ours(80, spare_slots=spare)):
        window.append((k, batch))
        window = window[-keep:]
        assert all(right(held, first) for first, held in window)
        del batch


def keep_views(batch: Any) -> Any:
    return batch["x"][:, 5:9], batch["x"].t()[3], batch["label"].view(1, -1)


def keep_arrays(batch: Any) -> Any:
    return batch["x"].numpy()[0, 5:9], memoryview(batch["n"].numpy()), batch["label"].numpy()


def keep_storages(batch: Any) -> Any:
    return batch["x"].untyped_storage(), batch["n"].detach().view(torch.uint8), batch["label"].data


def keep_graph(batch: Any) -> Any:
    weight = torch.ones(300, requires_grad=True)
    return (batch["x"] * weight).sum(), weight


def keep_dlpack(batch: Any) -> Any:
    return numpy.from_dlpack(batch["x"]), torch.utils.dlpack.from_dlpack(batch["n"])


def value_of(held: Any) -> bytes:
    digest = hashlib.sha256()
    for part in held:
        if isinstance(part, torch.Tensor):
            digest.update(bits(part))
        elif isinstance(part, numpy.ndarray):
            digest.update(part.tobytes())
        else:
            digest.update(bytes(part))
    return digest.digest()


@pytest.mark.parametrize("keep", [keep_views, keep_arrays, keep_storages, keep_dlpack], ids=lambda keep: keep.__name__)
@pytest.mark.parametrize("closing", ["epoch end", "close", "dropped"])
def test_what_is_kept_of_a_batch_never_changes(keep: Any, closing: str) -> None:
    loader = ours(60, spare_slots=2)
    iterator = iter(loader)
    held, values = [], []
    for _ in range(3):
        batch = next(iterator)
        held.append(keep(batch))
        del batch
        values.append(value_of(held[-1]))
    for _ in range(30):
        next(iterator)
        assert [value_of(those) for those in held] == values
    if closing == "epoch end":
        list(iterator)
    elif closing == "close":
        loader.close()
    del iterator, loader
    gc.collect()
    assert [value_of(those) for those in held] == values
    list(ours(20))
    assert [value_of(those) for those in held] == values


def test_the_last_tensor_dies_where_the_interpreter_lock_is_not_held() -> None:
    """backward() drops what it saved while other threads may run."""
    loader = ours(40, spare_slots=2)
    iterator = iter(loader)
    for k in range(40):
        loss, weight = keep_graph(next(iterator))
        assert loader.stats().lent_slots == 1
        loss.backward()
        assert loader.stats().lent_slots == 0
        assert torch.equal(weight.grad, torch.full((300,), float(k)))


def test_a_batch_may_die_with_the_interpreter() -> None:
    """In a cycle, in a module of torch's, and in a thread that Python does not know."""
    ran = run_script(
        """
        import ctypes, torch
        import shmloader
        from tests.core.test_lending import Numbered

        python, libc = ctypes.pythonapi, ctypes.CDLL(None)
        python.PyCapsule_GetPointer.restype = ctypes.POINTER(ctypes.c_void_p)
        python.PyCapsule_GetPointer.argtypes = python.PyCapsule_SetName.argtypes = ctypes.py_object, ctypes.c_char_p

        class DropsInAThread:
            def __init__(self, tensor):
                capsule = tensor.__dlpack__()
                self.managed = python.PyCapsule_GetPointer(capsule, b"dltensor")
                self.deleter = ctypes.c_void_p(self.managed[7])
                python.PyCapsule_SetName(capsule, b"used_dltensor")  # otherwise it would drop it too
                self.id, self.at = ctypes.c_size_t(), ctypes.byref  # the names of modules are gone when this runs
                self.start, self.join = libc.pthread_create, libc.pthread_join

            def __del__(self):
                self.start(self.at(self.id), None, self.deleter, self.managed)
                self.join(self.id, None)
                print("over")

        loader = shmloader.DataLoader(Numbered(20), num_workers=2, spare_slots=1000)
        batches = list(loader)
        cycle = [batches.pop()["x"]]
        cycle.append(cycle)
        torch.held = batches.pop()["x"]
        drops = DropsInAThread(batches.pop()["x"])
        """
    )
    assert (ran.status, ran.out, ran.err) == (0, "over\n", "")


@pytest.mark.parametrize("spare", [0, 2])
def test_copies_and_files_hold_the_batch_alone(spare: int) -> None:
    loader = ours(20, batch_size=4, spare_slots=spare)
    for k, batch in enumerate(loader):
        for tensor in batch.values():
            assert tensor.untyped_storage().nbytes() == tensor.nbytes and tensor.storage_offset() == 0
        file = io.BytesIO()
        torch.save(batch, file)
        assert file.tell() < sum(tensor.nbytes for tensor in batch.values()) + 4000
        twin = copy.deepcopy(batch)
        assert twin["x"].untyped_storage().nbytes() == batch["x"].nbytes
        batch["x"].zero_()
        assert right(twin, 4 * k, 4)


def test_a_batch_goes_through_a_queue() -> None:
    queue = torch.multiprocessing.get_context("fork").SimpleQueue()
    for k, batch in enumerate(ours(10)):
        queue.put(batch)
        assert right(queue.get(), k)


def test_leases_die_in_other_threads() -> None:
    boxes: list[list[Any]] = [[], []]
    done = threading.Event()

    def drop(box: list[Any]) -> None:
        while not done.is_set() or box:
            if box:
                k, batch = box.pop()
                assert right(batch, k)
                del batch

    threads = [threading.Thread(target=drop, args=(box,)) for box in boxes]
    for thread in threads:
        thread.start()
    for k, batch in enumerate(ours(400, spare_slots=3)):
        boxes[k % 2].append((k, batch))
        del batch
    done.set()
    for thread in threads:
        thread.join()


def test_batches_are_lent_and_slots_are_used_again() -> None:
    """Without a copy: the same addresses come round."""
    loader = ours(100, spare_slots=2, prefetch_factor=2)
    addresses = set()
    for batch in loader:
        addresses.add(batch["x"].data_ptr())
        assert 1 <= loader.stats().lent_slots <= 2
    assert len(addresses) <= 6


# ------------------------------------------------------------------------- workers that hold on to what they collated


class Memo:
    """A collate function that remembers batches, and gives them again."""

    def __init__(self, every: int = 1, how: Any = default_collate) -> None:
        self.seen: dict[int, Any] = {}
        self.every, self.how = every, how

    def __call__(self, items: list[Any]) -> Any:
        key = items[0]["label"] % 10
        if key % self.every:
            return self.how(items)
        if key not in self.seen:
            self.seen[key] = self.how(items)
        return self.seen[key]


class Last:
    """Gives the batch before this one, and keeps this one."""

    def __init__(self) -> None:
        self.last: Any = None

    def __call__(self, items: list[Any]) -> Any:
        now = default_collate(items)
        before, self.last = self.last, now
        return {"before": before, "now": now}


def by_a_map_of_its_own(items: list[Any]) -> Any:
    """A map made in the worker, before anything was kept."""
    global _own_map
    if _own_map is None:
        _own_map = dict(default_collate_fn_map)
    return collate(items, collate_fn_map=_own_map)


_own_map: Any = None


class KeepsAll:
    """Keeps every batch it has made, and checks them all the while."""

    def __init__(self, how: Any = default_collate) -> None:
        self.batches: list[Any] = []
        self.how = how

    def __call__(self, items: list[Any]) -> Any:
        assert all(bits(batch["x"]) == value for batch, value in self.batches)
        batch = self.how(items)
        self.batches.append((batch, bits(batch["x"])))
        return batch


class KeepsAndFails(KeepsAll):
    """What it returns first cannot be sent, and yet it keeps the tensors."""

    def __call__(self, items: list[Any]) -> Any:
        first = not self.batches
        batch = super().__call__(items)
        return {**batch, "bad": lambda: 1} if first else batch


class Unloadable:
    def __reduce__(self) -> Any:
        return _fail, ()


def _fail() -> None:
    raise ValueError("not here")


class KeepsAndCannotBeRead(KeepsAll):
    def __call__(self, items: list[Any]) -> Any:
        first = not self.batches
        batch = super().__call__(items)
        return {**batch, "bad": Unloadable()} if first else batch


@pytest.mark.parametrize(
    "make",
    [
        Memo,
        lambda: Memo(3),
        Last,
        KeepsAll,
        lambda: KeepsAll(by_a_map_of_its_own),
        lambda: Memo(how=by_a_map_of_its_own),
    ],
    ids=["memo", "memo of some", "last", "all", "all, own map", "memo, own map"],
)
@pytest.mark.parametrize("persistent", [pytest.param(False, marks=pytest.mark.long), True])
def test_collate_functions_that_keep_batches(make: Any, persistent: bool) -> None:
    def run(kind: type) -> Any:
        loader = kind(Numbered(60), num_workers=2, collate_fn=make(), persistent_workers=persistent)
        return [list(loader), list(loader)]

    theirs, got = (run(kind) for kind in BOTH)
    assert_same(got, theirs)


@pytest.mark.parametrize("collate_fn", [KeepsAndFails, KeepsAndCannotBeRead])
def test_a_kept_batch_that_cannot_be_sent_stays_whole_in_the_worker(collate_fn: Any) -> None:
    iterator = iter(ours(60, num_workers=1, collate_fn=collate_fn()))
    # of a local function: AttributeError up to Python 3.13, then PicklingError
    with pytest.raises((AttributeError, pickle.PicklingError, TypeError, ValueError, RuntimeError)):
        next(iterator)
    for k in range(1, 60):
        assert right(next(iterator), k)


class MemoDataset(Numbered):
    """Collates within an item, and remembers it."""

    def __init__(self) -> None:
        super().__init__(60)
        self.seen: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        if index % 5 not in self.seen:
            self.seen[index % 5] = default_collate([super().__getitem__(index)])
        return self.seen[index % 5]


def test_a_dataset_that_keeps_what_it_collated() -> None:
    for options in ({}, {"batch_size": None}, {"batch_size": 3}):
        theirs, got = (list(kind(MemoDataset(), num_workers=2, **options)) for kind in BOTH)
        assert_same(got, theirs)


class Background(Numbered):
    """Another thread of the worker collates all the while."""

    def __getitem__(self, index: int) -> Any:
        if not hasattr(self, "thread"):
            self.wrong = 0
            self.thread = threading.Thread(target=self.work, daemon=True)
            self.thread.start()
        return {**super().__getitem__(index), "wrong": self.wrong}

    def work(self) -> None:
        k = 0
        held: list[Any] = []
        while True:
            k += 1
            held.append((k, default_collate([torch.full((50,), k)] * 4)))
            held = held[-3:]
            self.wrong += sum(not bool((tensor == n).all()) for n, tensor in held)


def test_a_thread_of_the_worker_collates_as_well() -> None:
    for k, batch in enumerate(shmloader.DataLoader(Background(300), num_workers=1)):
        wrong = batch.pop("wrong")
        assert right(batch, k) and wrong.item() == 0
