"""images.fuse of a column of pictures, beside a double of `datasets`; with_torchvision/ has tests with the real one."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

from shmloader import images


class Image:
    """As datasets.Image."""

    def __init__(self, mode: str | None = None, decode: bool = True) -> None:
        self.mode, self.decode = mode, decode

    def decode_example(self, value: dict[str, Any]) -> Any:
        return Pillow.open(io.BytesIO(value["bytes"])).convert(self.mode)


class Dataset:
    """As datasets.Dataset, of rows that are stored."""

    def __init__(self, rows: list[Any], features: dict[str, Any]) -> None:
        self.rows, self.features = rows, features

    def with_format(self, kind: str | None) -> Dataset:
        return self

    def select_columns(self, names: list[str]) -> Dataset:
        return Dataset([{name: row[name] for name in names} for row in self.rows], self.features)

    def cast_column(self, name: str, feature: Any) -> Dataset:
        return Dataset(self.rows, {**self.features, name: feature})

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


Dataset.__module__ = "datasets.arrow_dataset"


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Rows of a dataset: two with a picture, and one without."""
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(Image=Image))
    rows: list[Any] = []
    for k in range(2):
        file, pixels = io.BytesIO(), np.random.default_rng(k).integers(0, 256, (5, 5, 3), dtype=np.uint8)
        Pillow.fromarray(pixels).resize((60 + k, 40)).save(file, "JPEG")
        rows.append({"image": {"bytes": file.getvalue(), "path": None}, "label": k})
    return [*rows, {"image": None, "label": 2}]


@pytest.mark.parametrize("mode", ["L", "CMYK", "HSV", "RGB", None])
def test_the_mode_of_a_column(mode: str | None, pictures: list[Any]) -> None:
    feature = Image(mode)
    fused = images.fuse(Dataset(pictures[:2], {"image": feature, "label": None}), np.array)
    assert fused.is_fused is (mode in ("RGB", None)) and fused.is_fused is ("not fused" not in fused.explain())
    for k, row in enumerate(pictures[:2]):
        image, label = fused[k]
        expected = np.array(feature.decode_example(row["image"]))
        assert label == k and image.shape == expected.shape and np.array_equal(image, expected)


def test_a_row_without_a_picture(pictures: list[Any]) -> None:
    fused = images.fuse(Dataset(pictures, {"image": Image(), "label": None}), np.array)
    assert fused[1][1] == 1
    with pytest.raises(ValueError, match=r"row 2 has no picture in the column 'image'"):
        fused[2]
