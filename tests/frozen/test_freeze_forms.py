"""The forms in which datasets hold their data: each is frozen, or left as it is; none makes freeze() fail."""

from __future__ import annotations

import collections
import dataclasses
import errno
import pickle
import resource
import subprocess
import sys
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import Dataset, StackDataset, TensorDataset

import shmloader
from shmloader.core.frozen_rows import FrozenDict, FrozenList
from shmloader.system import sealed_memory

MANY = 2000


class Holder:
    """Whatever attributes it is given."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Paths(Dataset[Any]):
    """Paths and their labels."""

    def __init__(self, count: int = 100) -> None:
        self.samples = [(f"{k}.jpg", k) for k in range(count)]

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]

    def __len__(self) -> int:
        return len(self.samples)


@dataclasses.dataclass(frozen=True)
class Record:
    """A dataset that cannot be assigned to."""

    samples: list[int]


class Float(numpy.float64):
    """A scalar of a class of its own."""


class NoDict:
    """An object that does not want to be looked at."""

    @property
    def __dict__(self) -> Any:
        raise RuntimeError("it is private")


class Proxy:
    """An object that is made when it is used first, and cannot be made here."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"{name} was asked for too early")


def without_memory() -> Any:
    """A tensor without a storage, as functions that are transformed see them."""
    seen: list[Any] = []
    torch.func.vmap(lambda row: (seen.append(row), row)[1])(torch.ones(MANY, 2))
    return seen[0]


ODD: dict[str, Any] = {
    "sparse": lambda: torch.eye(100).to_sparse(),
    "sparse rows": lambda: torch.eye(100).to_sparse_csr(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(MANY), torch.ones(3)]),
    "zeros that are no memory": lambda: torch._efficientzerotensor(MANY),
    "functional": lambda: torch._to_functional_tensor(torch.ones(MANY)),
    "without memory": without_memory,
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(MANY * 4), 0.1, 0, torch.qint8),
    "meta": lambda: torch.ones(MANY, device="meta"),
    "no __dict__": NoDict,
    "proxy": Proxy,
    "scalars with objects": lambda: list(numpy.zeros(100, [("a", "O")])),
    "text scalars": lambda: [numpy.str_("a\0")] * 100,
    "set": lambda: set(range(100)),
    "tuple": lambda: tuple(range(100)),
    "queue": lambda: collections.deque(range(100)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ODD)
def test_what_cannot_be_frozen_stays_and_does_not_disturb(form: str) -> None:
    value = ODD[form]()
    dataset = shmloader.freeze(Holder(value=value, paths=["a"] * 100))
    assert dataset.value is value
    assert type(dataset.paths) is FrozenList
    assert "frozen: paths, a list of 100" in shmloader.frozen.explain(dataset)


@pytest.mark.parametrize("form", ["set", "tuple", "queue", "scalars with objects", "text scalars"])
def test_explain_names_what_stays(form: str) -> None:
    assert "left as it is: value" in shmloader.frozen.explain(Holder(value=ODD[form]()))


def test_explain_names_lists_of_objects() -> None:
    words = shmloader.frozen.explain(Holder(records=[Record([k]) for k in range(100)]))
    assert "left as it is: records, a list of 100, because of objects of class Record" in words


@pytest.mark.parametrize("unit", ["M8[ns]", "m8[s]"])
def test_arrays_of_times_are_frozen(unit: str) -> None:
    times = numpy.arange(MANY).astype(unit)
    held = shmloader.freeze(Holder(times=times.copy()))
    assert (held.times == times).all()
    assert held.times.dtype == times.dtype
    assert "frozen: times" in shmloader.frozen.explain(held)


@pytest.mark.parametrize(
    "items",
    [
        [Float(1.0)],
        [{1: 0}, {True: 0}],
        [{"a": 0, 1: 0}, {"a": 0, 1.0: 0}],
    ],
    ids=["a class of its own", "1 and True", "1 and 1.0"],
)
def test_items_have_the_classes_that_they_had(items: list[Any]) -> None:
    held = shmloader.freeze(Holder(items=items * 100)).items
    for k, item in enumerate(items):
        assert held[k] == item
        assert type(held[k]) is type(item)
        if isinstance(item, dict):
            assert list(map(type, held[k])) == list(map(type, item))


# -------------------------------------------------------------------------------------------------------- tuples


def test_tensors_in_a_tuple_are_frozen() -> None:
    dataset = shmloader.freeze(TensorDataset(torch.arange(MANY), torch.arange(MANY * 2.0).view(MANY, 2)))
    assert type(dataset.tensors) is tuple
    assert [value.tolist() for value in dataset[3]] == [3, [6.0, 7.0]]
    assert "frozen: tensors[1]" in shmloader.frozen.explain(dataset)


def test_datasets_in_a_tuple_are_frozen() -> None:
    dataset = shmloader.freeze(StackDataset(Paths(), Paths()))
    assert [type(one.samples) for one in dataset.datasets] == [FrozenList, FrozenList]


def test_a_tuple_that_is_held_twice_is_replaced_by_one() -> None:
    inner = torch.arange(MANY)
    pair = (inner, ("a", inner))
    held = shmloader.freeze(Holder(first=pair, second=pair, list=[pair], alone=("a", 1)))
    assert held.first is held.second is held.list[0]
    assert held.first[0] is held.first[1][1]
    assert held.first[0] is not inner


def test_attributes_that_cannot_be_assigned_are_replaced() -> None:
    dataset = shmloader.freeze(Record(list(range(100))))
    assert type(dataset.samples) is FrozenList
    assert dataset.samples == list(range(100))
    assert "frozen: samples" in shmloader.frozen.explain(dataset)


# ------------------------------------------------------------------------------------------------------ shared memory


def small_array() -> Any:
    whole = numpy.zeros(MANY)
    return Holder(whole=whole, part=whole[:3])


def small_tensor() -> Any:
    whole = torch.zeros(MANY)
    return Holder(whole=whole, inner={"part": whole[:3]}, part=whole[:3])


def array_of_tensor() -> Any:
    whole = torch.zeros(MANY)
    return Holder(whole=whole, part=whole.numpy())


def list_of_rows() -> Any:
    whole = numpy.zeros((MANY, 1))
    return Holder(whole=whole, part=list(whole))


def parameter() -> Any:
    whole = torch.nn.Parameter(torch.zeros(MANY), requires_grad=False)
    return Holder(whole=whole, part=whole.data)


@pytest.mark.parametrize("make", [small_array, small_tensor, array_of_tensor, list_of_rows, parameter])
def test_what_shares_memory_goes_on_sharing_it(make: Any) -> None:
    held = shmloader.freeze(make())
    held.part[0] += 7
    assert held.whole[0] == 7


def test_windows_over_one_array_are_not_copied() -> None:
    """Each window has most of the array, so the copies would take many times its memory."""
    series = numpy.zeros(10_000)
    held = shmloader.freeze(Holder(windows=[series[k : k + 9000] for k in range(100)]))
    assert type(held.windows) is list
    assert "arrays that share memory with one another" in shmloader.frozen.explain(held)


def test_a_copy_from_a_file_can_be_shared_again() -> None:
    dataset = shmloader.freeze(Holder(samples=[f"{k}" for k in range(100)], names={f"{k}": k for k in range(100)}))
    copied = pickle.loads(pickle.dumps(dataset))
    assert "not frozen yet: samples" in shmloader.frozen.explain(copied)
    shmloader.freeze(copied)
    assert (type(copied.samples), type(copied.names)) == (FrozenList, FrozenDict)
    assert (copied.samples, copied.names) == (list(dataset.samples), dict(dataset.names))
    assert "not frozen" not in shmloader.frozen.explain(copied)
    samples = copied.samples
    assert shmloader.freeze(copied).samples is samples


# ----------------------------------------------------------------------------------------------------------- dicts


def test_a_dict_compares_keys_of_one_hash_only() -> None:
    """A tensor that is compared with a large integer raises an error."""
    held = shmloader.freeze(Holder(items={k * 10**30: k for k in range(100)})).items
    assert all(torch.tensor(k) not in held for k in range(100))


def test_a_copy_of_a_defaultdict_is_one() -> None:
    plain = collections.defaultdict(list, {k: [k] for k in range(100)})
    held = shmloader.freeze(Holder(items=plain.copy())).items
    made = held.copy()
    assert type(made) is collections.defaultdict
    assert made[1000] == []
    assert made[7] == [7]


# ------------------------------------------------------------------------------------------------------------ memory

FULL = """
import resource, shmloader
class Held: pass
held = Held()
held.big, held.small = [b"x" * 1_000_000 for _ in range(64)], list(range(100))
shmloader.frozen.explain(held)
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (1 << 20), -1))
try:
    shmloader.freeze(held)
except MemoryError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
assert (type(held.big), type(held.small)) == (list, list)
shmloader.freeze(held)
assert held.big[63] == b"x" * 1_000_000
"""


@pytest.mark.long
def test_a_full_address_space_is_an_error_with_a_remedy() -> None:
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY
    ran = subprocess.run([sys.executable, "-c", FULL], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[0].startswith("freezing the dataset needs")
    assert "load fewer samples" in ran.stdout


def test_where_the_copy_cannot_be_mapped_the_dataset_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    held = Holder(items=list(range(100)))
    monkeypatch.setattr(sealed_memory.SealedMemory, "__new__", full)
    with pytest.raises(MemoryError, match="freezing the dataset needs 0 MiB more of memory: the address space"):
        shmloader.freeze(held)
    assert type(held.items) is list


def test_arrays_in_lists_that_share_nothing_are_frozen() -> None:
    """Each array has memory of its own, and those of another attribute lie between."""
    few, many, between = [], [], []
    for _ in range(100):
        few.append(numpy.ones(MANY)) if len(few) < 5 else None
        many.append(numpy.ones(3))
        between.append(numpy.ones(5))
    held = shmloader.freeze(Holder(few=few, many=many, between=between, alone=numpy.ones(MANY)))
    words = shmloader.frozen.explain(held)
    assert "left as it is" not in words
    assert "frozen: few[4]" in words and "frozen: alone" in words
    assert (type(held.many), type(held.between)) == (FrozenList, FrozenList)
