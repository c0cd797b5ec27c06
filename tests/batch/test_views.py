"""Tensors that share memory share it when they arrive, and take their memory once; NOTE [ Views ] in layout.pxi."""

from __future__ import annotations

import collections
import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from conftest import BOTH, assert_same
from hostile import BothSides

import shmloader

Parameter = torch.nn.Parameter


@pytest.fixture
def ring() -> Iterator[BothSides]:
    with BothSides() as ring:
        yield ring


def grid() -> torch.Tensor:
    return torch.arange(20_000.0).view(100, 200)


def views_of(whole: Callable[[], torch.Tensor]) -> dict[str, Any]:
    return {
        "the whole and a row": [(x := whole()), x[3]],
        "a row and the whole": [x[3], x],
        "twice": [x[:], x[:]],
        "columns": [x, x[:, 5:], x[:, ::3], x.t()],
        "windows": [x[k : k + 64] for k in range(0, 32, 2)],
        "another dtype": [x.view(torch.int32), x, x.view(torch.uint8)[:, 3:]],
        "complex": [torch.view_as_complex(x.view(100, 100, 2)), x],
        "unfolded": x.view(-1).unfold(0, 512, 16),
        "expanded": {"mask": x.expand(8, 3, 100, 200), "one": torch.ones(1).expand(500)},
        "empty": [x, x[:0], x[5:5]],
    }


VIEWS = views_of(grid)


def shares(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def leaves(batch: Any) -> list[Any]:
    return list(batch.values()) if isinstance(batch, dict) else batch if isinstance(batch, list) else [batch]


def wrapped(batch: Any, kind: str) -> Any:
    if kind == "plain":
        return batch
    if kind == "in an object":
        return collections.OrderedDict(zip("abcdefghijklmnopqrs", leaves(batch), strict=False))
    return [part if part.dtype == torch.uint8 else Parameter(part, requires_grad=False) for part in leaves(batch)]


@pytest.mark.parametrize("kind", ["plain", "in an object", "Parameters"])
@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("spare", [0, 2])
def test_they_take_their_memory_once(ring: BothSides, name: str, kind: str, spare: int) -> None:
    ring.delivery._spare = spare
    batch = wrapped(views_of(grid)[name], kind)
    ring.fill(batch)
    assert ring.header_of("used") < 90_000, "one grid has 80,000 bytes"
    got = ring.take()
    assert_same(got, batch)
    parts = leaves(got)
    if kind == "plain":
        assert all(shares(parts[0], part) for part in parts[1:] if part.numel() and name != "expanded")
        assert [part.stride() for part in parts] == [part.stride() for part in leaves(batch)]
        assert (
            sum({part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in parts}.values())
            < 90_000
        )
    if len(parts) > 1 and name not in ("expanded", "another dtype", "complex", "empty"):
        for k, part in enumerate(parts):
            part.fill_(-1.0 - k)
            leaves(batch)[k].fill_(-1.0 - k)
        assert_same(got, batch)


class Views(torch.utils.data.Dataset):
    """Item k is a dict of tensors that share the memory of one."""

    def __init__(self, seven: bool = True) -> None:
        self.constant = torch.arange(3000.0)

    def __len__(self) -> int:
        return 24

    def __getitem__(self, k: int) -> Any:
        image = torch.full((60, 50), float(k))
        return {"image": image, "crop": image[10:50], "flat": image.view(-1), "constant": self.constant[:]}

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        return (self[k] for k in range(*((0, 24) if info is None else (info.id, 24, info.num_workers))))


class Streamed(Views, torch.utils.data.IterableDataset):
    """The same as a stream."""


def expanded(samples: list[Any]) -> Any:
    images = torch.utils.data.default_collate([sample["image"] for sample in samples])
    mask = (images > 3).unsqueeze(1).expand(-1, 16, -1, -1)
    return {"images": images, "first": images[0], "mask": mask, "windows": images.unfold(1, 20, 1)}


def as_listed(samples: list[Any]) -> Any:
    return samples


def written(loader: Any, count: int) -> list[Any]:
    """The batches, with something written into the first tensor of each: what others show of it."""
    got = []
    for batch in loader:
        first = batch[0] if isinstance(batch, list) else batch
        next(iter(first.values()))[..., :7].fill_(99.0)
        got.append(copy.deepcopy(batch))
    assert len(got) == count
    return got


@pytest.mark.parametrize("collate_fn", [expanded, as_listed])
@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 0},
        {"num_workers": 2},
        {"persistent_workers": True},
        {"multiprocessing_context": "forkserver"},
        {"spare_slots": 0},
        {"schedule": "steal"},
    ],
    ids=str,
)
def test_writes_do_what_they_do_with_torch(options: dict[str, Any], collate_fn: Any) -> None:
    mine = {"num_workers": 2, "collate_fn": collate_fn, **options}
    theirs = {name: mine[name] for name in mine if name not in ("spare_slots", "schedule")}
    wanted = written(BOTH[0](Views(), 4, **theirs), 6)
    loader = BOTH[1](Views(), 4, **mine)
    for _ in range(2):
        assert_same(written(loader, 6), wanted)


@pytest.mark.parametrize("kind", [Views, Streamed])
def test_samples_that_are_not_collated(kind: Any) -> None:
    wanted, got = (written(loader(kind(), None, num_workers=2), 24) for loader in BOTH)
    assert_same(got, wanted)


# ------------------------------------------------------------------------------------------------------ in chunks


class Tagged(torch.Tensor):
    """A tensor of a class of its own."""


@shmloader.row_wise
def rows_with_views(samples: list[Any]) -> Any:
    images = torch.utils.data.default_collate([sample["image"] for sample in samples])
    twice = images.clone() if 0 < samples[0]["image"][0, 0] < 8 else images
    tagged = images.as_subclass(Tagged)
    return {
        "images": images,
        "again": twice,
        "tagged": [tagged, tagged if twice is images else tagged.clone()],
        "crop": images[:, 5:],
        "mask": images[:, :1].expand(-1, 9, -1),
    }


def contiguous(batch: Any) -> Any:
    return {**batch, "mask": batch["mask"].contiguous(), "crop": batch["crop"].contiguous()}


def test_rows_of_chunks_are_written_out() -> None:
    """Also where one tensor is in two places in some chunks only."""
    wanted = list(BOTH[0](Views(), 8, collate_fn=rows_with_views))
    for options in ({"chunk_size": 4}, {"chunk_size": 3}, {"chunk_size": 4, "spare_slots": 0}):
        got = list(shmloader.DataLoader(Views(), 8, num_workers=2, collate_fn=rows_with_views, **options))
        assert_same(got, [contiguous(batch) for batch in wanted])
        assert not any(shares(batch["images"], batch["crop"]) for batch in got)
        assert not any(batch["images"] is batch["again"] for batch in got)


# ---------------------------------------------------------------------------------------------- what stays apart


def test_what_would_be_more_as_one_block_is_written_apart(ring: BothSides) -> None:
    big = torch.zeros(1 << 20)
    batch = [big[::1000], big[5:20], big[::900]]
    ring.fill(batch)
    assert ring.header_of("used") < 20_000
    assert_same(ring.take(), batch)
    batch.append(torch.ones(2).expand(50_000, 2))  # alone, it is a block
    batch.append(big[3:4].expand(50_000))
    ring.fill(batch)
    assert ring.header_of("used") < 20_000
    assert_same(ring.take(), batch)


@pytest.mark.parametrize("copies", [False, True])
def test_arrays_stay_independent(ring: BothSides, copies: bool) -> None:
    ring.delivery._spare = 0 if copies else 2
    whole = numpy.arange(5000.0)
    ring.claim()
    stacked = ring.writer.stack([torch.arange(5000.0)] * 4)
    batch = [whole, whole[:], numpy.broadcast_to(whole[:5], (3, 5)), torch.from_numpy(whole), stacked, stacked.numpy()]
    expected = copy.deepcopy(batch)
    ring.writer.write(batch)
    del stacked, batch
    ring.worker.publish(0)
    got = ring.take()
    assert_same(got, expected)
    for k, leaf in enumerate(got):
        leaf[...] = k
    assert [float(leaf.min()) for leaf in got] == [float(leaf.max()) for leaf in got] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_memory_at_odd_addresses(ring: BothSides) -> None:
    for shift in (1, 3, 4, 7):
        over = torch.frombuffer(bytearray(4096 + shift), dtype=torch.float32, offset=shift, count=1000)
        batch = [over, over[5:], over[3:4].expand(700)]
        for spare in (0, 2):
            ring.delivery._spare = spare
            ring.fill(batch)
            assert_same(ring.take(), batch)


def test_views_of_one_storage_that_do_not_overlap(ring: BothSides) -> None:
    ring.fill(list(grid()))
    got = ring.take()
    assert not shares(got[0], got[1])
    assert_same(got, list(grid()))


# --------------------------------------------------------------------------------- pickled ones, and small ones


@dataclasses.dataclass(slots=True)
class Slotted:
    a: Any
    b: Any


@pytest.mark.parametrize("spare", [0, 2])
def test_pickled_and_plain_ones(ring: BothSides, spare: int) -> None:
    ring.delivery._spare = spare
    x = grid()
    batch = [
        {"x": x, "slots": Slotted(x[5:], x.t()[:, ::2]), "p": Parameter(x.view(-1)[:500].expand(6, 500))},
        Slotted(x.view(10, 10, 200).permute(2, 0, 1), numpy.ones(3)),
    ]
    ring.fill(batch)
    assert ring.header_of("used") < 90_000
    got = ring.take()
    assert_same(got[0], {**batch[0], "slots": got[0]["slots"]})
    for mine, theirs in ((got[0]["slots"], batch[0]["slots"]), (got[1], batch[1])):
        assert_same([mine.a, mine.b], [theirs.a, theirs.b])
    assert got[1].a.stride() == (1, 2000, 200)
    got[0]["slots"].a.fill_(8)
    assert bool((got[0]["slots"].b[:, 5:] == 8).all()) and got[0]["slots"].b[0, 0] == 0
    if spare:
        assert got[0]["x"][5:].min() == 8


def test_small_ones_share_the_small_memory(ring: BothSides) -> None:
    small = torch.arange(50)
    batch = [torch.zeros(1 << 20), small, small[10:20], torch.tensor(7), torch.ones(1).expand(30)]
    ring.fill(batch)
    got = ring.take()
    assert_same(got, batch)
    kept = got[1:]
    del got
    assert ring.trainer.slots.lent == 0
    kept[1].fill_(5)
    assert kept[0][10:20].tolist() == [5] * 10 and kept[2] == 7 and kept[3].stride() == (0,)
