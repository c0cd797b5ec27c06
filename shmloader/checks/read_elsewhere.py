"""Notices if a dataset is read in another way than its user thinks: by another loader than the one of ours that has it,
by torch's own iterator for a loader of ours, or by an inherited `__getitems__` past its own `__getitem__`.

NOTE [ Read elsewhere ]

    1. accelerate, Ray Train and others take a loader of ours apart and build another one from its attributes, without
       our options.  Neither loader can see that: the first is never asked for a batch, and the second is torch's.  They
       have the dataset in common, so each loader of ours leaves a note with its dataset.
    2. All of torch's loaders have only one place in common: each calls the `__init__` of one of torch's two iterators.
       We watch these two calls in three cases only: there is a note of a loader that was not iterated over yet; a user
       has derived a class from our loader and made a loader of it, because such a class may pass its loaders to torch's
       iterator (4); or patch_torch() is in force.  Otherwise torch's classes are as torch made them, unless
       other code's method makes iterators of one of our loaders: NOTE [ Replaced ], (b).
    3. Suppose that a loader of ours was never iterated over, and torch's iterator reads its dataset, with the same
       number of workers and the same collate function.  Then the loader of torch's iterator was probably built from
       ours.  We warn about that, once.
    4. Code may call torch's iterator class by its name and pass it a loader of ours that could ride the ring.  We call
       such a loader escaped.  We warn about it too, or raise an error if the loader has an option that only the ring
       can honour.  `rides_ring` is False until the loader next gets an iterator of ours.
    5. A note outlives a loader that was never iterated over, because accelerate drops the loader that it was given.
       The note is dropped at the latest when the dataset is gone.  A dataset without weak references, such as a list,
       has no notes.

NOTE [ Bypassed ]

torch's loader asks a dataset for a whole batch if it has a `__getitems__`.  If a class derives from such a dataset and
overrides only `__getitem__`, for example to augment samples, batches have the samples of the class above.  If a wrapper
has a `__getattr__` that passes every name on to the dataset inside, batches have the samples of that dataset.  torch
gives no warning, but newer versions of its Subset raise in their constructor.

Many a `__getitems__` calls the dataset's own `__getitem__`.  Then all is well, so the source of the method is read, and
that of the methods that it calls.  A method without source is trusted.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import textwrap
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch.utils.data
from torch.utils.data import IterableDataset

from shmloader.checks import requirements
from shmloader.far_workers import local_workers
from shmloader.options import DEFAULTS, Options
from shmloader.private import of_torch, replaced
from shmloader.protocols.user_objects import ByIdentity, asked_for_batches, attribute
from shmloader.resume.place import place_of
from shmloader.system.user_line import warn_once


class Note:
    """A note about a loader of ours, which outlives the loader.

    Attributes:
        loader: The loader.
        iterated: Whether it was ever asked for an iterator.
        options: Its options that differ from the defaults, as in a call.
    """

    def __init__(self, loader: Any, options: str) -> None:
        self.loader = weakref.ref(loader)
        self.iterated = False
        self._may_escape = type(loader).__module__.partition(".")[0] != __name__.partition(".")[0]
        self.options = options
        self._num_workers = loader.num_workers, local_workers(loader)  # the latter if a framework counts no far ones
        self._collate_fn = _weak(loader.collate_fn)

    @property
    def is_open(self) -> bool:
        """Whether torch's iterators must be watched because of this loader."""
        return not self.iterated or (self._may_escape and self.loader() is not None)

    def is_like(self, num_workers: int, collate_fn: Any) -> bool:
        """Whether a loader with these may have been built from this one; None: the default collate function."""
        return num_workers in self._num_workers and (collate_fn is None or _is_same(self._collate_fn(), collate_fn))


_PLAIN = (bool, int, float, str, torch.device)


def _is_same(one: Any, other: Any) -> bool:
    """Whether two arguments of loaders are the same.  A function or an object is known by identity: it may define `==`.

    A method is another object each time, so it is known by its function and by the object that it is of.
    """
    if type(one) is types.MethodType and type(other) is types.MethodType:
        return one.__self__ is other.__self__ and one.__func__ is other.__func__
    return one is other or (type(one) is type(other) and type(one) in _PLAIN and bool(one == other))


def _weak(found: Any) -> Callable[[], Any]:
    try:
        return weakref.WeakMethod(found) if attribute(found, "__self__") is not None else weakref.ref(found)
    except TypeError:
        return lambda: found


MOST = 16  # notes of one dataset
_notes: ByIdentity[list[Note]] = ByIdentity()  # by dataset, the latest last


_escaped: ByIdentity[str] = ByIdentity()  # loaders of ours whose latest iterator was torch's, and why


def enrol(loader: Any) -> None:
    """Leave a note of a loader that is being built."""
    asked = Options.of(loader)
    options = ", ".join(
        f"{name}={given!r}" if type(given) in _PLAIN else name  # a note may outlive an object, and its repr() may raise
        for name, default in DEFAULTS.items()
        if not _is_same(given := getattr(asked, name), default)
    )
    with contextlib.suppress(TypeError):  # it can have no weak reference
        notes = _notes.setdefault(loader.dataset, [])
        wanted = [note for note in notes if note.loader() is not None or not note.iterated]
        notes[:] = [*wanted[-MOST:], Note(loader, options)]
    _watch_while_needed()


def _notes_of(dataset: Any) -> list[Note]:
    return list(_notes.get(dataset, ()))


def iterates(loader: Any) -> None:
    """Record that a loader of ours makes an iterator of ours."""
    _escaped.pop(loader, None)
    for note in _notes_of(loader.dataset):
        if note.loader() is loader:
            note.iterated = True
    _watch_while_needed()


def comes_back(loader: Any, ask: Callable[[], Any]) -> Any:
    """Ask other code, which has replaced torch's `_get_iterator`, for an iterator.  Warn if that is none of ours.

    Raises:
        RuntimeError: It is none of ours, and an option was given that only the ring can honour.
    """
    place = place_of(loader)
    before = place.current
    iterator = ask()
    if place.current is before:
        why = (
            f"other code has replaced DataLoader._get_iterator ({replaced.where('_get_iterator')}) and makes another "
            "iterator. Have it call the method that it replaces, which returns shmloader's"
        )
        _escaped[loader] = why
        requirements.warn_or_refuse(loader, why)
    return iterator


def why_not(loader: Any) -> str | None:
    """Why this loader's batches do not ride the ring, in general or by their latest iterator; None if they do."""
    return requirements.why_not(loader) or _escaped.get(loader)


# ------------------------------------------------------------------------------------------------- torch's iterators


def _begins(iterator: Any, loader: Any) -> None:
    """Called for each new iterator of torch's own."""
    # of the class: an object may have a __getattr__ that knows every name
    from_ours = hasattr(type(loader), "why_not_ring") and isinstance(loader, torch.utils.data.DataLoader)
    if from_ours:
        _ours_begins(loader)
        return
    if (dataset := getattr(loader, "dataset", None)) is not None:
        _theirs_begins(loader, dataset)
    for listener in list(_listeners):
        listener(loader)


_listeners: list[Callable[[Any], None]] = []


def listen(listener: Callable[[Any], None]) -> None:
    """Call this with each loader, not of ours, for which torch's iterator is made."""
    _listeners.append(listener)
    _watch_while_needed()


def unlisten(listener: Callable[[Any], None]) -> None:
    """Undo listen()."""
    _listeners.remove(listener)
    _watch_while_needed()


def _watch_while_needed() -> None:
    if _listeners or any(note.is_open for _, notes in _notes.items() for note in list(notes)):
        of_torch.watch_iterators(_begins)
    else:
        of_torch.unwatch_iterators()


def _ours_begins(loader: Any) -> None:
    if not loader.num_workers or requirements.why_not(loader) is not None:
        return
    why = (
        "its class, or other code, builds torch's iterator itself. Call self._get_iterator() or super().__iter__() "
        "there, which return shmloader's"
    )
    _escaped[loader] = why
    requirements.warn_or_refuse(loader, why)


def _theirs_begins(loader: Any, dataset: Any) -> None:
    workers, collate = getattr(loader, "num_workers", 0), getattr(loader, "collate_fn", None)
    kind = type(loader)
    for note in _notes_of(dataset):
        if note.iterated or not note.is_like(workers, collate) or not (workers or note.options):
            continue
        lost = note.options and f", and {note.options} has no effect"
        warn_once(
            f"torch's DataLoader reads the dataset of a shmloader.DataLoader that was never iterated over. A framework "
            f"has built a {kind.__name__} from your loader's attributes over {type(dataset).__name__}, as accelerate "
            f"and Ray Train do. Its batches do not ride the ring{lost}. Call shmloader.patch_torch() before you give "
            "the loader to the framework, with the options that the framework's loader should have."
        )


def warn_if_bypassed(loader: Any) -> None:
    """Warn if the `__getitem__` of the loader's dataset is bypassed: once for each class."""
    if loader.batch_sampler is None or isinstance(loader.dataset, IterableDataset):
        return
    for dataset in asked_for_batches(loader.dataset):
        if (owner := _owner(dataset)) is not None:
            kind = type(dataset).__name__
            warn_once(
                f"{kind}.__getitem__ is not called, because {kind} has the __getitems__ of {owner}. A loader calls "
                "that method for a whole batch, as torch's does. Define it in your class, too: "
                "def __getitems__(self, indices): return [self[index] for index in indices]"
            )


def _owner(dataset: Any) -> str | None:
    """The class whose `__getitems__` is called instead of the dataset's own `__getitem__`; None: that is called."""
    kind: Any = type(dataset)
    if any("__getitems__" in vars(base) for base in kind.__mro__):
        return _owner_above(kind)
    if not any("__getattr__" in vars(base) for base in kind.__mro__):
        return None
    other = getattr(getattr(dataset, "__getitems__", None), "__self__", dataset)
    is_wrapper = other is not dataset and inspect.isfunction(getattr(kind, "__getitem__", None))
    return type(other).__name__ if is_wrapper else None


@functools.cache
def _owner_above(kind: type) -> str | None:
    for base in kind.__mro__:
        own = vars(base)
        if "__getitems__" in own:
            return None
        if "__getitem__" in own:
            break
    above = next(base for base in kind.__mro__ if "__getitems__" in vars(base))
    return None if _may_use_items(kind, vars(above)["__getitems__"], set()) else above.__name__


def _may_use_items(kind: type, method: Any, seen: set[Any]) -> bool:
    """Whether a method of a class may call its `__getitem__`, itself or in another method.

    It may if it uses `self` in another way than by its attributes: `self[index]` or `f(self)`.
    """
    if method in seen:
        return False
    seen.add(method)
    if not inspect.isfunction(method) or hasattr(method, "__wrapped__"):  # the source is not all that runs
        return True
    if method.__name__ == "__getitem__" or not method.__code__.co_argcount:
        return True
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
    except (OSError, TypeError, SyntaxError):
        return True
    itself = method.__code__.co_varnames[0]
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    names = {node.attr for node in attributes if _is_itself(node.value, itself)}
    by_attribute = {id(node.value) for node in attributes}
    if "__getitem__" in names or any(
        isinstance(node, ast.Name) and node.id == itself and id(node) not in by_attribute for node in ast.walk(tree)
    ):
        return True
    found = {name: [vars(base)[name] for base in kind.__mro__ if name in vars(base)] for name in names}
    functions = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    called = {node.attr for node in functions if isinstance(node, ast.Attribute) and _is_itself(node.value, itself)}
    if any(not found[name] for name in called):  # an attribute of the instance
        return True
    return any(_may_use_items(kind, each, seen) for parts in found.values() for each in parts if _runs(each))


def _runs(attribute: Any) -> bool:
    """Whether an attribute of a class runs code that gets the instance: a function, a property, a decorator's."""
    return hasattr(type(attribute), "__get__") and not isinstance(attribute, (staticmethod, classmethod))


def _is_itself(node: ast.expr, itself: str) -> bool:
    """Whether an expression is `self` or `super()`."""
    if isinstance(node, ast.Call):
        node = node.func
        return isinstance(node, ast.Name) and node.id == "super"
    return isinstance(node, ast.Name) and node.id == itself
