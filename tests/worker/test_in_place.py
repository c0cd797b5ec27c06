"""__getitem_into__: a dataset writes its samples where their rows of the batch lie; the batches stay the same."""

from __future__ import annotations

import collections
import mmap
import os
import pathlib
import random
import signal
from typing import Any, ClassVar

import numpy
import pytest
import torch
from conftest import BOTH, Raised, assert_same, iterate, seed_all
from torch.utils.data import Subset, default_collate, random_split

import shmloader
from shmloader import images
from shmloader.worker.in_place import into_of
from tests.images.made_photo import picture

Pair = collections.namedtuple("Pair", "x y")
OPTIONS: list[dict[str, Any]] = [
    {},
    {"num_workers": 1, "spare_slots": 0},
    {"chunk_size": 2},
    {"schedule": "steal", "num_workers": 3},
    {"schedule": "steal", "chunk_size": 3},
    {"on_worker_death": "respawn"},
]


class Counted(torch.utils.data.Dataset[Any]):
    """Counts, in memory that all processes share, the samples by __getitem__ and those by __getitem_into__."""

    def __init__(self, length: int = 23) -> None:
        self.length = length
        self.counts = mmap.mmap(-1, 128)  # a byte an index, for two processes may not count in one

    def __len__(self) -> int:
        return self.length

    def count(self, at: int) -> None:
        self.counts[at] += 1

    @property
    def counted(self) -> tuple[int, int]:
        return sum(self.counts[:64]), sum(self.counts[64:])

    def forget(self) -> None:
        self.counts[:] = bytes(128)

    def __getitem__(self, index: int) -> Any:
        self.count(index)
        return self.sample(index)

    def __getitem_into__(self, index: int, row: Any) -> Any:
        self.count(64 + index)
        return self.put(self.sample(index), row)

    def sample(self, index: int) -> Any:
        return torch.full((3, 4), index), index

    def put(self, sample: Any, place: Any) -> Any:
        """Writes what has a place that it fits into, and gives the rest as it is."""
        if isinstance(place, (torch.Tensor, numpy.ndarray)):
            if type(sample) is not type(place) or (sample.shape, sample.dtype) != (place.shape, place.dtype):
                return sample
            place[...] = sample
            return place
        if type(sample) is not type(place) or isinstance(sample, (str, numpy.generic)):
            return sample
        if isinstance(place, dict):
            return {key: self.put(each, place.get(key)) for key, each in sample.items()}
        if isinstance(place, (list, tuple)) and len(sample) == len(place):
            parts = list(map(self.put, sample, place))
            return type(place)(*parts) if hasattr(place, "_fields") else type(place)(parts)
        return sample


class Rich(Counted):
    """Everything that has a place, and much that has none, drawn from all three generators."""

    def sample(self, index: int) -> Any:
        return {
            "label": index,
            "image": torch.rand(3, 5, 4) + index,
            "pair": Pair(numpy.random.rand(2, 2), [torch.tensor(index), f"name {index}"]),
            "half": torch.full((7,), index, dtype=torch.bfloat16),
            "words": numpy.full(3, index, dtype=numpy.uint16),
            "scalar": numpy.array(index * 0.5),
            "number": numpy.float32(random.random()),
            "nothing": [],
        }


def compared(data: Counted, batch_size: int = 6, **options: Any) -> tuple[int, int]:
    """Load by torch and by ours, compare, and say what ours has counted."""
    theirs = {"num_workers": 1 if {"schedule", "chunk_size"} & set(options) else options.get("num_workers", 2)}
    seed_all()
    expected = iterate(torch.utils.data.DataLoader(data, batch_size, **theirs))
    data.forget()
    seed_all()
    with shmloader.DataLoader(data, batch_size, **{"num_workers": 2, **options}) as loader:
        assert_same(iterate(loader), expected)
    return data.counted


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_batches_are_torchs(options: dict[str, Any]) -> None:
    by_item, into = compared(Counted(), **options)
    chunks = {2: 12, 3: 8}.get(options.get("chunk_size", 0))
    assert by_item + into == 23 and (by_item <= 3 if chunks is None else by_item == chunks)  # the first of each


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"on_worker_death": "respawn"}], ids=str)
def test_any_structure(options: dict[str, Any]) -> None:
    assert compared(Rich(), **options)[1] >= 21


@pytest.mark.parametrize("options", [{"chunk_size": 2, "schedule": "steal"}, {"schedule": "steal"}], ids=str)
def test_samples_are_seeded_one_by_one(options: dict[str, Any]) -> None:
    """Where work is stolen each sample has draws of its own, whether it is the first of a worker or not."""
    batches = []
    for workers in (1, 3):
        seed_all()
        data = Rich()
        with shmloader.DataLoader(data, 6, num_workers=workers, **options) as loader:
            batches.append(iterate(loader))
        assert data.counted[1]
    assert_same(*batches)


@pytest.mark.long
@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_other_ways_to_start(start: str) -> None:
    data = WithRowSpec()
    got = iterate(shmloader.DataLoader(data, 4, num_workers=1, multiprocessing_context=start))
    assert_same(got, [default_collate([data[k] for k in range(n, min(n + 4, 10))]) for n in range(0, 10, 4)])


class WithRowSpec(torch.utils.data.Dataset[Any]):
    """Has a row_spec, and its __getitem__ raises in workers."""

    row_spec: ClassVar[Any] = {"x": torch.empty(2, 3, device="meta"), "y": numpy.empty(2, numpy.int16), "z": None}

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        if torch.utils.data.get_worker_info() is not None:
            raise AssertionError("row_spec gives the shapes, so __getitem__ should not be called")
        return {"x": torch.full((2, 3), index / 2), "y": numpy.full(2, index, numpy.int16), "z": f"{index}"}

    def __getitem_into__(self, index: int, row: Any) -> Any:
        row["x"].fill_(index / 2)
        row["y"][:] = index
        return {**row, "z": f"{index}"}


class Wrong(Counted):
    row_spec = torch.empty(5, device="meta"), None


def test_a_row_spec_that_is_wrong() -> None:
    data = Wrong()
    data.put = lambda sample, place: sample  # type: ignore[method-assign]
    by_item, into = compared(data, num_workers=1)
    assert by_item == 0 and into == 23


class Large(Counted):
    """Batches of 1 MiB."""

    def sample(self, index: int) -> Any:
        return torch.full((1 << 18,), index, dtype=torch.uint8)


@pytest.mark.parametrize("options", [{}, {"chunk_size": 2}], ids=str)
def test_they_are_written_there_and_nowhere_else(options: dict[str, Any]) -> None:
    """The slots have no room for a second copy."""
    bound = (2 + 2) * (5 << 18) if not options else (2 + 2 + 2) * (5 << 18)
    assert compared(Large(), 4, num_workers=1, max_ring_bytes=bound, **options)[1] >= 11


class Changing(Counted):
    """Shapes and structures change from batch to batch of 4, as a sampler that puts like by like has it."""

    def sample(self, index: int) -> Any:
        batch = index // 4
        x = torch.full((batch % 3 + 1, 2), float(index))
        return [{"x": x, "y": torch.tensor(index)}, (x, index), {"x": x.double(), "z": "z"}][batch // 2 % 3]


@pytest.mark.parametrize("options", [{}, {"chunk_size": 2}, {"chunk_size": 3, "schedule": "steal"}], ids=str)
def test_shapes_change_from_batch_to_batch(options: dict[str, Any]) -> None:
    data = Changing(40)
    compared(data, 4, **options)


class Ragged(Counted):
    """In each batch of 4, the third sample is another one: of another shape, dtype, structure, or not its row."""

    def sample(self, index: int) -> Any:
        like = torch.full((2, 3), float(index))
        if index % 4 != 2:
            return {"x": like, "y": index}
        others: list[Any] = [
            {"x": like.double(), "y": index},
            {"y": index, "x": like},
            {"x": like, "y": torch.tensor(index)},
            {"x": like.T.contiguous().T, "y": index},
            {"x": like[:1], "y": index},
            {"x": like, "y": index, "z": 1},
            collections.OrderedDict(x=like, y=index),
            {"x": like.clone().requires_grad_(), "y": index},
            {"x": [like], "y": index},
        ]
        return others[index // 4 % len(others)]


def test_a_sample_that_does_not_fit() -> None:
    """Its batch is what it would be without places, or is torch's error."""
    data = Ragged(60)
    theirs, ours = (iterate(kind(data, 4, num_workers=1)) for kind in BOTH)
    assert_same(
        *([batch.kind if isinstance(batch, Raised) else batch for batch in got] for got in (ours, theirs)),
    )
    assert any(isinstance(batch, Raised) for batch in ours)


class Turning(Counted):
    """Every other batch of 4 has its two tensors the other way round, and writes them into the row that it gets."""

    def sample(self, index: int) -> Any:
        one, other = torch.full((30,), index), torch.full((50,), -index)
        return [other, one] if index // 4 % 2 else (one, other)

    def put(self, sample: Any, place: Any) -> Any:
        places = {tuple(each.shape): each for each in place}
        for part in sample:
            places[tuple(part.shape)].copy_(part)
        return type(sample)(places[tuple(part.shape)] for part in sample)


@pytest.mark.parametrize("options", [{"num_workers": 1}, {"num_workers": 2, "chunk_size": 2}], ids=str)
def test_what_is_in_its_row_is_safe_when_the_row_is_used_again(options: dict[str, Any]) -> None:
    """The first sample of a batch returns its row in another structure, and the rows are laid again for that."""
    assert compared(Turning(24), 4, **options)[1] > 11


class Failing(Counted):
    def put(self, sample: Any, place: Any) -> Any:
        place[0].copy_(sample[0])
        if sample[1] % 7 == 5:
            raise KeyError(f"sample {sample[1]}")
        return place[0], sample[1]


@pytest.mark.parametrize("options", [{}, {"chunk_size": 2}, {"schedule": "steal"}], ids=str)
def test_an_exception_comes_in_its_place(options: dict[str, Any]) -> None:
    with shmloader.DataLoader(Failing(), 4, num_workers=2, **options) as loader:
        got = iterate(loader)
    for k, batch in enumerate(got):
        rows = range(4 * k, min(4 * k + 4, 23))
        failing = [row for row in rows if row % 7 == 5]
        if isinstance(batch, Raised):
            assert batch.kind is KeyError and f"sample {failing[0]}" in batch.text
        else:
            assert batch[0][:, 0, 0].tolist() == list(rows) == batch[1].tolist()
    assert sum(isinstance(batch, Raised) for batch in got) >= 2


class Dying(Counted):
    """Dies once, in the middle of a sample that is not the first of its chunk."""

    def __init__(self, once: pathlib.Path) -> None:
        super().__init__()
        self.once = once

    def sample(self, index: int) -> Any:
        return torch.rand(100) + index, index

    def put(self, sample: Any, place: Any) -> Any:
        if sample[1] == 9 and not self.once.exists():
            place[0][:50] = -1
            self.once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        place[0].copy_(sample[0])
        return place[0], sample[1]


@pytest.mark.parametrize("options", [{}, {"chunk_size": 2, "schedule": "steal"}], ids=str)
def test_a_batch_of_a_worker_that_died_is_made_again(options: dict[str, Any], tmp_path: pathlib.Path) -> None:
    batches = []
    for name in ("now", "before"):
        once = tmp_path / f"{name}{len(options)}"
        if name == "before":
            once.touch()
        seed_all()
        with shmloader.DataLoader(Dying(once), 4, num_workers=2, on_worker_death="respawn", **options) as loader:
            batches.append(iterate(loader))
        assert once.exists()
    assert_same(*batches)


class Keeps(Counted):
    """Keeps its rows, and looks into them later."""

    def put(self, sample: Any, place: Any) -> Any:
        place[0].copy_(sample[0])
        self.kept = [*getattr(self, "kept", []), (place[0], sample[1])]
        assert all(int(row[0, 0]) == index for row, index in self.kept)
        return place[0], sample[1]


@pytest.mark.parametrize("options", [{"num_workers": 1}, {"num_workers": 1, "chunk_size": 3}], ids=str)
def test_rows_that_a_dataset_keeps_are_not_written_again(options: dict[str, Any]) -> None:
    compared(Keeps(), **options)


def test_several_epochs_in_the_same_workers() -> None:
    data = Counted()
    seed_all()
    with shmloader.DataLoader(data, 5, num_workers=2, persistent_workers=True, shuffle=True) as loader:
        ours = [iterate(loader) for _ in range(3)]
    assert data.counted == (6, 63)
    seed_all()
    loader = torch.utils.data.DataLoader(data, 5, num_workers=2, persistent_workers=True, shuffle=True)
    assert_same(ours, [iterate(loader) for _ in range(3)])


# ------------------------------------------------------------------------------------------------------ who is asked


class Overriding(Counted):
    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return image * 2, label


class Both(Overriding):
    def __getitem_into__(self, index: int, row: Any) -> Any:
        return self.put(self[index], row)


class Batched(Counted):
    def __getitems__(self, indices: list[int]) -> Any:
        return [self.sample(index) for index in indices]


def test_the_nearest_class_determines_how_samples_are_fetched() -> None:
    assert compared(Overriding())[1] == 0
    assert compared(Both())[1] == 0 and into_of(Both())[0] is not None
    assert compared(Batched())[1] == 0


def test_subsets() -> None:
    seed_all()
    data = Counted(40)
    part: Any = Subset(random_split(data, [30, 10])[0], list(range(0, 30, 2)))
    expected = iterate(torch.utils.data.DataLoader(part, 4, num_workers=2))
    data.forget()
    assert_same(iterate(shmloader.DataLoader(part, 4, num_workers=2)), expected)
    assert data.counted == (2, 13)

    class Mine(Subset[Any]):
        """May do anything to the samples."""

    assert into_of(Mine(data, [1])) == (None, None)


def own_collate(samples: Any) -> Any:
    return default_collate(samples)


def test_a_collate_function_of_the_users_gets_samples_as_ever() -> None:
    assert compared(Counted(), collate_fn=None)[1]
    data = Counted()
    assert len(iterate(shmloader.DataLoader(data, 4, num_workers=1, collate_fn=own_collate))) == 6
    assert data.counted == (23, 0)
    data.forget()
    assert len(iterate(shmloader.DataLoader(data, batch_size=None, num_workers=1))) == 23
    assert data.counted == (23, 0)


# ------------------------------------------------------------------------------------------------------------- images


class Noting(images.ImageFolder):
    """Counts the images that it wrote into their rows."""

    written = mmap.mmap(-1, 64)  # a byte an index

    def __getitem_into__(self, index: int, row: Any) -> Any:
        image, label = super().__getitem_into__(index, row)
        self.written[index] += image is row[0]
        return image, label


def folder_of(root: pathlib.Path, sizes: list[tuple[int, int]]) -> pathlib.Path:
    for k, (width, height) in enumerate(sizes):
        file = root / "ab"[k % 2] / f"{k}.jpg"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(picture(k, width, height))
    return root


@pytest.mark.parametrize("options", OPTIONS[:4], ids=str)
@pytest.mark.parametrize("mean", [None, (0.5, 0.4, 0.3)])
def test_folders_of_pictures(tmp_path: pathlib.Path, mean: Any, options: dict[str, Any]) -> None:
    std = None if mean is None else (0.2, 0.3, 0.4)
    draws_by_worker = "schedule" not in options and "chunk_size" not in options
    recipe = images.training(32, mean=mean, std=std) if draws_by_worker else images.evaluation(32, mean=mean, std=std)
    data = Noting(folder_of(tmp_path, [(40 + k, 30 + k) for k in range(20)]), recipe)
    seed_all()
    expected = iterate(torch.utils.data.DataLoader(data, 6, num_workers=options.get("num_workers", 2)))
    data.written[:] = bytes(64)
    seed_all()
    with shmloader.DataLoader(data, 6, **{"num_workers": 2, **options}) as loader:
        assert_same(iterate(loader), expected)
    assert sum(data.written[:]) >= (10 if "chunk_size" in options else 17)


def test_pictures_of_another_size_than_their_row(tmp_path: pathlib.Path) -> None:
    """Two of each size: whole pictures make batches of two, and not of three."""
    data = images.ImageFolder(folder_of(tmp_path, [(20 + k // 4, 30) for k in range(16)]))
    for batch_size in (2, 3):
        theirs, ours = (iterate(kind(data, batch_size, num_workers=1)) for kind in BOTH)
        assert_same(*([batch.kind if isinstance(batch, Raised) else batch for batch in got] for got in (ours, theirs)))
