# cython: language_level=3
"""Slot to batch: tensors over the slot, or copies.  It joins chunks, which must agree in structure, dtype and shape.
It checks each place and size that a worker wrote.  batch_writer.pyx describes the layout.

NOTE [ Small leaves ]

Many loops keep the labels of each batch and drop the images.  A label over the slot would hold all of it, and once
`spare_slots` slots are held, every further batch is copied.  So the small leaves of a lent batch are copied into memory
of their own.  A label that is kept then holds no slot.

    1. A leaf is small if it has at most SMALL bytes, and at most a PART-th of the batch's.  All small leaves together
       may have four times that.  If they have more, the limit is halved until they have not.  So a batch of many
       leaves of one size stays in the slot, and is not copied bit by bit.
    2. Leaves that share bytes are small together, or not at all.
    3. All small leaves of a batch share one block.  Those that are neighbours in the slot are copied at once, with what
       lies between them.
    4. If slots are page-locked, so is the block, by torch.  torch must know which copies to a device read it, and it
       looks that up by the tensor's storage.  So all tensors of such a block share its storage.
    5. With `device=`, only the thread that copies the batch to the device gets its tensors, so they stay in the slot.
"""

import reprlib
import struct
from itertools import chain
from pickle import loads

cimport cython
from libc.stdint cimport uint64_t

from shmloader.core.batch_tree cimport is_leaf
from shmloader.core.gather cimport copy_bytes
from shmloader.core.lease cimport Lease
from shmloader.core.ring cimport overwritten
from shmloader.core.tensors cimport array_over, tensor_in, tensor_over, unequal

import numpy
import torch

from shmloader.core.batch_tree import Assembly, Shell

cdef extern from "Python.h":
    object PyByteArray_FromStringAndSize(const char *bytes, Py_ssize_t size)    # NULL: it is not filled
    char *PyByteArray_AS_STRING(object array)

cdef object Tensor = torch.Tensor, TorchDtype = torch.dtype, Array = numpy.ndarray, uint8 = torch.uint8

cdef enum:
    MOST_PLANS = 1024   # plans and recipes kept: a tree that never repeats must not fill the memory
    SMALL = 1 << 16     # bytes; NOTE [ Small leaves ]
    PART = 64
    LINE = 64           # where torch's own memory begins; some functions are faster there, or give other last digits


cdef class BatchReader:
    """Reads what Writers wrote.  A trainer has one, which remembers the plans and sizes that it has read.

    Args:
        failure: the class of the object that a failed chunk gives in place of its rows.
        clone: copies a tensor into its own memory, if a batch is copied.
        room: makes a tensor of so many bytes for the small leaves of a lent batch; None: they get plain memory.
        keeps: whether anybody may keep a leaf of a lent batch.  Otherwise, small ones stay in the slot.
    """

    def __init__(self, failure, clone=Tensor.clone, room=None, keeps=True):
        self.plans, self.recipes, self.failure = {}, {}, failure
        self.clone, self.room, self.keeps = clone, room, keeps

    def read(self, Lease lease not None, bint copy):
        """The batch over a lease's payload, or in its own memory.

        Args:
            lease: exports the payload's bytes; tensors over it keep it alive.
            copy: copy each leaf into its own memory; the lease may then die when this returns.
        """
        cdef Recipe recipe
        cdef tuple table
        if lease.rows:
            return self.read_chunks(lease, copy)
        recipe = self.recipe_of(lease, 0)
        table = lease.objects(recipe.end)
        leaves = self.leaves_of(recipe, lease, copy)
        return recipe.build(leaves, read_objects(lease, table[0], table[1], copy) if table[1] else None)

    cdef object read_chunks(self, Lease lease, bint copy):
        """The batch, if all chunks have the same structure; otherwise the exception of the first chunk that failed.

        The first is the one with the lowest first row.
        """
        cdef Recipe whole = self.recipe_of(lease, 0), recipe
        cdef list parts = [], others, order = None
        cdef object failure = None
        cdef int failed = 0, row
        cdef Py_ssize_t chunk
        for chunk in range(lease.chunks):
            recipe = self.recipe_of(lease, chunk)
            pickled = lease.chunk_objects(chunk, recipe.end)
            others = loads(pickled) if pickled else []
            if len(others) == 1 and type(others[0]) is self.failure:
                row = lease.first_row(chunk)
                if failure is None or row < failed:
                    failure, failed = others[0], row
            if failure is not None:
                continue
            if recipe is not whole and recipe.plan != whole.plan:
                raise RuntimeError(
                    f"{cut_by(lease)} needs samples of one structure and dtype, but got {described(whole.plan)} "
                    f"{where(lease, 0)}, and {described(recipe.plan)} {where(lease, chunk)}"
                )
            if recipe is not whole:
                whole.compare(recipe, chunk, lease)
            parts.append(others)
        if failure is not None:
            return failure
        if lease.listed is not None:
            order = list(chain.from_iterable(lease.listed))
        return whole.build(self.leaves_of(whole, lease, copy), joined(parts, order, cut_by(lease)))

    cdef list leaves_of(self, Recipe recipe, Lease lease, bint copy):
        if copy:
            return recipe.copied_leaves(lease, self.clone)
        if lease.bytes != recipe.divided:
            recipe.divide(lease.bytes if self.keeps else 0)
            recipe.divided = lease.bytes
        return recipe.lent_leaves(lease, self.room)

    cdef Recipe recipe_of(self, Lease lease, Py_ssize_t chunk):
        cdef bytes meta = lease.meta(chunk)
        cdef Recipe recipe = self.recipes.get(meta)
        if recipe is None:
            recipe = self.work_out(lease, chunk, meta)
            if len(self.recipes) >= MOST_PLANS:
                self.recipes.clear()
            self.recipes[meta] = recipe
        return recipe

    cdef Recipe work_out(self, Lease lease, Py_ssize_t chunk, bytes meta):
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
            plan = loads(lease.plan(chunk))
            self.plans[number] = plan, Assembly(plan).whole()
        recipe.plan, recipe.build = self.plans[number]
        recipe.divided = -1
        recipe.leaves, recipe.end = [], 0   # Python's ints, also in end_of(): overwritten words may be any 64 bits
        for token in recipe.plan:
            if is_leaf(token):
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
                end = end_of(token, at, shape, strides, lease.bytes)
                recipe.end = max(recipe.end, end)
                recipe.leaves.append((token, at, shape, strides, end))
        if k != count:
            raise overwritten("the number of words in a batch's description", count, k)
        return recipe


@cython.final
cdef class Recipe:
    """How a batch is made from the bytes in its payload."""

    cdef list copied_leaves(self, Lease lease, object clone):
        """The leaves, each in its own memory."""
        cdef list leaves = []
        cdef object token, at, shape, strides
        for token, at, shape, strides, _ in self.leaves:
            if type(token) is TorchDtype:
                leaves.append(copied(tensor_over(lease, token, at, shape, strides), clone))
            else:
                leaves.append(array_over(lease, token, at, shape, strides).copy("K"))
        return leaves

    cdef list lent_leaves(self, Lease lease, object room):
        """The leaves over the slot, and the small ones over their block: NOTE [ Small leaves ]."""
        cdef list leaves = []
        cdef object token, shape, strides, over = lease, block = None, storage = None
        cdef Py_ssize_t at, begins = 0
        cdef bint is_small
        if self.runs:
            if room is None:
                block = PyByteArray_FromStringAndSize(NULL, self.block + LINE)
                begins = self.copy_small(lease, <uint64_t>PyByteArray_AS_STRING(block))
            else:
                block = room(self.block + LINE)
                storage = block.untyped_storage()
                begins = self.copy_small(lease, block.data_ptr())
                block = block.numpy()
        for token, is_small, at, shape, strides in self.lent:
            over = block if is_small else lease
            if is_small:
                at += begins
            if type(token) is not TorchDtype:
                leaves.append(array_over(over, token, at, shape, strides))
            elif is_small and storage is not None:
                leaves.append(tensor_in(storage, token, at, shape, strides))
            else:
                leaves.append(tensor_over(over, token, at, shape, strides))
        return leaves

    cdef Py_ssize_t copy_small(self, Lease lease, uint64_t to) except -1:
        """Copy the small leaves to their block, which is at this address; returns where they begin in it."""
        cdef Py_ssize_t begins = <Py_ssize_t>(-to % LINE), start, at, size
        for start, at, size in self.runs:
            copy_bytes(to + begins + at, <uint64_t>lease.data + start, size)
        return begins

    cdef int divide(self, Py_ssize_t bytes) except -1:
        """Find the leaves that are small in a batch of so many bytes."""
        cdef list places = self.places(), moved = [None] * len(self.leaves), run = None
        cdef Py_ssize_t most = min(SMALL, bytes // PART), start, end, k
        while sum([end - start for start, end, _ in places if end - start <= most]) > bytes // PART * 4:
            most //= 2
        self.runs, self.block = [], 0
        for start, end, group in places if most else ():
            if end - start > most:
                run = None
                continue
            if run is None or start - <Py_ssize_t>run[0] - <Py_ssize_t>run[2] > 2 * LINE:
                run = [start, self.block + (start - self.block) % LINE, 0]
                self.runs.append(run)
            run[2] = end - run[0]
            self.block = run[1] + run[2]
            for k in group:
                moved[k] = run[1] - run[0]
        self.lent = [
            (token, by is not None, at + (by or 0), shape, strides)
            for (token, at, shape, strides, _), by in zip(self.leaves, moved)
        ]
        return 0

    cdef list places(self):
        """The parts of the slot that have leaves, from its start on.

        Returns:
            Of each part: where it begins, where it ends, and the numbers of the leaves in it, which overlap.
        """
        cdef list found = [], part = None
        for at, end, k in sorted([(leaf[1], leaf[4], k) for k, leaf in enumerate(self.leaves)]):
            if part is None or at >= part[1]:
                part = [at, end, [k]]
                found.append(part)
            else:
                part[1] = max(part[1], end)
                part[2].append(k)
        return found

    cdef int compare(self, Recipe other, Py_ssize_t chunk, Lease lease) except -1:
        """Raise if the leaves of another chunk, with the same plan, are not where this one has them."""
        for (_, at, shape, strides, _), (_, other_at, other_shape, other_strides, _) in zip(self.leaves, other.leaves):
            if shape != other_shape:
                raise unequal(shape[1:], lease.first_row(0), other_shape[1:], lease.first_row(chunk))
            if at != other_at or strides != other_strides:
                raise RuntimeError(
                    f"{cut_by(lease)} needs samples that are laid out alike, but a tensor of {list(shape)} lies at {at} "
                    f"with strides {strides} for those {where(lease, 0)}, and at {other_at} with strides "
                    f"{other_strides} for those {where(lease, chunk)}"
                )
        return 0


cdef str cut_by(Lease lease):
    """The option by which the batch was cut."""
    return "chunk_size" if lease.listed is None else "group_by"


cdef str where(Lease lease, Py_ssize_t chunk):
    """Which entries of the batch a chunk has, for people."""
    if lease.listed is None:
        return f"from entry {lease.first_row(chunk)} on"
    return f"in the entries {reprlib.repr(lease.listed[chunk])}"


cdef str described(plan):
    """A plan, for people: its first nodes."""
    return reprlib.repr([token if is_leaf(token) else "object" if token is None else
                         f"{token[0].__name__} of {token[1]}" for token in plan])


cdef list joined(list parts, list order, str option):
    """The objects of all chunks.  Each is rows, which are joined, or a shell, or empty in the same way.

    Args:
        parts: of each chunk, its objects.
        order: which row of the batch each is, chunk by chunk; None: in the batch's order.
        option: by which the batch was cut, for errors.
    """
    cdef list whole = []
    for rows in zip(*parts):
        kind = type(rows[0])
        if issubclass(kind, Shell):
            for other in rows:
                if other.keys != rows[0].keys:
                    raise RuntimeError(f"{option} needs samples of one structure, but got the keys "
                                       f"{reprlib.repr(rows[0].keys)} and {reprlib.repr(other.keys)}")
            whole.append(rows[0])
        elif len(rows) == 1 or all([other is None for other in rows]):
            whole.append(rows[0])
        elif kind is Array and all([type(other) is Array for other in rows]):
            whole.append(sorted_array(numpy.concatenate(rows, dtype=kept_dtype(rows)), order))
        elif kind in (dict, list, tuple) and all([type(other) is kind and not other for other in rows]):
            whole.append(rows[0])
        elif kind in (list, tuple) and all([type(other) is kind for other in rows]):
            whole.append(kind(sorted_rows(list(chain.from_iterable(rows)), order)))
        else:
            kinds = sorted({type(other).__name__ for other in rows})
            raise RuntimeError(f"{option} needs rows of one kind, but chunks gave {' and '.join(kinds)}")
    return whole


cdef object sorted_array(object rows, list order):
    if order is None:
        return rows
    placed = numpy.empty_like(rows)
    placed[order] = rows
    return placed


cdef list sorted_rows(list rows, list order):
    cdef list placed
    if order is None:
        return rows
    placed = [None] * len(order)
    for row, each in zip(order, rows):
        placed[row] = each
    return placed


cdef object kept_dtype(tuple rows):
    """The common dtype, which numpy would return in native order; None if numpy must find one."""
    dtype = rows[0].dtype
    return dtype if all([other.dtype == dtype for other in rows]) else None


cdef object end_of(token, at, tuple shape, tuple strides, limit):
    """Where in the slot a leaf ends.  Raises if a Writer cannot have placed it in this many bytes."""
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
    """These bytes of a slot.  A Python slice would be cut short, or count from the end, without an error."""
    if at < 0 or size < 0 or at + size > len(whole):
        raise overwritten(f"the place of a {what}", f"{at}, of {size} bytes", f"in {len(whole)} bytes")
    return whole[at:at + size]


cdef object copied(object tensor, object clone):
    try:
        return clone(tensor)
    except RuntimeError:    # dtypes of less than a byte; torch 2.6 does not even raise a NotImplementedError for them
        if tensor.dtype.itemsize != 1:
            raise
        return clone(tensor.view(uint8)).view(tensor.dtype)


cdef list read_objects(Lease lease, Py_ssize_t at, Py_ssize_t size, bint copy):
    whole = memoryview(lease)
    if size % 16:
        raise overwritten("the size of the table of a batch's pickled leaves", size, "a multiple of 16")
    words = struct.unpack(f"{size // 8}q", whole[at:at + size])
    parts = [part_of(whole, words[k], words[k + 1], "pickled leaf") for k in range(0, len(words), 2)]
    beside = [bytearray(part) for part in parts[1:]] if copy else parts[1:]
    return loads(parts[0], buffers=beside)
