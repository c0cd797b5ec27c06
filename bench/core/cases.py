"""What is loaded: the cases, and prepared samples, so that a dataset costs nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy
import torch
from torch.utils.data import Dataset, default_collate

from bench.core.jpegs import SIZE, Jpegs

ENDLESS = 1 << 40  # samples; no measurement gets to the end of an epoch
PERIOD = 61  # samples until a dataset repeats; divides no batch size, so no two batches in a row are alike
SEED = 5


class Pool(Dataset[Any]):
    """Prepared samples, by reference, in an order in which a misplaced batch would be noticed."""

    def __init__(self, samples: list[Any], length: int) -> None:
        self._samples = samples
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self._samples[index % PERIOD]


def uniform(dtype: torch.dtype, shape: tuple[int, ...], tensors: int = 1) -> list[Any]:
    """Tensors of one shape, or dicts of them.  There are only two samples, so that they stay in the cache."""
    made = []
    for value in (1, 2):  # the bytes are written, because untouched pages of zeros would be cheaper to read
        fields = [torch.full(shape, value, dtype=dtype) for _ in range(tensors)]
        made.append(fields[0] if tensors == 1 else {f"field{k}": field for k, field in enumerate(fields)})
    choose = random.Random(SEED)
    return [choose.choice(made) for _ in range(PERIOD)]


class Image(torch.Tensor):
    """A tensor of a class of its own, as those of torchvision's tv_tensors and MONAI are."""


def of_their_class(shape: tuple[int, ...]) -> list[Any]:
    """uniform() float32 tensors of this class."""
    return [sample.as_subclass(Image) for sample in uniform(torch.float32, shape)]


def detections() -> list[Any]:
    """Five tensors a picture, as many rows as it has boxes."""
    generator = torch.Generator().manual_seed(SEED)
    made = []
    for k in range(PERIOD):
        boxes = int(torch.randint(1, 41, (), generator=generator))
        made.append(
            {
                "boxes": torch.rand(boxes, 4, generator=generator),
                "labels": torch.randint(0, 91, (boxes,), generator=generator),
                "area": torch.rand(boxes, generator=generator),
                "iscrowd": torch.zeros(boxes, dtype=torch.uint8),
                "image_id": torch.tensor([k]),
            }
        )
    return made


def as_lists(samples: list[dict[str, torch.Tensor]]) -> dict[str, list[torch.Tensor]]:
    """Collate pictures with their own numbers of boxes, as detection code does: a list a field."""
    return {field: [sample[field] for sample in samples] for field in samples[0]}


def tokens() -> list[Any]:
    """Sequences of 16 to 512 tokens."""
    generator = torch.Generator().manual_seed(SEED)
    lengths = torch.randint(16, 513, (PERIOD,), generator=generator).tolist()
    return [torch.randint(1, 50_000, (length,), generator=generator) for length in lengths]


def padded(samples: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Collate sequences to the longest of them, with a mask."""
    ids = torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids != 0).to(torch.int64)}


def _itself(picture: torch.Tensor) -> torch.Tensor:
    return picture


def beside(
    shape: tuple[int, ...],
    others: Callable[[int], tuple[Any, ...]],
    image: Callable[[torch.Tensor], Any] = _itself,
) -> list[Any]:
    """uniform() uint8 pictures, each with other values beside it.

    Args:
        shape: of a picture.
        others: the values beside the picture of this number.
        image: makes the sample's image from a tensor.
    """
    pictures = uniform(torch.uint8, shape)
    return [(image(picture), *others(k)) for k, picture in enumerate(pictures)]


def nested(shape: tuple[int, ...]) -> list[Any]:
    """uniform() uint8 pictures in a dict in a dict."""
    return [{"inputs": {"image": picture}} for picture in uniform(torch.uint8, shape)]


def path(number: int) -> str:
    return f"/data/train/n01440764/n01440764_{number}.JPEG"


def leaves(batch: Any) -> list[torch.Tensor]:
    """The tensors of a batch, in their order; text has none."""
    if isinstance(batch, torch.Tensor):
        return [batch]
    if isinstance(batch, str):
        return []
    parts = batch.values() if isinstance(batch, dict) else batch
    return [leaf for part in parts for leaf in leaves(part)]


def as_(change: Callable[[Any], Any], batch: Any) -> Any:
    """The batch with each of its leaves changed: tensors to arrays, say, or arrays to tensors."""
    if isinstance(batch, dict):
        return {field: as_(change, part) for field, part in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [as_(change, part) for part in batch]
    return change(batch)


@dataclass(frozen=True)
class Case:
    """One kind of batch.

    Args:
        name: for the command line and the JSON.
        label: for tables and pictures.
        batch_size: samples in a batch.
        pool: makes the prepared samples; None if files are decoded.
        collate: None is torch's default.
        is_large: whether copying its bytes takes most of the time, so that a ceiling of copying is meaningful.
        decoder: of files, see Jpegs.
        needs: modules that are not among the bench's own extras.
        image_alone: the case of the same image with nothing beside it.
    """

    name: str
    label: str
    batch_size: int
    pool: Callable[[], list[Any]] | None = None
    collate: Callable[[list[Any]], Any] | None = None
    is_large: bool = False
    decoder: str = ""
    needs: tuple[str, ...] = ()
    image_alone: str = ""

    @property
    def has_work(self) -> bool:
        """Whether its own code takes time, in the dataset or in collating, that no loader can save."""
        return bool(self.decoder) or self.collate is padded

    def dataset(self, length: int, data: str) -> Dataset[Any]:
        """Its samples.

        Args:
            length: samples in an epoch.
            data: folder of JPEG files, if it decodes some.
        """
        return Pool(self.pool(), length) if self.pool else Jpegs(data, self.decoder, length)

    def batch(self, dataset: Dataset[Any], number: int) -> Any:
        """The batch of this number, as every loader has to deliver it."""
        first = number * self.batch_size
        return (self.collate or default_collate)([dataset[k] for k in range(first, first + self.batch_size)])

    @cached_property
    def batch_bytes(self) -> int:
        """Bytes of a batch; of the mean one, if they vary."""
        if self.pool is None:
            return self.batch_size * 3 * SIZE * SIZE
        data, several = self.dataset(ENDLESS, ""), PERIOD if self.collate else 1
        return sum(leaf.nbytes for k in range(several) for leaf in leaves(self.batch(data, k))) // several


CASES = {
    case.name: case
    for case in (
        Case("scalar", "one float32 scalar", 1, partial(uniform, torch.float32, ())),
        Case("small-images", "uint8 128 x 3x32x32", 128, partial(uniform, torch.uint8, (3, 32, 32))),
        Case(
            "small-images-int",
            "uint8 128 x 3x32x32, int",
            128,
            partial(beside, (3, 32, 32), lambda k: (k,)),
        ),
        Case("image", "uint8 128 x 3x64x64", 128, partial(uniform, torch.uint8, (3, 64, 64))),
        *(
            Case(
                name,
                f"{array}uint8 128 x 3x64x64, {what}",
                128,
                partial(beside, (3, 64, 64), others, torch.Tensor.numpy if array else _itself),
                image_alone="image",
            )
            for name, array, what, others in (
                ("image-int", "", "int", lambda k: (k,)),
                ("image-float", "", "float", lambda k: (k / 7,)),
                ("array-int", "numpy ", "int", lambda k: (k,)),
                ("array-int64", "numpy ", "numpy.int64", lambda k: (numpy.int64(k),)),
                ("image-path", "", "path", lambda k: (path(k),)),
                ("image-mixed", "", "int or bool", lambda k: (k if k % 3 else k % 2 == 0,)),
            )
        ),
        Case(
            "image-nested",
            "dict of dict of uint8 128 x 3x64x64",
            128,
            partial(nested, (3, 64, 64)),
            image_alone="image",
        ),
        Case(
            "image-stacked",
            "uint8 128 x 3x64x64, torch.stack",
            128,
            partial(uniform, torch.uint8, (3, 64, 64)),
            torch.stack,
            image_alone="image",
        ),
        Case("uint8-images", "uint8 256 x 3x224x224", 256, partial(uniform, torch.uint8, (3, 224, 224)), is_large=True),
        Case(
            "float32-images",
            "float32 64 x 3x224x224",
            64,
            partial(uniform, torch.float32, (3, 224, 224)),
            is_large=True,
        ),
        Case(
            "subclass",
            "float32 64 x 3x224x224 of a subclass",
            64,
            partial(of_their_class, (3, 224, 224)),
            is_large=True,
        ),
        Case("dict", "dict of 120 float32 8 x 4", 8, partial(uniform, torch.float32, (4,), 120)),
        Case("detections", "120 ragged tensors, 24 pictures", 24, detections, as_lists),
        Case("tokens", "int64 64 sequences, padded", 64, tokens, padded),
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
