"""`freeze(dataset)`: the large attributes of a dataset as columns in memory that all processes of a machine share.

What is replaced, and what stays as it is, is decided in plan.py.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import TypeVar

from shmloader.frozen import one_copy
from shmloader.frozen.plan import LEAST, planned
from shmloader.system.sealed_memory import NoRoom, Writer, no_room

Kind = TypeVar("Kind")


def freeze(dataset: Kind, *, least: int = LEAST, share_with_ranks: bool = True) -> Kind:
    """Move the large attributes of a dataset into memory that its workers share.

    A worker that reads a list changes the reference counts of its items, and so copies the list page by page.  With a
    million paths and eight workers that makes eight copies; a spawned worker has a copy from the start.  A frozen list
    is one block of bytes for all workers, and an item becomes an object only when you ask for it.

    These are frozen: lists of strings, bytes, numbers, None, NumPy's scalars and arrays, and of tuples and dicts of
    these; lists of lists and of sets, if nothing in them is NumPy's; dicts whose keys are all strings or all integers,
    with such values; NumPy's arrays and CPU tensors of 4 KiB and more.  freeze() searches the attributes of the
    dataset, and those of the plain objects, short lists, tuples and dicts in them.  So it also freezes what torch's
    Subset and ConcatDataset hold.  Everything else stays as it is; `shmloader.frozen.explain` lists it with the reason.

    A frozen list or dict reads like the original, and its items equal the original items.  But it is no `list`, so
    json.dumps refuses it.  Slices of it are lists.  It cannot be changed: change the original before you freeze the
    dataset, or assign list(...) of it to the attribute.  Each access makes a new item, so what you write into an inner
    list or dict is lost.  You can write to arrays and tensors; a write stays in its process.

    Args:
        dataset: A dataset of any class.  It is changed: its attributes are replaced.
        least: Lists and dicts of fewer items stay as they are.
        share_with_ranks: Whether ranks of one machine that freeze the same bytes share one copy, if torch.distributed
            is initialised.  No rank waits for another.

    Returns:
        The same dataset.

    Raises:
        ValueError: `least` is negative.
        MemoryError: The machine, or the control group, has less memory available than the copy takes.  The dataset
            is unchanged.

    Example:
        >>> import shmloader
        >>> class Paths:
        ...     def __init__(self):
        ...         self.samples = [(f"{k}.jpg", k % 10) for k in range(1000)]
        ...     def __len__(self):
        ...         return len(self.samples)
        ...     def __getitem__(self, index):
        ...         return self.samples[index]
        >>> dataset = shmloader.freeze(Paths())
        >>> dataset[7]
        ('7.jpg', 7)
        >>> dataset.samples.append(("1000.jpg", 0))
        Traceback (most recent call last):
        ...
        AttributeError: 'FrozenList' object has no attribute 'append'
    """
    if least < 0:
        raise ValueError(f"least should be a number of items, 0 or more, but got least={least!r}.")
    if _replace(dataset, least, share_with_ranks):
        _trim()  # gives the originals' pages back; otherwise glibc keeps them, and later forks copy them
    return dataset


def _replace(dataset: object, least: int, share_with_ranks: bool) -> bool:
    """Replace what can be frozen; false if there is nothing."""
    writer = Writer()
    try:
        plan = planned(dataset, writer, least)
        if plan.is_empty:
            return False
        memory = writer.sealed()
    except NoRoom:
        raise
    except MemoryError as error:
        raise no_room(writer.size, "the process can allocate no more of it") from error
    finally:
        writer.close()
    if share_with_ranks:
        memory = one_copy.one_of_machine(memory)
    plan.carry_out(memory)
    return True


def _trim() -> None:
    """Return freed memory to the kernel, if whole pages are free.

    glibc returns only the heap's end.  The free pages below it would be copied for each forked worker that allocates
    there.  The call takes some milliseconds for each 100 MB.
    """
    with contextlib.suppress(AttributeError, OSError):  # only glibc has this function
        ctypes.CDLL(None).malloc_trim(0)
