"""__getitem_into__ returns its rows in other places, or turned round: the batches stay torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from conftest import assert_same, iterate

import shmloader


class Moving(torch.utils.data.Dataset[Any]):
    """Two tensors of a sample, or one; `fill` writes into the row and says what is returned of it."""

    def __init__(self, sample: Callable[[int], Any], fill: Callable[[int, Any], Any]) -> None:
        self.sample, self.fill = sample, fill

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> Any:
        return self.sample(index)

    def __getitem_into__(self, index: int, row: Any) -> Any:
        return self.fill(index, row)


def full(index: float) -> torch.Tensor:
    return torch.full((2,), float(index))


def square(index: int) -> torch.Tensor:
    return torch.arange(9.0).view(3, 3) + index


def swapped(index: int, row: Any) -> Any:
    row[0].fill_(100 + index)
    row[1].fill_(index)
    return row[1], row[0]


def in_anothers_place(index: int, row: Any) -> Any:
    row[0].fill_(index)
    return full(-1), row[0]


def does_not_fit(index: int, row: Any) -> Any:
    """Nothing may have been written when that is found."""
    row[0].fill_(index)
    return full(-1), row[0], torch.tensor(index) if index > 3 else index


def turned(index: int, row: Any) -> Any:
    return row.copy_(square(index)).T


def turned_array(index: int, row: Any) -> Any:
    row[...] = square(index).numpy()
    return row.T


def in_the_tree_itself(index: int, row: Any) -> Any:
    row["y"].fill_(index)
    row["x"], row["y"] = row["y"], full(7)
    return row


CASES: dict[str, tuple[Callable[[int], Any], Callable[[int, Any], Any]]] = {
    "swapped": (lambda index: (full(index), full(100 + index)), swapped),
    "in another's place": (lambda index: (full(-1), full(index)), in_anothers_place),
    "does not fit": (
        lambda index: (full(-1), full(index), torch.tensor(index) if index > 3 else index),
        does_not_fit,
    ),
    "turned": (lambda index: square(index).T, turned),
    "turned array": (lambda index: numpy.ascontiguousarray(square(index).numpy().T), turned_array),
    "in the tree itself": (lambda index: {"x": full(index), "y": full(7)}, in_the_tree_itself),
}


@pytest.mark.parametrize("options", [{}, {"chunk_size": 2}], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_rows_that_come_back_in_other_places(case: str, options: dict[str, Any]) -> None:
    data = Moving(*CASES[case])
    expected = iterate(torch.utils.data.DataLoader(data, 5))
    assert_same(iterate(shmloader.DataLoader(data, 5, num_workers=1, **options)), expected)
