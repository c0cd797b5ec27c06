"""What is loaded: the cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch.utils.data import Dataset, default_collate

from bench import samples
from bench.jpegs import SIZE, Jpegs

ENDLESS = 1 << 40  # samples; no measurement gets to the end of an epoch


@dataclass(frozen=True)
class Case:
    """One kind of batch.

    Args:
        name: for the command line and the JSON.
        label: for tables and pictures.
        batch_size: samples in a batch.
        pool: makes the prebuilt samples; None where files are decoded.
        collate: None is torch's default.
        is_large: whether copying its bytes is what takes the time, so that a ceiling of copying says something.
        decoder: of files, see Jpegs.
        needs: modules that are no part of the bench's own extras.
    """

    name: str
    label: str
    batch_size: int
    pool: Callable[[], list[Any]] | None = None
    collate: Callable[[list[Any]], Any] | None = None
    is_large: bool = False
    decoder: str = ""
    needs: tuple[str, ...] = ()

    @property
    def has_work(self) -> bool:
        """Whether its own code takes time, in the dataset or in collating, that no loader can save."""
        return bool(self.decoder) or self.collate is samples.padded

    def dataset(self, length: int, data: str) -> Dataset[Any]:
        """Its samples.

        Args:
            length: samples in an epoch.
            data: folder of JPEG files, where it decodes some.
        """
        return samples.Pool(self.pool(), length) if self.pool else Jpegs(data, self.decoder, length)

    def batch(self, dataset: Dataset[Any], number: int) -> Any:
        """The batch of this number, as every loader has to deliver it."""
        first = number * self.batch_size
        return (self.collate or default_collate)([dataset[k] for k in range(first, first + self.batch_size)])

    @cached_property
    def batch_bytes(self) -> int:
        """Bytes of a batch; where that varies, of the mean one."""
        if self.pool is None:
            return self.batch_size * 3 * SIZE * SIZE
        data, several = self.dataset(ENDLESS, ""), samples.PERIOD if self.collate else 1
        return sum(leaf.nbytes for k in range(several) for leaf in samples.leaves(self.batch(data, k))) // several


def _uniform(dtype: torch.dtype, shape: tuple[int, ...], tensors: int = 1) -> Callable[[], list[Any]]:
    return partial(samples.uniform, dtype, shape, tensors)


CASES = {
    case.name: case
    for case in (
        Case("scalar", "one float32 scalar", 1, _uniform(torch.float32, ())),
        Case("small-images", "uint8 128 x 3x32x32", 128, _uniform(torch.uint8, (3, 32, 32))),
        Case("uint8-images", "uint8 256 x 3x224x224", 256, _uniform(torch.uint8, (3, 224, 224)), is_large=True),
        Case("float32-images", "float32 64 x 3x224x224", 64, _uniform(torch.float32, (3, 224, 224)), is_large=True),
        Case("dict", "dict of 120 float32 8 x 4", 8, _uniform(torch.float32, (4,), 120)),
        Case("detections", "120 ragged tensors, 24 pictures", 24, samples.detections, samples.as_lists),
        Case("tokens", "int64 64 sequences, padded", 64, samples.tokens, samples.padded),
        Case("jpeg-pil", "JPEG, PIL, uint8 32 x 3x224x224", 32, decoder="pil", needs=("PIL",)),
        Case(
            "jpeg-simplejpeg",
            "JPEG, simplejpeg, uint8 32 x 3x224x224",
            32,
            decoder="simplejpeg",
            needs=("simplejpeg", "cv2"),
        ),
    )
}
TRANSPORT = ("uint8-images", "float32-images", "small-images", "scalar", "dict")  # of one shape, by default_collate
SPAWN, EPOCH = "spawn", "epoch"
TIMES = {  # further cases of the race that are a time and not a rate
    SPAWN: "spawn: to the first batch of a dataset that holds 128 MB of paths, 4 workers",
    EPOCH: "epoch restart: from the last batch to the next epoch's first, uint8 128 x 3x32x32",
}


def label(name: str) -> str:
    """What a case is called in tables and pictures."""
    return TIMES[name] if name in TIMES else CASES[name].label
