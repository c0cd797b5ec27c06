"""start(): an epoch begins before iter(), and has the batches that iter() would have given."""

from __future__ import annotations

import copy
import gc
import os
import warnings
from typing import Any

import pytest
import torch
from conftest import assert_same, children, iterate, label, rng_states, seed_all
from test_next_epoch import BATCH, BATCHES, LENGTH, EpochDataset, shared
from torch.utils.data import IterableDataset

import shmloader
from shmloader import _torch

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork"),
]


def loader(**options: Any) -> shmloader.DataLoader[Any]:
    dataset = options.pop("dataset", None) or EpochDataset(LENGTH)
    options = {"batch_size": BATCH, "shuffle": True, "num_workers": 2, **options}
    if "sampler" in options:
        options["shuffle"] = None
    return shmloader.DataLoader(dataset, **options)


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        for k in range(10):
            yield {"i": k, "x": torch.rand(2)}


BOTH = pytest.mark.parametrize("persistent", [False, True])


@BOTH
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"schedule": "steal"},
        pytest.param({"multiprocessing_context": "spawn"}, marks=pytest.mark.long),
        {"device": "cpu", "on_device": dict},
        {"dataset": Stream(), "shuffle": None},
        {"prefetch_epochs": True},
    ],
    ids=label,
)
def test_the_batches_are_those_of_an_epoch_that_iter_begins(options: dict[str, Any], persistent: bool) -> None:
    if "multiprocessing_context" in options and persistent:
        pytest.skip("a start by spawn takes a second")
    if "prefetch_epochs" in options and not persistent:
        pytest.skip("needs persistent workers")
    given = []
    for begins_early in (False, True):
        seed_all()
        with loader(persistent_workers=persistent, **options) as made:
            epochs = []
            for _ in range(1 if "multiprocessing_context" in options else 3):
                if begins_early:
                    before = len(children())
                    made.start()
                    assert len(children()) - before == (2 if not persistent or not epochs else 0)
                    workers = children()
                    made.start()
                    assert children() == workers, "the second time it does nothing"
                    iterator = iter(made)
                    assert children() == workers, "taken"
                    epochs.append([iterator, list(iterator)][1])
                    del iterator
                else:
                    epochs.append(iterate(made))
            given.append((epochs, rng_states()))
    assert_same(given[1][0], given[0][0])
    if "prefetch_epochs" not in options:
        assert_same(given[1][1], given[0][1])


@BOTH
def test_it_draws_at_once_and_iter_draws_nothing(persistent: bool) -> None:
    seed_all()
    with loader(persistent_workers=persistent) as made:
        iter(made)
        after_iter = rng_states()
    seed_all()
    with loader(persistent_workers=persistent) as made:
        made.start()
        assert_same(rng_states(), after_iter)
        iter(made)
        assert_same(rng_states(), after_iter)


@BOTH
@pytest.mark.parametrize("epochs", [0, 1])
def test_the_state_between_is_of_what_the_user_has_got(epochs: int, persistent: bool) -> None:
    seed_all()
    with loader(persistent_workers=persistent, sample_seeds=True) as made:
        for _ in range(epochs):
            iterate(made)
        made.start()
        state, generator = made.state_dict(), torch.get_rng_state()
        assert (state["epoch"], state["batches"]) == (epochs, 0)
        expected = [iterate(made), iterate(made)]
        assert made.state_dict()["epoch"] == epochs + 2
    torch.set_rng_state(generator)
    with loader(persistent_workers=persistent, sample_seeds=True) as again:
        again.load_state_dict(state)
        assert_same([iterate(again), iterate(again)], expected)


@BOTH
@pytest.mark.parametrize("sampler", [None, "shared"])
def test_set_epoch_with_another_number(sampler: Any, persistent: bool) -> None:
    """It begins again, and draws nothing twice."""
    given = []
    for begins_early in (False, True):
        seed_all()
        options = {"sampler": shared()} if sampler else {}
        with loader(persistent_workers=persistent, sample_seeds=True, **options) as made:
            made.set_epoch(1)
            if begins_early:
                made.start()
            made.set_epoch(3)
            given.append([iterate(made), iterate(made), made.state_dict()["epoch"], rng_states()])
            assert set(given[-1][0][0]["epoch"].tolist()) == {3}
    assert_same(given[1], given[0])


@BOTH
def test_set_epoch_with_the_same_number(persistent: bool) -> None:
    with loader(persistent_workers=persistent, sampler=shared()) as made:
        made.set_epoch(2)
        made.start()
        workers = children()
        made.set_epoch(2)
        batches = iter(made)
        assert children() == workers and made.state_dict()["epoch"] == 2
        del batches


@BOTH
@pytest.mark.parametrize("first", ["start", "load"])
@pytest.mark.parametrize("seeds", [True, False])
def test_a_state_is_loaded(first: str, persistent: bool, seeds: bool) -> None:
    seed_all()
    with loader(sample_seeds=seeds) as made:
        batches = iter(made)
        next(batches)
        state = made.state_dict()
    given = []
    for begins_early in (False, True):
        seed_all(8)
        with loader(persistent_workers=persistent, sample_seeds=seeds) as made:
            if begins_early and first == "start":
                made.start()
            made.load_state_dict(state)
            if begins_early and first == "load":
                made.start()
                workers = children()
            assert made.state_dict() == state
            iterator = iter(made)
            if begins_early and first == "load":
                assert children() == workers, "taken"
            given.append(list(iterator))
            assert len(given[-1]) == BATCHES - 1
            del iterator
    assert_same(given[1], given[0])


def tell(made: Any, who: str) -> None:
    if who == "loader":
        made.set_epoch(4)
        return
    made.sampler.set_epoch(4)
    iter(made)  # which finds out


@pytest.mark.parametrize("who", ["loader", "sampler"])
@pytest.mark.parametrize("sampler", [None, "shared"])
def test_a_state_that_is_dropped(sampler: Any, who: str) -> None:
    if not sampler and who == "sampler":
        return
    with loader(sample_seeds=True, **({"sampler": shared()} if sampler else {})) as made:
        whole = iterate(made)
        next(iter(made))
        state = made.state_dict()
        made.load_state_dict(state)
        made.start()
        with pytest.warns(RuntimeWarning, match="is dropped"):
            tell(made, who)
        assert len(iterate(made)) == len(whole)


class Own(torch.utils.data.Sampler):
    """Has a state_dict() and a set_epoch()."""

    def __init__(self) -> None:
        self.epoch = self.given = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch, self.given = epoch, 0

    def state_dict(self) -> Any:
        return {"epoch": self.epoch, "given": self.given}

    def load_state_dict(self, state: Any) -> None:
        self.epoch, self.given = state["epoch"], state["given"]

    def __iter__(self) -> Any:
        while self.given < 6:
            self.given += 1
            yield self.epoch + self.given - 1
        self.given = 0


def test_an_unknown_sampler_with_another_epoch() -> None:
    with loader(sampler=Own(), batch_size=None) as made:
        made.start()
        made.set_epoch(3)
        assert [sample["i"] for sample in made] == list(range(3, 9))


@BOTH
@pytest.mark.parametrize("how", ["dropped", "closed"])
def test_nothing_is_left_of_what_is_never_asked_for(how: str, persistent: bool) -> None:
    before = children()
    made = loader(persistent_workers=persistent)
    made.start()
    assert len(children() - before) == 2
    if how == "closed":
        made.close()
        assert children() == before
        assert len(iterate(made)) == BATCHES
        made.close()
    del made
    gc.collect()
    assert children() == before


@BOTH
def test_in_the_midst_of_an_epoch(persistent: bool) -> None:
    with loader(persistent_workers=persistent) as made:
        batches = iter(made)
        next(batches)
        with pytest.raises(RuntimeError, match="an iterator is in the middle of epoch 0"):
            made.start()
        assert made.state_dict()["batches"] == 1
        assert len(list(batches)) == BATCHES - 1
        made.start()
        assert len(iterate(made)) == BATCHES


@BOTH
@pytest.mark.parametrize("keeps", [False, True])
def test_a_state_that_was_loaded_in_the_midst_of_an_epoch(keeps: bool, persistent: bool) -> None:
    with loader(persistent_workers=persistent, dataset=range(LENGTH)) as made:
        batches = iter(made)
        got = [next(batches) for _ in range(3)]
        state = made.state_dict()
        if not keeps:  # workers that persist keep the loader's iterator alive
            del batches
        for _ in range(2):
            made.load_state_dict(state)
            made.start()
            assert made.state_dict()["batches"] == 3
            left = iterate(made)
            assert len(left) == BATCHES - 3 and sorted(torch.cat([*got, *left]).tolist()) == list(range(LENGTH))
        assert len(iterate(made)) == BATCHES


@pytest.mark.parametrize(
    "options",
    [{}, {"sample_seeds": True}, {"schedule": "steal"}, {"sample_seeds": True, "device": "cpu", "on_device": list}],
    ids=label,
)
@pytest.mark.parametrize("had", [1, BATCHES])
def test_a_loop_whose_workers_begin_a_loaded_epoch_ends(had: int, options: dict[str, Any]) -> None:
    """Otherwise it takes batches of that epoch, which the state does not count and iter() does not give."""
    with loader(dataset=range(LENGTH), num_workers=0) as first:
        batches = iter(first)
        got = [next(batches) for _ in range(3)]
        state = first.state_dict()
    with loader(dataset=range(LENGTH), persistent_workers=True, **options) as made:
        running = iter(made)
        for _ in range(had):
            next(running)
        made.load_state_dict(state)
        made.start()
        for _ in range(2):
            assert next(running, None) is None
        assert made.state_dict()["batches"] == 3
        got += [torch.as_tensor(batch) for batch in made]
        assert sorted(torch.cat(got).tolist()) == list(range(LENGTH))
        assert len(iterate(made)) == BATCHES


def test_a_loop_that_is_over_stays_over() -> None:
    with loader(persistent_workers=True) as made:
        over = iter(made)
        assert len(list(over)) == BATCHES
        made.start()
        assert next(over, None) is None
        asked = iter(made)
        assert asked is over and len(list(asked)) == BATCHES


def test_in_an_epoch_that_prefetches_the_next_one() -> None:
    with loader(persistent_workers=True, prefetch_epochs=True) as made:
        batches = iter(made)
        next(batches)
        made.start()
        assert len(list(batches)) == BATCHES - 1
        made.start()
        assert len(iterate(made)) == BATCHES


def test_an_iterator_that_was_left_and_is_gone() -> None:
    with loader() as made:
        next(iter(made))
        made.start()
        assert len(iterate(made)) == BATCHES


def test_without_workers_it_does_nothing() -> None:
    made = loader(num_workers=0)
    seed_all()
    before = rng_states()
    made.start()
    assert_same(rng_states(), before)
    assert len(iterate(made)) == BATCHES


def test_a_copy_of_the_loader_takes_nothing() -> None:
    with loader() as made:
        made.start()
        other = copy.copy(made)
        assert len(iterate(other)) == BATCHES
        workers = children()
        batches = iter(made)
        assert children() == workers, "taken"
        del batches
        other.close()


def test_an_epoch_that_cannot_begin_raises_and_can_be_tried_again() -> None:
    class Broken(shmloader.DistributedSampler[Any]):
        broken = True

        def __iter__(self) -> Any:
            if self.broken:
                raise ValueError("no order")
            return super().__iter__()

    sampler = Broken(range(LENGTH), 1, 0)
    with loader(sampler=sampler, batch_size=None) as made:
        with pytest.raises(ValueError, match="no order"):
            made.start()
        sampler.broken = False
        assert made.state_dict()["begun"] is False
        made.start()
        assert len(iterate(made)) == LENGTH


@pytest.mark.parametrize("generator", [None, torch.Generator()], ids=["global", "its own"])
def test_an_epoch_that_cannot_begin_has_drawn_nothing(generator: torch.Generator | None) -> None:
    class Counted(EpochDataset):
        broken = False

        def __len__(self) -> int:
            if self.broken:
                raise ValueError("no length")
            return super().__len__()

    dataset = Counted(LENGTH)
    with loader(dataset=dataset, generator=generator) as made:
        dataset.broken = True
        before = rng_states(), None if generator is None else generator.get_state()
        with pytest.raises(ValueError, match="no length"):
            made.start()
        assert_same((rng_states(), None if generator is None else generator.get_state()), before)


def test_in_a_process_that_was_forked() -> None:
    with loader(num_workers=1) as made:
        made.start()
        child = os.fork()
        if not child:  # it makes its own
            code = 1
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    code = 0 if len(list(made)) == BATCHES else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(iterate(made)) == BATCHES


def test_a_forked_child_may_have_an_object_where_its_parent_had_another() -> None:
    """Workers are known to torch by the address of their worker set, and the child has its parent's list of them."""
    _torch.watch_pids(1, ())
    try:
        _torch.watch_pids(1, ())
    finally:
        _torch.unwatch_pids(1)


def test_off_the_ring() -> None:
    from torch.utils.data.datapipes.iter import IterableWrapper

    made = shmloader.DataLoader(IterableWrapper(range(4)), num_workers=1)
    with pytest.raises(RuntimeError, match=r"start\(\) needs a loader that rides shmloader's ring.*: torch seeds"):
        made.start()


class ByName(shmloader.DataLoader[Any]):
    """Calls torch's method by name, which resets an iterator whose workers persist."""

    def __iter__(self) -> Any:
        return torch.utils.data.DataLoader.__iter__(self)


@BOTH
@pytest.mark.parametrize("options", [{"shuffle": True}, {"dataset": Stream()}], ids=label)
def test_a_class_that_calls_torchs_method_by_name(options: dict[str, Any], persistent: bool) -> None:
    given = []
    for starts in (False, True):
        seed_all()
        options = {"dataset": EpochDataset(LENGTH), "batch_size": BATCH, "num_workers": 2, **options}
        with ByName(persistent_workers=persistent, **options) as made:
            epochs = []
            for _ in range(3):
                if starts:
                    made.start()
                epochs.append(list(made))
                assert made.rides_ring
            given.append((epochs, made.state_dict(), rng_states()))
    assert_same(*given)


def test_a_class_that_calls_torchs_method_by_name_with_another_epoch() -> None:
    class EpochStream(Stream):
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Any:
            yield from (self.epoch * 100 + k for k in range(4))

    with ByName(EpochStream(), num_workers=1, persistent_workers=True, batch_size=None) as made:
        made.start()
        made.set_epoch(2)
        with pytest.raises(
            RuntimeError, match=r"start\(\) began a different epoch from the one that iter\(\) must return"
        ):
            iter(made)
        assert list(made) == [200, 201, 202, 203]
        assert list(made) == [200, 201, 202, 203]
