# cython: language_level=3
"""Batch to slot: the layout, and which tensors are stacked in the slot, or collated by torch and copied into it.
It refuses a chunk's tensor whose first dimension is not the number of samples.

The slot has leaves, then objects.  The area of the batch's entry has meta, then plan.  Meta is 64-bit words: the plan's
number, and for each leaf its offset, its number of dimensions, and the dimensions.  If its elements lie in another
order than row-major (channels_last for example), with gaps or on one another (NOTE [ Views ] in layout.pxi), the number
of dimensions is stored as its complement (~n), and the strides follow, in elements.  Meta repeats from batch to batch
if sizes do.  Objects are pickled, with a table of offsets and sizes for the pickle and the buffers beside it.
`allocate` in ring/worker.pyx aligns leaves to ALIGN bytes, except in a block of views.  If the batch does not fit into
the slot, commit() in ring/growth.py makes the slot larger, or raises.

note() in layout.pxi writes the meta of a leaf.  `worked_out` in recipe.pxi reads it.  If it changes, RING_VERSION in
atomics.h and the version in far/link.py go up, because a reader or a far worker may run another shmloader.

Columns come by way of worker/collate.py, also from a user's collate function that calls default_collate.  If stack()
returns None, torch's own code collates the column, and write() copies it into the slot.

A collate function may return something else than what default_collate gave it: a mixture of the images, or floats of
them.  What was collated in the slot is then a part that nothing views, and the next leaf that fits lies there; the last
part is freed, whatever follows.  Only the part's own reference count tells (Part in ring/parts.pxi), because labels of
the same batch may be returned.  Small leaves of such batches are collated outside the slot, so that they do not lie
behind a large part that will be freed; also those of the first batch, about which nothing is known yet.

Several workers write a batch in chunks at once, without talking to one another.  Each lays out the whole batch, as if
all rows were like its own, and writes its rows into that layout.  If the rows are alike, so is the meta.  If not, the
trainer finds the difference when it compares, and raises.  Objects of a chunk (rows of strings for example) lie in the
area of the chunk's entry, after the plan.

The rows of a chunk need not be one behind the other (NOTE [ Windows ] in ring.pxd).  No tensor is over such rows, so
they are collated outside the slot, and copied to their places one by one.
"""

import reprlib
import struct
from hashlib import blake2b

from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc

from shmloader.core.batch_tree cimport EACH_PICKLED, Kept, plain_rows, walk
from shmloader.core.tensors cimport (
    PY_SSIZE_T_MAX, are_stacked_alike, array_dtype, array_shape, arrays_at, check_memory, column, copy_bytes, copy_rows, elements,
    is_dense, look_at, number_dtype, numbers_into, of_its_class, other_order, rows_lie_at, stack_rows, tensor_over,
    unequal,
)
from shmloader.core.worker cimport Part, WorkerSide
from shmloader.core.ring cimport overwritten

import numpy
import torch

include "batch/layout.pxi"

cdef object Tensor = torch.Tensor, Array = numpy.ndarray, torch_stack = torch.stack
cdef object empty = torch.empty

cdef enum:
    PART = 4096         # bytes; a smaller leaf is no part: it would take more time than memory
    SMALL = 65536       # bytes; a leaf that is worth to be copied, if a large part can be freed then


cdef class Writer:
    """Writes batches into the payloads that its worker claims, and remembers the plans that it wrote.

    Args:
        ring: the worker's side.
        objects: pickles what is not a plain tensor or array (objects.py).
        walk_chunk: takes chunks apart (chunk_walk.py).
    """
    cdef WorkerSide ring
    cdef object objects, walk_chunk
    cdef Kept kept                      # plan -> (its number, its pickle)
    cdef Py_ssize_t count, row          # of a chunk: its samples, and its first row
    cdef readonly Py_ssize_t rows       # those of the batch that it is a chunk of; 0: it is no chunk
    cdef list listed                    # which rows its samples are, where they are not one behind the other; or None
    cdef dict stacked                   # of a chunk: the address of a stacked tensor -> where its leaf begins
    cdef dict laid                      # the address of the first reserved row -> where its leaf begins
    cdef Py_ssize_t laid_from, laid_to  # the reserved part of the payload
    # From now on tensors lie outside the slot.  A chunk's rows still lie where the other workers expect them.
    cdef public bint apart
    cdef bint converts, is_known        # batches do not have all that was collated for them; or this is not known yet
    cdef uint64_t room_at               # address of what room() returned last
    cdef unsigned long thread           # the one that claims and publishes

    def __init__(self, WorkerSide ring not None, objects, walk_chunk):
        self.ring, self.objects, self.walk_chunk, self.kept, self.laid = ring, objects, walk_chunk, Kept(), {}
        self.thread, self.converts = PyThread_get_thread_ident(), True

    cdef bint may_write(self) noexcept:
        """Whether a payload is claimed, by this thread of this process."""
        return self.ring.current >= 0 and PyThread_get_thread_ident() == self.thread and not self.ring.is_forked()

    def begin(self, Py_ssize_t count, list listed=None) -> None:
        """A sequence was claimed: a chunk of `count` samples, or a batch.

        Args:
            count: samples of the chunk.
            listed: the row of each, if its task lists them.
        """
        self.laid.clear()
        self.count, self.row, self.rows, self.listed = count, self.ring.row, self.ring.rows, listed
        if self.rows:
            self.stacked = {}
            if listed is not None:
                if count < 1 or len(listed) != count or not 0 <= min(listed) <= max(listed) < self.rows:
                    raise overwritten("a chunk's rows", reprlib.repr(listed), f"{count} in {self.rows}")
            elif count < 1 or self.row + count > self.rows:
                raise overwritten("a chunk's rows", f"{self.row} to {self.row + count}", f"in {self.rows}")

    cdef str cut_by(self):
        """The option by which the batch was cut."""
        return "chunk_size" if self.listed is None else "group_by"

    def lay(self, object dtype, tuple shape, Py_ssize_t count):
        """Reserve the places of the rows of a leaf, where stack() would put them, so that they can be written there.

        Call it before anything is stacked, for one leaf after the other, in the order in which they are collated.

        Args:
            dtype, shape: torch's, of a row that has elements.
            count: samples of the batch, or of the chunk.

        Returns:
            A tensor over each place; None if the leaf cannot lie in the slot.  stack() recognises these places.
        """
        cdef Py_ssize_t at, k, row = self.row if self.rows else 0, rows = self.rows or count
        cdef object size = dtype.itemsize
        if self.apart or self.listed is not None or not self.may_write():
            return None
        for side in shape:
            size *= side
        if not 0 < size <= PY_SSIZE_T_MAX // rows:
            return None
        if not self.laid:
            self.laid_from = self.ring.used
        at = self.ring.allocate(rows * size)
        self.laid_to = self.ring.used
        about_to_write(self.ring, at + row * size, count * size)
        self.laid[self.ring.address(at + row * size)] = at
        buffer = self.ring.buffer()
        return [tensor_over(buffer, dtype, at + k * size, shape) for k in range(row, row + count)]

    def forget_places(self) -> None:
        """Drop the reserved places.  What is stacked now lies where it would lie without them."""
        if self.laid and self.ring.used == self.laid_to:     # otherwise a dataset has collated something after them
            self.ring.used = self.laid_from
        self.laid.clear()

    cdef object found(self, object batch, object first):
        """The result of stack() for rows that were written in their places; None if they were not."""
        cdef elements row
        cdef tuple shape = look_at(first, &row)
        cdef object at = self.laid.get(row.address)
        cdef Py_ssize_t count = len(batch)
        if at is None or not rows_lie_at(batch, row.address):
            return None
        if self.rows and count != self.count:
            return None
        return self.in_place(at, row.bytes, first.dtype, (count, *shape))

    cdef object in_place(self, Py_ssize_t at, Py_ssize_t bytes, object dtype, tuple shape):
        """A tensor over rows that lie in their places, in a leaf that begins at `at`."""
        cdef Py_ssize_t start = at + self.row * bytes if self.rows else at
        if self.rows:
            self.stacked[self.ring.address(start)] = at     # where the tensor lies: the slot may have a larger room now
        return tensor_over(self.ring.buffer(), dtype, start, shape)

    cpdef object stack(self, object batch):
        """Stack tensors into the current payload, as torch.stack would; None if they cannot lie there.

        Only the thread and process that claimed the payload may do this.  While another thread allocates pages, the
        payload could be published.  That thread would then keep a part of the next one, a second payload of this
        worker.
        """
        cdef object first, out, room
        cdef object rows = batch    # the elements of each, as plain tensors
        cdef elements row
        cdef tuple shape
        cdef Py_ssize_t bytes
        if not self.may_write():
            return None
        if not isinstance(batch, (list, tuple)):    # torch.stack refuses it, with a better error
            return None
        if type(batch[0]) is not Tensor:
            rows = plain_rows(batch)
            if rows is None:
                return None
        first = rows[0]
        if not is_dense(first):
            return None
        if self.laid and rows is batch:
            out = self.found(batch, first)
            if out is not None:
                return out
        if self.rows:
            return self.stack_chunk(batch, rows)
        if self.apart:
            return None
        shape = look_at(first, &row)
        if row.bytes > PY_SSIZE_T_MAX // len(batch):    # expanded tensors; torch.stack has a better error
            return None
        bytes = len(batch) * row.bytes
        room = self.room(bytes, first.dtype, (len(batch), *shape))
        out = room if rows is batch else of_its_class(batch[0], room)
        if bytes and are_stacked_alike(batch, rows) and stack_rows(list_of(rows), self.room_at):
            return out
        for tensor in batch:
            if not isinstance(tensor, Tensor):  # torch has its own error for it
                return None
        return torch_stack(batch, 0, out=out)

    cdef object room(self, Py_ssize_t bytes, object dtype, tuple shape):
        """A tensor for a leaf that is about to be collated, in the payload.  Not in chunks, where offsets must agree.

        Its address is in `room_at`.
        """
        cdef Part part
        cdef Py_ssize_t at
        cdef object out
        if self.converts and bytes <= SMALL:
            out = empty(shape, dtype=dtype, device="cpu")
            self.room_at = out.data_ptr()
            return out
        if bytes < PART:
            at = self.ring.allocate(bytes)
            self.room_at = self.ring.address(at)
            return tensor_over(self.ring.buffer(), dtype, at, shape)
        part = self.ring.part(bytes)
        self.room_at = <uint64_t>part.data
        about_to_write(self.ring, part.at, bytes)
        return tensor_over(part, dtype, 0, shape)

    cdef object stack_chunk(self, object batch, object rows):
        """Stack the rows of a chunk where they belong in the whole batch; outside the slot if the task lists them."""
        cdef object first = rows[0], out, row, room = None, apart
        cdef Py_ssize_t k, at = -1, size = min(first.nbytes, <object>PY_SSIZE_T_MAX)
        if len(batch) != self.count or size > PY_SSIZE_T_MAX // self.rows:
            return None
        for k in range(1, self.count):
            row = rows[k]
            if not isinstance(row, Tensor):
                return None
            if row.shape != first.shape:
                raise unequal(first.shape, self.entry_of(0), row.shape, self.entry_of(k))
        cdef tuple shape = (self.count, *first.shape)
        if self.listed is None:
            at = self.ring.allocate(self.rows * size)
            about_to_write(self.ring, at + self.row * size, self.count * size)
            room = tensor_over(self.ring.buffer(), first.dtype, at + self.row * size, shape)
        apart = empty(shape, dtype=first.dtype, device="cpu") if room is None or self.apart else room
        out = apart if rows is batch else of_its_class(batch[0], apart)
        if not size or not are_stacked_alike(batch, rows) or not stack_rows(list_of(rows), apart.data_ptr()):
            out = torch_stack(batch, 0, out=out)
        if room is not None:
            if self.apart:
                room.copy_(apart)
            self.stacked[apart.data_ptr()] = at
        return out

    cdef Py_ssize_t entry_of(self, Py_ssize_t k) except -1:
        """Which entry of the batch a sample of the chunk is."""
        return self.row + k if self.listed is None else self.listed[k]

    cpdef object stack_numbers(self, object batch):
        """A column of Python's or NumPy's numbers, as torch.tensor makes it; None if it is not plain.

        In chunks it lies outside the slot until write().  Another chunk may have numbers that are not plain, which
        torch collates there, and what is stacked must lie at the same offset in all chunks.
        """
        cdef object dtype
        cdef column of
        cdef Py_ssize_t at, count, before
        if not self.may_write() or type(batch) is not tuple and type(batch) is not list or not batch:
            return None
        dtype = number_dtype(batch[0], &of)
        if dtype is None:
            return None
        count = len(batch)
        if self.rows or self.apart or self.converts and count * of.bytes <= SMALL:
            out = empty((count,), dtype=dtype, device="cpu")
            return out if numbers_into(batch, &of, out.data_ptr()) else None
        before = self.ring.used
        at = self.ring.allocate(count * of.bytes)
        about_to_write(self.ring, at, count * of.bytes)
        if not numbers_into(batch, &of, self.ring.address(at)):
            self.ring.used = before
            return None
        return tensor_over(self.ring.buffer(), dtype, at, (count,))

    cpdef object stack_arrays(self, object batch):
        """A column of NumPy's arrays, as torch.stack makes it of their tensors; None if it is not plain."""
        cdef object dtype, first, out
        cdef column of
        cdef Py_ssize_t count
        if not self.may_write() or type(batch) is not tuple and type(batch) is not list or not batch:
            return None
        first, count = batch[0], len(batch)
        dtype = array_dtype(first, &of)
        if dtype is None or of.bytes > PY_SSIZE_T_MAX // (self.rows or count):
            return None
        if self.listed is not None or (count != self.count if self.rows else self.apart):
            return None
        cdef char **rows = <char **>malloc(count * sizeof(char *))
        if rows == NULL:
            raise MemoryError()
        try:
            if not arrays_at(batch, &of, rows):
                return None
            shape = (count, *array_shape(first))
            out = self.arrays_found(dtype, shape, rows, of.bytes) if self.laid else None
            return self.arrays_stacked(dtype, shape, rows, of.bytes) if out is None else out
        finally:
            free(rows)

    cdef object arrays_stacked(self, object dtype, tuple shape, char **rows, Py_ssize_t bytes):
        """Copy rows into the slot; the rows of a chunk to their place in the whole batch."""
        cdef Py_ssize_t count = shape[0], at, start
        cdef object room, out
        if not self.rows:
            out = self.room(count * bytes, dtype, shape)
            copy_rows(self.room_at, rows, count, bytes)
            return out
        at = self.ring.allocate(self.rows * bytes)
        start = at + self.row * bytes
        about_to_write(self.ring, start, count * bytes)
        copy_rows(self.ring.address(start), rows, count, bytes)
        room = tensor_over(self.ring.buffer(), dtype, start, shape)
        out = room.clone() if self.apart else room
        self.stacked[out.data_ptr()] = at
        return out

    cdef object arrays_found(self, object dtype, tuple shape, char **rows, Py_ssize_t bytes):
        """The result of stack_arrays() for rows that were written in their places; None if they were not."""
        cdef object at = self.laid.get(<uint64_t>rows[0])
        cdef Py_ssize_t k
        if at is None:
            return None
        for k in range(1, shape[0]):
            if rows[k] != rows[0] + k * bytes:
                return None
        return self.in_place(at, bytes, dtype, shape)

    def write(self, batch) -> None:
        """Put a batch into the current payload.  Parts that were stacked there stay where they are."""
        cdef tuple plan
        cdef list leaves, others, words, placed, buffers = []
        cdef object leaf, known
        cdef bytes beside = b"", pickled = None
        if self.rows:
            plan, leaves, others = self.walk_chunk(batch, self.count, self.cut_by())
        else:
            plan, leaves, others = walk(batch)
        known = self.kept.kept.get(plan)
        if known is None:
            known = self.learn(plan)
        words = [known[0]]
        if self.rows:
            for leaf in leaves:
                self.place_rows(leaf, words)
            if others:
                beside = self.objects.dump_whole(others)
        else:
            self.converts = self.ring.unused_parts() > 0 or self.converts and self.is_known
            self.is_known = True
            if others:
                pickled, buffers = self.objects.dump(others)
            placed = place_all(self.ring, leaves, buffers, words)   # and `buffers` stays, so that its parts are viewed
        self.ring.describe(words, known[1], beside)
        if pickled is not None:
            self.write_objects(pickled, placed)

    cdef int place_rows(self, object leaf, list words) except -1:
        """Put the rows of a chunk into the payload.  The meta describes the leaf of the whole batch."""
        cdef elements of
        cdef tuple shape = look_at(leaf, &of), strides = None
        cdef Py_ssize_t at, size
        if not shape or shape[0] != self.count:
            raise RuntimeError(
                f"{self.cut_by()} needs a collate function that gives rows, and for {self.count} samples it gave a tensor "
                f"of shape {list(shape)}. The first dimension must be the number of samples."
            )
        size = of.bytes // self.count
        if not of.dense:
            strides = other_order(leaf)
            if strides is not None:             # rows must lie one after the other
                strides = (size // leaf.itemsize, *strides[1:]) if is_outermost(strides, shape) else None
            of.dense = strides is not None
        # A stacked tensor that comes twice is written out the second time: it may come once in the other chunks.
        at = self.stacked.pop(of.address, -1) if of.dense and not of.lazy else -1
        if at < 0:
            at = self.ring.allocate(self.rows * size if size <= PY_SSIZE_T_MAX // self.rows else PY_SSIZE_T_MAX)
            if self.listed is None:
                copy_in(self.ring, leaf, &of, at + self.row * size, shape, strides)
            else:
                self.scatter(leaf, &of, at, size)
        note(words, at, (self.rows, *shape[1:]), strides)
        return 0

    cdef int scatter(self, object leaf, elements *of, Py_ssize_t at, Py_ssize_t size) except -1:
        """Copy the rows of a leaf to their places in the payload, where the batch's begin at `at`."""
        cdef elements own = of[0]
        cdef object rows = leaf
        cdef Py_ssize_t k, row
        if not of.dense or of.lazy:
            if type(leaf) is Tensor:
                rows = empty(leaf.shape, dtype=leaf.dtype, device="cpu").copy_(leaf)
            else:
                rows = leaf.copy()
            look_at(rows, &own)
        check_memory(leaf, &own)
        for k in range(self.count):
            row = at + <Py_ssize_t>self.listed[k] * size
            about_to_write(self.ring, row, size)
            copy_bytes(self.ring.address(row), own.address + k * size, size)
        return 0

    cdef object write_objects(self, bytes pickled, list buffers):
        cdef list words = []
        for data in (pickled, *buffers):
            if type(data) is tuple:     # it was placed
                words += data
                continue
            raw = memoryview(data) if type(data) is bytes else data.raw()
            words += [self.ring.allocate(raw.nbytes), raw.nbytes]
            self.ring.write(words[-2], raw)
        table = struct.pack(f"{len(words)}q", *words)
        at = self.ring.allocate(len(table))
        self.ring.write(at, table)
        self.ring.point_to_objects(at, len(table))

    cdef tuple learn(self, tuple plan):
        pickled = self.objects.dump(plan)[0]
        # The same plan has the same number in every worker.  63 bits of a hash: two of a million plans share one with a
        # probability of 1 in 10 million.
        known = int.from_bytes(blake2b(pickled, digest_size=8).digest(), "little") >> 1, pickled
        self.kept.keep(plan, known, EACH_PICKLED * len(pickled))
        return known


cdef list list_of(object rows):
    return rows if type(rows) is list else list(rows)


include "batch/collate_plain.pxi"
