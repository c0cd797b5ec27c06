"""on_bad_sample="skip": what raises is replaced, by the same whoever makes the batch, and it is counted."""

from __future__ import annotations

import os
import signal
import warnings
from typing import Any

import numpy
import pytest
import torch
from conftest import assert_same, iterate, label, seed_all
from torch.utils.data import IterableDataset, Subset

import shmloader
from shmloader.trainer.bad_samples import BadSamples

LENGTH, BATCH = 60, 4
BAD = {3, 17, 18, 40}

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork"),
    pytest.mark.filterwarnings("ignore:sample .* raised"),
]


class Rotten(torch.utils.data.Dataset):
    """Samples that say which they are and have something random; those of `bad` raise."""

    def __init__(self, length: int = LENGTH, bad: Any = frozenset(BAD)) -> None:
        self.length, self.bad = length, bad

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        noise = torch.rand(2)
        if index in self.bad:
            raise OSError(f"sample {index} is rotten")
        return {"i": index, "noise": noise, "s": f"item {index}"}  # of which only pickle carries one


class AtOnce(Rotten):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class InRows(Rotten):
    def __getitem__(self, index: int) -> Any:
        return self.__getitem_into__(index, (torch.empty(3), None))

    def __getitem_into__(self, index: int, row: Any) -> Any:
        row[0][:] = -1
        row[0][0] = index
        if index in self.bad:
            raise OSError(f"sample {index} is rotten")
        row[0][1:] = index
        return row[0], index


def loader(workers: int, **options: Any) -> shmloader.DataLoader[Any]:
    dataset = options.pop("dataset", None) or Rotten()
    options = {"batch_size": BATCH, "shuffle": True, "on_bad_sample": "skip", **options}
    if workers == 0:
        options = {name: value for name, value in options.items() if name not in ("persistent_workers",)}
    return shmloader.DataLoader(dataset, num_workers=workers, **options)


def epochs(workers: int, count: int = 1, **options: Any) -> tuple[list[Any], BadSamples]:
    seed_all()
    with loader(workers, **options) as made:
        return [iterate(made) for _ in range(count)], made.bad_samples


def indices(batches: list[Any]) -> list[int]:
    return [i for batch in batches for i in (batch["i"] if isinstance(batch, dict) else batch[1]).tolist()]


def test_bad_samples_are_replaced_counted_and_warned_of_once() -> None:
    with pytest.warns(RuntimeWarning, match="sample .* raised, and sample .* came in its place") as warned:
        (first, second), found = epochs(1, 2)
    assert len([one for one in warned if "came in its place" in str(one.message)]) == 1  # others may be of the fork
    assert found.count == 2 * len(BAD) and {bad.index for bad in found.first} == BAD
    for batches in (first, second):
        given = indices(batches)
        assert len(given) == LENGTH and not BAD & set(given)
    for bad in found.first[: len(BAD)]:
        assert bad.instead in indices(first) and indices(first).count(bad.instead) >= 2
        assert f"OSError: sample {bad.index} is rotten" in bad.error and "in __getitem__" in bad.error
    of_first = {bad.index: bad.instead for bad in found.first[: len(BAD)]}
    of_second = {bad.index: bad.instead for bad in found.first[len(BAD) :]}
    assert of_first != of_second, "the epoch counts"
    assert len(set(of_first.values())) > 1, "and so does the index"


def test_good_samples_are_torchs() -> None:
    seed_all()
    expected = iterate(torch.utils.data.DataLoader(Rotten(bad=()), BATCH, shuffle=True, num_workers=2))
    (given,), found = epochs(2, dataset=Rotten(bad=()))
    assert_same(given, expected)
    assert found == BadSamples()


@pytest.mark.parametrize(
    "options",
    [
        {"schedule": "steal"},
        {"chunk_size": 2},
        {"schedule": "steal", "chunk_size": 3},
        {"dataset": AtOnce()},
        {"dataset": Subset(Rotten(), range(60))},
        {"in_order": True, "persistent_workers": True},
    ],
    ids=label,
)
def test_the_same_for_any_number_of_workers_and_whoever_makes_them(options: dict[str, Any]) -> None:
    expected, found = epochs(0, sample_seeds=True)
    assert found.count == len(BAD)
    for workers in (1, 2):
        given, text = epochs(workers, sample_seeds=True, **options)
        assert_same(given, expected)
        assert [(bad.index, bad.instead) for bad in text.first] == [(bad.index, bad.instead) for bad in found.first]


def test_rows_in_place_are_overwritten() -> None:
    dataset = InRows()
    expected, _ = epochs(0, dataset=dataset)
    for options in ({}, {"chunk_size": 2}):
        given, found = epochs(2, dataset=dataset, **options)
        assert_same(given, expected)
        assert found.count == len(BAD)
    for values, i in expected[0]:
        assert (values == i[:, None]).all()


@pytest.mark.parametrize("workers", [0, 2])
def test_single_samples(workers: int) -> None:
    given, found = epochs(workers, batch_size=None, sample_seeds=True)
    assert_same(given, epochs(0, batch_size=None, sample_seeds=True)[0])
    assert found.count == len(BAD) and len(given[0]) == LENGTH


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("at", [0, 5, 15])
def test_after_a_resume_the_same_come(workers: int, at: int) -> None:
    seed_all()
    with loader(2, sample_seeds=True) as first:
        batches = iter(first)
        for _ in range(at):
            next(batches)
        state, rest = first.state_dict(), list(batches)
        of_all = first.bad_samples.count
    seed_all(8)
    with loader(workers, sample_seeds=True) as again:
        again.load_state_dict(state)
        assert_same(list(again), rest)
        assert again.bad_samples.count <= of_all == len(BAD), "counts begin anew"


def test_after_a_respawn_the_same_come() -> None:
    class Deadly(Rotten):
        def __getitem__(self, index: int) -> Any:
            if index == 41 and os.getpid() != trainer and not os.path.exists(marker):
                open(marker, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__getitem__(index)

    trainer, marker = os.getpid(), f"/dev/shm/test_bad_samples.{os.getpid()}"
    expected, found = epochs(0, sample_seeds=True, shuffle=False)
    try:
        given, text = epochs(2, sample_seeds=True, shuffle=False, dataset=Deadly(), on_worker_death="respawn")
        assert os.path.exists(marker)
    finally:
        os.unlink(marker)
    assert_same(given, expected)
    assert text.count == found.count


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("most", "allowed"), [(":2", 2), (":0", 0), ("", 10), (":0.5", 10)])
def test_too_many_are_an_error(workers: int, most: str, allowed: int) -> None:
    rotten = set(range(0, LENGTH, 2))
    options: dict[str, Any] = {"dataset": Rotten(bad=rotten), "on_bad_sample": f"skip{most}", "shuffle": False}
    given = [0.5] if most == ":0.5" else []
    with loader(workers, **options) as made:
        if given:  # half of 60 may be bad, and 10 at least: the first 20 have 10
            assert len(iterate(made)) == LENGTH // BATCH
            return
        batches = iter(made)
        for _ in range(allowed // 2):
            next(batches)
        with pytest.raises(RuntimeError, match=f"{allowed + 2} of the {2 * allowed + 4} samples asked for") as error:
            next(batches)
        text = str(error.value)
        assert f"on_bad_sample='skip{most}' allows {allowed}" in text and "OSError: sample 0 is rotten" in text
        del batches


@pytest.mark.parametrize("workers", [0, 2])
def test_the_limit_is_for_each_epoch(workers: int) -> None:
    given, found = epochs(workers, 3, on_bad_sample=f"skip:{len(BAD)}", persistent_workers=True)
    assert [len(indices(batches)) for batches in given] == [LENGTH] * 3
    assert found.count == 3 * len(BAD) and len(found.first) == 10


@pytest.mark.parametrize("workers", [0, 1])
def test_where_all_are_bad_it_is_given_up(workers: int) -> None:
    with loader(workers, dataset=Rotten(bad=range(LENGTH))) as made:
        with pytest.raises(RuntimeError, match="the 16 others that were tried") as error:
            next(iter(made))
        first, last = str(error.value).split("The last of the others' errors was:")
        assert first.count("is rotten") == last.count("is rotten") == 2, "the line of the code, and the error's"
        assert made.bad_samples.count == 0
    with loader(workers, dataset=Rotten(1, bad=[0])) as made, pytest.raises(RuntimeError, match="the 0 others"):
        next(iter(made))


def raise_always(samples: Any) -> Any:
    raise OSError("collate")


@pytest.mark.parametrize("workers", [0, 1])
def test_collate_is_never_skipped(workers: int) -> None:
    with loader(workers, dataset=Rotten(bad=()), collate_fn=raise_always) as made:
        with pytest.raises(OSError, match="collate"):
            next(iter(made))
        assert made.bad_samples.count == 0


class Interrupting(Rotten):
    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.error = error

    def __getitem__(self, index: int) -> Any:
        if index in self.bad:
            raise self.error
        return super().__getitem__(index)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_end_is_no_bad_sample(error: type[BaseException]) -> None:
    with pytest.raises(error):
        next(iter(loader(0, dataset=Interrupting(error), shuffle=False)))


class Hiccuping(Rotten):
    """Its file system is away for a moment: two samples raise once."""

    def __init__(self) -> None:
        super().__init__(bad=())
        self.away = {3, 17}

    def __getitem__(self, index: int) -> Any:
        if index in self.away:
            self.away.remove(index)
            raise OSError(f"sample {index} is away")
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_that_does_not_come_again_is_no_bad_sample(workers: int) -> None:
    """Subset has a __getitems__, so each of its samples is asked for once more."""
    (given,), found = epochs(workers, dataset=Subset(Hiccuping(), range(LENGTH)), shuffle=False)
    assert indices(given) == list(range(LENGTH)) and found == BadSamples()


@pytest.mark.parametrize("workers", [0, 1])
def test_an_index_without_a_number(workers: int) -> None:
    made = loader(workers, sampler=["a", "b"], shuffle=None, dataset=Rotten(bad=("a", "b")))
    with made, pytest.raises(TypeError, match="replaces a sample by its number, and this index is a str"):
        next(iter(made))


def test_other_numbers() -> None:
    given, found = epochs(1, sampler=[numpy.int64(i) for i in range(8)], shuffle=None)
    assert found.count == 1 and found.first[0].index == 3 and len(indices(given[0])) == 8


@pytest.mark.parametrize("workers", [0, 1])
def test_a_warning_that_is_an_error_comes_once(workers: int) -> None:
    with loader(workers, shuffle=False) as made:
        batches = iter(made)
        with warnings.catch_warnings(), pytest.raises(RuntimeWarning, match="sample 3 raised"):
            warnings.simplefilter("error")
            next(batches)
        assert len(list(batches)) == LENGTH // BATCH - 1 and made.bad_samples.count == len(BAD)


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(range(4))


class Unsized:
    def __getitem__(self, index: int) -> int:
        return index


class Odd:
    def __iter__(self) -> Any:
        return iter(range(4))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_bad_sample": "drop"}, "should be 'raise', 'skip', or 'skip:' with .*, but got on_bad_sample='drop'"),
        *(
            ({"on_bad_sample": wrong}, f"got on_bad_sample={wrong!r}. For example 'skip:20' or 'skip:0.05'")
            for wrong in ("skip:", "skip:-1", "skip:0.0", "skip:1.5", "skip:nan", "skip:few", "raise:3", True, 0.05)
        ),
        ({"on_bad_sample": "skip", "dataset": Stream()}, "needs a map-style dataset, but got Stream"),
        (
            {"on_bad_sample": "skip", "dataset": Unsized(), "sampler": Odd()},
            "Unsized has no __len__ and Odd no indices",
        ),
    ],
    ids=label,
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shmloader.DataLoader(**{"dataset": Rotten(), **options})
