"""What random pipelines found where fuse() differed from torchvision: small cases of each kind."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import v2

from shmloader import images
from shmloader.images import canvas

MODE = v1.InterpolationMode


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pictures") / "a"
    root.mkdir()
    for width, height in ((90, 70), (70, 90), (33, 33), (41, 1), (1, 37), (1, 1)):
        noise = np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(noise).save(root / f"{width}x{height}.jpg")
    (root / "empty.jpg").write_bytes(b"")
    whole = (root / "90x70.jpg").read_bytes()
    (root / "half.jpg").write_bytes(whole[: len(whole) // 2])
    return root.parent


def own(image: Any) -> Any:
    random.random()
    raise KeyError("a user's own error")


def made(dataset: Any, index: int, seed: int) -> tuple[Any, Any]:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    try:
        result = np.asarray(dataset[index][0]).tolist()
    except Exception as error:
        # Of a file that is broken ours names the path too.
        of_file = isinstance(error, OSError)
        result = type(error), "" if of_file else str(error)
    return result, (torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state()))


CASES: dict[str, Any] = {
    "cut twice, the second time larger": lambda v: [v.CenterCrop(20), v.CenterCrop(50)],
    "cut, flipped, cut larger": lambda v: [v.CenterCrop((30, 20)), v.RandomHorizontalFlip(1.0), v.CenterCrop(60)],
    "cut, and padded with black": lambda v: [v.RandomCrop(1), v.Pad((7, 3, 0, 4))],
    "padded twice": lambda v: [v.Pad(3), v.Pad((5, 0))],
    "only what was padded is seen": lambda v: [v.Pad(200), v.RandomCrop(5)],
    "padded by less than nothing": lambda v: [v.Pad(-3)],
    "padded by an edge of nothing": lambda v: [v.Pad((-2, 3, -40, 5), padding_mode="edge")],
    "a colour of two numbers": lambda v: [v.RandomInvert(), v.RandomRotation(30, fill=(1, 2))],
    "a colour beyond bytes": lambda v: [v.RandomAffine(30, fill=(300, -5, 7))],
    "a colour by name": lambda v: [v.RandAugment(fill="red" if v is v1 else 7)],
    "mirrored by more than the picture": lambda v: [v.RandomCrop((9, 50), 4, True, 0, "reflect")],
    "mirrored with the edge": lambda v: [v.RandomCrop((9, 50), 4, True, 0, "symmetric")],
    "turned by three quarters": lambda v: [v.RandomAffine((270, 270), shear=10, interpolation=MODE.BILINEAR)],
    "turned by three quarters, smooth": lambda v: [
        v.RandomAffine((270, 270), None, None, (3, 4), MODE.BICUBIC, 7, (5, 10))
    ],
    "an edge with a colour by kind": lambda v: [v.RandomCrop(9, 4, True, {Image.Image: 3}, "edge")],
    "resized to nothing": lambda v: [v.Resize(2, max_size=3), v.PILToTensor()],
    "too small": lambda v: [v.ColorJitter(0.5), v.RandomCrop(60)],
    "one's own error": lambda v: [v.RandomHorizontalFlip(), own, v.ColorJitter(0.5)],
    "erased by two numbers": lambda v: [v.ColorJitter(0.5), v.PILToTensor(), v.RandomErasing(1.0, value=(1, 2))],
    "a deviation too small for the dtype": lambda v: [
        v.RandomCrop(1),
        v.PILToTensor(),
        v.ConvertImageDtype(torch.float16),
        v.Normalize((0.5,) * 3, (0.5, 0.5, 1e-8)),
    ],
}  # fmt: skip


@pytest.mark.parametrize("transforms", [v1, v2], ids=["v1", "v2"])
@pytest.mark.parametrize("case", CASES)
def test_same_samples_and_errors(folder: Path, case: str, transforms: Any) -> None:
    plain = torchvision.datasets.ImageFolder(folder, v1.Compose(CASES[case](transforms)))
    fused = images.fuse(plain)
    for index in range(len(plain)):
        for seed in range(3):
            assert made(fused, index, seed) == made(plain, index, seed), (plain.samples[index], seed)


@pytest.mark.parametrize("policy", ["rand-m9-n4", "original", "augmix-m5-w2"])
def test_three_numbers_of_a_colour_where_the_picture_has_one_channel(folder: Path, policy: str) -> None:
    """timm fills with the mean of three channels, so Pillow refuses what moves a picture of mode L."""
    timm = pytest.importorskip("timm.data.auto_augment")
    options = {"img_mean": (124, 116, 104)}
    if policy.startswith("augmix"):
        augment = timm.augment_and_mix_transform(policy, options)
    else:
        make = timm.rand_augment_transform if policy.startswith("rand") else timm.auto_augment_transform
        augment = make(policy, options)
    plain = torchvision.datasets.ImageFolder(folder, v1.Compose([v1.Grayscale(), augment, v1.PILToTensor()]))
    fused = images.fuse(plain)
    outcomes = [(made(fused, 2, seed), made(plain, 2, seed)) for seed in range(20)]
    assert all(one == other for one, other in outcomes)
    assert any(one[0][0] is TypeError for one, _ in outcomes)


def test_a_kept_exception_keeps_no_sample_from_being_made(folder: Path) -> None:
    """Its traceback's frames hold the array that the picture was decoded into."""
    plain = torchvision.datasets.ImageFolder(folder, v1.Compose([v1.ColorJitter(0.5), v1.PILToTensor()]))
    fused = images.fuse(plain)
    broken = [path.endswith("half.jpg") for path, _ in plain.samples].index(True)
    good = [path.endswith("90x70.jpg") for path, _ in plain.samples].index(True)
    errors = []
    for _ in range(3):
        fused[good]
        try:
            fused[broken]
        except OSError as error:
            errors.append(error)
    assert len(errors) == 3
    assert fused[good][0].shape == (3, 70, 90)
    assert all(not buffer.views for buffer in canvas._idle)
