"""Features: collating, fetching, seeding, epochs, samplers, and what a worker finds around it.

The names of the tests are the rows of the contract; torch's class gives every answer.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import os
import pathlib
import random
import re
from signal import SIGHUP
from typing import Any

import numpy
import psutil
import pytest
import torch
from conftest import (
    ASKS_CUDA_ALONE,
    BOTH,
    WORKERS_OFF_THE_RING,
    Augmented,
    Fresh,
    Items,
    assert_same,
    assert_same_outcome,
    compare,
    descriptors,
    differs,
    iterate,
    outcome_of,
    rng_states,
    seed_all,
)
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    TensorDataset,
    get_worker_info,
)
from torch.utils.data._utils.collate import default_collate_fn_map
from torch.utils.data.datapipes.iter import IterableWrapper

import shmloader

pytestmark = pytest.mark.usefixtures("impatient_torch")
CREWS = pytest.mark.parametrize(("workers", "persistent"), [(0, False), (1, False), (2, True)])
WORKERS = pytest.mark.parametrize("workers", [0, 1])
Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Record:
    x: Any


class Real(float):
    pass


class Frozen(collections.abc.Mapping):
    """A mapping that cannot be copied and filled, nor made from a dict."""

    def __init__(self, *, only: Any) -> None:
        self.only = only

    def __getitem__(self, key: str) -> Any:
        return {"only": self.only}[key]

    def __iter__(self) -> Any:
        return iter(["only"])

    def __len__(self) -> int:
        return 1


def batches_of(items: list[Any], workers: int, **options: Any) -> Any:
    return compare(lambda kind: iterate(kind(Items(items), num_workers=workers, **options)))


@functools.cache
def collated(kind: Any, table: str, workers: int) -> dict[str, Any]:
    """What becomes of each row of a table, in one epoch."""
    rows: dict[str, list[Any]] = globals()[table]
    items = [item for pair in rows.values() for item in pair]
    got = iterate(kind(Items(items), 2, num_workers=workers))
    return dict(zip(rows, copy.deepcopy(got), strict=True))


# ---------------------------------------------------------------------------------------------------------- collating

DISPATCH: dict[str, list[Any]] = {
    "Tensor": [torch.ones(2), torch.zeros(2)],
    "Tensor subclass": [torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.zeros(2))],
    "np.ndarray": [numpy.ones(2), numpy.zeros(2)],
    "np.bool_": [numpy.bool_(True), numpy.bool_(False)],
    "np.number": [numpy.float16(1), numpy.float16(2)],
    "np.object_": [numpy.array(3, dtype=object)[()], 4],
    "float": [1.5, 2.5],
    "float subclass": [Real(1.5), Real(2.5)],
    "int": [1, 2**40],
    "int too large": [2**70, 1],
    "bool": [True, False],
    "first decides: int, float": [1, 2.5],
    "first decides: float, int": [2.5, 1],
    "str": ["a", "b"],
    "bytes": [b"a", b"b"],
    "complex": [1j, 2j],
    "None": [None, None],
    "object": [Record(1), Record(2)],
    "Mapping: dict": [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}],
    "Mapping: OrderedDict": [collections.OrderedDict(a=1), collections.OrderedDict(a=2)],
    "Mapping: defaultdict": [collections.defaultdict(list, a=1), collections.defaultdict(list, a=2)],
    "Mapping: falls back to dict": [Frozen(only=1), Frozen(only=2)],
    "Mapping: a key missing": [{"a": 1, "b": 2}, {"a": 1}],
    "namedtuple": [Point(1, torch.ones(1)), Point(2, torch.zeros(1))],
    "Sequence: tuple becomes list": [(1, "a"), (2, "b")],
    "Sequence: list": [[1, [2.0]], [3, [4.0]]],
    "Sequence: range": [range(2), range(2, 4)],
    "Sequence: deque": [collections.deque([1, 2]), collections.deque([3, 4])],
    "Sequence: empty": [[], []],
    "Sequence: unequal size": [[1], [1, 2]],
    "Sequence: unequal size, tuples": [(1,), ()],
    "a set": [{1}, {2}],
    "a type in a list": [[1, int], [2, int]],
}


@WORKERS
@pytest.mark.parametrize("row", DISPATCH)
def test_feature_default_collate_dispatch(row: str, workers: int) -> None:
    compare(lambda kind: collated(kind, "DISPATCH", workers)[row])


TENSORS: dict[str, list[Any]] = {
    "ragged": [torch.ones(2), torch.ones(3)],
    "not all tensors": [torch.ones(2), 3],
    "dtypes differ": [torch.ones(2), torch.ones(2, dtype=torch.int64)],
    "sparse": [torch.eye(2).to_sparse(), torch.eye(2).to_sparse()],
    "sparse second": [torch.eye(2), torch.eye(2).to_sparse()],
    "requires grad": [torch.ones(2, requires_grad=True), torch.ones(2)],
    "no elements": [torch.ones(0, 3), torch.ones(0, 3)],
    "transposed": [torch.arange(6).view(2, 3).t(), torch.arange(6).view(3, 2)],
    "expanded": [torch.ones(1).expand(4), torch.ones(4)],
    "bfloat16": [torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16)],
    "conjugated": [torch.ones(2, dtype=torch.complex64).conj(), torch.ones(2, dtype=torch.complex64)],
    "meta": [torch.ones(2, device="meta"), torch.ones(2, device="meta")],
}


@pytest.mark.parametrize(
    ("row", "workers"),
    [
        pytest.param(row, workers, marks=differs("torch can collate it without workers only, ours can with them too"))
        if (row, workers) == ("conjugated", 1)
        else (row, workers)
        for row in TENSORS
        for workers in (0, 1)
    ],
)
def test_feature_tensor_collate(row: str, workers: int) -> None:
    compare(lambda kind: collated(kind, "TENSORS", workers)[row])


@WORKERS
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_feature_tensor_collate_nested(workers: int) -> None:
    nested = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])
    batches_of([nested, nested], workers, batch_size=2)


ARRAYS: dict[str, list[Any]] = {
    "kind S": [numpy.array(["a"], dtype="S"), numpy.array(["b"], dtype="S")],
    "kind U": [numpy.array(["a"]), numpy.array(["b"])],
    "kind O": [numpy.array([None]), numpy.array([None])],
    "kind V": [numpy.zeros(1, dtype="i4,f4"), numpy.zeros(1, dtype="i4,f4")],
    "kind M": [numpy.array(["2020-01-01"], dtype="M8[D]"), numpy.array(["2020-01-02"], dtype="M8[D]")],
    "uint16": [numpy.ones(2, "u2"), numpy.zeros(2, "u2")],
    "other byte order": [numpy.ones(2, ">f4"), numpy.zeros(2, ">f4")],
    "0-d": [numpy.array(1.5), numpy.array(2)],
    "ragged": [numpy.ones(2), numpy.ones(3)],
    "negative strides": [numpy.arange(3)[::-1], numpy.arange(3)],
    "np.str_": [numpy.str_("a"), numpy.str_("b")],
    "np.float64": [numpy.float64(1.5), numpy.float64(2.5)],
    "np.int8": [numpy.int8(1), numpy.int8(2)],
}


@WORKERS
@pytest.mark.parametrize("row", ARRAYS)
@pytest.mark.filterwarnings("ignore")
def test_feature_numpy_and_scalars(row: str, workers: int) -> None:
    compare(lambda kind: collated(kind, "ARRAYS", workers)[row])


def as_text(batch: Any, *, collate_fn_map: Any = None) -> Any:
    return "collated by the user", len(batch)


@WORKERS
@pytest.mark.parametrize("kind", [torch.Tensor, int, Record, str])
def test_feature_collate_map_is_a_public_extension_point(
    kind: type, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also as an entry set in a worker."""
    items = {torch.Tensor: torch.ones(1), int: 1, Record: Record(1), str: "a"}[kind]
    monkeypatch.setitem(default_collate_fn_map, kind, as_text)
    batches_of([items, items], workers, batch_size=2)


def add_entry(worker_id: int) -> None:
    default_collate_fn_map.update({torch.Tensor: as_text})


def test_feature_collate_map_updated_in_a_worker() -> None:
    batches_of([torch.ones(1), torch.ones(1)], 1, batch_size=2, worker_init_fn=add_entry)


@WORKERS
def test_feature_default_convert(workers: int) -> None:
    items = [values[0] for rows in (DISPATCH, ARRAYS) for values in rows.values() if "deque" not in repr(values)]
    convertible = []
    for item in items:
        if (
            outcome_of(lambda kind, i=item: next(iter(kind([i], batch_size=None))), BOTH[0])[0].__class__.__name__
            != "Raised"
        ):
            convertible.append(item)
    assert len(convertible) > 30
    batches_of(convertible, workers, batch_size=None)


# ------------------------------------------------------------------------------------------------------------ fetching


class Bulk(Augmented):
    def __getitems__(self, indices: list[int]) -> Any:
        return [{"bulk": len(indices), "i": index} for index in indices]


class BulkOdd(Augmented):
    """Whatever it returns goes to the collate function, and nobody counts it."""

    def __getitems__(self, indices: list[int]) -> Any:
        return [indices[0]]


class BulkTensor(Augmented):
    def __getitems__(self, indices: list[int]) -> Any:
        return torch.tensor(indices)


class BulkNone(Augmented):
    __getitems__ = None


class BulkFails(Augmented):
    def __getitems__(self, indices: list[int]) -> Any:
        raise KeyError(indices[0])


@WORKERS
@pytest.mark.parametrize("batch_size", [None, 3])
@pytest.mark.parametrize("dataset", [BulkOdd, BulkTensor, BulkNone, BulkFails])
def test_feature_getitems(dataset: Any, batch_size: int | None, workers: int) -> None:
    assert_same_outcome(lambda: dataset(7), batch_size=batch_size, num_workers=workers)


class OverridesOne(Subset):
    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index)


class OverridesBoth(OverridesOne):
    def __getitems__(self, indices: list[int]) -> Any:
        return super().__getitems__(indices)


@WORKERS
@pytest.mark.parametrize("subset", [Subset, OverridesOne, OverridesBoth])
@pytest.mark.parametrize("dataset", [Augmented, Bulk])
def test_feature_subset(subset: Any, dataset: Any, workers: int) -> None:
    def epoch(kind: Any) -> Any:
        seed_all()
        return iterate(kind(subset(dataset(), [4, 2, 9]), batch_size=2, num_workers=workers))

    compare(epoch)


class Uneven(IterableDataset):
    """Worker k has shares[k] samples."""

    def __init__(self, shares: list[int]) -> None:
        self.shares = shares

    def __iter__(self) -> Any:
        info = get_worker_info()
        me = info.id if info else 0
        for k in range(self.shares[me]):
            yield [me, k, random.random()]


@pytest.mark.parametrize("shares", [[0, 0, 0], [5, 0, 2], [0, 1, 7]], ids=str)
@pytest.mark.parametrize(("drop_last", "persistent"), [(False, False), (True, True)])
def test_feature_iterable_fetch_exhausted_workers_are_skipped(
    shares: list[int], drop_last: bool, persistent: bool
) -> None:
    assert_same_outcome(
        lambda: Uneven(shares),
        batch_size=2,
        drop_last=drop_last,
        num_workers=3,
        persistent_workers=persistent,
        epochs=2,
    )


@pytest.mark.parametrize("batch_size", [None, 1, 4])
def test_feature_iterable_fetch_exhausted_workers_are_skipped_at_other_batch_sizes(batch_size: int | None) -> None:
    assert_same_outcome(lambda: Uneven([1, 9]), batch_size=batch_size, num_workers=2, epochs=2)
    assert_same_outcome(lambda: Uneven([5]), batch_size=batch_size, num_workers=0, epochs=2)


class BeginsAnew(Uneven):
    """An iterator that raises StopIteration once, and starts again if it is asked again."""

    def __init__(self, shares: list[int]) -> None:
        super().__init__(shares)
        self.at = 0

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        me = get_worker_info().id
        self.at = (self.at + 1) % (self.shares[me] + 1)
        if not self.at:
            raise StopIteration
        return 100 * me + self.at


class StopsOnce:
    """A collate function that ends the stream at its third batch; what it has made of that it keeps, if it is to."""

    def __init__(self, keeps: bool) -> None:
        self.keeps, self.calls, self.last = keeps, 0, None

    def __call__(self, samples: list[Any]) -> Any:
        self.calls += 1
        batch = torch.utils.data.default_collate([torch.tensor(sample) for sample in samples])  # in the slot
        if self.calls == 3:
            self.last = batch if self.keeps else None
            raise StopIteration
        return batch


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("prefetch", [1, pytest.param(3, marks=pytest.mark.long)])
def test_feature_iterable_fetch_a_worker_at_its_end_is_not_asked_again(prefetch: int, persistent: bool) -> None:
    options = {"num_workers": 2, "prefetch_factor": prefetch, "persistent_workers": persistent, "epochs": 2}
    for batch_size in (None, 2):
        assert_same_outcome(lambda: BeginsAnew([3, 4]), batch_size=batch_size, **options)
    for keeps in (False, True):
        stops = Fresh(functools.partial(StopsOnce, keeps))
        assert_same_outcome(lambda: Uneven([20, 20]), batch_size=2, collate_fn=stops, **options)


# ------------------------------------------------------------------------------------------------------------- seeding


class Drawn(Augmented):
    """What the worker's generators, seed and info say."""

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        return (
            random.random(),
            torch.rand(1).item(),
            numpy.random.rand(),
            torch.initial_seed() if info else None,
            info and (info.id, info.num_workers, info.seed),
        )


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_feature_seeding(workers: int) -> None:
    assert_same_outcome(lambda: Drawn(7), num_workers=workers, collate_fn=list, epochs=2)
    compare(lambda kind: (seed_all(), iter(kind(Drawn(), num_workers=workers))._base_seed))


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (1, False), (1, True), (3, False)])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_feature_rng_order_with_shuffle(
    workers: int, shuffle: bool, given: bool, persistent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order and the number of all draws of the main process, and which generator each is from."""
    draws: list[Any] = []
    for owner, name in ((torch.Tensor, "random_"), (torch, "randperm"), (torch, "randint"), (torch, "rand")):
        stock = getattr(owner, name)

        def drawn(*args: Any, stock: Any = stock, name: str = name, **options: Any) -> Any:
            value = stock(*args, **options)
            draws.append((name, options.get("generator") is not None, value.tolist()))
            return value

        monkeypatch.setattr(owner, name, drawn)

    def epochs(kind: Any) -> Any:
        seed_all()
        draws.clear()
        generator = torch.Generator().manual_seed(4) if given else None
        loader = kind(range(5), 2, shuffle, num_workers=workers, generator=generator, persistent_workers=persistent)
        for _ in range(3):
            draws.append(iterate(loader))
        return list(draws), rng_states(), generator.get_state() if generator is not None else None

    compare(epochs)


class Eager(Sampler[int]):
    """It draws when its iterator is made, and counts how often that is."""

    def __init__(self) -> None:
        self.made = 0

    def __iter__(self) -> Any:
        self.made += 1
        first = torch.randint(5, ()).item()
        return iter([first, (first + 1) % 5])


@pytest.mark.parametrize("batch_size", [None, 1])
@CREWS
def test_feature_double_iter(workers: int, persistent: bool, batch_size: int | None) -> None:

    def epochs(kind: Any) -> Any:
        seed_all()
        sampler = Eager()
        loader = kind(range(5), batch_size, sampler=sampler, num_workers=workers, persistent_workers=persistent)
        got = []
        for _ in range(3):
            got.append((iterate(loader), sampler.made))
        return got, rng_states()

    compare(epochs)


@pytest.mark.parametrize("dataset", [Drawn, lambda n: Uneven([n, 1])], ids=["map", "iterable"])
def test_feature_persistent_epochs(dataset: Any) -> None:
    """base_seed is drawn once, and workers are not seeded again."""

    def epochs(kind: Any) -> Any:
        seed_all()
        loader = kind(dataset(5), num_workers=2, persistent_workers=True, collate_fn=list)
        got = []
        for _ in range(3):
            got.append((iterate(loader), loader._iterator._base_seed, rng_states()))
        return got, [worker.is_alive() for worker in loader._iterator._workers]

    compare(epochs)


@pytest.mark.off_the_ring
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("persistent", [False, True])
def test_feature_shared_seed(persistent: bool) -> None:
    """Only datapipes have one."""

    def epochs(kind: Any) -> Any:
        seed_all()
        pipe = IterableWrapper(range(8)).shuffle().sharding_filter()
        loader = kind(pipe, 2, num_workers=2, persistent_workers=persistent, shuffle=True)
        return [iterate(loader) for _ in range(2)], iter(loader)._shared_seed is None, rng_states()

    compare(epochs)
    compare(lambda kind: iter(kind(Augmented(), num_workers=1))._shared_seed)


# ---------------------------------------------------------------------------------------------------- inside the worker


class Around(Augmented):
    """What the worker finds around it."""

    def __init__(self) -> None:
        super().__init__(1)

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        if info is None:
            return None
        try:
            info.id = 3  # type: ignore[misc]
        except Exception as error:
            assigned = type(error).__name__, str(error)
        # it was no dataclass before torch 2.13
        fields = [f.name for f in dataclasses.fields(info)] if dataclasses.is_dataclass(info) else sorted(vars(info))
        status = pathlib.Path("/proc/self/status").read_text()
        process = torch.multiprocessing.current_process()
        return {
            "type": type(info).__qualname__,
            "fields": fields,
            "values": [str(getattr(info, name)) for name in fields if name != "dataset"],
            "slots": hasattr(info, "__dict__"),
            "dataset": info.dataset is self,
            "assigned": assigned,
            "module": torch.utils.data._utils.worker._worker_info is info,
            "threads": torch.get_num_threads(),
            "name": pathlib.Path("/proc/self/comm").read_text(),
            "daemon": process.daemon,
            "process": re.sub(r"\d+", "N", process.name),
            "signals": [
                [  # ours uses a later one too, and outlives SIGHUP
                    bool(int(line.split()[1], 16) >> number - 1 & 1) for number in range(1, 32) if number != SIGHUP
                ]
                for line in status.splitlines()
                if line.startswith(("SigBlk", "SigIgn", "SigCgt"))
            ],
            "grad": torch.is_grad_enabled(),
            "parent": psutil.Process().ppid() == os.getppid(),
        }


@WORKERS
def test_feature_worker_info_and_env(workers: int) -> None:
    def around(kind: Any) -> Any:
        seed_all()
        return list(kind(Around(), num_workers=workers, collate_fn=list))

    assert (compare(around) != [[None]]) == (workers > 0)


# ------------------------------------------------------------------------------------------------------------ samplers


@WORKERS
def test_feature_batch_sampler(workers: int) -> None:
    class Noted(BatchSampler):
        def __iter__(self) -> Any:
            for batch in super().__iter__():
                assert type(batch) is list
                yield batch

    def epochs(kind: Any) -> Any:
        sampler = Noted(iter([4, 2, 0, 1, 3]), 2, True)  # any iterable
        loader = kind(range(9), batch_sampler=sampler, num_workers=workers)
        got = [iterate(loader)]
        sampler.sampler, sampler.drop_last, sampler.batch_size = range(5), False, 3  # each epoch reads them again
        return got, len(loader), iterate(loader)

    compare(epochs)


@CREWS
def test_feature_random_sampler_of_a_growing_dataset(workers: int, persistent: bool) -> None:
    def epochs(kind: Any) -> Any:
        seed_all()
        held = list(range(4))
        loader = kind(range(50), 1, sampler=RandomSampler(held), num_workers=workers,
                      persistent_workers=persistent)  # fmt: skip
        got = [iterate(loader), len(loader)]
        held.extend(range(4, 7))
        return got, iterate(loader), len(loader), rng_states()

    compare(epochs)


@WORKERS
@pytest.mark.parametrize("drop_last", [False, True])
def test_feature_distributed_sampler(workers: int, drop_last: bool) -> None:
    def epochs(kind: Any) -> Any:
        sampler = DistributedSampler(range(7), num_replicas=3, rank=1, shuffle=True, drop_last=drop_last)
        loader = kind(range(7), 2, sampler=sampler, num_workers=workers)
        got = []
        for epoch in (0, 0, 1):
            loader.sampler.set_epoch(epoch)
            got.append((iterate(loader), len(loader)))
        return got

    compare(epochs)


class FailsInIter:
    def __iter__(self) -> Any:
        raise ArithmeticError("in __iter__")


class FailsMidWay:
    def __init__(self, at: int) -> None:
        self.at = at

    def __iter__(self) -> Any:
        yield from range(self.at)
        raise ArithmeticError(f"after {self.at}")


@CREWS
@pytest.mark.parametrize("batch_size", [None, 2])
@pytest.mark.parametrize(
    "sampler",
    [FailsInIter, lambda: FailsMidWay(0), lambda: FailsMidWay(3), lambda: FailsMidWay(6)],
    ids=["in __iter__", "at once", "in the first indices", "mid-way"],
)
def test_feature_error_in_the_sampler(sampler: Any, batch_size: int | None, persistent: bool, workers: int) -> None:
    assert_same_outcome(
        lambda: range(9),
        sampler=Fresh(sampler),
        batch_size=batch_size,
        num_workers=workers,
        persistent_workers=persistent,
        epochs=2,
    )


# ---------------------------------------------------------------------------------------------------------- pin_memory


class Pins:
    def __init__(self, value: Any = 0) -> None:
        self.value = value

    def pin_memory(self) -> Any:
        return Pins(self.value + 1)


class FailsToPin:
    def pin_memory(self) -> Any:
        raise LookupError("cannot be pinned")


class PinsAll(dict):  # type: ignore[type-arg]
    def pin_memory(self) -> Any:
        return "pinned"


PINNED: dict[str, Any] = {
    "Tensor": torch.ones(2),
    "str": "a",
    "bytes": b"a",
    "int": 3,
    "own pin_memory": Pins(),
    "Mapping": collections.OrderedDict(a=torch.ones(1), b=Pins()),
    "tuple stays tuple": (torch.ones(1), "x"),
    "namedtuple": Point(torch.ones(1), 2),
    "list": [torch.ones(1), [torch.zeros(1)]],
    "Mapping with own pin_memory": PinsAll(a=1),
    "failing": FailsToPin(),
}


@pytest.fixture
def an_accelerator(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """One that pins by adding 1000, so that it is seen; and what the pin thread did before."""
    done: list[Any] = []
    # This torch was not built for it, whatever it was built for: torch's own iterator pins, and nothing is page-locked.
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    if ASKS_CUDA_ALONE:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 5)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 5)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: done.append(index))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self, device=None: self + 1000)
    return done


@WORKERS_OFF_THE_RING
@pytest.mark.parametrize("row", PINNED)
def test_feature_pin_memory_recursion(row: str, workers: int, an_accelerator: list[Any]) -> None:
    def epoch(kind: Any) -> Any:
        return iterate(kind(Items([PINNED[row]]), pin_memory=True, num_workers=workers, collate_fn=lambda b: b[0]))

    compare(epoch)


@pytest.mark.off_the_ring
def test_feature_pin_thread(an_accelerator: list[Any]) -> None:
    def threads(kind: Any) -> Any:
        an_accelerator.clear()
        iterator = iter(kind(range(4), pin_memory=True, num_workers=1))
        got = next(iterator)
        thread = iterator._pin_memory_thread
        found = [thread.daemon, thread.is_alive(), list(an_accelerator), iterator._pin_memory_device, got]
        found.append([pathlib.Path(f"/proc/self/task/{thread.native_id}/comm").read_text()])
        iterator._shutdown_workers()
        return found, thread.is_alive()

    compare(threads)


@pytest.mark.off_the_ring
def test_feature_pin_thread_passes_exceptions(an_accelerator: list[Any]) -> None:
    class Failing(Augmented):
        def __getitem__(self, index: int) -> Any:
            if index == 1:
                raise KeyError("in the dataset")
            return index

    compare(lambda kind: iterate(kind(Failing(4), pin_memory=True, num_workers=2)))


@pytest.mark.skipif(
    not hasattr(torch.utils.data.dataloader, "_persistent_workers_atexit"),
    reason="this torch has each worker end at exit, and not the iterator",
)
@pytest.mark.off_the_ring
def test_feature_exit_hooks(an_accelerator: list[Any]) -> None:
    """persistent and pinned: torch ends its threads before the interpreter does."""

    def registered(kind: Any) -> Any:
        found = []
        for persistent in (False, True):
            iterator = iter(kind(range(3), pin_memory=True, num_workers=1, persistent_workers=persistent))
            found.append(iterator in torch.utils.data.dataloader._persistent_workers_atexit)
            list(iterator)  # a worker that is ended while it writes leaves its queue locked, and torch's thread waits
            iterator._shutdown_workers()
        return found

    compare(registered)


# ----------------------------------------------------------------------------------------------------------- transport
#
# How batches travel is shmloader's own.  torch's part is compared; the rest must match docs/limits.md.


def test_feature_delivered_cpu_tensors_without_workers() -> None:
    def properties(kind: Any) -> Any:
        (tensor,) = kind(TensorDataset(torch.arange(6)), batch_size=3)._get_iterator().__next__()
        storage = tensor.untyped_storage()
        return tensor.is_shared(), storage.nbytes(), storage.resizable(), tensor.resize_(9).shape

    compare(properties)


def test_feature_delivered_cpu_tensors_with_workers() -> None:
    """As large as its storage and not resizable, as torch's; but not shared."""

    def properties(kind: Any) -> Any:
        iterator = iter(kind(TensorDataset(torch.arange(6), torch.rand(6, 3)), batch_size=3, num_workers=1))
        found = []
        for tensor in next(iterator):
            storage = tensor.untyped_storage()
            found.append((storage.nbytes(), storage.resizable(), tensor.storage_offset(), tensor.is_contiguous()))
        return found

    compare(properties)
    compare(lambda kind: next(iter(kind(range(6), 3, num_workers=1))).resize_(9))
    theirs, ours = (next(iter(kind(range(6), 3, num_workers=1))) for kind in BOTH)
    assert theirs.is_shared() and not ours.is_shared()
    assert_same(ours, theirs)


def test_feature_batch_transport_needs_no_descriptor_for_a_batch() -> None:
    """torch has one for each tensor that is kept; and only the view's elements travel, not all of its storage."""

    class Views(Augmented):
        def __getitem__(self, index: int) -> Any:
            return torch.arange(100_000)[index : index + 2]

    open_files, sizes = [], []
    for kind in BOTH:
        iterator = iter(kind(Views(), batch_size=None, num_workers=1))
        before = sum(descriptors().values())
        held = [batch for batch, _ in zip(iterator, range(6), strict=False)]
        open_files.append(sum(descriptors().values()) - before)
        sizes.append(held[5].untyped_storage().nbytes())
        assert_same(held[5], torch.tensor([5, 6]))
        del held, iterator
    assert open_files[0] >= 6 > open_files[1] == 0
    assert sizes == [800_000, 16]


def test_feature_end_of_epoch() -> None:
    """Workers leave at the end, and next() stays at it."""

    def ended(kind: Any) -> Any:
        found = []
        for dataset in (Augmented(2), Uneven([2])):
            for persistent in (False, True):
                loader = kind(dataset, num_workers=1, persistent_workers=persistent)
                iterator = iter(loader)
                got = [next(iterator, None) is None for _ in range(5)]
                found.append((got, iterator._shutdown, [w.is_alive() for w in iterator._workers]))
                del loader, iterator
        return found

    compare(ended)


def test_feature_our_loader_closes() -> None:
    """What torch has not got changes nothing that it has."""
    with shmloader.DataLoader(range(3), num_workers=1, persistent_workers=True) as loader:
        first = list(loader)
    assert_same(list(loader), first)
    loader.close()
