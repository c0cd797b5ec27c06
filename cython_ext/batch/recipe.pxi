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
from libc.stdlib cimport free, malloc

from shmloader.core.tensors cimport array_over, copy_bytes, tensor_at, tensor_in, tensor_over

import torch

cdef extern from "Python.h":
    object PyByteArray_FromStringAndSize(const char *bytes, Py_ssize_t size)    # NULL: it is not filled
    char *PyByteArray_AS_STRING(object array)

cdef object TorchDtype = torch.dtype, uint8 = torch.uint8

cdef enum:
    SMALL = 1 << 16     # bytes; NOTE [ Small leaves ]
    PART = 64
    LINE = 64           # where torch's own memory begins; some functions are faster there, or give other last digits

cdef extern from "Python.h":
    const Py_ssize_t STAYS "PY_SSIZE_T_MAX"     # in Recipe.moved


cdef struct place:                      # of a leaf in the slot
    Py_ssize_t start, end               # of it and of those that overlap it
    Py_ssize_t leaf                     # its number
    bint is_first                       # of those


@cython.final
cdef class Recipe:
    """How a batch is made from the bytes in its payload."""
    cdef object plan, build
    # Of each leaf: dtype, offset, shape, strides, end, and which of the storages it has; -1: one of its own
    cdef list leaves
    # Of each storage that leaves share (NOTE [ Views ] in layout.pxi): offset, bytes, and one of the leaves.
    cdef list storages
    cdef bint in_order                  # whether each leaf begins where those before it have ended, or later
    cdef object end                     # where the last of them ends
    # If the batch is lent, NOTE [ Small leaves ]:
    cdef Py_ssize_t divided             # the bytes of the batch for which this holds; -1: not found yet
    cdef Py_ssize_t *moved              # of each leaf: its offset in the block minus that in the slot; STAYS: not small
    cdef list runs                      # (offset, offset in the block, bytes) of what is copied there
    cdef Py_ssize_t block               # bytes

    cdef list copied_leaves(self, Lease lease, object clone):
        """The leaves, each in its own memory."""
        cdef list leaves = [], storages = []
        cdef object token, at, shape, strides
        cdef Py_ssize_t size, k
        for at, size, _ in self.storages:
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
        cdef object token, shape, strides, leaf, over, block = None, storage = None
        cdef Py_ssize_t at, by, begins = 0, size, k = 0, of
        cdef char *data = NULL      # of the block, if it is plain memory
        if self.runs:
            if room is None:
                block = PyByteArray_FromStringAndSize(NULL, self.block + 2 * LINE)
                data = PyByteArray_AS_STRING(block)
                begins = self.copy_small(lease, <uint64_t>data)
            else:
                block = room(self.block + 2 * LINE)
                storage = block.untyped_storage()
                begins = self.copy_small(lease, block.data_ptr())
                block = block.numpy()
        for at, size, of in self.storages:
            by = self.moved[of]
            if by != STAYS and storage is not None:
                storages.append((storage, begins + by))
                continue
            over = tensor_over(lease if by == STAYS else block, uint8, at if by == STAYS else begins + at + by, (size,))
            storages.append((over.untyped_storage(), -at))
        for token, at, shape, strides, _, of in self.leaves:
            by = self.moved[k]
            k += 1
            if of >= 0:
                leaves.append(tensor_in(storages[of][0], token, storages[of][1] + at, shape, strides))
                continue
            if by != STAYS:
                at += begins + by
            if type(token) is not TorchDtype:
                leaf = array_over(lease if by == STAYS else block, token, at, shape, strides)
            elif by == STAYS:
                leaf = tensor_at(lease, lease.data, lease.bytes, token, at, shape, strides)
            elif storage is None:
                leaf = tensor_at(block, data, self.block + 2 * LINE, token, at, shape, strides)
            else:
                leaf = tensor_in(storage, token, at, shape, strides)
            leaves.append(leaf)
        return leaves

    cdef Py_ssize_t copy_small(self, Lease lease, uint64_t to) except -1:
        """Copy the small leaves to their block, which is at this address; returns where they begin in it."""
        cdef Py_ssize_t begins = <Py_ssize_t>(-to % LINE), start, at, size
        for start, at, size in self.runs:
            copy_bytes(to + begins + at, <uint64_t>lease.data + start, size)
        return begins

    cdef int divide(self, Py_ssize_t bytes) except -1:
        """Find the leaves that are small beside the whole batch, which has `bytes`."""
        cdef Py_ssize_t k, n = 0, count = len(self.leaves), most = min(SMALL, bytes // PART), together = 0
        cdef Py_ssize_t start = -1, end = 0, at = 0     # of the run that is under way; -1: none is
        cdef place *those
        if self.moved == NULL:
            self.moved = <Py_ssize_t *>malloc(max(count, 1) * sizeof(Py_ssize_t))
        those = <place *>malloc(max(count, 1) * sizeof(place))
        if self.moved == NULL or those == NULL:
            free(those)
            raise MemoryError
        try:
            n = self.find_places(those)
            while True:
                together = 0
                for k in range(n):
                    if those[k].is_first and those[k].end - those[k].start <= most:
                        together += those[k].end - those[k].start
                if together <= bytes // PART * 4:
                    break
                most //= 2
            self.runs, self.block = [], 0
            for k in range(n):
                if not most or those[k].end - those[k].start > most:
                    self.moved[those[k].leaf] = STAYS
                    self.end_run(start, end, at)
                    start = -1
                    continue
                if start < 0 or those[k].start - end > 2 * LINE:
                    self.end_run(start, end, at)
                    start = those[k].start
                    at = self.block + (start - self.block) % LINE
                    end = 0
                end = max(end, those[k].end)
                self.moved[those[k].leaf] = at - start
            self.end_run(start, end, at)
        finally:
            free(those)
        return 0

    cdef int end_run(self, Py_ssize_t start, Py_ssize_t end, Py_ssize_t at) except -1:
        """Note that these bytes of the slot are copied to offset `at` of the block."""
        if start >= 0:
            self.runs.append((start, at, end - start))
            self.block = at + end - start
        return 0

    cdef Py_ssize_t find_places(self, place *those) except -1:
        """Find for each leaf the place that it has with those that overlap it, in the order of the slot."""
        cdef Py_ssize_t n = 0, first
        cdef tuple leaf
        if self.in_order:
            for leaf in self.leaves:
                those[n] = place(leaf[1], leaf[4], n, True)
                n += 1
            return n
        for start, end, group in places_of([(leaf[1], leaf[4]) for leaf in self.leaves]):
            first = n
            for k in group:
                those[n] = place(start, end, k, n == first)
                n += 1
        return n

    def __dealloc__(self):
        free(self.moved)

    cdef int find_storages(self) except -1:
        """Find the tensors that share a storage: NOTE [ Views ] in layout.pxi."""
        for start, end, group in places_of([(leaf[1], leaf[4]) for leaf in self.leaves]):
            those = [k for k in group if type(self.leaves[k][0]) is TorchDtype]
            if not those or len(those) == 1 and not is_view(self.leaves[those[0]]):
                continue
            base = start // 16 * 16     # a storage is made of whole elements
            if any([(self.leaves[k][1] - base) % self.leaves[k][0].itemsize for k in those]):
                continue
            for k in those:
                self.leaves[k] = (*self.leaves[k][:5], len(self.storages))
            self.storages.append((base, end - base, those[0]))
        return 0


cdef Recipe worked_out(object plan, object build, tuple words, object limit):
    """The recipe of a batch with these words; `limit` is the size of its payload, in bytes."""
    cdef Py_ssize_t count = len(words), k = 1, sides
    cdef bint strided, is_view, shared = False
    cdef tuple shape, strides
    cdef Recipe recipe = Recipe.__new__(Recipe)
    recipe.plan, recipe.build, recipe.divided, recipe.in_order = plan, build, -1, True
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
            shared = shared or is_view
            recipe.in_order = recipe.in_order and at >= recipe.end
            recipe.end = max(recipe.end, end)
            recipe.leaves.append((token, at, shape, strides, end, -1))
    if k != count:
        raise overwritten("the number of words in a batch's description", count, k)
    recipe.storages = []
    if shared or not recipe.in_order:   # leaves that were stacked may only lie in another order
        recipe.find_storages()
    return recipe


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
