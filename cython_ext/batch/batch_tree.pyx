# cython: language_level=3
"""A batch is a tree.  It is taken apart into a plan, tensors, arrays and objects that are pickled, and joined again.
This module decides which classes need no pickle, and keeps the identity of objects that occur twice.

Walking a batch gives three things:

    plan      its nodes in order, one token a node (see below).  Batches with the same structure have the same plan.
    leaves    plain CPU tensors and numpy arrays: their elements go into the slot as they are
    objects   everything else: numbers, strings, None, objects that only pickle can carry, and containers without a
              leaf in them.  A plan has no nodes below these, so annotations of any shape have the same plan.

All objects of a batch are one pickle, so an object that occurs twice stays one.  A leaf that occurs twice is written
once.  But if a container of leaves occurs twice, or contains itself, the batch is pickled as a whole.  In chunks,
containers without a leaf are taken apart too, because each of the lists in them may have one object a sample.

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
    (Again, k)          leaf k once more: the same object, of which nothing else is written.  Not in chunks

NOTE [ Kept plans ]

Most loaders have one plan and one recipe, which each batch looks up.  But a collate function may give each batch keys
or sizes of its own, and what is kept of those is lost memory.

    1. What is kept is counted in bytes.  If it would be more than the limit, all is dropped, and what still comes is
       made once more and kept again.
    2. No batch depends on what is kept: each has its plan and its description with it.  Only between a far worker and
       its stand-in, a plan is not sent once both ends keep it.  Both see the same plans in the same order, and so both
       keep the same.
"""

cimport cython

from functools import cache
from io import BytesIO
from multiprocessing.reduction import ForkingPickler

from shmloader.core.ring cimport overwritten
from shmloader.core.tensors cimport is_dense

import numpy
import torch

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


ATOMS = frozenset((int, float, complex, bool, str, bytes, type(None)))      # objects without parts
DEEPEST = 500           # nesting: C has no limit of its own, and would overflow its stack

cdef object Tensor = torch.Tensor, Array = numpy.ndarray
cdef object as_subclass = torch.Tensor.as_subclass      # as a function, so that a class's own method is not called
cdef tuple DTYPES = (torch.dtype, numpy.dtype)          # the tokens of leaves
cdef frozenset atoms = ATOMS
cdef int deepest = DEEPEST

cdef enum:              # of a container that was met; the numbers of leaves are not negative
    LEAFY = -1          # it has a leaf, or is not at its end yet
    BARE = -2           # it has none


class Again:
    """In a plan: an object that occurred before, as a leaf or as a tensor of a subclass around it.

    Its elements are written only once, and the trainer gets one object.  So `return y, y` takes one y in the slot, and
    `batch[0] is batch[1]`, as from torch's loader.  Two views of one tensor are two leaves: NOTE [ Views ] in layout.pxi.
    """


class MetTwice(Exception):
    """A batch has the same container of leaves in two places, or in itself, which only pickle preserves."""


cdef bint is_leaf(object token):
    return isinstance(token, DTYPES)


# ------------------------------------------------------------------------------------------------ taking apart


cpdef tuple walk(object batch, bint apart=False):
    """Take a batch apart into its plan, its leaves and its objects.

    Args:
        apart: take a node apart also if it has no leaf, because this is a chunk, whose rows may lie there.
    """
    cdef Walk taken
    if type(batch) is Tensor and not batch.requires_grad and is_dense(batch):
        return (batch.dtype,), [batch], []
    taken = Walk.__new__(Walk)
    taken.plan, taken.leaves, taken.others, taken.met, taken.apart = [], [], [], {}, apart
    try:
        taken.descend(batch, 0)
    except (MetTwice, RecursionError):
        return (None,), [], [batch]
    return tuple(taken.plan), taken.leaves, taken.others


@cython.final
@cython.freelist(1)
@cython.no_gc       # it is in no cycle, and ends with the call that made it
cdef class Walk:
    """A batch, while it is taken apart."""
    cdef list plan, leaves, others
    cdef dict met               # by id: the number of a leaf; of a container LEAFY or BARE
    cdef list alive             # tensors whose ids are in `met`, and which nothing else may keep alive; or None
    cdef Py_ssize_t found       # leaves, and those met again
    cdef bint apart

    cdef int descend(self, object node, int depth) except -1:
        cdef object kind = type(node), dtype
        if depth > deepest:
            raise RecursionError
        if kind is Tensor:
            if not node.requires_grad and is_dense(node):
                return self.leaf(node, node)
        elif kind is dict:
            if node and all_of_str(node):
                return self.parts(node, (dict, tuple(node)), node, depth)
        elif kind is list or kind is tuple:
            if node and not all_atoms(node):
                return self.parts(node, (kind, len(node)), node, depth)
        elif kind is Array:
            dtype = node.dtype
            if dtype.kind in "biufc" and dtype.isnative and dtype.metadata is None:   # which == does not compare
                return self.leaf(node, node)
        elif is_atom(kind):
            pass
        elif is_namedtuple(kind):
            return self.parts(node, (kind, len(node)), node, depth)
        elif is_its_dict(kind):
            if is_plain(node.__dict__):
                return self.parts(node, (kind, tuple(node.__dict__)), node.__dict__, depth)
        elif is_its_elements(kind):
            elements = plain_elements(node)
            if elements is not None and is_plain(node.__dict__):
                return self.tensor(node, elements, depth)
        return self.as_object(node)

    cdef int as_object(self, object node) except -1:
        self.plan.append(None)
        self.others.append(node)
        return 0

    cdef int leaf(self, object node, object elements) except -1:
        if not self.met_again(node):
            self.plan.append(elements.dtype)
            self.leaves.append(elements)
        return 0

    cdef bint met_again(self, object node) except -1:
        """Whether a leaf was met before; if so, it is `Again` in the plan."""
        cdef Py_ssize_t before = len(self.met)
        cdef object number = self.met.setdefault(<size_t><void *>node, len(self.leaves))
        self.found += 1
        if len(self.met) != before:
            return False
        if self.apart or number < 0:
            raise MetTwice
        self.plan.append((Again, number))
        return True

    cdef int tensor(self, object node, object elements, int depth) except -1:
        """A tensor of a class of its own: its elements, and its attributes."""
        cdef object key = <size_t><void *>node, number = len(self.leaves)
        if self.met_again(node):
            return 0
        if self.alive is None:
            self.alive = []
        self.alive.append(node)     # the leaf is another object, and ids are reused
        self.plan.append((type(node), tuple(node.__dict__)))
        self.plan.append(elements.dtype)
        self.leaves.append(elements)
        self.met[key] = LEAFY       # it is not made yet where its attributes are
        for child in node.__dict__.values():
            self.descend(child, depth + 1)
        self.met[key] = number
        return 0

    cdef int parts(self, object node, tuple token, object children, int depth) except -1:
        """Take a container apart; it becomes an object if there is no leaf in it.

        Args:
            children: a sequence, or a dict whose values they are.
        """
        cdef object key = <size_t><void *>node, state
        cdef Py_ssize_t before = len(self.met), nodes = len(self.plan), others = len(self.others), found = self.found
        state = self.met.setdefault(key, LEAFY)
        if len(self.met) == before:
            if state != BARE:
                raise MetTwice
            return self.as_object(node)
        self.plan.append(token)
        if type(children) is dict:
            for child in (<dict>children).values():
                self.descend(child, depth + 1)
        else:
            for child in children:
                self.descend(child, depth + 1)
        if self.found == found and not self.apart:
            self.met[key] = BARE
            del self.plan[nodes:], self.others[others:]
            return self.as_object(node)
        return 0


cdef inline bint is_atom(object kind) except -1:
    return kind is float or kind is int or kind is str or kind in atoms     # these three without a look-up


cpdef bint all_of_str(dict node) except -1:
    """Whether all keys are plain strings."""
    for key in node:
        if type(key) is not str:
            return False
    return True


cdef bint is_plain(object state) except -1:
    """Whether an instance's __dict__ is a plain dict with plain names: others are equal to these, and not the same."""
    return type(state) is dict and all_of_str(state)


cdef bint all_atoms(object node) except -1:
    for child in node:
        if not is_atom(type(child)):
            return False
    return True


cdef bint is_registered(object kind) except -1:
    """Whether a user has registered a way to pickle this class, with multiprocessing or copyreg."""
    return kind in ForkingPickler(BytesIO()).dispatch_table     # it merges both registries


@cache
def is_namedtuple(kind):
    """A class of collections.namedtuple or typing.NamedTuple, which is pickled in their way."""
    return (
        type(kind) is type      # a metaclass may call two classes equal
        and issubclass(kind, tuple)
        and kind.__bases__ == (tuple,)
        and hasattr(kind, "_fields")
        and hasattr(kind, "_make")
        and kind.__iter__ is tuple.__iter__     # pickle asks it for the fields
        and kind.__len__ is tuple.__len__
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
        and not any([hasattr(kind, name) for name in own])
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


@cython.final
cdef class Tree:
    """Joins the batches of one plan from their leaves and objects.

    A worker may have overwritten the plan, so it is checked here: it must be one tree, no deeper than walk() makes one.
    """

    def __init__(self, tuple plan not None):
        cdef cursor at = cursor(0, 0, 0)
        self.plan, self.again = plan, set()
        self.check(&at, 0)
        if at.node != len(plan):
            raise overwritten("the length of a plan", len(plan), at.node)

    cdef int check(self, cursor *at, int depth) except -1:
        cdef object token = self.plan[at.node], kind, what
        at.node += 1
        if depth > deepest + 1:
            raise overwritten("the depth of a plan", depth, deepest + 1)
        if token is None:
            at.other += 1
            return 0
        if is_leaf(token):
            at.leaf += 1
            return 0
        if type(token) is not tuple:    # join() takes everything else for a leaf
            raise TypeError(f"a token of a plan is {token!r:.100}")
        kind, what = token
        if kind is Again:
            if not 0 <= what < at.leaf:
                raise overwritten("the number of a leaf that was met before", what, f"below {at.leaf}")
            self.again.add(what)
            return 0
        count = what if isinstance(what, int) else len(what) + issubclass(kind, Tensor)
        if not 0 <= count <= len(self.plan) - at.node:
            raise overwritten("the number of a node's children", count, len(self.plan) - at.node)
        for _ in range(count):
            self.check(at, depth + 1)
        return 0

    cpdef object joined(self, list leaves, list others):
        """The batch.  Other threads may use this tree meanwhile."""
        cdef cursor at = cursor(0, 0, 0)
        return self.join(&at, leaves, others)

    cdef object join(self, cursor *at, list leaves, list others):
        cdef object token = self.plan[at.node], kind, what, made, state
        cdef Py_ssize_t leaf
        at.node += 1
        if token is None:
            at.other += 1
            return others[at.other - 1]
        if type(token) is not tuple:
            at.leaf += 1
            return leaves[at.leaf - 1]
        kind, what = (<tuple>token)[0], (<tuple>token)[1]
        if kind is dict:
            made = {}
            for name in what:
                (<dict>made)[name] = self.join(at, leaves, others)
            return made
        if kind is list:
            return self.several(what, at, leaves, others)
        if kind is tuple:
            return tuple(self.several(what, at, leaves, others))
        if kind is Again:
            return leaves[what]
        if isinstance(what, int):
            return kind._make(self.several(what, at, leaves, others))
        if issubclass(kind, Tensor):    # made as torch unpickles one
            leaf = at.leaf
            made = as_subclass(self.join(at, leaves, others), kind)
            for name in what:
                setattr(made, name, self.join(at, leaves, others))
            if leaf in self.again:
                leaves[leaf] = made     # what occurs again is not its elements alone
            return made
        made = object.__new__(kind)
        state = made.__dict__
        for name in what:
            state[name] = self.join(at, leaves, others)
        return made

    cdef list several(self, Py_ssize_t count, cursor *at, list leaves, list others):
        cdef list made = []
        cdef object token
        cdef Py_ssize_t k
        for k in range(count):
            token = self.plan[at.node]
            if token is None or type(token) is tuple:
                made.append(self.join(at, leaves, others))
            else:       # as join() does, without a call
                made.append(leaves[at.leaf])
                at.node += 1
                at.leaf += 1
        return made
