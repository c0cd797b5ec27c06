"""Puts the leaves of a batch into the payload: each alone, or those that share memory as one block.

NOTE [ Views ]

With torch's loader, tensors that share memory still share it when they arrive, and a mask that was expanded takes the
memory of one mask.  Written out in full, a mask of 1 MB would take 1 GB in a batch of 64 with 16 channels.

    1. The plain tensors of a batch whose bytes overlap are one block, from their first byte to their last.  So is a
       tensor whose own elements overlap.  If the block has fewer bytes than all its tensors together, it is written
       once, and each tensor's words say where its elements lie in it.  Otherwise, each is written as if it were alone.
       Tensors that are pickled (Parameters, those in objects) take part: their bytes lie beside the pickle.
    2. Arrays take no part: torch pickles them, so each arrives with its own elements.  An array over memory that has
       another leaf too is written out.
    3. The reader sees from the places of the leaves which of them overlap.  It makes one storage for those, as torch
       has.  A copy of the batch copies the storage once.
    4. Tensors whose storage is the same, but whose bytes do not overlap, arrive apart.  So do those that overlap with
       different storages, as from torch: default_convert makes two such of an array that comes twice.
    5. Rows of a chunk are written out, because other workers write the other rows, and may see no overlap.
"""

from libc.stdlib cimport free, malloc, qsort

from shmloader.core.tensors cimport (
    check_memory, copy_bytes, elements, is_dense, look_at, other_order, strides_of, tensor_over,
)

cdef enum:
    MANY = 65536        # bytes; fewer have too few pages for a saving
    FEW = 16            # leaves, for which there is room on the stack

cdef struct stretch:
    uint64_t start, end


cdef class Block:
    """The memory of tensors that overlap."""
    cdef readonly size_t address
    cdef readonly Py_ssize_t bytes
    cdef readonly list leaves           # their numbers
    cdef Py_ssize_t at                  # the offset in the payload; -1: it is not there yet

    def __cinit__(self, size_t address, Py_ssize_t bytes, list leaves):
        self.address, self.bytes, self.leaves, self.at = address, bytes, leaves, -1


cdef int by_start(const void *a, const void *b) noexcept nogil:
    cdef uint64_t one = (<const stretch *>a).start, other = (<const stretch *>b).start
    return (one > other) - (one < other)


cdef bint any_overlap(elements *of, Py_ssize_t count) except -1:
    """Whether any leaf shares bytes with another one, or has elements that do."""
    cdef Py_ssize_t k, n = 0
    cdef uint64_t reached = 0
    cdef bint found = False, in_order = True
    cdef stretch *those
    for k in range(count):
        if of[k].span and of[k].span < of[k].bytes:
            return True
        if of[k].span:
            in_order = in_order and of[k].address >= reached
            reached = of[k].address + of[k].span
    if in_order:    # as leaves that were stacked one after the other
        return False
    those = <stretch *>malloc(count * sizeof(stretch))
    if those == NULL:
        raise MemoryError
    for k in range(count):
        if of[k].span:
            those[n].start, those[n].end = of[k].address, of[k].address + of[k].span
            n += 1
    qsort(those, n, sizeof(stretch), by_start)
    for k in range(1, n):
        found = found or those[k].start < those[k - 1].end
    free(those)
    return found


cdef list blocks_of(list leaves, elements *of):
    """The blocks of a batch's leaves: for each leaf its Block; None: it has none; False: an array that another overlaps.
    """
    cdef list found = [None] * len(leaves), cluster = []
    cdef object start, end, reached = 0
    for start, end, k in sorted([
        (of[k].address, of[k].address + <uint64_t>of[k].span, k) for k in range(len(leaves)) if of[k].span
    ]):
        if start >= reached:
            settle(cluster, leaves, of, found)
            cluster = []
        cluster.append(k)
        reached = max(reached, end)
    settle(cluster, leaves, of, found)
    return found


cdef int settle(list cluster, list leaves, elements *of, list found) except -1:
    """Decide about leaves that overlap, or about one alone."""
    cdef list tensors = [k for k in cluster if type(leaves[k]) is Tensor]
    cdef uint64_t first, last
    cdef Py_ssize_t k
    if len(cluster) > 1:
        for k in cluster:
            found[k] = False if type(leaves[k]) is not Tensor else None
    if not tensors:
        return 0
    if len(tensors) > 1 and len({leaves[k].untyped_storage()._cdata for k in tensors}) > 1:
        for k in tensors:
            found[k] = False
        return 0
    first = min([of[k].address for k in tensors])
    last = max([of[k].address + <uint64_t>of[k].span for k in tensors])
    if <object>(last - first) < sum([<object>of[k].bytes for k in tensors]):
        block = Block(first, last - first, tensors)
        for k in tensors:
            found[k] = block
        return 0
    for k in tensors:
        if of[k].span < of[k].bytes:
            found[k] = Block(of[k].address, of[k].span, [k])
    return 0


cpdef list blocks(list tensors):
    """The blocks of those of these tensors that would travel as one; none of others than plain ones without grad."""
    cdef Py_ssize_t k, count = len(tensors)
    cdef elements *of = <elements *>malloc(max(count, 1) * sizeof(elements))
    if of == NULL:
        raise MemoryError
    try:
        for k in range(count):
            tensor = tensors[k]
            if type(tensor) is Tensor and is_dense(tensor) and not tensor.requires_grad:
                look_at(tensor, &of[k])
            else:
                of[k].span = 0
        if not any_overlap(of, count):
            return []
        return [block for k, block in enumerate(blocks_of(tensors, of)) if block and k == block.leaves[0]]
    finally:
        free(of)


cdef list place_all(WorkerSide ring, list leaves, list buffers, list words):
    """Put leaves, and the tensors among pickle's buffers, into the payload.

    Returns:
        The buffers, with the place and the size of each tensor instead of it.
    """
    cdef list tensors = leaves, shapes = [], found = None
    cdef dict places = None
    cdef Py_ssize_t k, at, count, noted = len(leaves)
    cdef object leaf, block = None
    cdef elements few[FEW]
    cdef elements *of = few
    if buffers:
        places = {}
        tensors = leaves + [data for data in buffers if type(data) is Tensor]
    count = len(tensors)
    if count > FEW:
        of = <elements *>malloc(count * sizeof(elements))
        if of == NULL:
            raise MemoryError
    try:
        for k in range(count):
            shapes.append(look_at(tensors[k], &of[k]))
        if any_overlap(of, count):
            found = blocks_of(tensors, of)
        for k in range(count):
            leaf = tensors[k]
            if found is not None:
                block = found[k]
            at = place(ring, leaf, &of[k], shapes[k], block, words if k < noted else None)
            if k >= noted:
                places[id(leaf)] = at, of[k].bytes
    finally:
        if of != few:
            free(of)
    return [places[id(data)] if type(data) is Tensor else data for data in buffers] if buffers else buffers


cdef Py_ssize_t place(WorkerSide ring, object leaf, elements *of, tuple shape, object block, list words) except -1:
    """Put a leaf's elements into the payload, and add their place and shape to the meta.

    Args:
        of: the elements; if they are put there as a part of a block, `bytes` becomes their span.
        block: which block they are a part of; None: of none; False: the leaf may not lie where another one does.
        words: the meta; None: the leaf is pickled.

    Returns:
        The offset.
    """
    cdef tuple strides = None
    cdef Py_ssize_t at = -1
    if type(block) is Block:
        strides = None if of.dense else strides_of(leaf)
        at = place_block(ring, block) + <Py_ssize_t>(of.address - (<Block>block).address)
        of.bytes = of.span
    else:
        if not of.dense:
            strides = other_order(leaf)
            of.dense = strides is not None
        if of.dense and not of.lazy and block is None:
            at = ring.offset_of(of.address, of.bytes)
        if at < 0:
            at = ring.allocate(of.bytes)
            copy_in(ring, leaf, of, at, shape, strides)
    if words is not None:
        note(words, at, shape, strides)
    return at


cdef Py_ssize_t place_block(WorkerSide ring, Block block) except -1:
    """Put a block into the payload, if it is not there.  Elements stay as well aligned as they are."""
    cdef Py_ssize_t lead = block.address % 16
    if block.at < 0:
        block.at = ring.offset_of(block.address, block.bytes)
    if block.at < 0:
        block.at = ring.allocate(lead + block.bytes) + lead
        about_to_write(ring, block.at, block.bytes)
        copy_bytes(ring.address(block.at), block.address, block.bytes)
    return block.at


cdef int about_to_write(WorkerSide ring, Py_ssize_t at, Py_ssize_t bytes) except -1:
    """Map these bytes of the payload, if they are enough to make it worthwhile."""
    if bytes > MANY:
        ring.map_written(at, bytes)
    return 0


cdef int copy_in(WorkerSide ring, object leaf, elements *of, Py_ssize_t at, tuple shape, tuple strides) except -1:
    """Copy a leaf's elements to offset `at` of the payload, in the order of their memory if that has no gaps."""
    check_memory(leaf, of)
    about_to_write(ring, at, of.bytes)
    if of.dense and not of.lazy:
        copy_bytes(ring.address(at), of.address, of.bytes)
    elif type(leaf) is Tensor:
        tensor_over(ring.buffer(), leaf.dtype, at, shape, strides).copy_(leaf)
    else:
        ring.write(at, leaf.tobytes())
    return 0


cdef bint is_outermost(tuple strides, tuple shape):
    """Whether the elements of the first dimension lie farthest apart."""
    return all([side == 1 or stride < strides[0] for stride, side in zip(strides[1:], shape[1:])]) or shape[0] == 1


cdef int note(list words, Py_ssize_t at, tuple shape, tuple strides) except -1:
    """Add a leaf's place and shape to the meta; batch_writer.pyx describes the words."""
    words.append(at)
    words.append(len(shape) if strides is None else ~len(shape))
    words.extend(shape)
    if strides is not None:
        words.extend(strides)
    return 0
