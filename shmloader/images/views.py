"""Several views of one picture, decoded once, for training like SimCLR, BYOL, DINO and SwAV."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from shmloader.images.cache import Cache
from shmloader.images.decode import Picture
from shmloader.images.reader import Reader

__all__ = ["Views", "ViewsReader", "views"]


class Views:
    """A transform that returns a list: the results of several transforms for one picture.

    Attributes:
        transforms: these, in the order of the list.
    """

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = tuple(transforms)

    def __call__(self, image: Any) -> list[Any]:
        return [transform(image) for transform in self.transforms]

    def __repr__(self) -> str:
        return f"views({', '.join(map(repr, self.transforms))})"


def views(*transforms: Callable[[Any], Any]) -> Views:
    """Make a transform that returns a list of views of a picture, one for each given transform.

    It works with any dataset.  fuse(), ImageFolder and from_bytes decode the picture once for all views, and fuse each
    of them.  For the same seed the views are the same with and without fuse().

    Args:
        transforms: any that fuse() takes: torchvision's, timm's, or a function of a PIL image.  You may give the same
            one more than once.

    Returns:
        A function of a PIL image.  It can be pickled if the transforms can.

    Raises:
        ValueError: there are no transforms.

    Example:
        >>> two = images.views(simclr, simclr)
        >>> train = images.fuse(torchvision.datasets.ImageFolder("train", two))
        >>> dino = images.views(first, second, *[local] * 8)
    """
    if not transforms:
        raise ValueError("views() got no transforms. Give one for each view.")
    return Views(transforms)


class ViewsReader:
    """Reads lists of views: like Reader, with a list of rows instead of a row.

    Args:
        readers: one for each view.
        cache: a cache of decoded pictures, or None.
    """

    def __init__(self, readers: Sequence[Reader], cache: Cache | None = None) -> None:
        self._readers, self._cache = tuple(readers), cache
        self.on_device: Callable[[Any], Any] | None = None

    def costs(self, sources: Sequence[Any]) -> list[tuple[str, float]]:
        """The cost of each part of each view, made on its own; see Reader."""
        return [
            (f"view {number}, {name}", cost)
            for number, reader in enumerate(self._readers, 1)
            for name, cost in reader.costs(sources)
        ]

    def __call__(
        self, source: Any, out: Any = None, *, at: int = 0, must_fit: bool = True, is_turned: bool = False
    ) -> list[Any]:
        """Make the views of a picture.

        Args:
            source, at, must_fit, is_turned: see Reader.
            out: a list of tensors, one for each view.  By default new tensors.

        Raises:
            ValueError: `out` is no list of that many tensors, or one of them has another shape or dtype than its view.
            Exception: as Reader.
        """
        count = len(self._readers)
        is_list = isinstance(out, (list, tuple)) and len(out) == count
        if out is not None and must_fit and not is_list:
            raise ValueError(f"out is no list of {count} tensors. Give one for each view.")
        rows: Sequence[torch.Tensor | None] = out if is_list else [None] * count
        with Picture(source, is_kept=count > 1, is_turned=is_turned, cache=self._cache) as picture:
            return [reader.make(picture, row, must_fit) for reader, row in zip(self._readers, rows, strict=True)]
