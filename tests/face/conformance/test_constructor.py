"""The constructor: what it checks, in which order, in whose words; and what each parameter means.

Nothing here says what the right answer is: torch's class is asked beside ours, so a new torch is checked by running
this.  The names of the tests are the rows of the contract.
"""

from __future__ import annotations

import inspect
import itertools
import multiprocessing
import os
import time
from typing import Any

import numpy
import pytest
import torch
from conftest import (
    BOTH,
    IGNORES_PIN_MEMORY_DEVICE,
    WORKERS_OFF_THE_RING,
    Augmented,
    Fresh,
    Items,
    assert_same_outcome,
    compare,
    iterate,
    label,
    rng_states,
    seed_all,
    started,
)
from torch.utils.data import (
    BatchSampler,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    TensorDataset,
    get_worker_info,
)
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.map import SequenceWrapper

import shmloader
from shmloader.options import DEFAULTS

OURS_KEPT = (*DEFAULTS, "_shmloader_options")
pytestmark = pytest.mark.usefixtures("impatient_torch")
WORKERS = pytest.mark.parametrize("workers", [0, 1])


class Stream(IterableDataset):
    """Every worker gives its share, and the generators' next numbers."""

    def __init__(self, length: int = 11) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Any:
        info = get_worker_info()
        for k in range(info.id if info else 0, self.length, info.num_workers if info else 1):
            yield torch.full((2,), k) + torch.rand(2)

    def __repr__(self) -> str:
        return f"Stream({self.length})"


class Squares:
    """No Dataset at all."""

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> int:
        return index * index


# ----------------------------------------------------------------------------------------------------------- signature


def test_signature() -> None:
    """torch's parameters with torch's kinds and defaults, in torch's order; ours follow, by name only."""
    theirs, ours = (list(inspect.signature(kind.__init__).parameters.values()) for kind in BOTH)
    assert [(p.name, p.kind, p.default) for p in ours[: len(theirs)]] == [(p.name, p.kind, p.default) for p in theirs]
    assert [p.name for p in ours[len(theirs) :]] == list(DEFAULTS)
    assert all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in ours[len(theirs) :])


POSITIONAL = [None, 3, None, None, None, 1, list, False, True, 20, None, "fork", None]


@pytest.mark.parametrize("count", range(1, len(POSITIONAL) + 2))
def test_the_first_thirteen_are_positional(count: int) -> None:
    """One more than thirteen is refused, in the same words."""

    def built(kind: Any) -> Any:
        loader = kind(Augmented(7), *[*POSITIONAL, 2][1:count])
        state = {name: value for name, value in vars(loader).items() if name not in OURS_KEPT}
        return {name: repr(type(value)) if "sampler" in name else repr(value)[:20] for name, value in state.items()}

    compare(built)


# -------------------------------------------------------------------------------------------------------------- checks

CHECKS: dict[str, tuple[Any, dict[str, Any]]] = {
    "1: num_workers negative": (Augmented, {"num_workers": -1}),
    "2: timeout negative": (Augmented, {"timeout": -1}),
    "3: prefetch_factor without workers": (Augmented, {"prefetch_factor": 2}),
    "3: prefetch_factor negative without workers": (Augmented, {"prefetch_factor": -2}),
    "4: prefetch_factor negative": (Augmented, {"prefetch_factor": -1, "num_workers": 1}),
    "4: prefetch_factor 0, refused by the iterator": (Augmented, {"prefetch_factor": 0, "num_workers": 1}),
    "4: prefetch_factor 0, iterable": (Stream, {"prefetch_factor": 0, "num_workers": 1}),
    "5: persistent_workers without workers": (Augmented, {"persistent_workers": True}),
    "6: multiprocessing_context without workers": (Augmented, {"multiprocessing_context": "fork"}),
    "6: bad multiprocessing_context without workers": (Augmented, {"multiprocessing_context": 3}),
    "7: multiprocessing_context bad str": (Augmented, {"multiprocessing_context": "x", "num_workers": 1}),
    "7: multiprocessing_context bad object": (Augmented, {"multiprocessing_context": 3, "num_workers": 1}),
    "7: multiprocessing_context the module": (
        Augmented,
        {"multiprocessing_context": multiprocessing, "num_workers": 1},
    ),
    "8: iterable and shuffle": (Stream, {"shuffle": True}),
    "8: iterable and shuffle 1": (Stream, {"shuffle": 1}),
    "8: iterable and shuffle False": (Stream, {"shuffle": False}),
    "8: iterable and shuffle unhashable": (Stream, {"shuffle": []}),
    "8: iterable and sampler": (Stream, {"sampler": [1]}),
    "8: iterable and batch_sampler": (Stream, {"batch_sampler": [[1]]}),
    "8: iterable and everything, before 9 to 11": (
        Stream,
        {"sampler": [1], "shuffle": True, "batch_sampler": [[1]], "batch_size": None, "drop_last": True},
    ),
    "9: sampler and shuffle": (Augmented, {"sampler": [1], "shuffle": True}),
    "10: batch_sampler and batch_size": (Augmented, {"batch_sampler": [[1]], "batch_size": 2}),
    "10: batch_sampler and batch_size None": (Augmented, {"batch_sampler": [[1]], "batch_size": None}),
    "10: batch_sampler and shuffle": (Augmented, {"batch_sampler": [[1]], "shuffle": True}),
    "10: batch_sampler and sampler": (Augmented, {"batch_sampler": [[1]], "sampler": [1]}),
    "10: batch_sampler and drop_last": (Augmented, {"batch_sampler": [[1]], "drop_last": True}),
    "11: batch_size None and drop_last": (Augmented, {"batch_size": None, "drop_last": True}),
    "11: batch_size None and drop_last, iterable": (Stream, {"batch_size": None, "drop_last": True}),
    "12: RandomSampler on empty dataset": (lambda: Augmented(0), {"shuffle": True}),
    "12: empty dataset, shuffle False": (lambda: Augmented(0), {"shuffle": False, "num_workers": 1}),
    "13: batch_size 0": (Augmented, {"batch_size": 0}),
    "13: batch_size negative, iterable": (Stream, {"batch_size": -1}),
    "13: batch_size float": (Augmented, {"batch_size": 2.0}),
    "13: batch_size bool": (Augmented, {"batch_size": True}),
    "13: batch_size str": (Augmented, {"batch_size": "2"}),
    "14: drop_last int": (Augmented, {"drop_last": 1}),
    "14: drop_last None": (Augmented, {"drop_last": None}),
    "15: num_workers str": (Augmented, {"num_workers": "2"}),
    "15: num_workers None": (Augmented, {"num_workers": None}),
    "15: num_workers float": (Augmented, {"num_workers": 1.5}),
    "15: num_workers bool": (Squares, {"num_workers": True}),
    "an unknown argument": (Augmented, {"unknown": 1}),
    "collate_fn no function": (Augmented, {"collate_fn": 3, "num_workers": 1}),
    "worker_init_fn no function": (Augmented, {"worker_init_fn": 3, "num_workers": 1}),
    "prefetch_factor float": (Augmented, {"num_workers": 1, "prefetch_factor": 1.5}),
}


def made_and_run(dataset: Any, options: dict[str, Any]) -> Any:
    def what(kind: Any) -> Any:
        seed_all()
        return iterate(kind(dataset(), **options), 50)

    return what


@pytest.mark.parametrize("row", CHECKS)
def test_constructor_check(row: str) -> None:
    compare(made_and_run(*CHECKS[row]))


@pytest.mark.parametrize("dataset", [Augmented, Stream], ids=["map", "iterable"])
def test_constructor_checks_run_in_this_order(dataset: Any) -> None:
    """Of every two faults, the same one is reported."""
    faults = [
        {"num_workers": -1},
        {"num_workers": 1},
        {"num_workers": "1"},
        {"timeout": -1},
        {"prefetch_factor": 2},
        {"prefetch_factor": -1},
        {"persistent_workers": True},
        {"multiprocessing_context": "x"},
        {"multiprocessing_context": 3},
        {"shuffle": True},
        {"sampler": [1]},
        {"batch_sampler": [[1]]},
        {"batch_size": None},
        {"batch_size": 0},
        {"drop_last": True},
        {"drop_last": "yes"},
    ]
    for one, two, three in itertools.combinations(faults, 3):
        if len({*one, *two, *three}) == 3:
            compare(lambda kind, options={**one, **two, **three}: [kind(dataset(), **options), None][1])


# ---------------------------------------------------------------------------------------------------------- parameters


@WORKERS
@pytest.mark.parametrize(
    "dataset",
    [
        Stream,
        Squares,
        lambda: [3, 1, 2],
        lambda: {0: 5, 1: 6},
        lambda: TensorDataset(torch.arange(5)),
        lambda: 3,
        lambda: range(4),
    ],
    ids=["iterable", "no Dataset", "list", "dict", "TensorDataset", "int", "range"],
)
def test_parameter_dataset(dataset: Any, workers: int) -> None:
    compare(lambda kind: kind(dataset())._dataset_kind)
    compare(made_and_run(dataset, {"num_workers": workers, "batch_size": 2}))


@WORKERS_OFF_THE_RING
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "pipe", [lambda: IterableWrapper(range(6)), lambda: SequenceWrapper(range(6))], ids=["IterDataPipe", "MapDataPipe"]
)
def test_parameter_dataset_datapipes_get_a_pickling_wrapper(pipe: Any, workers: int) -> None:
    compare(lambda kind: type(kind(pipe()).dataset).__name__)
    compare(made_and_run(pipe, {"num_workers": workers, "batch_size": 2}))


@WORKERS
@pytest.mark.parametrize("size", [4, 100, None])
@pytest.mark.parametrize("dataset", [Augmented, Stream], ids=["map", "iterable"])
def test_parameter_batch_size(dataset: Any, size: int | None, workers: int) -> None:
    assert_same_outcome(lambda: dataset(7), batch_size=size, num_workers=workers)


@pytest.mark.parametrize("workers", [0, 1])
def test_parameter_batch_size_none_passes_the_index_straight_and_converts(workers: int) -> None:
    class Keys(Dataset):
        def __getitem__(self, key: Any) -> Any:
            return key, (1, 2.5), {"a": [torch.ones(1)]}, repr(key), None

    keys = [0, "a", (1, 2), None, [3]]
    compare(made_and_run(Keys, {"num_workers": workers, "batch_size": None, "sampler": keys}))


@pytest.mark.parametrize("shuffle", [None, False, True, 0, 1, "yes"])
def test_parameter_shuffle(shuffle: Any) -> None:
    def sampled(kind: Any) -> Any:
        seed_all()
        generator = torch.Generator().manual_seed(1)
        loader = kind(Augmented(), shuffle=shuffle, generator=generator)
        return type(loader.sampler), getattr(loader.sampler, "generator", 0) is generator, list(loader.sampler)

    compare(sampled)


class Countless:
    def __iter__(self) -> Any:
        return iter([4, 0, 2])


@WORKERS
@pytest.mark.parametrize(
    "sampler", [[3, 1], (0, 2), Countless(), range(3), "", {1, 2}, 5, numpy.arange(3)], ids=lambda s: type(s).__name__
)
def test_parameter_sampler_any_iterable(sampler: Any, workers: int) -> None:
    options = {"sampler": sampler, "batch_size": 2, "num_workers": workers}
    compare(made_and_run(Augmented, options))
    compare(lambda kind: len(kind(Augmented(), **options)))


def test_parameter_sampler_iterable_dataset_yields_none() -> None:
    def infinite(kind: Any) -> Any:
        sampler = kind(Stream()).sampler
        return type(sampler).__name__, [index for index, _ in zip(sampler, range(3), strict=False)]

    compare(infinite)


@WORKERS
@pytest.mark.parametrize("batches", [[(0, 1), (2,)], [[3], range(2)], [[]], [], [[0], 1], iter([[1], [2]])], ids=label)
def test_parameter_batch_sampler_any_iterable(batches: Any, workers: int) -> None:
    if not isinstance(batches, (list, tuple)):
        batches = Fresh(lambda: iter([[1], [2]]))
    made = batches() if isinstance(batches, Fresh) else batches
    compare(
        lambda kind: (kind(Augmented(), batch_sampler=made).batch_size, kind(Augmented(), batch_sampler=made).drop_last)
    )
    assert_same_outcome(Augmented, batch_sampler=batches, num_workers=workers)


def test_parameter_num_workers_raised_without_a_prefetch_factor() -> None:
    def changed(kind: Any) -> Any:
        loader = kind(Augmented(6), batch_size=2)
        loader.num_workers = 1
        return iterate(loader)

    compare(changed)


def where(items: Any) -> Any:
    info = get_worker_info()
    return (info.id if info else None), items


def test_parameter_collate_fn_default_of_either_kind() -> None:
    def chosen(kind: Any) -> Any:
        loaders = (kind([1]), kind([1], batch_size=None), kind([1], batch_sampler=[[0]]))
        return [loader.collate_fn.__qualname__ for loader in loaders]

    compare(chosen)


@WORKERS
@pytest.mark.parametrize("batch_size", [2, None])
def test_parameter_collate_fn_runs_in_the_worker_or_here(batch_size: int | None, workers: int) -> None:
    compare(made_and_run(Squares, {"collate_fn": where, "num_workers": workers, "batch_size": batch_size}))


@WORKERS
@pytest.mark.skipif(torch.accelerator.is_available(), reason="without an accelerator")
def test_parameter_pin_memory_without_an_accelerator(workers: int) -> None:
    assert compare(made_and_run(Squares, {"pin_memory": True, "num_workers": workers}))

    def warned_at_iter(kind: Any) -> Any:
        kind(Squares(), pin_memory=True, num_workers=workers)  # and not here

    compare(warned_at_iter)


@WORKERS
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("dataset", [Augmented, Stream], ids=["map", "iterable, per worker"])
def test_parameter_drop_last(dataset: Any, drop_last: bool, workers: int) -> None:
    assert_same_outcome(lambda: dataset(11), batch_size=4, drop_last=drop_last, num_workers=2 * workers)
    compare(lambda kind: (kind(dataset(11), batch_size=4, drop_last=drop_last).drop_last, len(kind(dataset(11), 4))))


@pytest.mark.parametrize("dataset", [Augmented, Stream], ids=["map", "iterable"])
def test_parameter_timeout_without_workers(dataset: Any) -> None:
    compare(made_and_run(dataset, {"timeout": 3}))


class Slow(Augmented):
    def __getitem__(self, index: int) -> Any:
        if index == 1:
            time.sleep(0.7)
        return index


class SlowStream(IterableDataset):
    def __iter__(self) -> Any:
        dataset = Slow()
        yield from (dataset[k] for k in range(4))


@pytest.mark.parametrize(
    ("dataset", "persistent"), [(lambda: Slow(4), False), (SlowStream, True)], ids=["map", "iterable, persistent"]
)
def test_parameter_timeout_text_and_continued_use(dataset: Any, persistent: bool) -> None:
    """How often it expires is a matter of time; that the epoch then goes on, whole, is not."""

    def patient(kind: Any) -> Any:
        loader = kind(dataset(), num_workers=1, timeout=0.4, prefetch_factor=1, persistent_workers=persistent)
        got = iterate(loader)
        workers = loader._iterator._workers if persistent else []
        errors = [each for each in got if not isinstance(each, torch.Tensor)]
        alive = [worker.is_alive() for worker in workers]
        return errors[:1], [each for each in got if isinstance(each, torch.Tensor)], alive

    assert len(compare(patient)[0]) == 1


class Informed(Items):
    def __init__(self) -> None:
        super().__init__([0, 1, 2, 3])

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        return None if info is None else (info.id, info.dataset.__dict__.get("given"), torch.initial_seed())


def tell(worker_id: int) -> None:
    """After seeding and after WorkerInfo is set."""
    info = get_worker_info()
    assert info is not None
    info.dataset.given = (worker_id, info.id, info.seed, torch.initial_seed())  # type: ignore[attr-defined]


def fail(worker_id: int) -> None:
    if worker_id == 1:
        raise LookupError(f"worker {worker_id}")


def replace_dataset(worker_id: int) -> None:
    """Before the fetcher is built: an iterable dataset is asked for its iterator later."""
    get_worker_info().dataset.length = 4 + worker_id  # type: ignore[union-attr]


@WORKERS
@pytest.mark.parametrize("persistent", [False, True])
def test_parameter_worker_init_fn_called_after_seeding(persistent: bool, workers: int) -> None:
    options = {"collate_fn": list, "worker_init_fn": tell, "num_workers": workers}
    assert_same_outcome(Informed, **options, persistent_workers=bool(workers and persistent), epochs=2)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("dataset", [Augmented, Stream], ids=["map", "iterable"])
def test_parameter_worker_init_fn_exception_is_the_first_batch(dataset: Any, persistent: bool) -> None:
    """And then the worker goes on without a fetcher."""

    def first_few(kind: Any) -> Any:
        """All of them there are not: without a fetcher no iterable dataset comes to an end."""
        seed_all()
        loader = kind(dataset(6), worker_init_fn=fail, num_workers=2, persistent_workers=persistent)
        return [started(loader, 5) for _ in range(2)]

    compare(first_few)


def test_parameter_worker_init_fn_before_the_fetcher() -> None:
    assert_same_outcome(Stream, worker_init_fn=replace_dataset, num_workers=2)


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver", multiprocessing.get_context("fork"), None])
def test_parameter_multiprocessing_context(context: Any) -> None:
    def chosen(kind: Any) -> Any:
        loader = kind(Augmented(2), num_workers=1, multiprocessing_context=context)
        if context in ("spawn", "forkserver"):  # they take seconds; tests/trainer/test_same_batches.py starts some
            return type(loader.multiprocessing_context)
        iterator = iter(loader)
        return type(loader.multiprocessing_context), type(iterator._workers[0]), len(list(iterator))

    compare(chosen)


@WORKERS
@pytest.mark.parametrize("shuffle", [False, True])
def test_parameter_generator_for_the_sampler_and_the_seed(shuffle: bool, workers: int) -> None:
    assert_same_outcome(Augmented, shuffle=shuffle, generator_seed=3, num_workers=workers, batch_size=8, epochs=2)


@pytest.mark.parametrize("dataset", [Augmented, Stream], ids=["map", "iterable"])
@pytest.mark.parametrize("generator", [3, "cpu"])
def test_parameter_generator_of_a_wrong_type(generator: Any, dataset: Any) -> None:
    compare(made_and_run(dataset, {"generator": generator, "num_workers": 1}))


@pytest.mark.parametrize(("factor", "workers"), [(None, 2), (1, 1), (3, 1)])
def test_parameter_prefetch_factor_bounds_what_is_in_flight(factor: int | None, workers: int) -> None:
    """A new index is only asked for when a batch is handed out."""

    class Counted(Sampler[int]):
        asked = 0

        def __iter__(self) -> Any:
            for index in range(20):
                self.asked += 1
                yield index

    def asked(kind: Any) -> Any:
        sampler = Counted()
        loader = kind(range(20), None, sampler=sampler, num_workers=workers, prefetch_factor=factor)
        iterator = iter(loader)
        counts = [sampler.asked]
        for _ in range(5):
            next(iterator)
            counts.append(sampler.asked)
        return loader.prefetch_factor, counts

    compare(asked)


def test_parameter_prefetch_factor_without_workers_is_none() -> None:
    compare(lambda kind: kind([1]).prefetch_factor)


class Kept(Augmented):
    """What a worker has done before."""

    calls = 0

    def __getitem__(self, index: int) -> Any:
        self.calls += 1
        return self.calls, torch.rand(1).item(), os.getpid() == self.trainer

    def __init__(self) -> None:
        super().__init__(6)
        self.trainer = os.getpid()


@pytest.mark.parametrize("persistent", [False, True])
def test_parameter_persistent_workers_keep_dataset_and_generators(persistent: bool) -> None:
    assert_same_outcome(Kept, num_workers=2, persistent_workers=persistent, epochs=3)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("dataset", [Augmented, Stream], ids=["map", "iterable"])
def test_parameter_persistent_workers_one_iterator(dataset: Any, persistent: bool) -> None:
    def same(kind: Any) -> Any:
        loader = kind(dataset(), num_workers=1, persistent_workers=persistent)
        one, two = iter(loader), iter(loader)
        return one is two, loader._iterator is one, loader._iterator is None

    compare(same)


@WORKERS
@pytest.mark.parametrize("pin", [False, True])
@pytest.mark.skipif(torch.accelerator.is_available(), reason="without an accelerator")
def test_parameter_pin_memory_device_is_deprecated(pin: bool, workers: int) -> None:
    if pin and workers and not IGNORES_PIN_MEMORY_DEVICE:
        pytest.skip("this torch asks for the device, which is not there, and ends with that")
    compare(made_and_run(Squares, {"pin_memory": pin, "pin_memory_device": "cuda", "num_workers": workers}))


class FirstSlow(Augmented):
    """The first item takes longer than the other worker's first, however late that one starts."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.started = torch.multiprocessing.get_context("fork").Event()

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        if info and index > 0:
            self.started.set()
        if index == 0:
            assert not info or info.num_workers < 2 or self.started.wait(100)
            time.sleep(0.3)
        return index, info.id if info else None


def test_parameter_in_order_is_strict_round_robin() -> None:
    compare(made_and_run(lambda: FirstSlow(8), {"num_workers": 2, "prefetch_factor": 1}))


def test_parameter_in_order_false_gives_the_first_finished() -> None:
    """Which one that is, is a matter of time, save that it is not the slow one; a lone worker keeps the order."""

    def finished(kind: Any) -> Any:
        loader = kind(FirstSlow(8), num_workers=2, prefetch_factor=1, in_order=False)
        got = [batch[0].item() for batch in loader]
        return got[0] == 0, sorted(got)

    assert compare(finished)[0] is False
    compare(made_and_run(lambda: FirstSlow(4), {"num_workers": 1, "in_order": False}))


@WORKERS
def test_parameters_of_samplers_made_elsewhere(workers: int) -> None:
    """The draws of a sampler and of the loader, in one order."""
    for sampler in (
        lambda: BatchSampler(RandomSampler(range(9)), 4, False),
        lambda: BatchSampler(SequentialSampler(range(9)), 4, True),
    ):
        compare(lambda kind, made=sampler: (seed_all(), iterate(kind(Augmented(), batch_sampler=made())), rng_states()))
        assert_same_outcome(Augmented, batch_sampler=Fresh(sampler), num_workers=workers)


def test_our_own_options_are_checked_first_and_change_nothing_of_torchs() -> None:
    options = {"spare_slots": 0, "max_ring_bytes": 1 << 30}
    for row in ("1: num_workers negative", "8: iterable and sampler", "13: batch_size float"):
        dataset, faults = CHECKS[row]
        compare(lambda kind, d=dataset, o=faults: kind(d(), **o, **(options if kind is shmloader.DataLoader else {})))
