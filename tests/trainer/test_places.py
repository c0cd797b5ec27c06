"""group_by: batches are cut by where their rows lie; what comes is what one worker would have made."""

from __future__ import annotations

import itertools
import pathlib
from typing import Any

import numpy
import pytest
import torch
from conftest import Augmented, Deadly, Items, Raised, assert_same, iterate, seed_all
from test_chunks import Pair, both, item, of_five, ones
from torch.utils.data import ConcatDataset, Subset, default_collate, get_worker_info

import shmloader
from shmloader.protocols.places import storage_place


class Placed(torch.utils.data.Dataset):
    """Items of which it says where each lies."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]

    def __place__(self, index: int) -> int:
        return index % 7


class Who(Placed):
    """Each sample is which worker made it, and how many it had made before."""

    made = 0

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        assert info is not None
        Who.made += 1
        return info.id, Who.made


# --------------------------------------------------------------------------------------------------------- the values


@pytest.mark.parametrize("schedule", ["round_robin", "steal"])
@pytest.mark.parametrize("chunk_size", [None, 1, 3])
def test_batches_are_those_of_one_worker(chunk_size: int | None, schedule: str) -> None:
    dataset = Placed([item(k) for k in range(64)])
    both(dataset, {"batch_size": 10, "shuffle": True}, group_by="place", chunk_size=chunk_size, schedule=schedule)


@pytest.mark.parametrize("place", [lambda index: 0, lambda index: index, lambda index: (None, float(index // 9))])
def test_one_place_and_as_many_as_samples(place: Any) -> None:
    both(Items([item(k) for k in range(40)]), {"batch_size": 8}, group_by=place, schedule="steal")


def test_batches_of_every_size_and_more_tasks_than_the_ring_has_entries() -> None:
    sizes, start, batches = [1, 300, 2, 7, 700, 64, 3, 900], 0, []
    for size in sizes:
        batches.append(list(range(start, start + size)))
        start += size
    both(Items(list(range(start))), {"batch_sampler": batches}, group_by=lambda index: index % 400, prefetch_factor=1)
    tuples = [tuple(batch) for batch in batches]
    both(Items(list(range(start))), {"batch_sampler": tuples}, group_by=of_five, chunk_size=1)


def pairs(samples: list[Any]) -> Any:
    """Arrays of objects and of texts, a tuple of texts, and a tensor whose rows lie far apart."""
    far = torch.stack([torch.full((2, 3), sample) for sample in samples]).permute(0, 2, 1)
    texts = numpy.array([f"text {sample}" * (sample % 4) for sample in samples])
    return Pair(texts, [texts.astype(object), tuple(map(str, samples)), far[:, ::2], numpy.arange(6).reshape(2, 3)[:0]])


def without_the_empty(samples: list[Any]) -> Any:
    return pairs(samples)._replace(label=pairs(samples).label[:3])


def test_rows_that_are_objects_land_where_they_belong() -> None:
    collate = shmloader.row_wise(without_the_empty)
    both(Items(list(range(40))), {"batch_size": 9, "collate_fn": collate, "shuffle": True}, group_by=of_five)


class Into(Placed):
    row_spec = torch.empty(3, 4)

    def __getitem_into__(self, index: int, row: Any) -> Any:
        row.copy_(self[index])
        return row


def test_rows_that_are_written_in_place_where_they_are_one_behind_the_other() -> None:
    both(Into([ones(3, 4) * k for k in range(40)]), {"batch_size": 8, "shuffle": True}, group_by="place")


# ----------------------------------------------------------------------------------------------------- random numbers


def epochs(loader: Any, most: int = 2) -> list[Any]:
    return [batch for _ in range(most) for batch in loader]


@pytest.mark.parametrize("options", [{"sample_seeds": True}, {"schedule": "steal"}])
def test_seeded_samples_are_those_of_a_loader_without_workers(options: dict[str, Any]) -> None:
    found = []
    for ours in ({"num_workers": 0}, {"num_workers": 3, "group_by": of_five}, {"num_workers": 2, "group_by": of_five}):
        seed_all()
        with shmloader.DataLoader(Augmented(40), 6, shuffle=True, **options, **ours) as loader:
            found.append(epochs(loader))
    assert_same(found[1], found[0])
    assert_same(found[2], found[0])


def test_other_draws_are_the_same_in_the_next_run_and_not_torchs() -> None:
    found = []
    for kind, ours in ((shmloader.DataLoader, {"group_by": of_five}),) * 2 + ((torch.utils.data.DataLoader, {}),):
        seed_all()
        found.append(epochs(kind(Augmented(40), 6, shuffle=True, num_workers=2, **ours)))
    assert_same(found[1], found[0])
    assert [batch["i"].tolist() for batch in found[2]] == [batch["i"].tolist() for batch in found[0]]
    assert not all(torch.equal(a["x"], b["x"]) for a, b in zip(found[0], found[2], strict=True))


# ------------------------------------------------------------------------------------------------------- which worker


def test_all_rows_of_a_place_are_one_workers_one_after_the_other() -> None:
    order = torch.randperm(140, generator=torch.Generator().manual_seed(3)).tolist()
    batches = [order[k : k + 14] for k in range(0, 140, 14)]
    with shmloader.DataLoader(Who([0] * 140), batch_sampler=batches, num_workers=2, group_by="place") as loader:
        made = [(int(who), int(number)) for batch in loader for who, number in zip(*batch, strict=True)]
    opened = 0
    for worker in range(2):
        mine = sorted((number, index) for (who, number), index in zip(made, order, strict=True) if who == worker)
        places = [index % 7 for _, index in mine]
        opened += 1 + sum(a != b for a, b in itertools.pairwise(places))
    assert opened <= 3 * (7 + 1)  # three windows of at most 4 batches; one place in each is cut apart for the shares


# ------------------------------------------------------------------------------------------------------------- places


class Odd(Subset[Any]):
    """It gets its samples in its own way, so nobody else knows which index that is."""

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[index]

    def __getitems__(self, indices: Any) -> Any:
        return [self[index] for index in indices]


def test_places_in_torchs_wrappers() -> None:
    placed = Placed(list(range(20)))
    assert storage_place(placed)(9) == 2  # type: ignore[misc]
    assert storage_place(Subset(placed, [9, 8]))(1) == 1  # type: ignore[misc]
    both = storage_place(ConcatDataset([placed, Items([0] * 5), Subset(placed, [9])]))
    assert both is not None
    assert [both(index) for index in (0, 9, 20, 24, 25, -1)] == [(0, 0), (0, 2), (1, None), (1, None), (2, 2), (2, 2)]
    assert both(26) == both(-27) is None
    for without in (Items([0]), ConcatDataset([Items([0])]), Odd(placed, [1])):
        assert storage_place(without) is None


class Says(Placed):
    def __init__(self, says: Any) -> None:
        super().__init__(list(range(30)))
        self.says = says

    def __place__(self, index: int) -> Any:
        if index != 17:
            return index % 3
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


@pytest.mark.parametrize(
    ("says", "kind", "text"),
    [
        (
            KeyError("gone"),
            RuntimeError,
            "__place__ of the dataset raised KeyError for index 17: 'gone'. It has to say",
        ),
        ([1, 2], TypeError, "__place__ of the dataset returned [1, 2] for index 17: unhashable type: 'list'. A place"),
        (torch.tensor(3), TypeError, "returned tensor(3) for index 17: a tensor is equal only to itself. A place has"),
    ],
)
def test_a_place_that_cannot_be_used_is_an_error_in_the_place_of_its_batch(says: Any, kind: Any, text: str) -> None:
    with shmloader.DataLoader(Says(says), 5, num_workers=2, group_by="place") as loader:
        got = iterate(loader)
    assert [one.kind if isinstance(one, Raised) else one.tolist() for one in got] == [
        [*range(5)], [*range(5, 10)], [*range(10, 15)], kind, [*range(20, 25)], [*range(25, 30)]
    ]  # fmt: skip
    assert text in got[3].text


@pytest.mark.parametrize(
    ("dataset", "options", "says"),
    [
        (Items([1]), {}, r"but Items has no __place__\(index\). Write that method"),
        (Placed([1]), {"group_by": "shard"}, "should be 'place'.*but got group_by='shard'"),
        (Placed([1]), {"collate_fn": default_collate.__call__}, "group_by needs default_collate or a collate_fn that"),
        (Placed([1]), {"batch_size": None}, "group_by cuts batches, but got batch_size=None"),
        (Placed([1]), {"in_order": False}, "group_by delivers batches in order, but got in_order=False"),
    ],
)
def test_what_cannot_be_grouped(dataset: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        shmloader.DataLoader(dataset, num_workers=2, **{"group_by": "place", **options})


# ------------------------------------------------------------------------------------------------------------- errors


@shmloader.row_wise
def summed(samples: list[Any]) -> Any:
    return torch.stack(samples).sum(0)


@pytest.mark.parametrize(
    ("items", "options", "says"),
    [
        ([ones(3)] * 3 + [ones(4)] + [ones(3)] * 4, {}, r"equal size, but got \[3\] at entry \d and \[4\] at entry 3"),
        (
            [ones(2)] * 3 + ["text"] + [ones(2)] * 4,
            {},
            r"group_by needs samples of one structure and dtype, but got .* entries \[",
        ),
        ([ones(3)] * 8, {"collate_fn": summed}, "group_by needs a collate function that gives rows.*first dimension"),
    ],
)
def test_samples_that_do_not_make_a_batch(items: list[Any], options: dict[str, Any], says: str) -> None:
    loader = shmloader.DataLoader(
        Items(items), 8, num_workers=2, group_by=lambda index: "alone" if index == 3 else index % 4, **options
    )
    with loader, pytest.raises((RuntimeError, TypeError), match=says):
        next(iter(loader))


class Draws(torch.utils.data.Sampler[Any]):
    """Raises once, in the middle of a window."""

    def __init__(self, at: int) -> None:
        self.at = at

    def __iter__(self) -> Any:
        for k in range(12):
            if k == self.at:
                raise KeyError("the sampler")
            yield [2 * k, 2 * k + 1]


@pytest.mark.parametrize("at", [0, 1, 5, 10])
def test_a_sampler_that_raises(at: int) -> None:
    with shmloader.DataLoader(range(24), batch_sampler=Draws(at), num_workers=2, group_by=of_five) as loader:
        got = iterate(loader)
    whole = [one.tolist() for one in got if not isinstance(one, Raised)]
    assert sum(isinstance(one, Raised) for one in got) == 1
    # one before it is dropped, as torch drops it: NOTE [ One step ], 7
    assert whole == [batch for k in range(at) if (batch := [2 * k, 2 * k + 1]) in whole]
    assert len(whole) == (at - 1 if at >= 4 else 0)


# ------------------------------------------------------------------------------------------------- deaths and resumes


@pytest.mark.parametrize(
    ("deaths", "options"), [([37], {}), ([3, 57, 130], {"schedule": "steal"}), ([3, 57, 130], {"spare_slots": 0})]
)
def test_workers_that_die_are_replaced(tmp_path: pathlib.Path, deaths: list[int], options: dict[str, Any]) -> None:
    dataset = Deadly([item(k) for k in range(160)], tmp_path, deaths)
    with shmloader.DataLoader(
        dataset, 8, num_workers=3, group_by=of_five, on_worker_death="respawn", **options
    ) as loader:
        got = list(loader)
    assert_same(got, list(torch.utils.data.DataLoader(Items(dataset.inner), 8)))
    assert not list(tmp_path.iterdir())


def test_a_death_names_the_rows(tmp_path: pathlib.Path) -> None:
    loader = shmloader.DataLoader(Deadly([1] * 40, tmp_path, [12]), 8, num_workers=2, group_by=of_five)
    says = r"It held rows \[.*4.*\] of batch 1 of this epoch \(indices \[.*12.*\]\)"
    with loader, pytest.raises(RuntimeError, match=says):
        list(loader)


@pytest.mark.parametrize("given", [1, 7])
def test_a_resume_in_mid_epoch(given: int) -> None:
    def loader() -> Any:
        seed_all()
        return shmloader.DataLoader(
            Augmented(90), 8, shuffle=True, num_workers=2, group_by=of_five, sample_seeds=True, persistent_workers=True
        )

    with loader() as first:
        whole = list(first)
    with loader() as second:
        iterator = iter(second)
        got = [next(iterator) for _ in range(given)]
        state = second.state_dict()
    with loader() as third:
        third.load_state_dict(state)
        got += list(third)
    assert_same(got, whole)


class Bad(Placed):
    def __getitem__(self, index: int) -> Any:
        if index % 11 == 4:
            raise ValueError(f"sample {index} is bad")
        return self.items[index]


def test_bad_samples_are_replaced_alike() -> None:
    found = []
    for ours in ({"num_workers": 2}, {"num_workers": 3, "group_by": "place"}):
        seed_all()
        with (
            shmloader.DataLoader(Bad(list(range(90))), 8, shuffle=True, on_bad_sample="skip:50", **ours) as loader,
            pytest.warns(RuntimeWarning, match="sample"),
        ):
            found.append((list(loader), loader.bad_samples.count))
    assert_same(found[1], found[0])


# -------------------------------------------------------------------------------------------------- with look_ahead


class Announced(Placed):
    """Each sample is its index, and the lowest index that __prefetch__ was called with."""

    lowest = 1000

    def __prefetch__(self, indices: list[int]) -> None:
        self.lowest = min(self.lowest, *indices)

    def __getitem__(self, index: int) -> Any:
        return index, self.lowest


def test_a_dataset_that_looks_ahead_hears_indices_and_not_rows() -> None:
    loader = shmloader.DataLoader(
        Announced([0] * 64), batch_size=8, sampler=range(8, 64), num_workers=2, group_by="place", look_ahead=2
    )
    batches = list(loader)
    assert torch.cat([indices for indices, _ in batches]).tolist() == list(range(8, 64))
    assert all((lowest >= 8).all() and (lowest <= indices).all() for indices, lowest in batches)
