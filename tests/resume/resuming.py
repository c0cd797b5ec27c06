"""What the tests of states share: a state through JSON, a dataset of indices, numbers of batches, pairs of options."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import numpy
import pytest
import torch

quiet = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork"),
]


def through_json(state: dict[str, Any]) -> Any:
    """As a checkpoint that is written and read."""
    return json.loads(json.dumps(state))


class Indices:
    """A dataset that returns what it is asked for: an index, or a list of them."""

    def __init__(self, length: int = 200) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        return index


def numbers(batches: Any, count: int | None = None) -> list[Any]:
    """The next batches, or all (of a loop without an end, 50), as lists of numbers."""
    return [_plain(batch) for batch in itertools.islice(batches, 50 if count is None else count)]


def _plain(batch: Any) -> Any:
    if isinstance(batch, dict):
        batch = batch["i"]
    return batch.tolist() if isinstance(batch, torch.Tensor) else batch


def flattened(value: Any) -> list[int]:
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    return [index for part in value for index in flattened(part)] if isinstance(value, list) else [value]


def after(made: Any, count: int) -> tuple[list[int], dict[str, Any]]:
    """The samples of the first batches, and the state after them."""
    with made:
        batches = iter(made)
        got = flattened([next(batches) for _ in range(count)])
        return got, through_json(made.state_dict())


def rest_of(made: Any, state: dict[str, Any]) -> list[int]:
    """The samples that are left after this state."""
    made.load_state_dict(state)
    with made:
        return flattened(list(made))


def global_states() -> tuple[Any, ...]:
    """The states of the generators that a user's checkpoint has."""
    return random.getstate(), numpy.random.get_state(), torch.get_rng_state()


def set_global_states(states: tuple[Any, ...]) -> None:
    random.setstate(states[0])
    numpy.random.set_state(states[1])
    torch.set_rng_state(states[2])


def pairwise(axes: list[list[Any]], may_be: Any = lambda case: True, cost: Any = lambda case: 0) -> list[Any]:
    """Cases in which each two values of two axes meet, if they may; of equally good ones, those that cost least."""
    every = [case for case in itertools.product(*map(range, map(len, axes))) if may_be(_values(axes, case))]
    random.Random(0).shuffle(every)
    pairs = {pair for case in every for pair in _pairs(case)}
    chosen = []
    while pairs:
        a, b, *values = min(pairs)
        having = [case for case in every if [case[a], case[b]] == values]
        best = max(having, key=lambda case: (len(pairs & _pairs(case)), -cost(_values(axes, case))))
        chosen.append(_values(axes, best))
        pairs -= _pairs(best)
    return chosen


def _values(axes: list[list[Any]], case: tuple[int, ...]) -> tuple[Any, ...]:
    return tuple(axis[at] for axis, at in zip(axes, case, strict=True))


def _pairs(case: tuple[int, ...]) -> set[Any]:
    return {(a, b, case[a], case[b]) for a, b in itertools.combinations(range(len(case)), 2)}
