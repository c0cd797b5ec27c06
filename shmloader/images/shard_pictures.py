"""Pictures in shards: their bytes go from a tar archive, or a column, to the row, and are decoded only there.
Decides which extensions "image" and "label" mean in a tar archive.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.utils.data import Dataset

from shmloader.images.following import Following
from shmloader.images.pictures import explained
from shmloader.storage.shards import Shards, named_columns

__all__ = ["ShardPictures", "shard_pictures"]

# The extensions that "image" and "label" mean in tar archives.
_IMAGE, _LABEL = "jpg;jpeg;png;webp;ppm;bmp;tif;tiff", "cls"


class ShardPictures(Dataset[Any]):
    """The result of fuse() for shards: samples (image, label).

    Args:
        shards: The shards with the pictures.
        image, label: Names of members or columns, see Shards; without a label, a sample is the image alone.
        reader: Makes images.
    """

    is_fused = True

    def __init__(self, shards: Shards, image: str, label: str | None, reader: Following) -> None:
        self.dataset = shards
        self._columns = named_columns([image] if label is None else [image, label])
        self._decoded = [False, True][: len(self._columns)]
        self._reader = reader

    @property
    def on_device(self) -> Any:
        """See fuse()."""
        return self._reader.on_device

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self._sample(index, None)

    def __getitem_into__(self, index: int, row: Any) -> Any:
        """The sample; its image is written to its place in a batch if it has that shape: see docs/images.md."""
        return self._sample(index, row if len(self._columns) == 1 else row[0])

    def __place__(self, index: int) -> Any:
        """See Shards."""
        return self.dataset.__place__(index)

    def __prefetch__(self, indices: Iterable[int]) -> None:
        """See Shards."""
        self.dataset.__prefetch__(indices, self._columns)

    def explain(self, measure: bool = False) -> str:
        """What is fused, and what is not and why: a line for each transform.

        Args:
            measure: whether to add the cost of each part of a sample: microseconds of CPU, over up to 32 samples that
                are made for it.  The states of the generators do not change.
        """

        def file(at: int) -> Any:
            picture = self.dataset.values(at, self._columns[:1], [False])[0]
            return picture[0] if isinstance(picture, tuple) else picture

        return explained("Shards are fused:", self._reader, measure, len(self), file)

    def __repr__(self) -> str:
        return f"Fused: {self.dataset!r}"

    def _sample(self, index: int, out: Any) -> Any:
        picture, *label = self.dataset.values(index, self._columns, self._decoded)
        # `datasets` writes a struct of bytes and path, and turns pictures upright when it reads them.
        is_turned = isinstance(picture, tuple)
        image = self._reader(picture[0] if is_turned else picture, out, must_fit=False, is_turned=is_turned)
        return (image, *label) if label else image


def shard_pictures(
    shards: Shards, transform: Any, image: str, label: str | None, exact: bool, scale_on_device: bool
) -> ShardPictures:
    """Fuse shards: see fuse()."""
    if shards.is_tar:
        image = _IMAGE if image == "image" else image
        label = _LABEL if label == "label" else label
    return ShardPictures(shards, image, label, Following(transform, exact, scale_on_device))
