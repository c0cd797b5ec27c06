"""A state with batches that came early (in_order=False) says which batch size their numbers are of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from test_resume import through_json
from torch.utils.data import Dataset, SequentialSampler

import shmloader

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork"),
    pytest.mark.filterwarnings("ignore:.*same order"),
]


class Waits(Dataset[int]):
    """One sample waits until it may go, so the batches behind its own come early."""

    def __init__(self, length: int, late: int) -> None:
        self.length, self.late = length, late
        self.go = torch.multiprocessing.get_context("fork").Event()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if index == self.late:
            assert self.go.wait(60)
        return index


def early(dataset: Waits, size: int, taken: int = 1, state: Any = None) -> tuple[list[int], dict[str, Any]]:
    """The samples of the first batches to come out of order, and the state after them."""
    options: dict[str, Any] = {"num_workers": 2, "in_order": False, "multiprocessing_context": "fork"}
    with shmloader.DataLoader(dataset, size, **options) as made:
        if state is not None:
            made.load_state_dict(state)
        batches = iter(made)
        had = [index for _ in range(taken) for index in next(batches).tolist()]
        found = through_json(made.state_dict())
        dataset.go.set()
    return had, found


def rest(length: int, size: int | None, state: dict[str, Any]) -> list[int]:
    made = shmloader.DataLoader(range(length), size)
    made.load_state_dict(state)
    return [index for batch in made for index in torch.as_tensor(batch).reshape(-1).tolist()]


@pytest.mark.parametrize(("length", "size"), [(5, 4), (17, 16)])
def test_only_the_short_last_batch_came_early(length: int, size: int) -> None:
    had, state = early(Waits(length, 0), size)
    assert (state["batches"], state["beyond"]) == (0, [[1, 1, size]])
    assert rest(length, size, state) == list(range(size)) and had == [size]
    for wrong in (1, 2, None):
        with pytest.raises(ValueError, match=rf"batches of {size} samples came early .* Use batch_size={size} until"):
            rest(length, wrong, state)


def test_after_a_change_of_the_batch_size_within_the_epoch() -> None:
    first = shmloader.DataLoader(range(64), 8)
    batches = iter(first)
    before = [index for _ in range(2) for index in next(batches).tolist()]
    had, state = early(Waits(64, 16), 4, state=first.state_dict())
    assert (state["batches"], state["samples"], state["beyond"]) == (2, 16, [[3, 4, 4]])
    assert sorted(before + had + rest(64, 4, state)) == list(range(64))
    with pytest.raises(ValueError, match=r"batches of 4 samples came early .* and now a batch has 8. Use batch_size=4"):
        rest(64, 8, state)


def test_it_is_said_again_where_the_epoch_was_resumed() -> None:
    _, state = early(Waits(5, 0), 4)
    again = shmloader.DataLoader(range(5), 4)
    again.load_state_dict(state)
    assert through_json(again.state_dict()) == state
    iter(again)
    assert rest(5, 4, through_json(again.state_dict())) == [0, 1, 2, 3]


def test_single_samples_are_batches_of_one() -> None:
    made = shmloader.DataLoader(range(6), None)
    next(iter(made))
    state = made.state_dict() | {"beyond": [[2, 1, 1]]}
    assert rest(6, None, state) == rest(6, 1, state) == [1, 3, 4, 5]
    with pytest.raises(ValueError, match=r"batches of 1 samples came early .* a batch has 2. Use batch_size=1"):
        rest(6, 2, state)


class Order(SequentialSampler):
    """Not torch's: it gives batches, or samples."""

    batched = True

    def __iter__(self) -> Iterator[Any]:
        return iter([[0, 1, 2], [3], [4, 5]] if self.batched else range(6))


def test_batches_of_an_own_batch_sampler_need_it_again() -> None:
    def made() -> Any:
        return shmloader.DataLoader(range(6), batch_sampler=Order(range(6)))

    def batched() -> Any:
        samples = Order(range(6))
        samples.batched = False
        return shmloader.DataLoader(range(6), 2, sampler=samples)

    first = made()
    next(iter(first))
    state = first.state_dict() | {"beyond": [[2, 2, 0]]}
    again = made()
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == [[3]]
    with pytest.raises(ValueError, match=r"from a sampler that makes its own, and now a batch has 2. Use the batches"):
        batched().load_state_dict(state)
    first = batched()
    next(iter(first))
    state = first.state_dict() | {"beyond": [[2, 2, 2]]}
    with pytest.raises(
        ValueError, match=r"of 2 samples came early .* now the sampler makes its own batches. Use batch_"
    ):
        made().load_state_dict(state)


@pytest.mark.parametrize(
    ("batches", "samples", "beyond", "size"),
    [
        (1, 4, [[2, 4]], 4),  # as those before
        (0, 0, [[1, 4], [3, 4]], 4),
        (0, 0, [[1, 4], [5, 2]], 4),  # the last one is short
        (2, 16, [[3, 4], [4, 4]], 4),  # resumed with another size
        (0, 0, [[1, 1]], None),  # it may be the last one
        (2, 16, [[3, 4]], None),  # resumed with another size, or the last one
        (0, 0, [[1, 2], [3, 4]], None),  # a short one that is not the last
    ],
)
def test_a_state_of_an_older_version(batches: int, samples: int, beyond: list[list[int]], size: int | None) -> None:
    made = shmloader.DataLoader(range(22), 4)
    next(iter(made))
    state = made.state_dict() | {"batches": batches, "samples": samples, "beyond": beyond}
    if size is None:
        with pytest.raises(
            ValueError, match=r"older version of shmloader saved it, which did not record their batch size"
        ):
            rest(22, 4, state)
        return
    again = shmloader.DataLoader(range(22), size)
    again.load_state_dict(state)
    assert again.state_dict()["beyond"] == beyond
    iter(again)
    assert again.state_dict()["beyond"] == [[*each, size] for each in beyond]
    early_ones = {number for number, _ in beyond}
    wanted = [
        list(range(22))[samples + k * size : samples + (k + 1) * size]
        for k in range(6)
        if k + batches not in early_ones
    ]
    assert rest(22, size, state) == [index for batch in wanted for index in batch]
    with pytest.raises(ValueError, match=rf"batches of {size} samples came early"):
        rest(22, size + 1, state)
