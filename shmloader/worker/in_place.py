"""Samples written into their rows of the batch: `__getitem_into__`.

NOTE [ Rows in place ]

A dataset may have, beside `__getitem__(index)`,

    __getitem_into__(index, row)

which gives the same sample, but may write its tensors and arrays straight into the slot.  `row` is built like a sample.
Where the sample has a tensor or an array, `row` has a *place*: a tensor or an array of the same shape and dtype, over
the memory of the batch where it belongs.  Everywhere else `row` has None.  The dataset returns a sample as usual.  For
each part that it has written into `row`, it puts that tensor or array of `row` into the sample.  If the sample has
another tensor or array there, that is copied.  So `return row[0], label` is a sample whose image was written in place.

The shapes come from the dataset's `row_spec`.  Without one, each worker gets its first sample of an epoch by
__getitem__, and takes the shapes from that sample (in chunks: see 2).  If a sample does not fit (another shape, dtype
or structure), the batch is made without places: its rows so far are copied out, and the other samples come by
__getitem__.  The next batch has places for samples of the new shape.

    1. default_collate gets a list of samples as always, and finds that their rows lie where it would put them
       (batch_writer.pyx).  So it makes the same batch.
    2. In chunks, several workers write into one slot.  Places of the wrong shape would lie in other workers' rows.  So
       the first sample of each chunk comes by __getitem__ and gives the shapes.  One worker may write in place while
       another does not, and both must lay out the batch alike.  Places are reserved in the order in which
       default_collate stacks, so a chunk has the same offsets with places as without.  That holds only if all tensors
       of a sample have places, so otherwise none of them gets one.  If any sample does not fit into its places, the
       places of its chunk are given up before anything is stacked.
    3. default_collate uses only the elements of a tensor.  A collate function of the user's may use more, so it gets
       samples by __getitem__.
    4. A class that overrides only __getitem__ wants its own samples, so the __getitem_into__ of its base is not called.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch.utils.data import Subset, default_collate

from shmloader.core.batch_tree import ATOMS, is_namedtuple
from shmloader.core.batch_writer import Writer
from shmloader.private.of_torch import collate_tensor_fn, default_collate_fn_map
from shmloader.protocols.user_objects import attribute
from shmloader.worker.replace_bad_samples import Skips

Into = Callable[[Any, Any], Any]

_FETCHES = ("__getitem_into__", "__getitem__", "__getitems__")


@dataclass(frozen=True)
class _Leaf:
    """A tensor or an array that has a place in a row."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    array: numpy.dtype[Any] | None  # its dtype, if it is an array

    def has(self, part: Any) -> bool:
        """Whether a part of a sample is like it."""
        if self.array is None:
            is_like = type(part) is torch.Tensor and part.dtype is self.dtype and tuple(part.shape) == self.shape
            return is_like and part.layout is torch.strided and part.is_cpu and not part.requires_grad
        return type(part) is numpy.ndarray and part.dtype == self.array and part.shape == self.shape


@dataclass(frozen=True)
class _Node:
    """A container of a row: its class, its keys, if it has any, and its parts."""

    kind: type
    keys: tuple[Any, ...] | None
    parts: tuple[Any, ...]

    def around(self, parts: list[Any]) -> Any:
        if self.keys is not None:
            return dict(zip(self.keys, parts, strict=True))
        return self.kind(*parts) if is_namedtuple(self.kind) else self.kind(parts)

    def parts_of(self, part: Any) -> Any:
        """The parts of a sample's part that is the same container; None if it is another one."""
        kind = type(part)
        if kind is not self.kind or len(part) != len(self.parts):
            return None
        if self.keys is None:
            return part
        return part.values() if tuple(part) == self.keys else None


class _Unlike(Exception):
    """A sample does not fit into its row."""


class _NoPlaces(Exception):
    """A sample has a tensor that cannot lie in a place."""


def _spec(part: Any, is_announced: bool = False) -> Any:
    """The places of a sample: a tree of _Node and _Leaf, with None for parts without a place.

    Args:
        part: The sample, or the `row_spec`, or a part of either.
        is_announced: Whether it comes from `row_spec`, whose tensors may be on the device "meta".
    """
    kind = type(part)
    if kind is dict:
        return _Node(dict, tuple(part), tuple(_spec(each, is_announced) for each in part.values()))
    if kind is list or kind is tuple or is_namedtuple(kind):
        return _Node(kind, None, tuple(_spec(each, is_announced) for each in part))
    if kind is torch.Tensor and part.layout is torch.strided and part.numel() and not part.requires_grad:
        if part.device.type == "cpu" or (is_announced and part.device.type == "meta"):
            return _Leaf(part.dtype, tuple(part.shape), None)
    elif kind is numpy.ndarray and part.size and part.dtype.kind in "biufc" and part.dtype.isnative:
        try:
            return _Leaf(torch.from_numpy(numpy.empty(0, part.dtype)).dtype, part.shape, part.dtype)
        except TypeError:  # torch has no such dtype
            raise _NoPlaces from None
    elif kind in ATOMS or isinstance(part, numpy.generic):
        return None
    raise _NoPlaces


def _leaves(spec: Any) -> Iterator[_Leaf]:
    if isinstance(spec, _Leaf):
        yield spec
    elif spec is not None:
        for part in spec.parts:
            yield from _leaves(part)


def _row(spec: Any, places: Iterator[Any]) -> Any:
    """The tree that the dataset gets."""
    if spec is None:
        return None
    if isinstance(spec, _Leaf):
        return next(places)
    return spec.around([_row(part, places) for part in spec.parts])


def _put(spec: Any, sample: Any, places: Iterable[Any]) -> Any:
    """A sample with its tensors in their places.  Tensors that lie elsewhere are copied.

    Raises:
        _Unlike: it does not fit.  Nothing was written.
    """
    copies: list[tuple[Any, Any]] = []
    placed = _placed(spec, sample, iter(places), copies)
    if copies:
        _copy(copies)
    return placed


def _placed(spec: Any, part: Any, places: Iterator[Any], copies: list[tuple[Any, Any]]) -> Any:
    """_put() for a part of a sample.  Copies are only recorded, because a source may lie in another one's place."""
    if spec is None:
        if isinstance(part, (torch.Tensor, numpy.ndarray)):
            raise _Unlike
        return part
    if isinstance(spec, _Leaf):
        place = next(places)
        if part is not place:
            if not spec.has(part):
                raise _Unlike
            copies.append((part, place))
        return place
    parts = spec.parts_of(part)
    if parts is None:
        raise _Unlike
    return spec.around([_placed(each, one, places, copies) for each, one in zip(spec.parts, parts, strict=True)])


def _copy(copies: list[tuple[Any, Any]]) -> None:
    """Copy parts of a sample into their places.

    A source that overlaps a destination is read first: places that come back in another order, or a view of the place
    itself with its elements in another order.
    """
    bounds = [_bounds(place) for _, place in copies]
    parts = []
    for part, _ in copies:
        low, high = _bounds(part)
        is_in_the_way = any(low < end and start < high for start, end in bounds)
        if is_in_the_way:
            part = part.clone() if isinstance(part, torch.Tensor) else part.copy()
        parts.append(part)
    for part, (_, place) in zip(parts, copies, strict=True):
        if isinstance(place, torch.Tensor):
            place.copy_(part)
        else:
            place[...] = part


def _bounds(part: Any) -> tuple[int, int]:
    """The addresses between which the elements of a tensor or an array lie."""
    if isinstance(part, torch.Tensor):
        at, size, strides = part.data_ptr(), part.element_size(), [part.element_size() * each for each in part.stride()]
    else:
        at, size, strides = part.ctypes.data, part.itemsize, part.strides
    steps = [(count - 1) * stride for count, stride in zip(part.shape, strides, strict=True)]
    return at + sum(step for step in steps if step < 0), at + sum(step for step in steps if step > 0) + size


def _apart(part: Any) -> Any:
    """A sample, or a part of it, copied out of its places, which are needed for something else."""
    kind = type(part)
    if kind is torch.Tensor:
        return part.detach().clone().requires_grad_(part.requires_grad) if part.is_leaf else part
    if kind in ATOMS:
        return part
    if kind is dict:
        return {key: _apart(each) for key, each in part.items()}
    if kind is list or kind is tuple:
        return kind(map(_apart, part))
    return copy.deepcopy(part)


def into_of(dataset: Any) -> tuple[Into | None, Any]:
    """A dataset's __getitem_into__, also inside torch's Subset, and its `row_spec`; None if it has none."""
    if type(dataset) is Subset:
        inner, spec = into_of(dataset.dataset)
        return None if inner is None else lambda index, row: inner(dataset.indices[index], row), spec
    for kind in type(dataset).__mro__:
        if any(name in vars(kind) for name in _FETCHES):
            if callable(vars(kind).get(_FETCHES[0])):
                return dataset.__getitem_into__, attribute(dataset, "row_spec")
            break
    return None, None


class InPlace:
    """Fetches the samples of a batch, in their places in the slot if they have places.

    Args:
        get: gives a sample of a map-style dataset.
        into: its __getitem_into__.
        row_spec: its `row_spec`, the shapes of a sample that it announces.
        writer: lays places in the slot.
    """

    def __init__(self, get: Callable[[Any], Any], into: Into, row_spec: Any, writer: Writer) -> None:
        self._get = get
        self._into = into
        self._writer = writer
        self._spec: Any = None if row_spec is None else _spec_or_none(row_spec, is_announced=True)

    def samples(self, indices: Any) -> list[Any]:
        """The samples of a batch, for default_collate."""
        samples: list[Any] = []
        rows = None if self._writer.rows else self._lay(len(indices))  # the places of each sample
        for index in indices:
            if not samples and rows is None:  # the first sample gives the shapes of the others
                sample = self._get(index)
                rows = self._lay_like(sample, len(indices))
            elif rows is None:
                samples.append(self._get(index))
                continue
            else:
                sample = self._into(index, _row(self._spec, iter(rows[len(samples)])))
            if rows is not None:
                try:
                    samples.append(_put(self._spec, sample, rows[len(samples)]))
                    continue
                except _Unlike:
                    samples, sample = [_apart(one) for one in samples], _apart(sample)
                    rows = self._lay_like(sample, len(indices), has_others=bool(samples))
                    if rows is not None:
                        sample = _put(self._spec, sample, rows[0])
            samples.append(sample)
        return samples

    def _lay(self, count: int) -> list[Any] | None:
        """The places of each sample, in the order of its leaves; None if there are none.

        They are kept apart from the tree that the dataset gets, because it may change the tree.
        """
        if self._spec is None:
            return None
        columns = []
        for leaf in _leaves(self._spec):
            column = self._writer.lay(leaf.dtype, leaf.shape, count)
            if column is None:
                self._writer.forget_places()
                return None
            columns.append(column if leaf.array is None else [place.numpy() for place in column])
        return list(zip(*columns, strict=True))

    def _lay_like(self, sample: Any, count: int, has_others: bool = False) -> list[Any] | None:
        """_lay() for samples like this one.  If this batch has places already, the new ones hold for the next batch."""
        self._writer.forget_places()
        self._spec = _spec_or_none(sample)
        return None if has_others else self._lay(count)


def _spec_or_none(sample: Any, is_announced: bool = False) -> Any:
    try:
        spec = _spec(sample, is_announced)
    except (_NoPlaces, RecursionError):
        return None
    return spec if next(_leaves(spec), None) is not None else None


def in_place(dataset: Any, collate_fn: Any, writer: Writer, skips: Skips | None = None) -> InPlace | None:
    """What fetches samples in their places; None without __getitem_into__, or if collate_fn must not see places."""
    into, spec = into_of(dataset)
    is_stock = default_collate_fn_map.get(torch.Tensor) is not collate_tensor_fn and collate_fn is default_collate
    if into is None or not is_stock:
        return None
    if skips is not None:
        return InPlace(skips.sample, skips.into(into), spec, writer)
    return InPlace(lambda index: dataset[index], into, spec, writer)
