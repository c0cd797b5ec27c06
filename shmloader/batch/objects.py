"""Objects that only pickle can carry, with the bytes of all tensors and arrays in them beside the pickle.
Tensors that require grad and are no leaves are refused, as in torch.

Pickle protocol 5 passes large buffers on instead of copying them into the pickle.  Tensors of every dtype and kind do
the same here.  So their elements travel in the slot (for a view, only its own), and no descriptor is opened for them.

batch_tree.pyx decides what is carried as an object, and batch_writer.pyx puts it behind the tensors in the slot.
"""

from __future__ import annotations

import collections
import copyreg
import functools
import io
import operator
import pickle
from collections.abc import Callable
from typing import Any

import numpy
import torch

from shmloader.private.of_multiprocessing import EXTRA_REDUCERS
from shmloader.private.of_torch import object_state, rebuild_from_type, rebuild_parameter, without_torch_function

Buffer = Any  # any object that exports its bytes: a Lease, a memoryview, a bytearray


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor is only its elements' bytes: on the CPU, strided, neither quantised nor nested."""
    return tensor.layout is torch.strided and tensor.is_cpu and not tensor.is_quantized and not tensor.is_nested


def dump(value: Any) -> tuple[bytes, list[Any]]:
    """Pickle a value; returns the pickle, and what must travel beside it: buffers, and tensors of elements.

    A tensor of which some elements share memory travels as its bytes, from its first element to its last, or as its
    elements in order: NOTE [ Views ] in layout.pxi.
    """
    buffers: list[pickle.PickleBuffer] = []
    tensors: dict[int, torch.Tensor] = {}
    file = io.BytesIO()
    pickler = pickle.Pickler(file, protocol=5, buffer_callback=buffers.append)
    pickler.dispatch_table = _Reducers(functools.partial(_beside, tensors))
    pickler.dump(value)
    return file.getvalue(), [tensors.get(id(buffer), buffer) for buffer in buffers]


def dump_whole(value: Any) -> bytes:
    """Pickle a value, with the bytes of all tensors and arrays in it inside the pickle."""
    file = io.BytesIO()
    pickler = pickle.Pickler(file, protocol=5)
    pickler.dispatch_table = _Reducers(_inside)
    pickler.dump(value)
    return file.getvalue()


# Whether torch's loader delivers new arrays, writable and in the machine's byte order.  Protocol 4 makes such, which
# pickle uses by default until Python 3.14.
IN_NATIVE_ORDER = pickle.DEFAULT_PROTOCOL < 5

# What a pickler does with an object whose class is not in its table.
_reduce_by_itself = operator.methodcaller("__reduce_ex__", 5)


class _Reducers(dict[type, Any]):
    """The dispatch_table of one pickle: multiprocessing's, except for tensors.

    pickle asks it for each object, and `__missing__` finds a class's reducer once: then no object costs a call in
    Python.  Each pickle has its own table, because a reducer may be registered between any two.

    Args:
        buffer_of: Gives what is pickled for a tensor's elements, and their strides if they may arrive with these.  A
            table must not hold what holds the table, or tensors would stay until the collector runs.
    """

    def __init__(self, buffer_of: Callable[[torch.Tensor], Any]) -> None:
        self._buffer_of = buffer_of

    def __missing__(self, kind: type) -> Any:
        registered = _registered(kind)
        found: Any
        if issubclass(kind, torch.Tensor):
            found = registered if _has_its_own_way(kind) else functools.partial(_reduce_tensor, self._buffer_of)
        elif kind is numpy.ndarray and registered is None and IN_NATIVE_ORDER:
            found = _reduce_array
        elif issubclass(kind, torch.UntypedStorage):
            found = _reduce_untyped_storage
        elif issubclass(kind, torch.TypedStorage):
            found = _reduce_typed_storage
        elif registered is None and issubclass(kind, type):
            raise KeyError(kind)  # pickle then names the class
        else:
            found = registered or _reduce_by_itself
        self[kind] = found
        return found


def _registered(kind: type) -> Any:
    """The reducer that a user, or torch, has registered for a class, with multiprocessing or with copyreg."""
    return EXTRA_REDUCERS.get(kind) or copyreg.dispatch_table.get(kind)


def _beside(tensors: dict[int, torch.Tensor], elements: torch.Tensor) -> tuple[pickle.PickleBuffer, Any]:
    """A buffer that stands for a tensor's elements, which travel beside the pickle; they are noted by its id."""
    elements = elements.resolve_conj().resolve_neg()
    buffer = pickle.PickleBuffer(bytearray())  # writable, because pickle notes whether it is
    tensors[id(buffer)] = elements
    return buffer, None if elements.is_contiguous() else elements.stride()


def _inside(elements: torch.Tensor) -> tuple[pickle.PickleBuffer, None]:
    return pickle.PickleBuffer(_bytes_of(elements)), None


def _reduce_array(array: Any) -> Any:
    """Arrays arrive writable and in the machine's byte order, as from torch's loader.

    Beside a pickle, a read-only array would stay read-only, and a big-endian one big-endian.  Protocol 4, which torch's
    loader uses until Python 3.14, makes a new array.
    """
    if not array.dtype.isnative:
        return array.__reduce_ex__(4)
    if array.flags.writeable or array.dtype.hasobject:
        return array.__reduce_ex__(5)
    return array.copy(order="K").__reduce_ex__(5)


def _reduce_untyped_storage(storage: torch.UntypedStorage) -> Any:
    return _untyped_storage, (torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage),)


def _reduce_typed_storage(storage: torch.TypedStorage) -> Any:
    return _typed_storage, (storage._untyped_storage, storage.dtype)


def _has_its_own_way(kind: type) -> bool:
    """Whether a user has registered a reducer for tensors of this class; torch has registered these two."""
    return kind not in (torch.Tensor, torch.nn.Parameter) and _registered(kind) is not None


def _reduce_tensor(buffer_of: Callable[[torch.Tensor], Any], tensor: torch.Tensor) -> Any:
    kind = type(tensor)
    _refuse_non_leaf(tensor)
    if kind.__reduce_ex__ not in (torch.Tensor.__reduce_ex__, torch.nn.Parameter.__reduce_ex__):
        return tensor.__reduce_ex__(2)
    if not is_dense(tensor) or kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return tensor.__reduce_ex__(2)  # its parts are tensors or storages, which are reduced here too
    with without_torch_function():  # a subclass must not see this
        elements = tensor.detach().as_subclass(torch.Tensor)
        if kind is torch.nn.Parameter and rebuild_parameter is not None:
            return rebuild_parameter, (elements, tensor.requires_grad, collections.OrderedDict())
        buffer, strides = buffer_of(elements)
        over = buffer, elements.dtype, tuple(elements.shape), tensor.requires_grad, strides
    if kind is torch.Tensor:
        return _tensor_over, over
    if rebuild_from_type is None or object_state is None:
        return tensor.__reduce_ex__(2)
    return rebuild_from_type, (_tensor_over, kind, over, object_state(tensor))


def _refuse_non_leaf(tensor: torch.Tensor) -> None:
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError(
            "Cowardly refusing to serialize non-leaf tensor which requires_grad, since autograd does not support "
            "crossing process boundaries.  If you just want to transfer the data, call detach() on the tensor before "
            "serializing (e.g., putting it on the queue)."
        )


def _bytes_of(tensor: torch.Tensor) -> Any:
    """A tensor's elements, in order, as an array of bytes."""
    dense = tensor.resolve_conj().resolve_neg().contiguous()
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8).numpy()  # one element may have any stride


def _tensor_over(
    buffer: Buffer, dtype: torch.dtype, shape: tuple[int, ...], requires_grad: bool, strides: tuple[int, ...] | None
) -> torch.Tensor:
    size = memoryview(buffer).nbytes
    if not size:
        return torch.empty(shape, dtype=dtype, device="cpu", requires_grad=requires_grad)
    elements = torch.frombuffer(buffer, dtype=dtype)
    if strides is not None:
        span = 1 + sum((side - 1) * stride for side, stride in zip(shape, strides, strict=True))
        if span == len(elements):
            return elements.as_strided(shape, strides).requires_grad_(requires_grad)
    return elements.view(shape).requires_grad_(requires_grad)


def _untyped_storage(elements: torch.Tensor) -> torch.UntypedStorage:
    return elements.untyped_storage()


def _typed_storage(storage: torch.UntypedStorage, dtype: torch.dtype) -> torch.TypedStorage:
    return torch.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)
