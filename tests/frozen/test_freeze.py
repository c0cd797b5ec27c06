"""A frozen dataset gives what it gave before, from one block of bytes."""

from __future__ import annotations

import collections
import copy
import gc
import math
import os
import pickle
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

import shmloader
from shmloader.core.frozen_rows import FrozenDict, FrozenList

Point = collections.namedtuple("Point", "x y")


class Sub(str):
    """A string that is more than its characters."""


class Holder:
    """Whatever attributes it is given."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def frozen(value: Any, least: int = 0) -> Any:
    return shmloader.freeze(Holder(value=value), least=least).value


LISTS: dict[str, list[Any]] = {
    "paths and labels": [(f"{k}.jpg", k) for k in range(100)],
    "integers of a byte": [-128, 127, 0],
    "integers of two": [-129, 5],
    "integers of four": [(1 << 31) - 1, -(1 << 31)],
    "integers of eight": [-(1 << 63), (1 << 63) - 1],
    "integers of more": [1 << 63, -1],
    "booleans and integers": [True, 1, 0, False],
    "text": ["", "a", "\u00e9", "\U0001f40d", "\x00", "z" * 300],
    "surrogates of a path": [os.fsdecode(b"\xff\xfe.jpg"), "\ud83d\udc0d"],
    "polygons or run lengths": [[[1.0, 2.0]], {"counts": [1, 2], "size": [3, 4]}],
    "annotations": [{"id": k, "bbox": [1.0, k], "iscrowd": 0} for k in range(70)],
    "other keys": [{"a": 1}, {"b": 2}, {}],
    "other order of keys": [{"a": 1, "b": 2}, {"b": 2, "a": 1}],
    "tuples of any length": [(1,), (), (1, 2)],
    "empty tuples": [(), ()],
    "nested tuples": [((1, 2), ("a", None)), ((3, 4), ("b", None))],
    "sets": [{1, 2}, {3}],
    "complex": [1j, 2.0 + 0j],
    "NumPy's scalars": [numpy.float32(0.1), numpy.float32(-3)],
    "dates": [numpy.datetime64("2026-11-23"), numpy.datetime64("2026-11-24")],
}


def classes(value: Any) -> Any:
    """The value with the class of each part."""
    if isinstance(value, dict):
        return type(value), [(classes(key), classes(part)) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [classes(part) for part in value]
    return type(value), repr(value)


@pytest.mark.parametrize("name", LISTS)
def test_items_are_what_they_were(name: str) -> None:
    original = LISTS[name]
    column = frozen(list(original))
    assert type(column) is FrozenList
    assert classes(list(column)) == classes(original)
    assert column == original and original == column
    assert (column != original) is False
    assert classes(column[1:]) == classes(original[1:])
    assert classes([column[-k - 1] for k in range(len(original))]) == classes(original[::-1])


values = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text() | some.binary(max_size=9),
    lambda inner: (
        some.lists(inner, max_size=4)
        | some.tuples(inner, inner)
        | some.dictionaries(some.text(max_size=3) | some.integers(), inner, max_size=3)
    ),
    max_leaves=12,
)


unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a machine may be busy


@unhurried
@given(some.lists(values, max_size=12) | some.tuples(values, some.integers(2, 9)).map(lambda pair: [pair[0]] * pair[1]))
def test_drawn_items_are_what_they_were(items: list[Any]) -> None:
    column = frozen(items)
    assert classes(list(column)) == classes(items)
    assert classes(list(pickle.loads(pickle.dumps(column)))) == classes(items)


@unhurried
@given(some.dictionaries(some.text(), values, min_size=1) | some.dictionaries(some.integers(), values, min_size=1))
def test_drawn_dicts_are_what_they_were(items: dict[Any, Any]) -> None:
    made = frozen(items)
    assert type(made) is FrozenDict
    assert classes(dict(made.items())) == classes(items)
    assert all(classes(made[key]) == classes(items[key]) for key in items)
    assert "no such key" not in made or "no such key" in items
    assert made.get(-(1 << 99)) == items.get(-(1 << 99))


def test_nan_keeps_its_bits() -> None:
    odd = numpy.array([0x7FF8000000001234], numpy.uint64).view(numpy.float64)[0].item()
    column = frozen([odd, math.nan])
    assert numpy.array(column[0]).view(numpy.uint64) == 0x7FF8000000001234


@pytest.mark.parametrize(
    "items",
    [
        *([Sub("a"), Sub("b")], ["a", Sub("b")], [1, numpy.int64(2)], [object()], [[object()]], [(1, Sub("x"))]),
        *([range(3)], [Point(1, "a"), Point(2, "b")], [[numpy.zeros(3)]]),
    ],
    ids=[
        *("a subclass", "one subclass", "another number", "objects", "objects within", "in tuples"),
        *("other sequences", "named tuples", "arrays in lists"),
    ],
)
def test_what_would_come_back_otherwise_is_left(items: list[Any]) -> None:
    assert frozen(items) is items


def test_lists_that_hold_themselves_are_left() -> None:
    items: list[Any] = [1]
    items.append(items)
    assert frozen(items) is items


def test_it_does_what_a_list_does() -> None:
    items = [3, 1, 2, 1]
    column = frozen(items)
    assert isinstance(column, Sequence)
    assert (len(column), column.index(1), column.index(1, 2), column.count(1), 2 in column, 9 in column) == (
        *(4, 1, 3, 2, True, False),
    )
    assert column + items == items + column == items * 2 == column * 2
    assert type(column + items) is type(items + column) is type(column + column) is list
    assert sorted(column) == [1, 1, 2, 3] and list(reversed(column)) == items[::-1]
    assert random.Random(1).sample(column, 3) == random.Random(1).sample(items, 3)
    assert column[numpy.int64(1)] == 1 and column[True] == 1
    assert repr(column) == "<frozen list of 4: [3, 1, 2, 1]>"
    assert numpy.array_equal(numpy.asarray(column), items) and numpy.asarray(column).dtype == numpy.int64
    assert torch.equal(torch.tensor(column), torch.tensor(items))
    assert column.copy() == items and type(column.copy()) is list
    for wrong, error in (("1", TypeError), (1.5, TypeError), (4, IndexError), (-5, IndexError)):
        with pytest.raises(error):
            column[wrong]
    with pytest.raises(ValueError):
        column.index(7)
    with pytest.raises(TypeError, match="unhashable"):
        hash(column)
    match column:
        case [first, *_]:
            assert first == 3
        case _:
            raise AssertionError("it is no sequence to match")


def test_it_does_what_a_dict_does() -> None:
    items = {7: ["a"], 3: ["b", "c"], -1: []}
    made = frozen(dict(items))
    assert isinstance(made, Mapping)
    assert (
        list(made) == list(items)
        and list(made.values()) == list(items.values())
        and list(made.items()) == list(items.items())
    )
    assert made == items and items == made and len(made) == 3 and 3 in made and 4 not in made
    assert made[3.0] == ["b", "c"] and made[numpy.int64(7)] == ["a"] and made.get("3") is None
    assert made.keys() == items.keys() and made.items() == items.items()
    assert type(made.copy()) is dict and made.copy() == items
    with pytest.raises(KeyError, match="4"):
        made[4]
    with pytest.raises(TypeError, match="unhashable"):
        made[[]]
    assert {**made} == items


def test_a_defaultdict_makes_what_is_missing() -> None:
    items = collections.defaultdict(list, {k: [k] for k in range(9)})
    made = frozen(items)
    assert made[100] == [] and 100 not in made and len(made) == 9
    assert frozen(other := collections.defaultdict(lambda: 5, {1: 2})) is other


@pytest.mark.parametrize("items", [[1, 2, 3], {0: 1, 1: 2}], ids=["list", "dict"])
def test_it_cannot_be_changed(items: Any) -> None:
    made = frozen(items)
    with pytest.raises(TypeError, match="does not support item assignment"):
        made[0] = 1
    with pytest.raises(TypeError, match="item deletion"):
        del made[0]
    for name in ("append", "sort", "extend", "pop", "update", "setdefault", "clear"):
        assert not hasattr(made, name)
    assert made == items


# --------------------------------------------------------------------------------------------------- whole datasets


class Boxes(torch.utils.data.Dataset[Any]):
    """A detection dataset as people write them."""

    def __init__(self, length: int = 100) -> None:
        self.samples = [(f"{k}.jpg", k % 10) for k in range(length)]
        self.imgs = self.samples
        self.classes = ["cat", "dog"]
        self.coco = Holder(
            dataset={"images": [{"id": k} for k in range(length)], "info": {"year": 2026}},
            anns={k: {"id": k, "bbox": [1.0, 2.0, 3.0, float(k)]} for k in range(length)},
            of_image=collections.defaultdict(list, {k: [{"id": k}] for k in range(length)}),
        )
        self.features = numpy.arange(length * 64, dtype=numpy.float32).reshape(length, 64)
        self.table = torch.arange(length * 64).reshape(length, 64)
        self.transform = str.upper

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        boxes = self.coco.of_image[index] + [self.coco.anns[index]]
        return self.transform(path), label, str(boxes), self.features[index], self.table[index]


def test_a_dataset_gives_the_same_samples() -> None:
    original, dataset = Boxes(), Boxes()
    assert shmloader.freeze(dataset) is dataset and type(dataset) is Boxes
    for k in range(100):
        assert classes(dataset[k][:3]) == classes(original[k][:3])
        assert numpy.array_equal(dataset[k][3], original[k][3]) and torch.equal(dataset[k][4], original[k][4])
    assert dataset.samples is dataset.imgs and type(dataset.samples) is FrozenList
    assert dataset.classes == ["cat", "dog"] and type(dataset.classes) is list
    assert type(dataset.coco.dataset["images"]) is FrozenList and dataset.coco.dataset["info"] == {"year": 2026}
    assert type(dataset.features) is numpy.ndarray and type(dataset.table) is torch.Tensor


def test_what_torch_wraps_around_a_dataset_is_frozen_too() -> None:
    parts = torch.utils.data.ConcatDataset([torch.utils.data.Subset(Boxes(), range(50)), Boxes(70)])
    shmloader.freeze(parts)
    assert type(parts.datasets[0].dataset.samples) is type(parts.datasets[1].samples) is FrozenList
    assert parts[60][0] == "10.JPG"


def test_a_frozen_dataset_can_be_frozen_again() -> None:
    dataset = shmloader.freeze(Boxes())
    samples, features = dataset.samples, dataset.features
    dataset.more = list(range(100))
    shmloader.freeze(dataset)
    assert dataset.samples is samples and dataset.features is features and type(dataset.more) is FrozenList


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_a_copy_has_all_of_it(copied: Any) -> None:
    dataset = copied(shmloader.freeze(Boxes()))
    gc.collect()
    assert dataset.samples is dataset.imgs
    assert classes(dataset[99][:3]) == classes(Boxes()[99][:3])


def test_a_view_of_what_others_hold_stays_a_view() -> None:
    others = numpy.zeros((100, 100))
    dataset = shmloader.freeze(Holder(rows=others[:]))
    others[3] = 5
    assert dataset.rows[3, 0] == 5


def test_read_only_arrays_stay_read_only() -> None:
    array = numpy.zeros(5000)
    array.flags.writeable = False
    dataset = shmloader.freeze(Holder(array=array))
    assert dataset.array is not array and not dataset.array.flags.writeable


def test_shared_tensors_and_parameters_stay() -> None:
    shared, weight = torch.zeros(5000).share_memory_(), torch.nn.Parameter(torch.zeros(5000))
    dataset = shmloader.freeze(Holder(shared=shared, weight=weight))
    assert dataset.shared is shared and dataset.weight is weight


def test_what_is_small_stays() -> None:
    dataset = shmloader.freeze(Holder(mean=[0.485, 0.456, 0.406], few={1: 2}, array=numpy.zeros(3)))
    assert type(dataset.mean) is list and type(dataset.few) is dict


def test_a_negative_least_is_refused() -> None:
    with pytest.raises(ValueError, match="least=-1"):
        shmloader.freeze(Holder(), least=-1)


def test_where_there_is_no_memory_the_dataset_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Holder(numbers=list(range(1000)), array=numpy.zeros(1_000_000))
    before = dict(vars(dataset))
    monkeypatch.setattr("shmloader.system.anonymous_files.available_memory", lambda: 1 << 20)
    with pytest.raises(MemoryError, match="freezing the dataset needs 7 MiB more of memory: 1 MiB are available"):
        shmloader.freeze(dataset)
    assert all(vars(dataset)[name] is value for name, value in before.items())


def test_explain_lists_what_is_frozen_and_what_is_not() -> None:
    dataset = Holder(samples=[(f"{k}", k) for k in range(100)], odd=[Sub("x")] * 100, view=numpy.zeros((100, 100)).T)
    assert shmloader.frozen.explain(dataset).splitlines()[0] == (
        "not frozen yet: samples, a list of 100; it would take 740 bytes"
    )
    assert shmloader.frozen.explain(shmloader.freeze(dataset)).splitlines() == [
        "frozen: samples, a list of 100, 740 bytes",
        "left as it is: odd, a list of 100, because of objects of class Sub",
        "left as it is: view, ndarray of shape (100, 100), because of an array that is strided",
        "frozen in all: 740 bytes",
    ]
