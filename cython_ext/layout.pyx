# cython: language_level=3
"""What lies where in a slot: a batch is a tree, a plan of its nodes, and the bytes of its leaves.

Walking a batch gives three things:

    plan      its nodes in order: one token a node (see below).  The same for every batch of one shape of tree.
    leaves    plain CPU tensors and numpy arrays: their elements go into the slot as they are
    objects   everything else: numbers, strings, None, what only pickle understands

The plan is pickled once for each tree that a worker has not met before; its bytes are then copied into the slot with
every batch, and the trainer reads them when it meets the plan's number for the first time.  So no batch pays for
pickling its structure, and nothing is lost when a worker or a batch is.

A token is
    torch.dtype         a tensor leaf
    numpy.dtype         an array leaf
    None                an object
    (dict, keys)        a dict with these str keys; its values follow
    (list, n), (tuple, n), (a namedtuple class, n)      n children follow
    (a class, names)    an instance whose whole state is its __dict__, with these names; the values follow
    (Shell, n)          in chunks: an object that says what n children are put into, and these follow; see shells.py
    (Again, k)          in chunks: leaf k once more

In the slot: leaves, then objects.  In the area of the batch's entry: meta, then plan.  Meta is 64-bit words: the plan's
number, and for each leaf its offset, its number of dimensions, and these; where its elements lie in another order than
row-major (channels_last, say), the number of dimensions is given as its complement (~n), and the strides follow, in
elements.  It repeats from batch to batch when sizes do.  Objects are pickled, with a table of offsets and sizes for the
pickle and the buffers beside it.

A batch in chunks is written by several workers at once, who do not speak with one another.  Each lays out the whole
batch, as if all rows were like its own, and writes its rows into that: where they are alike, so is the meta, and where
they are not, it is an error that the trainer finds when it compares.  Its objects, rows of strings, say, and shells, lie
in the area of the chunk's entry, behind the plan.
"""

import copyreg
import reprlib
import struct
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from itertools import chain
from multiprocessing.reduction import ForkingPickler

cimport cython
from cpython.buffer cimport Py_buffer, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport int64_t, uint64_t

from dlpack cimport (
    DLPACK_COMPLEX,
    dlpack_api,
    dlpack_bytes,
    dlpack_data,
    dlpack_describe,
    dlpack_drop,
    dlpack_dtype,
    dlpack_in,
    dlpack_is_contiguous,
    dlpack_make,
    dlpack_make_older,
    dlpack_managed,
    dlpack_may_be_negated,
    dlpack_read,
    dlpack_read_older,
    dlpack_tensor,
)

import numpy
import torch

from shmloader.batch import objects
from shmloader.batch import shells
from shmloader._gather import copy_bytes, stack_rows
from shmloader._ring import overwritten
from shmloader._torch import ExceptionWrapper, collate_tensor_fn, dlpack_c_api
from shmloader.batch.shells import ATOMS as PLAIN
from shmloader.batch.shells import Again, Holed, Shell

cdef extern from "Python.h":
    const Py_ssize_t PY_SSIZE_T_MAX

cdef const dlpack_api *dlpack = dlpack_in(dlpack_c_api())

cdef object Tensor = torch.Tensor, Array = numpy.ndarray, TorchDtype = torch.dtype, NumpyDtype = numpy.dtype
cdef object strided = torch.strided, empty = torch.empty, stack = torch.stack
cdef object from_dlpack = torch.from_dlpack, uint8 = torch.uint8
cdef tuple DTYPES = (TorchDtype, NumpyDtype)            # the tokens of leaves
cdef frozenset ATOMS = PLAIN

cdef enum:
    DEEPEST = 500       # nesting; C has no limit of its own, it would run off its stack
    MANY = 65536        # bytes; fewer have too few pages to save anything on
    MOST_PLANS = 1024   # plans and recipes remembered: a tree that never repeats must not fill the memory


class MetTwice(Exception):
    """A batch holds the same object in two places: only pickle keeps it one."""


cpdef object tensor_over(object buffer, object dtype, Py_ssize_t at, tuple shape, tuple strides=None):
    """A tensor over a buffer, with a storage of its own that ends where the tensor ends, and keeps the buffer alive.

    Strides are in elements, and leave no gaps; None: row-major.
    """
    cdef unsigned int word = in_dlpack(dtype)
    if word and dlpack:
        return made_over(buffer, word, at, shape, strides)
    cdef object count = 1       # an object: it cannot wrap
    for side in shape:
        count *= side
    if count == 0:
        return empty(shape, dtype=dtype)
    if word:
        return made_over(buffer, word, at, shape, strides)
    flat = made_over(buffer, in_dlpack(uint8), at, (count * dtype.itemsize,), None).view(dtype)
    return flat.view(shape) if strides is None else flat.as_strided(shape, strides)


cdef dict IN_DLPACK = {}    # torch's dtypes -> as DLPack has them: code, bits and lanes in one number; 0: not at all


cdef unsigned int in_dlpack(object dtype) except? 0:
    cdef object word = IN_DLPACK.get(dtype)
    if word is None:
        word = IN_DLPACK[dtype] = asked_for(dtype)
    return word


cdef object asked_for(object dtype):
    """A dtype as DLPack has it, if that comes back as the same: those of less than a byte do not."""
    cdef dlpack_tensor one
    with suppress(RuntimeError, BufferError, NotImplementedError):
        tensor = empty(1, dtype=dtype)
        capsule = None if dlpack else tensor.__dlpack__()
        if dlpack_read(dlpack, tensor, &one) or capsule is not None and dlpack_read_older(capsule, &one) == 0:
            word = one.dtype.code | one.dtype.bits << 8 | one.dtype.lanes << 16
            if made_over(bytearray(tensor.nbytes), word, 0, (1,), None).dtype is dtype:
                return word
    return 0


cdef object made_over(object buffer, unsigned int word, Py_ssize_t at, tuple shape, tuple strides):
    """A tensor by DLPack, in half the time of numpy.ndarray and from_numpy, and an eighth of frombuffer and view."""
    cdef dlpack_dtype dtype
    cdef dlpack_managed *managed
    cdef dlpack_tensor *tensor
    cdef Py_buffer view
    cdef Py_ssize_t k, sides = len(shape)
    cdef uint64_t expected = 1  # it may wrap where another side is 0
    cdef size_t bytes
    dtype.code, dtype.bits, dtype.lanes = word & 0xFF, word >> 8 & 0xFF, word >> 16
    PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
    managed = dlpack_describe(dlpack, buffer, <char *>view.buf + at, dtype, sides)
    PyBuffer_Release(&view)     # the bytes stay where they are as long as the buffer lives, which the tensor sees to
    if managed == NULL:
        raise MemoryError
    try:
        tensor = &managed.tensor
        for k in range(sides - 1, -1, -1):
            tensor.shape[k] = shape[k]
            if strides is None:
                tensor.strides[k] = <int64_t>expected
            else:
                tensor.strides[k] = strides[k]
            expected *= <uint64_t>max(tensor.shape[k], 1)
        bytes = dlpack_bytes(tensor)
        if at < 0 or bytes > <size_t>view.len or at > view.len - <Py_ssize_t>bytes:
            raise overwritten("the place of a leaf", f"{at}, of {bytes} bytes", f"in {view.len} bytes")
    except:
        dlpack_drop(managed)
        raise
    return dlpack_make(dlpack, managed) if dlpack else dlpack_make_older(from_dlpack, managed)


cdef object array_over(object buffer, object dtype, Py_ssize_t at, tuple shape, tuple strides):
    if strides is None:
        return Array(shape, dtype, buffer, at)
    return Array(shape, dtype, buffer, at, tuple([side * dtype.itemsize for side in strides]))


cdef tuple other_order(object leaf):
    """The strides, in elements, of a leaf whose elements fill their memory without gaps, but not in row-major order.

    None where there are gaps or overlaps: then its elements are copied out in row-major order.
    """
    cdef tuple shape = tuple(leaf.shape)
    cdef tuple strides = leaf.stride() if type(leaf) is Tensor else tuple([b // leaf.itemsize for b in leaf.strides])
    cdef Py_ssize_t expected = 1
    for stride, side in sorted(zip(strides, shape)):
        if side != 1:
            if stride != expected:
                return None
            expected *= side
    return strides


cdef bint is_dense(object tensor):
    """Whether a tensor is its elements: on the CPU, strided, and nothing between them and their bytes."""
    cdef dlpack_tensor _
    if dlpack_read(dlpack, tensor, &_):
        return True
    return tensor.layout is strided and tensor.is_cpu and not tensor.is_nested and not tensor.is_quantized


# ------------------------------------------------------------------------------------------------------------ walking


def walk(batch):
    """Take a batch apart into its plan, its leaves and its objects."""
    cdef list plan = [], leaves = [], others = []
    try:
        descend(batch, plan, leaves, others, set(), 0)
    except (MetTwice, RecursionError):
        return (None,), [], [batch]
    return tuple(plan), leaves, others


cdef int descend(object node, list plan, list leaves, list others, set met, int depth) except -1:
    cdef object kind = type(node), child
    if depth > DEEPEST:
        raise RecursionError
    if kind is Tensor:
        once(node, met)
        if not node.requires_grad and is_dense(node):
            plan.append(node.dtype)
            leaves.append(node)
            return 0
    elif kind in ATOMS:
        pass
    elif kind is dict:
        once(node, met)
        if node and all_of_str(node):
            plan.append((dict, tuple(node)))
            for child in (<dict>node).values():
                descend(child, plan, leaves, others, met, depth + 1)
            return 0
    elif kind is list or kind is tuple:
        if node and not all_atoms(node):
            once(node, met)
            plan.append((kind, len(node)))
            for child in node:
                descend(child, plan, leaves, others, met, depth + 1)
            return 0
    elif kind is Array:
        once(node, met)
        if node.dtype.kind in "biufc" and node.dtype.isnative:
            plan.append(node.dtype)
            leaves.append(node)
            return 0
    elif is_namedtuple(kind):
        once(node, met)
        plan.append((kind, len(node)))
        for child in node:
            descend(child, plan, leaves, others, met, depth + 1)
        return 0
    elif is_its_dict(kind):
        once(node, met)
        plan.append((kind, tuple(node.__dict__)))
        for child in node.__dict__.values():
            descend(child, plan, leaves, others, met, depth + 1)
        return 0
    else:
        once(node, met)
    plan.append(None)
    others.append(node)
    return 0


cdef int once(object node, set met) except -1:
    cdef object key = <size_t><void *>node
    if key in met:
        raise MetTwice
    met.add(key)
    return 0


cdef bint all_of_str(dict node):
    for key in node:
        if type(key) is not str:
            return False
    return True


cdef bint all_atoms(object node):
    for child in node:
        if type(child) not in ATOMS:
            return False
    return True


@cache
def is_namedtuple(kind):
    """A class that collections.namedtuple or typing.NamedTuple made, with nothing added to how it pickles."""
    return (
        issubclass(kind, tuple)
        and kind.__bases__ == (tuple,)
        and hasattr(kind, "_fields")
        and hasattr(kind, "_make")
        and "__reduce__" not in vars(kind)
        and "__reduce_ex__" not in vars(kind)
        and kind not in copyreg.dispatch_table
        and kind not in ForkingPickler._extra_reducers
    )


@cache
def is_its_dict(kind):
    """Whether pickle would take an instance apart into its __dict__ and nothing else: dataclasses, plain classes."""
    if type(kind) is not type or kind in copyreg.dispatch_table or kind in ForkingPickler._extra_reducers:
        return False
    for base in kind.__mro__[:-1]:
        if not base.__flags__ & 1 << 9 or vars(base).get("__slots__"):      # Py_TPFLAGS_HEAPTYPE: written in Python
            return False
    own = ("__setstate__", "__getnewargs__", "__getnewargs_ex__", "__getinitargs__")
    return (
        kind.__dictoffset__ != 0
        and kind.__new__ is object.__new__
        and kind.__reduce__ is object.__reduce__
        and kind.__reduce_ex__ is object.__reduce_ex__
        and getattr(kind, "__getstate__", None) is getattr(object, "__getstate__", None)
        and not any(hasattr(kind, name) for name in own)
    )


class ChunkWalk:
    """Walks through a chunk that has more than walk() makes a plan of that can be cut: see shells.py.

    It gives the same tokens, and those of shells.

    Args:
        count: samples of the chunk.
        first: whether it is the batch's first, which sends what its shells are.
        made: by id, the containers that default_collate has made of it.
    """

    def __init__(self, count, first, made):
        self.count, self.first, self.made = count, first, made
        self.plan, self.leaves, self.others, self.met = [], [], [], {}
        self.depth = 0

    def whole(self, batch):
        self.node(batch)
        return tuple(self.plan), self.leaves, self.others

    def node(self, node):
        kind = type(node)
        made = self.made.get(id(node))
        if made is not None and made.is_untouched():
            self.others.append(made.shell)
            self.parts((Shell, len(made.parts)), made.parts)
        elif isinstance(node, Tensor):
            self.tensor(node)
        elif kind is Array and node.dtype.kind in "biufc" and node.dtype.isnative:
            self.leaf(node, node)
        elif node is None or kind in (dict, list, tuple) and not node or self.is_rows(node):
            self.plan.append(None)
            self.others.append(node)
        elif kind is dict and all_of_str(node):
            self.parts((dict, tuple(node)), node.values())
        elif kind is list or kind is tuple or is_namedtuple(kind):
            self.parts((kind, len(node)), node)
        elif is_its_dict(kind):
            self.parts((kind, tuple(node.__dict__)), node.__dict__.values())
        elif shells.is_container(node) and not isinstance(node, shells.TEXTS):
            self.holed(node, *shells.items_of(node))
        else:
            raise self.cannot(f"a {shells.named(node)} ({reprlib.repr(node)})")

    def parts(self, token, parts):
        self.plan.append(token)
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.cannot(f"what holds itself, or is nested more than {DEEPEST} deep")
        for part in parts:
            self.node(part)
        self.depth -= 1

    def is_rows(self, node):
        """Whether this is one object for each sample."""
        if type(node) is Array:
            return node.ndim > 0 and len(node) == self.count
        return (
            type(node) in (list, tuple)
            and len(node) == self.count
            and all([shells.is_one_object(one) and id(one) not in self.made for one in node])
        )

    def tensor(self, tensor):
        if type(tensor) is Tensor and not tensor.requires_grad and is_dense(tensor):
            self.leaf(tensor, tensor)
            return
        elements = objects.elements_of(tensor)
        if elements is None:
            raise self.cannot(f"a {shells.named(tensor)} that is more than its elements, of layout {tensor.layout} on "
                              f"{tensor.device}")
        self.others.append(Holed(None, objects.dump_around(tensor, [elements])[0] if self.first else None))
        self.plan.append((Shell, 1))
        self.leaf(tensor, elements)

    def leaf(self, node, elements):
        before = self.met.setdefault(id(node), len(self.leaves))
        if before < len(self.leaves):
            self.plan.append((Again, before))
        else:
            self.plan.append(elements.dtype)
            self.leaves.append(elements)

    def holed(self, node, keys, items):
        pickled = None
        if self.first:
            pickled, met = objects.dump_around(node, items)
            if any([item is not None and id(item) not in met for item in items]):
                raise self.cannot(f"a {shells.named(node)}, which is not pickled with the items that it has")
        self.others.append(Holed(keys, pickled))
        self.parts((Shell, len(items)), items)

    def cannot(self, what):
        return RuntimeError(f"chunk_size needs a collate function that gives rows, and for {self.count} samples it gave "
                            f"{what}: {shells.WHAT_CAN}")


# ------------------------------------------------------------------------------------------------------------ writing


cdef class Writer:
    """Writes batches into the payloads that a worker claims; one a worker, for it knows the plans it has written.

    Args:
        ring: the worker's side.
        grow: called with the bytes that the current payload must have pages for.
        grow_area: the same for the area of the current entry.
    """
    cdef object ring, grow, grow_area
    cdef readonly object containers     # that default_collate makes of a chunk
    cdef dict plans                     # plan -> (its number, its pickle)
    cdef Py_ssize_t count, row, rows    # of a chunk: its samples, which row is its first, of how many; rows 0: no chunk
    cdef dict stacked                   # of a chunk: the address of what was stacked -> where its leaf begins
    cdef bint apart                     # a chunk's tensors are not to lie in the slot, though their rows do
    cdef unsigned long thread           # the one that claims and publishes

    def __init__(self, ring, grow, grow_area):
        self.ring, self.grow, self.grow_area = ring, grow, grow_area
        self.containers = shells.Containers()
        self.plans = {}
        self.thread = PyThread_get_thread_ident()

    cdef Py_ssize_t allocate(self, Py_ssize_t size) except -1:
        cdef Py_ssize_t at = self.ring.allocate(size)
        while at < 0:
            self.grow(self.ring.used + 128 + size)
            at = self.ring.allocate(size)
        return at

    cdef int about_to_write(self, Py_ssize_t at, Py_ssize_t bytes) except -1:
        """Map these bytes of the payload, if that is worth it."""
        if bytes > MANY:
            self.ring.map_written(at, bytes)
        return 0

    def begin(self, Py_ssize_t count) -> None:
        """A sequence of so many samples was claimed."""
        self.count, self.row, self.rows = count, self.ring.row, self.ring.rows
        if self.rows:
            self.stacked = {}
            self.containers.begin(self.row == 0)
            if count < 1 or self.row + count > self.rows:
                raise overwritten("a chunk's rows", f"{self.row} to {self.row + count}", f"in {self.rows}")

    def keep_apart(self) -> None:
        """From now on give tensors of their own away.  A chunk's rows still lie where the other workers expect them."""
        self.apart = True

    def collate(self, batch, *, collate_fn_map=None):
        """Do what torch's collate_tensor_fn does, into the current payload if it can lie there."""
        stacked = self.stack(batch)
        return collate_tensor_fn(batch, collate_fn_map=collate_fn_map) if stacked is None else stacked

    cdef stack(self, batch):
        """Stack tensors into the current payload, as torch.stack would; None for what cannot lie there.

        Nothing of another thread can: the payload may be published while that one asks for pages, and what it keeps of
        the next one would be a second payload that this worker keeps.
        """
        cdef object first = batch[0], out
        cdef elements row
        cdef tuple shape
        cdef Py_ssize_t at, bytes
        if type(first) is not Tensor or self.ring.current < 0 or PyThread_get_thread_ident() != self.thread:
            return None
        if not is_dense(first):
            return None
        if not isinstance(batch, (list, tuple)):    # torch.stack would not have it, and says so better
            return None
        if self.rows:
            return self.stack_chunk(batch)
        if self.apart:
            return None
        shape = look_at(first, &row)
        if row.bytes > PY_SSIZE_T_MAX // len(batch):    # of expanded tensors; torch.stack says it better
            return None
        bytes = len(batch) * row.bytes
        at = self.allocate(bytes)
        self.about_to_write(at, bytes)
        out = tensor_over(self.ring.buffer(), first.dtype, at, (len(batch), *shape))
        if bytes and stack_rows(batch if type(batch) is list else list(batch), out.data_ptr()):
            return out
        for tensor in batch:
            if not isinstance(tensor, Tensor):  # torch says it its own way
                return None
        return stack(batch, 0, out=out)

    cdef stack_chunk(self, batch):
        """Stack the rows of a chunk where they belong in the whole batch."""
        cdef object first = batch[0], out, row
        cdef Py_ssize_t k, at, size = first.nbytes
        if len(batch) != self.count or size > PY_SSIZE_T_MAX // self.rows:
            return None
        for k in range(1, self.count):
            row = batch[k]
            if not isinstance(row, Tensor):
                return None
            if row.shape != first.shape:
                raise unequal(first.shape, self.row, row.shape, self.row + k)
        at = self.allocate(self.rows * size)
        self.about_to_write(at + self.row * size, self.count * size)
        out = tensor_over(self.ring.buffer(), first.dtype, at + self.row * size, (self.count, *first.shape))
        if not size or not stack_rows(batch if type(batch) is list else list(batch), out.data_ptr()):
            stack(batch, 0, out=out)
        if self.apart:
            out = out.clone()
        self.stacked[out.data_ptr()] = at
        return out

    def write(self, batch) -> None:
        """Put a batch into the current payload.  What already lies there, because it was stacked there, stays."""
        cdef tuple plan
        cdef list leaves, others, words
        cdef object leaf, known
        cdef bytes beside = b""
        if self.rows:
            plan, leaves, others = self.walk_chunk(batch)
        else:
            plan, leaves, others = walk(batch)
        known = self.plans.get(plan)
        if known is None:
            known = self.learn(plan)
        words = [known[0]]
        if self.rows:
            for leaf in leaves:
                self.place_rows(leaf, words)
            if others:
                beside = objects.dump_whole(others)
        else:
            for leaf in leaves:
                self.place(leaf, words)
        pickled = objects.dump(others) if others and not self.rows else None
        cdef Py_ssize_t wanted = self.ring.describe(words, known[1], beside)
        if wanted:
            self.grow_area(wanted)
            self.ring.describe(words, known[1], beside)
        if pickled is not None:
            self.write_objects(pickled[0], pickled[1])

    cdef tuple walk_chunk(self, batch):
        cdef dict made = self.containers.made
        self.containers.made = {}       # what is held here would count as kept: NOTE [ Slot ring ]
        if type(batch) is ExceptionWrapper:     # whole, so that it is known for what it is
            return (None,), [], [batch]
        cdef tuple walked = walk(batch)
        if not made and all([self.is_plain(other) for other in walked[2]]):
            return walked
        return ChunkWalk(self.count, self.row == 0, made).whole(batch)

    cdef bint is_plain(self, object other):
        """Whether an object of walk()'s is the rows of a chunk, or nothing."""
        if type(other) is list or type(other) is tuple:
            return not other or len(other) == self.count and all_atoms(other)
        return other is None or type(other) is dict and not other

    cdef int place(self, object leaf, list words) except -1:
        """Have a leaf's elements in the payload, and add to the meta where they are and in which shape."""
        cdef elements of
        cdef tuple shape = look_at(leaf, &of), strides = None
        cdef Py_ssize_t at
        if not of.dense:
            strides = other_order(leaf)
            of.dense = strides is not None
        at = self.ring.offset_of(of.address, of.bytes) if of.dense and not of.lazy else -1
        if at < 0:
            at = self.allocate(of.bytes)
            self.copy_in(leaf, &of, at, shape, strides)
        note(words, at, shape, strides)
        return 0

    cdef int place_rows(self, object leaf, list words) except -1:
        """The same for the rows of a chunk; the meta tells of the whole batch."""
        cdef elements of
        cdef tuple shape = look_at(leaf, &of), strides = None
        cdef Py_ssize_t at, size
        if not shape or shape[0] != self.count:
            raise RuntimeError(
                f"chunk_size needs a collate function that gives rows, and for {self.count} samples it gave a tensor "
                f"of shape {list(shape)}: the first dimension must be theirs"
            )
        size = of.bytes // self.count
        if not of.dense:
            strides = other_order(leaf)
            if strides is not None:             # rows lie one after the other, or else they are laid so
                strides = (size // leaf.itemsize, *strides[1:]) if is_outermost(strides, shape) else None
            of.dense = strides is not None
        at = self.stacked.get(of.address, -1) if of.dense and not of.lazy else -1
        if at < 0:
            at = self.allocate(self.rows * size if size <= PY_SSIZE_T_MAX // self.rows else PY_SSIZE_T_MAX)
            self.copy_in(leaf, &of, at + self.row * size, shape, strides)
        note(words, at, (self.rows, *shape[1:]), strides)
        return 0

    cdef int copy_in(self, object leaf, elements *of, Py_ssize_t at, tuple shape, tuple strides) except -1:
        """Copy a leaf's elements to offset `at` of the payload; in the order they lie in, if that has no gaps."""
        if of.address == 0 and of.bytes:
            raise RuntimeError(f"a tensor of {of.bytes} bytes, of shape {list(shape)}, has no memory: its storage was "
                               f"resized to 0, or torch made none for it; give a clone() from when it had")
        self.about_to_write(at, of.bytes)
        if of.dense and not of.lazy:
            copy_bytes(self.ring.address(at), of.address, of.bytes)
        elif type(leaf) is Tensor:
            tensor_over(self.ring.buffer(), leaf.dtype, at, shape, strides).copy_(leaf)
        else:
            self.ring.write(at, leaf.tobytes())
        return 0

    cdef write_objects(self, bytes pickled, list buffers):
        cdef list words = []
        for data in (pickled, *buffers):
            raw = memoryview(data) if type(data) is bytes else data.raw()
            words += [self.allocate(raw.nbytes), raw.nbytes]
            self.ring.write(words[-2], raw)
        table = struct.pack(f"{len(words)}q", *words)
        at = self.allocate(len(table))
        self.ring.write(at, table)
        self.ring.point_to_objects(at, len(table))

    cdef tuple learn(self, tuple plan):
        if len(self.plans) >= MOST_PLANS:
            self.plans.clear()
        pickled = objects.dump(plan)[0]
        # The same plan has the same number, whichever worker met it.  63 bits of a hash: two of a million plans share
        # one with a probability of 1 in 10 million.
        known = int.from_bytes(blake2b(pickled, digest_size=8).digest(), "little") >> 1, pickled
        self.plans[plan] = known
        return known


cdef struct elements:   # of a leaf
    uint64_t address
    Py_ssize_t bytes
    bint dense          # row-major, without gaps
    bint lazy           # they are the conjugates, or the negatives, of what lies there


cdef tuple look_at(object leaf, elements *of):
    """Where and how a leaf's elements lie; returns its shape."""
    cdef dlpack_tensor tensor
    cdef bint is_tensor = type(leaf) is Tensor
    if is_tensor and dlpack_read(dlpack, leaf, &tensor):
        of.address, of.bytes = <uint64_t>dlpack_data(&tensor), dlpack_bytes(&tensor)
        of.dense = dlpack_is_contiguous(&tensor)
        of.lazy = dlpack_may_be_negated(&tensor) and leaf.is_neg()
        of.lazy |= tensor.dtype.code == DLPACK_COMPLEX and leaf.is_conj()
        return tuple([tensor.shape[k] for k in range(tensor.ndim)])
    of.address = leaf.data_ptr() if is_tensor else leaf.ctypes.data
    of.bytes = leaf.nbytes
    of.dense = leaf.is_contiguous() if is_tensor else leaf.flags.c_contiguous
    of.lazy = is_tensor and (leaf.is_neg() or leaf.is_conj())
    return tuple(leaf.shape)


cdef bint is_outermost(tuple strides, tuple shape):
    """Whether the first dimension is the one whose elements lie farthest apart."""
    return all([side == 1 or stride < strides[0] for stride, side in zip(strides[1:], shape[1:])]) or shape[0] == 1


cdef int note(list words, Py_ssize_t at, tuple shape, tuple strides) except -1:
    words.append(at)
    words.append(len(shape) if strides is None else ~len(shape))
    words.extend(shape)
    if strides is not None:
        words.extend(strides)
    return 0


cdef object unequal(object shape, Py_ssize_t at, object other, Py_ssize_t other_at):
    """torch.stack's own words, with the places in the whole batch."""
    return RuntimeError(f"stack expects each tensor to be equal size, but got {list(shape)} at entry {at} and "
                        f"{list(other)} at entry {other_at}")


# ------------------------------------------------------------------------------------------------------------ reading


cdef class Reader:
    """Reads what Writers wrote; one a trainer, for it knows the plans and sizes it has met.

    Args:
        clone: gives a tensor memory of its own, where a batch is copied.
    """
    cdef dict plans                     # number -> (plan, build)
    cdef dict recipes                   # meta -> Recipe
    cdef object clone

    def __init__(self, clone=Tensor.clone):
        self.plans, self.recipes, self.clone = {}, {}, clone

    def read(self, lease, bint copy):
        """The batch over a lease's payload, or in memory of its own.

        Args:
            lease: exports the payload's bytes; tensors over it keep it alive.
            copy: give each leaf memory of its own; the lease is then free to die when this returns.
        """
        cdef Recipe recipe
        cdef tuple table
        if lease.rows:
            return self.read_chunks(lease, copy)
        recipe = self.recipe_of(lease, 0)
        table = lease.objects(recipe.end)
        leaves = recipe.leaves_over(lease, self.clone if copy else None)
        return recipe.build(leaves, read_objects(lease, table[0], table[1], copy) if table[1] else None)

    cdef object read_chunks(self, lease, bint copy):
        """The batch, if the chunks agree on what it is; the exception of the first one that has come to one."""
        cdef Recipe whole = self.recipe_of(lease, 0), recipe
        cdef list parts = [], others
        cdef Py_ssize_t chunk
        for chunk in range(lease.chunks):
            recipe = self.recipe_of(lease, chunk)
            pickled = lease.chunk_objects(chunk, recipe.end)
            others = objects.load(pickled, ()) if pickled else []
            if len(others) == 1 and type(others[0]) is ExceptionWrapper:
                return others[0]
            if recipe is not whole and recipe.plan != whole.plan:
                raise RuntimeError(
                    f"chunk_size needs samples of one structure and dtype, but got {told(whole.plan)} from entry 0 on, "
                    f"and {told(recipe.plan)} from entry {lease.first_row(chunk)} on"
                )
            if recipe is not whole:
                whole.compare(recipe, chunk, lease)
            parts.append(others)
        return whole.build(whole.leaves_over(lease, self.clone if copy else None), joined(parts))

    cdef Recipe recipe_of(self, lease, Py_ssize_t chunk):
        cdef bytes meta = lease.meta(chunk)
        cdef Recipe recipe = self.recipes.get(meta)
        if recipe is None:
            recipe = self.work_out(lease, chunk, meta)
            if len(self.recipes) >= MOST_PLANS:
                self.recipes.clear()
            self.recipes[meta] = recipe
        return recipe

    cdef Recipe work_out(self, lease, Py_ssize_t chunk, bytes meta):
        cdef Py_ssize_t count = len(meta) // 8, k = 1, sides
        cdef bint strided
        cdef tuple words = struct.unpack(f"{count}q", meta[:8 * count]), shape, strides
        cdef Recipe recipe = Recipe.__new__(Recipe)
        if count < 1:
            raise overwritten("the size of a batch's description", len(meta), "8 or more")
        number = words[0]
        if number not in self.plans:
            if len(self.plans) >= MOST_PLANS:
                self.plans.clear()
            plan = objects.load(lease.plan(chunk), ())
            self.plans[number] = plan, Assembly(plan).whole()
        recipe.plan, recipe.build = self.plans[number]
        recipe.leaves, recipe.end = [], 0   # Python's ints, and in end_of(): what was overwritten may be any 64 bits
        for token in recipe.plan:
            if isinstance(token, DTYPES):
                if count - k < 2:
                    raise overwritten("the number of words that a batch's plan asks for", k + 2, count)
                at, sides, strides = words[k], words[k + 1], None
                strided = sides < 0
                if strided:
                    sides = ~sides
                k += 2
                if sides > (count - k) // (2 if strided else 1):
                    raise overwritten("a leaf's number of dimensions", sides, (count - k) // (2 if strided else 1))
                shape = words[k:k + sides]
                k += sides
                if strided:
                    strides = words[k:k + sides]
                    k += sides
                recipe.end = max(recipe.end, end_of(token, at, shape, strides, len(memoryview(lease))))
                recipe.leaves.append((token, at, shape, strides))
        if k != count:
            raise overwritten("the number of words in a batch's description", count, k)
        return recipe


@cython.final
cdef class Recipe:
    """How a batch is made of what lies in its payload."""
    cdef object plan, build
    cdef list leaves                    # (dtype, offset, shape, strides) of each
    cdef object end                     # where the last of them ends

    cdef list leaves_over(self, lease, object clone):
        cdef list leaves = []
        cdef object token, at, shape, strides, leaf
        for token, at, shape, strides in self.leaves:
            if type(token) is TorchDtype:
                leaf = tensor_over(lease, token, at, shape, strides)
                leaves.append(leaf if clone is None else copied(leaf, clone))
            else:
                leaf = array_over(lease, token, at, shape, strides)
                leaves.append(leaf if clone is None else leaf.copy("K"))
        return leaves

    cdef int compare(self, Recipe other, Py_ssize_t chunk, lease) except -1:
        """Raise where the leaves of another chunk, of the same plan, are not where this one says they are."""
        for (_, at, shape, strides), (_, other_at, other_shape, other_strides) in zip(self.leaves, other.leaves):
            if shape != other_shape:
                raise unequal(shape[1:], 0, other_shape[1:], lease.first_row(chunk))
            if at != other_at or strides != other_strides:
                raise RuntimeError(
                    f"chunk_size needs samples that are laid out alike, but a tensor of {list(shape)} lies at {at} "
                    f"with strides {strides} for those from entry 0 on, and at {other_at} with strides {other_strides} "
                    f"for those from entry {lease.first_row(chunk)} on"
                )
        return 0


cdef str told(plan):
    """A plan, for people: its first nodes."""
    return reprlib.repr([token if isinstance(token, DTYPES) else "object" if token is None else
                         f"{token[0].__name__} of {token[1]}" for token in plan])


cdef list joined(list parts):
    """The objects of all chunks: each is rows, one chunk's behind the other's, or a shell, or the same and empty."""
    cdef list whole = []
    for rows in zip(*parts):
        kind = type(rows[0])
        if issubclass(kind, Shell):
            for other in rows:
                if other.keys != rows[0].keys:
                    raise RuntimeError(f"chunk_size needs samples of one structure, but got the keys "
                                       f"{reprlib.repr(rows[0].keys)} and {reprlib.repr(other.keys)}")
            whole.append(rows[0])
        elif len(rows) == 1 or all([other is None for other in rows]):
            whole.append(rows[0])
        elif kind is Array and all([type(other) is Array for other in rows]):
            whole.append(numpy.concatenate(rows, dtype=kept_dtype(rows)))
        elif kind in (dict, list, tuple) and all([type(other) is kind and not other for other in rows]):
            whole.append(rows[0])
        elif kind in (list, tuple) and all([type(other) is kind for other in rows]):
            whole.append(kind(chain.from_iterable(rows)))
        else:
            kinds = sorted({type(other).__name__ for other in rows})
            raise RuntimeError(f"chunk_size needs rows of one kind, but chunks gave {' and '.join(kinds)}")
    return whole


cdef object kept_dtype(tuple rows):
    """The dtype that all have, which numpy would give in native order; None where it is to find one."""
    dtype = rows[0].dtype
    return dtype if all([other.dtype == dtype for other in rows]) else None


cdef object end_of(token, at, tuple shape, tuple strides, limit):
    """Where in the slot a leaf ends; raises where it is not what a Writer places in these many bytes."""
    cdef object size = token.itemsize, count = 1, last = 0, side, stride
    if type(token) is not TorchDtype and token.kind not in "biufc":
        raise overwritten("the dtype of a leaf", token, "one of plain numbers")
    for side in shape:
        if side < 0:
            raise overwritten("a side of a leaf", side, "0 or more")
        count *= side
    if strides is not None and count:
        for side, stride in zip(shape, strides):
            if side != 1 and stride < 0:
                raise overwritten("a stride of a leaf", stride, "0 or more")
            last += (side - 1) * stride
        if last != count - 1:   # see other_order()
            raise overwritten("the number of elements that a leaf's strides reach over", last + 1, f"{count}")
    if at < 0 or at + count * size > limit:
        raise overwritten("the place of a leaf", f"{at}, of {count * size} bytes", f"in {limit} bytes")
    return at + count * size


cdef object part_of(whole, at, size, what):
    """These bytes of a slot.  A slice of Python's would be cut short, or count from the end, in silence."""
    if at < 0 or size < 0 or at + size > len(whole):
        raise overwritten(f"the place of a {what}", f"{at}, of {size} bytes", f"in {len(whole)} bytes")
    return whole[at:at + size]


cdef object copied(object tensor, object clone):
    try:
        return clone(tensor)
    except RuntimeError:    # dtypes of less than a byte: a NotImplementedError, and not even that in torch 2.6
        if tensor.dtype.itemsize != 1:
            raise
        return clone(tensor.view(torch.uint8)).view(tensor.dtype)


cdef list read_objects(lease, Py_ssize_t at, Py_ssize_t size, bint copy):
    whole = memoryview(lease)
    if size % 16:
        raise overwritten("the size of the table of a batch's pickled leaves", size, "a multiple of 16")
    words = struct.unpack(f"{size // 8}q", whole[at:at + size])
    parts = [part_of(whole, words[k], words[k + 1], "pickled leaf") for k in range(0, len(words), 2)]
    beside = [bytearray(part) for part in parts[1:]] if copy else parts[1:]
    return objects.load(parts[0], beside)


class Assembly:
    """Reads a plan node by node, and makes the function that puts a batch together from leaves and objects."""

    def __init__(self, plan):
        self.plan = plan
        self.node = self.leaf = self.other = 0

    def whole(self):
        """The function for the plan, which must be one tree and nothing behind it."""
        build = self.next()
        if self.node != len(self.plan):
            raise overwritten("the length of a plan", len(self.plan), self.node)
        return build

    def next(self):
        token = self.plan[self.node]
        self.node += 1
        if token is None:
            other = self.other
            self.other += 1
            return lambda leaves, others: others[other]
        if isinstance(token, DTYPES):
            leaf = self.leaf
            self.leaf += 1
            return lambda leaves, others: leaves[leaf]
        return self.container(*token)

    def container(self, kind, what):
        if kind is Again:
            if not 0 <= what < self.leaf:
                raise overwritten("the number of a leaf that was met before", what, f"below {self.leaf}")
            return lambda leaves, others: leaves[what]
        shell = self.other
        self.other += kind is Shell
        count = what if isinstance(what, int) else len(what)
        if not 0 <= count <= len(self.plan) - self.node:
            raise overwritten("the number of a node's children", count, len(self.plan) - self.node)
        if kind is Shell:
            children = [self.next() for _ in range(count)]
            return lambda leaves, others: others[shell].around([child(leaves, others) for child in children])
        make = maker(kind, what)
        if all(isinstance(token, DTYPES) for token in self.plan[self.node:self.node + count]):
            start, stop = self.leaf, self.leaf + count      # one slice, and not a call for each leaf
            self.leaf, self.node = stop, self.node + count
            return lambda leaves, others: make(leaves[start:stop])
        children = [self.next() for _ in range(count)]
        return lambda leaves, others: make([child(leaves, others) for child in children])


def maker(kind, what):
    """How a container is made of its children."""
    if kind is list:
        return lambda children: children
    if kind is tuple:
        return tuple
    if isinstance(what, int):
        return kind._make
    if kind is dict:
        return lambda children: dict(zip(what, children))

    def instance(children):
        made = object.__new__(kind)
        made.__dict__.update(zip(what, children))
        return made

    return instance
