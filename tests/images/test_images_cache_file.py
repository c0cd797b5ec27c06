"""A cache in a file: the next run finds its pictures, and no damage to the file changes a sample."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from scripts import run_script
from torch.utils.data import Subset

from shmloader.images import cache_stores
from tests.images import kept_pictures
from tests.images.kept_pictures import (
    ALL_CACHED,
    PICTURES,
    SIZE,
    check,
    counted,
    folder,
    memories,
    same,
    samples,
    warned,
)

# Fixtures; each test has memory of its own, which no job of this user finds.
own_memory, root = kept_pictures.own_memory, kept_pictures.root


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
        with pytest.raises(ValueError, match=rf"{name} is no .*It is not overwritten\. Give another path"):
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
        dataset = images.ImageFolder({root!r}, images.training(40), cache=("/dev/shm/train.cache", "8 MB"))
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


@pytest.mark.parametrize("fitting", [0, 5])
def test_a_write_that_fails(root: str, tmp_path: Path, fitting: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, plain = folder(root, cache=tmp_path / "train.cache"), samples(folder(root))
    left, pwritev = [fitting], os.pwritev

    def full(fd: int, parts: Any, at: int) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwritev(fd, parts, at)

    monkeypatch.setattr(os, "pwritev", full)
    (text,) = warned(lambda: [check(same(samples(dataset), plain)) for _ in range(2)])
    assert "train.cache" in text and "No space left on device" in text and "Make room" in text
    assert counted(lambda: samples(dataset))["cached"] == fitting


def test_a_disk_without_room_for_the_file(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    found: list[Any] = []
    (text,) = warned(lambda: found.append(folder(root, cache=tmp_path / "train.cache")))
    assert "No space left" in text and "another path" in text and not os.listdir(tmp_path / "train")[2:]
    assert same(samples(found[0]), samples(folder(root))) and os.listdir(tmp_path) == ["train"]


def test_a_file_that_others_use_is_read_alone(root: str, tmp_path: Path) -> None:
    """Processes of another machine or container, which this one cannot see, hold the file's lock."""
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
