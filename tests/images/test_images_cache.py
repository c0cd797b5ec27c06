"""Decoded pictures in a cache: samples are the same bit for bit, whichever process kept them."""

from __future__ import annotations

import errno
import os
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import assert_same, write_files
from jpeg_writer import SAMPLINGS, Noise, write
from PIL import Image
from torch.utils.data import Subset

from shmloader import images
from shmloader.core import jpeg
from shmloader.images import cache
from shmloader.images.cache import budget_of
from tests.images import kept_pictures
from tests.images import torchvision_stand_ins as tv
from tests.images.kept_pictures import (
    ALL_CACHED,
    ALL_DECODED,
    PICTURES,
    SIZE,
    check,
    counted,
    folder,
    same,
    samples,
    save,
    warned,
)

# Fixtures; each test has memory of its own, which no job of this user finds.
own_memory, root = kept_pictures.own_memory, kept_pictures.root


# -------------------------------------------------------------------------------------------------- planes of a picture


@pytest.mark.parametrize("is_wild", [False, True])
@pytest.mark.parametrize("sampling", list(SAMPLINGS))
@pytest.mark.parametrize("path", jpeg.paths())
def test_a_crop_of_planes_is_the_crop_of_the_file(path: str, sampling: str, is_wild: bool) -> None:
    draw = random.Random(sampling)
    for width, height, restart in ((150, 130, 0), (33, 17, 3), (2, 70, 0), (1, 1, 0)):
        data = write(Noise(7, width, height, SAMPLINGS[sampling], is_wild=is_wild, restart=restart))
        maker, reader, file = jpeg.Decoder(path), jpeg.Decoder(path), jpeg.Decoder(path)
        assert maker.open(data) == file.open(data)
        planes = maker.planes()
        assert planes is not None and len(planes) == maker.planes_bytes()
        assert reader.open_planes(b"xyz" + planes, 3) == (width, height, 1)
        for _ in range(4):
            wide, high = draw.randint(1, width), draw.randint(1, height)
            crop = (draw.randint(0, width - wide), draw.randint(0, height - high), wide, high)
            shape = (3, draw.randint(1, 40), draw.randint(1, 40))
            for exact in (True, False):
                expected, got = np.zeros(shape, np.uint8), np.zeros(shape, np.uint8)
                for decoder in (maker, reader):  # the maker has all of the file now
                    got[...] = 0
                    how = {"down_first": draw.random() < 0.5, "filter": draw.randrange(6)}
                    assert file.decode(crop, expected, exact, **how)
                    assert decoder.decode(crop, got, exact, **how, keep=decoder is maker)
                    assert np.array_equal(got, expected)


def test_what_are_no_planes_is_not_opened() -> None:
    decoder, draw = jpeg.Decoder(), random.Random(1)
    assert decoder.open(write(Noise(1, 30, 20))) is not None
    planes = decoder.planes()
    assert planes is not None
    for wrong in (b"", planes[:15], planes[:16], planes[:-1], planes + b"\0"):
        assert decoder.open_planes(wrong) is None
    for _ in range(300):
        broken = bytearray(planes)
        broken[draw.randrange(10)] = draw.randrange(256)
        if (opened := decoder.open_planes(broken)) is not None:  # then it is another picture of as many bytes
            out = np.empty((3, opened[1], opened[0]), np.uint8)
            assert decoder.decode((0, 0, opened[0], opened[1]), out)
    assert decoder.open_planes(planes) == (30, 20, 1)
    for call in (decoder.planes, lambda: decoder.skim((0, 0, 8, 8))):
        with pytest.raises(ValueError, match="open a file"):
            call()
    out = np.empty((3, 20, 30), np.uint8)
    assert decoder.decode((0, 0, 30, 20), out, marks=bytes(24)) and decoder.marks is None  # planes have no rows to find
    assert decoder.open(write(Noise(1, 30, 20))[:-20]) is not None and decoder.planes() is None


# -------------------------------------------------------------------------------------------------------------- samples


@pytest.mark.parametrize("exact", [True, False])
def test_samples_are_the_same(root: str, exact: bool) -> None:
    plain = [samples(folder(root, exact=exact), seed) for seed in range(3)]
    dataset = folder(root, exact=exact, cache="8 MB")
    assert counted(lambda: same(samples(dataset, 0), plain[0])) == ALL_DECODED
    for seed in (0, 1, 2):
        assert counted(lambda seed=seed: check(same(samples(dataset, seed), plain[seed]))) == ALL_CACHED


@pytest.mark.parametrize("exact", [True, False])
def test_samples_of_a_fused_dataset(root: str, exact: bool) -> None:
    """With any transforms, also one of the user's own, and transforms that are changed later."""
    paths = [path for path, _ in folder(root).samples]
    for last in (tv.PILToTensor(), tv.ToTensor()):
        transform = tv.Compose([tv.RandomResizedCrop(), tv.RandomHorizontalFlip(), last])
        plain = images.fuse(tv.DatasetFolder(paths, transform), exact=exact)
        cached = images.fuse(tv.DatasetFolder(paths, transform), exact=exact, cache="8 MB")
        for seed in range(3):
            assert same(samples(cached, seed), samples(plain, seed))
        for dataset in (plain, cached):
            dataset.transform = tv.Compose([tv.Resize(30), tv.CenterCrop((20, 20)), last])
        assert counted(lambda one=cached, other=plain: check(same(samples(one), samples(other))))["cached"] == PICTURES


def test_samples_of_several_views(root: str) -> None:
    two = images.views(images.training(30), images.training(20, mean=(0.5,) * 3, std=(0.5,) * 3))
    plain, cached = (images.ImageFolder(root, two, cache=cache) for cache in (None, "8 MB"))
    for seed in (1, 1, 2):
        assert_same(samples(cached, seed), samples(plain, seed))
    assert "of the pictures came from the cache" in cached.__report_lines__()[0][1]


def test_pictures_that_are_no_baseline_jpeg(root: str) -> None:
    Image.fromarray(np.full((50, 60, 3), 9, np.uint8)).save(f"{root}/class0/a.png")
    save(Path(f"{root}/class0/b.jpg"), 1, progressive=True)
    (Path(root) / "class1" / "c.jpg").write_bytes(Path(f"{root}/class1/1.jpg").read_bytes()[:-60])  # its end is lost
    plain, cached = folder(root), folder(root, cache="8 MB")
    for index in range(len(plain)):
        for _ in range(2):
            torch.manual_seed(index)
            if plain.samples[index][0].endswith("c.jpg"):
                for dataset in (plain, cached):
                    with pytest.raises(OSError, match="truncated"):
                        dataset[index]
                continue
            expected = plain[index][0]
            torch.manual_seed(index)
            assert torch.equal(cached[index][0], expected)
    assert "cannot be kept" in cached._following.cache.report()


def test_a_changed_file_is_another_picture(root: str) -> None:
    """Also a file of the same size."""
    path = folder(root).samples[0][0]

    def write_picture(seed: int) -> None:
        save(Path(path), seed)
        os.truncate(path, 20_000)
        os.utime(path, ns=(seed, seed))

    write_picture(98)
    dataset = folder(root, cache="8 MB")
    samples(dataset)
    write_picture(99)
    assert same(samples(dataset), samples(folder(root)))
    assert counted(lambda: samples(dataset))["cached"] == PICTURES
    os.unlink(path)
    with pytest.raises(FileNotFoundError, match=os.path.basename(path)):
        dataset[0]


def test_relative_paths_are_of_their_folder(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other" / "train" / "class0").mkdir(parents=True)
    for root, seed in ((tmp_path, 1), (tmp_path / "other", 2)):
        Image.fromarray(np.full((64, 64, 3), 90 * seed, np.uint8)).save(root / "train" / "class0" / "0.jpg", "JPEG")
        os.utime(root / "train" / "class0" / "0.jpg", ns=(7, 7))
    monkeypatch.chdir(tmp_path)
    one = images.ImageFolder("train", images.training(40), cache="8 MB")
    first = one[0][0]
    monkeypatch.chdir(tmp_path / "other")
    assert not torch.equal(images.ImageFolder("train", images.training(40), cache="8 MB")[0][0], first)


def test_rows_are_used_for_what_is_not_kept(root: str, tmp_path: Path) -> None:
    dataset = folder(root, cache=1 << 20, rows=tmp_path / "train.rows")
    keep, calls = dataset._following.cache.keep, []
    dataset._following.cache.keep = lambda path, decoder: bool(
        len(calls) < 5 and keep(path, decoder) and not calls.append(1)
    )
    plain = samples(folder(root))
    assert same(samples(dataset), plain) and len(calls) == 5
    marks = dataset._following._rows
    assert sum(marks.find(k, path, (os.stat(path).st_size, os.stat(path).st_mtime_ns)) is not None
               for k, (path, _) in enumerate(dataset.samples)) == PICTURES - 5  # fmt: skip
    assert same(samples(dataset), plain)


def test_a_huge_picture_that_is_kept_warns_as_pillow_does(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = folder(root, cache="8 MB")
    samples(dataset)
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 120 * 160 - 1)
    with pytest.warns(Image.DecompressionBombWarning):
        dataset[0]


# -------------------------------------------------------------------------------------------------------------- budgets


def test_what_fits_is_kept_and_stays(root: str) -> None:
    for k in range(60):
        save(Path(root) / "class0" / f"more{k}.jpg", k)
    dataset = folder(root, cache="1 MB")
    plain = samples(folder(root))
    fit = (1 << 20) // SIZE
    first = counted(lambda: samples(dataset))
    for _ in range(2):
        later = counted(lambda: check(same(samples(dataset), plain)))
        assert fit - 3 <= later["cached"] <= fit and later["cached"] + later["decoded"] == len(dataset)
    assert first["cached"] == 0
    text = dataset._following.cache.report()
    missing = len(dataset) - later["cached"]
    assert f"{later['cached'] * 2:,} of {3 * len(dataset):,}" in text and "did not fit" in text
    more = float(text.partition("did not fit, and ")[2].split()[0])  # KiB or MiB
    assert abs(more * (1 << 10 if "KiB more" in text else 1 << 20) / (missing * SIZE) - 1) < 0.1


def test_the_largest_budget_counts(root: str) -> None:
    small, large = folder(root, cache="1 MB"), folder(root, cache="3 MB")
    samples(large)
    assert small._following.cache._memory.table.budget == large._following.cache._memory.table.budget == 3 << 20
    assert counted(lambda: samples(small))["cached"] > 0
    assert folder(root, cache="2 MB")._following.cache._memory.table.budget == 3 << 20


@pytest.mark.parametrize(
    ("value", "kind"),
    [(True, TypeError), (0.0, ValueError), (1.5, ValueError), (-0.1, ValueError), (100, ValueError), ("", ValueError),
     ("10 KB", ValueError), ("9999 TB", ValueError), ([1], TypeError), (b"16 GB", TypeError)],
)  # fmt: skip
def test_values_that_mean_nothing(root: str, value: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=r"cache=.*Give a size \(cache='16 GB'\)"):
        folder(root, cache=value)


@pytest.mark.parametrize("value", ["train.cache", Path("train.cache"), ("train.cache", "200 GB")])
def test_a_file_is_no_cache(root: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"and in no file\. Give a size .*: rows='train\.rows'"):
        folder(root, cache=value)


def test_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shmloader.images.cache.allowed_memory", lambda: 10 << 30)
    for value, budget in (
        ("16 GB", 16 << 30),
        ("1.5gib", 3 << 29),
        ("2M", 2 << 20),
        (0.25, 10 << 28),
        (5 << 20, 5 << 20),
    ):
        assert budget_of(value) == budget


def test_memory_runs_out(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel writes only a part of large writes, and then nothing."""
    dataset, plain = folder(root, cache="8 MB"), samples(folder(root))
    left, pwrite = [5 * 4], os.pwrite  # a picture takes four calls: its head, a half, a quarter, the rest

    def short(fd: int, data: Any, at: int) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return pwrite(fd, data[: len(data) // 2] if len(data) > SIZE // 3 else data, at)

    monkeypatch.setattr(os, "pwrite", short)
    (text,) = warned(lambda: [check(same(samples(dataset), plain)) for _ in range(2)])
    assert "cache='8 MB'" in text and "Cannot allocate memory" in text and "Make room" in text
    assert counted(lambda: check(same(samples(dataset), plain)))["cached"] == 5


def test_a_machine_that_has_no_common_memory(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "memfd_create", refuse)
    found: list[Any] = []
    (text,) = warned(lambda: found.append(folder(root, cache="8 MB")))
    assert "cache='8 MB'" in text and "decoded each time. Give more memory, or no cache" in text
    assert not warned(lambda: check(same(samples(pickle.loads(pickle.dumps(found[0]))), samples(folder(root)))))
    assert "cannot be had" in found[0]._following.cache.report()


def test_a_control_group_without_room(root: str, groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is near its limit: no more pictures are kept, one warning comes, and training continues."""
    monkeypatch.setattr(cache, "_STEP", SIZE)
    (groups / "membership").write_text("0::/box\n")
    write_files(groups / "box", memory__max=400 << 20, memory__current=9 << 20)
    dataset, plain = folder(root, cache=0.02), samples(folder(root))
    assert dataset._following.cache._memory.table.budget == 8 << 20
    samples(Subset(dataset, range(4)))
    write_files(groups / "box", memory__max=400 << 20, memory__current=395 << 20)
    (warning,) = warned(lambda: [check(same(samples(dataset), plain)) for _ in range(2)])
    assert "cache=0.02" in warning and "has 5.0 MiB of memory left" in warning and "Give a smaller budget" in warning
    assert 4 <= counted(lambda: samples(dataset))["cached"] < PICTURES
    assert not warned(lambda: samples(folder(root, cache="8 MB")))  # one warning for all datasets of the machine


def test_more_than_the_machine_has(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shmloader.images.cache.allowed_memory", lambda: 4 << 20)
    (text,) = warned(lambda: folder(root, cache="8 MB"))
    assert "larger than the 4.0 MiB" in text and "smaller budget" in text
