"""Which collate functions give rows, so that a batch may be made in chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch.utils.data import default_collate

Collate = TypeVar("Collate", bound=Callable[..., Any])

ROW_WISE = "_shmloader_row_wise"


def row_wise(collate_fn: Collate) -> Collate:
    """Say of a collate function that what it makes of some samples is the rows that they would be in the whole batch.

    With `chunk_size`, such a function is called for each chunk.  It must give tensors or arrays whose first dimension
    is that of the samples, or lists and tuples with one object a sample (strings, say), in any nesting of mappings,
    sequences and dataclasses, of whatever class; None stays None.  All samples must be alike in structure, dtype and,
    but for the first dimension, shape.  What a container or a tensor has besides, its attributes, is the first chunk's.
    `default_collate` is known to be so, whatever it is given.

    Args:
        collate_fn: a function, or an object that is called like one.

    Returns:
        The same object, marked; so this can be used as a decorator.
    """
    setattr(collate_fn, ROW_WISE, True)
    return collate_fn


def is_row_wise(collate_fn: Callable[..., Any]) -> bool:
    return collate_fn is default_collate or getattr(collate_fn, ROW_WISE, False)
