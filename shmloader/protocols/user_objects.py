"""How objects of the user's are touched: what torch's loader would not look up in a sampler, a dataset or a stream
(`state_dict`, `set_epoch`, ...), states that they load, iterators of theirs, and the datasets inside torch's wrappers.

Loaders are never hashed and never compared (ByIdentity): one that defines its own `==`, as a dataclass does, has no
hash, or its `==` raises.

NOTE [ Look-ups ]

Most samplers and datasets lack these attributes.  Some have them as properties that raise until something is set up, or
have a `__getattr__` that raises KeyError.  Under torch's loader their users never meet that exception.

    1. An attribute whose look-up raises an Exception counts as absent.  The next look-up may find it.
    2. Each look-up really asks the object.  So an attribute that a property or a `__getattr__` passes on from another
       object is found like any other.
    3. The exception may be that of a signal's handler, which must come through.  It may be an AttributeError, too, and
       that is why getattr() gets no default.
    4. torch looks up some attributes too, such as `__getitems__`.  Those we look up in the same way as torch.
"""

from __future__ import annotations

import collections
import copy
import functools
import itertools
import signal
import traceback
import types
import weakref
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data import ChainDataset, ConcatDataset, StackDataset, Subset


def attribute(of: Any, name: str, unless: Any = None) -> Any:
    """An attribute of a user's object; `unless` if it has none, or if it cannot be looked up: NOTE [ Look-ups ]."""
    try:
        return getattr(of, name)
    except Exception as error:
        if _is_handlers(error):
            raise
        return unless


def length_of(of: Any) -> int | None:
    """The length that a sampler or a dataset declares; None if it declares none, or cannot be asked."""
    try:
        return len(of)
    except Exception as error:
        if _is_handlers(error):
            raise
        return None


def _is_handlers(error: Exception) -> bool:
    """Whether the handler of a signal, written in Python, has raised this.

    Most objects just lack the attribute, and no Python code has run.  Asking for all handlers would take 250 us, for
    each of a dozen look-ups an epoch.
    """
    if error.__traceback__ is None or error.__traceback__.tb_next is None:
        return False
    handlers = map(signal.getsignal, signal.valid_signals())
    codes = {getattr(getattr(each, "__func__", each), "__code__", None) for each in handlers} - {None}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


def says_where_it_is(what: Any) -> bool:
    """Whether a sampler, a stream or its iterator has a state_dict() and a load_state_dict() for its place.

    Those that it has from nn.Module are for its parameters, and do not have its place.
    """
    return all(_has_own(what, name) for name in ("state_dict", "load_state_dict"))


def _has_own(what: Any, name: str) -> bool:
    found = attribute(what, name)
    return callable(found) and attribute(found, "__func__") is not getattr(torch.nn.Module, name)


def load_state(of: Any, state: Any) -> None:
    """Call load_state_dict() with a copy.  Some objects empty what they get (lhotse's), and it may be loaded again."""
    of.load_state_dict(copy.deepcopy(state))


Value = TypeVar("Value")
Default = TypeVar("Default")


class ByIdentity(Generic[Value]):
    """Values of objects that may be gone: with its object, a value is dropped.

    Any thread may use it: each method looks once, or changes one entry in one step.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Any], Value]] = {}

    def _entry(self, key: Any, value: Value) -> tuple[weakref.ref[Any], Value]:
        # C code alone calls pop(id, reference), so no signal's handler can break it off
        return weakref.ref(key, functools.partial(self._entries.pop, id(key))), value

    def get(self, key: Any, default: Default = None) -> Value | Default:  # type: ignore[assignment]
        """The value of an object, or the default."""
        found = self._entries.get(id(key))
        return found[1] if found is not None and found[0]() is key else default

    def setdefault(self, key: Any, value: Value) -> Value:
        """The value of an object, which is this one if it had none."""
        reference, found = self._entries.setdefault(id(key), entry := self._entry(key, value))
        if reference() is not key:  # a dead object had this id
            self._entries[id(key)] = entry
            return value
        return found

    def pop(self, key: Any, default: Default = None) -> Value | Default:  # type: ignore[assignment]
        """Take the value of an object away."""
        reference, found = self._entries.pop(id(key), (None, default))
        return found if reference is not None and reference() is key else default

    def __setitem__(self, key: Any, value: Value) -> None:
        self._entries[id(key)] = self._entry(key, value)

    def __contains__(self, key: object) -> bool:
        found = self._entries.get(id(key))
        return found is not None and found[0]() is key

    def items(self) -> list[tuple[Any, Value]]:
        """The objects that are not gone, and their values; the one that came first is first."""
        found = [(reference(), value) for reference, value in list(self._entries.values())]
        return [(key, value) for key, value in found if key is not None]


def by_next(source: Iterator[Any]) -> Iterator[Any]:
    """The same, without a call of iter(), which starts some samplers and streams again that are their own iterators."""
    return map(next, itertools.repeat(source))


def skip(source: Iterator[Any], count: int) -> Iterator[Any]:
    """The same, after so many items, or as many as there are."""
    # iter() starts no generator again, and without next() the million indices of a resume take a third of the time.
    items = source if type(source) is types.GeneratorType else by_next(source)
    collections.deque(itertools.islice(items, count), maxlen=0)
    return source


def hearers(dataset: Any) -> list[Any]:
    """The datasets with a set_epoch(): this one, or those inside torch's wrappers, each once.

    The wrappers do not pass set_epoch() on, and only a worker can reach the datasets in its own copy.
    """
    if callable(attribute(dataset, "set_epoch")):
        return [dataset]
    found: dict[int, Any] = {}  # a ConcatDataset may have one dataset many times
    for part in _parts(dataset):
        found |= {id(hearer): hearer for hearer in hearers(part)}
    return list(found.values())


def with_parts(dataset: Any) -> Iterator[Any]:
    """A dataset, and all datasets inside torch's wrappers, at any depth."""
    yield dataset
    for part in _parts(dataset):
        yield from with_parts(part)


def is_got_one_by_one(dataset: Any) -> bool:
    """Whether a dataset's `__getitems__` only calls `__getitem__` for one sample after the other.

    For Subset and StackDataset that is so if it is so for all datasets inside them.
    """
    if getattr(dataset, "__getitems__", None) is None:
        return True
    own = next((kind for kind in (Subset, StackDataset) if isinstance(dataset, kind)), None)
    if own is None or any(
        getattr(type(dataset), name) is not getattr(own, name) for name in ("__getitem__", "__getitems__")
    ):
        return False
    return all(map(is_got_one_by_one, _parts(dataset)))


def asked_for_batches(dataset: Any) -> Iterator[Any]:
    """A dataset, and the datasets inside torch's wrappers that pass `__getitems__` on to them."""
    yield dataset
    if isinstance(dataset, (Subset, StackDataset)):
        for part in _parts(dataset):
            yield from asked_for_batches(part)


def _parts(dataset: Any) -> list[Any]:
    if isinstance(dataset, Subset):
        return [dataset.dataset]
    if isinstance(dataset, (ConcatDataset, ChainDataset)):
        return list(dataset.datasets)
    if isinstance(dataset, StackDataset):
        found = dataset.datasets
        return list(found.values() if isinstance(found, dict) else found)
    return []
