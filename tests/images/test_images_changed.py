"""A transform or a dataset that is changed after it was fused makes the changed samples."""

from __future__ import annotations

import copy
import pickle
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import shmloader
from shmloader import images
from tests.images import torchvision_stand_ins as tv

FLOATS = (tv.ToTensor(), tv.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)))


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("pictures")
    for at, (width, height) in enumerate([(90, 70), (60, 80), (100, 64)]):
        noise = np.random.default_rng(at).integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f"{at}.jpg")
    return sorted(map(str, folder.iterdir()))


def dataset_of(paths: list[str]) -> tv.DatasetFolder:
    crop = tv.RandomResizedCrop((24, 24))
    return tv.DatasetFolder(paths, tv.Compose([crop, tv.Compose([tv.RandomHorizontalFlip(0.0)]), *FLOATS]))


def outcome(dataset: Any) -> list[Any]:
    """All samples, and the states of the generators after them."""
    torch.manual_seed(3)
    random.seed(3)
    samples = [(np.asarray(image).tolist(), target) for image, target in (dataset[at] for at in range(len(dataset)))]
    return [samples, torch.get_rng_state().tolist(), random.getstate()]


def _size(dataset: Any) -> None:
    dataset.transform.transforms[0].size = (40, 30)


def _chance(dataset: Any) -> None:
    dataset.transform.transforms[1].transforms[0].p = 1.0


def _one_more(dataset: Any) -> None:
    dataset.transform.transforms.insert(1, tv.CenterCrop((20, 20)))


def _one_unknown(dataset: Any) -> None:
    dataset.transform.transforms[1].transforms.append(tv.Darker())


def _one_of_its_own(dataset: Any) -> None:
    dataset.transform.transforms[0].__dict__["__call__"] = None  # it is called as it is from now on


def _another(dataset: Any) -> None:
    dataset.transform = tv.Compose([tv.Resize(40), tv.CenterCrop((33, 33)), tv.PILToTensor()])


def _an_unknown(dataset: Any) -> None:
    dataset.transform = tv.Darker()


def _none(dataset: Any) -> None:
    dataset.transform = None


def _loader(dataset: Any) -> None:
    dataset.loader = lambda path: Image.new("RGB", (50, 40), (len(path), 2, 3))


def _fewer(dataset: Any) -> None:
    dataset.samples = dataset.samples[1:]


def _targets(dataset: Any) -> None:
    dataset.target_transform = str


CHANGES = [
    *(_size, _chance, _one_more, _one_unknown, _one_of_its_own),
    *(_another, _an_unknown, _none, _loader, _fewer, _targets),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__.strip("_"))
@pytest.mark.parametrize("on_the_fused", [False, True], ids=["of the dataset", "of the fused one"])
def test_what_is_changed_after_fuse(paths: list[str], change: Callable[[Any], None], on_the_fused: bool) -> None:
    dataset = dataset_of(paths)
    fused = images.fuse(dataset)
    assert outcome(fused) == outcome(dataset)
    change(fused if on_the_fused else dataset)
    expected = dataset_of(paths)
    change(expected)
    assert outcome(fused) == outcome(expected)
    assert outcome(fused) == outcome(expected)  # once more, from what was read then


@pytest.mark.parametrize("kind", [torch.tensor, np.array, list])
def test_a_mean_that_is_changed_in_place(paths: list[str], kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def dataset() -> Any:
        normalize = tv.Normalize(kind([0.5, 0.4, 0.3]), kind([0.2, 0.3, 0.4]))
        return tv.DatasetFolder(paths, tv.Compose([tv.Resize((20, 20)), tv.ToTensor(), normalize]))

    one, other = dataset(), dataset()
    fused = images.fuse(one)
    assert fused.is_fused and outcome(fused) == outcome(other)
    reads: list[Any] = []
    with monkeypatch.context() as patched:
        patched.setattr("shmloader.images.making.recognise", reads.append)
        assert outcome(fused) == outcome(other) and not reads  # it is read again only if it has changed
    fused = pickled(fused)
    for each in (fused.dataset, other):
        each.transform.transforms[2].mean[1] = 0.9
    assert fused.is_fused and outcome(fused) == outcome(other)


def test_what_is_changed_of_a_dataset_that_could_not_be_fused(paths: list[str]) -> None:
    dataset = tv.DatasetFolder(paths, tv.Darker())
    fused = images.fuse(dataset)
    assert not fused.is_fused
    fused.transform = tv.Compose([tv.Resize((20, 20)), tv.PILToTensor()])
    assert outcome(fused) == outcome(dataset)
    assert fused.transform is dataset.transform


def test_explain_says_what_is_fused_now(paths: list[str]) -> None:
    dataset = dataset_of(paths)
    fused = images.fuse(dataset)
    _size(dataset)
    assert "(40, 30)" in fused.explain()
    _loader(dataset)
    assert "not fused any more" in fused.explain()


def pickled(fused: Any) -> Any:
    with pytest.MonkeyPatch.context() as patched:
        modules = "torchvision", "torchvision.transforms", tv.V1, "torchvision.datasets", tv.FOLDER
        for name in modules:  # where pickle looks for the classes of the transforms
            patched.setitem(sys.modules, name, tv)
        return pickle.loads(pickle.dumps(fused))


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickled])
def test_copies(paths: list[str], way: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy does not read the transforms again, and follows its own dataset."""
    dataset = dataset_of(paths)
    fused = way(images.fuse(dataset))
    reads: list[Any] = []
    with monkeypatch.context() as patched:
        patched.setattr("shmloader.images.making.recognise", reads.append)
        assert outcome(fused) == outcome(dataset)
    assert not reads
    _size(fused)
    expected = dataset_of(paths)
    _size(expected)
    assert outcome(fused) == outcome(expected)


def test_each_of_several_views(paths: list[str]) -> None:
    def dataset() -> Any:
        return tv.DatasetFolder(
            paths, images.views(dataset_of(paths).transform, tv.Compose([tv.Resize((9, 9)), *FLOATS]))
        )

    def change(dataset: Any) -> None:
        dataset.transform.transforms[1].transforms[0].size = (12, 12)

    one, other = dataset(), dataset()
    fused = images.fuse(one)
    assert [image.shape[-1] for image in fused[0][0]] == [24, 9]
    change(one), change(other)
    torch.manual_seed(1)
    views = fused[0][0]
    torch.manual_seed(1)
    assert all(map(torch.equal, views, other[0][0]))


def test_our_own_folder_and_reader(paths: list[str], tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for path in paths:
        (tmp_path / "a" / Path(path).name).write_bytes(Path(path).read_bytes())
    folder = images.ImageFolder(tmp_path, images.training(24))
    folder.transform = images.evaluation(16, resize=20)
    assert folder[0][0].shape == (3, 16, 16)
    assert "CenterCrop" in folder.explain()
    transform = tv.Compose([tv.Resize((20, 20)), tv.PILToTensor()])
    read = images.from_bytes(transform)
    assert read(paths[0]).shape == (3, 20, 20)
    transform.transforms[0].size = (10, 12)
    assert read(paths[0]).shape == (3, 10, 12)


def test_scaled_on_the_device(paths: list[str]) -> None:
    """Another size is allowed; other numbers raise, because the loader has a function for the old ones."""
    dataset = dataset_of(paths)
    fused = images.fuse(dataset, scale_on_device=True)
    on_device = fused.on_device
    _size(dataset)
    assert fused[0][0].shape == (3, 40, 30)
    assert fused.on_device is on_device
    dataset.transform.transforms[-1].mean = (0.1, 0.2, 0.3)
    with pytest.raises(RuntimeError, match="the transform has changed since on_device was read"):
        fused[0]
    again = images.fuse(dataset, scale_on_device=True)
    again.transform = tv.Compose([tv.Resize((20, 20)), *FLOATS])  # before anybody has the function: no matter
    image = again[0][0]
    assert again.on_device is not None
    torch.testing.assert_close(again.on_device(image[None])[0], dataset[0][0], rtol=0, atol=0)


def test_workers_of_the_next_epoch(paths: list[str]) -> None:
    dataset = dataset_of(paths)
    fused = images.fuse(dataset)
    loader = shmloader.DataLoader(fused, batch_size=2, num_workers=2, multiprocessing_context="fork")
    assert [batch[0].shape[2:] for batch in loader] == [(24, 24)] * 2
    _size(dataset)
    assert [batch[0].shape[2:] for batch in loader] == [(40, 30)] * 2
