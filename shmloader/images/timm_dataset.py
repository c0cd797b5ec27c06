"""timm's ImageDataset, fused, with any reader of timm's.  A broken picture is skipped, as timm does."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from shmloader.images.early_files import EarlyFiles
from shmloader.images.following import Following
from shmloader.images.pictures import Wrapped, explained

__all__ = ["TimmPictures", "why_not"]

_FOLDER = "timm.data.readers.reader_image_folder", "ReaderImageFolder"
_LOG = logging.getLogger("timm.data.dataset")  # timm itself logs skipped pictures here


class TimmPictures(Wrapped):
    """The result of fuse() for timm's ImageDataset.

    Args:
        dataset: timm's; its images have the mode RGB.
        exact, scale_on_device: see fuse().

    Attributes:
        transform: timm's.  If you set another one, as timm's create_loader does, that one is fused.
    """

    is_fused = True

    def __init__(self, dataset: Any, exact: bool, scale_on_device: bool) -> None:
        super().__init__(dataset)
        self._following = Following(_of(dataset), exact, scale_on_device)
        self._early = EarlyFiles()

    @property
    def _reader(self) -> Following:
        """The reader for the current transform."""
        transform = _of(self.dataset)
        if transform is not self._following.transform:
            self._following.transform = transform
        return self._following

    @property
    def on_device(self) -> Any:
        """See fuse()."""
        return self._reader.on_device

    def __getitem__(self, index: int) -> Any:
        return self._sample(index, None)

    def __getitem_into__(self, index: int, row: Any) -> Any:
        """The sample; its image is written to its place in a batch if it has that shape: see docs/images.md."""
        return self._sample(index, row[0])

    def __prefetch__(self, indices: Iterable[Any]) -> None:
        """Begin to read the files of samples that will be needed; returns at once: see docs/look-ahead.md.

        Readers of archives have no such files, and nothing happens.
        """
        if _is_folder(self.dataset.reader):
            self._early.announce(self.dataset.reader.samples, indices)

    def explain(self, measure: bool = False) -> str:
        """What is fused, and what is not and why: a line for each transform.

        Args:
            measure: whether to add the cost of each part of a sample: microseconds of CPU, over up to 32 samples that
                are made for it.  The states of the generators do not change.
        """

        def file(at: int) -> bytes:
            with self.dataset.reader[at][0] as opened:
                data: bytes = opened.read()
            return data

        return explained("timm's ImageDataset is fused:", self._reader, measure, len(self), file)

    def __repr__(self) -> str:
        return f"Fused: {self.dataset!r}"

    def _read(self, index: int) -> tuple[Any, ...]:
        """The bytes of a picture, its target, and any other values that the reader gives."""
        reader = self.dataset.reader
        if _is_folder(reader):
            path, target = reader.samples[index]
            early = self._early.source(path)
            if early is not path:
                return early.data, target
        file, *others = reader[index]
        with file:
            return file.read(), *others

    def _sample(self, index: int, out: Any) -> Any:
        dataset = self.dataset
        tries = getattr(dataset, "_max_retries", 10)
        for _ in range(tries):
            try:
                data, target, *features = self._read(index)
                image = self._reader(data, out, must_fit=False)
                break
            except OSError as error:
                _LOG.warning("Skipped sample (index %s). %s", index, error)
                index = (index + 1) % len(dataset.reader)
        else:
            raise RuntimeError(f"Failed to load {tries} consecutive samples")
        if target is None:
            target = -1
        elif dataset.target_transform is not None:
            target = dataset.target_transform(target)
        return (image, target) if dataset.additional_features is None else (image, target, *features)


def why_not(dataset: Any) -> str:
    """Why timm's dataset cannot be fused; empty if it can."""
    if dataset.load_bytes:
        return "its samples are files' bytes"
    if dataset.input_img_mode != "RGB":
        return f"its pictures are of the mode {dataset.input_img_mode}"
    return ""


def _is_folder(reader: Any) -> bool:
    return (type(reader).__module__, type(reader).__name__) == _FOLDER


def _of(dataset: Any) -> Any:
    return _as_it_is if dataset.transform is None else dataset.transform


def _as_it_is(image: Any) -> Any:
    return image
