"""Keeps plans and recipes that a process has met twice, in 8 MB: others may never come again.

NOTE [ Kept plans ]

Most loaders have one plan and one recipe, which each batch looks up.  But a collate function may give each batch keys
or sizes of its own, and what is kept of those is lost memory.

    1. What is met for the first time is made, used and dropped.  Only its hash is noted.  If it is met again, it is
       made again, and kept.
    2. There is room for NOTED hashes.  A hash that another one has displaced is noted again.  An equal hash of
       something else lets it be kept at once, which does no harm.
    3. All that a process keeps is counted in bytes, over all its loaders.  If more than MOST_KEPT would be kept, all is
       dropped.  The hashes stay, so what still comes is kept again when it comes.
    4. No batch depends on what is kept: each has its plan and its description with it.  Only between a far worker and
       its stand-in, a plan is not sent once both ends keep it.  Both see the same plans in the same order, and each has
       an account of its own for them, so both keep the same.
"""

import weakref

cdef enum:
    MOST_KEPT = 8 << 20


cdef class Account:
    """Limits what several Kepts keep together, to `most` bytes."""

    def __init__(self, Py_ssize_t most):
        self.members, self.most = [], most


cdef Account process = Account(MOST_KEPT)


cdef class Kept:
    """A dict of what was met twice.

    Args:
        account: shared with others; None: with all of the process.
    """

    def __init__(self, Account account=None):
        self.kept, self.account = {}, process if account is None else account
        self.account.members.append(weakref.ref(self, self.account.members.remove))

    cpdef object get(self, object key):
        """What is kept for this key; None: nothing."""
        return self.kept.get(key)

    cpdef bint meets(self, object key) except -1:
        """Whether the key was met before.  From now on, it was."""
        cdef Py_hash_t code = hash(key)
        cdef Py_hash_t *noted = &self.noted[<size_t>code % NOTED]
        if noted[0] == code:
            return True
        noted[0] = code
        return False

    cpdef object keep(self, object key, object value, Py_ssize_t bytes):
        """Keep a value, which has about so many bytes of memory with its key."""
        cdef list members = [reference() for reference in list(self.account.members)]
        cdef Py_ssize_t together = bytes
        if bytes > self.account.most:
            return
        for member in members:
            together += 0 if member is None else (<Kept>member).bytes
        if together > self.account.most:
            for member in members:
                if member is not None:
                    (<Kept>member).drop()
        self.kept[key] = value
        self.bytes += bytes

    cpdef object drop(self):
        """Drop all that is kept."""
        self.kept, self.bytes = {}, 0
