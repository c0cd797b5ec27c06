"""Streams: each state has the place of each stream, wherever it is saved: in an epoch, and between two."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
import warnings
from typing import Any

import pytest
from conftest import Passes, iterate, label, seed_all
from own_streams import (
    LENGTH,
    Counting,
    EmptiesWhatItGets,
    Hers,
    HersToldItself,
    HersToldOnce,
    HersUntold,
    Module,
    ModuleWithState,
    Numbers,
    OfPlaces,
    Plain,
    Restarts,
    TakesEpoch,
    loader,
    shuffled,
    tell,
)
from resuming import flattened, numbers, quiet, through_json

import shmloader
from shmloader.device.prefetch import prefetcher
from shmloader.system import user_line
from shmloader.worker import fetch

pytestmark = quiet
without_warnings = pytest.mark.filterwarnings(
    "error:the (dataset|sampler|loaded state) ", "error:the state of this loader lacks"
)


def saved(made: Any) -> dict[str, Any]:
    return through_json(made.state_dict())  # type: ignore[no-any-return]


# ---------------------------------------------------------------------------------------------- what follows each place

WITHOUT_STATE = [Plain, Restarts, Module]
TOLD = [Hers, HersToldOnce, HersToldItself, TakesEpoch]
KINDS = [*WITHOUT_STATE, Numbers, OfPlaces, ModuleWithState, Counting, *TOLD, HersUntold]
DEVICE = {"device": "cpu", "on_device": lambda batch: batch}
PERSISTENT = {"persistent_workers": True}
SHORT: list[Any] = [(0, {}), (0, DEVICE)]
LONG: list[Any] = [
    (1, {}),
    (2, PERSISTENT),
    (3, {"drop_last": True, "prefetch_factor": 1}),
    (3, {**PERSISTENT, "prefetch_factor": 1}),
    (2, {"batch_size": None, "prefetch_factor": 1}),
    (2, {"prefetch_factor": 5, **DEVICE}),
]


def cases() -> list[Any]:
    """Without workers each kind; with two of them those that differ most; of the other ways each with every third."""
    found: list[Any] = [(kind, workers, options, ()) for kind in KINDS for workers, options in SHORT]
    found += [(kind, 2, {}, ()) for kind in (Plain, Numbers, OfPlaces, Hers)]
    found += [(kind, 2, PERSISTENT, ()) for kind in (Counting, HersUntold)]
    for (at, kind), (way, (workers, options)) in itertools.product(enumerate(KINDS), enumerate(LONG)):
        if (at + way) % 3 == 0:
            found.append((kind, workers, options, pytest.mark.long))
    found.append((ModuleWithState, 1, {"multiprocessing_context": "forkserver"}, pytest.mark.long))
    return [
        pytest.param(*case[:3], id=f"{case[0].__name__}-{case[1]}-{label(case[2])}", marks=case[3]) for case in found
    ]


def each_place(dataset: Any, workers: int, options: dict[str, Any]) -> Any:
    """All batches of three epochs, and a state of each place: the epoch, how many batches, and the state."""
    ran: list[list[Any]] = []
    states = []
    with loader(dataset(), workers, **options) as made:
        for epoch in range(3):
            tell(made, epoch)
            ran.append([])
            states.append((epoch, 0, saved(made)))
            batches = iter(made)
            states.append((epoch, 0, saved(made)))
            for batch in batches:
                ran[-1] += numbers([batch])
                states.append((epoch, len(ran[-1]), saved(made)))
                assert states[-1][2]["batches"] == len(ran[-1])
    return ran, states


@pytest.mark.parametrize(("dataset", "workers", "options"), cases())
def test_what_follows_each_place(dataset: Any, workers: int, options: dict[str, Any]) -> None:
    warnings.filterwarnings("ignore" if dataset in WITHOUT_STATE else "error", "the (dataset|loaded state) ")
    warnings.filterwarnings("error", "the state of this loader lacks")
    ran, states = each_place(dataset, workers, options)
    lives_on = not workers or "persistent_workers" in options
    assert (ran[0] != ran[1]) == (dataset in TOLD or (dataset is Counting and lives_on))
    last = len(ran[0])
    chosen = {(0, 0), (0, 1), (0, last), (1, 0), (1, 4), (1, last - 1)} if workers else None
    for epoch, behind, state in states:
        if epoch == 2 or not (chosen is None or (epoch, behind) in chosen):
            continue
        expected = [ran[epoch][behind:], *ran[epoch + 1 :]]
        with loader(dataset(), workers, **options) as other:
            other.load_state_dict(state)
            got = []
            for number in range(state["epoch"], 3):
                tell(other, number)
                batches = iter(other)
                got.append(numbers(batches, 1))
                if number == state["epoch"]:
                    again = saved(other)
                got[-1] += numbers(batches)
        assert got == expected, (epoch, behind, state["streams"])
        if behind:
            with loader(dataset(), workers, **options) as third:
                third.load_state_dict(again)
                tell(third, again["epoch"])
                assert numbers(third) == (expected[0][1:] if again["begun"] else expected[1])


@pytest.mark.parametrize(
    ("workers", "prefetch", "in_order", "keeps"),
    [
        *((1, 2, True, False), (2, 2, True, False), (2, 1, True, False), (3, 4, False, False)),
        pytest.param(1, 4, True, True, marks=pytest.mark.long),
        pytest.param(2, 4, False, True, marks=pytest.mark.long),
        pytest.param(3, 1, False, False, marks=pytest.mark.long),
        pytest.param(3, 2, True, True, marks=pytest.mark.long),
    ],
)
@without_warnings
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
        assert flattened([*had, *other]) == flattened(expected)


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


def test_between_epochs_other_workers_may_go_on() -> None:
    with loader(Counting(), 2, persistent_workers=True) as one:
        list(one)
        state = saved(one)
        second = sorted(k for batch in one for k in batch.tolist())
    assert [stream["state"]["dataset"] for stream in state["streams"][0]] == [{"at": 0, "epoch": 1}] * 2
    with loader(Counting(), 1, persistent_workers=True) as other:
        other.load_state_dict(state)
        assert flattened(list(other)) == shuffled(list(range(LENGTH)), 1)
    assert second


# ------------------------------------------------------------------------------------------- refused, warned of, raised


def test_a_thread_that_is_ahead_is_not_the_user() -> None:
    expected = numbers(loader(Numbers(), 2))
    with loader(Numbers(), 2) as one:
        source: Any = iter(one)
        with prefetcher(one, source, Passes(), 3) as batches:
            next(batches)
            while source.epoch.handed_out.batches < 4:
                time.sleep(0.005)
            state = one.state_dict()
    assert (state["batches"], state["latest"]) == (1, 0)
    with loader(Numbers(), 2) as other:
        other.load_state_dict(state)
        assert numbers(other) == expected[1:]


def test_a_stream_without_a_state_is_warned_of_once() -> None:
    user_line._met.clear()
    with loader(Plain(), 2) as one:
        batches = iter(one)
        next(batches)
        state = one.state_dict()
    with pytest.warns(RuntimeWarning, match=r"Plain has no state_dict\(\).*are read again.*load_state_dict"):
        loader(Plain(), 2).load_state_dict(state)
    loader(Plain(), 2).load_state_dict(state)


@pytest.mark.parametrize(("workers", "others"), [(2, 3), (0, 2), (2, 0)])
def test_other_workers_are_refused(workers: int, others: int) -> None:
    with loader(Numbers(), workers) as one:
        next(iter(one))
        state = one.state_dict()
    says = f"{workers} workers were reading.*num_workers={others}.*Give the loader num_workers={workers}"
    with pytest.raises(ValueError, match=says):
        loader(Numbers(), others).load_state_dict(state)
    with loader(Numbers(), workers) as one:
        iterate(one)
        state = one.state_dict()
    with loader(Numbers(), others) as other:  # between epochs, nobody has a part
        other.load_state_dict(state)
        assert len(flattened(list(other))) >= 20


class CannotSay(Numbers):
    """It raises what cannot be pickled."""

    def state_dict(self) -> dict[str, Any]:
        class Unheard(Exception):
            pass

        raise Unheard("it cannot say")


class Fails(Numbers):
    def state_dict(self) -> dict[str, Any]:
        raise ValueError("it cannot say")


AS_TEXT = r"^Caught Unheard in DataLoader worker process 0\.\n(.|\n)*it cannot say"


@pytest.mark.parametrize(
    ("kind", "workers", "error", "says"),
    [(Fails, 0, ValueError, "it"), (Fails, 1, ValueError, "it cannot say"), (CannotSay, 1, RuntimeError, AS_TEXT)],
)
def test_what_state_dict_raises_is_raised_when_it_is_asked_for(kind: Any, workers: int, error: Any, says: str) -> None:
    with loader(kind(), workers) as made:
        batches = iter(made)
        next(batches)
        with pytest.raises(error, match=says):
            made.state_dict()
        assert len(list(batches)) == -(-LENGTH // 3) - 1


class Large(Numbers):
    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "more": "x" * (200_000 + 100_000 * self.at)}


def test_states_may_be_large_and_grow() -> None:
    expected = numbers(loader(Numbers(), 2))
    with loader(Large(), 2) as one:
        numbers(iter(one), 4)
        state = one.state_dict()
    with loader(Large(), 2) as other:
        other.load_state_dict(state)
        assert numbers(other) == expected[4:]


def test_seeding_each_sample_is_for_maps() -> None:
    with pytest.raises(ValueError, match="sample_seeds=True needs a map-style dataset, but got Plain"):
        shmloader.DataLoader(Plain(), sample_seeds=True)
    seed_all()
    assert numbers(loader(Plain(), 0)) == numbers(loader(Plain(), 1))


class Slow(ModuleWithState):
    """Its state takes longer than its samples."""

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        time.sleep(0.02)
        return super().state_dict()


def print_warnings(worker: int) -> None:
    """In a worker that has inherited pytest's list of warnings."""

    def show(message: Any, category: Any, filename: str, line: int, file: Any = None, text: str | None = None) -> None:
        sys.stderr.write(warnings.formatwarning(message, category, filename, line, text))

    warnings.showwarning = show
    warnings.simplefilter("always")


@pytest.mark.filterwarnings("ignore:the dataset .* has no state_dict")
@pytest.mark.parametrize(("kind", "options"), [(Slow, PERSISTENT), (Slow, DEVICE), (ModuleWithState, {})], ids=label)
def test_one_warning_where_the_state_takes_long(
    kind: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fetch, "LEAST", 0 if kind is Slow else fetch.LEAST)
    with loader(kind(), 2, batch_size=1, worker_init_fn=print_warnings, **options) as made:
        for _ in range(2):
            iterate(made)
    warned = [line for line in capfd.readouterr().err.splitlines() if "the state of the stream" in line]
    assert len(warned) == (kind is Slow)
    code = Slow.state_dict.__code__
    for line in warned:
        assert line.startswith(
            f"{code.co_filename}:{code.co_firstlineno}: RuntimeWarning: the state of the stream Slow"
        )


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_that_empties_the_state_it_gets(workers: int) -> None:
    """Its state may be loaded several times: into the dataset, into its iterator, and again for each later epoch."""
    options = {"batch_size": None, "num_workers": workers, "persistent_workers": workers > 0}
    first = shmloader.DataLoader(EmptiesWhatItGets(), **options)
    numbers(iter(first), 3)
    state = saved(first)
    first.close()
    for _ in range(2):  # the same state in two runs
        again = shmloader.DataLoader(EmptiesWhatItGets(), **options)
        again.load_state_dict(state)
        assert numbers(iterate(again)) == list(range(3, LENGTH))
        for _ in range(2):
            assert numbers(iterate(again)) == list(range(LENGTH))
        again.close()
