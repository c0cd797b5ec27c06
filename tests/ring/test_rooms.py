"""Slots that outgrow their addresses are mapped again, once; what is used counts, and not what could be.

NOTE [ Rooms ] in cython_ext/ring/ring.pxd.
"""

from __future__ import annotations

import os
import pathlib
from typing import Any

import numpy
import pytest
import torch
from conftest import BOTH, assert_same, compare, into_environment, iterate
from hostile import BothSides
from scripts import run_script

import shmloader
from shmloader.ring import segment

MiB = 1 << 20


@pytest.fixture(autouse=True)
def _small_rooms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "MOST_RESERVED", 6 * MiB)


def ranges() -> set[tuple[str, ...]]:
    """The address ranges at which this process maps a ring: each with its file's offset."""
    lines = pathlib.Path("/proc/self/maps").read_text().splitlines()
    return {tuple(line.split()[0:3:2]) for line in lines if "/memfd:shmloader " in line or "/dev/shm/" in line}


def whole(size: int, value: int = 1) -> torch.Tensor:
    return torch.full((size,), value, dtype=torch.uint8)


MEMORIES = pytest.mark.parametrize("memory", ["posix", "memfd", "auto"])


@MEMORIES
def test_a_slot_outgrows_its_room(memory: Any) -> None:
    with BothSides(memory=memory) as ring:
        stride = ring.segment.geometry.slot_stride
        assert stride < 2 * MiB
        batch = [whole(1000), whole(3 * MiB, 2), whole(10, 3), whole(5 * MiB, 4)]
        for _ in range(6):
            ring.fill(batch)
            assert_same(ring.take(), batch)
            assert ring.trainer.overflowed(ring.payload) == (memory == "auto")
            assert ring.trainer.turns.moved_slots == 0, "for lack of room"
        small = [whole(1000, 5), whole(2 * MiB, 6)]
        ring.fill(small)
        assert_same(ring.take(), small)


def test_no_batch_pays_for_it() -> None:
    with BothSides() as ring:
        for size in (1000, 4 * MiB):
            for _ in range(6):  # all slots
                ring.fill(whole(size))
                ring.take()
        before = ranges()
        for k in range(60):
            ring.fill(whole(4 * MiB - 1000 * k))
            ring.take()
            assert ranges() == before


@MEMORIES
def test_leaves_lie_where_they_were_before_the_slot_grew(memory: Any) -> None:
    """The second leaf gives the slot another room.  The first one is not copied, and is a part of the batch."""
    with BothSides(memory=memory) as ring:
        ring.claim()
        first = ring.writer.stack([whole(500_000, 1), whole(500_000, 2)])
        second = ring.writer.stack([whole(4 * MiB, 3), whole(4 * MiB, 4)])
        first[0, 7] = 9
        ring.writer.write([first, second])
        assert ring.worker.used < 1_000_000 + 8 * MiB + 10_000, "something was copied"
        assert ring.worker.has_views()
        del second
        assert ring.worker.has_views(), "of the first leaf, in the former room"
        ring.worker.publish(0)
        got = ring.take()
        assert got[0][0, 7] == 9 and got[0][1, 7] == 2 and bool((got[1][1] == 4).all())
        del first


def test_memory_goes_with_the_ring_and_lent_batches_stay() -> None:
    before = ranges()
    ring = BothSides(memory="memfd")
    fd = os.dup(ring.segment.fd)
    held = []
    for k in range(4):
        ring.fill(whole(4 * MiB, k))
        held.append(ring.take())
    del held[2:]
    ring.trainer.close()
    ring.segment.close()
    assert [int(batch[-1]) for batch in held] == [0, 1]
    assert 8 * MiB <= os.fstat(fd).st_blocks * 512 < 9 * MiB, "two batches are held"
    held.clear()
    assert os.fstat(fd).st_blocks == 0
    os.close(fd)
    del ring
    assert ranges() == before


def test_slots_that_stay_have_larger_rooms() -> None:
    one = segment.Segment(1, 2, 2, 2, "memfd", None, False, stays=True)
    try:
        geometry = one.geometry
        assert geometry.tail_stride == 0 and geometry.size == geometry.mapped
        assert geometry.slot_stride > 0.9 * min(segment.physical_memory(), segment.LARGE_SLOT)
    finally:
        one.close()


# ------------------------------------------------------------------------------------------------------------ loaders


class Outliers(torch.utils.data.Dataset):
    """Small samples, and a few that are large."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, k: int) -> Any:
        size = 3 * MiB if k in (3, 9, 10, 20) else 100
        return whole(size, k), numpy.full(size // 3, k, numpy.uint8), {"k": k, "s": "s" * k}


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self) -> Any:
        data = Outliers()
        for k in range(torch.utils.data.get_worker_info().id, 24, 2):
            yield data[k]


class Same(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, k: int) -> Any:
        return whole(MiB, k), numpy.full(MiB // 2, k, numpy.uint8), k


WAYS: list[dict[str, Any]] = [
    {},
    {"persistent_workers": True},
    {"in_order": False},
    {"SHMLOADER_RING_MEMORY": "posix"},
    {"SHMLOADER_RING_MEMORY": "memfd"},
    {"spare_slots": 0},
    {"schedule": "steal"},
    {"on_worker_death": "respawn"},
]


def epochs(data: Any, **options: Any) -> list[Any]:
    with shmloader.DataLoader(data, **options) as loader:
        assert loader.rides_ring
        return [iterate(loader) for _ in range(2)]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_outliers(monkeypatch: pytest.MonkeyPatch, way: dict[str, Any]) -> None:
    way = into_environment(monkeypatch, way)
    for data, size in ((Outliers(), None), (Same(), 4)):
        theirs = list(torch.utils.data.DataLoader(data, batch_size=size))
        for ours in epochs(data, batch_size=size, num_workers=2, **way):
            ours.sort(key=lambda batch: int(batch[0].flatten()[0]))
            assert_same(ours, theirs)


@pytest.mark.parametrize("way", [{}, {"schedule": "steal"}, {"persistent_workers": True}], ids=str)
def test_chunks_of_batches_that_are_too_large(way: dict[str, Any]) -> None:
    theirs = list(torch.utils.data.DataLoader(Same(), batch_size=6))
    for ours in epochs(Same(), batch_size=6, num_workers=2, chunk_size=2, **way):
        assert_same(ours, theirs)


class Rows(torch.utils.data.Dataset):
    """Writes samples in their places.  The second column does not fit into the slot's first room."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, k: int) -> Any:
        return whole(100_000, k), numpy.full(MiB, k + 100, numpy.uint8), k

    def __getitem_into__(self, k: int, row: Any) -> Any:
        row[0].fill_(k)
        row[1][:] = k + 100
        return row[0], row[1], k


@pytest.mark.parametrize("chunk", [None, 2])
def test_rows_in_their_places(chunk: int | None) -> None:
    theirs = list(torch.utils.data.DataLoader(Rows(), batch_size=4))
    for ours in epochs(Rows(), batch_size=4, num_workers=2, chunk_size=chunk):
        assert_same(ours, theirs)


# ------------------------------------------------------------------------------------------------- limited addresses

LIMITED = """
import os, re, resource, torch, shmloader
class Data(torch.utils.data.Dataset):
    def __len__(self): return 20
    def __getitem__(self, k): return large.fill_(k) if k % 5 else large[:1000].fill_(k).clone()
large = torch.zeros(SIZE, dtype=torch.uint8)  # before the limit, so that only the ring takes addresses
used = int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
limit = used + ROOM
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
got = []
with shmloader.DataLoader(Data(), batch_size=None, num_workers=2, prefetch_factor=FACTOR) as loader:
    iterator = iter(loader)
    while True:
        try:
            batch = next(iterator)
            assert batch[0] == batch[batch.numel() // 2] == batch[-1]
            got.append(batch[0].item())
            del batch
        except StopIteration: break
        except MemoryError as error: got.append(str(error))
for each in got: print(each if type(each) is int else each.splitlines()[-1])
"""


def limited(size: int, room: int, factor: int = 2) -> list[str]:
    text = LIMITED.replace("SIZE", str(size)).replace("ROOM", str(room)).replace("FACTOR", str(factor))
    ran = run_script(text, fresh=True)
    assert ran.status == 0, ran.err
    return ran.out.splitlines()


@pytest.mark.long
def test_all_addresses_may_be_used() -> None:
    """Six slots of 100 MB in 1.2 GB of addresses: a share for each of 8 slots would be too small for one batch."""
    assert limited(100_000_000, 1_200_000_000) == [str(k) for k in range(20)]


@pytest.mark.long
def test_too_few_addresses_are_an_error_in_the_batchs_place() -> None:
    got = limited(200_000_000, 900_000_000)
    assert [each for each in got if each.isdecimal() and not int(each) % 5] == ["0", "5", "10", "15"]
    errors = [each for each in got if not each.isdecimal()]
    assert errors and len(got) == 20
    for error in errors:
        assert "a batch takes 190.7 MiB, and process " in error and "of addresses (ulimit -v). Raise the limit" in error


# ---------------------------------------------------------------------------------------- as many slots as batches


def under_way(data: Any, **options: Any) -> int:
    with shmloader.DataLoader(data, num_workers=2, **options) as loader:
        iterator = iter(loader)
        next(iterator)
        return int(iterator._ring.batches)


def test_no_more_slots_than_the_epoch_has_batches() -> None:
    """And one, in which the loader asks for an index behind the last one, as torch's does."""
    for options in ({}, {"shuffle": True}, {"batch_size": None}, {"schedule": "steal"}, {"in_order": False}):
        most = under_way(list(range(5)), prefetch_factor=100_000, **options)
        assert 5 <= most <= 4 * (5 + 1), options
    assert under_way(list(range(100)), prefetch_factor=3) == 6
    assert under_way(list(range(1)), prefetch_factor=100_000) == 2, "one for each worker"
    assert under_way(list(range(10)), batch_size=5, prefetch_factor=100_000) == 3
    assert under_way(list(range(10)), chunk_size=1, batch_size=2, prefetch_factor=100_000) <= 20


class Sampler:
    """A sampler of the user's, whose `len()` may be wrong, raise, or count its calls."""

    def __init__(self, indices: list[int], length: Any) -> None:
        self.indices, self.length, self.calls = indices, length, 0

    def __iter__(self) -> Any:
        return iter(self.indices)

    def __len__(self) -> int:
        self.calls += 1
        return int(self.length())


def fails() -> int:
    raise NotImplementedError


@pytest.mark.parametrize("length", [lambda: 1, lambda: 3, lambda: 10**6, lambda: -1, fails])
@pytest.mark.parametrize("factor", [2, 1000])
def test_a_length_is_only_a_bound(length: Any, factor: int) -> None:
    def whole_epochs(kind: type) -> Any:
        sampler = Sampler(list(range(30)), length)
        loader = kind(list(range(30)), sampler=sampler, num_workers=2, prefetch_factor=factor, persistent_workers=True)
        return [iterate(loader) for _ in range(2)]

    compare(whole_epochs)


def test_a_length_of_the_users_is_not_asked_for_without_need() -> None:
    for kind in BOTH:
        sampler = Sampler([3, 1, 2], lambda: 3)
        assert [int(x) for x in kind(list(range(4)), sampler=sampler, num_workers=2)] == [3, 1, 2]
        assert sampler.calls == 0, kind


def test_later_epochs_of_persistent_workers_may_be_longer() -> None:
    sampler = Sampler([0], lambda: len(sampler.indices))
    for factor in (2, 1000):
        with shmloader.DataLoader(
            list(range(50)), sampler=sampler, num_workers=2, persistent_workers=True, prefetch_factor=factor
        ) as loader:
            for length in (1, 50, 3):
                sampler.indices = list(range(length))
                assert [int(x) for x in loader] == sampler.indices


def test_streams_with_a_length() -> None:
    class Sized(Stream):
        def __len__(self) -> int:
            return 4

    loader = shmloader.DataLoader(Sized(), batch_size=None, num_workers=2, prefetch_factor=1000)
    assert len(iterate(loader)) == 24
