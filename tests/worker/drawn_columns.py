"""Draws samples at random: columns of numbers, arrays and text of every kind, and the containers around these."""

from __future__ import annotations

import collections
import dataclasses
import enum
import random
from collections.abc import Callable
from typing import Any

import numpy
import torch

Draw = Callable[[random.Random, int], list[Any]]  # so many rows of a column
Pair = collections.namedtuple("Pair", "x y")
DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
ODD_DTYPES = (
    "uint64",
    ">i4",
    ">f8",
    "longdouble",
    "S3",
    "U3",
    "O",
    "datetime64[s]",
    "i4,f4",
    "longlong",
    "timedelta64[D]",
)
SPECIAL = [0.0, -0.0, float("nan"), float("inf"), -float("inf"), 5e-324, 1e308, 0.1]


class Colour(enum.IntEnum):
    RED = 1
    BLUE = 2


class Number(int):
    """One that says it is another."""

    def __index__(self) -> int:
        return 99

    def __int__(self) -> int:
        return 99


class Real(float):
    pass


class Array(numpy.ndarray):
    """torch takes it for what its base is."""


class Text(str):
    pass


@dataclasses.dataclass
class Boxes:
    boxes: Any


def integer(rng: random.Random) -> int:
    return rng.choice([0, 1, -1, 2**63 - 1, -(2**63), rng.randrange(-300, 300), rng.randrange(-(2**63), 2**63)])


def real(rng: random.Random) -> float:
    return rng.choice([*SPECIAL, rng.random(), rng.uniform(-1e9, 1e9)])


def elements(rng: random.Random, dtype: Any, shape: tuple[int, ...]) -> Any:
    """An array of random bytes; of booleans, of ones and zeros."""
    dtype = numpy.dtype(dtype)
    if dtype.kind in "SUOMm" or dtype.names or dtype.char == "g":
        return numpy.ones(shape).astype("i8").astype(dtype)
    count = int(numpy.prod(shape)) * dtype.itemsize
    data = rng.randbytes(count) if dtype.kind != "b" else bytes(rng.choices([0, 1], k=count))
    return numpy.frombuffer(bytearray(data), dtype).reshape(shape)


def shape(rng: random.Random) -> tuple[int, ...]:
    return tuple(rng.choices([0, 1, 2, 3, 5], [1, 4, 4, 4, 2], k=rng.randrange(4)))


def arrays(rng: random.Random, n: int) -> list[Any]:
    dtype, sides = rng.choice(DTYPES), shape(rng)
    return [elements(rng, dtype, sides) for _ in range(n)]


def disordered(rng: random.Random, array: Any) -> Any:
    """The same elements, more or less, otherwise laid out, or of another class."""
    change = rng.randrange(11)
    if change == 0:
        array.flags.writeable = False
    elif change == 1:
        return array.T
    elif change == 2:
        return numpy.repeat(array, 2, axis=0)[::2] if array.ndim else array
    elif change == 3:
        return array[::-1] if array.ndim else array
    elif change == 4:
        return array.astype(array.dtype.newbyteorder())
    elif change == 5:
        return array.view(Array)
    elif change == 6:
        return numpy.asfortranarray(array)
    elif change == 7:
        return numpy.broadcast_to(array, (2, *array.shape))[0]
    elif change == 8:  # no address that its elements would have by themselves
        return numpy.frombuffer(bytearray(b"x" + array.tobytes()), array.dtype, offset=1).reshape(array.shape)
    elif change == 9:  # an equal dtype that is another object
        return array.view(numpy.dtype(array.dtype.str, copy=True, metadata={"made": "here"}))
    elif change == 10:
        return array[None, ::-1][:, ::-1][0] if array.ndim else array
    return array


def disordered_arrays(rng: random.Random, n: int) -> list[Any]:
    made = [array if array.size else numpy.ones(2, array.dtype) for array in arrays(rng, n)]
    if rng.random() < 0.5:
        return [disordered(rng, array) for array in made]
    odd = rng.randrange(n)
    return [disordered(rng, array) if k == odd else array for k, array in enumerate(made)]


def scalars(rng: random.Random, n: int) -> list[Any]:
    dtype = rng.choice([dtype for dtype in DTYPES if dtype != "uint64"])  # torch takes no scalar of that
    return [elements(rng, dtype, ())[()] for _ in range(n)]


def odd_arrays(rng: random.Random, n: int) -> list[Any]:
    dtype, sides = rng.choice(ODD_DTYPES), shape(rng)
    return [elements(rng, dtype, sides) for _ in range(n)]


def odd_scalars(rng: random.Random, n: int) -> list[Any]:
    return [one[()] for one in (elements(rng, dtype, ()) for dtype in rng.choices(ODD_DTYPES, k=1) * n)]


def tensors(rng: random.Random, n: int) -> list[Any]:
    return [torch.from_numpy(array.copy()) for array in arrays(rng, n)]


PLAIN: list[Draw] = [
    lambda rng, n: [integer(rng) for _ in range(n)],
    lambda rng, n: [real(rng) for _ in range(n)],
    lambda rng, n: [rng.random() < 0.5 for _ in range(n)],
    lambda rng, n: [f"/data/{rng.random()}é.JPEG" for _ in range(n)],
    lambda rng, n: [rng.randbytes(rng.randrange(9)) for _ in range(n)],
    lambda rng, n: [rng.choice(["cat", "dog"]) for _ in range(n)],
    arrays,
    scalars,
    tensors,
    lambda rng, n: [elements(rng, rng.choice(DTYPES[:1]), ()) for _ in range(n)],
    lambda rng, n: [elements(rng, "int64", (rng.choice([1, 1]), 1, 3)) for _ in range(n)],
    lambda rng, n: [elements(rng, "float32", (70, 70)) for _ in range(n)],  # copied without the GIL
]
ODD: list[Draw] = [
    disordered_arrays,
    odd_arrays,
    odd_scalars,
    lambda rng, n: [rng.choice([Colour.RED, Colour.BLUE]) for _ in range(n)],
    lambda rng, n: [Number(integer(rng)) for _ in range(n)],
    lambda rng, n: [Real(rng.random()) for _ in range(n)],
    lambda rng, n: [rng.choice([2**63, 2**64, -(2**63) - 1, 3]) for _ in range(n)],
    lambda rng, n: [None] * n,
    lambda rng, n: [rng.random() + 1j for _ in range(n)],
    lambda rng, n: [object() for _ in range(n)],
    lambda rng, n: [Text("a") for _ in range(n)],
    lambda rng, n: [{1, 2} for _ in range(n)],
    lambda rng, n: [Boxes(1) for _ in range(n)],
    lambda rng, n: [bytearray(b"ab") for _ in range(n)],
    lambda rng, n: [range(3) for _ in range(n)],
    lambda rng, n: [collections.OrderedDict(a=k, b=float(k)) for k in range(n)],
    lambda rng, n: [collections.deque([k, k]) for k in range(n)],
    # ragged, but of one number of elements: of another, torch's worker says only that it cannot resize a storage
    lambda rng, n: [elements(rng, "float32", rng.choice([(6,), (2, 3), (3, 2)])) for _ in range(n)],
    lambda rng, n: [[1] * rng.randrange(3) for _ in range(n)],
    lambda rng, n: [dict.fromkeys(rng.sample("abc", rng.randrange(1, 4)), 1) for _ in range(n)],
    lambda rng, n: [torch.ones(2, requires_grad=True) for _ in range(n)],
    lambda rng, n: [torch.nn.Parameter(torch.ones(2)) for _ in range(n)],
]
MIXED: list[Callable[[random.Random], Any]] = [
    integer,
    real,
    lambda rng: rng.random() < 0.5,
    lambda rng: numpy.int64(integer(rng)),
    lambda rng: numpy.float32(rng.random()),
    lambda rng: numpy.float64(rng.random()),
    lambda rng: numpy.bool_(True),
    lambda rng: numpy.zeros(()),
    lambda rng: numpy.zeros(1, "float32"),
    lambda rng: torch.tensor(7),
    lambda rng: Colour.RED,
    lambda rng: Number(5),
    lambda rng: None,
    lambda rng: "text",
    lambda rng: (1, 2),
    lambda rng: [1, 2],
    lambda rng: Pair(1, 2),
    lambda rng: {"a": 1},
]


def mixed(rng: random.Random, n: int) -> list[Any]:
    """Rows of two kinds."""
    kinds = rng.sample(MIXED, 2)
    return [rng.choice(kinds)(rng) for _ in range(n)]


def draw(rng: random.Random, n: int, columns: list[Draw], depth: int = 0) -> list[Any]:
    """Samples of one structure."""
    form = rng.randrange(9) if depth < 3 else 0
    if form < 4 and (depth or form < 1):
        return rng.choice(columns)(rng, n)
    parts = [draw(rng, n, columns, depth + 1) for _ in range(rng.randrange(1, 4) if form < 8 else 0)]
    if form < 5:
        return [list(row) for row in zip(*parts, strict=True)]
    if form < 6:
        return [{f"key {k}": part for k, part in enumerate(row)} for row in zip(*parts, strict=True)]
    if form < 7:
        x, y = (draw(rng, n, columns, depth + 1) for _ in range(2))
        return [Pair(*row) for row in zip(x, y, strict=True)]
    return list(zip(*parts, strict=True)) if parts else [rng.choice([(), [], {}])] * n


def drawn(seed: int, count: int, columns: list[Draw]) -> tuple[list[Any], list[list[int]]]:
    """The samples of this many batches, and which batch each belongs to."""
    rng = random.Random(seed)
    samples: list[Any] = []
    batches = []
    for _ in range(count):
        n = rng.choice([1, 2, 3, 7, 8, 40])
        batches.append(list(range(len(samples), len(samples) + n)))
        samples += draw(rng, n, columns)
    return samples, batches
