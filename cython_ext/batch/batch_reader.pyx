# cython: language_level=3
"""Slot to batch: tensors over the slot, or copies.  It joins chunks, which must agree in structure, dtype and shape.
It checks each place and size that a worker wrote.  batch_writer.pyx describes the layout.
"""

import reprlib
import struct
from itertools import chain
from pickle import loads

from shmloader.core.batch_tree cimport EACH_PICKLED, Kept, Tree, is_leaf
from shmloader.core.lease cimport Lease
from shmloader.core.ring cimport overwritten
from shmloader.core.tensors cimport unequal

import numpy
import torch

include "batch/recipe.pxi"

cdef object Tensor = torch.Tensor, Array = numpy.ndarray

cdef enum:
    EACH_LEAF = 384     # bytes of memory of a recipe for each leaf, at most


cdef class BatchReader:
    """Reads what Writers wrote.  A trainer has one, which remembers the plans and sizes that it has read.

    Args:
        failure: the class of the object that a failed chunk gives in place of its rows.
        clone: copies a tensor into its own memory, if a batch is copied.
        room: makes a tensor for the small leaves of a lent batch, given its bytes; None: they get plain memory.
        keeps: whether anybody may keep a leaf of a lent batch.  Otherwise, small ones stay in the slot.
    """
    cdef Kept kept                      # a plan's number -> (plan, build); meta -> Recipe
    cdef object failure, clone, room
    cdef bint keeps

    def __init__(self, failure, clone=Tensor.clone, room=None, keeps=True):
        self.kept, self.failure = Kept(), failure
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
        return (<Tree>recipe.build).joined(leaves, read_objects(lease, table[0], table[1], copy) if table[1] else None)

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
                compare(whole, recipe, chunk, lease)
            parts.append(others)
        if failure is not None:
            return failure
        if lease.listed is not None:
            order = list(chain.from_iterable(lease.listed))
        leaves = self.leaves_of(whole, lease, copy)
        return (<Tree>whole.build).joined(leaves, joined(parts, order, cut_by(lease)))

    cdef list leaves_of(self, Recipe recipe, Lease lease, bint copy):
        if copy:
            return recipe.copied_leaves(lease, self.clone)
        if lease.bytes != recipe.divided:
            recipe.divide(lease.bytes if self.keeps else 0)
            recipe.divided = lease.bytes
        return recipe.lent_leaves(lease, self.room)

    cdef Recipe recipe_of(self, Lease lease, Py_ssize_t chunk):
        cdef bytes meta = lease.meta(chunk)
        cdef Recipe recipe = self.kept.kept.get(meta)
        if recipe is None:
            recipe = self.work_out(lease, chunk, meta)
            self.kept.keep(meta, recipe, 8 * len(meta) + EACH_LEAF * len(recipe.leaves))
        return recipe

    cdef Recipe work_out(self, Lease lease, Py_ssize_t chunk, bytes meta):
        cdef Py_ssize_t count = len(meta) // 8
        cdef tuple words = struct.unpack(f"{count}q", meta[:8 * count])
        cdef Recipe recipe
        if count < 1:
            raise overwritten("the size of a batch's description", len(meta), "8 or more")
        known = self.kept.kept.get(words[0])
        if known is not None:
            return worked_out(known[0], known[1], words, lease.bytes)
        pickled = lease.plan(chunk)
        plan = loads(pickled)
        recipe = worked_out(plan, Tree(plan), words, lease.bytes)
        self.kept.keep(words[0], (plan, recipe.build), EACH_PICKLED * len(pickled))
        return recipe


cdef int compare(Recipe whole, Recipe other, Py_ssize_t chunk, Lease lease) except -1:
    """Raise if the leaves of a chunk, with the same plan, are not where the first one has them."""
    for one, another in zip(whole.leaves, other.leaves):
        (_, at, shape, strides), (_, other_at, other_shape, other_strides) = one[:4], another[:4]
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
    """The objects of all chunks.  Each is rows, which are joined, or empty in the same way.

    Args:
        parts: of each chunk, its objects.
        order: which row of the batch each is, chunk by chunk; None: in the batch's order.
        option: by which the batch was cut, for errors.
    """
    cdef list whole = []
    for rows in zip(*parts):
        kind = type(rows[0])
        if len(rows) == 1 or all([other is None for other in rows]):
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


cdef object part_of(whole, at, size, what):
    """These bytes of a slot.  A Python slice would be cut short, or count from the end, without an error."""
    if at < 0 or size < 0 or at + size > len(whole):
        raise overwritten(f"the place of a {what}", f"{at}, of {size} bytes", f"in {len(whole)} bytes")
    return whole[at:at + size]


cdef list read_objects(Lease lease, Py_ssize_t at, Py_ssize_t size, bint copy):
    whole = memoryview(lease)
    if size % 16:
        raise overwritten("the size of the table of a batch's pickled leaves", size, "a multiple of 16")
    words = struct.unpack(f"{size // 8}q", whole[at:at + size])
    parts = [part_of(whole, words[k], words[k + 1], "pickled leaf") for k in range(0, len(words), 2)]
    if not copy:
        return loads(parts[0], buffers=parts[1:])
    beside = [None] * len(parts)
    for start, end, group in places_of([(words[k], words[k] + words[k + 1]) for k in range(2, len(words), 2)]):
        memory = memoryview(bytearray(whole[start:end]))    # one for those that overlap: NOTE [ Views ] in layout.pxi
        for k in group:
            beside[k] = memory[words[2 * k + 2] - start:][:words[2 * k + 3]]
    return loads(parts[0], buffers=beside)
