# cython: language_level=3
"""A batch, taken apart.  batch_tree.pyx describes the tokens of a plan."""

# ------------------------------------------------------------------------------------------------------------ kept.pxi

cdef enum:
    NOTED = 2048
    EACH_PICKLED = 16   # bytes of memory for each byte of a pickled plan, at most


cdef class Account:
    cdef list members                   # weak references to the Kepts that share it
    cdef Py_ssize_t most                # bytes that they keep together


cdef class Kept:
    cdef dict kept
    cdef Account account
    cdef Py_ssize_t bytes
    cdef Py_hash_t noted[NOTED]         # of what was met, by the last bits
    cdef object __weakref__

    cpdef object get(self, object key)
    cpdef bint meets(self, object key) except -1
    cpdef object keep(self, object key, object value, Py_ssize_t bytes)
    cpdef object drop(self)


cpdef tuple walk(object batch, bint apart=*)    # a batch's plan, leaves and objects
cpdef bint all_of_str(dict node) except -1
cdef bint is_leaf(object token)                 # whether a plan's token stands for a leaf
cpdef tuple without_again(tuple plan)
cpdef list plain_rows(object batch)             # tensors of any classes as plain ones; None where one cannot be one


cdef struct cursor:                             # in a plan
    Py_ssize_t node, leaf, other


cdef class Tree:                                # joins the batches of one plan
    cdef tuple plan
    cdef set again                              # the numbers of leaves that occur again

    cdef int check(self, cursor *at, int depth) except -1
    cpdef object joined(self, list leaves, list others)
    cdef object join(self, cursor *at, list leaves, list others)
    cdef list several(self, Py_ssize_t count, cursor *at, list leaves, list others)
