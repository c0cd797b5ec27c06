"""Several workers make one batch, each its rows (chunk_size, group_by); what comes is what one would have made."""

from __future__ import annotations

import collections
import pathlib
from typing import Any

import numpy
import pytest
import torch
from conftest import Augmented, Deadly, Items, Raised, assert_same, into_environment, iterate, label, seed_all
from torch.utils.data import default_collate, get_worker_info

import shmloader

Pair = collections.namedtuple("Pair", "image label")


def of_five(index: int) -> int:
    """A place to group by."""
    return index % 5


EITHER = pytest.mark.parametrize("cut", [{"chunk_size": 2}, {"group_by": of_five}], ids=label)


def item(k: int) -> Any:
    return {
        "image": torch.full((3, 4, 5), k, dtype=torch.uint8),
        "half": torch.full((2,), k, dtype=torch.bfloat16),
        "scalar": torch.tensor(k),
        "array": numpy.arange(3.0) + k,
        "pair": Pair(numpy.float32(k), [k, (k * 0.5, f"name {k}")]),
        "flag": k % 2 == 0,
        "empty": torch.zeros(0, 2),
        "nothing": [],
        "text": f"text {k}" * (k % 3),
        "bytes": bytes([k]),
        "across": torch.arange(6).reshape(2, 3).T + k,
        "negative": torch.ones(2, dtype=torch.complex64).conj() * k,
    }


def both(dataset: Any, theirs: dict[str, Any], **ours: Any) -> None:
    seed_all()
    expected = iterate(torch.utils.data.DataLoader(dataset, num_workers=2, **theirs))
    seed_all()
    with shmloader.DataLoader(dataset, **{"num_workers": 3, **theirs, **ours}) as loader:
        assert_same(iterate(loader), expected)


@pytest.mark.parametrize("schedule", ["round_robin", "steal"])
@pytest.mark.parametrize("chunk_size", [1, 3, 5, 100])
def test_batches_are_those_of_one_worker(chunk_size: int, schedule: str) -> None:
    both(Items([item(k) for k in range(23)]), {"batch_size": 10}, chunk_size=chunk_size, schedule=schedule)


@EITHER
@pytest.mark.parametrize(
    "options",
    [
        {"spare_slots": 0},
        {"prefetch_factor": 1, "num_workers": 1},
        {"prefetch_factor": 9, "num_workers": 4},
        {"SHMLOADER_RING_MEMORY": "posix"},
        {"max_ring_bytes": 10_000_000},
        {"persistent_workers": True, "on_bad_sample": "skip"},
        {"num_workers": 0},
    ],
    ids=label,
)
def test_with_other_options(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], cut: dict[str, Any]) -> None:
    options = into_environment(monkeypatch, options)
    whole = {"batch_size": 7, "shuffle": True, "drop_last": True}
    both(Items([item(k) for k in range(60)]), whole, **cut, **options)


def test_batches_of_every_size() -> None:
    """More chunks than the ring has entries: they are made larger."""
    sizes, start, batches = [1, 300, 2, 7, 150, 64, 3], 0, []
    for size in sizes:
        batches.append(list(range(start, start + size)))
        start += size
    both(Items(list(range(start))), {"batch_sampler": batches}, chunk_size=1)


@shmloader.row_wise
def counted(samples: list[Any]) -> Any:
    return torch.tensor(samples, dtype=torch.int64), [str(sample) for sample in samples]


@pytest.mark.parametrize("collate_fn", [None, counted])
@pytest.mark.parametrize(
    "cut", [{"chunk_size": 2}, {"chunk_size": 2, "schedule": "steal"}, {"group_by": of_five}], ids=label
)
def test_batches_without_samples(collate_fn: Any, cut: dict[str, Any]) -> None:
    """They are what the collate function makes of nothing: torch's raises."""
    batches: list[list[int]] = [[], [0, 1, 2], [], [], [3], [4, 5], []]

    def epoch(kind: Any, **options: Any) -> list[Any]:
        loader = kind(range(6), batch_sampler=batches, collate_fn=collate_fn, num_workers=2, **options)
        return [one.kind if isinstance(one, Raised) else one for one in iterate(loader)]

    expected = epoch(torch.utils.data.DataLoader)
    assert len(expected) == 7 and (collate_fn is None) == (expected[0] is IndexError)
    assert_same(epoch(shmloader.DataLoader, prefetch_factor=1, **cut), expected)


@EITHER
def test_epochs_of_persistent_workers_and_one_left_half_way(cut: dict[str, Any]) -> None:
    with shmloader.DataLoader(
        Items(list(range(50))), 5, num_workers=4, persistent_workers=True, prefetch_factor=1, **cut
    ) as loader:
        for _ in range(2):
            iterator = iter(loader)
            assert next(iterator).tolist() == [0, 1, 2, 3, 4]
        assert [batch.tolist() for batch in loader] == [list(range(k, k + 5)) for k in range(0, 50, 5)]


class Who(Augmented):
    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        assert info is not None
        return info.id


def test_each_chunk_has_its_worker() -> None:
    with shmloader.DataLoader(Who(24), 8, num_workers=3, chunk_size=2) as loader:
        assert [batch.tolist() for batch in loader] == [
            [0, 0, 1, 1, 2, 2, 0, 0],
            [1, 1, 2, 2, 0, 0, 1, 1],
            [2, 2, 0, 0, 1, 1, 2, 2],
        ]


@EITHER
def test_growing_rows_and_batches_that_are_kept(cut: dict[str, Any]) -> None:
    rows = [torch.full((2 + 3000 * (k // 8),), k, dtype=torch.int32) for k in range(64)]
    with shmloader.DataLoader(Items(rows), 8, num_workers=3, spare_slots=1, **cut) as loader:
        batches = list(loader)
    for k, batch in enumerate(batches):
        assert_same(batch, torch.stack(rows[8 * k : 8 * k + 8]))


# ------------------------------------------------------------------------------------------------- collate functions


@shmloader.row_wise
def remembering(samples: list[Any], made: list[Any] = []) -> Any:  # noqa: B006
    """Keeps what it gave, and sees whether somebody changed it."""
    for batch, copy in made:
        assert torch.equal(batch["image"], copy)
    made.append((default_collate(samples), torch.stack([sample["image"] for sample in samples]).clone()))
    return made[-1][0]


@pytest.mark.parametrize("spare_slots", [0, 2])
@pytest.mark.parametrize("deaths", [[], [37, 57]])
def test_one_that_keeps_what_it_gave(tmp_path: pathlib.Path, spare_slots: int, deaths: list[int]) -> None:
    dataset = Deadly([item(k) for k in range(160)], tmp_path, deaths)
    with shmloader.DataLoader(
        dataset,
        8,
        num_workers=3,
        chunk_size=2,
        collate_fn=remembering,
        spare_slots=spare_slots,
        on_worker_death="respawn",
    ) as loader:
        got = list(loader)
    assert_same(got, list(torch.utils.data.DataLoader(Items(dataset.inner), 8)))
    assert not list(tmp_path.iterdir())


def whole(samples: list[Any]) -> Any:
    return default_collate(samples)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"collate_fn": whole}, "marked with shmloader.row_wise, but got collate_fn=<function whole"),
        ({"batch_size": None}, "chunk_size cuts batches, but got batch_size=None"),
        ({"chunk_size": 0}, "should be a positive integer of samples, or None, but got chunk_size=0"),
        ({"chunk_size": True}, "but got chunk_size=True"),
        ({"chunk_size": 2.0}, "but got chunk_size=2.0"),
        ({"in_order": False}, "chunk_size delivers batches in order, but got in_order=False"),
    ],
)
def test_what_cannot_be_cut(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        shmloader.DataLoader([1, 2], num_workers=2, **{"chunk_size": 2, **options})


# ------------------------------------------------------------------------------------------------------------ errors


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


@pytest.mark.parametrize(
    ("odd", "says"),
    [
        ([1], "[3, 4] at entry 0 and [3, 5] at entry 1"),
        ([2], "[3, 5] at entry 2 and [3, 4] at entry 3"),  # met by the worker that has this chunk
        ([4, 5], "[3, 4] at entry 0 and [3, 5] at entry 4"),  # met by the trainer
    ],
)
def test_a_sample_of_another_shape_is_torchs_error(odd: list[int], says: str) -> None:
    samples = [ones(3, 5) if k in odd else ones(3, 4) for k in range(16)]
    with shmloader.DataLoader(Items(samples), 8, num_workers=2, chunk_size=2) as loader:
        got = iterate(loader)
    says = f"stack expects each tensor to be equal size, but got {says}"
    assert isinstance(got[0], Raised) and got[0].kind is RuntimeError and says in got[0].text
    assert_same(got[1], torch.ones(8, 3, 4))
    if odd != [2]:
        theirs = iterate(torch.utils.data.DataLoader(Items(samples), 8, num_workers=1))
        assert isinstance(theirs[0], Raised) and says in theirs[0].text


class Fails(Augmented):
    def __getitem__(self, index: int) -> Any:
        if index in (5, 6, 11):
            raise KeyError(f"sample {index}")
        return index


@pytest.mark.parametrize("cut", [{"chunk_size": 1}, {"group_by": of_five}], ids=label)
def test_an_exception_comes_once_in_the_batchs_place(cut: dict[str, Any]) -> None:
    with shmloader.DataLoader(Fails(24), 4, num_workers=3, **cut) as loader:
        got = iterate(loader)
    assert [one.kind if isinstance(one, Raised) else one.tolist() for one in got] == [
        [0, 1, 2, 3],
        KeyError,
        KeyError,
        [12, 13, 14, 15],
        [16, 17, 18, 19],
        [20, 21, 22, 23],
    ]
    assert "sample 11" in got[2].text and ("sample 5" in got[1].text or "group_by" in cut)


def test_too_little_memory_is_an_error_in_its_place() -> None:
    rows = [ones(10)] * 8 + [ones(100_000)] * 8 + [ones(20)] * 8
    with shmloader.DataLoader(
        Items(rows), 8, num_workers=2, chunk_size=4, prefetch_factor=2, max_ring_bytes=2_000_000
    ) as loader:
        got = iterate(loader)
    assert [type(one) for one in got] == [torch.Tensor, Raised, torch.Tensor]
    assert got[1].kind is MemoryError and "max_ring_bytes allows 1.9 MiB" in got[1].text
