"""images.fuse and images.ImageFolder beside torchvision itself: the same samples, boxes, classes and errors."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import v2

import shmloader
from bench.core.jpegs import make
from shmloader import images
from shmloader.images.random_numbers import Draws
from shmloader.images.recognise import recognise
from shmloader.images.view import View

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of many shapes in three classes."""
    root = tmp_path_factory.mktemp("pictures")
    sizes = [(80, 60), (60, 80), (300, 30), (33, 32), (32, 32), (190, 190), (31, 64), (7, 9), (256, 200), (40, 41)]
    for k, (width, height) in enumerate(sizes * 3):
        rng = np.random.default_rng(k)
        coarse = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)).resize((width, height))
        image = coarse.convert("L") if k % 7 == 3 else coarse
        path = root / "cab"[k % 3] / f"{k}.{'png' if k % 11 == 5 else 'jpg'}"
        path.parent.mkdir(exist_ok=True)
        image.save(path)
    return root


def training(transforms: Any, *rest: Any) -> Any:
    return transforms.Compose([transforms.RandomResizedCrop(32), transforms.RandomHorizontalFlip(), *rest])


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # v2.ToTensor is deprecated
    NUMBERS = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    TRANSFORMS: dict[str, Any] = {
        "v1 bytes": training(v1, v1.PILToTensor()),
        "v1 numbers": training(v1, v1.ToTensor(), v1.Normalize(MEAN, STD)),
        "v1 convert": training(v1, v1.PILToTensor(), v1.ConvertImageDtype(torch.float32), v1.Normalize(MEAN, STD)),
        "v1 half": training(v1, v1.PILToTensor(), v1.ConvertImageDtype(torch.bfloat16), v1.Normalize(MEAN, STD)),
        "v1 evaluation": v1.Compose([v1.Resize(40), v1.CenterCrop(32), v1.ToTensor(), v1.Normalize(MEAN, STD)]),
        "v1 max_size": v1.Compose([v1.Resize(40, max_size=44), v1.CenterCrop((33, 50)), v1.PILToTensor()]),
        "v1 random crop": v1.Compose([v1.Resize(40), v1.RandomCrop(32), v1.RandomHorizontalFlip(0.3), v1.ToTensor()]),
        "v1 middle": v1.Compose([v1.CenterCrop((70, 61)), v1.RandomHorizontalFlip(), v1.PILToTensor()]),
        "v2 sequential": torch.nn.Sequential(v2.Resize((30, 31)), v2.PILToTensor()),
        "v2 bytes": training(v2, v2.PILToTensor()),
        "v2 image": training(v2, v2.ToImage()),
        "v2 numbers": training(v2, v2.ToImage(), *NUMBERS),
        "v2 pure": training(v2, v2.ToImage(), *NUMBERS, v2.ToPureTensor()),
        "v2 PILToTensor": training(v2, v2.PILToTensor(), *NUMBERS),
        "v2 ToTensor": training(v2, v2.ToTensor(), v2.Normalize(MEAN, STD)),
        "v2 convert": training(v2, v2.PILToTensor(), v2.ConvertImageDtype(torch.float16), v2.Normalize(MEAN, STD)),
        "v2 late flip": v2.Compose([v2.RandomResizedCrop(32), v2.ToImage(), v2.RandomHorizontalFlip(0.7), *NUMBERS]),
        "v2 evaluation": v2.Compose([v2.Resize(40), v2.CenterCrop(32), v2.ToImage(), *NUMBERS]),
        "v2 longest": v2.Compose([v2.Resize(40, max_size=44), v2.RandomCrop((20, 40)), v2.PILToTensor()]),
        "v2 random crop": v2.Compose([v2.Resize((40, 32)), v2.RandomCrop(32), v2.RandomHorizontalFlip(), v2.ToImage()]),
        "weights": torchvision.models.ResNet50_Weights.IMAGENET1K_V1.transforms(),
    }
    # Of each, the places of transforms that are called as they are.
    IN_PART: dict[str, tuple[Any, tuple[int, ...]]] = {
        "v2 blur": (training(v2, v2.ToImage(), v2.GaussianBlur(3), *NUMBERS), (3, 4, 5)),
        "v2 tensor first": (v2.Compose([v2.ToImage(), v2.RandomResizedCrop(32), *NUMBERS]), (1, 2, 3)),
        "v2 both sides": (v2.Compose([v2.RandomHorizontalFlip(), v2.Resize(None, max_size=50), v2.ToImage()]), (1,)),
        "mixed": (v2.Compose([v2.ToImage(), v1.ConvertImageDtype(torch.float32), v1.CenterCrop(20)]), (1, 2)),
    }


def assert_same_samples(dataset: Any, fused: Any) -> None:
    for seed in range(2):
        outcomes = []
        for either in (dataset, fused):
            torch.manual_seed(seed)
            random.seed(seed)
            outcomes.append([*(outcome_of(either, k) for k in range(len(either))), torch.get_rng_state()])
        for one, other in zip(*outcomes, strict=True):
            if isinstance(one, tuple):
                assert one[1] == other[1] and type(one[0]) is type(other[0]) and one[0].dtype is other[0].dtype
                one, other = one[0], other[0]
            assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def outcome_of(dataset: Any, index: int) -> Any:
    try:
        return dataset[index]
    except ValueError as error:  # smaller than a random crop
        return str(error)


@pytest.mark.parametrize("name", list(TRANSFORMS))
def test_the_same_samples(name: str, folder: Path) -> None:
    dataset = torchvision.datasets.ImageFolder(str(folder), TRANSFORMS[name], lambda target: -target)
    fused = images.fuse(dataset)
    assert fused.is_fused and "called" not in fused.explain(), fused.explain()
    assert_same_samples(dataset, fused)


@pytest.mark.parametrize("name", list(IN_PART))
def test_the_same_samples_with_what_is_not_fused(name: str, folder: Path) -> None:
    transform, called = IN_PART[name]
    dataset = torchvision.datasets.ImageFolder(str(folder), transform)
    fused = images.fuse(dataset)
    lines = fused.explain().splitlines()[1:]
    assert tuple(k for k, line in enumerate(lines) if not line.endswith(": fused")) == called, lines
    assert_same_samples(dataset, fused)


def test_not_fused(folder: Path) -> None:
    for transform in (None, v1.TenCrop(5), v1.Compose([v1.AugMix(), v1.Lambda(np.asarray)])):
        dataset = torchvision.datasets.ImageFolder(str(folder), transform)
        fused = images.fuse(dataset)
        assert not fused.is_fused and fused.classes == dataset.classes and type(fused[0][0]) is type(dataset[0][0])
    own = torchvision.datasets.ImageFolder(str(folder), v1.ToTensor(), loader=lambda path: Image.new("RGB", (9, 9)))
    assert "its loader" in images.fuse(own).explain()


def test_numbers_on_the_device(folder: Path) -> None:
    for name in ("v1 numbers", "v1 half", "v2 numbers", "v2 convert", "weights"):
        dataset = torchvision.datasets.ImageFolder(str(folder), TRANSFORMS[name])
        fused = images.fuse(dataset, scale_on_device=True)
        batches = []
        for either in (dataset, fused):
            torch.manual_seed(1)
            batches.append(torch.stack([either[k][0] for k in range(5)]))
        assert batches[1].dtype is torch.uint8 and fused.on_device is not None
        assert torch.equal(fused.on_device(batches[1]), batches[0])


@pytest.mark.parametrize("transforms", [v1, v2])
def test_ten_thousand_boxes_and_flips(transforms: Any) -> None:
    """Without pictures: what is drawn, and what it comes to, and the generator's state in the end."""
    draw = random.Random(3)
    sizes = [(draw.randint(1, 1000), draw.randint(1, 1000)) for _ in range(10_000)]
    crop = transforms.RandomResizedCrop(224)
    recipe = recognise(
        transforms.Compose([crop, transforms.RandomHorizontalFlip(0.3), transforms.ToTensor()]), exact=True
    )
    torch.manual_seed(1)
    expected = []
    for width, height in sizes:
        image = torch.empty(3, height, width, device="meta")
        if transforms is v1:
            top, left, high, wide = crop.get_params(image, crop.scale, crop.ratio)
        else:
            drawn = crop.make_params([image])
            top, left, high, wide = (drawn[key] for key in ("top", "left", "height", "width"))
        expected.append(((left, top, wide, high), bool(torch.rand(1) < 0.3)))
    state = torch.get_rng_state()
    torch.manual_seed(1)
    draws, got = Draws(), []
    for size in sizes:
        view = View(*size)
        for step in recipe.steps:
            step.apply(view, draws)
        got.append((view.crop, view.is_flipped))
    assert got == expected and torch.equal(torch.get_rng_state(), state)


MANY = 10_000


class Tiny(torchvision.datasets.ImageFolder):
    """The same pictures again and again: what is drawn is never the same."""

    def __init__(self, root: Path, transform: Any) -> None:
        super().__init__(str(root), transform)
        self.samples = (self.samples * MANY)[:MANY]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tiny")
    for k in range(20):
        noise = np.random.default_rng(k).integers(0, 256, (17 + k, 40 - k, 3), dtype=np.uint8)
        (root / str(k % 4)).mkdir(exist_ok=True)
        Image.fromarray(noise).save(root / str(k % 4) / f"{k}.jpg", quality=90)
    return root


@pytest.fixture(scope="module")
def expected() -> dict[Any, Any]:
    return {}


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize(("method", "workers"), [(None, 0), *((m, w) for m in ("fork", "spawn") for w in (1, 2, 3))])
def test_ten_thousand_samples(
    version: str, method: str | None, workers: int, tiny: Path, expected: dict[Any, Any]
) -> None:
    """8 x 8 pixels of noise, and labels: another box or flip, or another order, would not give the same."""
    transforms = {"v1": v1, "v2": v2}[version]
    transform = transforms.Compose(
        [transforms.RandomResizedCrop(8), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
    )
    options: dict[str, Any] = {"batch_size": 100, "shuffle": True, "num_workers": workers}

    def epoch(kind: Any, dataset: Any, **more: Any) -> list[torch.Tensor]:
        torch.manual_seed(11)
        parts = [(images_.clone(), labels.clone()) for images_, labels in kind(dataset, **options, **more)]
        return [torch.cat(part) for part in zip(*parts, strict=True)]

    if (version, workers) not in expected:  # how workers start makes no difference to torch's batches
        expected[version, workers] = epoch(torch.utils.data.DataLoader, Tiny(tiny, transform))
    fused = images.fuse(Tiny(tiny, transform))
    assert fused.is_fused
    got = epoch(shmloader.DataLoader, fused, multiprocessing_context=method)
    for one, other in zip(expected[version, workers], got, strict=True):
        assert torch.equal(one, other) and len(one) == MANY


def test_the_same_folder(folder: Path, tmp_path: Path) -> None:
    theirs, ours = torchvision.datasets.ImageFolder(str(folder)), images.ImageFolder(folder)
    for name in ("classes", "class_to_idx", "samples", "targets", "imgs"):
        assert getattr(theirs, name) == getattr(ours, name)
    for options in ({}, {"is_valid_file": lambda path: "1" in path}):
        for names in ((), ("b",), ("b", "a")):
            root = tmp_path / f"{len(options)}{len(names)}"
            root.mkdir()
            for name in names:
                (root / name).mkdir()
            outcomes = []
            for kind in (torchvision.datasets.ImageFolder, images.ImageFolder):
                with pytest.raises(FileNotFoundError) as caught:
                    kind(str(root), **options)
                outcomes.append(str(caught.value))
            assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("transforms", [v1, v2])
def test_the_recipes(transforms: Any, folder: Path) -> None:
    """images.training() and images.evaluation() are what they say of torchvision's."""
    numbers = [v1.ToTensor(), v1.Normalize(MEAN, STD)]
    for recipe, transform in (
        (images.training(32), training(transforms, transforms.PILToTensor())),
        (images.training(32, mean=MEAN, std=STD), training(transforms, *numbers)),
        (
            images.training(32, augment="trivial"),
            training(v1, v1.TrivialAugmentWide(interpolation=v1.InterpolationMode.BILINEAR), v1.PILToTensor()),
        ),
        (
            images.evaluation(32, resize=40),
            transforms.Compose([transforms.Resize(40), transforms.CenterCrop(32), transforms.PILToTensor()]),
        ),
    ):
        dataset = torchvision.datasets.ImageFolder(str(folder), transform)
        assert_same_samples(dataset, images.ImageFolder(folder, recipe))
        assert_same_samples(dataset, images.ImageFolder(folder, transform))


def test_quality_where_it_need_not_be_exact(tmp_path: Path) -> None:
    """Beside torchvision's pixels, on photographs that are made: grain, shades and edges."""
    (tmp_path / "1").mkdir()
    make(tmp_path / "1", 24)
    transform = v1.Compose([v1.RandomResizedCrop(224), v1.PILToTensor()])
    dataset = torchvision.datasets.ImageFolder(str(tmp_path), transform)
    batches = []
    for either in (dataset, images.fuse(dataset, exact=False)):
        torch.manual_seed(5)
        batches.append(torch.stack([either[k][0].double() for k in range(len(either))]))
    difference = batches[0] - batches[1]
    squares = difference.square().flatten(1).mean(1)
    pooled, worst = (10 * torch.log10(255**2 / torch.stack([squares.mean(), squares.max()]))).tolist()
    # Photographs have less grain: there, as `python -m bench images --data FOLDER` says, it is less still.
    assert difference.abs().mean() <= 0.4 and pooled >= 50 and worst >= 48
