"""images.fuse of Hugging Face datasets: the samples that the same transform gives of the pictures that they decode."""

from __future__ import annotations

import io
import random
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1

import shmloader
from shmloader import images

datasets = pytest.importorskip("datasets")


def pictures() -> list[bytes]:
    """JPEG files turned in each way, one turned by XMP alone, and others in other modes and formats."""
    made = []
    for k in range(13):
        coarse = Image.fromarray(np.random.default_rng(k).integers(0, 256, (5, 5, 3), dtype=np.uint8))
        image, file, exif = coarse.resize((60 + k, 40)), io.BytesIO(), Image.Exif()
        if k < 9:
            exif[0x0112] = k
            image.save(file, "JPEG", exif=exif if k else b"")
        elif k == 9:
            turned = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><a tiff:Orientation="6"/></x:xmpmeta>'
            image.save(file, "JPEG", xmp=turned)
        else:
            image.convert(("L", "RGBA", "P")[k - 10]).save(file, "PNG")
        made.append(file.getvalue())
    return made


@pytest.fixture(scope="module")
def dataset() -> Any:
    files = [{"bytes": data, "path": None} for data in pictures()]
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.Value("int64"), "text": datasets.Value("string")}
    )
    columns = {"image": files, "label": list(range(len(files))), "text": ["a"] * len(files)}
    return datasets.Dataset.from_dict(columns, features=features)


TRANSFORMS = {
    "training": v1.Compose(
        [v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.TrivialAugmentWide(), v1.ToTensor()]
    ),
    "evaluation": v1.Compose([v1.Resize(30), v1.CenterCrop(24), v1.PILToTensor()]),
    "a function": np.array,
}


@pytest.mark.parametrize("name", list(TRANSFORMS))
def test_the_same_samples(name: str, dataset: Any) -> None:
    transform = TRANSFORMS[name]
    fused = images.fuse(dataset, transform)
    assert len(fused) == len(dataset)
    for k in range(len(dataset)):
        torch.manual_seed(k)
        expected = transform(dataset[k]["image"].convert("RGB"))
        torch.manual_seed(k)
        image, label = fused[k]
        assert label == k and type(image) is type(expected) and np.array_equal(image, expected), k


def test_several_views_and_no_label(dataset: Any) -> None:
    fused = images.fuse(dataset.select([3, 6, 9]), images.views(TRANSFORMS["evaluation"], np.array), label=None)
    for k, at in enumerate((3, 6, 9)):
        expected = dataset[at]["image"].convert("RGB")
        assert torch.equal(fused[k][0], TRANSFORMS["evaluation"](expected))
        assert np.array_equal(fused[k][1], np.array(expected))


def test_loaded(dataset: Any) -> None:
    fused = images.fuse(dataset, TRANSFORMS["training"])
    assert "TrivialAugmentWide" in fused.explain() and "called" not in fused.explain()
    batches: list[Any] = []
    for kind, data in ((torch.utils.data.DataLoader, Plain(dataset)), (shmloader.DataLoader, fused)):
        torch.manual_seed(1)
        random.seed(1)
        loader = kind(data, batch_size=4, shuffle=True, num_workers=2)
        batches.append([[part.clone() for part in batch] for batch in loader])
    for one, other in zip(*batches, strict=True):
        assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])


class Plain(torch.utils.data.Dataset[Any]):
    """What a user writes without fuse()."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        row = self.dataset[index]
        return TRANSFORMS["training"](row["image"].convert("RGB")), row["label"]


def test_columns_that_are_not_there(dataset: Any) -> None:
    with pytest.raises(ValueError, match=r"'label' is no column of pictures\. The columns of pictures are: image\."):
        images.fuse(dataset, np.array, image="label")
    with pytest.raises(ValueError, match=r"there is no column 'class'\. The columns are: image, label, text\."):
        images.fuse(dataset, np.array, label="class")


@pytest.mark.parametrize("name", list(TRANSFORMS))
def test_on_a_column(name: str, dataset: Any) -> None:
    """set_transform with the transform as it is, and fused: the same batches, and nothing lost beside the pictures."""
    transform = TRANSFORMS[name]

    def as_it_is(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "image": [transform(image.convert("RGB")) for image in batch["image"]]}

    decoded = dataset.with_transform(as_it_is)
    stored = dataset.cast_column("image", datasets.Image(decode=False))
    fused = stored.with_transform(images.on_column(transform))
    for rows in (3, slice(2, 9), [12, 0, 10]):
        torch.manual_seed(7)
        expected = decoded[rows]
        torch.manual_seed(7)
        got = fused[rows]
        assert got.keys() == expected.keys() and got["label"] == expected["label"] and got["text"] == expected["text"]
        pictures = got["image"], expected["image"]  # one picture, or a list of several
        assert type(pictures[0]) is type(pictures[1])
        for one, other in zip(*pictures, strict=True):
            assert np.array_equal(one, other)
    assert "fused" in images.on_column(TRANSFORMS["training"]).explain()


def test_a_column_that_cannot_be_fused(dataset: Any) -> None:
    with pytest.raises(TypeError, match="cast_column"):
        dataset.with_transform(images.on_column(np.array))[0]
    empty = datasets.Dataset.from_dict({"image": [None]}, features=datasets.Features({"image": datasets.Image()}))
    stored = empty.cast_column("image", datasets.Image(decode=False))
    with pytest.raises(ValueError, match="no picture"):
        stored.with_transform(images.on_column(np.array))[0]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("mode", ["1", "L", "P", "HSV", "CMYK", "RGB"])
def test_the_mode_of_a_column(mode: str, workers: int, dataset: Any) -> None:
    rows = dataset.cast_column("image", datasets.Image(mode=mode))
    fused = images.fuse(rows, np.array)
    assert fused.is_fused is (mode == "RGB") and (mode == "RGB") != ("not fused" in fused.explain())
    assert fused.is_fused or f"mode '{mode}'" in fused.explain()
    loader = shmloader.DataLoader(fused, batch_size=4, num_workers=workers, collate_fn=list)
    got = [sample for batch in loader for sample in batch]
    for row, (image, label) in zip(rows, got, strict=True):
        expected = np.array(row["image"])
        assert image.dtype == expected.dtype and np.array_equal(image, expected) and label == row["label"]


def test_another_mode_without_a_transform(dataset: Any) -> None:
    with pytest.raises(ValueError, match="'image' has pictures of mode 'L'"):
        images.fuse(dataset.cast_column("image", datasets.Image(mode="L")))
