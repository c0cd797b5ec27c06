"""The training example: the data it builds, the folders it refuses, and that both loaders train to the same result."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from examples import digits, train
from examples.digits import build_digits
from examples.image_folder import ByPil, ByShmloader, DataFolderError, ImageFolder, find_images
from shmloader import images

SCANS = 60
COPIES = digits.COPIES


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data") / "digits"
    build_digits(root, digits=SCANS)
    return root


def write_images(*files: Path) -> None:
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(file)


# The default data


def test_no_scan_is_both_trained_and_tested_on(data: Path) -> None:
    train_scans, test_scans = ([file.name[:4] for file in (data / side).rglob("*.jpg")] for side in ("train", "test"))
    assert (len(train_scans), len(test_scans)) == (48 * COPIES, 12 * COPIES)
    assert (len(set(train_scans)), len(set(test_scans))) == (48, 12)
    assert set(train_scans).isdisjoint(test_scans)


# Other folders


def test_class_folders_alone_are_split_the_same_way_each_time(tmp_path: Path) -> None:
    write_images(*(tmp_path / name / f"{index}.jpg" for name in ("cat", "dog") for index in range(10)))
    split = find_images(tmp_path)
    assert split == find_images(tmp_path)
    assert split.classes == ["cat", "dog"]
    assert [label for _, label in split.train] == [0] * 8 + [1] * 8
    assert [label for _, label in split.test] == [0] * 2 + [1] * 2
    assert {file for file, _ in split.train}.isdisjoint(file for file, _ in split.test)


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ([], "holds no images in class folders"),
        (["n01440764_tench.JPEG", "n01491361_shark.JPEG"], "holds 2 image files but no class folders"),
        (["train/cat/0.jpg"], "holds one side of a split and not the other"),
        (["train/cat/0.jpg", "train/dog/0.jpg", "test/cow/0.jpg"], "holds classes that .*train does not: cow"),
        (["cat/0.jpg", "cat/1.jpg", "dog/0.jpg"], "dog holds 1 image; a class needs 2"),
        (["cat/0.jpg", "cat/1.jpg"], "cat is the only class"),
    ],
)
def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path, files: list[str], complaint: str) -> None:
    write_images(*(tmp_path / file for file in files))
    with pytest.raises(DataFolderError, match=complaint) as refusal:
        find_images(tmp_path)
    assert str(refusal.value).startswith(str(tmp_path))


def test_a_missing_folder_ends_the_program_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"absent is not a folder\. A data folder holds train/<class>"):
        train.main(["--data", str(tmp_path / "absent")])


# Reading and training


@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.parametrize("shape", [(40, 300), (300, 40), (20, 20), (2000, 1000)])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_images_of_any_shape_become_squares_of_bytes(
    tmp_path: Path, shape: tuple[int, int], mode: str, augment: bool
) -> None:
    Image.new(mode, shape).save(tmp_path / "image.jpg")
    made = []
    for decode in (ByPil, ByShmloader):
        torch.manual_seed(3)
        image, label = ImageFolder([(tmp_path / "image.jpg", 3)], 32, augment=augment, decode=decode)[0]
        assert (image.shape, image.dtype, label) == ((32, 32, 3), torch.uint8, 3)
        made.append(image)
    assert torch.equal(*made)


def test_every_operation_is_the_same_either_way(tmp_path: Path) -> None:
    """Boxes of every shape, and each of the operations with each of its strengths many times."""
    noise = np.random.default_rng(1).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    for name, size in (("a.jpg", (130, 97)), ("b.jpg", (40, 90)), ("c.png", (300, 60))):
        Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC).save(tmp_path / name)
    files = [(file, 0) for file in sorted(tmp_path.iterdir())]
    folders = [ImageFolder(files, 40, augment=True, decode=decode) for decode in (ByPil, ByShmloader)]
    for seed in range(300):
        outcomes = []
        for folder in folders:
            torch.manual_seed(seed)
            outcomes.append((folder[seed % 3][0], torch.get_rng_state()))
        assert all(map(torch.equal, *outcomes)), seed


def test_shmloader_decodes_by_its_own_decoder(data: Path) -> None:
    split, before = find_images(data), images.counts()["decoded"]
    options = train.parse(["--loader", "shmloader", "--workers", "0", "--batch-size", "5"])
    next(iter(train.make_loader(split.train, options, training=True)))
    assert images.counts()["decoded"] == before + 5


@pytest.mark.usefixtures("torch_settings")
def test_both_loaders_deliver_the_same_augmented_batches(data: Path) -> None:
    def two_epochs(loader: str) -> list[torch.Tensor]:
        options = train.parse(["--loader", loader, "--batch-size", "10"])
        train.make_repeatable(seed=5, threads=1)
        batches = train.make_loader(find_images(data).train, options, training=True)
        return [part.clone() for _ in range(2) for batch in batches for part in batch]

    ours, theirs = two_epochs("shmloader"), two_epochs("torch")
    assert len(ours) == len(theirs) == 2 * 2 * -(-48 * COPIES // 10)
    assert all(torch.equal(mine, its) for mine, its in zip(ours, theirs, strict=True))


@pytest.mark.usefixtures("torch_settings")
def test_both_loaders_train_to_the_same_accuracy(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    accuracies = []
    for loader in ("shmloader", "torch"):
        train.main(["--loader", loader, "--data", str(data), "--epochs", "1", "--batch-size", "16"])
        line = capsys.readouterr().out
        found = re.fullmatch(
            rf"{loader}: \d+ images/s \| \d+\.\d % of the time waiting for data"
            r" \| \d+\.\d\d s trainer CPU in the loader \| test accuracy (\d+\.\d\d) %\n",
            line,
        )
        assert found, line
        accuracies.append(found[1])
    assert accuracies[0] == accuracies[1]
