"""Pictures that are kept decoded: samples are the same to the bit, whoever kept them, whatever stands in the way."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import pickle
import random
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import run_script, write_files
from jpeg_writer import SAMPLINGS, Noise, write
from PIL import Image
from torch.utils.data import ConcatDataset, Subset

import shmloader
from shmloader import images
from shmloader.core import jpeg
from shmloader.core.cache_table import Claim
from shmloader.images import cache as cache_module
from shmloader.images import cache_memory, cache_stores
from shmloader.images.cache import Cache
from shmloader.images.cache_options import cache_options
from shmloader.system import common_memory
from tests.images import torchvision_stand_ins as tv

PICTURES = 12
SIZE = 120 * 160 * 3 // 2  # bytes that one's samples take, and a little more


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> str:
    """Memory of this test alone: all tests of this machine, and its user's jobs, would have the same."""
    name = f"shmloader_test_{os.getpid()}_{random.SystemRandom().getrandbits(40)}"
    monkeypatch.setattr(cache_stores, "NAME", name)
    return name


def save(path: Path, seed: int, size: tuple[int, int] = (120, 160), **options: Any) -> None:
    coarse = np.random.default_rng(seed).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    Image.fromarray(coarse).resize(size).save(path, "JPEG", **options)


@pytest.fixture
def root(tmp_path: Path) -> str:
    for k in range(PICTURES):
        (tmp_path / "train" / f"class{k % 2}").mkdir(parents=True, exist_ok=True)
        save(tmp_path / "train" / f"class{k % 2}" / f"{k}.jpg", k)
    return str(tmp_path / "train")


def folder(root: str, **options: Any) -> images.ImageFolder:
    return images.ImageFolder(root, images.training(40), **options)


def samples(dataset: Any, seed: int = 5) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return [dataset[index][0] for index in range(len(dataset))]


def same(ones: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return len(ones) == len(others) and all(map(torch.equal, ones, others))


def counted(work: Callable[[], Any]) -> dict[str, int]:
    before = images.counts()
    work()
    return {name: count - before[name] for name, count in images.counts().items()}


def check(is_so: bool) -> None:
    assert is_so


ALL_CACHED = {"decoded": 0, "cached": PICTURES, "pillow": 0}
ALL_DECODED = {"decoded": PICTURES, "cached": 0, "pillow": 0}

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
                    assert decoder.decode(crop, got, exact, **how, kept=decoder is maker)
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


@pytest.mark.parametrize("where", ["memory", "file"])
@pytest.mark.parametrize("exact", [True, False])
def test_samples_are_the_same(root: str, tmp_path: Path, exact: bool, where: str) -> None:
    plain = [samples(folder(root, exact=exact), seed) for seed in range(3)]
    dataset = folder(root, exact=exact, cache="8 MB" if where == "memory" else tmp_path / "train.cache")
    assert counted(lambda: same(samples(dataset, 0), plain[0])) == ALL_DECODED
    for seed in (0, 1, 2):
        assert counted(lambda seed=seed: check(same(samples(dataset, seed), plain[seed]))) == ALL_CACHED


def test_fused_datasets_and_views(root: str) -> None:
    whole = tv.Compose([tv.RandomResizedCrop(30), tv.RandomHorizontalFlip(), tv.ToTensor()])
    two = images.views(images.training(30), images.training(20, mean=(0.5,) * 3, std=(0.5,) * 3))
    for transform in (whole, two):
        plain, cached = (images.ImageFolder(root, transform, cache=cache) for cache in (None, "8 MB"))
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            expected = [plain[k][0] for k in range(PICTURES)]
            torch.manual_seed(seed)
            got = [cached[k][0] for k in range(PICTURES)]
            for one, other in zip(expected, got, strict=True):
                assert same(list(one), list(other)) if isinstance(one, list) else torch.equal(one, other)
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
    dataset = folder(root, cache="8 MB")
    samples(dataset)
    path = dataset.samples[0][0]
    save(Path(path), 99)
    os.utime(path, ns=(1, 1))
    assert same(samples(dataset), samples(folder(root)))
    assert counted(lambda: samples(dataset))["cached"] == PICTURES
    os.unlink(path)
    with pytest.raises(FileNotFoundError, match=os.path.basename(path)):
        dataset[0]


def test_relative_paths_are_of_their_folder(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other" / "train" / "class0").mkdir(parents=True)
    for of, seed in ((tmp_path, 1), (tmp_path / "other", 2)):
        Image.fromarray(np.full((64, 64, 3), 90 * seed, np.uint8)).save(of / "train" / "class0" / "0.jpg", "JPEG")
        os.utime(of / "train" / "class0" / "0.jpg", ns=(7, 7))
    monkeypatch.chdir(tmp_path)
    one = images.ImageFolder("train", images.training(40), cache="8 MB")
    first = one[0][0]
    monkeypatch.chdir(tmp_path / "other")
    assert not torch.equal(images.ImageFolder("train", images.training(40), cache="8 MB")[0][0], first)


def test_rows_are_used_for_what_is_not_kept(root: str, tmp_path: Path) -> None:
    dataset = folder(root, cache=1 << 20, rows=tmp_path / "train.rows")
    keep, kept = dataset._following.cache.keep, []
    dataset._following.cache.keep = lambda path, decoder: bool(
        len(kept) < 5 and keep(path, decoder) and not kept.append(1)
    )
    plain = samples(folder(root))
    assert same(samples(dataset), plain) and len(kept) == 5
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
    assert small._following.cache._store.table.budget == large._following.cache._store.table.budget == 3 << 20
    assert counted(lambda: samples(small))["cached"] > 0
    assert folder(root, cache="2 MB")._following.cache._store.table.budget == 3 << 20


@pytest.mark.parametrize(
    ("value", "kind"),
    [(True, TypeError), (0.0, ValueError), (1.5, ValueError), (-0.1, ValueError), (100, ValueError), ("", ValueError),
     ("10 KB", ValueError), ("9999 TB", ValueError), ([1], TypeError), (("a.cache", "much"), ValueError),
     (("a.cache",), TypeError), (b"16 GB", TypeError)],
)  # fmt: skip
def test_values_that_mean_nothing(root: str, value: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=r"cache=.*Give a size \(cache='16 GB'\)"):
        folder(root, cache=value)


def test_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shmloader.images.cache_options.allowed_memory", lambda: 10 << 30)
    for value, budget in (
        ("16 GB", 16 << 30),
        ("1.5gib", 3 << 29),
        ("2M", 2 << 20),
        (0.25, 10 << 28),
        (5 << 20, 5 << 20),
    ):
        assert (cache_options(value).path, cache_options(value).budget) == (None, budget)
    there = str(tmp_path / "train.cache")
    assert (cache_options(there).path, cache_options(there).budget) == (there, None)
    both = cache_options((tmp_path / "train.cache", "2 GB"))
    assert (both.path, both.budget) == (there, 2 << 30)


def warned(work: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        work()
    return [str(warning.message) for warning in found if warning.category is RuntimeWarning]


def test_a_control_group_without_room(root: str, groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its limit is near: nothing more is kept, one warning, and training goes on."""
    monkeypatch.setattr(cache_memory, "_STEP", SIZE)
    (groups / "membership").write_text("0::/box\n")
    write_files(groups / "box", memory__max=400 << 20, memory__current=9 << 20)
    dataset, plain = folder(root, cache=0.02), samples(folder(root))
    assert dataset._following.cache._store.table.budget == 8 << 20
    samples(Subset(dataset, range(4)))
    write_files(groups / "box", memory__max=400 << 20, memory__current=395 << 20)
    (warning,) = warned(lambda: [check(same(samples(dataset), plain)) for _ in range(2)])
    assert "cache=0.02" in warning and "5.0 MiB of memory are left" in warning and "Give a smaller budget" in warning
    assert 4 <= counted(lambda: samples(dataset))["cached"] < PICTURES
    assert not warned(lambda: samples(folder(root, cache="8 MB")))  # one warning for all datasets of the machine


def test_more_than_the_machine_has(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shmloader.images.cache.allowed_memory", lambda: 4 << 20)
    (text,) = warned(lambda: folder(root, cache="8 MB"))
    assert "more than the 4.0 MiB" in text and "smaller budget" in text


# ---------------------------------------------------------------------------------------------------------------- files


def test_the_next_run_finds_the_file_warm(root: str, tmp_path: Path) -> None:
    path, plain = tmp_path / "train.cache", samples(folder(root))
    samples(folder(root, cache=path))
    gc.collect()
    assert not memories(cache_stores.NAME)
    dataset = folder(root, cache=str(path))
    assert counted(lambda: check(same(samples(dataset), plain))) == ALL_CACHED
    size = path.stat().st_size
    samples(dataset, 9)
    assert path.stat().st_size == size and not [name for name in os.listdir(tmp_path) if name.startswith(".cache")]


def test_a_broken_picture_in_the_file_is_decoded_and_kept_again(root: str, tmp_path: Path) -> None:
    path, plain = tmp_path / "train.cache", samples(folder(root))
    samples(folder(root, cache=path))
    whole = path.read_bytes()
    for at in (-70, -SIZE // 2, -SIZE):  # its samples: of the last picture, the last plane, a middle one
        broken = bytearray(whole)
        broken[at] ^= 1
        path.write_bytes(broken)
        for cached in (PICTURES - 1, PICTURES):  # it is kept again by the next run
            dataset = folder(root, cache=path)
            found = counted(lambda dataset=dataset: check(same(samples(dataset), plain)))
            assert found["cached"] == (PICTURES - 1 if cached < PICTURES else found["cached"])
            del dataset
            gc.collect()
        dataset = folder(root, cache=path)
        assert counted(lambda dataset=dataset: samples(dataset)) == ALL_CACHED
        del dataset
        gc.collect()
    path.write_bytes(whole[: len(whole) // 2])  # a file that was cut off
    dataset = folder(root, cache=path)
    assert same(samples(dataset), plain)


def test_a_file_of_another_version(root: str, tmp_path: Path) -> None:
    path, plain = tmp_path / "train.cache", samples(folder(root))
    samples(folder(root, cache=path))
    gc.collect()
    with path.open("r+b") as file:
        file.seek(16)
        file.write(b"\x09")
    before, found = path.read_bytes(), []
    (text,) = warned(lambda: found.append(folder(root, cache=path)))
    assert "version 9" in text and "version 1" in text and "Delete the file, or give another path" in text
    assert not warned(lambda: check(same(samples(pickle.loads(pickle.dumps(found[0]))), plain)))
    assert same(samples(found[0]), plain) and path.read_bytes() == before
    assert "cannot be had" in found[0]._following.cache.report()


def test_other_files_are_left_alone(root: str, tmp_path: Path) -> None:
    (tmp_path / "notes").write_bytes(b"not a cache" * 100)
    os.mkfifo(tmp_path / "fifo")
    for name in ("notes", "fifo"):
        with pytest.raises(ValueError, match=f"{name} is no .*, and is not overwritten: give another path"):
            folder(root, cache=tmp_path / name)
    assert (tmp_path / "notes").read_bytes() == b"not a cache" * 100
    with pytest.raises(IsADirectoryError):
        folder(root, cache=tmp_path)
    with pytest.raises(FileNotFoundError):
        folder(root, cache=tmp_path / "nowhere" / "train.cache")
    (tmp_path / "empty").touch()
    dataset = folder(root, cache=tmp_path / "empty")
    samples(dataset)
    assert counted(lambda: samples(dataset)) == ALL_CACHED


def test_a_disk_that_fills_up(root: str) -> None:
    ran = run_script(
        f"""
        import warnings, torch
        from conftest import mount_small_shm
        from shmloader import images

        mount_small_shm("360k")
        dataset = images.ImageFolder({root!r}, images.training(40), cache="/dev/shm/train.cache")
        plain = images.ImageFolder({root!r}, images.training(40))
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            for _ in range(2):
                for index in range({PICTURES}):
                    torch.manual_seed(index)
                    expected = plain[index][0]
                    torch.manual_seed(index)
                    assert torch.equal(dataset[index][0], expected)
        print(len(found), "No space left" in str(found[0].message), 0 < images.counts()["cached"] < {PICTURES})
        """
    )
    assert ran.out.strip() in ("1 True True", "not permitted"), ran


@pytest.mark.parametrize("kept", [0, 5])
def test_a_write_that_fails(root: str, tmp_path: Path, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, plain = folder(root, cache=tmp_path / "train.cache"), samples(folder(root))
    left, pwritev = [kept], os.pwritev

    def full(fd: int, parts: Any, at: int) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwritev(fd, parts, at)

    monkeypatch.setattr(os, "pwritev", full)
    (text,) = warned(lambda: [check(same(samples(dataset), plain)) for _ in range(2)])
    assert "train.cache" in text and "No space left on device" in text and "Make room" in text
    assert counted(lambda: samples(dataset))["cached"] == kept


def test_a_disk_without_room_for_the_file(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    found: list[Any] = []
    (text,) = warned(lambda: found.append(folder(root, cache=tmp_path / "train.cache")))
    assert "No space left" in text and "another path" in text and not os.listdir(tmp_path / "train")[2:]
    assert same(samples(found[0]), samples(folder(root))) and os.listdir(tmp_path) == ["train"]


def test_a_file_that_others_use_is_read_alone(root: str, tmp_path: Path) -> None:
    """Processes of another machine or container, which this one cannot see, hold its lock."""
    path = tmp_path / "train.cache"
    samples(Subset(folder(root, cache=path), range(4)))
    gc.collect()
    size = path.stat().st_size
    with path.open() as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        found: list[Any] = []
        (text,) = warned(lambda: found.append(folder(root, cache=path)))
        assert "another machine, container or user" in text and "Give each of these a file of its own" in text
        assert counted(lambda: samples(found[0]))["cached"] == 4 and path.stat().st_size == size


# ------------------------------------------------------------------------------------------ what else reads the dataset


def memories(name: str) -> list[str]:
    """Descriptors of processes of this user on common memory of this name."""
    found = []
    for pid in common_memory.processes_of(os.getuid()):
        try:
            for number in os.listdir(f"/proc/{pid}/fd"):
                link = os.readlink(f"/proc/{pid}/fd/{number}")
                found += [f"{pid}/{number}"] if link.startswith(f"/memfd:{name}") else []
        except OSError:
            continue
    return found


@pytest.mark.parametrize("where", ["memory", "file"])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver", "template"])
def test_workers_share_it(root: str, tmp_path: Path, method: str, where: str) -> None:
    options: dict[str, Any] = {"batch_size": 4, "num_workers": 2, "shuffle": True}
    options |= {
        "multiprocessing_context": "spawn" if method == "template" else method,
        "template": method == "template",
    }
    dataset = shmloader.freeze(folder(root, cache="8 MB" if where == "memory" else tmp_path / "train.cache"))

    def epochs(of: Any) -> list[Any]:
        torch.manual_seed(3)
        loader = shmloader.DataLoader(of, **options)
        found = [[part.clone() for part in batch] for _ in range(2) for batch in loader]
        epochs.report = str(loader.report())  # type: ignore[attr-defined]
        return found

    for one, other in zip(epochs(dataset), epochs(folder(root)), strict=True):
        assert same(one, other)
    figures = dataset._following.cache._store.table.figures(dataset._following.cache._line)
    assert (figures.kept, figures.found, figures.missed) == (PICTURES, PICTURES, 0)
    assert counted(lambda: samples(dataset)) == ALL_CACHED
    if method == "fork":
        epochs(ConcatDataset([Subset(dataset, range(8)), dataset]))
        assert "of the pictures came from the cache" in epochs.report  # type: ignore[attr-defined]
        assert epochs.report.count("cache:") == 1  # type: ignore[attr-defined]


def test_a_resumed_epoch_goes_on(root: str) -> None:
    def resumed(cache: Any) -> list[torch.Tensor]:
        def loader() -> Any:
            torch.manual_seed(1)
            return shmloader.DataLoader(
                folder(root, cache=cache), batch_size=3, shuffle=True, num_workers=1, multiprocessing_context="fork"
            )

        it = iter(first := loader())
        next(it)
        state = first.state_dict()
        it.close()
        second = loader()
        second.load_state_dict(state)
        return [batch[0].clone() for batch in second]

    assert same(resumed("8 MB"), resumed(None)) and len(resumed("8 MB")) == PICTURES // 3 - 1


def test_jobs_that_were_started_apart_share_it(root: str, alone: str) -> None:
    dataset = folder(root, cache="8 MB")
    samples(dataset)
    inode = dataset._following.cache._store.place[2]
    script = f"""
        import torch
        from shmloader import images
        from shmloader.images import cache_memory, cache_stores
        cache_stores.NAME = {alone!r}
        dataset = images.ImageFolder({root!r}, images.training(40), cache="8 MB")
        [dataset[k] for k in range(len(dataset))]
        print(images.counts()["cached"], dataset._following.cache._store.place[2])
        """
    ran = run_script(script)
    assert ran.out.split() == [str(PICTURES), str(inode)], ran
    del dataset
    gc.collect()
    assert not memories(alone)  # it is gone with the last that had it


def test_datasets_whose_pictures_have_no_paths_are_refused() -> None:
    for module, name in (("datasets.arrow_dataset", "Dataset"), ("timm.data.dataset", "ImageDataset")):
        made = type(name, (), {"__module__": module})()
        with pytest.raises(TypeError, match=r"cache= knows a picture by its path.*Leave cache out"):
            images.fuse(made, cache="8 MB")


def test_what_cannot_be_fused_has_no_cache(root: str) -> None:
    dataset: Any = tv.ImageFolder(root, lambda image: image) if hasattr(tv, "ImageFolder") else None
    if dataset is None:
        dataset = type("Own", (), {"samples": folder(root).samples, "loader": len, "transform": None})()
    found: list[Any] = []
    (text,) = warned(lambda: found.append(images.fuse(dataset, cache="8 MB")))
    assert "cache='8 MB' has no effect" in text and not found[0].is_fused


def test_a_copy_finds_the_same(root: str) -> None:
    dataset = folder(root, cache="8 MB")
    samples(dataset)
    copy = pickle.loads(pickle.dumps(dataset))
    assert pickle.dumps(copy) == pickle.dumps(dataset)  # what the template compares
    assert counted(lambda: samples(copy)) == ALL_CACHED
    del dataset
    gc.collect()
    assert counted(lambda: samples(copy)) == ALL_CACHED


# --------------------------------------------------------------------------------------------------------------- deaths


STEPS = ("claimed", "reserved", "half written", "written", "published")


def die_at(step: str, cache: Cache) -> None:
    """Have this process killed when it keeps a picture."""
    store: Any = cache._store

    def die(*_: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    if step == "claimed":

        class Dying(Claim):
            def take(self, *arguments: Any) -> bool:
                return bool(super().take(*arguments) and die())

        cache_module.Claim = Dying  # type: ignore[misc]
    elif step == "reserved":
        store.write = die
    elif step == "half written":
        write = store.write
        store.write = lambda key, at, planes: die(write(key, at, planes[: len(planes) // 2]))
    elif step == "written":
        write = store.write
        store.write = lambda key, at, planes: die(write(key, at, planes))
    else:
        store.note = die


@pytest.mark.parametrize("where", ["memory", "file"])
@pytest.mark.parametrize("step", STEPS)
def test_a_death_at_each_step(root: str, tmp_path: Path, step: str, where: str) -> None:
    dataset = folder(root, cache="8 MB" if where == "memory" else tmp_path / "train.cache")
    plain, cache = samples(folder(root)), dataset._following.cache
    child = os.fork()
    if child == 0:
        try:
            die_at(step, cache)
            dataset[3]
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    figures = cache._store.table.figures(cache._line)
    assert figures.kept == (step == "published")
    found = counted(lambda: check(same(samples(dataset), plain)))
    assert found["cached"] == (step == "published")
    assert counted(lambda: check(same(samples(dataset), plain))) == ALL_CACHED


@pytest.mark.parametrize("claimant", ["living", "dead, with this pid"])
def test_whose_claim_is_taken_over(root: str, claimant: str) -> None:
    dataset = folder(root, cache="8 MB")
    cache, path = dataset._following.cache, dataset.samples[0][0]
    status = os.stat(path)
    key = cache_module._key(path, (status.st_size, status.st_mtime_ns))
    pid, start = cache_module._this_process()
    claim = Claim(cache._store.table, pid, start if claimant == "living" else start - 1)
    assert claim.take(key, lambda *_: False)
    plain = samples(folder(root))
    for _ in range(2):
        assert same(samples(dataset), plain)
    assert (cache._store.table.find(key) >= 0) == (claimant != "living")  # nobody waits for the living one
    at = cache._store.table.reserve(1000)
    assert bool(claim.publish(at)) == (claimant == "living")  # whose claim is gone publishes nothing


def test_an_exception_leaves_no_claim(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = folder(root, cache="8 MB")
    store = dataset._following.cache._store

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(store, "write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            dataset[0]
    samples(dataset)
    assert counted(lambda: samples(dataset)) == ALL_CACHED


def killed_at_random(root: str, cache: Any, kills: int) -> tuple[Any, list[int]]:
    """Workers of a first epoch, killed at random times, and what the cache has then."""
    dataset, draw, deaths = folder(root, cache=cache), random.Random(7), [0]
    paths = [path for path, _ in dataset.samples]
    while deaths[0] < kills:
        children = []
        for _ in range(2):
            child = os.fork()
            if child == 0:
                try:
                    mine = random.Random()
                    while True:
                        os.utime(paths[k := mine.randrange(len(paths))], ns=(mine.randrange(50), mine.randrange(50)))
                        dataset[k]
                finally:
                    os._exit(1)
            children.append(child)
        time.sleep(draw.random() * 0.03)
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            deaths[0] += 1
    return dataset, deaths


@pytest.mark.parametrize("kills", [6, pytest.param(300, marks=pytest.mark.long)])
@pytest.mark.parametrize("where", ["memory", "file"])
def test_killed_at_random_in_the_first_epoch(root: str, tmp_path: Path, kills: int, where: str) -> None:
    """Each change of a file's time is another picture to keep, so processes keep pictures all the time."""
    value = "32 MB" if where == "memory" else (tmp_path / "train.cache", "32 MB")
    dataset, _ = killed_at_random(root, value, kills)
    for changed in range(0, 50, 1 if kills > 100 else 10):
        for path, _ in dataset.samples:
            os.utime(path, ns=(changed, changed))
        assert same(samples(dataset), samples(folder(root)))  # nothing that is torn
        if dataset._following.cache._store.table.takes(PICTURES * SIZE * 2):  # otherwise the rest need not fit
            assert counted(lambda: samples(dataset)) == ALL_CACHED  # and no claim is left
