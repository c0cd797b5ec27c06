"""Streams: each state has the place of each stream, wherever it is saved: in an epoch, and between two."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from scripts import run_script
from torch.utils.data import IterableDataset, get_worker_info

import shmloader
from shmloader.resume import iterables
from shmloader.ring import geometry
from shmloader.ring.segment import Segment

LENGTH = 26

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
without_warnings = pytest.mark.filterwarnings(
    "error:the (dataset|sampler|loaded state) ", "error:the state of this loader lacks"
)


class Numbers(IterableDataset[int]):
    """A worker's numbers, and where it is in them.  Worker 1 has fewer."""

    def __init__(self, length: int = LENGTH) -> None:
        self.length, self.at = length, 0

    def part(self) -> list[int]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return list(range(first, self.length - 6 * (first % 2), step))

    def __iter__(self) -> Iterator[int]:
        numbers = self.part()
        while self.at < len(numbers):
            self.at += 1
            yield numbers[self.at - 1]
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Counting(Numbers):
    """It counts its epochs at their end, and each has an order of its own."""

    def __init__(self, length: int = LENGTH) -> None:
        super().__init__(length)
        self.epoch = 0

    def part(self) -> list[int]:
        numbers = super().part()
        random.Random(self.epoch).shuffle(numbers)
        return numbers

    def __iter__(self) -> Iterator[int]:
        yield from super().__iter__()
        self.epoch += 1

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.epoch = state["at"], state["epoch"]


class Shuffled:
    """An iterator that says where it is, and of which order."""

    def __init__(self, numbers: list[int], epoch: int) -> None:
        self.numbers, self.epoch, self.at = numbers, epoch, 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        order = list(self.numbers)
        random.Random(self.epoch).shuffle(order)
        if self.at >= len(order):
            raise StopIteration
        self.at += 1
        return order[self.at - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.epoch = state["at"], state["epoch"]


class CountingAtIter(Numbers):
    """It counts its epochs when it is asked for an iterator, which says where it is."""

    def __init__(self, length: int = LENGTH) -> None:
        super().__init__(length)
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        return Shuffled(self.part(), self.epoch)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # in mid-epoch the iterator says which order it is of; what counts here is how often there was one
        self.epoch = state["epoch"]


class Hers(Numbers):
    """As Hugging Face's: it begins each time where it was loaded, in the epoch that the state is of."""

    def __init__(self, length: int = LENGTH) -> None:
        super().__init__(length)
        self.epoch, self.now, self.start = 0, {"at": 0, "epoch": 0}, None

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        self.now = {"at": 0, "epoch": self.epoch}
        if self.start is not None and self.start["epoch"] == self.epoch:
            self.now["at"] = self.start["at"]
        numbers = self.part()
        random.Random(self.epoch).shuffle(numbers)
        while self.now["at"] < len(numbers):
            self.now["at"] += 1
            yield numbers[self.now["at"] - 1]

    def state_dict(self) -> dict[str, Any]:
        return dict(self.now)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = dict(state)


def loader(dataset: Any, workers: int, **options: Any) -> shmloader.DataLoader[Any]:
    if not workers:
        options = {name: value for name, value in options.items() if name not in ("persistent_workers", "in_order")}
    return shmloader.DataLoader(dataset, **{"batch_size": 3, **options}, num_workers=workers)


def saved(made: Any) -> dict[str, Any]:
    return json.loads(json.dumps(made.state_dict()))


# --------------------------------------------------------------------------------------------- behind each batch


SHORT = {(1, 2, True), (2, 2, True), (2, 1, True), (3, 4, False)}


@pytest.mark.parametrize(
    ("workers", "prefetch", "in_order"),
    [
        pytest.param(*case, marks=() if case in SHORT else pytest.mark.long)
        for case in itertools.product((1, 2, 3), (1, 2, 4), (True, False))
    ],
)
@without_warnings
@pytest.mark.parametrize("keeps", [False, pytest.param(True, marks=pytest.mark.long)])
def test_each_state_has_the_place_of_each_stream(workers: int, prefetch: int, in_order: bool, keeps: bool) -> None:
    """With more batches than there are cells, some of which are kept, so that slots are short."""
    had, all_kept = [0] * workers, []
    with loader(Numbers(90), workers, prefetch_factor=prefetch, in_order=in_order) as made:
        for batch in made:
            had[int(batch[0]) % workers] += len(batch)
            if keeps:
                all_kept.append(batch)
            (streams,) = made.state_dict()["streams"]
            for stream, count in zip(streams, had, strict=True):
                if stream["batches"] and not stream["ended"]:
                    assert (stream["state"]["dataset"]["at"], stream["samples"]) == (count, count)
                elif stream["batches"]:
                    assert stream["state"]["dataset"]["at"] in (0, count)


@pytest.mark.parametrize(
    ("workers", "options"),
    [
        (2, {}),
        (1, {"persistent_workers": True}),
        pytest.param(1, {}, marks=pytest.mark.long),
        pytest.param(3, {"prefetch_factor": 1, "drop_last": True}, marks=pytest.mark.long),
        pytest.param(2, {"batch_size": None, "prefetch_factor": 1}, marks=pytest.mark.long),
    ],
)
@without_warnings
def test_a_run_goes_on_from_behind_each_batch(workers: int, options: dict[str, Any]) -> None:
    expected, states = [], []
    with loader(Numbers(), workers, **options) as one:
        for batch in one:
            expected.append(batch)
            states.append(saved(one))
    for behind, state in enumerate(states, 1):
        with loader(Numbers(), workers, **options) as other:
            other.load_state_dict(state)
            rest = list(other)
        assert torch.equal(_whole(rest), _whole(expected[behind:]))


def _whole(batches: list[Any]) -> torch.Tensor:
    return torch.cat([torch.as_tensor(batch).reshape(-1) for batch in [*batches, torch.tensor([], dtype=torch.int64)]])


def test_a_sequence_without_a_cell_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one cell less than is proved to be enough, none is left out in silence."""
    monkeypatch.setattr(geometry, "cells_for", lambda entries, workers: entries + workers)
    with loader(Numbers(90), 1) as made, pytest.raises(SystemError, match="no cell for a stream's state"):
        list(made)


def test_a_state_that_lacks_a_stream_warns_when_it_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = Segment.commit_state

    def refused(self: Segment, cell: int, size: int) -> int:
        if get_worker_info().id == 1:
            raise MemoryError("no pages")
        return commit(self, cell, size)

    monkeypatch.setattr(Segment, "commit_state", refused)
    with loader(Numbers(), 2) as one:
        batches = iter(one)
        had = [next(batches)]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            one.state_dict()  # worker 1 has given nothing yet
        had.append(next(batches))
        with pytest.warns(RuntimeWarning, match="lacks the place of 1 of its streams.*worker 1.*make /dev/shm larger"):
            state = saved(one)
        rest = list(batches)
    monkeypatch.undo()
    with loader(Numbers(), 2) as other:
        with pytest.warns(RuntimeWarning, match="lacks the place of Numbers in worker 1"):
            other.load_state_dict(state)
        assert torch.equal(_whole(list(other)), _whole(rest)), "it is read through"


@without_warnings
@pytest.mark.parametrize("death", ["raise", "respawn"])  # which a stream's worker cannot
def test_a_run_goes_on_from_where_a_worker_died(death: str) -> None:
    with loader(Numbers(60), 2) as one:
        expected = list(one)
    had = []
    with loader(Numbers(60), 2, on_worker_death=death) as one:
        batches: Any = iter(one)
        had += [next(batches) for _ in range(3)]
        os.kill(batches._workers[1].pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match="killed by signal"):
            while True:
                had.append(next(batches))
        state = saved(one)
    with loader(Numbers(60), 2) as other:
        other.load_state_dict(state)
        assert torch.equal(_whole([*had, *other]), _whole(expected))


@without_warnings
@pytest.mark.parametrize("dataset", [Numbers, Counting])
def test_out_of_order_each_sample_comes_once(dataset: Any) -> None:
    options = {"in_order": False, "persistent_workers": True}
    for after in (0, 1, 4):
        with loader(dataset(), 3, **options) as one:
            batches = iter(one)
            had = [next(batches) for _ in range(after)]
            state = saved(one)
        with loader(dataset(), 3, **options) as other:
            other.load_state_dict(state)
            had += list(other)
            assert sorted(_whole(had).tolist()) == sorted(_whole(list(other)).tolist())


# ------------------------------------------------------------------------------------------- from epoch to epoch


def each_place(dataset: Any, workers: int, epochs: int, sets_epoch: bool, options: dict[str, Any]) -> Any:
    """All batches of a run, epoch by epoch, and a state of each place, with what follows from there."""
    ran: list[list[list[int]]] = []
    states = []
    with loader(dataset(), workers, **options) as made:
        for epoch in range(epochs):
            if sets_epoch:
                made.set_epoch(epoch)
            ran.append([])
            states.append((epoch, 0, "between", saved(made)))
            batches = iter(made)
            states.append((epoch, 0, "before", saved(made)))
            for batch in batches:
                ran[-1].append(batch.tolist())
                states.append((epoch, len(ran[-1]), "behind", saved(made)))
    return ran, states


class HersUntold(Hers):
    """The same, whose user tells it no epoch."""


@without_warnings
@pytest.mark.parametrize("dataset", [Counting, CountingAtIter, Hers, HersUntold])
@pytest.mark.parametrize(
    ("workers", "options"),
    [
        (0, {}),
        pytest.param(2, {"persistent_workers": True}, marks=pytest.mark.long),
        pytest.param(3, {"persistent_workers": True, "prefetch_factor": 1}, marks=pytest.mark.long),
        pytest.param(2, {}, marks=pytest.mark.long),
    ],
)
def test_a_stream_that_counts_its_epochs_goes_on(dataset: Any, workers: int, options: dict[str, Any]) -> None:
    sets_epoch, epochs = dataset is Hers, 3
    length = 14
    ran, states = each_place(lambda: dataset(length), workers, epochs, sets_epoch, options)
    assert (ran[0] != ran[1]) == (sets_epoch or (dataset is not HersUntold and (not workers or bool(options))))
    chosen = [each for each in states if each[0] < 2 and each[1] in (0, 1, 2, len(ran[0]) - 1, len(ran[0]))]
    for epoch, behind, what, state in chosen:
        with loader(dataset(length), workers, **options) as other:
            other.load_state_dict(state)
            got = []
            for number in range(state["epoch"], epochs):
                if sets_epoch:
                    other.set_epoch(number)
                got.append([batch.tolist() for batch in other])
        expected = [ran[epoch][behind:], *ran[epoch + 1 :]]
        assert got == expected, (epoch, behind, what, state["streams"])


def test_an_epoch_that_was_left_is_where_its_stream_is() -> None:
    """Workers that persist go on from where they were in their streams, as in torch."""
    options = {"persistent_workers": True}
    with loader(Counting(), 2, **options) as one:
        next(iter(one))
        batches = iter(one)
        state = saved(one)
        expected = [batch.tolist() for batch in batches] + [batch.tolist() for batch in one]
    with loader(Counting(), 2, **options) as other:
        other.load_state_dict(state)
        assert [batch.tolist() for _ in range(2) for batch in other] == expected


def test_an_epoch_that_was_left_keeps_its_state_until_the_next_one() -> None:
    with loader(Counting(), 2, persistent_workers=True) as made:
        batches = iter(made)
        next(batches)
        before = saved(made)
        iter(made)
        assert saved(made)["epoch"] == before["epoch"] + 1


def test_between_epochs_other_workers_may_go_on() -> None:
    with loader(Counting(), 2, persistent_workers=True) as one:
        list(one)
        state = saved(one)
        second = sorted(k for batch in one for k in batch.tolist())
    assert [stream["state"]["dataset"] for stream in state["streams"][0]] == [{"at": 0, "epoch": 1}] * 2
    with loader(Counting(), 1, persistent_workers=True) as other:
        other.load_state_dict(state)
        numbers = list(range(LENGTH))
        random.Random(1).shuffle(numbers)
        assert [k for batch in other for k in batch.tolist()] == numbers
    assert second


def test_streams_that_differ_between_epochs_need_as_many_workers() -> None:
    with loader(Counting(), 2, persistent_workers=True) as one:
        list(one)
        state = saved(one)
    state["streams"][0][1]["state"]["dataset"]["epoch"] = 7
    with loader(Counting(), 3) as other:
        with pytest.warns(RuntimeWarning, match=r"at different places.*num_workers=3.*Give the loader num_workers=2"):
            other.load_state_dict(state)
        assert len([k for batch in other for k in batch.tolist()]) == LENGTH - 6 // 3


# --------------------------------------------------------------------------------------------- streams that raise


class Raises(IterableDataset[int]):
    """Its iterator raises at these numbers, each time that it comes there (or once), and goes on behind them."""

    def __init__(self, at: tuple[int, ...], times: int = 10**9) -> None:
        self.at, self.times = at, times

    def __iter__(self) -> Iterator[int]:
        return _Raising(self)


class _Raising:
    def __init__(self, source: Raises) -> None:
        self.of, self.next, self.raised = source, 0, dict.fromkeys(source.at, 0)

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.next >= 20:
            raise StopIteration
        if self.next in self.raised and self.raised[self.next] < min(1, self.of.times):
            self.raised[self.next] += 1
            raise OSError(f"no number {self.next}")
        self.next += 1
        return self.next - 1


class RaisesInGenerator(Raises):
    """The same in a generator, which ends by that."""

    def __iter__(self) -> Iterator[int]:
        yield from _Raising(self)


def outcome(batches: Any) -> Any:
    try:
        return next(batches).tolist()
    except StopIteration:
        return None
    except OSError as error:
        return type(error).__name__


def outcomes(batches: Any) -> list[Any]:
    return list(itertools.takewhile(lambda one: one is not None, (outcome(batches) for _ in range(30))))


@pytest.mark.filterwarnings("ignore:the (dataset|sampler|loaded state) ")
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("batch_size", [3, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", [Raises, RaisesInGenerator])
@pytest.mark.parametrize("at", [(4,), pytest.param((0, 4, 9), marks=pytest.mark.long)])
def test_a_stream_that_raised_goes_on_behind_each_batch(
    workers: int, batch_size: int, kind: Any, at: tuple[int, ...]
) -> None:
    expected, states = [], []
    with loader(kind(at), workers, batch_size=batch_size) as one:
        batches = iter(one)
        while (came := outcome(batches)) is not None:
            expected.append(came)
            states.append(saved(one))
    assert "OSError" in expected
    for behind, state in enumerate(states, 1):
        with loader(kind(at), workers, batch_size=batch_size) as other:
            other.load_state_dict(state)
            batches = iter(other)
            got = [outcome(batches)]
            again = saved(other)  # a second time in this epoch
            got += outcomes(batches) if got[0] is not None else []
        assert [one for one in got if one is not None] == expected[behind:]
        if got[0] is not None:
            with loader(kind(at), workers, batch_size=batch_size) as third:
                third.load_state_dict(again)
                assert outcomes(iter(third)) == expected[behind + 1 :]


@pytest.mark.parametrize("workers", [0, 1])
def test_with_a_device_an_error_is_in_the_state_at_once(workers: int) -> None:
    with loader(Raises((4,)), workers, device="cpu", on_device=lambda batch: batch) as made:
        batches = iter(made)
        assert [outcome(batches) for _ in range(2)] == [[0, 1, 2], "OSError"]
        state = saved(made)
    assert (state["batches"], state["streams"][0][0]["samples"], state["streams"][0][0]["errors"]) == (2, 4, [4])


@pytest.mark.filterwarnings("ignore:the (dataset|sampler|loaded state) ")
@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_that_does_not_come_again_costs_no_sample(workers: int) -> None:
    with loader(Raises((4,)), workers) as one:
        batches = iter(one)
        assert [outcome(batches) for _ in range(2)] == [[0, 1, 2], "OSError"]
        state = saved(one)
    assert [(stream["samples"], stream["errors"]) for stream in state["streams"][0]] == [(4, [4])]
    with loader(Raises((4,), times=0), workers) as other:
        other.load_state_dict(state)
        assert outcomes(iter(other))[:2] == [[4, 5, 6], [7, 8, 9]]


class LosesOne(Raises):
    """It raises instead of a sample, and does not try that again."""

    def __iter__(self) -> Iterator[int]:
        return _Losing(self)


class _Losing(_Raising):
    def __next__(self) -> int:
        try:
            return super().__next__()
        except OSError:
            self.next += 1
            raise


@pytest.mark.filterwarnings("ignore:the (dataset|sampler|loaded state) ")
@pytest.mark.parametrize(("kind", "third", "rest"), [(Raises, [4, 5, 6], [7, 8, 9]), (LosesOne, [5, 6, 7], [7, 8, 9])])
def test_an_error_before_the_place_that_does_not_come_again_is_a_warning(
    kind: type[Raises], third: list[int], rest: list[int]
) -> None:
    """With LosesOne sample 7 comes twice, and nobody can know."""
    with loader(kind((4,)), 0) as one:
        batches = iter(one)
        assert [outcome(batches) for _ in range(3)] == [[0, 1, 2], "OSError", third]
        state = saved(one)
    with loader(kind((4,), times=0), 0) as other:
        other.load_state_dict(state)
        with pytest.warns(RuntimeWarning, match=f"stream {kind.__name__} raised after 4 samples .* twice: 1") as came:
            assert outcomes(iter(other))[0] == rest
    assert [(one.filename, one.lineno) for one in came] == [
        (__file__, kind.__iter__.__code__.co_firstlineno)  # the line of the stream's __iter__
    ]


@pytest.mark.filterwarnings("ignore:the (dataset|sampler|loaded state) ")
@pytest.mark.parametrize("kind", [Raises, LosesOne])
def test_so_is_an_error_at_the_place_itself(kind: type[Raises]) -> None:
    """With LosesOne sample 4 comes, which an uninterrupted run does not have."""
    with loader(kind((4,)), 0) as one:
        batches = iter(one)
        assert [outcome(batches) for _ in range(2)] == [[0, 1, 2], "OSError"]
        state = saved(one)
    with loader(kind((4,), times=0), 0) as other:
        other.load_state_dict(state)
        with pytest.warns(RuntimeWarning, match=f"stream {kind.__name__} raised after 4 samples .* twice: 1"):
            assert outcomes(iter(other))[0] == [4, 5, 6]


IN_WORKERS = """
import shmloader, torch

class Numbers:
    def __init__(self, at):
        self.at, self.next = at, 0

    def __iter__(self):
        return self

    def __next__(self):
        self.next += 1
        if self.next == self.at:
            raise OSError("once")
        return self.next

class Lines(torch.utils.data.IterableDataset):
    def __init__(self, at=None):
        self.at = at

    def __iter__(self):
        return Numbers(self.at if torch.utils.data.get_worker_info().id else None)

first = shmloader.DataLoader(Lines(2), 2, num_workers=2)
batches = iter(first)
for k in range(6):
    try:
        next(batches)
    except OSError:
        print("raised", k)
second = shmloader.DataLoader(Lines(), 2, num_workers=2)
second.load_state_dict(first.state_dict())
first.close()
batches = iter(second)
print([next(batches).tolist() for _ in range(2)])
second.close()
"""


def test_a_worker_warns_of_an_error_that_does_not_come_again() -> None:
    ran = run_script(IN_WORKERS)
    assert (ran.status, ran.out.splitlines()[-2:]) == (0, ["raised 1", "[[7, 8], [6, 7]]"])
    lines = ran.err.splitlines()
    (at,) = [at for at, line in enumerate(lines) if "RuntimeWarning: the stream" in line]
    assert "RuntimeWarning: the stream Lines in worker 1 raised after 1 sample in the saved run" in lines[at]
    assert lines[at + 1].strip() == "def __iter__(self):"


@pytest.mark.filterwarnings("ignore:the (dataset|sampler|loaded state) ")
def test_a_new_error_is_raised_each_time_and_the_place_stays() -> None:
    with loader(Raises(()), 1) as one:
        batches = iter(one)
        next(batches), next(batches)
        state = saved(one)
    with loader(Raises((4,)), 1) as other:
        other.load_state_dict(state)
        batches = iter(other)
        assert [outcome(batches) for _ in range(3)] == ["OSError"] * 3
        again = saved(other)
    assert again["streams"][0][0]["samples"] == 6
    with loader(Raises(()), 1) as third:
        third.load_state_dict(again)
        assert outcomes(iter(third))[0] == [6, 7, 8]


@pytest.mark.filterwarnings("ignore:the (dataset|sampler|loaded state) ")
def test_the_batch_size_may_change() -> None:
    with loader(Raises(()), 1, batch_size=4) as one:
        next(iter(one))
        state = saved(one)
    with loader(Raises(()), 1, batch_size=3) as other:
        other.load_state_dict(state)
        assert outcomes(iter(other))[0] == [4, 5, 6]


class CannotSay(Numbers):
    def state_dict(self) -> dict[str, Any]:
        class Unheard(Exception):
            pass

        raise Unheard("it cannot say")


def test_an_exception_that_cannot_be_pickled_comes_as_text() -> None:
    with loader(CannotSay(), 1) as made:
        batches = iter(made)
        next(batches)
        with pytest.raises(
            RuntimeError, match=r"^Caught Unheard in DataLoader worker process 0\.\n(.|\n)*it cannot say"
        ):
            made.state_dict()
        assert len(list(batches)) == -(-LENGTH // 3) - 1


def test_a_state_that_cannot_be_saved_between_epochs_is_a_warning() -> None:
    with loader(CannotSay(), 1, persistent_workers=True) as made:
        list(made)
        says = r"lacks the place.*in worker 0 its state_dict\(\) raised RuntimeError at the end of the epoch"
        with pytest.warns(RuntimeWarning, match=says):
            state = made.state_dict()
        assert (state["epoch"], state["streams"]) == (1, None)
        iterables._warned.clear()
