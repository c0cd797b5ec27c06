# cython: language_level=3
"""A batch, taken apart.  batch_tree.pyx describes the tokens of a plan."""

# ------------------------------------------------------------------------------------------------------------ batch_tree.pyx

cdef enum:
    EACH_PICKLED = 16   # bytes of memory for each byte of a pickled plan, at most


cdef class Kept:
    cdef dict kept
    cdef Py_ssize_t bytes, most

    cpdef object get(self, object key)
    cpdef object keep(self, object key, object value, Py_ssize_t bytes)
    cpdef object drop(self)


cpdef tuple walk(object batch, bint apart=*)    # a batch's plan, leaves and objects
cpdef bint all_of_str(dict node) except -1
cdef bint is_leaf(object token)                 # whether a plan's token stands for a leaf
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
