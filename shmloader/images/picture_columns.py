"""Hugging Face datasets with a column of pictures: the bytes go from Arrow to the row, and are decoded only there."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from torch.utils.data import Dataset

from shmloader.images.following import Following
from shmloader.images.known import text_of
from shmloader.images.pictures import explained

__all__ = ["Columns", "OnColumn", "columns", "on_column"]


class Columns(Dataset[Any]):
    """The result of fuse() for a Hugging Face dataset: samples (image, label).

    Args:
        dataset: with the pictures' column as it is stored.
        image, label: names of columns; without a label, a sample is the image alone.
        reader: makes images of files.  With an OfMode, nothing is fused.
    """

    def __init__(self, dataset: Any, image: str, label: str | None, reader: Following | OfMode) -> None:
        self.dataset = dataset
        self._image, self._label, self._reader = image, label, reader

    @property
    def is_fused(self) -> bool:
        """See fuse()."""
        return not isinstance(self._reader, OfMode)

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
        return self._sample(index, row if self._label is None else row[0])

    def explain(self, measure: bool = False) -> str:
        """What is fused, and what is not and why: a line for each transform.

        Args:
            measure: whether to add the cost of each part of a sample: microseconds of CPU, over up to 32 samples that
                are made for it.  The states of the generators do not change.
        """

        def file(at: int) -> bytes:
            return _bytes_of(self.dataset[at][self._image])

        heading = f"A datasets.Dataset is {'fused' if self.is_fused else 'not fused'}:"
        return explained(heading, self._reader, measure, len(self), file)

    def __repr__(self) -> str:
        return f"{'Fused' if self.is_fused else 'Not fused'}: {self.dataset!r}"

    def _sample(self, index: int, out: Any) -> Any:
        stored = self.dataset[int(index)]
        picture = stored[self._image]
        if picture is None:
            raise ValueError(
                f"row {index} has no picture in the column {self._image!r}. Filter such rows out first: "
                f"dataset.filter(lambda picture: picture is not None, input_columns={self._image!r})."
            )
        image = self._reader(_bytes_of(picture), out, must_fit=False, is_turned=True)
        return image if self._label is None else (image, stored[self._label])


def _bytes_of(picture: dict[str, Any]) -> bytes:
    """The bytes of a picture's file, from the column or from a file that the column names."""
    data: bytes | None = picture["bytes"]
    if data is None:
        with open(picture["path"], "rb") as file:
            data = file.read()
    return data


class OfMode:
    """Reads the pictures of a column whose feature asks for a mode: `datasets` decodes and converts them.

    Args:
        feature: the column's datasets.Image.
        transform: gets the PIL image.
    """

    on_device = None

    def __init__(self, feature: Any, transform: Any) -> None:
        self._feature, self._transform = feature, transform
        self.notes = [f"  {text_of(transform)}: called as it is: the column has pictures of mode {feature.mode!r}"]

    def __call__(self, source: bytes, out: Any = None, *, must_fit: bool = True, is_turned: bool = False) -> Any:
        return self._transform(self._feature.decode_example({"bytes": source, "path": None}))

    def costs(self, sources: Sequence[bytes]) -> list[tuple[str, float]]:
        """The cost of a sample: see Reader."""
        begin = time.thread_time()
        for source in sources:
            self(source)
        return [("decode and transform", 1e6 * (time.thread_time() - begin) / len(sources))]


def columns(dataset: Any, transform: Any, image: str, label: str | None, exact: bool, scale_on_device: bool) -> Columns:
    """Fuse a Hugging Face dataset: see fuse().

    Raises:
        ValueError: the dataset has no such column, the column has no pictures, or they have another mode than RGB and
            there is no transform.
    """
    feature = dataset.features.get(image) if dataset.features else None
    if type(feature).__name__ != "Image":
        names = (
            ", ".join(name for name, column in dataset.features.items() if type(column).__name__ == "Image") or "none"
        )
        raise ValueError(f"{image!r} is no column of pictures. The columns of pictures are: {names}. Give image=NAME.")
    if label is not None and label not in dataset.features:
        names = ", ".join(dataset.features)
        raise ValueError(f"there is no column {label!r}. The columns are: {names}. Give label=NAME, or label=None.")
    columns = [image] if label is None else [image, label]
    stored = dataset.with_format(None).select_columns(columns)
    stored = stored.cast_column(image, import_module("datasets").Image(decode=False))
    mode = getattr(feature, "mode", None)
    if mode in (None, "RGB"):
        return Columns(stored, image, label, Following(transform, exact, scale_on_device))
    if transform is None:
        raise ValueError(
            f"the column {image!r} has pictures of mode {mode!r}, and without a transform fuse() gives RGB. Give a "
            f"transform that takes such a picture, or cast the column to datasets.Image(mode='RGB')."
        )
    return Columns(stored, image, label, OfMode(import_module("datasets").Image(mode=mode), transform))


class OnColumn:
    """The result of on_column()."""

    def __init__(self, transform: Any, image: str, exact: bool) -> None:
        self._image, self._reader = image, Following(transform, exact)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, self._image: [self._made(picture) for picture in batch[self._image]]}

    def explain(self) -> str:
        """What is fused, and what is not and why: a line for each transform."""
        return "\n".join([f"The column {self._image!r}:", *self._reader.notes])

    def _made(self, picture: Any) -> Any:
        if picture is None:
            raise ValueError(f"a row has no picture in the column {self._image!r}. Filter such rows out first.")
        if not isinstance(picture, dict):
            raise TypeError(
                f"the column {self._image!r} gives {type(picture).__name__}, but on_column needs the bytes of files. "
                f"Cast the column: dataset.cast_column({self._image!r}, datasets.Image(decode=False))."
            )
        return self._reader(_bytes_of(picture), is_turned=True)


def on_column(transform: Any, image: str = "image", *, exact: bool = True) -> OnColumn:
    """Fuse a transform into a function for a Hugging Face dataset's `set_transform` or `with_transform`.

    The dataset must give its pictures as they are stored, so cast the column first.  All columns stay.  Each picture
    is turned upright and converted to RGB, as with fuse(), and then transformed.  If your samples are (image, label),
    use fuse(): it writes them to their place in the batch, which a function for `set_transform` cannot do.

    Args:
        transform: see fuse().
        image: the name of the column.
        exact: see fuse().

    Returns:
        A function of a dictionary of columns.  Its explain() lists what is fused.

    Example:
        >>> pictures = dataset.cast_column("image", datasets.Image(decode=False))
        >>> pictures.set_transform(images.on_column(transform))
    """
    return OnColumn(transform, image, exact)
