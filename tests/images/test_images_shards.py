"""images.fuse of shards: tar to row, the same samples as from files."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import assert_same
from PIL import Image

import shmloader
from shmloader import images
from tests.images import torchvision_stand_ins as tv
from tests.images.made_photo import picture
from tests.storage.storage_tars import write


@pytest.fixture
def shards(tmp_path: Path) -> str:
    """A folder of pictures, and the same in two archives."""
    members = []
    for k in range(12):
        kind = "png" if k == 5 else "jpg"
        data = picture(k, 64, 48, "PNG" if k == 5 else "JPEG")
        folder = tmp_path / "files" / f"class-{k % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{k:02}.{kind}").write_bytes(data)
        members.append([(f"{k:02}.cls", str(k % 3).encode()), (f"{k:02}.{kind}", data)])
    ordered = sorted(members, key=lambda pair: (int(pair[0][1]), pair[0][0]))
    for k in range(2):
        write(tmp_path / f"{k}.tar", [member for pair in ordered[6 * k : 6 * k + 6] for member in pair])
    return str(tmp_path / "{0..1}.tar")


def batches(dataset: Any, workers: int, **options: Any) -> list[Any]:
    torch.manual_seed(5)
    context = "fork" if workers else None
    loader = shmloader.DataLoader(
        dataset, 4, shuffle=True, num_workers=workers, multiprocessing_context=context, **options
    )
    return [batch for _ in range(2) for batch in loader]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("exact", [True, False])
def test_the_same_as_files(shards: str, tmp_path: Path, workers: int, exact: bool) -> None:
    recipe = images.training(24, mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.2))
    fused = images.fuse(shmloader.Shards(shards), recipe, exact=exact)
    folder = images.ImageFolder(tmp_path / "files", recipe, exact=exact)
    ours, theirs = batches(fused, workers), batches(folder, workers)
    assert len(ours) == 6
    assert_same(ours, theirs)


def test_transforms_of_torchvision(shards: str, tmp_path: Path) -> None:
    transform = tv.Compose([tv.RandomResizedCrop((16, 16)), tv.RandomHorizontalFlip(), tv.ToTensor()])
    fused = images.fuse(shmloader.Shards(shards), transform)
    assert "Shards are fused:" in fused.explain() and "us" in fused.explain(measure=True)
    torch.manual_seed(0)
    ours = [fused[at] for at in range(12)]
    torch.manual_seed(0)
    for at, path in enumerate(sorted((tmp_path / "files").rglob("*.*"))):
        with Image.open(path) as image:
            assert torch.equal(ours[at][0], transform(image.convert("RGB")))
        assert ours[at][1] == int(path.parent.name[-1])


def test_labels_and_names(shards: str) -> None:
    dataset = shmloader.Shards(shards)
    unlabelled = images.fuse(dataset, images.evaluation(16), label=None)
    assert unlabelled[0].shape == (3, 16, 16)
    assert torch.equal(batches(unlabelled, 1)[0], batches(unlabelled, 0)[0])
    named = images.fuse(dataset, images.evaluation(16), image="png;jpg", label="cls")
    assert named[3][1] == images.fuse(dataset, images.evaluation(16))[3][1]
    with pytest.raises(KeyError, match="has no tiff"):
        images.fuse(dataset, images.evaluation(16), image="tiff")[0]
    other = images.fuse(shmloader.Shards(shards, decode={"cls": lambda data: 10 + int(data)}), images.evaluation(16))
    assert other[0][1] == 10


def test_places_and_look_ahead(shards: str) -> None:
    fused = images.fuse(shmloader.Shards(shards), images.evaluation(16))
    assert [fused.__place__(at) for at in (0, 5, 6)] == [0, 0, 1]
    fused.__prefetch__([3, 1])
    assert torch.equal(pickle.loads(pickle.dumps(fused))[3][0], fused[3][0])


def test_from_bytes_as_a_decoder(shards: str) -> None:
    read = images.from_bytes(images.evaluation(16))
    dataset = shmloader.Shards(shards, decode={"jpg": read, "png": read})
    fused = images.fuse(shmloader.Shards(shards), images.evaluation(16))
    assert all(torch.equal(dataset[at].get("jpg", dataset[at].get("png")), fused[at][0]) for at in range(12))


def test_a_class_with_samples_of_its_own_is_not_fused(shards: str) -> None:
    class Own(shmloader.Shards):
        def __getitem__(self, index: Any) -> Any:
            return index

    unfused = images.fuse(Own(shards), images.evaluation(16))
    assert not unfused.is_fused and "__getitem__ of its own" in unfused.explain() and unfused[3] == 3


def test_a_broken_picture_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "0.tar", [("a.jpg", b"no picture"), ("a.cls", b"1")])
    with pytest.raises(Exception, match=r"a picture of 10 bytes"):
        images.fuse(shmloader.Shards(path), images.evaluation(16))[0]
