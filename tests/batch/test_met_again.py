"""What occurs twice in a batch stays one, as with torch's loader, and a leaf that does is written once."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy
import pytest
import torch
from conftest import BOTH, Raised, assert_same, iterate
from hostile import BothSides

from shmloader.core.batch_tree import walk

Pair = collections.namedtuple("Pair", "left right")


class Tagged(torch.Tensor):
    """A tensor of a class of its own."""


@dataclasses.dataclass
class Plain:
    x: Any
    y: Any = None


@dataclasses.dataclass(slots=True)
class Slotted:
    x: Any


def tagged(**attributes: Any) -> Any:
    made = torch.arange(6.0).view(2, 3).as_subclass(Tagged)
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def as_it_is(batch: Any) -> Any:
    return batch


def parts(node: Any) -> list[Any]:
    """What a node holds, in order."""
    if isinstance(node, dict):
        return list(node.values())
    if isinstance(node, (list, tuple)):
        return list(node)
    if isinstance(node, Slotted):
        return [node.x]
    if isinstance(node, (Plain, torch.Tensor)):
        return list(node.__dict__.values())
    return []


def identities(batch: Any) -> list[int]:
    """Of each place in a batch that may be a place of the same object: the number of the first such place."""
    found: list[int] = []
    met: dict[int, int] = {}
    left, alive = [batch], []
    while left:
        node = left.pop()
        if isinstance(node, (int, float, str, bytes, type(None))) or (type(node) is tuple and not node):
            continue
        alive.append(node)
        first = met.setdefault(id(node), len(found))
        found.append(first)
        if first == len(found) - 1:
            left += reversed(parts(node))
    return found


def twice(thing: Any) -> Any:
    return {"a": thing, "b": [thing, 1], "c": (torch.ones(2), Pair("s", thing)), "d": Plain(thing, {"e": thing})}


def holds_itself() -> Any:
    made: list[Any] = [torch.ones(2), 1]
    made.append(made)
    return made


def subclass_that_holds_itself() -> Any:
    made = tagged(note=["n"])
    made.me = {"back": made}
    return made


def bare_and_holds_itself() -> Any:
    made: dict[str, Any] = {"n": [1, 2]}
    made["me"] = made
    return {"x": torch.ones(3), "meta": made}


SHAPES: dict[str, Callable[[], Any]] = {
    "tensor": lambda: twice(torch.arange(4.0)),
    "two tensors": lambda: [(x := torch.arange(4.0)), (y := torch.ones(3)), y, x, [y, [x]]],
    "array": lambda: twice(numpy.arange(4)),
    "object array": lambda: twice(numpy.array([1, "a", None], dtype=object)),
    "subclass": lambda: twice(tagged()),
    "subclass with attributes": lambda: twice(tagged(note="a", mask=torch.ones(2))),
    "subclass whose attribute occurs again": lambda: [(m := torch.ones(2)), tagged(mask=m, names=["a"]), m],
    "subclass in its attribute": lambda: [(t := tagged()), tagged(other=t), t],
    "parameter": lambda: twice(torch.nn.Parameter(torch.ones(3))),
    "gradient": lambda: twice(torch.ones(3, requires_grad=True)),
    "list of atoms": lambda: twice([1, 2]),
    "dict without a leaf": lambda: twice({"path": "a", "size": [1, 2]}),
    "namedtuple without a leaf": lambda: twice(Pair([1], (2, "s"))),
    "dataclass without a leaf": lambda: twice(Plain([{}], {"k": 1})),
    "constant tuple": lambda: twice((("a", 1), ("b", (2, 3)))),
    "without a leaf, in one without": lambda: [(m := {"k": [1]}), [m, {"m": m}], torch.ones(1), {"x": m}],
    "object": lambda: twice(collections.OrderedDict(a=1)),
    "list with a leaf": lambda: twice([torch.ones(1)]),
    "dict with a leaf": lambda: twice({"x": numpy.ones(1)}),
    "list with a leaf that was met": lambda: [(x := torch.ones(1)), (b := [x, 2]), b],
    "holds itself": holds_itself,
    "without a leaf, holds itself": bare_and_holds_itself,
    "subclass that holds itself": subclass_that_holds_itself,
    "empty ones": lambda: twice([]),
    "tensors in objects": lambda: [(s := Slotted(torch.ones(2))), s, {"s": s}],
}


class Gives(torch.utils.data.Dataset):
    """Item k is what the k-th function gives, made in the worker."""

    def __len__(self) -> int:
        return len(SHAPES)

    def __getitem__(self, k: int) -> Any:
        return list(SHAPES.values())[k]()


@pytest.mark.parametrize("options", [{}, {"spare_slots": 0}, {"num_workers": 2, "schedule": "steal"}], ids=str)
def test_identities_are_those_of_torchs_loader(options: dict[str, Any]) -> None:
    theirs, ours = (
        iterate(
            kind(Gives(), None, **{"num_workers": 1, "collate_fn": as_it_is, **(options if kind is BOTH[1] else {})})
        )
        for kind in BOTH
    )
    for name, mine, wanted in zip(SHAPES, ours, theirs, strict=True):
        assert not isinstance(wanted, Raised) and identities(mine) == identities(wanted), name
        if "itself" not in name:
            assert_same(mine, wanted)


PICKLED = {
    "list with a leaf",
    "dict with a leaf",
    "list with a leaf that was met",
    "holds itself",
    "subclass that holds itself",
}


@pytest.mark.parametrize("name", SHAPES)
def test_only_a_container_of_leaves_makes_a_pickle_of_the_batch(name: str) -> None:
    plan, leaves, _ = walk(SHAPES[name]())
    held = {"without a leaf, holds itself"}  # it may hold a leaf: that is not known before its end
    assert (plan == (None,) and not leaves) == (name in PICKLED | held | {"tensors in objects"})


@pytest.fixture
def ring() -> Iterator[BothSides]:
    with BothSides() as ring:
        yield ring


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("spare", [0, 2])
@pytest.mark.parametrize("kind", ["tensor", "array", "subclass"])
def test_a_leaf_is_written_once(ring: BothSides, kind: str, spare: int, stacked: bool) -> None:
    ring.delivery._spare = spare
    for k in range(4):
        ring.claim()
        rows = [torch.full((1000,), float(k))] * 20
        x = ring.writer.stack(rows) if stacked else torch.stack(rows)
        y = x.numpy() if kind == "array" else x.as_subclass(Tagged) if kind == "subclass" else x
        ring.writer.write((y, y, {"again": y}))
        del x, y
        ring.worker.publish(0)
        assert ring.header_of("used") < 85_000, "one has 80,000 bytes"
        got = ring.take()
        assert got[0] is got[1] is got[2]["again"] and (got[0] == k).all()
        del got
        assert ring.trainer.slots.lent == 0


def test_annotations_of_any_shape_have_one_plan() -> None:
    def sample(k: int) -> Any:
        return {"image": torch.ones(2), "objects": [{"box": (1, 2), f"key {k}": [[j] for j in range(k)]}] * k, "id": k}

    assert len({walk([sample(k), Pair(sample(k + 1), {"n": {str(k): ()}})])[0] for k in range(20)}) == 1
    assert walk([{"a": {str(k): [k] for k in range(3)}}])[0] == (None,)


def test_in_chunks_nodes_are_taken_apart() -> None:
    batch = {"names": ["a", "b"], "more": {"n": ("c", "d")}}
    plan, _, others = walk(batch, True)
    assert plan == ((dict, ("names", "more")), None, (dict, ("n",)), None) and others == [["a", "b"], ("c", "d")]


# ------------------------------------------------------------------------------------------------------ generated

POOL = ("tensor", "tensor", "array", "tagged", "bare", "names", "param", "leafy")
places = st.recursive(
    st.sampled_from([*POOL, 1, "s", None]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from("abcde"), inner, max_size=3),
        st.tuples(inner, inner).map(lambda two: Pair(*two)),
        st.tuples(inner, inner).map(lambda two: Plain(*two)),
    ),
    max_leaves=10,
)


def grown(value: Any, pool: dict[str, Any]) -> Any:
    """A tree with the objects of a pool at its places: each is one object, however often it occurs."""
    if isinstance(value, str):
        return pool.get(value, value)
    if type(value) in (list, tuple):
        return type(value)(grown(item, pool) for item in value)
    if isinstance(value, dict):
        return {key: grown(item, pool) for key, item in value.items()}
    if isinstance(value, Pair):
        return Pair(*(grown(item, pool) for item in value))
    return Plain(grown(value.x, pool), grown(value.y, pool)) if isinstance(value, Plain) else value


def pool() -> dict[str, Any]:
    mask = torch.ones(3)
    return {
        "tensor": torch.arange(5.0),
        "array": numpy.arange(3),
        "tagged": tagged(mask=mask, note=["n"]),
        "bare": {"path": "p", "of": [1, {"k": (2,)}]},
        "names": ["a", "b"],
        "param": torch.nn.Parameter(torch.ones(2)),
        "leafy": {"mask": mask},
    }


@hypothesis.settings(max_examples=60, deadline=None, database=None, derandomize=True)
@hypothesis.given(trees=st.lists(places, min_size=1, max_size=6), spare=st.sampled_from([0, 2]))
def test_random_batches(trees: list[Any], spare: int) -> None:
    with BothSides() as ring:
        ring.delivery._spare = spare
        for tree in (*trees, *trees):  # a plan that is met again is kept
            wanted = grown(tree, pool())
            ring.fill(wanted)
            got = ring.take()
            assert_same(got, wanted)
            assert identities(got) == identities(wanted)
