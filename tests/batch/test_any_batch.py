"""Whatever a dataset or collate function returns arrives as torch delivers it; what cannot be, raises in its place."""

from __future__ import annotations

import collections
import dataclasses
import pickle
import sys
import threading
import typing
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy
import pytest
import torch
from conftest import BOTH, Raised, assert_same, iterate
from scripts import run_script

import shmloader
from shmloader.core.tensors import tensor_over

DTYPES = [
    getattr(torch, name)
    for name in [
        "bool",
        "uint8",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "complex32",
        "complex64",
        "complex128",
        "float8_e4m3fn",
        "float8_e5m2",
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
        "float4_e2m1fn_x2",
        "uint1",
        "uint4",
        "uint7",
        "int1",
        "int4",
        "bits8",
        "bits16",
        "bits1x8",
        "bits4x2",
    ]
    if hasattr(torch, name)
]


def as_it_is(batch: Any) -> Any:
    return batch


class Gives(torch.utils.data.Dataset):
    """Item k is what the k-th function gives, made in the worker."""

    def __init__(self, makers: list[Any]) -> None:
        self.makers = makers

    def __len__(self) -> int:
        return len(self.makers)

    def __getitem__(self, index: int) -> Any:
        return self.makers[index]()


def deliver(kind: type, makers: list[Any], **options: Any) -> list[Any]:
    options = {"batch_size": None, "num_workers": 1, "collate_fn": as_it_is, **options}
    return iterate(kind(Gives(makers), **options))


def assert_as_torch(makers: list[Any], **options: Any) -> list[Any]:
    theirs, ours = (deliver(kind, makers, **options) for kind in BOTH)
    assert_same(ours, theirs)
    return ours


def tensor_of(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Any bytes are a tensor of any dtype, as long as a bool is 0 or 1."""
    size = torch.empty(0, dtype=dtype).element_size()
    count = size
    for side in shape:
        count *= side
    most = 2 if dtype == torch.bool else 256
    raw = torch.randint(0, most, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    return torch.empty(0, dtype=dtype).set_(raw.untyped_storage(), 0, shape)


# ------------------------------------------------------------------------------------------------------------ tensors


@pytest.mark.parametrize("spare", [0, 2])
def test_every_dtype(spare: int) -> None:
    makers = [
        lambda d=dtype, s=shape: tensor_of(d, *s) for dtype in DTYPES for shape in ((), (3,), (2, 5), (0,), (2, 0, 3))
    ]
    theirs = deliver(torch.utils.data.DataLoader, makers)
    ours = deliver(shmloader.DataLoader, makers, spare_slots=spare)
    assert_same(ours, theirs)
    assert [t.stride() for t in ours] == [t.stride() for t in theirs]
    assert not any(isinstance(t, Raised) for t in ours)


def test_every_dtype_collated() -> None:
    makers = [
        lambda d=dtype, s=shape: tensor_of(d, *s)
        for dtype in DTYPES
        for shape in ((3, 2), (), (2, 0))
        for _ in range(4)
    ]
    theirs, ours = (deliver(kind, makers, batch_size=4, collate_fn=None) for kind in BOTH)
    for k, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if not isinstance(b, Raised):  # torch cannot stack dtypes of less than a byte in a worker
            assert_same(a, b, f"batch of {DTYPES[k // 3]}")


def test_views_and_lazy_tensors_collated() -> None:
    big = torch.arange(120.0).view(10, 12)
    made = torch.complex(torch.rand(4, 3), torch.rand(4, 3))
    rows = [
        lambda: big[::2, ::3],
        lambda: big.t()[:5, :4],
        lambda: big[1].expand(5, 12)[:, :4],
        lambda: big[:5, 4:8],
        lambda: made.conj(),
        lambda: made,
        lambda: made.mH.t(),
        lambda: made.conj(),
        lambda: made.conj().imag,
        lambda: made.real,
        lambda: made.conj().imag,
        lambda: made.imag,
    ]
    # torch raises in a worker where lazily conjugated tensors are stacked, and not without workers
    theirs = deliver(torch.utils.data.DataLoader, rows, batch_size=4, collate_fn=None, num_workers=0)
    assert_same(deliver(shmloader.DataLoader, rows, batch_size=4, collate_fn=None), theirs)
    # and it delivers a conjugated tensor that was not collated without its conjugation
    assert_same(deliver(shmloader.DataLoader, rows), [row() for row in rows])


@pytest.mark.parametrize("lazily", [torch.conj, lambda x: x.conj().imag, lambda x: torch._neg_view(x.real)])
@pytest.mark.parametrize("count", [1, 4])
def test_lazy_tensors_made_of_what_was_collated(lazily: Any, count: int) -> None:
    """They lie in the slot already, but as what they are not."""
    made = [torch.tensor([1 + 2j]), torch.tensor([3 - 4j])] * 2
    collate_fn = shmloader.row_wise(Lazily(lazily))
    wanted = [collate_fn(made[k : k + count]) for k in range(0, 4, count)]
    for options in ({}, {"chunk_size": 2}):
        loader = shmloader.DataLoader(made, count, num_workers=1, collate_fn=collate_fn, **options)
        assert [batch.tolist() for batch in loader] == [batch.tolist() for batch in wanted]


class Lazily:
    def __init__(self, how: Any) -> None:
        self.how = how

    def __call__(self, rows: list[torch.Tensor]) -> torch.Tensor:
        return self.how(torch.utils.data.default_collate(rows))


def test_only_the_elements_of_a_view_travel() -> None:
    big = torch.zeros(1000, 1000)
    batches = deliver(
        shmloader.DataLoader, [lambda: big[:2, :3], lambda: {"a": big[5:7]}, lambda: [1, big[::400, 0], "x"]]
    )
    assert [t.untyped_storage().nbytes() for t in (batches[0], batches[1]["a"], batches[2][1])] == [24, 8000, 12]
    for makers in ([lambda: big[:2, :3]], [lambda: {"a": torch.nn.Parameter(big[:2, :3])}]):
        loader = shmloader.DataLoader(Gives(makers), batch_size=None, num_workers=1, collate_fn=as_it_is)
        iterator = iter(loader)
        next(iterator)
        used = max(iterator._ring.committed(payload) for payload in range(iterator._ring.payloads))
        assert used < 100_000, f"{used} bytes were committed for 24"


@pytest.mark.parametrize("spare", [0, 2])
def test_order_of_elements_in_memory_is_kept(spare: int) -> None:
    images = torch.arange(4 * 3 * 5 * 7.0).view(4, 3, 5, 7)
    makers = [
        lambda: images.contiguous(memory_format=torch.channels_last),
        lambda: images.permute(0, 2, 3, 1),
        lambda: images.bfloat16().permute(1, 0, 2, 3),
        lambda: {"collated in the slot": torch.utils.data.default_collate(list(images)).permute(0, 2, 3, 1)},
        lambda: numpy.asfortranarray(images.numpy()),
        lambda: images.numpy().transpose(2, 0, 1, 3),
    ]
    ours = deliver(shmloader.DataLoader, makers, spare_slots=spare)
    assert ours[0].is_contiguous(memory_format=torch.channels_last)
    assert [batch.stride() for batch in ours[:3]] == [make().stride() for make in makers[:3]]
    assert ours[3]["collated in the slot"].stride() == images.permute(0, 2, 3, 1).stride()
    assert [batch.strides for batch in ours[4:]] == [make().strides for make in makers[4:]]
    assert_same(ours, [make() for make in makers])


def test_kinds_of_tensors() -> None:
    class_of_its_own = lambda: torch.ones(3).as_subclass(Tagged)  # noqa: E731
    assert_as_torch(
        [
            lambda: torch.nn.Parameter(torch.ones(3)),
            lambda: torch.nn.Parameter(torch.ones(3), requires_grad=False),
            lambda: torch.ones(3, requires_grad=True),
            lambda: torch.nn.Buffer(torch.ones(2)) if hasattr(torch.nn, "Buffer") else 0,
            lambda: torch.eye(4).to_sparse(),
            lambda: torch.eye(4).to_sparse().coalesce(),
            lambda: torch.eye(4).to_sparse_csr(),
            lambda: torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)]),
            class_of_its_own,
            lambda: [class_of_its_own(), torch.ones(3)],
            lambda: torch.zeros(3, device="meta"),
            lambda: torch.ones(2).untyped_storage().tolist(),
            lambda: torch.Size([1, 2]),
            lambda: torch.float32,
            lambda: torch.device("cpu"),
        ]
    )


def freed() -> torch.Tensor:
    tensor = torch.ones(2, 3)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize("make", [freed, lambda: torch._efficientzerotensor(2, 3)], ids=["freed", "zero"])
def test_a_tensor_without_memory_raises_in_its_place(make: Any) -> None:
    """torch's worker dies of a segmentation fault, or delivers what it never read."""
    bare, inside, after = deliver(shmloader.DataLoader, [make, lambda: {"x": make()}, lambda: [1]])
    for error in (bare, inside):
        assert isinstance(error, Raised)
        assert "of 24 bytes, of shape [2, 3], has no memory" in error.text
    assert after == [1]


def test_quantised_tensors() -> None:
    makers = [  # torch delivers them without their scales
        lambda: torch.quantize_per_tensor(
            torch.rand(3, generator=torch.Generator().manual_seed(2)), 0.1, 2, torch.qint8
        ),
        lambda: torch.quantize_per_channel(
            torch.ones(2, 2), torch.tensor([0.1, 0.2]), torch.tensor([0, 1]), 0, torch.quint8
        ),
    ]
    assert_same(deliver(shmloader.DataLoader, makers), [make() for make in makers])


def test_small_tensors_with_odd_strides() -> None:
    makers = [
        lambda: torch.from_numpy(numpy.zeros(0, "f4")),
        lambda: torch.ones(10)[::7][:1],
        lambda: torch.ones(4)[4:],
        lambda: torch.zeros(1, 3).expand(0, 3),
        lambda: torch.ones(3).as_strided((1, 1), (9, 0)),
    ]
    assert_as_torch(makers + [lambda make=make: Slotted(make()) for make in makers])
    assert_as_torch([makers[1]] * 4, batch_size=2, collate_fn=None)


class Tagged(torch.Tensor):
    """A tensor subclass that adds nothing."""


def test_what_carries_a_graph_raises() -> None:
    got = deliver(shmloader.DataLoader, [lambda: torch.ones(2, requires_grad=True) * 2, lambda: torch.ones(2)])
    assert got[0].kind is RuntimeError and got[1].tolist() == [1, 1]


# ------------------------------------------------------------------------------------------------------------- arrays


class Matrix(numpy.ndarray):
    """An array subclass."""


def locked(array: numpy.ndarray) -> numpy.ndarray:
    array.setflags(write=False)
    return array


ARRAYS = {
    "structured": lambda: numpy.array([(1, 2.5, b"x")], dtype=[("a", "i4"), ("b", "f8"), ("c", "S3")]),
    "object": lambda: numpy.array([1, "two", None, (3,)], dtype=object),
    "datetime": lambda: numpy.array(["2020-01-01", "NaT"], dtype="M8[s]"),
    "timedelta": lambda: numpy.arange(4).astype("m8[ms]"),
    "non-native": lambda: numpy.arange(5, dtype=">i4"),
    "Fortran": lambda: numpy.asfortranarray(numpy.arange(6.0).reshape(2, 3)),
    "view": lambda: numpy.arange(20.0)[::3],
    "reversed": lambda: numpy.arange(5)[::-1],
    "0-d": lambda: numpy.array(3.5),
    "empty": lambda: numpy.zeros((0, 4), dtype="i2"),
    "empty inside": lambda: numpy.zeros((2, 0, 4)),
    "str": lambda: numpy.array(["a", "long"]),
    "bytes": lambda: numpy.array([b"a", b"long"]),
    "longdouble": lambda: numpy.arange(3, dtype=numpy.longdouble),
    "half": lambda: numpy.arange(3, dtype="f2"),
    "complex": lambda: numpy.arange(3, dtype="c16"),
    "unsigned": lambda: numpy.arange(3, dtype="u8"),
    "read-only": lambda: locked(numpy.arange(3.0)),
    "read-only datetime": lambda: locked(numpy.arange(3).astype("M8[s]")),
    "from bytes": lambda: numpy.frombuffer(b"abcdefgh", dtype="i4"),
    "broadcast": lambda: numpy.broadcast_to(numpy.arange(3.0), (4, 3)),
    "subclass": lambda: numpy.arange(3.0).view(Matrix),
    "masked": lambda: numpy.ma.array([1, 2, 3], mask=[0, 1, 0]).filled(9),
    "scalars": lambda: [
        numpy.float32(1.5),
        numpy.int8(3),
        numpy.bool_(True),
        numpy.str_("a"),
        numpy.datetime64("2020"),
    ],
    "with metadata": lambda: numpy.zeros(2, dtype=numpy.dtype("f8", metadata={"unit": "m"})),
}


@pytest.mark.parametrize("spare", [0, 2])
def test_arrays(spare: int) -> None:
    theirs = deliver(torch.utils.data.DataLoader, list(ARRAYS.values()))
    ours = deliver(shmloader.DataLoader, list(ARRAYS.values()), spare_slots=spare)
    if pickle.DEFAULT_PROTOCOL >= 5:  # CPython 3.14: what torch pickles stays read-only; docs/limits.md
        names = list(ARRAYS)
        assert not theirs[names.index("read-only")].flags.writeable
        for at in map(names.index, ("read-only", "read-only datetime", "from bytes")):
            theirs[at] = theirs[at].copy()
    assert_same(ours, theirs)


@pytest.mark.parametrize("spare", [0, 2])
def test_arrays_in_what_only_pickle_carries(spare: int) -> None:
    items = [lambda make=make: collections.OrderedDict(of=make()) for make in ARRAYS.values()]
    theirs = deliver(torch.utils.data.DataLoader, items)
    ours = deliver(shmloader.DataLoader, items, spare_slots=spare)
    assert_same(ours, theirs)


# --------------------------------------------------------------------------------------------------------- containers


Pair = collections.namedtuple("Pair", "left right")


class Typed(typing.NamedTuple):
    x: Any
    y: Any = 3

    def sum(self) -> Any:
        return self.x + self.y


class Longer(Pair):
    """A namedtuple with something added."""


@dataclasses.dataclass
class Plain:
    x: Any
    y: Any = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Any
    y: Any = None


@dataclasses.dataclass(slots=True)
class Slotted:
    x: Any
    y: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlotted:
    x: Any
    y: Any = None


class Ordinary:
    def __init__(self) -> None:
        self.tensor, self.text = torch.ones(3), "t"


class Lazy(Ordinary):
    """Pickles as it says itself."""

    def __getstate__(self) -> Any:
        return {"tensor": self.tensor + 1}

    def __setstate__(self, state: Any) -> None:
        self.tensor, self.text = state["tensor"], "made again"


class Reduced(Ordinary):
    def __reduce__(self) -> Any:
        return Reduced, ()


class WithNew:
    def __new__(cls, *args: Any) -> Any:
        made = super().__new__(cls)
        made.born = len(args)
        return made


class Dict(dict):
    """A dict of its own class, with an attribute."""


class IntLike(int):
    pass


def attributed() -> Dict:
    made = Dict(a=torch.ones(2))
    made.extra = 3
    return made


def test_containers() -> None:
    t = lambda: torch.arange(4.0)  # noqa: E731
    assert_as_torch(
        [
            lambda: {"a": t(), "b": {"c": [t(), (t(), 1)]}},
            lambda: [],
            lambda: {},
            lambda: (),
            lambda: [[]],
            lambda: ((),),
            lambda: [{}],
            lambda: [1, 2.5, True, None, "s", b"b", 1j, 10**30],
            lambda: ([1, 2], (3, 4), [None]),
            lambda: 5,
            lambda: "text",
            lambda: None,
            lambda: {1: t()},
            lambda: {True: t()},
            lambda: {1.0: t()},
            lambda: {None: t(), (1, 2): t()},
            lambda: {"a": 1, 2: t()},
            lambda: Pair(t(), [1]),
            lambda: Typed(t()),
            lambda: Longer(t(), 2),
            lambda: [Pair(1, 2)] * 1,
            lambda: Plain(t(), {"k": t()}),
            lambda: Frozen(t(), 2),
            lambda: Slotted(t(), 2),
            lambda: FrozenSlotted(t(), 2),
            lambda: collections.OrderedDict(b=t(), a=1),
            lambda: collections.defaultdict(list, a=[t()]),
            lambda: collections.Counter("aab"),
            lambda: collections.deque([1, 2], maxlen=3) and [1],
            attributed,
            lambda: IntLike(3),
            lambda: bytearray(b"abc"),
            lambda: {1, 2, 3},
            lambda: frozenset((1, 2)),
            lambda: range(3),
            lambda: slice(1, 2),
            lambda: Ellipsis,
            lambda: int,
            Ordinary,
            Lazy,
            Reduced,
            lambda: WithNew(1, 2),
            lambda: {"o": Ordinary(), "t": t()},
            lambda: [t() for _ in range(300)],
            lambda: {f"key {k}": k for k in range(300)},
            lambda: "long " * 100_000,
            lambda: bytes(300_000),
        ]
    )


# ----------------------------------------------------------------------------------------------------------- identity


@pytest.mark.parametrize("depth", [100, 300, 450])
def test_deep_nesting(depth: int) -> None:
    def deep() -> Any:
        made: Any = torch.ones(1)
        for k in range(depth):
            made = [made] if k % 2 else {"d": made}
        return made

    got, after = deliver(shmloader.DataLoader, [deep, lambda: 1])
    for _ in range(depth):
        got = got["d"] if isinstance(got, dict) else got[0]
    assert got.item() == 1 and after == 1


@pytest.mark.parametrize("depth", [5_000, 300_000])
def test_too_deep_nesting_raises_in_its_place(depth: int) -> None:
    def deep() -> Any:
        made: Any = torch.ones(1)
        for _ in range(depth):
            made = [made]
        return made

    got = deliver(shmloader.DataLoader, [lambda: 0, deep, lambda: 1])
    assert (got[0], got[2]) == (0, 1)
    if depth < 300_000 and sys.version_info >= (3, 14):  # pickle goes deeper there: its limit is the C stack
        for _ in range(depth):
            (got[1],) = got[1]
        assert got[1].tolist() == [1]
    else:
        assert got[1].kind is RecursionError


# ----------------------------------------------------------------------------------------------- what cannot be pickled


class Refuses:
    def __reduce__(self) -> Any:
        raise ValueError("it will not be pickled")


class Spoils:
    """Can be pickled, and raises where it is unpickled."""

    def __reduce__(self) -> Any:
        return spoil, (1,)


def spoil(_: int) -> Any:
    raise OSError("it will not be unpickled")


class NeedsTwo(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")


def needs_two() -> Any:
    return NeedsTwo(1, 2)  # pickles well, and cannot be made again


def local_class() -> Any:
    @dataclasses.dataclass
    class Local:
        x: Any

    return Local(torch.ones(2))


def local_pair() -> Any:
    return collections.namedtuple("Nowhere", "a b")(torch.ones(1), 2)


BAD: dict[str, Any] = {
    "lambda": lambda: lambda: 1,
    "lock": threading.Lock,
    "generator": lambda: (k for k in range(3)),
    "local class": local_class,
    "local namedtuple": local_pair,
    "refuses": Refuses,
    "spoils": Spoils,
    "exception": needs_two,
    "file": lambda: open("/dev/null"),  # noqa: SIM115
    "module": lambda: sys,
}


@pytest.mark.parametrize("spare", [0, 2])
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_what_cannot_be_pickled_raises_in_its_place(bad: Any, spare: int) -> None:
    good = lambda k: lambda: {"x": torch.full((1000,), k)}  # noqa: E731
    makers = [
        good(0),
        bad,
        good(2),
        lambda: {"x": torch.ones(5), "bad": bad()},
        good(4),
        lambda: [numpy.ones(3), bad()],
    ] + [good(k) for k in range(6, 12)]
    got = deliver(shmloader.DataLoader, makers, num_workers=2, spare_slots=spare)
    assert [isinstance(batch, Raised) for batch in got] == [k in (1, 3, 5) for k in range(12)], got
    assert all(batch["x"].tolist() == [k] * 1000 for k, batch in enumerate(got) if not isinstance(batch, Raised))


# --------------------------------------------------------------------------------------------------------- generated

leaf = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.tuples(
        st.sampled_from(["tensor", "array"]),
        st.sampled_from(["f4", "i8", "u1", "c8", "b1", "f2"]),
        st.lists(st.integers(0, 3), max_size=3),
        st.booleans(),
    ),
)
tree = st.recursive(
    leaf,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=4),
        st.dictionaries(st.one_of(st.integers(), st.booleans(), st.none()), inner, max_size=3),
        st.tuples(inner, inner).map(lambda two: Pair(*two)),
        st.tuples(inner, inner).map(lambda two: Plain(*two)),
        inner.map(lambda one: Frozen(one, one)),
        inner.map(lambda one: Slotted(one)),
    ),
    max_leaves=12,
)


def grow(value: Any) -> Any:
    """Put tensors and arrays at their places in the generated tree."""
    if type(value) is tuple and len(value) == 4 and value[0] in ("tensor", "array"):
        what, dtype, shape, turned = value
        count = int(numpy.prod(shape, dtype=int))
        array = (numpy.arange(count) % 2 if dtype == "b1" else numpy.arange(count)).astype(dtype).reshape(shape)
        array = array.T if turned else array
        return array if what == "array" else torch.from_numpy(array)
    if type(value) in (list, tuple):
        return type(value)(grow(item) for item in value)
    if type(value) is dict:
        return {key: grow(item) for key, item in value.items()}
    if isinstance(value, Pair):
        return Pair(*(grow(item) for item in value))
    if isinstance(value, (Plain, Frozen, Slotted)):
        return type(value)(grow(value.x), grow(value.y))
    return value


@hypothesis.settings(
    max_examples=6,
    deadline=None,
    phases=[hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck),
)
@hypothesis.given(st.lists(tree, min_size=30, max_size=60), st.integers(0, 3))
def test_random_batches(trees: list[Any], spare: int) -> None:
    makers = [lambda t=t: grow(t) for t in trees]
    expected = [make() for make in makers]
    got = deliver(shmloader.DataLoader, makers, num_workers=1, spare_slots=spare)
    assert_same(got, expected)


# ------------------------------------------------------------------------------------------------- torch without DLPack


@pytest.mark.long
def test_a_torch_that_does_not_offer_dlpack_in_c() -> None:
    ran = run_script(
        """
        import torch
        torch.Tensor.__dlpack_c_exchange_api__ = None

        import tests.batch.test_any_batch as tests

        for spare in (0, 2):
            tests.test_every_dtype(spare)
            tests.test_order_of_elements_in_memory_is_kept(spare)
        tests.test_every_dtype_collated()
        tests.test_views_and_lazy_tensors_collated()
        tests.test_kinds_of_tensors()
        for count in (1, 4):
            tests.test_lazy_tensors_made_of_what_was_collated(torch.conj, count)

        from tests.worker import test_in_place

        for options in ({}, {"chunk_size": 2}):
            test_in_place.test_they_are_written_there_and_nowhere_else(options)
        test_in_place.test_rows_that_a_dataset_keeps_are_not_written_again({"num_workers": 1, "chunk_size": 3})
        print("as ever")
        """,
        fresh=True,
    )
    assert (ran.status, ran.out) == (0, "as ever\n"), ran.err


def test_a_tensor_stays_within_its_buffer() -> None:
    room = bytearray(64)
    references = sys.getrefcount(room)
    assert tensor_over(room, torch.float32, 56, (2,)).tolist() == [0, 0]
    for at, shape in ((60, (2,)), (-4, (1,)), (64, (1,)), (0, (4, 5))):
        with pytest.raises(RuntimeError, match=f"the place of a leaf.* {at}, of .*in 64 bytes"):
            tensor_over(room, torch.float32, at, shape)
    with pytest.raises(RuntimeError, match="overflow"):  # torch's own
        tensor_over(bytearray(1), torch.float32, 0, (0, 3, 1 << 62))
    with pytest.raises(OverflowError):
        tensor_over(room, torch.float32, 0, (1 << 64,))
    assert sys.getrefcount(room) == references
