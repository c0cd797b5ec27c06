"""Whole pipelines beside torchvision, timm and open_clip: the same samples, and all generators in the same state."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image, ImageOps
from torchvision import transforms as v1
from torchvision.transforms import v2

from shmloader import images

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MODE = v1.InterpolationMode
SAMPLES = 25


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of several shapes, smooth with edges and grain, one of them flat and one of one colour."""
    root = tmp_path_factory.mktemp("pictures") / "a"
    root.mkdir()
    for k, (width, height) in enumerate(
        [(160, 120), (120, 170), (300, 60), (90, 90), (200, 150), (70, 110), (131, 97)]
    ):
        rng = np.random.default_rng(k)
        coarse = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)).resize((width, height))
        grain = np.asarray(coarse, int) + rng.normal(0, 8, (height, width, 3))
        Image.fromarray(np.clip(grain, 0, 255).astype(np.uint8)).save(root / f"{k}.jpg", quality=92)
    Image.new("RGB", (100, 80), (128, 128, 128)).save(root / "flat.jpg")
    Image.new("RGB", (80, 100), (0, 200, 30)).save(root / "green.png")
    return root.parent


def mirrored(image: Any) -> Any:
    """A user's own, which draws."""
    assert type(image) is Image.Image and image.mode == "RGB"
    return ImageOps.mirror(image) if random.random() < 0.5 else image


def pipelines(transforms: Any) -> dict[str, tuple[Any, tuple[int, ...]]]:
    """Transforms by what they try, and the places of those that are called as they are."""

    def crop(by: Any = MODE.BILINEAR) -> list[Any]:
        return [transforms.RandomResizedCrop(64, interpolation=by), transforms.RandomHorizontalFlip()]

    numbers: list[Any] = [v1.ToTensor(), v1.Normalize(MEAN, STD)]
    if transforms is v2:
        numbers = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    policies = v1.AutoAugmentPolicy
    whole: dict[str, list[Any]] = {
        "bicubic": [*crop(MODE.BICUBIC), *numbers],
        "reference": [
            *crop(),
            transforms.TrivialAugmentWide(interpolation=MODE.BILINEAR),
            transforms.PILToTensor(),
            transforms.ConvertImageDtype(torch.float32),
            transforms.Normalize(MEAN, STD),
            transforms.RandomErasing(0.5),
        ],
        "erased by noise": [*crop(), *numbers, transforms.RandomErasing(0.7, value="random")],
        "erased by a colour": [
            *crop(),
            transforms.PILToTensor(),
            transforms.RandomErasing(0.7, scale=(0.3, 0.9), value=(1, 2, 3)),
        ],
        "TrivialAugment, nearest": [*crop(), transforms.TrivialAugmentWide(fill=(3, 4, 5)), *numbers],
        "RandAugment": [*crop(), transforms.RandAugment(interpolation=MODE.BILINEAR), *numbers],
        "RandAugment, bicubic": [
            *crop(),
            transforms.RandAugment(4, 15, interpolation=MODE.BICUBIC, fill=[7]),
            *numbers,
        ],
        "AutoAugment": [*crop(), transforms.AutoAugment(), *numbers],
        "AutoAugment, CIFAR": [*crop(), transforms.AutoAugment(policies.CIFAR10, MODE.BILINEAR), *numbers],
        "AutoAugment, SVHN": [*crop(), transforms.AutoAugment(policies.SVHN), *numbers],
        "jitter": [*crop(), transforms.ColorJitter(0.4, 0.4, 0.4, 0.1), *numbers],
        "jitter, in part": [*crop(), transforms.ColorJitter(0.4, 0, (0.2, 0.9)), *numbers],
        "SimCLR": [
            *crop(),
            transforms.RandomApply([transforms.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
            transforms.RandomGrayscale(0.2),
            transforms.RandomApply([transforms.GaussianBlur(9, (0.1, 2.0))], p=0.5),
            *numbers,
        ],
        "by chance": [
            *crop(),
            transforms.RandomInvert(0.3),
            transforms.RandomPosterize(3, 0.3),
            transforms.RandomSolarize(128, 0.3),
            transforms.RandomAdjustSharpness(1.7, 0.4),
            transforms.RandomAutocontrast(0.4),
            transforms.RandomEqualize(0.4),
            transforms.RandomVerticalFlip(0.5),
            *numbers,
        ],
        "moved": [
            *crop(),
            transforms.RandomAffine(20, (0.1, 0.2), (0.8, 1.2), (-5, 5, -3, 3), interpolation=MODE.BILINEAR, fill=7),
            transforms.RandomRotation((-30, 40), interpolation=MODE.BICUBIC, fill=(1, 2, 3)),
            transforms.RandomPerspective(0.4, 0.7),
            *numbers,
        ],
        "turned and grown": [
            transforms.Resize((60, 80)),
            transforms.RandomRotation(45, expand=True),
            transforms.Resize((50, 50)),
            *numbers,
        ],
        "padded": [
            transforms.Resize((60, 80)),
            transforms.Pad((3, 5), fill=(9, 8, 7)),
            transforms.Pad(4, padding_mode="reflect"),
            transforms.Pad([1, 2, 3, 4], padding_mode="edge"),
            transforms.RandomCrop(64, padding=[1, 2, 3, 4], padding_mode="symmetric"),
            transforms.RandomCrop(70, pad_if_needed=True),
            *numbers,
        ],
        "padded by black": [
            transforms.Pad(8),
            transforms.RandomCrop(310, padding=5, pad_if_needed=True),
            transforms.Resize(64),
            *numbers,
        ],
        "chosen": [
            *crop(),
            transforms.RandomChoice(
                [transforms.RandomInvert(1.0), transforms.RandomHorizontalFlip(1.0), transforms.ColorJitter(0.5)]
            ),
            transforms.RandomChoice([transforms.RandomGrayscale(1.0), transforms.RandomEqualize(1.0)], p=[0.2, 0.8]),
            transforms.RandomOrder(
                [transforms.RandomSolarize(100, 0.5), transforms.RandomAutocontrast(0.5), transforms.ColorJitter(0.5)]
            ),
            *numbers,
        ],
        "a picture": [*crop(), transforms.ColorJitter(0.3)],
        "grey": [*crop(), transforms.Grayscale(3), *numbers],
        "resized twice": [
            transforms.Resize(128),
            transforms.RandomResizedCrop(64, interpolation=MODE.BICUBIC),
            *numbers,
        ],
        "flipped first": [
            transforms.RandomHorizontalFlip(),
            transforms.RandomResizedCrop(64, interpolation=MODE.LANCZOS),
            *numbers,
        ],
        "jittered first": [
            transforms.ColorJitter(0.3),
            transforms.RandomResizedCrop(64),
            transforms.RandomCrop(50),
            *numbers,
        ],
        "CLIP": [transforms.Resize(64, interpolation=MODE.BICUBIC), transforms.CenterCrop(64), *numbers],
        "bfloat16": [
            *crop(),
            transforms.ColorJitter(0.3),
            transforms.PILToTensor(),
            transforms.ConvertImageDtype(torch.bfloat16),
        ],
    }
    if transforms is v2:
        whole["distorted"] = [*crop(), v2.RandomPhotometricDistort(p=0.7), *numbers]
        fills: dict[Any, Any] = {torchvision.tv_tensors.Image: 3, "others": (9, 8, 7)}
        whole["filled by kind"] = [*crop(), v2.RandomAffine(20, fill=fills), v2.RandomRotation(20, fill=5), *numbers]
    in_part: dict[str, tuple[list[Any], tuple[int, ...]]] = {
        "one's own": ([*crop(), transforms.ColorJitter(0.3), mirrored, transforms.RandomEqualize(), *numbers], (3,)),
        "one's own first": ([mirrored, *crop(), transforms.ColorJitter(0.3), *numbers], (0,)),
        "one's own inside": (
            [*crop(), transforms.RandomApply([mirrored, transforms.ColorJitter(0.3)]), *numbers],
            (2,),
        ),
        "no picture any more": ([*crop(), transforms.ColorJitter(0.3), np.array, torch.from_numpy], (3, 4)),
        "one channel": ([*crop(), transforms.Grayscale(), transforms.PILToTensor()], ()),
        "one channel, changed": (
            [
                transforms.Grayscale(1),
                *crop(MODE.BICUBIC),
                transforms.RandAugment(3, fill=9),
                transforms.ColorJitter(0.4, 0.4, 0.4, 0.1),
                transforms.RandomGrayscale(0.5),
                transforms.RandomEqualize(),
                transforms.RandomAffine(20, shear=5, interpolation=MODE.BILINEAR, fill=7),
                transforms.Pad(3, padding_mode="reflect"),
                transforms.RandomAdjustSharpness(1.5),
                transforms.GaussianBlur(5),
                *numbers[:-1],
                transforms.Normalize([0.5], [0.25]),
                transforms.RandomErasing(0.7, value="random"),
            ],
            (),
        ),
        "three channels again": (
            [*crop(), transforms.Grayscale(1), transforms.TrivialAugmentWide(), transforms.Grayscale(3), *numbers],
            (),
        ),
        "one channel by chance": (
            [*crop(), transforms.RandomApply([transforms.Grayscale(1)]), transforms.PILToTensor()],
            (2,),
        ),
        "AugMix": ([*crop(), transforms.AugMix(), *numbers], (2,)),
        "after erasing": (
            [*crop(), *numbers, transforms.RandomErasing(0.7), transforms.RandomHorizontalFlip()],
            (len(numbers) + 3,),
        ),
    }
    made = {name: (transforms.Compose(parts), ()) for name, parts in whole.items()}
    return {**made, **{name: (transforms.Compose(parts), called) for name, (parts, called) in in_part.items()}}


CASES = {
    (name, kind): case for kind, transforms in (("v1", v1), ("v2", v2)) for name, case in pipelines(transforms).items()
}


def states() -> list[Any]:
    return [torch.get_rng_state().tolist(), random.getstate(), [str(part) for part in np.random.get_state()]]


def seed(value: int) -> None:
    torch.manual_seed(value)
    random.seed(value)
    np.random.seed(value)


def assert_same_samples(dataset: Any, fused: Any, samples: int = SAMPLES) -> None:
    """One seed a sample: the same sample or error, and after it each generator where it was left."""
    for k in range(samples):
        outcomes: list[Any] = []
        for either in (dataset, fused):
            seed(k)
            try:
                outcomes.append((either[k % len(either)][0], states()))
            except ValueError as error:
                outcomes.append((str(error), None))
        (one, its_states), (other, other_states) = outcomes
        assert type(one) is type(other), (k, one, other)
        if isinstance(one, torch.Tensor):
            assert one.dtype is other.dtype and one.shape == other.shape and torch.equal(one, other), k
        else:
            assert np.array_equal(np.asarray(one), np.asarray(other)), k
        assert its_states == other_states, k


def assert_fused(fused: Any, called: tuple[int, ...] = ()) -> None:
    lines = fused.explain().splitlines()[1:]
    assert tuple(k for k, line in enumerate(lines) if not line.endswith(": fused")) == called, lines


@pytest.mark.parametrize("case", list(CASES), ids=lambda case: " ".join(case[::-1]))
def test_the_same_samples(case: tuple[str, str], folder: Path) -> None:
    transform, called = CASES[case]
    dataset = torchvision.datasets.ImageFolder(str(folder), transform)
    fused = images.fuse(dataset)
    assert_fused(fused, called)
    assert_same_samples(dataset, fused)


def test_blurred_nearly(folder: Path) -> None:
    """With exact=False a blur is a separable one: within 1 of 255 of torch's on the same pixels."""
    for transforms in (v1, v2):
        transform = transforms.Compose([transforms.GaussianBlur(9, (0.1, 2.0)), transforms.PILToTensor()])
        dataset = torchvision.datasets.ImageFolder(str(folder), transform)
        fused = images.fuse(dataset, exact=False)
        for k in range(18):
            seed(k)
            one, its_states = dataset[k % len(dataset)][0], states()
            seed(k)
            other, other_states = fused[k % len(dataset)][0], states()
            assert (one.int() - other.int()).abs().max() <= 1 and its_states == other_states


# ----------------------------------------------------------------------------------------------- timm, and open_clip

TIMM: dict[str, dict[str, Any]] = {
    "defaults": {},
    "RandAugment": {"auto_augment": "rand-m9-mstd0.5-inc1", "interpolation": "bicubic", "re_prob": 0.5},
    "AutoAugment": {"auto_augment": "original-mstd0.5", "re_prob": 0.9, "re_mode": "pixel"},
    "v0": {"auto_augment": "v0", "vflip": 0.5},
    "v0r": {"auto_augment": "v0r-mstd1"},
    "3-Augment": {"auto_augment": "3a", "re_prob": 0.5, "re_mode": "rand", "re_count": 3},
    "weighted": {"auto_augment": "rand-n3-mstd101-tweights"},
    "prefetcher": {"use_prefetcher": True},
    "jitter": {"color_jitter": (0.3, 0.3, 0.3, 0.1), "color_jitter_prob": 0.8, "grayscale_prob": 0.2},
    "blur": {"gaussian_blur_prob": 0.5},
    "ratio kept": {"train_crop_mode": "rkrc"},
    "AugMix": {"auto_augment": "augmix-m5-w4-d2"},
    "AugMix, blended": {"auto_augment": "augmix-m9-mstd1-b1"},
}
TIMM_EVALUATION: dict[str, dict[str, Any]] = {
    "middle": {},
    "bicubic": {"interpolation": "bicubic", "crop_pct": 0.9},
    "squash": {"crop_mode": "squash"},
    "border": {"crop_mode": "border"},
    "prefetcher": {"use_prefetcher": True},
}
CLIP: dict[str, dict[str, Any]] = {
    "training": {"is_train": True},
    "augmented": {"is_train": True, "aug_cfg": {"use_timm": True, "color_jitter": 0.4}},
    "jitter": {"is_train": True, "aug_cfg": {"color_jitter": (0.3, 0.3, 0.3, 0.1), "color_jitter_prob": 0.8}},
    "grey": {"is_train": True, "aug_cfg": {"gray_scale_prob": 0.5}},
    "evaluation": {"is_train": False},
    "longest": {"is_train": False, "resize_mode": "longest"},
    "squash": {"is_train": False, "resize_mode": "squash"},
}


@pytest.mark.parametrize("name", list(TIMM))
def test_timm_in_training(name: str, folder: Path) -> None:
    timm = pytest.importorskip("timm.data")
    assert_same_as_its_own(timm.create_transform(64, is_training=True, **TIMM[name]), folder)


@pytest.mark.parametrize("name", list(TIMM_EVALUATION))
def test_timm_in_evaluation(name: str, folder: Path) -> None:
    timm = pytest.importorskip("timm.data")
    assert_same_as_its_own(timm.create_transform(64, is_training=False, **TIMM_EVALUATION[name]), folder)


def test_timm_to_numpy(folder: Path) -> None:
    transforms = pytest.importorskip("timm.data.transforms")
    box = transforms.RandomResizedCropAndInterpolation(48, interpolation="random")
    assert_same_as_its_own(v1.Compose([box, transforms.ToNumpy()]), folder)


@pytest.mark.parametrize("size", [64, (48, 64)])
@pytest.mark.parametrize("name", list(CLIP))
def test_open_clip(name: str, size: Any, folder: Path) -> None:
    clip = pytest.importorskip("open_clip.transform")
    if name == "augmented":
        pytest.importorskip("timm.data")
    assert_same_as_its_own(clip.image_transform(size, **CLIP[name]), folder)


def assert_same_as_its_own(transform: Any, folder: Path) -> None:
    dataset = torchvision.datasets.ImageFolder(str(folder), transform)
    fused = images.fuse(dataset)
    assert_fused(fused)
    assert_same_samples(dataset, fused)
