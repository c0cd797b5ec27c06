"""images.views: several views of one picture, decoded once, equal to each view made alone."""

from __future__ import annotations

import io
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jpeg_writer import SAMPLINGS, Noise, write
from made_photo import DOWN_FIRST
from PIL import Image, ImageOps

from shmloader import images
from shmloader.core import jpeg
from tests.images import torchvision_stand_ins as tv


def composed(*transforms: Any) -> Any:
    return tv.Compose(transforms)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("pictures")
    for k, (width, height) in enumerate([(80, 60), (60, 80), (200, 40), (33, 32), (90, 90)]):
        coarse = Image.fromarray(np.random.default_rng(k).integers(0, 256, (5, 5, 3), dtype=np.uint8))
        coarse.resize((width, height)).save(folder / f"{k}.jpg")
    Image.open(folder / "0.jpg").save(folder / "5.png")
    Image.open(folder / "0.jpg").save(folder / "6.jpg", progressive=True)
    return sorted(map(str, folder.iterdir()))


def mirrored(image: Any) -> Any:
    """A transform of a user's own, which draws from another generator."""
    return ImageOps.mirror(image) if random.random() < 0.5 else image


BICUBIC = tv.InterpolationMode.BICUBIC
NUMBERS = (tv.ToTensor(), tv.Normalize((0.5,) * 3, (0.2,) * 3))
LARGE = composed(
    tv.RandomResizedCrop((32, 32), scale=(0.3, 1.0), interpolation=BICUBIC), tv.RandomHorizontalFlip(), *NUMBERS
)
SMALL = composed(tv.RandomResizedCrop((16, 12), scale=(0.05, 0.3)), tv.RandomHorizontalFlip(), tv.PILToTensor())
OWN = composed(mirrored, tv.RandomResizedCrop(), mirrored, *NUMBERS)
VIEWS = {
    "two alike": [LARGE, LARGE],
    "large and small": [LARGE, LARGE, *[SMALL] * 4],
    "one's own between": [LARGE, OWN, SMALL],
    "one's own alone": [mirrored, SMALL, mirrored],
    "one": [SMALL],
}


def outcome(dataset: Any) -> Any:
    torch.manual_seed(3)
    random.seed(3)
    samples = [dataset[at] for at in (*range(len(dataset)), *range(len(dataset)))]
    return samples, torch.get_rng_state().tolist(), random.getstate()


def assert_same(one: Any, other: Any) -> None:
    assert one[1:] == other[1:]
    for (its_views, its_target), (views, target) in zip(one[0], other[0], strict=True):
        assert its_target == target and type(its_views) is type(views) is list and len(its_views) == len(views)
        for its_view, view in zip(its_views, views, strict=True):
            assert type(its_view) is type(view)
            assert np.array_equal(np.asarray(its_view), np.asarray(view))


@pytest.mark.parametrize("name", list(VIEWS))
def test_the_same_views(name: str, paths: list[str]) -> None:
    dataset = tv.DatasetFolder(paths, images.views(*VIEWS[name]))
    fused = images.fuse(dataset)
    assert fused.is_fused
    assert_same(outcome(dataset), outcome(fused))


def test_each_view_is_explained_once(paths: list[str]) -> None:
    lines = images.fuse(tv.DatasetFolder(paths, images.views(LARGE, LARGE, OWN))).explain().splitlines()
    assert [line for line in lines if line.startswith("  view")] == ["  view 1:", "  view 2: as view 1", "  view 3:"]
    assert sum("called as it is" in line for line in lines) == 2
    with pytest.raises(ValueError, match="Give one for each view"):
        images.views()


def test_one_picture_is_one_reading(paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is read once, and later views are made of the pixels that were decoded for the first."""
    reads: list[Any] = []

    class Decoder(jpeg.Decoder):
        def read(self, path: Any) -> Any:
            reads.append(path)
            return super().read(path)

        def decode(self, *values: Any, **named: Any) -> bool:
            reads.append(named["keep"])
            return super().decode(*values, **named)

    monkeypatch.setitem(images.decode.__globals__, "Decoder", Decoder)
    monkeypatch.setitem(images.decode.__globals__, "_idle", [])
    images.fuse(tv.DatasetFolder(paths, images.views(SMALL, LARGE, SMALL)))[0]
    assert reads == [paths[0], True, True, True]


@pytest.mark.parametrize("path", jpeg.paths())
@pytest.mark.parametrize("sampling", list(SAMPLINGS))
def test_parts_of_what_is_kept(path: str, sampling: str) -> None:
    """Any parts, of any size, one after another, with other files in between: as if each were decoded alone."""
    draw, decoder, other = random.Random(sampling), jpeg.Decoder(path), jpeg.Decoder(path)
    for _ in range(8):
        width, height = draw.randint(1, 150), draw.randint(1, 150)
        data = write(Noise(draw.randrange(999), width, height, SAMPLINGS[sampling]))
        assert decoder.open(data) is not None and other.open(data) is not None
        for _ in range(6):
            wide, high = draw.randint(1, width), draw.randint(1, height)
            crop = draw.randint(0, width - wide), draw.randint(0, height - high), wide, high
            outs = np.zeros((2, 3, draw.choice((high, draw.randint(1, 70))), draw.randint(1, 70)), np.uint8)
            rows = outs[:, :, :, ::-1] if draw.random() < 0.5 else outs
            exact, filter = draw.random() < 0.7, draw.randrange(6)
            keep = draw.random() < 0.8
            assert decoder.decode(crop, rows[0], exact, DOWN_FIRST, filter=filter, keep=keep)
            assert other.decode(crop, rows[1], exact, DOWN_FIRST, filter=filter)
            assert np.array_equal(outs[0], outs[1]), (width, height, crop, outs.shape, exact, filter)
            if not keep:
                assert decoder.decode(crop, rows[0], exact, DOWN_FIRST, marking=True, filter=filter)
                assert other.decode(crop, rows[1], exact, DOWN_FIRST, marking=True, filter=filter)
                assert decoder.marks == other.marks


def test_a_damaged_file_is_pillows_for_each_view(tmp_path: Path) -> None:
    """The whole file is read for the first view, so damage at its end is found before a number is drawn."""
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (90, 90, 3), dtype=np.uint8)).save(file, "JPEG")
    (tmp_path / "1.jpg").write_bytes(file.getvalue()[:-900])
    fused = images.fuse(tv.DatasetFolder([str(tmp_path / "1.jpg")], images.views(OWN, SMALL)))
    torch.manual_seed(1)
    random.seed(1)
    before = torch.get_rng_state().tolist(), random.getstate()
    with pytest.raises(OSError, match="truncated"):
        fused[0]
    assert (torch.get_rng_state().tolist(), random.getstate()) == before


def test_from_bytes_and_into_rows(paths: list[str]) -> None:
    read = pickle.loads(
        pickle.dumps(images.from_bytes(images.views(images.training(16), images.evaluation(8, resize=9))))
    )
    torch.manual_seed(1)
    expected = read(paths[0])
    assert [view.shape for view in expected] == [(3, 16, 16), (3, 8, 8)]
    rows = [torch.zeros_like(view) for view in expected]
    torch.manual_seed(1)
    assert all(one is other for one, other in zip(read(Path(paths[0]).read_bytes(), rows), rows, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(rows, expected, strict=True))
    for wrong in (rows[0], rows[:1], [*rows, rows[0]]):
        with pytest.raises(ValueError, match="no list of 2 tensors"):
            read(paths[0], wrong)


def test_what_each_part_costs(paths: list[str]) -> None:
    for transform, parts in (
        (LARGE, ["read the file", "RandomResizedCrop", "RandomHorizontalFlip", "finish"]),
        (OWN, ["read the file", repr(mirrored), "RandomResizedCrop", repr(mirrored), "finish"]),
        (
            images.views(SMALL, SMALL),
            [
                f"view {k}, {n}"
                for k in (1, 2)
                for n in ("read the file", "RandomResizedCrop", "RandomHorizontalFlip", "finish")
            ],
        ),
    ):
        fused = images.fuse(tv.DatasetFolder(paths, transform))
        states = torch.get_rng_state().tolist(), random.getstate()
        text = fused.explain(measure=True)
        assert text.startswith(fused.explain()) and (torch.get_rng_state().tolist(), random.getstate()) == states
        costs = text.removeprefix(fused.explain()).splitlines()[2:]
        assert [line.strip().rpartition(": ")[0][:45] for line in costs] == [part[:45] for part in parts]
        assert all(int(line.rpartition(": ")[2].removesuffix(" us")) >= 0 for line in costs)


def test_a_sample_that_cannot_be_read_has_no_costs(paths: list[str], tmp_path: Path) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no picture")
    text = images.fuse(tv.DatasetFolder([*paths[:2], str(broken)], LARGE)).explain(measure=True)
    assert "over 2 samples" in text and "one of 3 samples failed" in text
    text = images.fuse(tv.DatasetFolder([str(broken)], LARGE)).explain(measure=True)
    assert "over 0 samples" in text and "one of 1 samples failed" in text
