"""A state in mid-epoch records what decides the order, and a loader with another order does not load it.

That is the sampler with its arguments, the dataset's length, batch samplers inside others, and generators.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from conftest import iterate
from resuming import Indices, after, flattened, quiet, rest_of, through_json
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import shmloader

pytestmark = [
    *quiet,
    pytest.mark.filterwarnings("ignore:the sampler .* has no state_dict"),
]
LENGTH = 47
Made = Callable[[int], Any]


def distributed(kind: Any, **options: Any) -> Made:
    return lambda length: kind(range(length), 2, 0, **options)


DRAWN: dict[str, Made] = {
    "RandomSampler": lambda length: RandomSampler(range(length)),
    "RandomSampler with replacement": lambda length: RandomSampler(range(length), replacement=True),
    "SubsetRandomSampler": lambda length: SubsetRandomSampler(range(length)),
    "WeightedRandomSampler with replacement": lambda length: WeightedRandomSampler([1.0] * length, 20),
    "WeightedRandomSampler": lambda length: WeightedRandomSampler([1.0] * length, 20, replacement=False),
    "DistributedSampler": distributed(shmloader.DistributedSampler),
    "DistributedSampler, torch's": distributed(torch.utils.data.DistributedSampler),
}
IN_ORDER: dict[str, Made] = {
    "SequentialSampler": lambda length: SequentialSampler(range(length)),
    "DistributedSampler without shuffle": distributed(shmloader.DistributedSampler, shuffle=False),
    "DistributedSampler without shuffle, torch's": distributed(torch.utils.data.DistributedSampler, shuffle=False),
}


def loader(sampler: Any, size: int | None = 5, **options: Any) -> Any:
    return shmloader.DataLoader(range(200), size, sampler=sampler, **options)


def nested(
    size: int,
    inner: int = 3,
    drop_last: bool = False,
    workers: int = 0,
    sampler: Any = None,
    between: tuple[int, ...] = (),
) -> Any:
    """A loader whose batches are of lists that a batch sampler makes."""
    sampler = RandomSampler(range(48)) if sampler is None else sampler
    for each in (inner, *between):
        sampler = BatchSampler(sampler, each, drop_last)
    return shmloader.DataLoader(Indices(), size, sampler=sampler, num_workers=workers, collate_fn=list)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------- another length


@pytest.mark.parametrize("now", [60, 30])
@pytest.mark.parametrize("sampler", DRAWN)
def test_another_length_is_another_order(sampler: str, now: int) -> None:
    state = after(loader(DRAWN[sampler](LENGTH)), 2)[1]
    settings = " with seed=0, drop_last=False" if "Distributed" in sampler else ""
    assert state["sampler"] == f"{sampler.split(',')[0]}{settings} of 47 samples"
    says = f"the loaded state's order was drawn from 47 samples, and now there are {now}.*Use the dataset.*begin the"
    with pytest.warns(RuntimeWarning, match=says):
        rest_of(loader(DRAWN[sampler](now)), state)
    assert len(rest_of(loader(DRAWN[sampler](LENGTH)), state)) == len(loader(DRAWN[sampler](LENGTH)).sampler) - 10


@pytest.mark.parametrize("now", [60, 30])
@pytest.mark.parametrize("sampler", IN_ORDER)
def test_an_order_that_is_not_drawn_continues_with_another_length(sampler: str, now: int) -> None:
    got, state = after(loader(IN_ORDER[sampler](LENGTH)), 2)
    without_shuffle = f"{sampler.split(',')[0]} with drop_last=False"
    assert state["sampler"] == {"SequentialSampler": "SequentialSampler alone"}.get(sampler, without_shuffle)
    assert got + rest_of(loader(IN_ORDER[sampler](now)), state) == list(IN_ORDER[sampler](now))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_without_a_batch_is_loaded_with_another_length(workers: int) -> None:
    made = loader(RandomSampler(range(LENGTH)), num_workers=workers)
    with made:
        states = [made.state_dict()]
        batches = iter(made)
        states.append(made.state_dict())
        list(batches)
        states.append(made.state_dict())
    assert [state["begun"] for state in states] == [False, True, False]
    for state in states:
        assert sorted(rest_of(loader(RandomSampler(range(60))), state)) == list(range(60))


@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "persistent_workers": True}], ids=str)
def test_another_length_is_one_warning_that_names_the_users_line(options: dict[str, Any]) -> None:
    state = after(loader(RandomSampler(range(LENGTH))), 2)[1]
    with loader(RandomSampler(range(60)), **options) as made, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        list(made)
        made.load_state_dict(state)
        list(made)
        list(made)
    assert [each.filename for each in caught if "drawn from 47" in str(each.message)] == [__file__]


class Backwards(shmloader.DistributedSampler):
    def __iter__(self) -> Iterator[int]:
        return reversed([*super().__iter__()])


def test_other_ranks_cannot_divide_an_order_of_ones_own() -> None:
    state = after(loader(Backwards(range(LENGTH), 2, 0)), 2)[1]
    with pytest.raises(ValueError, match=r"now there are 3\. Use as many ranks until"):
        loader(Backwards(range(LENGTH), 3, 0)).load_state_dict(state)


class Late(Sampler[int]):
    """Gives the samples in order in the first epoch, and shuffled ones from another sampler afterwards."""

    epoch = 0
    sampler: Sampler[int]

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        shuffled = RandomSampler(range(48), generator=torch.Generator().manual_seed(self.epoch))
        self.sampler = shuffled if self.epoch else SequentialSampler(range(48))
        return iter(self.sampler)

    def __len__(self) -> int:
        return 48


class Sized(BatchSampler):
    """Its batches grow with the epoch."""

    def set_epoch(self, epoch: int) -> None:
        self.batch_size = 2 + epoch


FOLLOWS_THE_EPOCH: dict[str, Callable[[], Any]] = {
    "an inner sampler": Late,
    "batch size": lambda: Sized(RandomSampler(range(48)), 2, False),
}


@pytest.mark.parametrize(("what", "workers"), [*((what, 0) for what in FOLLOWS_THE_EPOCH), ("an inner sampler", 1)])
def test_what_follows_the_epoch_is_not_refused(what: str, workers: int) -> None:
    """It may be another at the load than it was, or will be, in the epoch: set_epoch() and iter() come afterwards."""

    def made() -> Any:
        sampler = FOLLOWS_THE_EPOCH[what]()
        return shmloader.DataLoader(Indices(), 2, sampler=sampler, num_workers=workers, collate_fn=list)  # type: ignore[arg-type]

    def rest(loader: Any) -> list[int]:
        torch.manual_seed(3)
        loader.set_epoch(2)
        with loader:
            return flattened(list(loader))

    torch.manual_seed(3)
    first = made()
    first.set_epoch(1)
    list(first)
    first.set_epoch(2)
    torch.manual_seed(3)
    got, state = after(first, 3)
    again = made()
    again.load_state_dict(state)
    assert got + rest(again) == rest(made())


# ------------------------------------------------------------------------------------- a batch sampler inside another


@pytest.mark.parametrize(
    ("workers", "now", "between"), [(0, 1, ()), (0, 2, (2,)), (0, 3, ()), (2, 1, (2,)), (2, 3, ())]
)
def test_batches_of_lists_continue_with_another_batch_size(workers: int, now: int, between: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    whole = after(nested(1, between=between), 16 if not between else 8)[0]
    torch.manual_seed(1)
    got, state = after(nested(2, workers=workers, between=between), 3)
    again = nested(now, workers=workers, between=between)
    assert sorted(whole) == list(range(48))
    assert got + rest_of(again, state) == whole


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_other_ranks_divide_lists(ranks: int) -> None:
    def made(count: int, rank: int) -> Any:
        return nested(2, sampler=shmloader.DistributedSampler(range(48), count, rank))

    parts = [after(made(2, rank), 2) for rank in range(2)]
    got = [index for part in parts for index in part[0]]
    state = parts[0][1]
    assert state["sampler"] == "BatchSampler(3) of DistributedSampler with seed=0, drop_last=False of 48 samples"
    left = [index for rank in range(ranks) for index in rest_of(made(ranks, rank), state)]
    assert sorted(got + left) == list(range(48))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"inner": 4}, r"by BatchSampler\(3\) of .*, and this loader's are by BatchSampler\(4\) of .* Use the sampler"),
        ({"drop_last": True}, r"by BatchSampler\(3\) of .*, and this loader's are by BatchSampler\(3, drop_last\) of"),
        ({"between": (2,)}, r"by BatchSampler\(3\) of .*, and this loader's are by BatchSampler\(2\) of BatchSampler"),
    ],
    ids=str,
)
def test_another_inner_batch_sampler_is_refused(change: dict[str, Any], says: str) -> None:
    state = after(nested(2), 3)[1]
    with pytest.raises(ValueError, match=says):
        nested(2, **change).load_state_dict(state)
    nested(2, **change).load_state_dict(after(nested(2), 0)[1])  # no batch was received


def test_an_inner_batch_sampler_on_one_side_only() -> None:
    state = after(nested(2), 3)[1]
    with pytest.raises(ValueError, match=r"by BatchSampler\(3\) of .*, and this loader's are by RandomSampler of"):
        loader(RandomSampler(range(48))).load_state_dict(state)
    with pytest.raises(ValueError, match=r"by RandomSampler of .*, and this loader's are by BatchSampler\(3\) of"):
        nested(2).load_state_dict(after(loader(RandomSampler(range(48))), 3)[1])

    for sampler in (SequentialSampler(range(48)), InOrder(48)):
        state = after(loader(sampler), 3)[1]
        assert state["sampler"] == f"{type(sampler).__name__} alone"
        with pytest.raises(
            ValueError, match=r"Sampler alone, .* are by BatchSampler\(3\) of|InOrder alone, .* by BatchSampler\(3\) of"
        ):
            nested(2, sampler=sampler).load_state_dict(state)


def test_one_batch_sampler_without_automatic_batching_may_have_another_size() -> None:
    def made(size: int) -> Any:
        sampler = BatchSampler(RandomSampler(range(48)), size, False)
        return shmloader.DataLoader(Indices(), None, sampler=sampler, collate_fn=list)  # type: ignore[arg-type]

    got, state = after(made(5), 3)
    assert sorted(got + rest_of(made(3), state)) == list(range(48))


# ------------------------------------------------------------------------------- arguments of a DistributedSampler


@pytest.mark.parametrize(
    "kind", [shmloader.DistributedSampler, torch.utils.data.DistributedSampler], ids=["ours", "torch's"]
)
@pytest.mark.parametrize(
    ("was", "now", "says"),
    [
        (
            {},
            {"seed": 5},
            "with seed=0, .* with seed=5, .* until the epoch is over",
        ),
        ({"seed": -2}, {"seed": 5}, "with seed=-2, .* with seed=5"),
        ({}, {"drop_last": True}, "with seed=0, drop_last=False .* with seed=0, drop_last=True"),
        ({"seed": 5, "drop_last": True}, {}, "with seed=5, drop_last=True .* with seed=0, drop_last=False"),
        ({"shuffle": False}, {"shuffle": False, "drop_last": True}, "with drop_last=False, .* with drop_last=True"),
    ],
    ids=str,
)
def test_other_arguments_of_a_distributed_sampler_are_refused_in_mid_epoch(
    kind: Any, was: dict[str, Any], now: dict[str, Any], says: str
) -> None:
    def made(options: dict[str, Any]) -> Any:
        return loader(kind(range(LENGTH), 2, 0, **options))

    got, state = after(made(was), 2)
    with pytest.raises(ValueError, match=f"cannot be loaded: its samples were ordered by DistributedSampler .*{says}"):
        made(now).load_state_dict(state)
    assert got + rest_of(made(was), state) == list(kind(range(LENGTH), 2, 0, **was))
    whole = list(kind(range(LENGTH), 2, 0, **now))
    first = made(was)
    states = [through_json(first.state_dict())]  # none of these has a batch
    batches = iter(first)
    states.append(through_json(first.state_dict()))
    list(batches)
    states.append(through_json(first.state_dict()))
    for each in states:
        assert rest_of(made(now), each) == whole


# --------------------------------------------------------------------------------------------- a shorter dataset


class InOrder(Sampler[Any]):
    """The samples in order, or batches of them."""

    def __init__(self, length: int, size: int = 1) -> None:
        self.length, self.size = length, size

    def __len__(self) -> int:
        return -(-self.length // self.size)

    def __iter__(self) -> Iterator[Any]:
        indices = range(self.length)
        return iter(indices if self.size == 1 else [list(indices[k : k + self.size]) for k in indices[:: self.size]])


SHORTER: dict[str, Callable[[int], dict[str, Any]]] = {
    "in order": lambda length: {"batch_size": 5, "sampler": SequentialSampler(range(length))},
    "drawn": lambda length: {"batch_size": 5, "sampler": RandomSampler(range(length))},
    "without batches": lambda length: {"batch_size": None, "sampler": SequentialSampler(range(length))},
    "ours": lambda length: {"batch_size": 5, "sampler": shmloader.DistributedSampler(range(length), 2, 0)},
    "torch's": lambda length: {"batch_size": 5, "sampler": IN_ORDER["DistributedSampler without shuffle"](length)},
    "its own": lambda length: {"batch_size": 5, "sampler": InOrder(length)},
    "its own batches": lambda length: {"batch_sampler": InOrder(length, 5)},
}


@pytest.mark.parametrize(("what", "workers"), [*((what, 0) for what in SHORTER), ("drawn", 1), ("its own batches", 1)])
def test_a_place_past_the_end_of_a_shorter_dataset_is_one_warning(what: str, workers: int) -> None:
    def made(length: int) -> Any:
        return shmloader.DataLoader(range(200), num_workers=workers, **SHORTER[what](length))  # type: ignore[arg-type]

    def warned(length: int, state: Any) -> tuple[int, list[str]]:
        with warnings.catch_warnings(record=True) as caught, made(length) as again:
            warnings.simplefilter("always")
            again.load_state_dict(state)
            got = len(list(again))
            list(again)
        assert all(each.filename == __file__ for each in caught if "is past the end" in str(each.message))
        texts = [str(each.message) for each in caught]
        return got, [text for text in texts if "is past the end" in text or "drawn from" in text]

    state = after(made(LENGTH), 30 if what == "without batches" else 4)[1]
    had = state["batches" if what == "its own batches" else "samples"]
    for length in (11, had - 2):
        got, texts = warned(length, state)
        assert got == 0 and len(texts) == 1
        assert texts[0].startswith("the loaded place, after ") and "so nothing is left of this epoch" in texts[0]
    whole = made(LENGTH)
    behind = after(whole, len(whole))[1]
    assert warned(LENGTH, behind) == (0, []) and warned(LENGTH, state)[1] == []


# ----------------------------------------------------------------------------------------- with a generator or without


def generator(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


FORMS: dict[str, Any] = {
    "shuffle": lambda g: {"batch_size": 4, "shuffle": True, "generator": g},
    "no shuffle": lambda g: {"batch_size": 4, "generator": g},
    "random": lambda g: {"batch_size": 4, "sampler": RandomSampler(range(LENGTH), generator=g)},
    "batches": lambda g: {"batch_sampler": BatchSampler(RandomSampler(range(LENGTH), generator=g), 4, False)},
    "both": lambda g: {
        "batch_size": 4,
        "sampler": RandomSampler(range(LENGTH), generator=g),
        "generator": generator(6),
    },
}


def made(form: str, g: Any, **options: Any) -> Any:
    return shmloader.DataLoader(range(LENGTH), **FORMS[form](g), **options)


@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_one_with_and_one_without_are_refused(form: str, saved: bool) -> None:
    """Before the first epoch, in mid-epoch, and between two epochs."""
    with made(form, generator() if saved else None) as first:
        states = [first.state_dict()]
        batches = iter(first)
        next(batches)
        states.append(first.state_dict())
        list(batches)
        states.append(first.state_dict())
    says = ".* has no generator now, and had one" if saved else ".* has a generator now, and had none"
    for state in states:
        loader = made(form, None if saved else generator())
        before = loader.state_dict()
        with pytest.raises(ValueError, match=f"this state cannot be loaded: {says}.*the order would differ"):
            loader.load_state_dict(state)
        assert loader.state_dict() == before
        made(form, generator(9) if saved else None).load_state_dict(state)


class MakesItLate(RandomSampler):
    """Makes its generator when it is iterated over, as accelerate's does."""

    def __iter__(self) -> Any:
        if self.generator is None:
            self.generator = generator(3)
        yield from super().__iter__()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_that_makes_its_generator_late_goes_on(workers: int) -> None:
    def late() -> Any:
        return shmloader.DataLoader(range(LENGTH), 4, sampler=MakesItLate(range(LENGTH)), num_workers=workers)

    with late() as first:
        batches = iter(first)
        next(batches)
        state = first.state_dict()
        rest = list(batches)
    with late() as again:
        again.load_state_dict(state)
        assert flattened(iterate(again)) == flattened(rest)
