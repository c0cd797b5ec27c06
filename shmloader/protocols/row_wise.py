"""Marks collate functions whose rows can be made in chunks, by several workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch.utils.data import default_collate

from shmloader.protocols.user_objects import attribute

Collate = TypeVar("Collate", bound=Callable[..., Any])

ROW_WISE = "_shmloader_row_wise"


def row_wise(collate_fn: Collate) -> Collate:
    """Mark a collate function that makes, from some of a batch's samples, their rows of the batch.

    With `chunk_size`, such a function is called once for each chunk.  It must return tensors or arrays whose first
    dimension counts the samples, or lists and tuples with one object a sample (strings for example), in any nesting of
    mappings, sequences and dataclasses, of any class.  None stays None.  All samples must be alike in structure, dtype
    and, except for the first dimension, shape.  Attributes of a container or a tensor come from the first chunk.
    `default_collate` need not be marked.

    Args:
        collate_fn: A function, or an object that is called like one.

    Returns:
        The same object, so that this can be a decorator.

    Example:
        >>> @shmloader.row_wise
        ... def collate(samples):
        ...     return torch.stack([torch.as_tensor(sample) for sample in samples])
    """
    setattr(collate_fn, ROW_WISE, True)
    return collate_fn


def is_row_wise(collate_fn: Callable[..., Any]) -> bool:
    return collate_fn is default_collate or attribute(collate_fn, ROW_WISE, False)
