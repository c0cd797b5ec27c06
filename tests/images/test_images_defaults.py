"""Samples are made on the CPU, whatever torch's default device is; draws have the default dtype, as torchvision's.

No GPU is needed: a tensor on the device "meta" has no elements, so whatever is made there by mistake raises or differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import assert_same, seed_all
from PIL import Image

import shmloader
from shmloader import images
from shmloader.transforms import normalize_on_device
from tests.images import torchvision_stand_ins as tv

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NORMAL = {"mean": MEAN, "std": STD}
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("pictures") / "one"
    folder.mkdir()
    for k in range(12):
        coarse = np.random.default_rng(k).integers(0, 256, (5, 5, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((60 + 3 * k, 90 - 4 * k)).save(folder / f"{k:02}.{'png' if k == 5 else 'jpg'}")
    return sorted(map(str, folder.iterdir()))


@pytest.fixture
def default_dtype() -> Iterator[Callable[[torch.dtype], None]]:
    before = torch.get_default_dtype()
    yield torch.set_default_dtype
    torch.set_default_dtype(before)


def all_of(dataset: Any) -> list[Any]:
    seed_all(3)
    return [dataset[index] for index in range(len(dataset))]


FLOATS = (tv.ToTensor(), tv.Normalize(MEAN, STD))
RECIPES: dict[str, Callable[[], Any]] = {
    "training": lambda: images.training(32),
    "training, numbers": lambda: images.training((40, 24), flip=0.3, **NORMAL),
    "training, augmented": lambda: images.training(32, augment="trivial", **NORMAL),
    "evaluation": lambda: images.evaluation(32, resize=40),
    "evaluation, numbers": lambda: images.evaluation(32, resize=40, **NORMAL),
}
TRANSFORMS: dict[str, Callable[[], Any]] = {
    "training": lambda: tv.Compose((tv.RandomResizedCrop(), tv.RandomHorizontalFlip(0.3), *FLOATS)),
    "evaluation": lambda: tv.Compose((tv.Resize(40), tv.CenterCrop(), *FLOATS)),
    "half precision": lambda: tv.Compose(
        (tv.Resize(40), tv.RandomCrop(), tv.PILToTensor(), tv.ConvertImageDtype(torch.bfloat16), FLOATS[1])
    ),
    "bytes": lambda: tv.Compose((tv.RandomResizedCrop(), tv.RandomHorizontalFlip(), tv.PILToTensor())),
}
MADE: dict[str, Callable[[list[str]], Any]] = {
    **{
        f"ImageFolder, {name}": lambda paths, make=make: images.ImageFolder(Path(paths[0]).parents[1], make())
        for name, make in RECIPES.items()
    },
    **{
        f"fuse, {name}": lambda paths, make=make: images.fuse(tv.DatasetFolder(paths, make()))
        for name, make in TRANSFORMS.items()
    },
    "fuse, a cache": lambda paths: images.fuse(tv.DatasetFolder(paths, TRANSFORMS["training"]()), cache=1 << 24),
}


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", MADE)
def test_samples_do_not_depend_on_the_default_device(paths: list[str], name: str, device: str) -> None:
    expected = all_of(MADE[name](paths))
    made_before = MADE[name](paths)
    with torch.device(device):
        assert_same(all_of(MADE[name](paths)), expected)
        assert_same(all_of(made_before), expected)
        rows = [torch.empty_like(sample) for sample, _ in expected]
        made = MADE[name](paths)
        seed_all(3)
        for index, row in enumerate(rows):
            made.__getitem_into__(index, (row, None))
    assert_same(rows, [sample for sample, _ in expected])
    assert all(row.is_cpu for row in rows)


def live_on_meta(worker: int) -> None:
    torch.set_default_device("meta")


@shmloader.row_wise
def pictures(samples: list[Any]) -> torch.Tensor:
    return torch.stack([sample for sample, _ in samples])


@pytest.mark.parametrize("options", [{}, {"chunk_size": 2}, {"sample_seeds": True}])
def test_workers_with_a_default_device(paths: list[str], options: dict[str, Any]) -> None:
    """Only the pictures: collating the targets is torch's matter, which gives them the default device."""
    dataset = images.ImageFolder(Path(paths[0]).parents[1], RECIPES["training, numbers"]())
    epochs = []
    for init in (None, live_on_meta):
        seed_all(3)
        loader = shmloader.DataLoader(dataset, 4, num_workers=2, collate_fn=pictures, worker_init_fn=init, **options)
        epochs.append([batch.clone() for batch in loader])
    assert_same(epochs[1], epochs[0])


@pytest.mark.parametrize("size", [None, (20, 30)])
def test_decode_gives_a_tensor_on_the_cpu(paths: list[str], size: tuple[int, int] | None) -> None:
    expected = images.decode(paths[0], size=size)
    with torch.device("meta"):
        assert_same(images.decode(paths[0], size=size), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_fused_samples_follow_the_default_dtype(paths: list[str], name: str, dtype: Any, default_dtype: Any) -> None:
    dataset = tv.DatasetFolder(paths, TRANSFORMS[name]())
    made_before = images.fuse(dataset)
    default_dtype(dtype)
    expected = all_of(dataset)
    assert_same(all_of(images.fuse(dataset)), expected)
    assert_same(all_of(made_before), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_augmentation_made_before_follows_too(paths: list[str], dtype: Any, default_dtype: Any) -> None:
    made = [images.training(32, augment="trivial") for _ in range(2)]
    folder = Path(paths[0]).parents[1]
    old = images.ImageFolder(folder, made[0])
    for _ in range(5):
        all_of(old)
    default_dtype(dtype)
    new = images.ImageFolder(folder, images.training(32, augment="trivial"))
    for seed in range(20):
        seed_all(seed)
        expected = [new[index] for index in range(12)]
        seed_all(seed)
        assert_same([old[index] for index in range(12)], expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_normalised_numbers_are_float32s_for_any_default_dtype(dtype: Any, default_dtype: Any) -> None:
    batch = torch.randint(256, (2, 3, 9, 7), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    options = {"dtype": torch.float32}
    expected = normalize_on_device(MEAN, STD, **options)(batch)
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (MEAN, STD))
    torch.testing.assert_close(expected, (batch / 255 - mean) / std, rtol=1e-5, atol=1e-6)
    default_dtype(dtype)
    assert_same(normalize_on_device(MEAN, STD, **options)(batch), expected)
    with torch.device("meta"):
        assert_same(normalize_on_device(MEAN, STD, **options)(batch), expected)
