"""A state in mid-epoch records what decides the order, and a loader with another order does not load it."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from test_resume import through_json
from torch.utils.data import (
    BatchSampler,
    Dataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import shmloader
from shmloader.resume.order import Order, order_in

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork"),
]
LENGTH = 47
Made = Callable[[int], Any]


def distributed(kind: Any, **options: Any) -> Made:
    return lambda length: kind(range(length), 2, 0, **options)


class Shard(BatchSampler):
    """Gives the batches of another batch sampler, as accelerate's shards do."""

    def __init__(self, batches: BatchSampler) -> None:
        self.batch_sampler, self.batch_size, self.drop_last = batches, batches.batch_size, False

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batch_sampler)


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


class Indices:
    """A dataset that returns what it is asked for: an index, or a list of them."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: Any) -> Any:
        return index


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
    made.load_state_dict(state)
    with made:
        return flattened(list(made))


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


def test_a_shard_of_a_drawn_order() -> None:
    def made(length: int) -> Any:
        return shmloader.DataLoader(
            range(200), batch_sampler=Shard(BatchSampler(RandomSampler(range(length)), 5, False))
        )

    state = after(made(LENGTH), 2)[1]
    assert state["sampler"] == "Shard of RandomSampler of 47 samples"
    with pytest.warns(RuntimeWarning, match="drawn from 47 samples, and now there are 60"):
        rest_of(made(60), state)


class Growing(Dataset[int]):
    """Has more samples in each epoch."""

    length = 20

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index

    def set_epoch(self, epoch: int) -> None:
        self.length = 20 + 10 * epoch


@pytest.mark.filterwarnings("error:the loaded state's order")
def test_the_length_is_compared_when_the_epoch_begins() -> None:
    """set_epoch(), which a dataset may follow, is called behind load_state_dict()."""

    def made() -> Any:
        return shmloader.DataLoader(Growing(), 5, shuffle=True, num_workers=1)

    first = made()
    first.set_epoch(2)
    got, state = after(first, 3)
    again = made()
    again.load_state_dict(state)
    again.set_epoch(2)
    with again:
        assert sorted(got + flattened(list(again))) == list(range(40))
    grows = made()
    grows.set_epoch(2)
    grows.load_state_dict(state)
    grows.dataset.length = 50
    with grows, pytest.raises(RuntimeWarning, match="drawn from 40 samples, and now there are 50"):
        iter(grows)


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}], ids=str)
@pytest.mark.parametrize("how", ["iter", "second"])
def test_another_length_is_one_warning_that_names_the_users_line(how: str, options: dict[str, Any]) -> None:
    state = after(loader(RandomSampler(range(LENGTH))), 2)[1]
    with loader(RandomSampler(range(60)), **options) as made, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if how == "second":
            list(made)
        made.load_state_dict(state)
        list(made)
        list(made)
    found = [each.filename for each in caught if "drawn from 47" in str(each.message)]
    assert found == [__file__]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_place_that_is_dropped_names_the_users_line(workers: int) -> None:
    state = after(loader(shmloader.DistributedSampler(range(LENGTH), 2, 0)), 2)[1]
    with loader(shmloader.DistributedSampler(range(LENGTH), 2, 0), num_workers=workers) as made:
        made.load_state_dict(state)
        made.sampler.set_epoch(1)
        with pytest.warns(RuntimeWarning, match="so the next epoch starts at its beginning") as caught:
            iter(made)
    assert [each.filename for each in caught if "at its beginning" in str(each.message)] == [__file__]


@pytest.mark.parametrize("ranks", [1, 3])
def test_other_ranks_have_the_same_length(ranks: int) -> None:
    state = after(loader(DRAWN["DistributedSampler"](LENGTH)), 2)[1]
    parts = [rest_of(loader(shmloader.DistributedSampler(range(LENGTH), ranks, k)), state) for k in range(ranks)]
    assert len(set(itertools.chain(*parts))) == LENGTH - 20


class Backwards(shmloader.DistributedSampler):
    def __iter__(self) -> Iterator[int]:
        return reversed([*super().__iter__()])


def test_other_ranks_cannot_divide_an_order_of_ones_own() -> None:
    state = after(loader(Backwards(range(LENGTH), 2, 0)), 2)[1]
    says = r"now there are 3\. Backwards has its own __iter__\(\), so the loader cannot divide.*Use as many ranks until"
    with pytest.raises(ValueError, match=says):
        loader(Backwards(range(LENGTH), 3, 0)).load_state_dict(state)


@pytest.mark.parametrize("replacement", [False, True])
def test_a_number_of_samples_alone_may_change(replacement: bool) -> None:
    def made(number: int) -> list[Any]:
        weights = [1.0 + k % 3 for k in range(LENGTH)]
        return [RandomSampler(range(LENGTH), replacement, number), WeightedRandomSampler(weights, number, replacement)]

    for before, now in ((20, 40), (40, 20)):
        for sampler, other in zip(made(before), made(now), strict=True):
            torch.manual_seed(1)
            whole = after(loader(other), now // 5)[0]
            torch.manual_seed(1)
            got, state = after(loader(sampler), 2)
            assert got + rest_of(loader(other), state) == whole


@pytest.mark.parametrize("kind", [RandomSampler, WeightedRandomSampler])
@pytest.mark.parametrize("before", [False, True])
def test_replacement_makes_another_order(before: bool, kind: Any) -> None:
    def made(replacement: bool) -> Any:
        source = range(LENGTH) if kind is RandomSampler else [1.0] * LENGTH
        return loader(kind(source, num_samples=20, replacement=replacement))

    state = after(made(before), 2)[1]
    with pytest.raises(ValueError, match=f"ordered by {kind.__name__}( with replacement)?, and this loader's are by"):
        made(not before).load_state_dict(state)


def test_shuffle_of_a_distributed_sampler_makes_another_order() -> None:
    drawn, in_order = DRAWN["DistributedSampler"], IN_ORDER["DistributedSampler without shuffle"]
    for before, now in ((drawn, in_order), (in_order, drawn)):
        state = after(loader(before(LENGTH)), 2)[1]
        with pytest.raises(ValueError, match="ordered by DistributedSampler"):
            loader(now(LENGTH)).load_state_dict(state)


@pytest.mark.parametrize("sampler", [*DRAWN, *IN_ORDER])
def test_a_state_of_an_older_version_has_the_name_alone(sampler: str) -> None:
    made = {**DRAWN, **IN_ORDER}[sampler]
    state = after(loader(made(LENGTH)), 2)[1]
    old = {**state, "sampler": sampler.replace(",", " ").split(" ")[0]}
    assert rest_of(loader(made(LENGTH)), old) == rest_of(loader(made(LENGTH)), state)
    loader(made(60)).load_state_dict(old)


class Curriculum(Sampler[int]):
    """Gives the samples in order in the first epoch, and shuffled ones afterwards."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        shuffled = RandomSampler(range(self.length), generator=torch.Generator().manual_seed(epoch))
        self.sampler: Sampler[int] = shuffled if epoch else SequentialSampler(range(self.length))

    def __iter__(self) -> Iterator[int]:
        return iter(self.sampler)

    def __len__(self) -> int:
        return self.length


class Late(Curriculum):
    """Makes the sampler inside it when an epoch begins."""

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        super().set_epoch(self.epoch)
        return super().__iter__()


class SometimesShuffled(shmloader.DistributedSampler):
    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self.shuffle = epoch < 2


class SometimesTwice(RandomSampler):
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.replacement = epoch > 1


class GrowingBatches(BatchSampler):
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.batch_size = 2 + epoch


FOLLOWS_THE_EPOCH: dict[str, Callable[[], Any]] = {
    "its inner sampler": lambda: Curriculum(48),
    "an inner sampler made late": lambda: Late(48),
    "shuffle": lambda: SometimesShuffled(range(48), 1, 0),
    "replacement": lambda: SometimesTwice(range(48)),
    "batch size": lambda: GrowingBatches(RandomSampler(range(48)), 2, False),
}


@pytest.mark.filterwarnings("ignore:the sampler .* has no state_dict")
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("what", FOLLOWS_THE_EPOCH)
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


class Odd(list[int]):
    """Has a length that cannot be asked while `fails`."""

    fails = False
    asked = 0

    def __len__(self) -> int:
        self.asked += 1
        if self.fails:
            raise OSError("no connection")
        return super().__len__()


def test_a_length_that_cannot_be_asked_is_not_recorded() -> None:
    source = Odd(range(LENGTH))
    made = loader(RandomSampler(source))
    batches = iter(made)
    next(batches)
    asked = source.asked
    state = made.state_dict()
    assert state["sampler"] == "RandomSampler of 47 samples" and source.asked == asked
    source.fails = True
    loader(made.sampler).load_state_dict(state)
    subset: Any = loader(SubsetRandomSampler(source))
    iter(subset)
    assert subset.state_dict()["sampler"] == "SubsetRandomSampler alone"


@pytest.mark.parametrize(
    "order",
    [
        Order("SequentialSampler"),
        Order("SequentialSampler", is_name_only=True),
        Order("RandomSampler with replacement", number=60),
        Order("Shard of RandomSampler", number=0),
        Order("DistributedSampler without shuffle", ("BatchSampler(3, drop_last)", "BatchSampler(2)")),
        Order("Mine", ("BatchSampler(3)",)),
        Order("DistributedSampler", number=60, settings=("seed=-3", "drop_last=False")),
        Order("DistributedSampler", ("BatchSampler(3)",), settings=("seed=7", "drop_last=True")),
        Order("DistributedSampler without shuffle", settings=("drop_last=True",)),
    ],
    ids=str,
)
def test_the_text_of_an_order(order: Order) -> None:
    assert order_in(str(order)) == order
    assert order.name in ("SequentialSampler", "RandomSampler", "Shard", "DistributedSampler", "Mine")


# ------------------------------------------------------------------------------------- a batch sampler inside another


@pytest.mark.parametrize("between", [(), (2,)])
@pytest.mark.parametrize("now", [1, 2, 3])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_lists_continue_with_another_batch_size(workers: int, now: int, between: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    whole = after(nested(1, between=between), 16 if not between else 8)[0]
    torch.manual_seed(1)
    got, state = after(nested(2, workers=workers, between=between), 3)
    again = nested(now, workers=workers, between=between)
    assert sorted(whole) == list(range(48))
    assert got + rest_of(again, state) == whole


@pytest.mark.parametrize("generator", [None, 3])
def test_the_epochs_after_it_are_those_of_an_uninterrupted_run(generator: int | None) -> None:
    def made(size: int) -> Any:
        own = None if generator is None else torch.Generator().manual_seed(generator)
        return nested(size, sampler=RandomSampler(range(48), generator=own))

    for taken in (0, 3):
        torch.manual_seed(1)
        first = made(2)
        batches = iter(first)
        got = flattened([next(batches) for _ in range(taken)])
        state, of_global = through_json(first.state_dict()), torch.get_rng_state()
        wanted = [flattened([*got, *batches]), flattened([*first]), flattened([*first])]
        again = made(4)
        again.load_state_dict(state)
        torch.manual_seed(99)
        torch.set_rng_state(of_global)
        assert [flattened([*got, *again]), flattened([*again]), flattened([*again])] == wanted


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
        ({"inner": 4}, r"inside the loader's was BatchSampler\(3\), and now it is BatchSampler\(4\). Use the samplers"),
        ({"drop_last": True}, r"was BatchSampler\(3\), and now it is BatchSampler\(3, drop_last\)"),
        ({"between": (2,)}, r"was BatchSampler\(3\), and now it is BatchSampler\(2\) of BatchSampler\(3\)"),
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
    with pytest.raises(ValueError, match=r"was BatchSampler\(3\), and now it is none"):
        loader(RandomSampler(range(48))).load_state_dict(state)
    with pytest.raises(ValueError, match=r"was none, and now it is BatchSampler\(3\)"):
        nested(2).load_state_dict(after(loader(RandomSampler(range(48))), 3)[1])

    for sampler in (SequentialSampler(range(48)), Numbers()):
        state = after(loader(sampler), 3)[1]
        assert state["sampler"] == f"{type(sampler).__name__} alone"
        made = nested(2, sampler=sampler)
        with pytest.raises(ValueError, match=r"was none, and now it is BatchSampler\(3\)"):
            made.load_state_dict(state)
        made.load_state_dict({**state, "sampler": type(sampler).__name__})  # of an older version


class Numbers(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(48))

    def __len__(self) -> int:
        return 48


def test_a_state_of_an_older_version_has_no_inner_batch_sampler() -> None:
    state = after(nested(2), 3)[1]
    assert rest_of(nested(2), {**state, "sampler": "RandomSampler"}) == rest_of(nested(2), state)


def test_one_batch_sampler_without_automatic_batching_may_have_another_size() -> None:
    def made(size: int) -> Any:
        sampler = BatchSampler(RandomSampler(range(48)), size, False)
        return shmloader.DataLoader(Indices(), None, sampler=sampler, collate_fn=list)  # type: ignore[arg-type]

    got, state = after(made(5), 3)
    assert sorted(got + rest_of(made(3), state)) == list(range(48))
