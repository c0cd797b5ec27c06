"""Objects are pickled as multiprocessing does it, byte by byte; reducers count from when they are registered."""

from __future__ import annotations

import abc
import collections
import copyreg
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import gc
import io
import pathlib
import pickle
import re
import sys
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy
import pytest
import torch
from conftest import assert_same

from shmloader.batch import objects


class Colour(enum.Enum):
    RED = 1
    BLUE = "b"


class Flags(enum.IntFlag):
    A = 1
    B = 2


class Meta(type):
    """A class of classes."""


class Made(metaclass=Meta):
    """A class of a class of its own."""


class Abstract(abc.ABC):  # noqa: B024
    """A class of ABCMeta."""


class Mine:
    def __init__(self, value: Any = 3) -> None:
        self.value = value


@dataclasses.dataclass(slots=True)
class Slotted:
    x: Any


class Reduced:
    def __reduce__(self) -> Any:
        return Reduced, ()


class ReducedEx:
    def __reduce_ex__(self, protocol: Any) -> Any:
        return functools.partial(int), (str(protocol),)


class OfTheInstance:
    """pickle looks `__reduce_ex__` up on the instance."""

    def __init__(self) -> None:
        self.__reduce_ex__ = lambda protocol: (Mine, (protocol,))


class Text(str):
    """Text of a class of its own."""


class Tagged(torch.Tensor):
    """A tensor of a class of its own."""


class Array(numpy.ndarray):
    """An array of a class of its own."""


PLAIN: dict[str, Any] = {
    "dates": [datetime.datetime(2020, 1, k, tzinfo=datetime.timezone.utc) for k in range(1, 9)]
    + [datetime.date.today()],
    "numpy scalars": [numpy.float32(1), numpy.int64(2), numpy.datetime64("2020"), numpy.str_("a"), numpy.bool_(True)],
    "enums": [Colour.RED, Colour.BLUE, Colour.RED, Flags.A | Flags.B],
    "dtypes": [torch.float32, numpy.dtype("f4"), numpy.dtype([("a", "i4")]), torch.device("cpu"), torch.Size([1])],
    "classes": [
        int,
        Colour,
        Made,
        Abstract,
        Mine,
        type,
        Meta,
        abc.ABCMeta,
        type(None),
        type(...),
        collections.abc.Sized,
    ],
    "functions": [len, re.compile, dataclasses.replace, Mine, functools.partial(int, base=3), numpy.sum, torch.ones],
    "singletons": [None, ..., NotImplemented, True],
    "collections": [
        collections.OrderedDict(a=1),
        collections.Counter("aab"),
        collections.deque([1]),
        {1},
        frozenset("a"),
    ],
    "numbers": [decimal.Decimal("1.5"), fractions.Fraction(1, 3), 1j, 10**40, uuid.UUID(int=3), range(3), slice(1, 2)],
    "own": [Mine(), Mine(Mine()), Slotted([1]), Reduced(), ReducedEx(), OfTheInstance(), Text("a"), pathlib.Path("a")],
    "arrays of objects": [
        numpy.array([1, "a", None], dtype=object),
        numpy.array(["a"]),
        numpy.arange(3).astype("M8[s]"),
    ],
    "errors": [ValueError("a"), KeyError(3)],
    "same": [(m := Mine()), m, [m]],
    "nested": {"a": [{"b": (datetime.timedelta(1), {"c": Mine([Colour.BLUE])})}] * 3},
}


def reference(value: Any, buffer_callback: Any = None) -> bytes:
    """The value as multiprocessing pickles it, with protocol 5."""
    file = io.BytesIO()
    pickler = pickle.Pickler(file, 5, buffer_callback=buffer_callback)
    pickler.dispatch_table = collections.ChainMap(ForkingPickler._extra_reducers, copyreg.dispatch_table)
    pickler.dump(value)
    return file.getvalue()


@pytest.mark.parametrize("name", PLAIN)
def test_the_bytes_are_those_of_pickle(name: str) -> None:
    value = PLAIN[name]
    assert objects.dump_whole(value) == reference(value)
    buffers: list[Any] = []
    expected = reference(value, buffers.append)
    got, beside = objects.dump(value)
    assert got == expected and len(beside) == len(buffers)


@pytest.fixture
def registries() -> Iterator[None]:
    """What is registered in the test is registered nowhere after it."""
    tables: list[dict[Any, Any]] = [copyreg.dispatch_table, ForkingPickler._extra_reducers]
    before = [dict(table) for table in tables]
    yield
    for table, were in zip(tables, before, strict=True):
        table.clear()
        table.update(were)


def by_number(number: int) -> Callable[[Any], Any]:
    return lambda value: (tuple, ((number, type(value).__name__),))


REGISTER = {"copyreg": copyreg.pickle, "multiprocessing": ForkingPickler.register}
LATER: dict[str, Callable[[], Any]] = {
    "own": Mine,
    "slots": lambda: Slotted(1),
    "with a reducer": Reduced,
    "date": lambda: datetime.date(2020, 1, 1),
    "tensor subclass": lambda: torch.ones(2).as_subclass(Tagged),
    "array": lambda: numpy.ones(2),
    "array subclass": lambda: numpy.ones(2).view(Array),
    "class of a metaclass": lambda: Made,
    "enum": lambda: Colour.RED,
}


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize("how", REGISTER)
@pytest.mark.parametrize("name", LATER)
def test_a_reducer_that_is_registered_later_counts(name: str, how: str) -> None:
    value, register = LATER[name](), REGISTER[how]
    for dump in (objects.dump_whole, lambda given: objects.dump(given)[0]):
        dump([value, value])
    for number in (1, 2):  # also in place of another one
        register(type(value), by_number(number))
        expected = (number, type(type(value)).__name__ if isinstance(value, type) else type(value).__name__)
        for dump in (objects.dump_whole, lambda given: objects.dump(given)[0]):
            assert pickle.loads(dump([value, 1])) == [
                (number, expected[1] if name != "class of a metaclass" else "Meta"),
                1,
            ]
    ForkingPickler._extra_reducers.pop(type(value), None)
    copyreg.dispatch_table.pop(type(value), None)
    if name != "tensor subclass":
        assert objects.dump_whole(value) == reference(value)


@pytest.mark.usefixtures("registries")
def test_reducers_of_torchs_own_classes_do_not_count() -> None:
    """torch has registered its own: those open a descriptor for each tensor."""
    assert torch.Tensor in ForkingPickler._extra_reducers
    x = torch.nn.Parameter(torch.ones(3))
    pickled, beside = objects.dump([torch.ones(2), x])
    assert [type(part) for part in beside] == [torch.Tensor] * 2 and len(pickled) < 1000


def test_storages_and_tensors_inside_a_pickle() -> None:
    made = [
        torch.arange(3.0),
        torch.arange(4).untyped_storage(),
        torch.arange(2.0).t(),
        torch.ones(2).as_subclass(Tagged),
    ]
    got = pickle.loads(objects.dump_whole(made))
    assert_same([got[0], got[2], got[3]], [made[0], made[2], made[3]])
    assert bytes(got[1]) == bytes(made[1])


def test_nothing_keeps_a_tensor_once_it_is_pickled() -> None:
    """Otherwise its slot would count as kept until the collector runs."""
    gc.disable()
    try:
        for dump in (objects.dump, objects.dump_whole):
            tensor = torch.ones(5)
            died = weakref.ref(tensor.untyped_storage())
            storage = sys.getrefcount(tensor)
            dump([Slotted(tensor), collections.OrderedDict(a=tensor)])
            assert sys.getrefcount(tensor) == storage
            del tensor
            assert died() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "bad",
    [threading.Lock(), (k for k in range(3)), lambda: 1, sys, io.StringIO, memoryview(b"a")],
    ids=["lock", "generator", "lambda", "module", "class of io", "memoryview"],
)
def test_what_cannot_be_pickled_is_refused_as_pickle_refuses_it(bad: Any) -> None:
    def pickled(dump: Any) -> Any:
        try:
            return dump(bad)
        except Exception as error:
            return type(error), str(error)

    assert pickled(objects.dump_whole) == pickled(reference)
