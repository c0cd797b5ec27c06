"""A label that is kept holds no slot; NOTE [ Small leaves ]."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from conftest import BOTH, assert_same
from hostile import BothSides

import shmloader

BATCHES = 24


class Tagged(torch.Tensor):
    """A tensor of a class of its own."""


@dataclasses.dataclass
class Record:
    image: Any
    label: Any


@shmloader.row_wise
def plain(samples: list[Any]) -> Any:
    return torch.utils.data.default_collate(samples)


@shmloader.row_wise
def as_arrays(samples: list[Any]) -> Any:
    return tuple(part.numpy() for part in plain(samples))


@shmloader.row_wise
def as_tagged(samples: list[Any]) -> Any:
    return [part.as_subclass(Tagged) for part in plain(samples)]


@shmloader.row_wise
def as_record(samples: list[Any]) -> Any:
    return Record(*plain(samples))


class Labelled(torch.utils.data.Dataset):
    """An image of 24 KB and a label a sample."""

    def __len__(self) -> int:
        return 8 * BATCHES

    def __getitem__(self, k: int) -> Any:
        return torch.full((6144,), float(k)), k

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return (self[k] for k in range(first, len(self), step))


class Streamed(Labelled, torch.utils.data.IterableDataset):
    """The same as a stream."""


def label_of(batch: Any) -> Any:
    return batch.label if isinstance(batch, Record) else batch[1]


@pytest.mark.parametrize("collate_fn", [plain, as_arrays, as_tagged, as_record])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"persistent_workers": True},
        {"multiprocessing_context": "forkserver"},
        {"chunk_size": 4},
        {"schedule": "steal"},
        {"in_order": False},
    ],
    ids=str,
)
def test_kept_labels_hold_no_slot(options: dict[str, Any], collate_fn: Any) -> None:
    loader = shmloader.DataLoader(Labelled(), 8, num_workers=2, collate_fn=collate_fn, **options)
    kept = []
    for _ in range(2):
        kept += [label_of(batch) for batch in loader]
    stats = loader.stats()
    assert (stats.copied_spare, stats.lent_slots) == (0, 0)
    wanted = [label_of(batch) for batch in BOTH[0](Labelled(), 8, collate_fn=collate_fn)] * 2
    if options.get("in_order", True):
        assert_same(kept, wanted)
    assert sorted(map(list, kept)) == sorted(map(list, wanted))


def test_kept_labels_of_a_stream_hold_no_slot() -> None:
    theirs, ours = (kind(Streamed(), 8, num_workers=2) for kind in BOTH)
    assert_same([label for _, label in ours], [label for _, label in theirs])
    assert ours.stats().copied_spare == 0


# -------------------------------------------------------------------------------------------------- which leaves


@pytest.fixture
def ring() -> Iterator[BothSides]:
    with BothSides() as ring:
        yield ring


def taken(ring: BothSides, batch: Any) -> Any:
    ring.fill(batch)
    got = ring.take()
    assert_same(got, batch)
    return got


def in_slot(ring: BothSides, leaf: Any) -> bool:
    return ring.slot[0] <= (leaf.data_ptr() if isinstance(leaf, torch.Tensor) else leaf.ctypes.data) < ring.slot[1]


def large(size: int = 1 << 22) -> torch.Tensor:
    return torch.arange(size, dtype=torch.uint8)


LEAVES: dict[str, tuple[list[Any], list[bool]]] = {
    "64 KB": ([large(), torch.zeros(1 << 16, dtype=torch.uint8)], [True, False]),
    "more": ([large(1 << 23), torch.zeros((1 << 16) + 1, dtype=torch.uint8)], [True, True]),
    "a 64th": ([large(63 << 10), torch.zeros(1 << 10, dtype=torch.uint8)], [True, False]),
    "more than that": ([large(62 << 10), torch.zeros(1 << 10, dtype=torch.uint8)], [True, True]),
    "kinds": ([large(), numpy.arange(7), torch.zeros(0), torch.tensor(3), numpy.float64(2)], [True] + [False] * 3),
    "only small": ([torch.arange(5), torch.zeros(3)], [True, True]),
    "empty": ([large(), torch.zeros(0), large(70_000), torch.zeros(2, 0)], [True, False, True, False]),
    "of one size": ([torch.zeros(100) for _ in range(500)], [True] * 500),
    "many and one label": (
        [large(), *(torch.zeros(1 << 12) for _ in range(100)), torch.zeros(5)],
        [True] * 101 + [False],
    ),
}


@pytest.mark.parametrize(("batch", "stay"), LEAVES.values(), ids=LEAVES)
def test_which_leaves_lie_in_the_slot(ring: BothSides, batch: list[Any], stay: list[bool]) -> None:
    got = taken(ring, batch)
    assert [in_slot(ring, leaf) for leaf, _ in zip(got, stay, strict=False)] == stay


def test_they_share_a_block_and_nothing_else(ring: BothSides) -> None:
    batch = [large(), torch.arange(5), torch.zeros(3, dtype=torch.bool), large() + 1, numpy.arange(6).reshape(2, 3)]
    _, numbers, flags, _, array = taken(ring, batch)
    for tensor in (numbers, flags):
        assert tensor.data_ptr() % 64 == 0 and tensor.storage_offset() == 0
        assert tensor.untyped_storage().nbytes() == tensor.nbytes
        tensor.fill_(1)
    array[:] = 7
    assert numbers.tolist() == [1] * 5 and flags.tolist() == [True] * 3 and array.tolist() == [[7] * 3] * 2
    file = io.BytesIO()
    torch.save(numbers, file)
    assert file.tell() < 3000


def test_other_orders_of_elements_are_kept(ring: BothSides) -> None:
    images = torch.arange(120.0).view(1, 3, 5, 8).contiguous(memory_format=torch.channels_last)
    _, got, array = taken(ring, [large(), images, numpy.asfortranarray(numpy.arange(6.0).reshape(2, 3))])
    assert got.stride() == images.stride() and array.flags.f_contiguous and not in_slot(ring, got)


def test_a_view_of_a_large_one_stays_with_it(ring: BothSides) -> None:
    ring.claim()
    whole = ring.writer.stack([torch.arange(1000.0)] * 8)
    ring.writer.write([whole[2], whole, torch.arange(3)])
    del whole
    ring.worker.publish(0)
    row, whole, small = ring.take()
    assert in_slot(ring, row) and in_slot(ring, whole) and not in_slot(ring, small)
    row.fill_(5)
    assert whole[2].tolist() == [5.0] * 1000 and whole[1].tolist() == list(range(1000))


def test_the_batch_counts_and_not_its_description(ring: BothSides) -> None:
    """The same leaves, beside pickled ones of other sizes."""
    for size in (10, 1 << 16, 10, 1 << 17):
        with_grad = torch.ones(size, requires_grad=True)
        got = taken(ring, [torch.arange(500), with_grad])
        assert in_slot(ring, got[0]) == (size == 10)
