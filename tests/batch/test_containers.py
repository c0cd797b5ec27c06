"""Containers, tensors and objects in chunks: what comes is what one worker, and torch, would have made."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import hypothesis
import hypothesis.strategies as st
import numpy
import pytest
import torch
from conftest import Items, Raised, assert_same, iterate

import shmloader


class Tagged(torch.Tensor):
    pass


class Untouched(torch.Tensor):
    """Says no to whoever calls a function with it, but torch.stack and what is asked of any tensor."""

    @classmethod
    def __torch_function__(cls, function: Any, kinds: Any, arguments: Any = (), options: Any = None) -> Any:
        if getattr(function, "__name__", "") in ("cat", "add", "mul", "eq", "__bool__"):
            raise AssertionError(f"{function} was called")
        return super().__torch_function__(function, kinds, arguments, options or {})


class MyArray(numpy.ndarray):  # type: ignore[type-arg]
    pass


class MyDict(dict):  # type: ignore[type-arg]
    note: Any = None


class MyOrdered(collections.OrderedDict):  # type: ignore[type-arg]
    note: Any = None


class Frozen(Mapping):  # type: ignore[type-arg]
    def __init__(self, items: dict[Any, Any]) -> None:
        self.inside = dict(items)

    def __getitem__(self, key: Any) -> Any:
        return self.inside[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.inside)

    def __len__(self) -> int:
        return len(self.inside)


class MyList(list):  # type: ignore[type-arg]
    note: Any = None


class MyTuple(tuple):  # type: ignore[type-arg]
    pass


class Point(NamedTuple):
    x: Any
    y: Any


class Named(Point):
    """One with more than its fields' names."""


class MyStr(str):
    pass


class MyBytes(bytes):
    pass


class Color(str, enum.Enum):
    RED = "red"


def noted(container: Any, note: Any) -> Any:
    container.note = note
    return container


def no_items() -> int:
    return 7


# ------------------------------------------------------------------------------------------ samples of every structure
#
# A structure is a function from a sample's number to the sample.

LEAVES: dict[str, Any] = {
    "int": lambda k: k,
    "huge int": lambda k: (1 << 62) + k,
    "bool": lambda k: k % 2 == 0,
    "float": lambda k: k / 3,
    "complex": lambda k: torch.tensor(complex(k, -k)),
    "str": lambda k: f"sample {k}" * (k % 3),
    "bytes": lambda k: bytes([k]) * k,
    "str subclass": lambda k: MyStr(f"mine {k}"),
    "bytes subclass": lambda k: MyBytes([k]),
    "enum": lambda k: Color.RED,
    "scalar": lambda k: torch.tensor(k),
    "tensor": lambda k: torch.full((2, 3), k, dtype=torch.float32),
    "no elements": lambda k: torch.zeros(0, 2),
    "half": lambda k: torch.full((3,), k, dtype=torch.bfloat16),
    "across": lambda k: torch.arange(6).reshape(2, 3).T + k,
    "conjugate": lambda k: (torch.ones(2, dtype=torch.complex64) * complex(1, k)).conj(),
    "subclass": lambda k: torch.full((2,), k).as_subclass(Tagged),
    "subclass scalar": lambda k: noted(torch.tensor(k).as_subclass(Tagged), k),
    "untouched": lambda k: torch.full((2,), k).as_subclass(Untouched),
    "array": lambda k: numpy.arange(3.0) + k,
    "0-d array": lambda k: numpy.array(k, dtype=numpy.int16),
    "array subclass": lambda k: numpy.array([k, 1]).view(MyArray),
    "float32": lambda k: numpy.float32(k / 3),
    "bool_": lambda k: numpy.bool_(k % 2),
    "str_": lambda k: numpy.str_(f"numpy's {k}"),
    "range": lambda k: range(k, k + 3),
    "nothing": lambda k: [],
    "no items": lambda k: {},
    "empty tuple": lambda k: (),
}

SHELLS: dict[str, Any] = {
    "dict": lambda k, parts: {f"key {n}": part for n, part in enumerate(parts)},
    "dict of ints": lambda k, parts: dict(enumerate(parts)),
    "dict of any keys": lambda k, parts: dict(zip([(0, "a"), None, 1.5, b"x", "y", 3, False], parts, strict=False)),
    "list": lambda k, parts: parts,
    "tuple": lambda k, parts: tuple(parts),
    "namedtuple": lambda k, parts: Point(parts, k),
}

STRUCTURES = st.recursive(
    st.sampled_from(sorted(LEAVES)),
    lambda inner: st.tuples(st.sampled_from(sorted(SHELLS)), st.lists(inner, min_size=1, max_size=3)),
    max_leaves=8,
)


def sample(structure: Any, k: int) -> Any:
    if isinstance(structure, str):
        return LEAVES[structure](k)
    return SHELLS[structure[0]](k, [sample(part, k) for part in structure[1]])


class Samples(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Made for each use, because default_collate builds some containers inside the sample."""

    def __init__(self, structure: Any, length: int) -> None:
        self.structure, self.length = structure, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return sample(self.structure, index)


def epoch(kind: Any, dataset: Any, **options: Any) -> list[Any]:
    """The batches; of what was raised, only the class, for in a worker there is more text to it."""
    loader = kind(dataset, **options)
    try:
        return [one.kind if isinstance(one, Raised) else one for one in iterate(loader)]
    finally:
        if isinstance(loader, shmloader.DataLoader):
            loader.close()


def assert_cut_as_whole(
    structure: Any, batch_size: int, chunk_size: int, collate_fn: Any = None, workers: int = 0
) -> None:
    """In chunks, whole, and by torch."""
    dataset, options = Samples(structure, 2 * batch_size + 1), {"batch_size": batch_size, "collate_fn": collate_fn}
    torchs = epoch(torch.utils.data.DataLoader, dataset, num_workers=workers, **options)
    whole = epoch(shmloader.DataLoader, dataset, num_workers=1, **options)
    cut = epoch(shmloader.DataLoader, dataset, num_workers=2, chunk_size=chunk_size, **options)
    assert_same(whole, torchs)
    assert_same(cut, torchs)
    assert attributes(cut) == attributes(whole)


def attributes(batch: Any) -> Any:
    """What containers and tensors have besides."""
    parts: list[Any] = []
    if isinstance(batch, (Mapping, Sequence)) and not isinstance(batch, (str, bytes, bytearray)):
        parts = list(batch.values() if isinstance(batch, Mapping) else batch)
    return repr(getattr(batch, "note", None)), [attributes(part) for part in parts]


@pytest.mark.parametrize("leaf", LEAVES)
def test_each_leaf(leaf: str) -> None:
    assert_cut_as_whole(("dict", [leaf, ("tuple", [leaf, "int"])]), 5, 2)


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell(shell: str) -> None:
    structure = (shell, ["int", "str", ("tuple", ["subclass", "range"])])
    assert_cut_as_whole(structure, 5, 2)
    assert_cut_as_whole(("list", [structure, (shell, [structure])]), 4, 1)


@pytest.mark.long
@pytest.mark.timeout(600)
@hypothesis.settings(max_examples=60, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(STRUCTURES, st.integers(1, 6), st.integers(1, 4))
def test_many_structures(structure: Any, batch_size: int, chunk_size: int) -> None:
    assert_cut_as_whole(structure, batch_size, chunk_size)


# ------------------------------------------------------------------------------------------ functions that give rows


@dataclasses.dataclass(frozen=True)
class Fixed:
    image: Any
    weight: Any = None


class Item:
    """One object, with nothing that could be cut."""

    def __init__(self, number: int) -> None:
        self.number = number


def stack(samples: list[int]) -> Any:
    return torch.tensor(samples)


def twice(samples: list[int]) -> Any:
    one = stack(samples)
    rows = [str(k) for k in samples]
    return {"one": one, "again": [one], "rows": rows, "more": (rows, None)}


ROW_WISE: dict[str, Any] = {
    "frozen": lambda s: Fixed(numpy.array(s)),
    "nested": lambda s: Fixed({"a": Fixed(stack(s), ())}, [Point({"b": [Item(k) for k in s]}, {})]),
    "twice": twice,
    "nothing": lambda s: {"x": stack(s), "mask": None},
    "paths": lambda s: [pathlib.PurePath(f"{k}") for k in s],
    "items": lambda s: tuple(Item(k) for k in s),
    "frozen items": lambda s: [Fixed(k, "x") for k in s],
    "byte arrays": lambda s: [bytearray([k]) for k in s],
    "sets": lambda s: [{k} for k in s],
    "types": lambda s: [int for _ in s],
    "numbers of numpy": lambda s: [numpy.float32(k) for k in s],
    "array of strings": lambda s: numpy.array(["x" * k for k in s]),
    "array of objects": lambda s: numpy.array([None, *({k} for k in s)], dtype=object)[1:],
    "array of dates": lambda s: numpy.array(s, dtype="datetime64[D]"),
    "array of records": lambda s: numpy.array([(k, "x") for k in s], dtype=[("a", "i4"), ("b", "U3")]),
    "big-endian array": lambda s: {"a": numpy.array([[k, 1] for k in s], dtype=">i4")},
    "int tensor of huge": lambda s: [torch.tensor([(1 << 63) - 1 - k for k in s]), [1 << 100 for _ in s]],
}


@pytest.mark.parametrize("name", ROW_WISE)
@pytest.mark.parametrize(
    "chunk_size", [pytest.param(1, marks=pytest.mark.long), 2, pytest.param(8, marks=pytest.mark.long)]
)
def test_functions_that_give_rows(name: str, chunk_size: int) -> None:
    collate_fn = shmloader.row_wise(functools.partial(ROW_WISE[name]))
    assert_cut_as_whole("int", 5, chunk_size, collate_fn, workers=1)  # torch's workers send arrays in native order


def test_one_object_is_two_tensors() -> None:
    """A tensor that occurs twice in a chunk is written twice: other chunks may have it once."""
    collate_fn = shmloader.row_wise(functools.partial(twice))
    with shmloader.DataLoader(list(range(6)), 6, num_workers=2, chunk_size=2, collate_fn=collate_fn) as loader:
        (batch,) = loader
    assert batch["one"] is not batch["again"][0]
    assert batch["one"].tolist() == batch["again"][0].tolist() == list(range(6))


def holding_itself(samples: Any) -> Any:
    batch = [stack(samples)]
    batch.append(batch)  # type: ignore[arg-type]
    return batch


class Graph:
    def __init__(self, samples: list[int]) -> None:
        self.nodes = stack(samples)

    def __reduce__(self) -> Any:
        return Graph, (self.nodes,)


@pytest.mark.parametrize(
    ("collate_fn", "says"),
    [
        (lambda s: len(s), r"gave a int \(2\). Give tensors or arrays whose first dimension is the number of"),
        (lambda s: {"x": stack(s), "mean": 0.5}, r"gave a float \(0.5\)"),
        (lambda s: {"x": stack(s), "split": "train"}, r"gave a str \('train'\)"),
        (lambda s: {"x": stack(s), "count": len(s)}, r"gave a int \(2\)"),
        (lambda s: collections.OrderedDict(x=stack(s)), r"gave a collections.OrderedDict \(.*dicts, lists, tuples and"),
        (lambda s: MyDict(x=stack(s)), "gave a test_containers.MyDict"),
        (lambda s: [MyList([stack(s)])], "gave a test_containers.MyList"),
        (lambda s: MyTuple([stack(s)]), "gave a test_containers.MyTuple"),
        (lambda s: Frozen({"x": stack(s)}), "gave a test_containers.Frozen"),
        (
            lambda s: noted(stack(s).as_subclass(Tagged), "a note"),
            "gave a test_containers.Tagged of layout torch.strided on cpu, which has more than its elements",
        ),
        (lambda s: torch.nn.Parameter(stack(s).float()), "gave a torch.nn.parameter.Parameter of layout"),
        (lambda s: [{"a": 1}, {"a": 2}], r"gave a int \(1\)"),
        (lambda s: set(s), r"gave a set \({0, 1}\).*or leave chunk_size out"),
        (lambda s: numpy.float32(1), r"gave a numpy.float32 \(.*1.0\)"),
        (lambda s: numpy.arange(2).view(MyArray), r"gave a test_containers.MyArray \(MyArray\(\[0, 1\]\)\)"),
        (lambda s: numpy.array(["a", "b", "c"]), "gave a numpy.ndarray"),
        (lambda s: torch.Size([3, 4, 5]), r"gave a torch.Size \(torch.Size\(\[3, 4, 5\]\)\)"),
        (lambda s: Graph(s), "gave a test_containers.Graph"),
        (lambda s: [Graph(s), Graph(s)], "gave a test_containers.Graph"),
        (
            lambda s: stack(s).to_sparse(),
            "gave a torch.Tensor of layout torch.sparse_coo on cpu, which has more than its elements",
        ),
        (holding_itself, "gave an object that contains itself, or is nested more than 500 deep"),
        (lambda s: stack(s).float().requires_grad_() * 2, "gave a torch.Tensor of layout"),
        (lambda s: {"x": stack(s), "y": torch.ones(3)}, r"gave a tensor of shape \[3\]. The first dimension must be"),
        (
            lambda s: stack(s) if s[0] else {"x": stack(s)},
            "of one structure and dtype, but got .*dict of",
        ),
        (
            lambda s: (stack(s), None if s[0] else [f"{k}" for k in s]),
            "of one kind, but chunks gave NoneType and list",
        ),
    ],
)
def test_what_cannot_be_cut_is_named(collate_fn: Any, says: str) -> None:
    collate_fn = shmloader.row_wise(collate_fn)
    loader = shmloader.DataLoader(list(range(4)), 4, num_workers=2, chunk_size=2, collate_fn=collate_fn)
    with loader, pytest.raises(RuntimeError, match=f"(?s){says}"):
        next(iter(loader))


# ------------------------------------------------------------------------------------------------- default_collate


class Opaque:
    def __init__(self, number: int) -> None:
        self.number = number


def test_what_default_collate_refuses_is_its_error() -> None:
    for refused in (None, Opaque(1), {"a": None}, collections.OrderedDict(a=Opaque(1)), {1}):
        loader = shmloader.DataLoader(Items([refused] * 4), 4, num_workers=1, chunk_size=2)
        with loader, pytest.raises(TypeError, match="default_collate: batch must contain tensors"):
            next(iter(loader))


class Spy:
    def __init__(self, reader: Any) -> None:
        self.reader, self.copied = reader, 0

    def read(self, lease: Any, copy: bool) -> Any:
        self.copied += copy
        return self.reader.read(lease, copy)


def test_nothing_of_a_chunk_is_kept_in_the_worker() -> None:
    """Else all batches were copies from then on: NOTE [ Slot ring ]."""
    dataset = Items([{"a": torch.ones(3), "b": k, "d": torch.ones(1).as_subclass(Tagged)} for k in range(80)])
    with shmloader.DataLoader(dataset, 8, num_workers=2, chunk_size=2) as loader:
        iterator: Any = iter(loader)
        spy = iterator._delivery._reader = Spy(iterator._delivery._reader)
        for batch in iterator:
            assert batch["a"].shape == (8, 3)
            del batch
    assert spy.copied == 0
