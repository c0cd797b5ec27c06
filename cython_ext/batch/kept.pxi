"""Keeps plans and recipes, at most a few megabytes of them.

NOTE [ Kept plans ]

Most loaders have one plan and one recipe, which each batch looks up.  But a collate function may give each batch keys
or sizes of its own, and what is kept of those is lost memory.

    1. What is kept is counted in bytes.  If it would be more than the limit, all is dropped, and what still comes is
       made once more and kept again.
    2. No batch depends on what is kept: each has its plan and its description with it.  Only between a far worker and
       its stand-in, a plan is not sent once both ends keep it.  Both see the same plans in the same order, and so both
       keep the same.
"""

cdef enum:
    MOST_KEPT = 4 << 20


cdef class Kept:
    """A dict that is emptied where it would have more than `most` bytes."""

    def __init__(self, Py_ssize_t most=MOST_KEPT):
        self.kept, self.most = {}, most

    cpdef object get(self, object key):
        """What is kept for this key; None: nothing."""
        return self.kept.get(key)

    cpdef object keep(self, object key, object value, Py_ssize_t bytes):
        """Keep a value, which has about so many bytes of memory with its key."""
        if bytes > self.most:
            return
        if self.bytes + bytes > self.most:
            self.drop()
        self.kept[key] = value
        self.bytes += bytes

    cpdef object drop(self):
        """Drop all that is kept."""
        self.kept, self.bytes = {}, 0
