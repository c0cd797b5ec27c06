"""A picture that a resize makes larger than a JPEG file can be comes as torchvision makes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from shmloader import images
from tests.images import torchvision_stand_ins as tv

FLOATS = (tv.ToTensor(), tv.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)))
TAILS = {
    "a crop, floats": (tv.CenterCrop((48, 48)), *FLOATS),
    "a crop, bytes": (tv.CenterCrop((48, 48)), tv.PILToTensor()),
    "a crop": (tv.CenterCrop((48, 48)),),
    "mirrored, a crop": (tv.RandomHorizontalFlip(1.0), tv.CenterCrop((48, 48)), *FLOATS),
    "whole": FLOATS,
}


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize(("size", "suffix"), [((3000, 2), "jpg"), ((2, 3000), "png")])
def test_3000_by_2_pixels(tmp_path: Path, size: tuple[int, int], suffix: str, tail: str) -> None:
    path = tmp_path / f"0.{suffix}"
    pixels = np.random.default_rng(1).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    dataset = tv.DatasetFolder([str(path)], tv.Compose([tv.Resize(64), *TAILS[tail]]))
    expected = np.asarray(dataset[0][0])
    assert np.array_equal(np.asarray(images.fuse(dataset)[0][0]), expected)
    fused: Any = images.fuse(dataset, scale_on_device=True)
    sample = fused[0][0]
    if fused.on_device is not None:
        assert sample.dtype is torch.uint8
        sample, _ = fused.on_device((sample[None], 0))
        sample = sample[0]
    assert np.allclose(np.asarray(sample), expected, atol=1e-6)
