"""What bench recipes calls fused is fused: torchvision's own class, not one with a `__getitem__` of its own."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
import torch

pytest.importorskip("torchvision")

from PIL import Image
from torchvision import transforms

from bench.recipes.ways import samples
from shmloader import images


def test_the_samples_of_the_bench_are_fused(tmp_path: Path) -> None:
    picture = numpy.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=numpy.uint8)
    Image.fromarray(picture).save(tmp_path / "a.jpg")
    made = samples(str(tmp_path), transforms.Compose([transforms.RandomResizedCrop(24), transforms.PILToTensor()]))
    fused = images.fuse(made)
    assert "is fused:\n" in fused.explain()
    torch.manual_seed(1)
    expected, label = made[0]
    torch.manual_seed(1)
    got, same_label = fused[0]
    assert torch.equal(got, expected) and label == same_label == 0
