"""Tensors of classes of their own ride the ring: the same elements, class and attributes as through torch's loader."""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from typing import Any, ClassVar

import numpy
import pytest
import torch
from conftest import BOTH, Items, Raised, assert_same, iterate

import shmloader
from shmloader.core.batch_tree import walk


class Tagged(torch.Tensor):
    """Adds nothing."""


class Meta(torch.Tensor):
    """Has attributes, and hands them on from what it was made of, as MONAI's MetaTensor does."""

    @staticmethod
    def __new__(cls, elements: Any, meta: Any = None) -> Meta:
        return torch.as_tensor(elements).as_subclass(cls)

    def __init__(self, elements: Any, meta: Any = None) -> None:
        self.meta = {"affine": torch.eye(2), "space": "RAS"} if meta is None else meta
        self.applied: list[Any] = []
        self.is_batch = False

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(made, Meta) and func in (torch.stack, torch.Tensor.mul):
            first = args[0][0] if func is torch.stack else args[0]
            made.__dict__ = {**getattr(first, "__dict__", {}), "is_batch": func is torch.stack}
        return made


class Typed(torch.Tensor):
    """Becomes a plain tensor in every operation, as torchvision's tv_tensors do."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            made = func(*args, **(kwargs or {}))
        return made.as_subclass(torch.Tensor) if isinstance(made, cls) else made


class Copying(torch.Tensor):
    """Gives a copy of what torch.stack made."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_function__(func, types, args, kwargs or {})
        return made.clone() if func is torch.stack else made


class Silent(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


class Guarded(torch.Tensor):
    """Its attribute is set through a property, wherever it comes from."""

    @property
    def note(self) -> str:
        return str(self.__dict__["note"])

    @note.setter
    def note(self, value: str) -> None:
        self.__dict__["note"] = value if value.startswith("set ") else f"set {value}"


class Slotted(torch.Tensor):
    __slots__ = ("mark",)


class Stately(torch.Tensor):
    def __setstate__(self, state: Any) -> None:
        self.restored = dict(state or {})


class Sized(torch.Tensor):
    def __getstate__(self) -> Any:
        return {"size": len(self.__dict__)}


class Reduced(torch.Tensor):
    def __reduce_ex__(self, protocol: Any) -> Any:
        return torch.full, ((2,), 7)


class Registered(torch.Tensor):
    pass


class Deep(Tagged):
    pass


def reduced(tensor: Any) -> Any:
    return torch.full, ((3,), 8.0)


copyreg.pickle(Registered, reduced)  # type: ignore[arg-type]


def noted(tensor: torch.Tensor, **attributes: Any) -> torch.Tensor:
    for name, value in attributes.items():
        setattr(tensor, name, value)
    return tensor


def whole(value: Any) -> Any:
    """A value whose tensors include their attributes, to be compared."""
    if isinstance(value, torch.Tensor):
        attributes = {name: whole(each) for name, each in vars(value).items()}
        slots = getattr(value, "mark", None)
        return [value, attributes, slots, value.stride() if type(value) is not torch.nn.Parameter else ()]
    if isinstance(value, dict):
        return {key: whole(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [whole(each) for each in value]
    return value


def as_it_is(batch: Any) -> Any:
    return batch


def assert_as_torch(makers: list[Any], **options: Any) -> list[Any]:
    theirs, ours = (iterate(kind(Items(makers), num_workers=1, **options)) for kind in BOTH)
    assert_same(whole(ours), whole(theirs))
    return ours


def tagged(kind: type) -> torch.Tensor:
    return torch.arange(6.0).reshape(2, 3).as_subclass(kind)


RIDING: dict[str, Callable[[], Any]] = {
    "bare": lambda: tagged(Tagged),
    "deeper": lambda: tagged(Deep),
    "attribute": lambda: noted(tagged(Tagged), tag="kept"),
    "attributes": lambda: noted(tagged(Tagged), a=1, b=None, c=[1, {"d": (2.5, "x")}], e={1: 2}),
    "tensors inside": lambda: noted(tagged(Tagged), mask=torch.ones(2), other=[tagged(Deep), numpy.arange(3)]),
    "meta": lambda: Meta([[1, 2], [3, 4]]),
    "made of meta": lambda: Meta([1.0, 2.0]) * 2,
    "typed": lambda: tagged(Typed),
    "silent": lambda: noted(tagged(Silent), x=1),
    "guarded": lambda: noted(tagged(Guarded), note="one"),
    "scalar": lambda: torch.tensor(3).as_subclass(Tagged),
    "empty": lambda: torch.zeros(0, 4).as_subclass(Tagged),
    "half": lambda: torch.ones(3, dtype=torch.bfloat16).as_subclass(Tagged),
    "channels last": lambda: (
        torch.arange(120.0).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last).as_subclass(Tagged)
    ),
    "across": lambda: torch.arange(6).reshape(2, 3).T.as_subclass(Tagged),
    "conjugate": lambda: torch.ones(2, dtype=torch.complex64).conj().as_subclass(Tagged),
    "nested": lambda: {
        "image": noted(tagged(Meta), meta={"path": "a.png"}),
        "label": 3,
        "more": [tagged(Tagged), tagged(Typed)],
    },
    "twice": lambda: [made := tagged(Tagged), {"again": made}],
}
ODD: dict[str, Callable[[], Any]] = {
    "slots": lambda: noted(tagged(Slotted), mark="m", other=2),
    "setstate": lambda: noted(tagged(Stately), x=1),
    "getstate": lambda: noted(tagged(Sized), x=1),
    "reduce": lambda: tagged(Reduced),
    "registered": lambda: tagged(Registered),
    "gradient": lambda: tagged(Tagged).requires_grad_(),
    "parameter": lambda: torch.nn.Parameter(torch.ones(3)),
    "constant parameter": lambda: torch.nn.Parameter(torch.ones(3), requires_grad=False),
}


@pytest.mark.parametrize("makers", [RIDING, ODD], ids=["riding", "odd"])
def test_what_a_function_returns(makers: dict[str, Any]) -> None:
    assert_as_torch([make for make in makers.values() for _ in range(3)], batch_size=None, collate_fn=as_it_is)


def test_elements_are_a_leaf_and_what_is_more_is_an_object() -> None:
    """Elements lie in the slot, and beside it is nothing but atoms and other objects."""
    for name, make in RIDING.items():
        _, leaves, others = walk(make())
        assert leaves and all(type(leaf) in (torch.Tensor, numpy.ndarray) for leaf in leaves), name
        assert not any(isinstance(other, torch.Tensor) for other in others), name
    for name, make in ODD.items():
        _, leaves, others = walk(make())
        assert not leaves and others, name


@pytest.mark.parametrize("kind", [Tagged, Meta, Typed, Copying, Silent, Guarded, Slotted, Stately, torch.nn.Parameter])
@pytest.mark.parametrize(
    ("dtype", "options"), [(torch.float32, {}), (torch.uint8, {"spare_slots": 0}), (torch.bfloat16, {})]
)
def test_what_default_collate_makes_of_them(kind: Any, dtype: torch.dtype, options: dict[str, Any]) -> None:
    def sample(k: int) -> Any:
        elements = torch.full((3, 40), k).to(dtype)
        if kind is Meta:
            return {"image": Meta(elements, {"number": k}), "label": k}
        return {
            "image": torch.nn.Parameter(elements, False) if kind is torch.nn.Parameter else elements.as_subclass(kind)
        }

    makers = [lambda k=k: sample(k) for k in range(7)]
    theirs = iterate(torch.utils.data.DataLoader(Items(makers), 3, num_workers=1))
    ours = iterate(shmloader.DataLoader(Items(makers), 3, num_workers=1, **options))
    assert_same(whole(ours), whole(theirs))


def test_batches_that_default_collate_refuses_or_mixes() -> None:
    ones = torch.ones(2)
    batches = [
        [tagged(Tagged), torch.ones(3).as_subclass(Tagged)],
        [tagged(Tagged), torch.ones(2, 3)],
        [torch.ones(2, 3), tagged(Tagged)],
        [tagged(Tagged), tagged(Deep)],
        [tagged(Deep), tagged(Tagged)],
        [tagged(Tagged), tagged(Typed)],
        [tagged(Tagged).requires_grad_(), tagged(Tagged)],
        [tagged(Tagged), tagged(Tagged).double()],
        [ones.as_subclass(Tagged), 3],
        [torch.zeros(0).as_subclass(Tagged)] * 2,
        [torch.tensor(1).as_subclass(Tagged)] * 2,
        [torch.ones(2, dtype=torch.complex64).conj().as_subclass(Tagged)] * 2,
        [torch.arange(6).reshape(2, 3).T.as_subclass(Tagged)] * 2,
    ]
    items = Items([item for batch in batches for item in batch])
    theirs, ours = (iterate(kind(items, 2, num_workers=1)) for kind in BOTH)
    assert isinstance(ours[0], Raised) and "equal size" in ours[0].text  # torch has no words for it at all
    assert_same(*([getattr(batch, "kind", None) or whole(batch) for batch in got] for got in (ours, theirs)))


@pytest.mark.parametrize(("kind", "schedule"), [(Tagged, "round_robin"), (Typed, "round_robin"), (Silent, "steal")])
def test_in_chunks(kind: Any, schedule: str) -> None:
    def sample(k: int) -> Any:
        elements = torch.full((5, 4), float(k))
        return {"label": k, "image": elements.as_subclass(kind), "t": elements}

    data = Items([lambda k=k: sample(k) for k in range(11)])
    theirs = iterate(torch.utils.data.DataLoader(data, 5, num_workers=1))
    ours = iterate(shmloader.DataLoader(data, 5, num_workers=3, chunk_size=2, schedule=schedule))
    assert_same(whole(ours), whole(theirs))


def test_in_chunks_what_has_attributes_is_refused() -> None:
    data = Items([Meta(torch.ones(3), {"same": 1}) for _ in range(4)])
    loader = shmloader.DataLoader(data, 4, num_workers=1, chunk_size=2)
    with loader, pytest.raises(RuntimeError, match=r"gave a test_subclasses.Meta .*more than its elements"):
        next(iter(loader))


def rows_with_notes(samples: list[int]) -> Any:
    return noted(torch.tensor(samples).as_subclass(Tagged), note=["one", "two"], mask=torch.ones(3))


def test_in_chunks_attributes_are_no_rows() -> None:
    """A list of as many items as the chunk has samples is still an attribute, of which a batch can have only one."""
    loader = shmloader.DataLoader(
        list(range(6)), 6, num_workers=2, chunk_size=2, collate_fn=shmloader.row_wise(rows_with_notes)
    )
    with loader, pytest.raises(RuntimeError, match=r"gave a test_subclasses.Tagged .*more than its elements"):
        next(iter(loader))


class Keeping(torch.utils.data.Dataset):
    """Keeps what default_collate makes of its samples, or the rows that it gave."""

    kept: ClassVar[list[Any]] = []

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return torch.full((2, 2), float(index)).as_subclass(Tagged)

    def __call__(self, samples: list[Any]) -> Any:
        self.kept.append(torch.utils.data.default_collate(samples))
        return self.kept[-1]


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_one_that_is_kept_is_not_filled_again(chunk_size: int | None) -> None:
    data = Keeping()
    collate = shmloader.row_wise(data)
    with shmloader.DataLoader(data, 4, num_workers=1, collate_fn=collate, chunk_size=chunk_size) as loader:
        got = [batch.clone() for batch in loader]
    assert [type(batch) for batch in got] == [Tagged] * 3
    assert [batch[:, 0, 0].tolist() for batch in got] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
