"""A change of a dataset is seen, also in lists that are compared and not pickled."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from shmloader.template.digest import LONG, Digests


class Holder:
    def __init__(self, value: Any) -> None:
        self.value = value


class Sample:
    def __init__(self, number: int) -> None:
        self.number = number


MADE: dict[str, Callable[[], Any]] = {
    "paths": lambda: [f"{k}.jpg" for k in range(LONG)],
    "samples": lambda: [(f"{k}.jpg", k) for k in range(LONG)],
    "tuple": lambda: tuple(f"{k}.jpg" for k in range(LONG)),
    "boxes": lambda: [[[k, 0.5 + j] for j in range(k % 3)] for k in range(LONG)],
    "annotations": lambda: [{"id": k, "bbox": [k + 0.5, 1.5], "name": f"{k}"} for k in range(LONG)],
    "columns": lambda: {"names": [f"{k}" for k in range(LONG)], "sizes": list(range(LONG))},
    "by name": lambda: {f"{k}": [k] for k in range(LONG)},
    "mixed": lambda: [k if k % 2 else [k] for k in range(LONG)],
    "objects": lambda: [Sample(k) for k in range(LONG)],
    "tensors": lambda: [torch.tensor(k) for k in range(LONG)],
    "short": lambda: [1, 2, 3],
}


@pytest.mark.parametrize("form", MADE)
def test_what_did_not_change_has_the_same(form: str) -> None:
    given, digests = {"dataset": Holder(MADE[form]())}, Digests()
    assert len({digests.take(given) for _ in range(3)}) == 1


CHANGES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "an item": ("paths", lambda held: held.__setitem__(7, "other")),
    "an item's type": ("columns", lambda held: held["sizes"].__setitem__(1, True)),
    "an item's type and not its value": ("columns", lambda held: held["sizes"].__setitem__(0, 0.0)),
    "the order": ("paths", list.reverse),
    "the length": ("paths", lambda held: held.append("one more")),
    "the length, with an equal end": ("paths", lambda held: held.insert(0, held[0])),
    "the last item is gone": ("samples", list.pop),
    "a tuple": ("samples", lambda held: held.__setitem__(3, (held[3][0], -1))),
    "deep inside": ("boxes", lambda held: held[5][1].__setitem__(0, -1)),
    "from one list to the next": ("boxes", lambda held: held[5][0].append(held[5][1].pop(0))),
    "an empty list that gets an item": ("boxes", lambda held: held[0].append([1, 2])),
    "a value of a dict": ("annotations", lambda held: held[9].__setitem__("id", -1)),
    "a list in a dict": ("annotations", lambda held: held[9]["bbox"].__setitem__(0, -1.5)),
    "a key more": ("annotations", lambda held: held[9].__setitem__("new", 1)),
    "the order of keys": ("annotations", lambda held: held[9].__setitem__("id", held[9].pop("id"))),
    "the value of a long dict": ("by name", lambda held: held["5"].append(1)),
    "a key of a long dict": ("by name", lambda held: held.__setitem__("other", held.pop("5"))),
    "values that are exchanged": ("columns", lambda held: held.update(names=held["sizes"], sizes=held["names"])),
    "something that is neither text nor a number": ("paths", lambda held: held.__setitem__(7, Sample(1))),
    "the attribute of an object": ("objects", lambda held: setattr(held[3], "number", -1)),
    "a tensor that is another one": ("tensors", lambda held: held.__setitem__(3, torch.tensor(-1))),
    "a short list": ("short", lambda held: held.append(4)),
    "among other kinds": ("mixed", lambda held: held[2].append(1)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(change: str) -> None:
    form, make = CHANGES[change]
    given, digests = {"dataset": Holder(MADE[form]())}, Digests()
    before = digests.take(given)
    assert digests.take(given) == before
    make(given["dataset"].value)
    after = digests.take(given)
    assert after != before
    assert digests.take(given) == after


def test_an_equal_list_that_is_another_one_counts_as_a_change() -> None:
    """Its id may be that of the one before."""
    given, digests = {"dataset": Holder(MADE["paths"]())}, Digests()
    seen = {digests.take(given)}
    for _ in range(3):
        given["dataset"].value = copy.copy(given["dataset"].value)
        seen.add(digests.take(given))
    assert len(seen) == 4


def test_one_list_under_two_names_is_seen_to_become_two() -> None:
    held = Holder(MADE["paths"]())
    held.again = held.value  # type: ignore[attr-defined]
    digests = Digests()
    before = digests.take({"dataset": held})
    held.again = list(held.value)  # type: ignore[attr-defined]
    assert digests.take({"dataset": held}) != before


def test_a_list_that_contains_itself() -> None:
    held = Holder(MADE["paths"]())
    held.value.append(held.value)
    digests = Digests()
    before = digests.take({"dataset": held})
    assert digests.take({"dataset": held}) == before
    held.value[0] = "other"
    assert digests.take({"dataset": held}) != before


def test_what_cannot_be_pickled_is_an_error_each_time() -> None:
    digests = Digests()
    for _ in range(2):
        with pytest.raises((pickle.PicklingError, AttributeError)):
            digests.take({"dataset": Holder([lambda: 1] * LONG)})


class Text(str):
    """No exact type, so it may have more than its letters."""


def test_a_class_of_ones_own_is_pickled() -> None:
    held = Holder([Text(k) for k in range(LONG)])
    digests = Digests()
    before = digests.take({"dataset": held})
    held.value[3].more = 1
    assert digests.take({"dataset": held}) != before
