"""Stand-ins for torchvision's transforms and datasets, of the same names: what fuse() is measured by where it is not.

They work on PIL images, and on tensors where theirs do, by Pillow and torch, and draw what theirs draw
(tests/images/with_torchvision holds fuse() against theirs).
"""

from __future__ import annotations

import enum
import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

FOLDER = "torchvision.datasets.folder"
V1 = "torchvision.transforms.transforms"
V2 = "torchvision.transforms.v2._geometry"


class InterpolationMode(enum.Enum):
    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


def default_loader(path: str) -> Any:
    with open(path, "rb") as file:
        return Image.open(io.BytesIO(file.read())).convert("RGB")


default_loader.__module__ = FOLDER


class DatasetFolder(torch.utils.data.Dataset[Any]):
    """A list of paths; a path's target is its index."""

    def __init__(self, paths: Sequence[str], transform: Any = None, target_transform: Any = None) -> None:
        self.samples = [(str(path), at) for at, path in enumerate(paths)]
        self.classes = [str(at) for at in range(len(paths))]
        self.loader = default_loader
        self.transform, self.target_transform = transform, target_transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        path, target = self.samples[index]
        sample = self.loader(path)
        if self.transform is not None:
            sample = self.transform(sample)
        return sample, target if self.target_transform is None else self.target_transform(target)


DatasetFolder.__getitem__.__module__ = FOLDER


class Stock:
    """A transform, whose options are its attributes."""

    DEFAULTS: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, *values: Any, **named: Any) -> None:
        self.__dict__.update(self.DEFAULTS | named | dict(zip(self.DEFAULTS, values, strict=False)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in vars(self).items())})"


def _size(image: Any) -> tuple[int, int]:
    """Width and height."""
    return image.size if isinstance(image, Image.Image) else tuple(image.shape[:0:-1])


def _cropped(image: Any, left: int, top: int, width: int, height: int) -> Any:
    if isinstance(image, Image.Image):
        return image.crop((left, top, left + width, top + height))
    return image[:, top : top + height, left : left + width]


def _resized(image: Any, height: int, width: int, interpolation: InterpolationMode) -> Any:
    name = interpolation.name.removesuffix("_EXACT")
    return image.resize((width, height), Image.Resampling[name])


class Compose(Stock):
    DEFAULTS = {"transforms": ()}  # noqa: RUF012

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:  # type: ignore[attr-defined]
            image = transform(image)
        return image


class RandomResizedCrop(Stock):
    DEFAULTS = {  # noqa: RUF012
        "size": (32, 32),
        "scale": (0.08, 1.0),
        "ratio": (3 / 4, 4 / 3),
        "interpolation": InterpolationMode.BILINEAR,
        "antialias": True,
    }
    size: Any
    scale: Any
    ratio: Any
    interpolation: Any

    def __call__(self, image: Any) -> Any:
        return _resized(_cropped(image, *self.box(*_size(image))), *self.size, self.interpolation)

    def box(self, width: int, height: int) -> tuple[int, int, int, int]:
        logarithms = torch.log(torch.tensor(self.ratio))
        for _ in range(10):
            area = width * height * torch.empty(1).uniform_(*self.scale).item()
            ratio = torch.exp(torch.empty(1).uniform_(logarithms[0], logarithms[1])).item()
            wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < wide <= width and 0 < high <= height:
                top = torch.randint(0, height - high + 1, (1,)).item()
                return int(torch.randint(0, width - wide + 1, (1,)).item()), int(top), wide, high
        shape = min(max(width / height, min(self.ratio)), max(self.ratio))
        wide = width if width / height <= shape else round(height * shape)
        high = height if width / height >= shape else round(width / shape)
        return (width - wide) // 2, (height - high) // 2, wide, high


class Resize(Stock):
    DEFAULTS = {"size": 40, "interpolation": InterpolationMode.BILINEAR, "max_size": None, "antialias": True}  # noqa: RUF012

    def __call__(self, image: Any) -> Any:
        size: Any = self.size  # type: ignore[attr-defined]
        width, height = _size(image)
        if not isinstance(size, int):
            return _resized(image, *size, self.interpolation)  # type: ignore[attr-defined]
        short, long = size, int(size * max(width, height) / min(width, height))
        most = self.max_size  # type: ignore[attr-defined]
        if most is not None and long > most:
            short, long = int(most * short / long), most
        both = (long, short) if width <= height else (short, long)
        return _resized(image, *both, self.interpolation)  # type: ignore[attr-defined]


class CenterCrop(Stock):
    DEFAULTS = {"size": (32, 32)}  # noqa: RUF012

    def __call__(self, image: Any) -> Any:
        (height, width), (wide, high) = self.size, _size(image)  # type: ignore[attr-defined]
        left = round((wide - width) / 2) if wide >= width else -((width - wide) // 2)
        top = round((high - height) / 2) if high >= height else -((height - high) // 2)
        return _cropped(image, left, top, width, height)  # beyond an edge Pillow makes black


class RandomCrop(Stock):
    DEFAULTS = {"size": (32, 32), "padding": None, "pad_if_needed": False}  # noqa: RUF012

    def __call__(self, image: Any) -> Any:
        (height, width), (wide, high) = self.size, _size(image)  # type: ignore[attr-defined]
        if wide < width or high < height:
            raise ValueError(f"Required crop size {(height, width)} is larger than input image size {(high, wide)}")
        if (high, wide) == (height, width):
            return image
        top = int(torch.randint(0, high - height + 1, (1,)).item())
        return _cropped(image, int(torch.randint(0, wide - width + 1, (1,)).item()), top, width, height)


class RandomHorizontalFlip(Stock):
    DEFAULTS = {"p": 0.5}  # noqa: RUF012

    def __call__(self, image: Any) -> Any:
        if not torch.rand(1) < self.p:  # type: ignore[attr-defined]
            return image
        return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if isinstance(image, Image.Image) else image.flip(-1)


class PILToTensor(Stock):
    def __call__(self, image: Any) -> torch.Tensor:
        return torch.from_numpy(np.array(image)).permute(2, 0, 1)


class ToTensor(Stock):
    def __call__(self, image: Any) -> torch.Tensor:
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().to(torch.get_default_dtype()).div(255)


class ConvertImageDtype(Stock):
    DEFAULTS = {"dtype": torch.float32}  # noqa: RUF012

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        dtype: torch.dtype = self.dtype  # type: ignore[attr-defined]
        return image if image.dtype is dtype else image.to(dtype) / 255


class ToDtype(Stock):
    DEFAULTS = {"dtype": torch.float32, "scale": False}  # noqa: RUF012

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        numbers = image.to(self.dtype)  # type: ignore[attr-defined]
        return numbers * (1.0 / 255) if self.scale and image.dtype is torch.uint8 else numbers  # type: ignore[attr-defined]


class Normalize(Stock):
    DEFAULTS = {"mean": (), "std": (), "inplace": False}  # noqa: RUF012

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        alike: Any = {"dtype": image.dtype, "device": image.device}
        mean, std = (torch.as_tensor(values, **alike).view(-1, 1, 1) for values in (self.mean, self.std))  # type: ignore[attr-defined]
        return (image - mean) / std


class Darker(Stock):
    """A transform of a user's own, which draws."""

    def __call__(self, image: Any) -> Any:
        brighter = float(torch.rand(1)) / 2
        return image.point(lambda value: int(value * (1 - brighter)))


for _stock in (Compose, RandomResizedCrop, Resize, CenterCrop, RandomCrop, RandomHorizontalFlip, PILToTensor):
    _stock.__module__ = V1
for _stock in (ToTensor, ConvertImageDtype, Normalize):
    _stock.__module__ = V1
ToDtype.__module__ = "torchvision.transforms.v2._misc"


def of_v2(transform: Stock) -> Any:
    """The same transforms of version 2."""
    kind = type(transform)
    made = type(kind.__name__, (kind,), {"__module__": V2})()
    made.__dict__.update(vars(transform))
    return made
