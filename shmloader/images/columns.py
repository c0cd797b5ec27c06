"""Hugging Face datasets with a column of pictures: their bytes go from Arrow to the row, undecoded in between."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch.utils.data import Dataset

from shmloader.images.making import Making

__all__ = ["Columns", "columns"]


class Columns(Dataset[Any]):
    """What fuse() gives for a Hugging Face dataset: samples (image, label).

    Args:
        dataset: with the pictures' column as it is stored.
        image, label: names of columns; no label: a sample is the image alone.
        making: of the transform.
        notes: see explain().
        scale_on_device: see fuse().
    """

    is_fused = True

    def __init__(
        self, dataset: Any, image: str, label: str | None, making: Making, notes: str, scale_on_device: bool
    ) -> None:
        self.dataset = dataset
        self._image, self._label, self._notes = image, label, notes
        self._reader = making.reader(scale_on_device)
        self.on_device = self._reader.on_device

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self._sample(self.dataset[int(index)], None)

    def __getitem_into__(self, index: int, row: Any) -> Any:
        """The sample, its image written in its place in a batch where that has its shape: see docs/images.md."""
        return self._sample(self.dataset[int(index)], row if self._label is None else row[0])

    def explain(self) -> str:
        """What is fused, and what is not and why: a line for each transform."""
        return self._notes

    def __repr__(self) -> str:
        return f"Fused: {self.dataset!r}"

    def _sample(self, stored: dict[str, Any], out: Any) -> Any:
        picture = stored[self._image]
        source = picture["bytes"]
        if source is None:
            with open(picture["path"], "rb") as file:
                source = file.read()
        image = self._reader(source, out, must_fit=False, is_turned=True)
        return image if self._label is None else (image, stored[self._label])


def columns(dataset: Any, transform: Any, image: str, label: str | None, exact: bool, scale_on_device: bool) -> Columns:
    """A Hugging Face dataset, fused: see fuse().

    Raises:
        ValueError: it has no such column, or the column has no pictures.
    """
    feature = dataset.features.get(image) if dataset.features else None
    if type(feature).__name__ != "Image":
        names = ", ".join(name for name, of in dataset.features.items() if type(of).__name__ == "Image") or "none"
        raise ValueError(f"{image!r} is no column of pictures. The columns of pictures are: {names}. Give image=NAME.")
    if label is not None and label not in dataset.features:
        names = ", ".join(dataset.features)
        raise ValueError(f"There is no column {label!r}. The columns are: {names}. Give label=NAME, or label=None.")
    kept = [image] if label is None else [image, label]
    stored = dataset.with_format(None).select_columns(kept)
    stored = stored.cast_column(image, import_module("datasets").Image(decode=False))
    making = Making(transform, exact)
    return Columns(
        stored, image, label, making, "\n".join(["A datasets.Dataset is fused:", *making.notes]), scale_on_device
    )
