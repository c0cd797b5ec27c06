# cython: language_level=3
"""How a batch is made from the bytes in its payload: which leaves lie where, share a storage, or are copied as small.
It checks each place and size that a worker wrote.

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

from math import prod

cimport cython
from libc.stdint cimport uint64_t

from shmloader.core.batch_tree cimport is_leaf
from shmloader.core.gather cimport copy_bytes
from shmloader.core.lease cimport Lease
from shmloader.core.ring cimport overwritten
from shmloader.core.tensors cimport array_over, tensor_in, tensor_over

import torch

cdef extern from "Python.h":
    object PyByteArray_FromStringAndSize(const char *bytes, Py_ssize_t size)    # NULL: it is not filled
    char *PyByteArray_AS_STRING(object array)

cdef object TorchDtype = torch.dtype, uint8 = torch.uint8

cdef enum:
    SMALL = 1 << 16     # bytes; NOTE [ Small leaves ]
    PART = 64
    LINE = 64           # where torch's own memory begins; some functions are faster there, or give other last digits


cdef Recipe worked_out(object plan, object build, tuple words, object limit):
    """The recipe of a batch with these words, in a payload of so many bytes."""
    cdef Py_ssize_t count = len(words), k = 1, sides
    cdef bint strided, is_view, shared = False
    cdef tuple shape, strides
    cdef Recipe recipe = Recipe.__new__(Recipe)
    recipe.plan, recipe.build, recipe.divided = plan, build, -1
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
            end, is_view = end_of(token, at, shape, strides, limit)
            shared = shared or is_view or at < recipe.end
            recipe.end = max(recipe.end, end)
            recipe.leaves.append((token, at, shape, strides, end, -1))
    if k != count:
        raise overwritten("the number of words in a batch's description", count, k)
    recipe.storages = []
    if shared:      # or they only lie in another order, as leaves do that were stacked
        recipe.find_storages()
    return recipe


@cython.final
cdef class Recipe:
    """How a batch is made from the bytes in its payload."""

    cdef list copied_leaves(self, Lease lease, object clone):
        """The leaves, each in its own memory."""
        cdef list leaves = [], storages = []
        cdef object token, at, shape, strides
        cdef Py_ssize_t size, k
        for at, size in self.storages:
            storages.append(clone(tensor_over(lease, uint8, at, (size,))).untyped_storage())
        for token, at, shape, strides, _, k in self.leaves:
            if k >= 0:
                leaves.append(tensor_in(storages[k], token, at - self.storages[k][0], shape, strides))
            elif type(token) is TorchDtype:
                leaves.append(copied(tensor_over(lease, token, at, shape, strides), clone))
            else:
                leaves.append(array_over(lease, token, at, shape, strides).copy("K"))
        return leaves

    cdef list lent_leaves(self, Lease lease, object room):
        """The leaves over the slot, and the small ones over their block: NOTE [ Small leaves ]."""
        cdef list leaves = [], storages = []
        cdef object token, shape, strides, over = lease, block = None, storage = None
        cdef Py_ssize_t at, begins = 0, size, k
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
        for k in range(len(self.storages)):
            is_small, at, size = self.lent_storages[k]
            if is_small and storage is not None:
                storages.append((storage, begins + at))
            else:
                over = tensor_over(block if is_small else lease, uint8, begins + at if is_small else at, (size,))
                storages.append((over.untyped_storage(), 0))
        for token, is_small, at, shape, strides, k in self.lent:
            if k >= 0:
                leaves.append(tensor_in(storages[k][0], token, storages[k][1] + at, shape, strides))
                continue
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
        cdef list places = places_of([(leaf[1], leaf[4]) for leaf in self.leaves])
        cdef list moved = [None] * len(self.leaves), run = None
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
        self.lent, self.lent_storages = [], [None] * len(self.storages)
        for (token, at, shape, strides, _, of), by in zip(self.leaves, moved):
            if of >= 0:
                base, size = self.storages[of]
                self.lent_storages[of] = by is not None, base + (by or 0), size
                at, by = at - base, None
            self.lent.append((token, by is not None, at + (by or 0), shape, strides, of))
        return 0

    cdef int find_storages(self) except -1:
        """Find the tensors that share a storage: NOTE [ Views ] in layout.pyx."""
        for start, end, group in places_of([(leaf[1], leaf[4]) for leaf in self.leaves]):
            those = [k for k in group if type(self.leaves[k][0]) is TorchDtype]
            if not those or len(those) == 1 and not is_view(self.leaves[those[0]]):
                continue
            base = start // 16 * 16     # a storage is made of whole elements
            if any([(self.leaves[k][1] - base) % self.leaves[k][0].itemsize for k in those]):
                continue
            for k in those:
                self.leaves[k] = (*self.leaves[k][:5], len(self.storages))
            self.storages.append((base, end - base))
        return 0


cdef bint is_view(tuple leaf) except -1:
    """Whether a tensor's elements do not just fill its bytes."""
    return leaf[4] - leaf[1] != prod(leaf[2]) * leaf[0].itemsize


cdef tuple end_of(token, at, tuple shape, tuple strides, limit):
    """Where in the slot a leaf ends, and whether its elements do not just fill their bytes.

    Raises if a Writer cannot have placed it in this many bytes.
    """
    cdef object size = token.itemsize, count = 1, last = 0, side, stride
    if type(token) is not TorchDtype and token.kind not in "biufc":
        raise overwritten("the dtype of a leaf", token, "one of plain numbers")
    for side in shape:
        if side < 0:
            raise overwritten("a side of a leaf", side, "0 or more")
        count *= side
    cdef object reach = count
    if strides is not None and count:
        for side, stride in zip(shape, strides):
            if side != 1 and stride < 0:
                raise overwritten("a stride of a leaf", stride, "0 or more")
            last += (side - 1) * stride
        if last != count - 1 and type(token) is not TorchDtype:     # see other_order(); a tensor may be a view
            raise overwritten("the number of elements that a leaf's strides reach over", last + 1, f"{count}")
        if count >= 1 << 63:
            raise overwritten("the number of elements of a leaf", count, f"less than {1 << 63}")
        reach = last + 1
    if at < 0 or at + reach * size > limit:
        raise overwritten("the place of a leaf", f"{at}, of {reach * size} bytes", f"in {limit} bytes")
    return at + reach * size, reach != count


cdef list places_of(list parts):
    """The places of a slot that parts of it take up, from its start on.

    Args:
        parts: where each begins and ends.

    Returns:
        Of each place: where it begins and ends, and the numbers of the parts there.  More than one overlap.
    """
    cdef list found = [], place = None
    for at, end, k in sorted([(*part, k) for k, part in enumerate(parts)]):
        if place is None or at >= place[1]:
            place = [at, end, [k]]
            found.append(place)
        else:
            place[1] = max(place[1], end)
            place[2].append(k)
    return found


cdef object copied(object tensor, object clone):
    try:
        return clone(tensor)
    except RuntimeError:    # dtypes of less than a byte; torch 2.6 does not even raise a NotImplementedError for them
        if tensor.dtype.itemsize != 1:
            raise
        return clone(tensor.view(uint8)).view(tensor.dtype)
