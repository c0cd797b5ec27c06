"""prefetch_epochs: the next epoch begins while this one's last batches are under way, and its batches are the same."""

from __future__ import annotations

import gc
import itertools
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from at_line import AtLine
from conftest import Augmented, assert_same, iterate, label, rng_states, seed_all
from test_one_step import Numbers, interrupts, numbers_in
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, Sampler

import shmloader
from shmloader.resume import place
from shmloader.trainer import iterator, next_epoch

LENGTH, BATCH = 22, 4
BATCHES = 6

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork"),
]


class EpochDataset(Augmented):
    """Samples that show the epoch of their dataset."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> Any:
        return {"i": index, "x": torch.rand(2), "epoch": self.epoch}


def loader(prefetch: bool = True, **options: Any) -> shmloader.DataLoader[Any]:
    dataset = options.pop("dataset", None) or EpochDataset(LENGTH)
    options = {"batch_size": BATCH, "shuffle": True, "num_workers": 2, "persistent_workers": True, **options}
    if "sampler" in options or "batch_sampler" in options:
        options["shuffle"] = None
    if "batch_sampler" in options:
        options["batch_size"] = 1
    return shmloader.DataLoader(dataset, prefetch_epochs=prefetch, **options)


def shared(**options: Any) -> Any:
    return DistributedSampler(range(LENGTH), 2, 0, **options)


def is_ahead(made: shmloader.DataLoader[Any]) -> bool:
    """Whether batches of the next epoch are under way."""
    return made._iterator is not None and made._iterator._conductor.next is not None


def rows(batches: list[Any]) -> list[Any]:
    return [batch["i"].tolist() for batch in batches]


OPTIONS = [
    {},
    {"sample_seeds": True},
    {"schedule": "steal"},
    {"chunk_size": 2, "sample_seeds": True},
    {"batch_size": None},
    {"generator": 7},
    {"sampler": "shared"},
    {"batch_sampler": "shared"},
    {"on_worker_death": "respawn"},
    {"prefetch_factor": 5},
]


@pytest.mark.parametrize("options", OPTIONS, ids=label)
@pytest.mark.parametrize("tells", [True, False])
def test_the_same_epochs_come(options: dict[str, Any], tells: bool) -> None:
    given = []
    for prefetch in (False, True):
        seed_all()
        made_of: dict[str, Any] = dict(options)
        if "generator" in options:
            made_of["generator"] = torch.Generator().manual_seed(7)
        if "sampler" in options:
            made_of.update(sampler=shared(), sample_seeds=not tells)  # otherwise workers that draw on make it again
        if "batch_sampler" in options:
            made_of.update(batch_sampler=BatchSampler(shared(), 3, False), sample_seeds=not tells)
        with loader(prefetch, **made_of) as made:
            epochs, were_prefetched = [], []
            for epoch in range(3):
                if tells:
                    made.set_epoch(epoch)
                epochs.append(iterate(made))
                were_prefetched.append(is_ahead(made))
            assert were_prefetched == [prefetch] * 3
        given.append(epochs)
    assert_same(given[1], given[0])


def test_it_is_taken_over_and_not_made_again() -> None:
    with loader() as made:
        iterate(made)
        next_epoch = made._iterator._conductor.next
        assert next_epoch is not None and made._iterator._ring.under_way == 4
        assert iter(made).epoch is next_epoch
        assert made.state_dict()["epoch"] == 1


def test_to_begin_it_twice_draws_nothing() -> None:
    """A signal may come behind the first time."""
    with loader() as made:
        iterate(made)
        before = rng_states()
        next_epoch = made._iterator._conductor.next
        made._iterator._conductor.begin_next()
        assert made._iterator._conductor.next is next_epoch
        assert_same(rng_states(), before)


def test_off_by_default_nothing_is_drawn_early() -> None:
    states = []
    for prefetch in (False, True):
        seed_all()
        with loader(prefetch) as made:
            iterate(made)
            states.append(rng_states())
    seed_all()
    theirs = torch.utils.data.DataLoader(EpochDataset(LENGTH), BATCH, shuffle=True, num_workers=2)
    iterate(theirs)
    assert_same(states[0], rng_states())
    torch.empty((), dtype=torch.int64).random_()
    assert_same(states[1], rng_states())


@pytest.mark.parametrize("sampler", [None, "shared"])
def test_set_epoch_contradicts_the_prediction(sampler: Any) -> None:
    numbers = [0, 1, 5, 6, 6, 7]
    given = []
    for prefetch in (False, True):
        seed_all()
        options: dict[str, Any] = {"sampler": shared()} if sampler else {}
        with loader(prefetch, sample_seeds=True, **options) as made:
            epochs = []
            for epoch in numbers:
                made.set_epoch(epoch)
                epochs.append(iterate(made))
                assert is_ahead(made) == prefetch
        given.append(epochs)
    assert_same(given[1], given[0])
    assert [set(epoch[0]["epoch"].tolist()) for epoch in given[1]] == [{epoch} for epoch in numbers]


def test_the_prediction_for_a_sampler_that_never_changes_its_epoch_is_wrong_once() -> None:
    sampler = shared()
    with loader(sampler=sampler) as made:
        first = iterate(made)
        assert made._iterator._conductor.next.fixed["sampler_epoch"] == 1, "assumed"
        for _ in range(2):
            assert rows(iterate(made)) == rows(first)
            assert made._iterator._conductor.next.fixed["sampler_epoch"] == 0, "learnt"
        assert sampler.epoch == 0


@pytest.mark.parametrize("after", [0, 1, BATCHES - 1, BATCHES])
def test_an_epoch_that_is_left_half_way(after: int) -> None:
    given = []
    for prefetch in (False, True):
        seed_all()
        with loader(prefetch, sample_seeds=True, shuffle=False) as made:
            first = list(itertools.islice(iter(made), after))
            given.append([first, iterate(made), iterate(made)])
    assert_same(given[1], given[0])


@pytest.mark.parametrize("left", [3, 1, 0])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("sampler", [None, "shared"])
def test_the_state_is_of_what_the_user_has_got(left: int, workers: int, sampler: Any) -> None:
    """And what the next epoch has drawn is not drawn again."""
    options: dict[str, Any] = {"sample_seeds": True, **({"sampler": shared()} if sampler else {})}
    seed_all()
    with loader(**options) as first:
        iterate(first)
        batches, at = iter(first), len(first) - left
        for _ in range(at):
            next(batches)
        state, generator = first.state_dict(), torch.get_rng_state()
        assert (state["epoch"], state["batches"]) == (1, at)
        assert (state["next"] is not None) == is_ahead(first)
        expected = [list(batches), iterate(first), iterate(first)]
    seed_all(8)
    torch.set_rng_state(generator)
    if sampler:
        options["sampler"] = shared()
    if workers == 0:
        options.update(prefetch=False, num_workers=0, persistent_workers=False)
    with loader(**options) as again:
        again.load_state_dict(state)
        assert again.state_dict() == state
        # without workers each epoch draws a seed of its own, but an epoch that began early has one
        given = [iterate(again) for _ in range(3 if workers else 1 + (state["next"] is not None))]
    assert_same(given, expected[: len(given)])


def test_at_the_end_the_state_is_of_the_next_epoch() -> None:
    seed_all()
    with loader(sample_seeds=True) as first:
        iterate(first)
        state, generator = first.state_dict(), torch.get_rng_state()
        assert (state["epoch"], state["batches"], state["next"]) == (1, 0, None)
        expected = [iterate(first), iterate(first)]
    torch.set_rng_state(generator)
    with loader(sample_seeds=True) as again:
        again.load_state_dict(state)
        assert_same([iterate(again), iterate(again)], expected)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_predicted_epoch_does_not_reach_the_sampler(workers: int) -> None:
    """A run is resumed in mid-epoch, and again at that epoch's end.  Nobody calls set_epoch()."""
    seed_all()
    with loader(False, sampler=DistributedSampler(range(LENGTH), 1, 0)) as calm:
        expected = [iterate(calm), iterate(calm)]
    seed_all()
    with loader(sampler=DistributedSampler(range(LENGTH), 1, 0)) as first:
        iterator = iter(first)
        got = [next(iterator) for _ in range(BATCHES - 1)]
        state, drawn = first.state_dict(), torch.get_rng_state()
    del iterator
    assert state["next"][0]["sampler_epoch"] == 1
    options = {} if workers else {"prefetch": False, "num_workers": 0, "persistent_workers": False}
    with loader(sampler=DistributedSampler(range(LENGTH), 1, 0), **options) as second:
        second.load_state_dict(state)
        torch.set_rng_state(drawn)
        got += iterate(second)
        state, drawn = second.state_dict(), torch.get_rng_state()
    assert (state["epoch"], state["sampler_epoch"]) == (1, 0)
    with loader(sampler=DistributedSampler(range(LENGTH), 1, 0)) as third:
        third.load_state_dict(state)
        torch.set_rng_state(drawn)
        assert rows([*got, *iterate(third)]) == rows([*expected[0], *expected[1]])


def test_a_state_that_is_loaded_comes_first() -> None:
    seed_all()
    with loader(sample_seeds=True) as made:
        batches = iter(made)
        next(batches)
        state, rest = made.state_dict(), list(batches)
        assert is_ahead(made)
        made.load_state_dict(state)
        assert_same(iterate(made), rest)


class Failing(Sampler):
    """Raises in its second epoch, once."""

    def __init__(self, at: int) -> None:
        self.at, self.epochs = at, 0

    def __iter__(self) -> Any:
        self.epochs += 1
        for index in range(8):
            if self.epochs == 2 and index == self.at:
                raise ValueError("the sampler's second epoch")
            yield index


def test_what_is_wrong_with_the_next_epoch_is_no_affair_of_this_one() -> None:
    with loader(sampler=Failing(2), batch_size=None) as made:
        assert len(list(made)) == 8
        assert made._iterator._conductor.next.failed
        assert [int(sample["i"]) for sample in made] == list(range(8))


class Teachable(RandomSampler):
    """Has a set_epoch of its own: nobody knows what that does."""

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def test_an_unknown_sampler_with_set_epoch_is_not_drawn_from_early() -> None:
    with loader(sampler=Teachable(range(LENGTH))) as made:
        for epoch in range(2):
            made.set_epoch(epoch)
            assert len(iterate(made)) == BATCHES and not is_ahead(made)


@pytest.mark.filterwarnings("ignore:sample 0 raised")
def test_bad_samples_are_of_their_epoch() -> None:
    class Rotten(Augmented):
        def __getitem__(self, index: int) -> Any:
            if index in (0, 21):
                raise OSError("rotten")
            return index

    options: dict[str, Any] = {"dataset": Rotten(LENGTH), "shuffle": False, "on_bad_sample": "skip:2"}
    given = []
    for prefetch in (False, True):
        seed_all()
        with loader(prefetch, **options) as made:
            given.append([iterate(made) for _ in range(3)])
            assert made.bad_samples.count == 6
    assert_same(given[1], given[0])


def test_an_iterator_that_is_closed_drops_what_is_ahead() -> None:
    with loader() as made:
        iterate(made)
        assert is_ahead(made)
        made._iterator.close()
        assert made.state_dict()["epoch"] == 1 and not made.state_dict()["begun"]
        assert len(iterate(made)) == BATCHES


def test_through_a_thread_that_is_ahead() -> None:
    given = []
    for prefetch in (False, True):
        seed_all()
        with loader(prefetch, device="cpu", on_device=dict) as made:
            given.append([iterate(made) for _ in range(3)])
            assert (made._iterator._source._conductor.next is not None) == prefetch
    assert_same(given[1], given[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"persistent_workers": False}, "prefetch_epochs=True needs persistent_workers=True"),
        ({"in_order": False}, "prefetch_epochs=True delivers batches in order"),
    ],
    ids=label,
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loader(**options)


def test_without_workers_it_does_nothing() -> None:
    with loader(num_workers=0, persistent_workers=False) as made:
        assert len(iterate(made)) == BATCHES


@pytest.mark.parametrize("options", [{}, pytest.param({"schedule": "steal"}, marks=pytest.mark.long)], ids=label)
def test_no_interrupt_loses_or_repeats_a_batch(options: dict[str, Any]) -> None:
    """In neither of the epochs, although next() also begins the sampler's next epoch."""

    def made(prefetch: bool) -> Any:
        torch.manual_seed(3)
        return loader(prefetch, dataset=Numbers(), **options)

    with made(False) as plain:
        expected = [[numbers_in(batch) for batch in plain] for _ in range(3)]
    for seed in range(2):
        with made(True) as overlapping:
            got: list[Any] = []
            for _ in range(3):
                batches = iter(overlapping)
                got.append([])
                with interrupts(seed) as raising:
                    while True:
                        try:
                            got[-1].append(numbers_in(raising.next(batches)))
                        except KeyboardInterrupt:
                            continue
                        except StopIteration:
                            break
            assert got == expected


@pytest.mark.parametrize("schedule", ["round_robin", pytest.param("steal", marks=pytest.mark.long)])
def test_ctrl_c_while_the_next_epoch_is_drawn(schedule: str) -> None:
    """The sampler draws its seed once, whether it had drawn it when the signal came or not."""
    options: Any = {"batch_size": 4, "shuffle": True, "num_workers": 1, "persistent_workers": True}

    def press() -> None:
        signal.raise_signal(signal.SIGINT)

    def epochs(line: int, prefetch: bool) -> tuple[list[Any], int]:
        torch.manual_seed(3)
        with shmloader.DataLoader(range(24), schedule=schedule, prefetch_epochs=prefetch, **options) as made:
            got: list[Any] = []
            lines = 0
            for epoch in range(3):
                batches = iter(made)
                got.append([])
                with AtLine(0 if epoch else line, press, (torch.utils.data.sampler.__file__,)) as reached:
                    while (batch := next_of(batches)) is not None:
                        got[-1].append(batch)
                lines = lines if epoch else reached.lines
        return got, lines

    def next_of(batches: Any) -> Any:
        while True:
            try:
                return next(batches).tolist()
            except KeyboardInterrupt:
                continue
            except StopIteration:
                return None

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        expected, first = epochs(0, False)
        _, both = epochs(0, True)
        for line in range(first, both + 1):
            assert epochs(line, True)[0] == expected, line
    finally:
        signal.signal(signal.SIGINT, before)
    assert both > first + 10


def test_ctrl_c_at_any_line_of_iter() -> None:
    """The epoch that began early comes, or the one after it if the user had begun that one."""

    def press() -> None:
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    files = (next_epoch.__file__, place.__file__, iterator.__file__)
    try:
        with loader(shuffle=False, dataset=Numbers(), sampler=shared(shuffle=True)) as made:
            expected = []
            for epoch in range(99):
                made.set_epoch(epoch)
                expected.append(
                    [
                        numbers_in(batch)
                        for batch in loader(
                            False, dataset=Numbers(), sampler=made.sampler, num_workers=0, persistent_workers=False
                        )
                    ]
                )
                at = 1 + 5 * epoch  # each fifth line
                with AtLine(at, press, files) as line:
                    try:
                        batches = iter(made)
                    except KeyboardInterrupt:
                        batches = None
                if batches is None:
                    batches = iter(made)
                assert made.state_dict()["sampler_epoch"] == epoch
                assert [numbers_in(batch) for batch in batches] == expected[-1]
                if line.lines < at:
                    break
            else:
                pytest.fail("more lines than that")
    finally:
        signal.signal(signal.SIGINT, before)
    assert epoch > 9


@pytest.mark.parametrize("ended_by", ["close", "close the iterator", "drop"])
@pytest.mark.parametrize("begun_by", ["prefetch_epochs", "start"])
def test_a_sampler_with_a_state_loses_no_sample_when_workers_end(ended_by: str, begun_by: str) -> None:
    """An epoch that began early, and was not asked for at once, comes whole when it is asked for."""

    class Keeper(Sampler[int]):
        def __init__(self) -> None:
            self.given = 0

        def __iter__(self) -> Iterator[int]:
            first = self.given // 5 * 5
            while self.given < first + 5:
                self.given += 1
                yield self.given - 1

        def __len__(self) -> int:
            return 5

        def state_dict(self) -> dict[str, int]:
            return {"given": self.given}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.given = state["given"]

    made = shmloader.DataLoader(
        range(100),
        sampler=Keeper(),
        num_workers=1,
        persistent_workers=True,
        prefetch_epochs=begun_by == "prefetch_epochs",
    )
    came = [int(batch) for batch in made]
    if begun_by == "start":
        made.start()
    iterator = made._iterator
    assert iterator is not None and made.sampler.given > 5  # the next epoch is under way
    if ended_by == "close":
        made.close()
    elif ended_by == "close the iterator":
        iterator.close()
        made._iterator = None
    else:
        made._iterator = None
    iterator = None
    gc.collect()
    came += [int(batch) for batch in made]
    made.close()
    assert came == list(range(10))
