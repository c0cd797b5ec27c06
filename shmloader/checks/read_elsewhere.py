"""Notices if another loader reads the dataset of one of our loaders, and if torch's own iterator serves one of our
loaders.

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
       The note is dropped at the latest when the dataset is gone.  Some datasets cannot be weakly referenced, lists for
       example.  The note of such a dataset is dropped at the latest when the last loader of ours over it is gone.
"""

from __future__ import annotations

import contextlib
import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch.utils.data

from shmloader.checks import off_the_ring
from shmloader.options import DEFAULTS, Options
from shmloader.private import of_torch, replaced
from shmloader.protocols.attributes import attribute
from shmloader.resume.place import place_of
from shmloader.system.by_identity import ByIdentity
from shmloader.system.user_line import caller, warn_once
from shmloader.worker_count import local_workers


class Note:
    """A note about a loader of ours, which outlives the loader.

    Attributes:
        loader: The loader.
        iterated: Whether it was ever asked for an iterator.
        options: Its options that differ from the defaults, as in a call.
        reader: The loader that reads its dataset instead, and whether that is ours; None if none does.
    """

    def __init__(self, loader: Any, options: str, gone: Callable[[Any], None] | None) -> None:
        self.loader = weakref.ref(loader, gone)
        self.iterated = False
        self._may_escape = type(loader).__module__.partition(".")[0] != __name__.partition(".")[0]
        self.reader: tuple[str, bool] | None = None
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


class _Readers:
    """The notes of loaders over one dataset.

    Args:
        dataset: The dataset.  One without weak references (a list) is known by its loaders.
    """

    def __init__(self, dataset: Any) -> None:
        self.notes: list[Note] = []
        self.forget = functools.partial(_forget, id(dataset))
        self._dataset: Callable[[], Any] | None = None
        with contextlib.suppress(TypeError):
            self._dataset = weakref.ref(dataset, self.forget)

    def dataset(self) -> Any:
        """The dataset; None if it is gone."""
        if self._dataset is not None:
            return self._dataset()
        return next((loader.dataset for note in self.notes if (loader := note.loader()) is not None), None)

    def add(self, loader: Any, options: str) -> None:
        """Add a note, and drop those that nothing will read."""
        held = [note for note in self.notes if note.loader() is not None or not note.iterated]
        self.notes = [*held[-MOST:], Note(loader, options, self.forget if self._dataset is None else None)]


MOST = 16  # notes of one dataset

_readers: dict[int, _Readers] = {}  # by the dataset's id, because a dataset may define its own ==


def _forget(key: int, gone: Any, readers: dict[int, _Readers] = _readers) -> None:
    """Drop the notes of a dataset that is gone.  At exit the names of this module may be None."""
    found = readers.get(key)
    if found is not None and found.dataset() is None:
        del readers[key]


_escaped: ByIdentity[str] = ByIdentity()  # loaders of ours whose latest iterator was torch's, and why


def enrol(loader: Any) -> None:
    """Leave a note of a loader that is being built."""
    asked = Options.of(loader)
    options = ", ".join(
        f"{name}={given!r}" if type(given) in _PLAIN else name  # a note may outlive an object, and its repr() may raise
        for name, default in DEFAULTS.items()
        if not _is_same(given := getattr(asked, name), default)
    )
    key = id(loader.dataset)
    found = _readers.get(key)
    if found is None or found.dataset() is not loader.dataset:
        found = _readers[key] = _Readers(loader.dataset)
    found.add(loader, options)
    _watch_while_needed()


def _notes_of(dataset: Any) -> list[Note]:
    """The notes of loaders over this dataset, the latest last."""
    found = _readers.get(id(dataset))
    return list(found.notes) if found is not None and found.dataset() is dataset else []


def _note_of(loader: Any) -> Note | None:
    return next((note for note in _notes_of(loader.dataset) if note.loader() is loader), None)


def iterates(loader: Any) -> None:
    """Record that a loader of ours makes an iterator of ours."""
    _escaped.pop(loader, None)
    for note in _notes_of(loader.dataset):
        if note.loader() is loader:
            note.iterated = True
        elif not note.iterated:
            note.reader = f"another shmloader.{type(loader).__name__}", True
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
        off_the_ring.warn_or_refuse(loader, why)
    return iterator


def why_not(loader: Any) -> str | None:
    """Why this loader's batches do not ride the ring, in general or by their latest iterator; None if they do."""
    return off_the_ring.why_not(loader) or _escaped.get(loader)


def read_by_another(loader: Any) -> str | None:
    """The report for a loader that was never iterated over while another one reads its dataset; otherwise None."""
    note = _note_of(loader)
    if note is None or note.iterated or note.reader is None:
        return None
    reader, is_ours = note.reader
    text = f"nothing to judge: this loader was never iterated over, and {reader} reads its dataset. "
    text += "Ask the loader that the loop iterates over"
    return text if is_ours else f"{text}. If a framework built that one, call shmloader.patch_torch() before it does"


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
    if _listeners or any(note.is_open for found in list(_readers.values()) for note in found.notes):
        of_torch.watch_iterators(_begins)
    else:
        of_torch.unwatch_iterators()


def _ours_begins(loader: Any) -> None:
    if not loader.num_workers or off_the_ring.why_not(loader) is not None:
        return
    where = _caller()
    why = (
        f"{where} builds torch's iterator itself. Call self._get_iterator() or super().__iter__() there, "
        "which return shmloader's"
    )
    _escaped[loader] = why
    off_the_ring.warn_or_refuse(loader, why)


def _theirs_begins(loader: Any, dataset: Any) -> None:
    workers, collate = getattr(loader, "num_workers", 0), getattr(loader, "collate_fn", None)
    kind = type(loader)
    for note in _notes_of(dataset):
        if note.iterated:
            continue
        note.reader = f"{kind.__module__}.{kind.__qualname__}", False
        if not note.is_like(workers, collate) or not (workers or note.options):
            continue
        lost = note.options and f", and {note.options} has no effect"
        warn_once(
            f"torch's DataLoader reads the dataset of a shmloader.DataLoader that was never iterated over. A framework "
            f"has built a {kind.__name__} from your loader's attributes over {type(dataset).__name__}, as accelerate "
            f"and Ray Train do. Its batches do not ride the ring{lost}. Call shmloader.patch_torch() before you give "
            "the loader to the framework, with the options that the framework's loader should have."
        )


def _caller() -> str:
    frame, _ = caller()
    if frame is None:
        return "a caller"
    code = frame.f_code
    return f"{getattr(code, 'co_qualname', code.co_name)}() ({code.co_filename}:{frame.f_lineno})"
