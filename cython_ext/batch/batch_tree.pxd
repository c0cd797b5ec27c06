# cython: language_level=3
"""A batch, taken apart.  batch_tree.pyx describes the tokens of a plan."""

cpdef tuple walk(object batch, bint apart=*)    # a batch's plan, leaves and objects
cpdef bint all_of_str(dict node) except -1
cdef bint is_leaf(object token)                 # whether a plan's token stands for a leaf
cpdef tuple without_again(tuple plan)
cpdef list plain_rows(object batch)             # tensors of any classes as plain ones; None where one cannot be one
