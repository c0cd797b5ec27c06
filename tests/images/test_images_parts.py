"""fuse() of torch's Subset and ConcatDataset: the same samples, written in place, with every start method."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from conftest import assert_same
from PIL import Image
from torch.utils.data import ConcatDataset, Subset, random_split

import shmloader
from shmloader import images
from tests.images import torchvision_stand_ins as tv

NUMBERS = (tv.ToTensor(), tv.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)))


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("pictures")
    for at in range(7):
        noise = np.random.default_rng(at).integers(0, 256, (60 + at, 70, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f"{at}.jpg")
    return sorted(map(str, folder.iterdir()))


def folder(paths: list[str], *last: Any) -> tv.DatasetFolder:
    steps = [tv.RandomResizedCrop((24, 24)), tv.RandomHorizontalFlip(0.5), *(last or NUMBERS)]
    return tv.DatasetFolder(paths, tv.Compose(steps))


def views(paths: list[str]) -> tv.DatasetFolder:
    one, other = folder(paths).transform, tv.Compose([tv.Resize((9, 9)), *NUMBERS])
    return tv.DatasetFolder(paths, images.views(one, other))


def split(dataset: Any) -> Any:
    return random_split(dataset, [0.6, 0.4], torch.Generator().manual_seed(3))[1]


MAKES: dict[str, Callable[[list[str]], Any]] = {
    "Subset": lambda paths: Subset(folder(paths), [5, 0, 3, 3]),
    "random_split": lambda paths: split(folder(paths)),
    "ConcatDataset": lambda paths: ConcatDataset([folder(paths[:3]), folder(paths[3:])]),
    "nested": lambda paths: split(ConcatDataset([Subset(folder(paths), range(1, 6)), folder(paths[2:4])])),
    "views": lambda paths: ConcatDataset([views(paths[:4]), Subset(views(paths), [6, 5])]),
    "one not fused": lambda paths: ConcatDataset([folder(paths[:3]), tv.DatasetFolder(paths, tv.PILToTensor())]),
    "one fused": lambda paths: ConcatDataset([images.fuse(folder(paths[:3])), folder(paths[3:])]),
}


def outcome(dataset: Any) -> list[Any]:
    torch.manual_seed(3)
    random.seed(3)
    return [[*map(dataset.__getitem__, range(-1, len(dataset)))], torch.get_rng_state().tolist(), random.getstate()]


@pytest.mark.parametrize("name", MAKES)
def test_the_same_samples(paths: list[str], name: str) -> None:
    dataset = MAKES[name](paths)
    fused = images.fuse(dataset)
    assert isinstance(fused, type(dataset)) and fused.is_fused and ": fused" in fused.explain()
    assert_same(outcome(fused), outcome(dataset))
    assert_same(outcome(copy.deepcopy(fused)), outcome(dataset))
    with pytest.raises((IndexError, ValueError)):
        fused[len(dataset)]


# By fork alone, because a spawned worker cannot import the stand-ins for torchvision.
@pytest.mark.parametrize(("workers", "method"), [(0, None), (2, "fork")])
@pytest.mark.parametrize("name", ["Subset", "nested", "views", "one fused"])
def test_loaded(paths: list[str], name: str, workers: int, method: str | None) -> None:
    batches: list[Any] = []
    dataset = MAKES[name](paths)
    for data in (dataset, images.fuse(dataset)):
        torch.manual_seed(4)
        loader = shmloader.DataLoader(
            data, batch_size=2, shuffle=True, num_workers=workers, multiprocessing_context=method
        )
        batches.append(list(loader))
    assert_same(*batches)


@pytest.mark.parametrize("name", ["Subset", "ConcatDataset", "nested"])
def test_images_are_written_in_their_rows(paths: list[str], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each sample would be a new tensor, and copied."""
    fused = images.fuse(MAKES[name](paths))
    rows = torch.zeros(len(fused), 3, 24, 24)
    for at in range(len(fused)):
        torch.manual_seed(at)
        assert fused.__getitem_into__(at, (rows[at], None))[0] is not None
        torch.manual_seed(at)
        assert torch.equal(rows[at], fused[at][0])


def test_work_for_the_device(paths: list[str]) -> None:
    fused = images.fuse(MAKES["nested"](paths), scale_on_device=True)
    assert fused[0][0].dtype is torch.uint8 and fused.on_device is not None
    torch.manual_seed(1)
    image = fused[0][0]
    torch.manual_seed(1)
    torch.testing.assert_close(fused.on_device(image[None])[0], MAKES["nested"](paths)[0][0], rtol=0, atol=0)
    other = folder(paths, tv.ToTensor(), tv.Normalize((0.1, 0.1, 0.1), (1.0, 1.0, 1.0)))
    with pytest.raises(ValueError, match="leave different work to the device"):
        images.fuse(ConcatDataset([folder(paths), other]), scale_on_device=True)


@pytest.mark.parametrize("whole", [lambda fused: Subset(fused, [2, 0]), lambda fused: ConcatDataset([fused, fused])])
def test_options_for_what_is_fused_already_are_refused(paths: list[str], whole: Callable[[Any], Any]) -> None:
    fused = images.fuse(folder(paths))
    assert len(images.fuse(whole(fused)))
    for options in ({"cache": "1 MB"}, {"exact": False}, {"rows": "rows"}, {"transform": tv.ToTensor()}):
        with pytest.raises(TypeError, match=rf"got {next(iter(options))} for a .* inside is fused already"):
            images.fuse(whole(fused), **options)
