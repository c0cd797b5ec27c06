"""Attributes: what a loader and its iterators carry, what can be set, what they are instances of, what they warn.

Frameworks read and set these.  The names of the tests are the rows of the contract.
"""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import types
import warnings
from typing import Any

import pytest
import torch
import torch.utils.data.dataloader as torchs
from conftest import BOTH, Augmented, compare, differs, iterate, seed_all, started
from torch.utils.data import BatchSampler, IterableDataset, SequentialSampler

import shmloader
from shmloader.options import DEFAULTS
from shmloader.trainer.iterator import RingIterator

pytestmark = pytest.mark.usefixtures("impatient_torch")
KINDS = pytest.mark.parametrize("dataset", [Augmented, lambda *n: Stream(*n)], ids=["map", "iterable"])


WORKERS = pytest.mark.parametrize("workers", [0, 1])
OF_LOADER = {
    *DEFAULTS,
    "_shmloader_options",
}  # which frameworks pass on to nobody, because it begins with an underscore


class Stream(IterableDataset):
    """It says that it is shorter than it is."""

    def __init__(self, length: int = 8, text: int = 3) -> None:
        self.length, self.text = length, text

    def __len__(self) -> int:
        return self.text

    def __iter__(self) -> Any:
        return iter(range(self.length))

    def __repr__(self) -> str:
        return "Stream()"


def plain(value: Any) -> Any:
    """An attribute's value, so that two loaders' can be compared."""
    if value is None or isinstance(value, (bool, int, float, str, torch.Tensor)):
        return value
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, types.FunctionType):
        return value.__qualname__
    return type(value).__name__


# ---------------------------------------------------------------------------------------------------------- the loader


@WORKERS
@KINDS
def test_attribute_instance_dict(dataset: Any, workers: int) -> None:
    """The same names with the same values; public ones of ours are constructor arguments, for frameworks pass on what
    they find."""

    def attributes(kind: Any) -> Any:
        loader = kind(dataset(), batch_size=3, num_workers=workers)
        found = {name: plain(value) for name, value in vars(loader).items() if name not in OF_LOADER}
        return dict(sorted(found.items()))

    compare(attributes)
    more = set(vars(shmloader.DataLoader(dataset(), num_workers=workers))) - set(vars(BOTH[0](dataset())))
    assert more == OF_LOADER
    assert set(inspect.signature(shmloader.DataLoader).parameters) >= set(DEFAULTS)


@WORKERS
@KINDS
def test_attribute_instance_dict_after_an_epoch(dataset: Any, workers: int) -> None:
    def attributes(kind: Any) -> Any:
        loader = kind(dataset(), num_workers=workers, persistent_workers=workers > 0)
        iterate(loader)
        length = len(loader)
        return length, {
            name: plain(v) for name, v in sorted(vars(loader).items()) if name not in {*OF_LOADER, "_iterator"}
        }

    compare(attributes)


def test_attribute_of_the_class() -> None:
    for name in (name for name in dir(BOTH[0]) if not name.startswith("__")):
        assert type(inspect.getattr_static(BOTH[1], name)) is type(inspect.getattr_static(BOTH[0], name)), name


def test_attribute_multiprocessing_context_is_a_property_with_a_validating_setter() -> None:
    def values(kind: Any) -> Any:
        loader = kind(Augmented(), num_workers=1)
        found: list[Any] = ["multiprocessing_context" in vars(loader), loader.multiprocessing_context]
        for value in ("spawn", "nothing", 3, None):
            found.append(assigned(loader, "multiprocessing_context", value))
            found.append(type(loader.multiprocessing_context))
        return found

    compare(values)


def assigned(loader: Any, name: str, value: Any) -> Any:
    try:
        setattr(loader, name, value)
    except Exception as error:
        return type(error), str(error)
    return plain(getattr(loader, name))


SETTABLE = [*inspect.signature(BOTH[0]).parameters, "_iterator", "_dataset_kind", "anything_else"]


@pytest.mark.parametrize("name", SETTABLE)
def test_attribute_guarded_setattr(name: str) -> None:
    compare(lambda kind: assigned(kind(Augmented()), name, None))
    compare(lambda kind: assigned(type("MyLoader", (kind,), {})(Augmented()), name, None))


@pytest.mark.parametrize("name", ["sampler", "batch_sampler", "drop_last", "batch_size"])
def test_attribute_guard_lifted_by_its_mangled_flag(name: str) -> None:
    """As timm does to swap samplers."""

    def lifted(kind: Any) -> Any:
        seed_all()
        loader = kind(Augmented(6), batch_size=2, num_workers=1)
        loader._DataLoader__initialized = False
        value = {"sampler": SequentialSampler(range(3)), "batch_sampler": [[2], [0]], "drop_last": True}.get(name, 4)
        setattr(loader, name, value)
        loader._DataLoader__initialized = True
        return assigned(loader, name, None), iterate(loader)

    compare(lifted)


def test_attribute_set_later_is_read_when_the_next_iterator_is_made() -> None:
    def epochs(kind: Any) -> Any:
        seed_all()
        loader = kind(Augmented(4), batch_size=2, num_workers=1)
        got = [iterate(loader)]
        for name, value in (
            ("collate_fn", repr),
            ("worker_init_fn", torch.rand),
            ("generator", torch.Generator().manual_seed(3)),
            ("timeout", 20),
            ("in_order", False),
            ("in_order", True),
            ("prefetch_factor", 0),
            ("prefetch_factor", 3),
            ("num_workers", 2),
            ("num_workers", 0),
        ):
            setattr(loader, name, value)
            got.append(iterate(loader))
        return got

    compare(epochs)


def test_attribute_batch_size_of_the_batch_sampler_may_change_between_epochs() -> None:
    def epochs(kind: Any) -> Any:
        loader = kind(Augmented(9), batch_sampler=BatchSampler(range(9), 2, False), num_workers=1)
        got = [[len(batch["i"]) for batch in loader]]
        loader.batch_sampler.batch_size = 5
        return [*got, [len(batch["i"]) for batch in loader]]

    compare(epochs)


@KINDS
@pytest.mark.parametrize("batch_size", [None, 2])
def test_attribute_auto_collation_and_index_sampler(dataset: Any, batch_size: int | None) -> None:
    def properties(kind: Any) -> Any:
        loader = kind(dataset(), batch_size=batch_size)
        which = loader._index_sampler is loader.sampler, loader._index_sampler is loader.batch_sampler
        return (
            loader._auto_collation,
            which,
            assigned(loader, "_auto_collation", 1),
            assigned(loader, "_index_sampler", 1),
        )

    compare(properties)


def test_attribute_subscriptable() -> None:
    def subscripted(kind: Any) -> Any:
        alias = kind[int]
        return type(alias), alias.__origin__ is kind, len(alias([1, 2])), type(alias([1])) is kind

    compare(subscripted)
    assert issubclass(shmloader.DataLoader, torch.utils.data.DataLoader)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
@pytest.mark.parametrize("when", ["new", "after an epoch", "persistent, new", "persistent iterator exists"])
def test_attribute_picklable_until_a_persistent_iterator_exists(copied: Any, when: str) -> None:
    """The text names the iterator's class, and that is another one: it is put back here."""

    def copies(kind: Any) -> Any:
        seed_all()
        loader = kind(Augmented(4), num_workers=1, persistent_workers="persistent" in when)
        if when in ("after an epoch", "persistent iterator exists"):
            iterate(loader)
        try:
            again = copied(loader)
        except NotImplementedError as error:
            return error.args[0], error.args[1].replace("RingIterator", "_MultiProcessingDataLoaderIter")
        names = sorted(set(vars(again)) - OF_LOADER)
        assert kind is BOTH[0] or (again.spare_slots, again.max_ring_bytes) == (2, None)
        return type(again) is kind, names, iterate(again), iterate(loader), assigned(again, "batch_size", 3)

    compare(copies)


@WORKERS
def test_attribute_an_iterator_cannot_be_pickled(workers: int) -> None:
    def refused(kind: Any) -> Any:
        try:
            pickle.dumps(iter(kind(Augmented(), num_workers=workers)))
        except NotImplementedError as error:
            return error.args[0], error.args[1].replace("RingIterator", "_MultiProcessingDataLoaderIter")

    assert compare(refused)


@WORKERS
@KINDS
def test_attribute_fresh_iterators_live_at_once(dataset: Any, workers: int) -> None:
    """A ring belongs to the iterator, not to the loader."""

    def interleaved(kind: Any) -> Any:
        seed_all()
        loader = kind(dataset(6), num_workers=workers)
        one, two = iter(loader), iter(loader)
        got = [next(one), next(two), next(two)]
        three = iter(loader)
        return one is two, loader._iterator, got, next(three), list(two), list(three), list(one)

    compare(interleaved)


def test_attribute_persistent_iterator_restarted_half_way() -> None:
    def restarted(kind: Any) -> Any:
        seed_all()
        loader = kind(Augmented(6), num_workers=2, persistent_workers=True, shuffle=True)
        got = [started(loader, 2), iterate(loader), iterate(loader)]
        iterator = loader._iterator
        del loader._iterator, loader
        return got, iterator._num_yielded

    compare(restarted)


# ---------------------------------------------------------------------------------------------------- length, warnings


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [None, 1, 3])
@KINDS
def test_attribute_len(dataset: Any, batch_size: int | None, drop_last: bool) -> None:
    if drop_last and batch_size is None:
        batch_size = 2

    def lengths(kind: Any) -> Any:
        loader = kind(dataset(8), batch_size=batch_size, drop_last=drop_last, num_workers=1)
        return loader._IterableDataset_len_called, len(loader), loader._IterableDataset_len_called, len(iter(loader))

    compare(lengths)


def test_attribute_len_of_what_has_none() -> None:
    class Endless(IterableDataset):
        def __iter__(self) -> Any:
            return iter(())

    compare(lambda kind: len(kind(Endless())))
    compare(lambda kind: len(kind(Augmented(), sampler=iter([1]))))


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("batch_size", [None, 1, 4])
@pytest.mark.parametrize("persistent", [False, True])
def test_attribute_len_warning_of_iterable_datasets(batch_size: int | None, workers: int, persistent: bool) -> None:
    """Each batch beyond the samples reported warns, once the length was asked for."""

    def warned(kind: Any) -> Any:
        loader = kind(
            Stream(), batch_size=batch_size, num_workers=workers, persistent_workers=persistent and workers > 0
        )
        first = list(loader)
        warnings.warn("asked for its length", stacklevel=1)
        length = len(loader)
        return first, length, list(loader), list(loader)

    compare(warned)


NAMES_THE_USERS_LINE = "stacklevel" in inspect.getsource(torchs._BaseDataLoaderIter.__next__)  # 2.6 names its own


@pytest.mark.parametrize(
    "workers", [0, pytest.param(1, marks=() if NAMES_THE_USERS_LINE else differs("ours names the user's line"))]
)
def test_attribute_len_warning_names_the_users_line(workers: int) -> None:
    """With Python's default filters each line of the user's warns once."""

    def lines(kind: Any) -> Any:
        loader = kind(Stream(), num_workers=workers)
        len(loader)
        iterator = iter(loader)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(5):
                next(iterator)
        return [(w.filename, w.lineno) for w in caught]

    assert len(compare(lines)) == 2


def pretend_no_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    if hasattr(torch._utils, "cpu_count"):
        monkeypatch.setattr(torch._utils, "cpu_count", lambda: 0)
    else:  # torch counts them in place
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set())


@pytest.mark.parametrize("workers", [0, 1, 10_000])
def test_attribute_check_worker_number_rationality(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_no_cores(monkeypatch)

    def warned(kind: Any) -> Any:
        seed_all()
        loader = kind(Augmented(2), num_workers=workers)
        loader.num_workers = min(workers, 2)
        loader.check_worker_number_rationality()
        return iterate(loader), None

    compare(warned)


IN_ANOTHER_FRAME = differs("what is called in torch's frames is called in shmloader's")


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=IN_ANOTHER_FRAME if NAMES_THE_USERS_LINE else ())])
def test_attribute_warnings_are_found_in_torchs_module(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter by module silences the same of them: `-W ignore::UserWarning:torch.utils.data.dataloader`."""
    pretend_no_cores(monkeypatch)

    def left(kind: Any) -> Any:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.filterwarnings("ignore", module="torch.utils.data")
            iterate(kind(Stream(2), num_workers=workers, pin_memory=True, pin_memory_device="cuda"))
        return [str(w.message) for w in caught]

    compare(left)


# --------------------------------------------------------------------------------------------------------- the profiler


def profiled(kind: Any, workers: int) -> Any:
    loader = kind(Augmented(4), num_workers=workers)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True) as profile:
        for _ in loader:
            torch.ones(2).sum()
    return profile


@WORKERS
@KINDS
def test_attribute_next_runs_under_record_function(dataset: Any, workers: int) -> None:
    def events(kind: Any) -> Any:
        warnings.filterwarnings("ignore", ".*Profiler clears events")  # torch 2.10 says it once a process, to either
        loader = kind(dataset(4), num_workers=workers)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            iterate(loader)
        found = {event.key: event.count for event in profile.key_averages() if event.key.startswith("enumerate")}
        return found

    assert compare(events)
    assert compare(lambda kind: iter(kind(dataset(), num_workers=workers))._profile_name.split("#")[0])


@pytest.mark.parametrize("workers", [0, 1])
def test_attribute_profilers_pattern_knows_an_asynchronous_loader(workers: int) -> None:
    patterns = pytest.importorskip("torch.profiler._pattern_matcher", reason="torch 2.14 no longer looks for any")

    def matched(kind: Any) -> Any:
        profile = profiled(kind, workers)
        return len(patterns.SynchronizedDataLoaderPattern(profile).matched_events())

    found = compare(matched)
    assert found == (workers == 0)


# --------------------------------------------------------------------------------------------------------- the iterator


@WORKERS
@KINDS
@pytest.mark.parametrize(
    "name", ["_BaseDataLoaderIter", "_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"]
)
def test_attribute_iterator_isinstance(name: str, dataset: Any, workers: int) -> None:
    compare(lambda kind: isinstance(iter(kind(dataset(), num_workers=workers)), getattr(torchs, name)))


def test_attribute_iterator_is_its_own_iterator() -> None:
    def itself(kind: Any) -> Any:
        iterator = iter(kind(Augmented(), num_workers=1))
        return iter(iterator) is iterator, len(iterator)

    compare(itself)


READ_BY_OTHERS = """
    _workers _workers_status _rcvd_idx _send_idx _num_yielded _tasks_outstanding _base_seed _index_sampler
    _sampler_iter _dataset _dataset_kind _auto_collation _drop_last _num_workers _world_size
    _rank _pin_memory _pin_memory_device _timeout _collate_fn _persistent_workers _prefetch_factor _in_order _shutdown
    _worker_init_fn _shared_seed _IterableDataset_len_called _worker_pids_set
    _pin_memory_thread _pg
"""
# The queues are the transport, and the ring stands in their place; it also keeps the order, and the account of who
# makes what.  So these names are absent.
TRANSPORT = [
    "_data_queue",
    "_index_queues",
    "_task_info",
    "_worker_queue_idx_cycle",
    "_worker_result_queue",
    "_workers_done_event",
    "_workers_num_tasks",
]


@KINDS
@pytest.mark.parametrize("persistent", [False, True])
def test_attribute_iterator_has(dataset: Any, persistent: bool) -> None:
    """With the same value after each batch, and at the end."""

    def histories(kind: Any) -> dict[str, list[Any]]:
        seed_all()
        loader = kind(dataset(6), batch_size=2, num_workers=1, persistent_workers=persistent)
        iterator = iter(loader)
        found: dict[str, list[Any]] = {name: [] for name in READ_BY_OTHERS.split()}
        for _ in range(4):
            for name, values in found.items():
                values.append(plain(getattr(iterator, name, "absent")))
            next(iterator, None)
        return found

    compare(histories)


def test_attribute_of_the_transport_is_the_rings_own() -> None:
    theirs, ours = (iter(kind(Augmented(), num_workers=1)) for kind in BOTH)
    absent = [name for name in TRANSPORT if not hasattr(theirs, name)]
    assert set(absent) <= {"_workers_num_tasks"}, "torch has it no more"  # older ones do not have it yet
    assert not [name for name in TRANSPORT if hasattr(ours, name)]


def test_attribute_workers_are_processes() -> None:
    def seen(kind: Any) -> Any:
        iterator = iter(kind(Augmented(), num_workers=2))
        before = [(type(w), w.daemon, w.is_alive(), w.exitcode) for w in iterator._workers]
        iterator._shutdown_workers()
        return before, [(w.is_alive(), w.exitcode) for w in iterator._workers]

    compare(seen)


@KINDS
@pytest.mark.parametrize("persistent", [False, True])
def test_attribute_shutdown_workers(dataset: Any, persistent: bool) -> None:
    """As Lightning and Composer call it: also twice, and next() afterwards."""

    def shut(kind: Any) -> Any:
        seed_all()
        loader = kind(dataset(6), num_workers=1, persistent_workers=persistent)
        iterator = iter(loader)
        got = [next(iterator)]
        iterator._shutdown_workers()
        iterator._shutdown_workers()
        got.append([next(iterator, "end"), iterator._shutdown, [w.is_alive() for w in iterator._workers]])
        loader._iterator = None
        return got, iterate(loader)

    compare(shut)


@KINDS
def test_attribute_which_iterator_serves(dataset: Any) -> None:
    """What is compared above is the ring, and not torch with itself."""
    assert type(iter(shmloader.DataLoader(dataset(), num_workers=1))) is RingIterator
