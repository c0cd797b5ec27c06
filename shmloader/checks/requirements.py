"""Checks what a loader's options need of its other arguments, its dataset and this machine, and whether it can ride.

To refuse another combination, add it to check_requirements(): an UnsuitableOption, which names the option, because
patch_torch() leaves that out.

options.py checks whether a value is one that an option may have, and two pairs of options that need only each other.
torch's constructor checks torch's own arguments.

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

import torch
import torch.utils.data
from torch.utils.data import IterableDataset

from shmloader.far_workers import WorkerCount
from shmloader.options import ONLY_ON_THE_RING, OptionOfTheRing, Options, UnsuitableOption
from shmloader.private import of_torch, replaced
from shmloader.protocols.places import storage_place
from shmloader.protocols.row_wise import is_row_wise
from shmloader.system.user_line import warn_once


def check_requirements(loader: Any, options: Options) -> None:
    """Check whether a loader can have these options.

    Raises:
        UnsuitableOption: It cannot.
    """
    if options.far_workers is not None:  # first, because others speak of num_workers
        _check_far_workers(loader, options)
    if options.device is not None:
        _check_device(torch.device(options.device), options)
    if isinstance(loader.dataset, IterableDataset) or of_torch.is_pipe(loader.dataset):
        _check_stream(loader, options)
    _check_fetcher(loader, options)
    if not loader.in_order:
        _check_out_of_order(options)
    for name, given in (("chunk_size", options.chunk_size), ("group_by", options.group_by)):
        if given is not None:
            _check_rows(loader, name)
    if isinstance(options.group_by, str) and storage_place(loader.dataset) is None:
        raise UnsuitableOption(
            f"group_by='place' asks the dataset where samples lie, but {type(loader.dataset).__name__} has no "
            "__place__(index). Write that method: it returns the shard, the row group or the file of a sample. Or give "
            "a function of an index instead of 'place'.",
            "group_by",
        )
    if options.look_ahead and loader.num_workers and options.look_ahead > loader.prefetch_factor:
        raise UnsuitableOption(
            f"look_ahead={options.look_ahead} is more than prefetch_factor={loader.prefetch_factor}. A worker knows "
            "the indices of prefetch_factor batches at most, the one that it makes included. "
            f"Give prefetch_factor={options.look_ahead} too, or a smaller look_ahead.",
            "look_ahead",
        )


def _check_device(device: torch.device, options: Options) -> None:
    if device.type == "cpu":
        return  # not even asked for: asking starts CUDA's driver, and then no forked process can use CUDA
    from shmloader.device import accelerator  # here, because most loaders need none

    present = accelerator.kind()
    if device.type != present:
        found = f"whose accelerator is {present!r}" if present else "which finds no accelerator"
        raise UnsuitableOption(
            f"device={options.device!r} is no device of this torch ({torch.__version__}), {found}. "
            f"Use {present or 'cpu'!r}, or a torch that was built for it.",
            "device",
        )
    if device.index is not None and device.index >= accelerator.count():
        raise UnsuitableOption(
            f"device={options.device!r} does not exist. This process sees {accelerator.count()}, counted from 0. Use "
            "one of these, or change CUDA_VISIBLE_DEVICES.",
            "device",
        )


def _check_fetcher(loader: Any, options: Options) -> None:
    for option in [*_in_order_of_samples(options), *(["on_bad_sample='skip'"] if options.skips_bad_samples else [])]:
        if (by := replaced.fetcher(isinstance(loader.dataset, IterableDataset))) is not None:
            raise UnsuitableOption(replaced.refusal(option, by), option)


def _in_order_of_samples(options: Options) -> list[str]:
    """The options that need to know the order of an epoch's samples."""
    asked = {
        "schedule='steal'": options.steals,
        "chunk_size": options.chunk_size is not None,
        "group_by": options.group_by is not None,
        "sample_seeds=True": options.sample_seeds,
    }
    return [name for name, given in asked.items() if given]


def _check_stream(loader: Any, options: Options) -> None:
    in_order = "The samples of a stream have no numbers, and each worker reads a part that no other worker can continue"
    refused = dict.fromkeys(_in_order_of_samples(options), in_order)
    if options.look_ahead:
        refused[f"look_ahead={options.look_ahead}"] = "A stream has no indices that could be read before its samples"
    if options.skips_bad_samples:
        refused["on_bad_sample='skip'"] = "A stream's samples have no index from which a replacement could be chosen"
    if options.far_workers is not None:
        refused["far_workers"] = "The place of a stream lies in its worker, and would be lost with a machine"
    for name, why in refused.items():
        raise UnsuitableOption(
            f"{name} needs a map-style dataset, but got {type(loader.dataset).__name__}. {why}. Leave the option out.",
            name,
        )


def _check_out_of_order(options: Options) -> None:
    for name in _in_order_of_samples(options):
        raise UnsuitableOption(
            f"{name} delivers batches in order, but got in_order=False. Leave one of the two out. If workers steal "
            "work, a slow batch holds up none of them.",
            name,
        )


def _check_rows(loader: Any, name: str) -> None:
    if loader.batch_sampler is None:
        raise UnsuitableOption(f"{name} cuts batches, but got batch_size=None. Leave one of the two out.", name)
    if not is_row_wise(loader.collate_fn):
        raise UnsuitableOption(
            f"{name} needs default_collate or a collate_fn that is marked with shmloader.row_wise, but got "
            f"collate_fn={loader.collate_fn!r}. Mark it if each sample's row depends on that sample alone.",
            name,
        )


def _check_far_workers(loader: Any, options: Options) -> None:
    for name, asked, why in (
        ("chunk_size", options.chunk_size is not None, "a far worker sends whole batches"),
        ("group_by", options.group_by is not None, "a far worker sends whole batches"),
        (
            "look_ahead",
            bool(options.look_ahead),
            "a far worker knows no index but those of the batch that it makes",
        ),
        ("in_order=False", not loader.in_order, "which worker makes a batch then depends on who is quicker"),
    ):
        if asked:
            text = f"far_workers and {name} cannot go together: {why}. Leave one of the two out."
            raise UnsuitableOption(text, "far_workers", name)
    context = loader.multiprocessing_context
    if context is not None and getattr(context, "get_start_method", str)() == "fork":
        raise UnsuitableOption(
            "far_workers cannot go with multiprocessing_context='fork', because Ray runs threads in this process, and "
            "a process that is forked beside threads may wait for ever for a lock. Leave multiprocessing_context out: "
            "then workers start by a fork server, which has no threads.",
            "far_workers",
        )
    count = loader.num_workers
    if not isinstance(count, WorkerCount) or count - count.local != options.far_workers.num:
        raise UnsuitableOption(
            f"num_workers={count!r} does not count the {options.far_workers.num} far workers. num_workers "
            "cannot be set later. Give it when the loader is made.",
            "far_workers",
        )


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
