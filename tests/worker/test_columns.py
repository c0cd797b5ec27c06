"""What lies beside a picture: numbers, arrays and text of every kind, collated as torch's default_collate does it.

Batches are drawn at random, hundreds of them for each loader: their columns, and the containers around these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from conftest import BOTH, Items, Raised, assert_same, assert_same_outcome, iterate, label
from drawn_columns import ODD, PLAIN, Colour, Draw, Pair, drawn, mixed
from scripts import run_script
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import collate, default_collate_fn_map

import shmloader
from shmloader.private import of_torch


def wrapped(samples: list[Any]) -> Any:
    """A collate function of the user's."""
    return {"batch": default_collate(samples), "count": len(samples)}


@shmloader.row_wise
def wrapped_rows(samples: list[Any]) -> Any:
    return {"batch": default_collate(samples), "texts": [str(type(sample)) for sample in samples]}


@pytest.mark.parametrize("collate_fn", [None, wrapped])
@pytest.mark.parametrize(
    "columns",
    [
        pytest.param(PLAIN, id="plain", marks=pytest.mark.long),
        pytest.param([*PLAIN, *ODD, mixed], id="both"),
        pytest.param([mixed, *ODD], id="odd", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))])
def test_every_batch_is_torchs(columns: list[Draw], collate_fn: Any, seed: int) -> None:
    """Values, dtypes, types and errors, with their tracebacks, of hundreds of batches."""
    samples, batches = drawn(seed, 250, columns)
    epochs = assert_same_outcome(lambda: Items(samples), batch_sampler=batches, num_workers=2, collate_fn=collate_fn)
    assert any(isinstance(batch, Raised) for batch in epochs[0]) == (columns is not PLAIN)


@pytest.mark.parametrize(
    "options",
    [
        {"spare_slots": 0},
        {"spare_slots": 0, "schedule": "steal"},
        {"chunk_size": 2},
        {"chunk_size": 5, "schedule": "steal", "spare_slots": 0},
        {"chunk_size": 3, "collate_fn": wrapped_rows},
    ],
    ids=label,
)
def test_every_way_through_the_ring(options: dict[str, Any]) -> None:
    samples, batches = drawn(11, 250, PLAIN)
    theirs = {"batch_sampler": batches, "num_workers": 2, "collate_fn": options.get("collate_fn")}
    expected = iterate(torch.utils.data.DataLoader(Items(samples), **theirs))
    with shmloader.DataLoader(Items(samples), **{**theirs, **options}) as loader:
        assert_same(iterate(loader), expected)


def test_out_of_order() -> None:
    samples, batches = drawn(12, 60, PLAIN)
    numbered = [(number, samples[k]) for number, batch in enumerate(batches) for k in batch]
    options: dict[str, Any] = {"batch_sampler": batches, "num_workers": 2, "in_order": False}
    theirs, ours = (iterate(kind(Items(numbered), **options)) for kind in BOTH)
    assert_same(*(sorted(got, key=lambda batch: int(batch[0][0])) for got in (ours, theirs)))


# ------------------------------------------------------------------------------------- what does it, and what does not


def sample(k: int) -> Any:
    """One of everything that is plain."""
    return {
        "image": torch.full((3, 4), k),
        "array": numpy.full((2, 3), k, "float32"),
        "dot": numpy.array(k * 0.5),
        "pair": Pair(k, (k * 0.5, [k % 2 == 0, f"/data/{k}.JPEG", bytes([k])])),
        "numbers": [numpy.int64(k), numpy.float32(k), numpy.bool_(k % 2), numpy.float16(k), numpy.complex64(k)],
    }


def make_no_tensors(worker: int) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("torch makes a tensor of numbers")

    torch.tensor = torch.as_tensor = torch.from_numpy = torch.stack = refuse  # type: ignore[assignment]


def walk_through_nothing(worker: int) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("torch walks through the samples")

    make_no_tensors(worker)
    default_collate.__globals__["collate"] = default_collate.__globals__["collate_str_fn"] = refuse


@pytest.mark.parametrize(
    "options",
    [
        {"worker_init_fn": walk_through_nothing},
        {"worker_init_fn": walk_through_nothing, "chunk_size": 3},
        {"worker_init_fn": walk_through_nothing, "spare_slots": 0},
        {"worker_init_fn": make_no_tensors, "collate_fn": wrapped},
        {"worker_init_fn": make_no_tensors, "collate_fn": wrapped_rows, "chunk_size": 3},
    ],
    ids=label,
)
def test_torch_makes_no_tensor_of_plain_columns(options: dict[str, Any]) -> None:
    data = Items([sample(k) for k in range(23)])
    expected = iterate(torch.utils.data.DataLoader(data, 5, collate_fn=options.get("collate_fn")))
    assert_same(iterate(shmloader.DataLoader(data, 5, num_workers=2, **options)), expected)


def mine(batch: Any, *, collate_fn_map: Any = None) -> Any:
    return "mine", type(batch).__name__, len(batch)


def mine_from(key: Any) -> Callable[[int], None]:
    """Changes the map in a worker."""

    def change(worker: int) -> None:
        default_collate_fn_map[key] = mine

    return change


@pytest.mark.parametrize("key", [torch.Tensor, numpy.ndarray, float, int, str, tuple, dict, bool, Pair, numpy.float32])
@pytest.mark.parametrize("where", ["here", "in the worker", "in the dataset"])
@pytest.mark.parametrize("collate_fn", [None, pytest.param(wrapped, marks=pytest.mark.long)])
def test_an_entry_of_the_users_wins(key: Any, where: str, collate_fn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if where == "here":
        monkeypatch.setitem(default_collate_fn_map, key, mine)
    data = Changing([sample(k) for k in range(10)], key if where == "in the dataset" else None)
    init = mine_from(key) if where == "in the worker" else None
    options = {"batch_size": 5, "num_workers": 1, "worker_init_fn": init, "collate_fn": collate_fn}
    assert_same_outcome(lambda: data, **options)


class Changing(Items):
    """Items that change the map when the seventh is asked for."""

    def __init__(self, items: list[Any], key: Any) -> None:
        super().__init__(items)
        self.key = key

    def __getitem__(self, index: int) -> Any:
        if index == 7 and self.key is not None:
            default_collate_fn_map[self.key] = mine
        return super().__getitem__(index)


def other_map(samples: list[Any]) -> Any:
    return collate(samples, collate_fn_map={**default_collate_fn_map, torch.Tensor: mine})


def test_a_map_of_the_users_gets_the_tensors_of_arrays() -> None:
    assert_same_outcome(lambda: Items([sample(k) for k in range(9)]), batch_size=4, num_workers=2, collate_fn=other_map)


def live_on_meta(worker: int) -> None:
    torch.set_default_device("meta")


@pytest.mark.parametrize("collate_fn", [None, wrapped])
def test_a_default_device_is_torchs_matter(collate_fn: Any) -> None:
    data = Items([(k, k * 0.5, numpy.full(2, k), numpy.int64(k)) for k in range(8)])
    options = {"worker_init_fn": live_on_meta, "collate_fn": collate_fn}
    epochs = assert_same_outcome(lambda: data, batch_size=4, num_workers=1, **options)
    assert "meta" in str(epochs)


def test_the_check_of_factories_is_not_counted_as_a_mode() -> None:
    """Otherwise workers would leave numbers and arrays to torch in these tests: see factories.py."""
    assert of_torch.count_modes is not None
    assert of_torch.count_modes() == 0
    with torch.device("meta"):
        assert of_torch.count_modes() == 1


def by_three(index: int) -> int:
    return index // 3


@pytest.mark.parametrize("options", [{}, {"chunk_size": 2}, {"group_by": by_three}], ids=label)
def test_tensors_lie_in_the_slot_whatever_the_default_device_is(options: dict[str, Any]) -> None:
    number = torch.arange(12.0).view(3, 4)
    data = Items([{"row": number + k, "turned": number.T * k, "empty": torch.empty(0, 2)} for k in range(20)])
    order = [[5, 0, 13, 7], [1, 2, 3, 4], [19, 6, 8, 12]]
    theirs, ours = (
        iterate(kind(data, batch_sampler=order, num_workers=2, worker_init_fn=live_on_meta, **more))
        for kind, more in zip(BOTH, ({}, options), strict=True)
    )
    assert_same(ours, theirs)
    assert not any(isinstance(batch, Raised) for batch in ours)


def test_batches_are_read_whatever_the_default_device_is() -> None:
    """A script, because a process learns only once how each dtype is read."""
    ran = run_script("""
        import torch
        from conftest import BOTH, Items, assert_same
        data = Items([(torch.arange(3.0) + k, torch.empty(0, 2), k, k * 0.5) for k in range(12)])
        iterators = [iter(kind(data, batch_size=4, num_workers=2)) for kind in BOTH]
        with torch.device("meta"):
            theirs, ours = map(list, iterators)
        assert_same(ours, theirs)
        assert len(ours) == 3 and all(part.is_cpu for batch in ours for part in batch)
    """)
    assert ran.status == 0, ran.err


class InPlace(Items):
    """Items whose arrays and tensors are written where their rows lie, but for some."""

    def __getitem_into__(self, index: int, row: Any) -> Any:
        item = self.items[index]
        if index % 7 == 5 or type(row) is not type(item):
            return item
        for key in ("image", "array", "dot"):
            row[key][...] = item[key]
        return {**item, **{key: row[key] for key in ("image", "array", "dot")}}


@pytest.mark.parametrize("options", [{}, {"chunk_size": 3}, {"spare_slots": 0, "schedule": "steal"}], ids=label)
@pytest.mark.parametrize("odd", [None, 12])
def test_rows_in_place(options: dict[str, Any], odd: int | None) -> None:
    items = [sample(k) for k in range(40)]
    if odd is not None:  # it fits into no place, and its numbers are of other classes
        items[odd] |= {"pair": Pair(torch.tensor(odd), (numpy.float64(odd), items[odd]["pair"].y[1]))}
    expected = iterate(torch.utils.data.DataLoader(Items(items), 8))
    assert_same(iterate(shmloader.DataLoader(InPlace(items), 8, num_workers=2, **options)), expected)


@pytest.mark.parametrize("odd", [True, numpy.int64(7), torch.tensor(7), Colour.RED])
def test_chunks_with_numbers_that_are_not_plain(odd: Any) -> None:
    """One chunk's numbers are torch's to collate, and lie where the plain ones of the others lie."""
    data = Items([(k if k != 4 else odd, torch.full((3,), k), numpy.full(5, k)) for k in range(24)])
    expected = iterate(torch.utils.data.DataLoader(data, 12))
    assert_same(iterate(shmloader.DataLoader(data, 12, num_workers=2, chunk_size=3)), expected)


def test_arrays_and_tensors_that_samples_share() -> None:
    """The same object in several rows and columns."""
    array, tensor = numpy.arange(6.0), torch.arange(6)
    data = Items([(array, array, tensor, [array, tensor], numpy.float64(3))] * 9)
    assert_same_outcome(lambda: data, batch_size=4, num_workers=2)


def test_deep_samples() -> None:
    def nested(depth: int) -> Any:
        value: Any = 7
        for _ in range(depth):
            value = [value]
        return value

    assert_same_outcome(lambda: Items([nested(90), nested(150)] * 2), batch_sampler=[[0, 2], [1, 3]], num_workers=1)


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([sample(k) for k in range(11)])


def test_streams() -> None:
    assert_same_outcome(Stream, batch_size=4, num_workers=2)
    init = {"worker_init_fn": walk_through_nothing}
    expected = iterate(torch.utils.data.DataLoader(Stream(), 4))
    assert_same(iterate(shmloader.DataLoader(Stream(), 4, num_workers=1, **init)), expected)
