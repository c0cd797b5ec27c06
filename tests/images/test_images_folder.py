"""images.ImageFolder and images.from_bytes: torchvision's samples, order and errors, without torchvision."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_photo import picture
from PIL import Image

from shmloader import images
from tests.images import torchvision_stand_ins as tv

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


FILES = ["b/10.jpg", "b/9.JPEG", "b/deep/1.jpg", "b/deep/a.png", "a/z.jpg", "a/Z.jpg", "c d/1.jpg", "b.c/1.jpg"]
OTHERS = ["b/notes.txt", "a/1.gif", "alone.jpg"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for k, name in enumerate(FILES + OTHERS):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(picture(k, kind="PNG" if name.endswith("png") else "JPEG"))
    (tmp_path / "a" / "link").symlink_to(tmp_path / "b" / "deep")
    return tmp_path


def test_classes_and_samples_in_order(root: Path) -> None:
    folder = images.ImageFolder(root)
    assert folder.classes == ["a", "b", "b.c", "c d"]
    assert folder.class_to_idx == {"a": 0, "b": 1, "b.c": 2, "c d": 3}
    names = [str(Path(path).relative_to(root)) for path, _ in folder.samples]
    assert names == [
        "a/Z.jpg",
        "a/z.jpg",
        "a/link/1.jpg",
        "a/link/a.png",
        "b/10.jpg",
        "b/9.JPEG",
        "b/deep/1.jpg",
        "b/deep/a.png",
        "b.c/1.jpg",
        "c d/1.jpg",
    ]
    assert folder.targets == [target for _, target in folder.samples] == [0, 0, 0, 0, 1, 1, 1, 1, 2, 3]
    assert folder.imgs is folder.samples and len(folder) == 10 and "10 pictures in 4 classes" in repr(folder)


def test_which_files_are_pictures(root: Path) -> None:
    folder = images.ImageFolder(root, is_valid_file=lambda path: path.endswith("1.jpg"), allow_empty=True)
    assert [Path(path).parent.name for path, _ in folder.samples] == ["link", "deep", "b.c", "c d"]


def test_empty_classes(root: Path) -> None:
    (root / "empty").mkdir()
    (root / "also").mkdir()
    with pytest.raises(FileNotFoundError) as caught:
        images.ImageFolder(root)
    known = ".jpg, .jpeg, .png, .ppm, .bmp, .pgm, .tif, .tiff, .webp"
    message = "Found no valid file for the classes also, empty. "
    assert str(caught.value) == f"{message}Supported extensions are: {known}"
    with pytest.raises(FileNotFoundError) as caught:
        images.ImageFolder(root, is_valid_file=lambda path: True)
    assert str(caught.value) == message
    assert images.ImageFolder(root, allow_empty=True).classes == ["a", "also", "b", "b.c", "c d", "empty"]


def test_no_classes(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        images.ImageFolder(tmp_path)
    assert str(caught.value) == f"Couldn't find any class folder in {tmp_path}."
    with pytest.raises(FileNotFoundError, match="missing"):
        images.ImageFolder(tmp_path / "missing")


def test_home(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(root.parent))
    assert images.ImageFolder(f"~/{root.name}").samples == images.ImageFolder(root).samples


def test_whole_pictures(root: Path) -> None:
    folder = images.ImageFolder(root, target_transform=str)
    image, target = folder[4]
    assert target == "1" and image.dtype is torch.uint8
    expected = np.asarray(Image.open(folder.samples[4][0]).convert("RGB")).transpose(2, 0, 1)
    assert np.array_equal(image, expected) and image.is_contiguous()
    assert "whole pictures" in folder.explain()


RECIPES: dict[str, tuple[Any, list[Any]]] = {
    "training": (images.training(32), [tv.RandomResizedCrop(), tv.RandomHorizontalFlip(), tv.PILToTensor()]),
    "training, numbers": (
        images.training((20, 30), scale=(0.3, 0.9), ratio=(0.5, 1), flip=0.2, mean=MEAN, std=STD),
        [
            tv.RandomResizedCrop((20, 30), (0.3, 0.9), (0.5, 1)),
            tv.RandomHorizontalFlip(0.2),
            tv.ToTensor(),
            tv.Normalize(MEAN, STD),
        ],
    ),
    "training, never flipped": (images.training(32, flip=0), [tv.RandomResizedCrop(), tv.PILToTensor()]),
    "evaluation": (images.evaluation(32, resize=40), [tv.Resize(40), tv.CenterCrop(), tv.PILToTensor()]),
    "evaluation, numbers": (
        images.evaluation(32, resize=(34, 36), mean=MEAN, std=STD),
        [tv.Resize((34, 36)), tv.CenterCrop(), tv.ToTensor(), tv.Normalize(MEAN, STD)],
    ),
    "evaluation, not resized": (images.evaluation(32, resize=None), [tv.CenterCrop(), tv.PILToTensor()]),
}


@pytest.mark.parametrize("name", list(RECIPES))
def test_recipes_are_torchvisions_transforms(name: str, root: Path) -> None:
    recipe, transforms = RECIPES[name]
    folder = images.ImageFolder(root, recipe)
    datasets = (
        tv.DatasetFolder([path for path, _ in folder.samples], tv.Compose(transforms)),
        folder,
        images.ImageFolder(root, tv.Compose(transforms)),
    )
    outcomes = []
    for dataset in datasets:
        torch.manual_seed(5)
        outcomes.append([dataset[k][0] for k in range(len(dataset))])
    for expected, *others in zip(*outcomes, strict=True):
        for other in others:
            assert torch.equal(expected, other) and expected.dtype is other.dtype
    explained = folder.explain()
    assert explained.count(": fused") == len(explained.splitlines()) - 1 >= 1


def test_any_function_as_a_transform(root: Path) -> None:
    folder = images.ImageFolder(root, np.asarray)
    assert np.array_equal(folder[0][0], np.asarray(Image.open(folder.samples[0][0]).convert("RGB")))
    assert "called as it is" in folder.explain()


def test_from_bytes() -> None:
    data = picture(1)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB").resize((40, 32), Image.Resampling.BILINEAR))
    read = images.from_bytes(images.evaluation((32, 40), resize=(32, 40)))
    for source in (data, bytearray(data), memoryview(data), torch.frombuffer(bytearray(data), dtype=torch.uint8)):
        assert np.array_equal(read(source), expected.transpose(2, 0, 1))
    batch = torch.zeros(2, 3, 32, 40, dtype=torch.uint8)
    row = batch[1]
    assert read(data, out=row) is row and torch.equal(row, read(data)) and not batch[0].any()
    again = pickle.loads(pickle.dumps(read))
    assert torch.equal(again(data), read(data))
    with pytest.raises(ValueError, match="Give an `out`"):
        read(data, out=torch.zeros(3, 40, 32, dtype=torch.uint8))


def test_from_bytes_for_the_device() -> None:
    numbers = images.from_bytes(images.training(32, mean=MEAN, std=STD))
    rows = images.from_bytes(images.training(32, mean=MEAN, std=STD), scale_on_device=True)
    data = picture(2)
    torch.manual_seed(1)
    expected = numbers(data)
    torch.manual_seed(1)
    row = rows(data)
    assert row.dtype is torch.uint8 and expected.dtype is torch.float32
    assert rows.on_device is not None and numbers.on_device is None
    assert torch.equal(rows.on_device({"images": row[None]})["images"][0], expected)
    assert pickle.loads(pickle.dumps(rows)).on_device is not None


@pytest.mark.parametrize("make", [images.training, images.evaluation])
def test_recipes_that_cannot_be(make: Any) -> None:
    for mean, std in ((MEAN, None), (None, STD), ((1, 2), (1, 2)), (MEAN, (0, 1, 1))):
        with pytest.raises(ValueError, match="one value for each of 3 channels"):
            make(mean=mean, std=std)
    with pytest.raises(ValueError, match="size="):
        make((0, 5))
