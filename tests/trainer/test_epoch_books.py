"""An epoch's books: what was handed out is counted, what was not is kept, and an epoch that drops all is warned of."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from conftest import Augmented, Raised, assert_same, iterate, label, raised, seed_all
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, get_worker_info

import shmloader

LENGTH, BATCH = 22, 4
BATCHES = 6

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork"),
    pytest.mark.filterwarnings("ignore:the sampler .* has no state_dict"),
]


class Stream(IterableDataset[int]):
    """Two workers read every other number each."""

    def __iter__(self) -> Iterator[int]:
        worker = torch.utils.data.get_worker_info()
        me, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return iter(range(me, 24, workers))


def loader(**options: Any) -> shmloader.DataLoader[Any]:
    dataset = options.pop("dataset", None)
    options = {"batch_size": BATCH, "shuffle": dataset is None or None, "num_workers": 2, **options}
    if "sampler" in options or "batch_sampler" in options:
        options["shuffle"] = None
    if "batch_sampler" in options:
        options["batch_size"] = 1
    return shmloader.DataLoader(dataset or Augmented(LENGTH), **options)


# --------------------------------------------------------------------------------------- an iterator that was closed

FORMS: list[dict[str, Any]] = [
    {},
    {"batch_size": None},
    {"batch_sampler": [[0, 1], [2], [3, 4, 5], [6], [7, 8]]},
    {"chunk_size": 2},
    {"schedule": "steal"},
    {"in_order": False, "num_workers": 1},
    {"persistent_workers": True},
    {"device": "cpu", "on_device": dict},
    {"device": "cpu", "on_device": dict, "persistent_workers": True},
    {"device": "cpu", "on_device": dict, "num_workers": 0},
    {"dataset": Stream()},
    {"dataset": Stream(), "persistent_workers": True},
]


@pytest.mark.parametrize(("options", "resumed"), [(form, bool(k % 3)) for k, form in enumerate(FORMS)], ids=label)
def test_a_closed_iterator_keeps_its_epoch_where_it_is(options: dict[str, Any], resumed: bool) -> None:
    seed_all()
    with loader(**options) as made:
        if resumed:
            batches = iter(made)
            next(batches)
            state = made.state_dict()
            made.load_state_dict(state)
        batches = iter(made)
        next(batches)
        next(batches)
        before = made.state_dict()
        expected = list(batches)
    seed_all()
    with loader(**options) as made:
        if resumed:
            batches = iter(made)
            next(batches)
            made.load_state_dict(state)
        batches = iter(made)
        next(batches)
        next(batches)
        batches.close()
        for _ in range(2):
            assert next(batches, None) is None
            state = made.state_dict()
            assert (state["epoch"], state["begun"], state["batches"]) == (0, True, before["batches"])
        made.load_state_dict(state)
        rest = iterate(made)
        assert made.state_dict()["epoch"] == 1 and not made.state_dict()["batches"]
    if "dataset" not in options:
        assert_same([rows(batch) for batch in rest], [rows(batch) for batch in expected])


def rows(batch: Any) -> Any:
    return batch["i"].tolist() if isinstance(batch["i"], torch.Tensor) else batch["i"]


@pytest.mark.parametrize(
    ("left", "options"), [(2, {}), (1, {"persistent_workers": True}), (0, {}), (0, {"persistent_workers": True})]
)
def test_closed_while_the_last_batches_are_under_way(options: dict[str, Any], left: int) -> None:
    """An epoch that came to its end stays over."""
    with loader(**options) as made:
        batches = iter(made)
        for _ in range(BATCHES - left):
            next(batches)
        if not left:
            assert next(batches, None) is None
        batches.close()
        assert next(batches, None) is None
        state = made.state_dict()
        assert (state["epoch"], state["batches"]) == ((0, BATCHES - left) if left else (1, 0))


# ------------------------------------------------------------------------------------- a batch in hand, and a failure


class Order(torch.utils.data.Sampler[int]):
    """Raises, once, in place of its index number `at`, and goes on behind it."""

    def __init__(self, at: int, length: int = 40, ends: bool = True) -> None:
        self.at, self.length, self.ends, self.raised = at, length, ends, False

    def __iter__(self) -> Any:
        return self._ending() if self.ends else _GoingOn(self)

    def _ending(self) -> Iterator[int]:
        for k in range(self.length):
            if k == self.at and not self.raised:
                self.raised = True
                raise ArithmeticError("in the sampler")
            yield k


class _GoingOn:
    def __init__(self, order: Order) -> None:
        self.order, self.k = order, -1

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> int:
        order = self.order
        if self.k + 1 == order.at and not order.raised:
            order.raised = True
            raise ArithmeticError("in the sampler")
        self.k += 1
        if self.k >= order.length:
            raise StopIteration
        return self.k


OPENING: list[dict[str, Any]] = [
    {},
    {"schedule": "steal"},
    {"persistent_workers": True},
    {"in_order": False, "num_workers": 1},
    {"device": "cpu", "on_device": lambda batch: batch},
]


@pytest.mark.parametrize(("options", "ends"), [(each, k % 2 == 0) for k, each in enumerate([*OPENING, {}])], ids=label)
def test_what_the_sampler_raises_counts_as_the_batch_in_whose_place_it_comes(
    options: dict[str, Any], ends: bool
) -> None:
    """torch drops that batch, and so it does not come here either."""
    at = 30
    plain = {"persistent_workers": options.get("persistent_workers", False)}
    workers = options.get("num_workers", 2)
    theirs = iterate(DataLoader(range(40), None, sampler=Order(at, ends=ends), num_workers=workers, **plain))
    with loader(dataset=range(40), batch_size=None, sampler=Order(at, ends=ends), **options) as made:
        batches, got, counts = iter(made), [], []
        while True:
            try:
                got.append(next(batches))
            except StopIteration:
                break
            except ArithmeticError as error:
                got.append(raised(error))
            counts.append(made.state_dict()["batches"])
        place = next(k for k, batch in enumerate(got) if isinstance(batch, Raised))
        assert [place if isinstance(batch, Raised) else batch for batch in got] == list(range(at if ends else 40))
        if "schedule" not in options:  # it is further than torch's loader
            assert_same(got, theirs)
        assert counts == [*range(1, len(got) + 1)]
        assert made.state_dict()["epoch"] == 1


@pytest.mark.parametrize("options", OPENING, ids=label)
def test_saved_where_the_sampler_raised(options: dict[str, Any]) -> None:
    with loader(dataset=range(40), batch_size=None, sampler=Order(30), **options) as made:
        batches, got = iter(made), []
        with pytest.raises(ArithmeticError):
            while True:
                got.append(next(batches))
        state = made.state_dict()
    assert state["batches"] == len(got) + 1
    with loader(dataset=range(40), batch_size=None, sampler=Order(99), **options) as made:
        made.load_state_dict(state)
        assert [*got, len(got), *iterate(made)] == list(range(40))


class Sealed(int):
    """An index that cannot be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("sealed")


BATCHED: list[dict[str, Any]] = [
    {},
    {"schedule": "steal"},
    {"chunk_size": 2},
    {"chunk_size": 2, "schedule": "steal"},
    {"in_order": False, "num_workers": 1},
    {"persistent_workers": True},
    {"device": "cpu", "on_device": lambda batch: batch},
    {"sample_seeds": True},
    {"group_by": lambda index: 0},
]


def until_the_end(made: Any) -> tuple[list[Any], list[tuple[int, int]]]:
    """What each next() of an epoch gives, and how far the epoch is behind each."""
    batches, got, states = iter(made), [], []
    while len(got) < 200:
        try:
            batch = next(batches)
            got.append(batch.tolist() if isinstance(batch, torch.Tensor) else batch)
        except StopIteration:
            return got, states
        except Exception as error:
            got.append(raised(error))
        state = made.state_dict()
        states.append((state["batches"], state["samples"]))
    raise AssertionError("no end")


@pytest.mark.parametrize("options", BATCHED, ids=label)
def test_an_index_that_cannot_be_opened_is_counted_in_its_place(options: dict[str, Any]) -> None:
    order: list[Any] = [[3 * k, 3 * k + 1, 3 * k + 2] for k in range(50)]
    order[40] = [120, Sealed(121)]
    with loader(dataset=range(200), batch_sampler=order, **options) as made:
        got, states = until_the_end(made)
        assert made.state_dict()["epoch"] == 1
    errors = [k for k, batch in enumerate(got) if isinstance(batch, Raised)]
    assert errors == [40], "once, in its place"
    assert [batch for batch in got if not isinstance(batch, Raised)] == [*order[:40], *order[41:]]
    assert states[39:42] == [(40, 120), (41, 122), (42, 125)] or "device" in options
    assert states[-1] == (50, 149)


@pytest.mark.parametrize("options", BATCHED, ids=label)
def test_memory_that_is_short_for_a_while_costs_no_batch(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there are no pages for a batch's indices, what is made comes first, and then that batch."""
    allocate, trainer, short = os.posix_fallocate, os.getpid(), [True]

    def stingy(fd: int, at: int, size: int) -> None:
        if short[0] and os.getpid() == trainer:
            raise OSError(errno.ENOSPC, "No space left on device")
        allocate(fd, at, size)

    order = [[k] * (20_000 if k == 40 else 2) for k in range(50)]
    with loader(dataset=range(200), batch_sampler=order, **options) as made:
        batches, got, errors = iter(made), [], 0
        monkeypatch.setattr(os, "posix_fallocate", stingy)
        while (batch := next_or_error(batches)) is not None:
            if isinstance(batch, MemoryError):
                errors += 1
                if len(got) == 40:
                    assert made.state_dict()["batches"] == 40
                    short[0] = errors < 4
            else:
                got.append(batch.tolist())
        assert errors == 4 and got == order
        assert made.state_dict()["epoch"] == 1


def next_or_error(batches: Any) -> Any:
    try:
        return next(batches, None)
    except MemoryError as error:
        return error


# ---------------------------------------------------------------------------------------------------- without workers


class Pressed(torch.utils.data.Dataset[int]):
    """Somebody presses Ctrl-C, once, where a sample is made; another one raises."""

    def __init__(self, pressed: int, broken: int) -> None:
        self.pressed, self.broken = pressed, broken

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        if index == self.pressed:
            self.pressed = -1
            raise KeyboardInterrupt
        if index == self.broken:
            raise ArithmeticError("broken")
        return index


WITHOUT_WORKERS: list[dict[str, Any]] = [
    {},
    {"batch_size": 1},
    {"batch_size": None},
    {"sample_seeds": True},
    {"schedule": "steal"},
    {"generator": torch.Generator().manual_seed(5)},
]


@pytest.mark.parametrize("options", WITHOUT_WORKERS, ids=label)
@pytest.mark.parametrize("resumed", [False, True])
def test_a_batch_that_was_interrupted_in_the_making_is_made_by_the_next_call(
    options: dict[str, Any], resumed: bool
) -> None:
    seed_all()
    with loader(dataset=Pressed(9, 14), num_workers=0, shuffle=False, **options) as made:
        batches, interrupted = iter(made), 0
        order: list[Any] = []
        while True:
            before = made.state_dict()
            try:
                batch = next(batches)
            except StopIteration:
                break
            except KeyboardInterrupt:
                interrupted += 1
                state = made.state_dict()
                assert (state["batches"], state["samples"]) == (before["batches"], before["samples"])
                if resumed:
                    made.load_state_dict(state)
                    batches = iter(made)
                continue
            except ArithmeticError:
                batch = None
            assert made.state_dict()["batches"] == before["batches"] + 1
            order.append(batch.tolist() if isinstance(batch, torch.Tensor) else batch)
        assert made.state_dict()["epoch"] == 1
    assert interrupted == 1
    size = options.get("batch_size", BATCH)
    if size is None:
        expected: list[Any] = [None if k == 14 else k for k in range(LENGTH)]
    else:
        starts = range(0, LENGTH, size)
        expected = [list(range(k, min(k + size, LENGTH))) for k in starts]
        expected = [None if 14 in batch else batch for batch in expected]
    assert order == expected


# --------------------------------------------------------------------------------------------- an epoch without a batch


class Parts(IterableDataset[int]):
    """Worker k gives so many samples."""

    def __init__(self, *lengths: int) -> None:
        self.lengths = lengths

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        return iter(range(sum(self.lengths) if info is None else self.lengths[info.id]))


def epochs(loader: Any, count: int = 2) -> tuple[list[int], list[str]]:
    """How many batches each epoch had, and the warnings of drop_last, with the file that they name."""
    with warnings.catch_warnings(record=True) as came, loader:
        warnings.simplefilter("always")
        lengths = [len(list(loader)) for _ in range(count)]
    found = [one for one in came if "had no batch" in str(one.message)]
    assert all(one.filename == __file__ for one in found)
    return lengths, [str(one.message) for one in found]


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}, {"in_order": False}])
def test_each_worker_drops_its_only_batch(options: dict[str, Any]) -> None:
    lengths, came = epochs(shmloader.DataLoader(Parts(3, 3), 4, num_workers=2, drop_last=True, **options))
    assert lengths == [0, 0]
    (text,) = came
    assert text.startswith("the epoch had no batch, because drop_last=True drops what does not fill one.")


@pytest.mark.parametrize("workers", [0, 1])
def test_one_stream_is_smaller_than_a_batch(workers: int) -> None:
    lengths, came = epochs(shmloader.DataLoader(Parts(3), 4, num_workers=workers, drop_last=True))
    assert (lengths, len(came)) == ([0, 0], 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_is_smaller_than_a_batch(workers: int) -> None:
    for options in (
        {"batch_size": 4, "drop_last": True, "shuffle": True},
        {"batch_sampler": BatchSampler(range(3), 4, drop_last=True)},
    ):
        lengths, came = epochs(shmloader.DataLoader(range(3), num_workers=workers, **options))
        assert (lengths, len(came)) == ([0, 0], 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_other_empty_epochs_and_parts_are_no_warning(workers: int) -> None:
    for dataset, options in (
        (Parts(5, 3), {"drop_last": True}),  # one worker drops all it has
        (Parts(0, 0), {}),
        (Parts(1, 1), {}),
        ([], {"drop_last": True}),
        (range(9), {"drop_last": True}),
        (range(3), {"drop_last": True, "sampler": torch.utils.data.SubsetRandomSampler([])}),
        (range(3), {"batch_sampler": []}),
    ):
        if "batch_sampler" not in options:
            options["batch_size"] = 4
        assert epochs(shmloader.DataLoader(dataset, num_workers=workers, **options))[1] == []


@pytest.mark.parametrize("workers", [0, 2])
def test_next_may_be_called_after_the_end_of_an_empty_epoch(workers: int) -> None:
    for dataset in ([], Parts(0, 0)):
        with shmloader.DataLoader(dataset, 4, num_workers=workers) as loader:
            batches = iter(loader)
            assert [list(batches) for _ in range(3)] == [[], [], []]


@pytest.mark.filterwarnings("ignore:the dataset Parts has no state_dict")
@pytest.mark.parametrize("workers", [0, 1])
def test_the_empty_rest_of_an_epoch_is_no_warning(workers: int) -> None:
    for dataset in (range(9), Parts(9)):
        with shmloader.DataLoader(dataset, 4, num_workers=workers, drop_last=True) as first:
            for _ in first:
                state = first.state_dict()
        second = shmloader.DataLoader(dataset, 4, num_workers=workers, drop_last=True)
        second.load_state_dict(state)
        assert epochs(second) == ([0, 2], [])
