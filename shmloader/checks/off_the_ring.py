"""Whether a loader's batches ride the ring, and the warning or error if they do not.

NOTE [ Off the ring ]

A loader that cannot ride the ring loads as torch's does: the same batches, without the ring's features.  That is never
silent.  There is a RuntimeWarning, once for each reason in a process, with a remedy.  If the user gave an option that
only the ring can honour (`on_worker_death="respawn"` for example), it is a RuntimeError.  Otherwise a user who relies
on it would notice only when a worker dies.

Without workers there are no batches to transport, so such a loader gets neither the warning nor the error.
"""

from __future__ import annotations

import platform
import sys
import threading
from typing import Any

import torch.utils.data

from shmloader.options import ONLY_ON_THE_RING, OptionOfTheRing, Options
from shmloader.private import of_torch, replaced
from shmloader.system.user_line import warn_once


def why_not_here() -> str | None:
    """Why no loader can ride the ring in this process; None if it can."""
    if sys.platform != "linux" or sys.maxsize < 2**32:
        return f"the ring needs 64-bit Linux, and this is {sys.platform} on {platform.machine()}"
    if why := of_torch.why_not():
        return f"{why}; install a torch that shmloader was tested with, or a newer shmloader"
    return None


def why_not(loader: Any) -> str | None:
    """Why this loader's batches do not ride the ring; None if they do."""
    if loader.num_workers == 0:
        return "num_workers is 0, so this process makes the batches and needs no ring"
    if why := why_never(type(loader)) or replaced.iterators():
        return why
    if _makes_threads(loader.multiprocessing_context):
        return "its multiprocessing_context makes threads, and the ring is for processes: leave use_thread_workers out"
    if of_torch.is_pipe(loader.dataset):
        return "torch seeds and shards DataPipes in ways of its own: use a Dataset or an IterableDataset"
    return _why_not_pinned() if loader.pin_memory and torch.accelerator.is_available() else None


def _why_not_pinned() -> str | None:
    from shmloader.device import accelerator  # here, because most machines that have one use it, and others need none

    if accelerator.kind() is not None:
        return None
    return (
        f"pin_memory=True, and torch names an accelerator ({torch.accelerator.current_accelerator()}) that it was "
        "not built for: use a torch that was, or pin_memory=False"
    )


def _makes_threads(context: Any) -> bool:
    """Whether a context's processes are threads, as in MONAI's ThreadDataLoader."""
    made = getattr(context, "Process", None)
    return isinstance(made, type) and issubclass(made, threading.Thread)


def why_not_of(kind: type) -> str | None:
    """Why no loader of this class rides the ring; None if it may, as far as the class shows.

    `_get_iterator` is torch's hook.  A class that overrides it rides if the override calls super()._get_iterator(), or
    the method that it replaces, and comes before ours in the method resolution order.  After ours, it would never be
    called, so torch's iterator is used then.
    """
    stock = vars(torch.utils.data.DataLoader)["_get_iterator"]
    before = True
    for base in kind.__mro__:
        found = vars(base).get("_get_iterator", stock)
        if getattr(found, "__module__", "").startswith("shmloader."):
            before = False
        elif found is not stock and not (before and replaced.asks_another(found, kind)):
            remedy = (
                "derive from a loader that leaves _get_iterator alone, or override __iter__ and call super()"
                if before
                else f"name {base.__name__} before shmloader's class, if its _get_iterator() calls super()'s"
            )
            return (
                f"{kind.__name__} takes its iterators from {base.__module__}.{base.__qualname__}._get_iterator, and "
                f"not from shmloader: {remedy}"
            )
    return None


def why_never(kind: type) -> str | None:
    """Why no loader of this class rides the ring in this process; None if it may."""
    return why_not_here() or why_not_of(kind)


def calls_back(kind: type) -> bool:
    """Whether a class's own `__iter__` gets the iterator from `_get_iterator` or another `__iter__`, by its code."""
    return any(replaced.names(found, "_get_iterator", "__iter__") for found in vars(kind).values())


def warn_or_refuse(loader: Any, why: str) -> None:
    """Warn that a loader with workers does not ride the ring, once for each reason in a process, or refuse to iterate.

    Raises:
        OptionOfTheRing: an option was given that only the ring can honour.
    """
    refuse(loader, why)
    warn_once(
        f"{type(loader).__name__} does not ride shmloader's ring and loads as torch's own loader does: {why}. "
        "loader.rides_ring is True for a loader that does."
    )


def refuse(loader: Any, why: str) -> None:
    """Raise if a loader was given an option that only the ring can honour."""
    asked = Options.of(loader)
    values = {name: getattr(asked, name) for name in ONLY_ON_THE_RING}
    # nothing compares a user's function
    given = {name: value for name, value in values.items() if callable(value) or value != ONLY_ON_THE_RING[name]}
    if given:
        options = ", ".join(f"{name}={value!r}" for name, value in given.items())
        raise OptionOfTheRing(
            f"only the ring can honour {options}, and this {type(loader).__name__} does not ride it: {why}. To load as "
            f"torch's own loader does, leave {'them' if len(given) > 1 else 'it'} out.",
            *given,
        )
