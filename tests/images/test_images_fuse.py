"""images.fuse gives the dataset's own samples bit for bit, and explains where it cannot."""

from __future__ import annotations

import functools
import io
import os
import random
from pathlib import Path
from typing import Any

import conftest
import numpy as np
import pytest
import torch
from jpeg_writer import Noise, write
from made_photo import picture
from PIL import Image, ImageOps

import shmloader
from shmloader import images
from shmloader.images.crops import RandomResizedCrop
from shmloader.images.random_numbers import Draws
from shmloader.images.view import View
from tests.images import torchvision_stand_ins as tv

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZES = [(80, 60), (60, 80), (200, 20), (33, 32), (32, 32), (90, 90), (31, 64)]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("pictures")
    for k, (width, height) in enumerate(SIZES):
        (folder / f"{k}.jpg").write_bytes(picture(k, width, height))
    (folder / "7.png").write_bytes(picture(7, 50, 45, "PNG"))
    (folder / "8.jpg").write_bytes(write(Noise(8, 70, 50)))
    return sorted(map(str, folder.iterdir()))


def compose(*transforms: Any) -> Any:
    return tv.Compose(transforms)


FLOATS = (tv.ToTensor(), tv.Normalize(MEAN, STD))
FUSED_WHOLLY = {
    "training": compose(tv.RandomResizedCrop(), tv.RandomHorizontalFlip(), tv.PILToTensor()),
    "training, numbers": compose(tv.RandomResizedCrop((40, 24)), tv.RandomHorizontalFlip(0.3), *FLOATS),
    "evaluation": compose(tv.Resize(40), tv.CenterCrop(), *FLOATS),
    "evaluation, of one side at most": compose(tv.Resize(40, max_size=50), tv.CenterCrop(), tv.PILToTensor()),
    "evaluation, both sides": compose(tv.Resize((50, 36)), tv.CenterCrop((36, 20)), tv.PILToTensor()),
    "middle, black beyond": compose(tv.CenterCrop((70, 61)), tv.RandomHorizontalFlip(), tv.PILToTensor()),
    "random crop": compose(tv.Resize(32), tv.RandomCrop(), tv.RandomHorizontalFlip(), tv.ToTensor()),
    "random crop of a crop": compose(
        tv.CenterCrop((40, 40)), tv.RandomHorizontalFlip(), tv.RandomCrop(), tv.PILToTensor()
    ),
    "crops of the picture": compose(
        tv.RandomCrop((20, 20)), tv.RandomCrop((11, 12)), tv.Resize((30, 30)), tv.PILToTensor()
    ),
    "flip of a tensor": compose(tv.RandomResizedCrop(), *FLOATS, tv.RandomHorizontalFlip()),
    "half": compose(
        tv.RandomResizedCrop(), tv.PILToTensor(), tv.ConvertImageDtype(torch.float16), tv.Normalize(MEAN, STD)
    ),
    "ToDtype": compose(tv.Resize((30, 30)), tv.PILToTensor(), tv.ToDtype(torch.float32, True), tv.Normalize(MEAN, STD)),
    "ToDtype, not scaled": compose(tv.Resize((30, 30)), tv.PILToTensor(), tv.ToDtype(torch.float64, False)),
    "bicubic": compose(
        tv.RandomResizedCrop(interpolation=tv.InterpolationMode.BICUBIC), tv.RandomHorizontalFlip(), *FLOATS
    ),
    **{
        f"resized by {mode.name}": compose(tv.Resize(40, mode), tv.CenterCrop(), tv.PILToTensor())
        for mode in tv.InterpolationMode
    },
    "nested": compose(compose(tv.Resize(40), tv.CenterCrop()), compose(tv.ToTensor())),
    "one alone": tv.ToTensor(),
}
FUSED_IN_PART = {
    "one of a user's own": (compose(tv.RandomResizedCrop(), tv.RandomHorizontalFlip(), tv.Darker(), *FLOATS), [2]),
    "one of a user's own first": (
        compose(tv.Darker(), tv.RandomResizedCrop(), tv.RandomHorizontalFlip(), *FLOATS),
        [0],
    ),
    "two of a user's own": (
        compose(tv.Resize(40), tv.Darker(), tv.RandomHorizontalFlip(), tv.Darker(), *FLOATS),
        [1, 3],
    ),
    "cut and resized after it": (
        compose(tv.Darker(), tv.CenterCrop((40, 50)), tv.Resize(32), tv.RandomCrop((20, 30)), tv.PILToTensor()),
        [0],
    ),
    "at the end": (compose(tv.RandomResizedCrop(), tv.RandomHorizontalFlip(), *FLOATS, torch.sign), [4]),
    "after bytes": (compose(tv.Resize(40), tv.CenterCrop(), tv.PILToTensor(), torch.Tensor.float), [3]),
    "to an array, and numbers of it": (compose(tv.Resize((40, 40)), tv.Darker(), np.asarray, tv.ToTensor()), [1, 2]),
    "nothing but a picture": (compose(tv.Resize((40, 40)), tv.Darker(), np.asarray, torch.from_numpy), [1, 2, 3]),
}
RESIZED_AGAIN = {
    "flipped before": compose(tv.RandomHorizontalFlip(), tv.RandomResizedCrop(), tv.PILToTensor()),
    "resized twice": compose(tv.Resize(40), tv.RandomResizedCrop(), tv.PILToTensor()),
    "padded before": compose(tv.CenterCrop((90, 90)), tv.Resize((30, 30)), tv.PILToTensor()),
}


def outcome(dataset: Any, seed: int) -> Any:
    """All samples, twice, and the generator's state."""
    torch.manual_seed(seed)
    samples = []
    for index in (*range(len(dataset)), *range(len(dataset))):
        try:
            samples.append(dataset[index])
        except ValueError as error:
            samples.append(str(error))
    return samples, torch.get_rng_state()


def assert_same(dataset: Any, fused: Any) -> None:
    for seed in range(3):
        (expected, state), (got, its_state) = outcome(dataset, seed), outcome(fused, seed)
        for k, (one, other) in enumerate(zip(expected, got, strict=True)):
            if isinstance(one, str):
                assert one == other
                continue
            assert one[1] == other[1]
            assert one[0].dtype is other[0].dtype and one[0].shape == other[0].shape, k
            assert torch.equal(one[0], other[0]), k
        assert torch.equal(state, its_state)


@pytest.mark.parametrize("name", list(FUSED_WHOLLY))
def test_the_same_samples(name: str, paths: list[str]) -> None:
    dataset = tv.DatasetFolder(paths, FUSED_WHOLLY[name], lambda target: -target)
    fused = images.fuse(dataset)
    assert fused.is_fused and "called" not in fused.explain()
    assert_same(dataset, fused)


@pytest.mark.parametrize("name", list(FUSED_IN_PART))
def test_the_same_samples_with_what_is_not_fused(name: str, paths: list[str]) -> None:
    transform, called = FUSED_IN_PART[name]
    dataset = tv.DatasetFolder(paths, transform)
    fused = images.fuse(dataset)
    lines = fused.explain().splitlines()[1:]
    assert [k for k, line in enumerate(lines) if not line.endswith(": fused")] == called
    assert_same(dataset, fused)


@pytest.mark.parametrize("name", list(RESIZED_AGAIN))
def test_resized_where_the_decoder_cannot(name: str, paths: list[str]) -> None:
    dataset = tv.DatasetFolder(paths, RESIZED_AGAIN[name])
    fused = images.fuse(dataset)
    assert "called" not in fused.explain()
    assert_same(dataset, fused)


def test_a_transform_of_ones_own_gets_what_pillow_has_beside_the_pixels(tmp_path: Path) -> None:
    """Turns by EXIF, by a function that fuse() does not know: before a crop and after it."""
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "1.jpg").write_bytes(picture(1, 60, 40, exif=exif, dpi=(72, 72)))
    (tmp_path / "2.png").write_bytes(picture(1, 60, 40, "PNG"))
    seen: list[Any] = []

    def turned(image: Any) -> Any:
        seen.append((type(image), image.mode, image.size, image.info.get("dpi")))
        return ImageOps.exif_transpose(image)

    for transform in (compose(turned, tv.PILToTensor()), compose(tv.CenterCrop((30, 50)), turned, tv.PILToTensor())):
        dataset = tv.DatasetFolder([str(path) for path in sorted(tmp_path.iterdir())], transform)
        assert_same(dataset, images.fuse(dataset))
    assert len(set(seen)) == 4


def test_only_what_is_wanted_is_decoded(paths: list[str]) -> None:
    def loader(path: str) -> Any:
        raise AssertionError(f"{path} was loaded, and only its crop is wanted")

    loader.__module__, loader.__name__ = tv.FOLDER, "default_loader"
    loader.__code__ = loader.__code__.replace(co_filename=tv.default_loader.__code__.co_filename)
    dataset = tv.DatasetFolder(paths[:1], FUSED_WHOLLY["training"])
    dataset.loader = loader
    fused = images.fuse(dataset)
    before = images.counts()["decoded"]
    assert fused[0][0].shape == (3, 32, 32)
    assert images.counts()["decoded"] == before + 1


def test_thousands_of_boxes() -> None:
    draw = random.Random(1)
    sizes = [(draw.randint(1, 900), draw.randint(1, 900)) for _ in range(3_000)]
    theirs, ours = tv.RandomResizedCrop(), RandomResizedCrop((32, 32))
    flips = draw.random()
    torch.manual_seed(9)
    expected = [(theirs.box(*size), bool(torch.rand(1) < flips)) for size in sizes]
    state = torch.get_rng_state()
    torch.manual_seed(9)
    draws, got = Draws(), []
    for size in sizes:
        view = View(*size)
        ours.apply(view, draws)
        got.append((view.crop, draws.is_below(flips)))
    assert got == expected and torch.equal(torch.get_rng_state(), state)


def test_a_flip_is_drawn_in_single_precision() -> None:
    """Drawn numbers are multiples of 2 ** -24, and `p` is rounded to one before the comparison."""
    p = 0.7
    rounded = float(np.float32(p))
    assert rounded < p
    draws = Draws()
    draws._real = Fixed(rounded)  # type: ignore[assignment]
    assert not draws.is_below(p) and not torch.tensor([rounded]) < p
    assert draws.is_below(0.8)


class Fixed:
    """A generator's tensor that draws the same number each time."""

    def __init__(self, number: float) -> None:
        self._number = number

    def uniform_(self, low: float, high: float) -> torch.Tensor:
        return torch.tensor([self._number])

    def fill_(self, value: float) -> torch.Tensor:
        return torch.tensor([value])


def test_a_broken_file_draws_nothing(tmp_path: Path, paths: list[str]) -> None:
    good = picture(1, 300, 300)
    (tmp_path / "half.jpg").write_bytes(good[: len(good) // 2])
    (tmp_path / "none.jpg").write_text("no picture")
    broken = [str(tmp_path / "half.jpg"), str(tmp_path / "none.jpg"), str(tmp_path / "missing.jpg")]
    dataset = tv.DatasetFolder([*broken, *paths], FUSED_WHOLLY["training"])
    fused = images.fuse(dataset)
    for k in range(3):
        errors = []
        for either in (dataset, fused):
            torch.manual_seed(k)
            with pytest.raises(OSError) as caught:
                either[k]
            errors.append((type(caught.value), torch.get_rng_state()))
        assert errors[0][0] is errors[1][0] and torch.equal(errors[0][1], errors[1][1])
    with pytest.raises(OSError, match=r"half\.jpg"):
        fused[0]


# ------------------------------------------------------------------------------------------------- rows, and the device


def test_read_into_a_row(paths: list[str]) -> None:
    for name, dtype in (("training", torch.uint8), ("evaluation", torch.float32)):
        fused = images.fuse(tv.DatasetFolder(paths, FUSED_WHOLLY[name], lambda target: target + 5))
        batch = torch.full((3, 3, 32, 32), 7, dtype=dtype)
        torch.manual_seed(1)
        expected = fused[2]
        torch.manual_seed(1)
        assert fused.read_into(2, batch[1]) == expected[1] == 7
        assert torch.equal(batch[1], expected[0]) and (batch[0] == 7).all() and (batch[2] == 7).all()
        lying = torch.empty((32, 32, 3), dtype=dtype).permute(2, 0, 1)
        torch.manual_seed(1)
        fused.read_into(2, lying)
        assert torch.equal(lying, expected[0])
        for wrong in (torch.empty((3, 32, 31), dtype=dtype), torch.empty((3, 32, 32), dtype=torch.int16)):
            with pytest.raises(ValueError, match=r"out is .* Give"):
                fused.read_into(2, wrong)


def test_read_into_a_row_what_is_not_fused(paths: list[str]) -> None:
    for name in ("one of a user's own", "at the end"):
        assert_read_into_a_row(images.fuse(tv.DatasetFolder(paths, FUSED_IN_PART[name][0])))


def assert_read_into_a_row(fused: Any) -> None:
    row = torch.empty(3, 32, 32)
    torch.manual_seed(1)
    expected = fused[1]
    torch.manual_seed(1)
    assert fused.read_into(1, row) == expected[1] and torch.equal(row, expected[0])
    with pytest.raises(ValueError, match=r"Give an `out` (like it|of that shape)"):
        fused.read_into(1, torch.empty(3, 32, 31))


def test_scaled_on_the_device(paths: list[str]) -> None:
    for name in ("training, numbers", "half", "ToDtype"):
        dataset = tv.DatasetFolder(paths, FUSED_WHOLLY[name])
        fused = images.fuse(dataset, scale_on_device=True)
        torch.manual_seed(2)
        expected = torch.stack([dataset[k][0] for k in range(4)])
        torch.manual_seed(2)
        labels = torch.arange(4)
        rows = torch.stack([fused[k][0] for k in range(4)])
        assert rows.dtype is torch.uint8
        assert fused.on_device is not None
        got, same = fused.on_device([rows, labels])
        assert got.dtype is expected.dtype and torch.equal(got, expected) and same is labels
    bytes_already = images.fuse(tv.DatasetFolder(paths, FUSED_WHOLLY["training"]), scale_on_device=True)
    not_last = images.fuse(tv.DatasetFolder(paths, FUSED_IN_PART["at the end"][0]), scale_on_device=True)
    for fused in (bytes_already, not_last):
        assert fused.on_device is None and "nothing can be scaled" in fused.explain()
    assert not_last[0][0].dtype is torch.float32


def test_not_exact_is_close(paths: list[str]) -> None:
    dataset = tv.DatasetFolder(paths[:7], FUSED_WHOLLY["training"])
    fused = images.fuse(dataset, exact=False)
    assert "not exact" in fused.explain()
    (expected, state), (got, its_state) = outcome(dataset, 1), outcome(fused, 1)
    assert torch.equal(state, its_state)
    for (one, _), (other, _) in zip(expected, got, strict=True):
        assert (one.float() - other.float()).abs().mean() < 1
    flipped = images.fuse(tv.DatasetFolder(paths, RESIZED_AGAIN["flipped before"]), exact=False)
    assert "called" not in flipped.explain()
    assert torch.equal(outcome(flipped, 1)[1], outcome(flipped.dataset, 1)[1])


@pytest.mark.parametrize("workers", [0, 2])
def test_loaded(workers: int, paths: list[str]) -> None:
    dataset = tv.DatasetFolder(paths * 4, FUSED_WHOLLY["training, numbers"])
    batches = []
    for data in (dataset, images.fuse(dataset)):
        torch.manual_seed(4)
        loader = shmloader.DataLoader(data, batch_size=5, shuffle=True, num_workers=workers)
        batches.append(list(loader))
    conftest.assert_same(*batches)


# ---------------------------------------------------------------------------------------------- what it says, and is


def test_it_is_the_dataset_in_all_else(paths: list[str]) -> None:
    dataset = tv.DatasetFolder(paths, FUSED_WHOLLY["training"])
    fused = images.fuse(dataset)
    assert fused.classes is dataset.classes and fused.samples is dataset.samples and len(fused) == len(paths)
    assert isinstance(fused, torch.utils.data.Dataset) and "DatasetFolder" in repr(fused)
    dataset.samples = dataset.samples[:2]
    assert len(fused) == 2 and fused[-1][1] == 1
    with pytest.raises(IndexError):
        fused[2]
    with pytest.raises(AttributeError, match="nothing"):
        _ = fused.nothing
    assert not hasattr(fused, "__getitems__") and not hasattr(fused, "__array__")


def test_paths_that_are_bytes(paths: list[str], tmp_path: Path) -> None:
    """torchvision's loader opens them."""
    dataset: Any = tv.DatasetFolder(paths, FUSED_WHOLLY["training"])
    dataset.samples = [(os.fsencode(path), target) for path, target in dataset.samples]
    fused: Any = images.fuse(dataset, rows=tmp_path / "rows")
    for _ in range(2):  # the first time makes the marks of rows
        assert_same(dataset, fused)
    assert "read the file" in fused.explain(measure=True)
    dataset.loader = lambda path: Image.open(io.BytesIO(Path(path.decode()).read_bytes())).convert("RGB")
    assert_same(dataset, fused)


class WithoutBroken(tv.DatasetFolder):
    """Gives None for a file that cannot be read, as many datasets do; no file of the first samples is broken."""

    def __getitem__(self, index: int) -> Any:
        try:
            return super().__getitem__(index)
        except OSError:
            return None


class RareFlip(tv.DatasetFolder):
    """Flips the pictures of one class only, and counts its calls."""

    calls = 0

    def __getitem__(self, index: int) -> Any:
        sample, target = super().__getitem__(index)
        self.calls += 1
        return (sample.flip(-1) if target == 4 else sample), target


class Decorated(tv.DatasetFolder):
    """Its method has torchvision's name and module."""

    @functools.wraps(tv.DatasetFolder.__getitem__)
    def __getitem__(self, index: int) -> Any:
        sample, target = super().__getitem__(index)
        return sample, -target


@pytest.mark.parametrize("kind", [WithoutBroken, RareFlip, Decorated])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_method_of_its_own_is_called(kind: Any, workers: int, paths: list[str], tmp_path: Path) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no picture")
    dataset = kind([*paths[:6], *([broken] if kind is WithoutBroken else [])], FUSED_WHOLLY["training"])
    fused = images.fuse(dataset)
    assert not fused.is_fused and f"{kind.__name__} is not fused: its class has a __getitem__" in fused.explain()
    batches = []
    for data in (dataset, fused):
        torch.manual_seed(4)
        loader = shmloader.DataLoader(data, batch_size=3, num_workers=workers, collate_fn=list)
        batches.append([sample for batch in loader for sample in batch])
    conftest.assert_same(*batches)
    assert (batches[0][-1] is None) == (kind is WithoutBroken)
    assert workers or kind is not RareFlip or dataset.calls == 12  # none more: fuse() tries no samples


def test_a_class_that_inherits_the_method(paths: list[str]) -> None:
    class Named(tv.DatasetFolder):
        def __len__(self) -> int:
            return len(self.samples)

    dataset = Named(paths, FUSED_WHOLLY["training"])
    assert images.fuse(dataset).is_fused
    assert_same(dataset, images.fuse(dataset))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda dataset: setattr(dataset, "loader", Image.open), "its loader"),
        (lambda dataset: setattr(dataset, "transform", None), "no transform"),
        (lambda dataset: setattr(dataset, "__getitems__", lambda indices: []), "several samples"),
        (lambda dataset: setattr(dataset, "transform", torch.sign), "not one of the transforms"),
    ],
)
def test_what_is_not_fused_stays(change: Any, why: str, paths: list[str]) -> None:
    dataset = tv.DatasetFolder(paths, FUSED_WHOLLY["training"])
    change(dataset)
    fused = images.fuse(dataset)
    assert not fused.is_fused and why in fused.explain() and "not fused" in fused.explain()
    assert len(fused) == len(paths) and fused.on_device is None and fused.samples is dataset.samples
    if why == "no transform":
        assert fused[0][0].tobytes() == dataset[0][0].tobytes()
    assert ("__getitems__" in why) or hasattr(fused, "__getitems__") == (why == "several samples")


@pytest.mark.parametrize(
    ("transform", "why"),
    [
        (tv.RandomResizedCrop(interpolation="magic"), "Pillow has no interpolation magic"),
        (tv.Resize(40, max_size=40), "contradict"),
        (tv.Normalize(MEAN, STD), "gets a picture of bytes"),
        (tv.ToDtype(), "nothing to a PIL image"),
        (tv.RandomResizedCrop(scale=3), "not those that are known"),
    ],
)
def test_why_a_transform_is_not_fused(transform: Any, why: str, paths: list[str]) -> None:
    assert why in images.fuse(tv.DatasetFolder(paths, compose(transform, tv.PILToTensor()))).explain()


@pytest.mark.parametrize(
    ("after", "why"),
    [
        ((tv.ToTensor(), tv.Normalize((0.5, 0.5), (1, 1))), "the picture's channels"),
        ((tv.ToTensor(), tv.Normalize(MEAN, (0, 1, 1))), "std is 0"),
        ((tv.ToTensor(), tv.Normalize(MEAN, STD), tv.CenterCrop((50, 50))), "black edges"),
        ((tv.ToTensor(), tv.ToTensor()), "a tensor already"),
        ((tv.PILToTensor(), tv.ConvertImageDtype(torch.int16)), "from torch.uint8 to torch.int16"),
        ((tv.PILToTensor(), tv.ToDtype({torch.Tensor: torch.float32})), "a dtype for each"),
        ((tv.PILToTensor(), tv.Resize(20)), "a tensor is resized"),
        ((tv.PILToTensor(), tv.RandomCrop((9, 9), padding=4)), "it pads a tensor"),
        ((tv.ToTensor(), tv.Resize(20)), "numbers are resized"),
    ],
)
def test_why_what_comes_after_is_not_fused(after: Any, why: str, paths: list[str]) -> None:
    assert why in images.fuse(tv.DatasetFolder(paths, compose(tv.RandomCrop((20, 20)), *after))).explain()


def test_a_transform_that_was_changed(paths: list[str]) -> None:
    class RandomResizedCrop(tv.RandomResizedCrop):  # somebody's own
        pass

    patched = tv.RandomResizedCrop()
    patched.forward = torch.sign
    hooked = tv.RandomResizedCrop(_forward_hooks={1: print})
    for transform, why in ((RandomResizedCrop(), "not one of"), (patched, "of its own"), (hooked, "of its own")):
        lines = images.fuse(tv.DatasetFolder(paths, compose(transform, tv.PILToTensor()))).explain().splitlines()
        assert "called as it is" in lines[1] and why in lines[1]
        assert not images.fuse(tv.DatasetFolder(paths, transform)).is_fused


def test_version_two_draws_only_what_is_in_doubt(tmp_path: Path) -> None:
    (tmp_path / "1.jpg").write_bytes(picture(1, 32, 60))
    states = []
    for crop in (tv.RandomCrop(), tv.of_v2(tv.RandomCrop())):
        fused = images.fuse(tv.DatasetFolder([str(tmp_path / "1.jpg")], compose(crop, tv.PILToTensor())))
        torch.manual_seed(1)
        _ = fused[0]
        states.append(torch.rand(1))
    torch.manual_seed(1)
    drawn = torch.rand(3)
    assert states[0] == drawn[2] and states[1] == drawn[1]


def test_what_has_no_samples() -> None:
    tensors = torch.utils.data.TensorDataset(torch.zeros(3))
    for dataset in (tensors, torch.utils.data.Subset(tensors, [0]), torch.utils.data.ConcatDataset([tensors])):
        with pytest.raises(TypeError, match=r"^TensorDataset cannot be fused, because it has no samples and no loader"):
            images.fuse(dataset)
