# cython: language_level=3
"""A batch is a tree.  It is taken apart into a plan, tensors, arrays and objects that are pickled, and joined again.
This module decides which classes need no pickle.  A batch (not a chunk) that has an object twice is pickled whole.

Walking a batch gives three things:

    plan      its nodes in order, one token a node (see below).  Batches with the same structure have the same plan.
    leaves    plain CPU tensors and numpy arrays: their elements go into the slot as they are
    objects   everything else: numbers, strings, None, objects that only pickle can carry

A worker pickles the plan once for each structure that it meets.  The bytes are then copied into the slot with every
batch, and the trainer reads them when it meets the plan's number for the first time.  So no batch pays for pickling its
structure, and nothing is lost if a worker or a batch is lost.
A token is
    torch.dtype         a tensor leaf
    numpy.dtype         an array leaf
    None                an object
    (dict, keys)        a dict with these str keys; its values follow
    (list, n), (tuple, n), (a namedtuple class, n)      n children follow
    (a class, names)    an instance whose whole state is its __dict__, with these names; the values follow
    (a class of tensors, names)     the same; its elements, a tensor leaf, come before the values
    (Shell, n)          in chunks: one object is the container of n children, and these follow; see containers.py
    (Again, k)          in chunks: the leaf that follows is leaf k once more, if it is so in all chunks
"""

from functools import cache
from io import BytesIO
from multiprocessing.reduction import ForkingPickler

from shmloader.core.ring cimport overwritten
from shmloader.core.tensors cimport is_dense

import numpy
import torch

ATOMS = frozenset((int, float, complex, bool, str, bytes, type(None)))      # objects without parts
DEEPEST = 500           # nesting: C has no limit of its own, and would overflow its stack

cdef object Tensor = torch.Tensor, Array = numpy.ndarray
cdef object as_subclass = torch.Tensor.as_subclass      # as a function, so that a class's own method is not called
cdef tuple DTYPES = (torch.dtype, numpy.dtype)          # the tokens of leaves
cdef frozenset atoms = ATOMS
cdef int deepest = DEEPEST


class Again:
    """In a plan: a leaf that occurred before.  It is written out nevertheless, because in other chunks it may not have.
    """


cpdef tuple without_again(tuple plan):
    """The plan of leaves that only are equal."""
    return tuple([token for token in plan if type(token) is not tuple or token[0] is not Again])


class Shell:
    """In a plan: `n` parts follow, and one of the objects is their container.

    Args:
        keys: of a mapping's items; None for others.
        pickled: the container; None in all chunks but the first.
    """

    def __init__(self, keys, pickled):
        self.keys, self.pickled = keys, pickled

    def around(self, parts):
        """The container around its parts."""
        raise NotImplementedError


class MetTwice(Exception):
    """A batch has the same object in two places, which only pickle preserves."""


cdef bint is_leaf(object token):
    return isinstance(token, DTYPES)


# ------------------------------------------------------------------------------------------------ taking apart


cpdef tuple walk(object batch):
    """Take a batch apart into its plan, its leaves and its objects."""
    cdef list plan = [], leaves = [], others = []
    try:
        descend(batch, plan, leaves, others, set(), 0)
    except (MetTwice, RecursionError):
        return (None,), [], [batch]
    return tuple(plan), leaves, others


cdef int descend(object node, list plan, list leaves, list others, set met, int depth) except -1:
    cdef object kind = type(node), child, leaf
    if depth > deepest:
        raise RecursionError
    if kind is Tensor:
        once(node, met)
        if not node.requires_grad and is_dense(node):
            plan.append(node.dtype)
            leaves.append(node)
            return 0
    elif kind in atoms:
        pass
    elif kind is dict:
        once(node, met)
        if node and all_of_str(node):
            plan.append((dict, tuple(node)))
            for child in (<dict>node).values():
                descend(child, plan, leaves, others, met, depth + 1)
            return 0
    elif kind is list or kind is tuple:
        if node and not all_atoms(node):
            once(node, met)
            plan.append((kind, len(node)))
            for child in node:
                descend(child, plan, leaves, others, met, depth + 1)
            return 0
    elif kind is Array:
        once(node, met)
        if node.dtype.kind in "biufc" and node.dtype.isnative:
            plan.append(node.dtype)
            leaves.append(node)
            return 0
    elif is_namedtuple(kind):
        once(node, met)
        plan.append((kind, len(node)))
        for child in node:
            descend(child, plan, leaves, others, met, depth + 1)
        return 0
    elif is_its_dict(kind):
        once(node, met)
        plan.append((kind, tuple(node.__dict__)))
        for child in node.__dict__.values():
            descend(child, plan, leaves, others, met, depth + 1)
        return 0
    elif is_its_elements(kind):
        once(node, met)
        leaf = plain_elements(node)
        if leaf is not None and all_of_str(node.__dict__):
            plan.append((kind, tuple(node.__dict__)))
            plan.append(leaf.dtype)
            leaves.append(leaf)
            for child in node.__dict__.values():
                descend(child, plan, leaves, others, met, depth + 1)
            return 0
    else:
        once(node, met)
    plan.append(None)
    others.append(node)
    return 0


cdef int once(object node, set met) except -1:
    cdef object key = <size_t><void *>node
    if key in met:
        raise MetTwice
    met.add(key)
    return 0


cpdef bint all_of_str(dict node) except -1:
    """Whether all keys are plain strings."""
    for key in node:
        if type(key) is not str:
            return False
    return True


cdef bint all_atoms(object node) except -1:
    for child in node:
        if type(child) not in atoms:
            return False
    return True


cdef bint is_registered(object kind) except -1:
    """Whether a user has registered a way to pickle this class, with multiprocessing or copyreg."""
    return kind in ForkingPickler(BytesIO()).dispatch_table     # it merges both registries


@cache
def is_namedtuple(kind):
    """A class of collections.namedtuple or typing.NamedTuple, which is pickled in their way."""
    return (
        issubclass(kind, tuple)
        and kind.__bases__ == (tuple,)
        and hasattr(kind, "_fields")
        and hasattr(kind, "_make")
        and "__reduce__" not in vars(kind)
        and "__reduce_ex__" not in vars(kind)
        and not is_registered(kind)
    )


@cache
def is_its_dict(kind):
    """Whether pickle would take an instance apart into only its __dict__: dataclasses, plain classes."""
    if type(kind) is not type or is_registered(kind):
        return False
    for base in kind.__mro__[:-1]:
        if not base.__flags__ & 1 << 9 or vars(base).get("__slots__"):      # Py_TPFLAGS_HEAPTYPE: written in Python
            return False
    own = ("__setstate__", "__getnewargs__", "__getnewargs_ex__", "__getinitargs__")
    return (
        kind.__dictoffset__ != 0
        and kind.__new__ is object.__new__
        and kind.__reduce__ is object.__reduce__
        and kind.__reduce_ex__ is object.__reduce_ex__
        and getattr(kind, "__getstate__", None) is getattr(object, "__getstate__", None)
        and not any(hasattr(kind, name) for name in own)
    )


@cache
def is_its_elements(kind):
    """Whether torch pickles a tensor of this class as its elements and its __dict__, as torchvision's and MONAI's."""
    if not issubclass(kind, Tensor) or kind is Tensor or is_registered(kind):
        return False
    for base in kind.__mro__[:kind.__mro__.index(Tensor)]:
        if vars(base).get("__slots__"):
            return False
    return (
        kind.__reduce_ex__ is Tensor.__reduce_ex__
        and kind.__reduce__ is Tensor.__reduce__
        and kind.__setstate__ is Tensor.__setstate__
        and getattr(kind, "__getstate__", None) is getattr(Tensor, "__getstate__", None)
        and kind.__torch_dispatch__ is Tensor.__torch_dispatch__
    )


cdef object plain_elements(object tensor):
    """The elements of a tensor of a class without __torch_dispatch__, as a plain tensor; None if it has more.

    The class must not see this.
    """
    cdef object plain = as_subclass(tensor, Tensor)
    return plain if is_dense(plain) and not plain.requires_grad else None


cpdef list plain_rows(object batch):
    """The elements of tensors of any classes, as plain tensors; None if one is no tensor, or has __torch_dispatch__.
    """
    cdef list rows = []
    for tensor in batch:
        if not isinstance(tensor, Tensor) or type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
            return None
        rows.append(as_subclass(tensor, Tensor))
    return rows


# ------------------------------------------------------------------------------------------------ putting together


class Assembly:
    """Reads a plan node by node, and makes the function that joins a batch from leaves and objects."""

    def __init__(self, plan):
        self.plan = plan
        self.node = self.leaf = self.other = 0

    def whole(self):
        """The function for the plan, which must be exactly one tree."""
        build = self.next()
        if self.node != len(self.plan):
            raise overwritten("the length of a plan", len(self.plan), self.node)
        return build

    def next(self):
        token = self.plan[self.node]
        self.node += 1
        if token is None:
            other = self.other
            self.other += 1
            return lambda leaves, others: others[other]
        if is_leaf(token):
            leaf = self.leaf
            self.leaf += 1
            return lambda leaves, others: leaves[leaf]
        return self.container(*token)

    def container(self, kind, what):
        if kind is Again:
            if not 0 <= what < self.leaf:
                raise overwritten("the number of a leaf that was met before", what, f"below {self.leaf}")
            self.next()
            return lambda leaves, others: leaves[what]
        shell = self.other
        self.other += kind is Shell
        count = what if isinstance(what, int) else len(what) + issubclass(kind, Tensor)
        if not 0 <= count <= len(self.plan) - self.node:
            raise overwritten("the number of a node's children", count, len(self.plan) - self.node)
        if kind is Shell:
            children = [self.next() for _ in range(count)]
            return lambda leaves, others: others[shell].around([child(leaves, others) for child in children])
        make = maker(kind, what)
        if all(is_leaf(token) for token in self.plan[self.node:self.node + count]):
            start, stop = self.leaf, self.leaf + count      # one slice instead of a call for each leaf
            self.leaf, self.node = stop, self.node + count
            return lambda leaves, others: make(leaves[start:stop])
        children = [self.next() for _ in range(count)]
        return lambda leaves, others: make([child(leaves, others) for child in children])


def maker(kind, what):
    """The function that makes a container from its children."""
    if kind is list:
        return lambda children: children
    if kind is tuple:
        return tuple
    if isinstance(what, int):
        return kind._make
    if kind is dict:
        return lambda children: dict(zip(what, children))
    if issubclass(kind, Tensor):
        return lambda children: of_class(kind, what, children)

    def instance(children):
        made = object.__new__(kind)
        made.__dict__.update(zip(what, children))
        return made

    return instance


def of_class(kind, names, children):
    """A tensor of a subclass, from its elements and its attributes, made as torch unpickles one."""
    made = as_subclass(children[0], kind)
    for name, value in zip(names, children[1:]):
        setattr(made, name, value)
    return made
