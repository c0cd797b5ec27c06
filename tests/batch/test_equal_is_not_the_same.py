"""Structures that are equal, but not the same, arrive as from torch's loader: no plan of another batch counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import shmloader


class Key(str):
    """An equal name of another class, as numpy.str_ or an enum's."""


class Record:
    pass


def unit(k: int) -> Any:
    return np.zeros(3, np.dtype("f4", metadata={"unit": "ms"[k % 2]}))


def name(k: int) -> Any:
    record = Record()
    record.__dict__[(str, Key)[k % 2]("x")] = torch.ones(2)
    return record


def big_endian(k: int) -> Any:
    return np.full((2, 3), k, ">f4")


def big_endian_inside(k: int) -> Any:
    return {
        "image": [np.full(2, k, ">i2"), torch.ones(1)],
        "when": np.array([k], ">M8[s]"),
        "name": np.array("é", ">U1"),
    }


def big_endian_fields(k: int) -> Any:
    return np.zeros(2, [("a", ">i4"), ("b", "<f8")])


def two_over_one_array(k: int) -> Any:
    array = np.full(3, float(k))
    return torch.from_numpy(array), torch.from_numpy(array), torch.from_numpy(array[:2])


def changed(batch: Any) -> Any:
    batch[0].add_(100)
    return [each.tolist() for each in batch]


FORMS: dict[Callable[[int], Any], Callable[[Any], Any]] = {
    unit: lambda batch: (batch.tolist(), batch.dtype.metadata["unit"]),
    name: lambda batch: [(type(key), value.tolist()) for key, value in vars(batch).items()],
    big_endian: lambda batch: (batch.dtype.str, batch.tolist(), torch.from_numpy(batch).sum().item()),
    big_endian_inside: lambda batch: (
        [(each.dtype.str, each.tolist()) for each in (batch["image"][0], batch["when"], batch["name"])],
        batch["image"][1].tolist(),
    ),
    big_endian_fields: lambda batch: (batch.dtype, batch.tolist()),
    two_over_one_array: changed,
}


class Forms(torch.utils.data.Dataset[Any]):
    def __init__(self, form: Callable[[int], Any]) -> None:
        self.form = form

    def __len__(self) -> int:
        return 7

    def __getitem__(self, k: int) -> Any:
        return self.form(k)


def as_it_is(sample: Any) -> Any:
    return sample


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_as_torchs_loader_delivers_it(form: Callable[[int], Any]) -> None:
    seen = {}
    for kind in (torch.utils.data.DataLoader, shmloader.DataLoader):
        loader: Any = kind(Forms(form), batch_size=None, num_workers=1, collate_fn=as_it_is)
        seen[kind] = [FORMS[form](batch) for batch in loader]
        if kind is shmloader.DataLoader:
            assert loader.rides_ring
    assert seen[shmloader.DataLoader] == seen[torch.utils.data.DataLoader]
