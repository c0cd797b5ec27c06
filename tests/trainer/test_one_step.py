"""next() is one step, which no signal and no other thread can fall into: NOTE [ One step ] in next_batch.pxi."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Generator, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, WeightedRandomSampler

import shmloader
from shmloader.private import of_torch
from shmloader.trainer.iterator import RingIterator

LENGTH = 3000


class Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        return torch.full((3,), float(index)), f"sample {index}", {"index": index}


def numbers_in(batch: Any) -> list[int]:
    values, names, more = batch
    assert values[:, 0].tolist() == more["index"].tolist() == [int(name.split()[1]) for name in names]
    return more["index"].tolist()


# ---------------------------------------------------------------------------------------------------------- interrupts


def epoch(loader: Any) -> list[list[int]]:
    torch.manual_seed(3)
    return [numbers_in(batch) for batch in loader]


class InterruptedSampler:
    """Has RandomSampler interrupted, once, as it gives its index number `at`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
        stock = RandomSampler.__iter__
        self.drawn = itertools.count()

        def interrupted(sampler: Any) -> Iterator[Any]:
            for index in stock(sampler):
                if next(self.drawn) == at:
                    raise KeyboardInterrupt
                yield index

        monkeypatch.setattr(RandomSampler, "__iter__", interrupted)


@pytest.mark.parametrize(
    ("at", "options"),
    [
        (0, {}),
        (1, {"schedule": "steal"}),
        (16, {"chunk_size": 2}),
        (16, {}),
        (LENGTH - 1, {"schedule": "steal"}),
        (LENGTH - 1, {"chunk_size": 2}),
    ],
)
def test_an_interrupt_in_the_sampler(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], at: int) -> None:
    """It ends the generators, of the sampler and of the batch sampler."""

    def loader() -> Any:
        return shmloader.DataLoader(Numbers(), batch_size=4, num_workers=2, shuffle=True, **options)

    expected = epoch(loader())
    state = torch.get_rng_state()
    InterruptedSampler(monkeypatch, at)
    torch.manual_seed(3)
    got = []
    if at < 16:  # the first batches are drawn by iter()
        with pytest.raises(KeyboardInterrupt):
            iter(loader())
        torch.manual_seed(3)
    iterator = iter(loader())
    with pytest.raises(KeyboardInterrupt) if at >= 16 else nullcontext():
        while (batch := next(iterator, None)) is not None:
            got.append(numbers_in(batch))
    got += [numbers_in(batch) for batch in iterator]
    assert got == expected
    assert torch.equal(torch.get_rng_state(), state)


def test_an_interrupted_sampler_that_may_not_repeat_itself_is_an_error() -> None:
    class Mine:
        drawn = 0

        def __iter__(self) -> Any:
            for k in range(40):
                Mine.drawn += 1
                if k == 20:
                    raise KeyboardInterrupt
                yield [k]

    iterator = iter(shmloader.DataLoader(Numbers(), batch_sampler=Mine(), num_workers=2))
    got = []
    with pytest.raises(KeyboardInterrupt):
        while True:
            got.append(numbers_in(next(iterator)))
    with pytest.raises(RuntimeError, match=r"interrupted after 20 batches, which ended it.*Mine may not.*Iterate over"):
        while True:
            got.append(numbers_in(next(iterator)))
    assert Mine.drawn == 21
    assert got == [[k] for k in range(len(got))]


def test_an_interrupted_iterator_that_is_no_generator_goes_on() -> None:
    class Mine:
        at = -1

        def __iter__(self) -> Any:
            return self

        def __next__(self) -> list[int]:
            self.at += 1
            if self.at == 7:
                raise KeyboardInterrupt
            if self.at >= 20:
                raise StopIteration
            return [self.at]

    iterator = iter(shmloader.DataLoader(Numbers(), batch_sampler=Mine(), num_workers=2))
    got = []
    while True:
        try:
            got.append(numbers_in(next(iterator)))
        except KeyboardInterrupt:
            continue
        except StopIteration:
            break
    assert got == [[k] for k in range(20) if k != 7]


# ------------------------------------------------------------------------------------------------------------- threads


@pytest.mark.parametrize(
    "options", [{}, {"schedule": "steal"}, {"chunk_size": 2}, {"chunk_size": 2, "schedule": "steal"}], ids=str
)
def test_threads_share_an_iterator(options: dict[str, Any]) -> None:
    for _ in range(3):
        iterator = iter(shmloader.DataLoader(Numbers(), batch_size=8, num_workers=2, **options))
        got: list[list[list[int]]] = [[] for _ in range(5)]
        errors: list[BaseException] = []

        def run(mine: list[list[int]], iterator: Any = iterator, errors: Any = errors) -> None:
            try:
                mine.extend(numbers_in(batch) for batch in iterator)
            except BaseException as error:
                errors.append(error)

        running = [threading.Thread(target=run, args=(mine,)) for mine in got]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(30)
        assert not any(thread.is_alive() for thread in running)
        assert errors == []
        batches = [batch for mine in got for batch in mine]
        assert sorted(batches) == [list(range(k, k + 8)) for k in range(0, LENGTH, 8)]
        assert all(mine == sorted(mine) for mine in got)


def test_a_thread_that_waits_its_turn_goes_on_when_the_iterator_is_closed() -> None:
    class Slow(Numbers):
        def __getitem__(self, index: int) -> Any:
            threading.Event().wait(60)

    iterator = iter(shmloader.DataLoader(Slow(), num_workers=1))
    ends: list[Any] = []
    threads = [threading.Thread(target=lambda: ends.append(next(iterator, "end"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    iterator.close()
    for thread in threads:
        thread.join(20)
    assert ends == ["end"] * 3


def test_next_within_next_is_an_error() -> None:
    iterator: Any = None
    errors: list[str] = []

    class Within:
        def __iter__(self) -> Any:
            for k in range(10):
                if k == 6:
                    with pytest.raises(RuntimeError, match="while this thread is in next"):
                        next(iterator)
                    errors.append("raised")
                yield [k]

    iterator = iter(shmloader.DataLoader(Numbers(), batch_sampler=Within(), num_workers=1))
    assert [numbers_in(batch) for batch in iterator] == [[k] for k in range(10)]
    assert errors == ["raised"]


# ------------------------------------------------------------------------------------------------- torch's own methods

HARMLESS = {
    "__getstate__": "raises torch's error, because an iterator cannot be pickled",
    "__iter__": "returns itself",
    "__len__": "is the sampler's",
    "__del__": "calls _shutdown_workers, which is ours",
    "_next_index": "draws one index; nobody calls it here",
    "_get_data": "reads the queues, which are not there; called by _next_data alone, which is ours",
    "_try_get_data": "the same, called by _get_data",
    "_try_put_index": "called by _next_data and _reset alone, which are ours",
    "_process_data": "called by _next_data alone",
    "_mark_worker_as_unavailable": "called by _next_data and _shutdown_workers alone, which are ours",
    "_clean_up_worker": "ends a worker at exit (until torch 2.10); registered by __init__ alone, which is ours",
    "_clean_up_persistent_workers_atexit": "ends iterators of torch's that registered themselves; ours do not",
    "_register_persistent_workers_atexit": "called by __init__ alone, which is ours",
}


def test_each_method_of_torchs_iterator_is_ours_or_harmless() -> None:
    theirs = set(itertools.chain(vars(of_torch._BaseDataLoaderIter), vars(of_torch._MultiProcessingDataLoaderIter)))
    methods = {
        name
        for name in theirs
        if callable(getattr(RingIterator, name)) and not (name.startswith("__") and hasattr(object, name))
    } | {"__init__"}
    inherited = {name for name in methods if name not in vars(RingIterator)}
    assert inherited - set(HARMLESS) == set(), "new in this torch: override it, or say why it does no harm"


@pytest.mark.parametrize("batched", [False, True])
def test_an_interrupt_in_the_sampler_of_a_stream_ends_no_epoch(batched: bool) -> None:
    from shmloader.resume.epoch import Source

    sampler = of_torch._InfiniteConstantSampler()
    source = Source(BatchSampler(sampler, 2, False) if batched else sampler)
    first = next(source.indices)
    with pytest.raises(KeyboardInterrupt):
        source.indices.throw(KeyboardInterrupt)  # type: ignore[attr-defined]
    assert next(source.replay(1)) == first


def test_the_samplers_that_are_known_to_repeat_themselves_do() -> None:
    from shmloader.resume.epoch import REPEATABLE, Source

    weights = torch.rand(50)
    samplers = [
        SequentialSampler(range(50)),
        RandomSampler(range(50)),
        RandomSampler(range(50), generator=torch.Generator().manual_seed(5)),
        RandomSampler(range(50), replacement=True, num_samples=70),
        RandomSampler(range(50), replacement=True, num_samples=70, generator=torch.Generator().manual_seed(5)),
        WeightedRandomSampler(weights, 50),
        torch.utils.data.SubsetRandomSampler(range(0, 50, 2)),
        torch.utils.data.DistributedSampler(range(50), 2, 1, seed=4),
        shmloader.DistributedSampler(range(50), 2, 1, seed=4),
    ]
    assert {type(sampler) for sampler in samplers} | {BatchSampler, of_torch._InfiniteConstantSampler} == REPEATABLE
    for sampler in [*samplers, *(BatchSampler(sampler, 3, False) for sampler in samplers)]:
        of_it = getattr(getattr(sampler, "sampler", sampler), "generator", None)
        for count in (0, 1, 7, 8):
            state, own = torch.get_rng_state(), of_it and of_it.get_state()
            whole = list(sampler)
            drawn = torch.get_rng_state()
            torch.set_rng_state(state)
            if of_it:
                of_it.set_state(own)
            source = Source(sampler)
            first = list(itertools.islice(source.indices, count))
            if isinstance(source.indices, Generator):
                with pytest.raises(KeyboardInterrupt):
                    source.indices.throw(KeyboardInterrupt)
            now = torch.get_rng_state()
            again = source.replay(count)
            # as it was, or where the sampler leaves it, if it had drawn nothing yet
            assert torch.equal(torch.get_rng_state(), drawn if torch.equal(now, state) else now)
            assert first + list(again) == whole
