"""The index of shards: where it is, when it is made, and who shares it."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
from storage_tars import members_of_three, samples_in, write

import shmloader
from shmloader.storage import make_index


@pytest.fixture
def shards(tmp_path: Path) -> str:
    """Three archives, as braces name them."""
    return members_of_three(tmp_path)


def test_it_is_made_again_where_a_shard_has_changed(
    shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    inner = make_index._made
    monkeypatch.setattr(make_index, "_made", lambda wanted: (made.append(wanted.kind), inner(wanted))[1])
    assert len(shmloader.Shards(shards)) == 60 and len(made) == 1
    assert len(shmloader.Shards(shards)) == 60 and len(made) == 1
    write(tmp_path / "train-001.tar", [("dir/new.Seg.PNG", b"1"), ("dir/new.cls", b"2"), ("x.jpg", b"3")])
    dataset = shmloader.Shards(shards)
    assert [dataset[at] for at in range(len(dataset))] == samples_in(tmp_path) and len(made) == 2
    os.utime(tmp_path / "train-002.tar", (1, 1))
    assert len(shmloader.Shards(shards)) == 42 and len(made) == 3
    dataset.make_index()
    assert len(made) == 4


def test_where_the_index_is_kept(shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert Path(shmloader.Shards(shards).index_path).parent == tmp_path
    chosen = tmp_path / "deep" / "mine.index"
    assert shmloader.Shards(shards, index=chosen).index_path == str(chosen)
    for path in tmp_path.glob("*.index"):
        path.unlink()

    def refused(path: str, *rest: Any) -> None:  # a folder that may only be read; the tests' user may be root
        if os.path.dirname(path) == str(tmp_path):
            raise PermissionError(13, "Permission denied", path)
        inner(path, *rest)

    inner = make_index.write
    monkeypatch.setattr(make_index, "write", refused)
    dataset = shmloader.Shards(shards)
    assert Path(dataset.index_path).parent == tmp_path / "cache" / "shmloader" and len(dataset) == 60
    with pytest.raises(OSError, match=r"can be written nowhere: .*mine: .*Give index= a path that can be written"):
        len(shmloader.Shards(shards, index=tmp_path / "mine"))
    assert not list(tmp_path.glob(".*")) and not list((tmp_path / "cache").rglob(".*"))


def test_an_index_is_found_where_the_folder_has_another_name(shards: str, tmp_path: Path) -> None:
    here = Path(shmloader.Shards(shards).index_path)
    elsewhere = tmp_path.parent / f"{tmp_path.name}-mounted"
    os.rename(tmp_path, elsewhere)
    try:
        moved = shmloader.Shards(str(elsewhere / "train-*.tar"))
        status = os.stat(elsewhere / here.name)
        assert moved.index_path == str(elsewhere / here.name) and moved[0]["__url__"].startswith(str(elsewhere))
        assert os.stat(moved.index_path).st_ino == status.st_ino
    finally:
        os.rename(elsewhere, tmp_path)


def _length(urls: str, ready: Any, lengths: Any) -> None:
    ready.wait()
    lengths.put((len(dataset := shmloader.Shards(urls)), dataset[7]["__key__"]))


def test_several_processes_make_one_index(shards: str, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready, lengths = context.Event(), context.SimpleQueue()
    processes = [context.Process(target=_length, args=(shards, ready, lengths)) for _ in range(4)]
    for process in processes:
        process.start()
    ready.set()
    assert [lengths.get() for _ in processes] == [(60, "000007")] * 4
    for process in processes:
        process.join()
        process.close()
    lengths.close()
    assert len(list(tmp_path.glob("*.index"))) == 1 and not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("damage", ["cut", "empty", "other"])
def test_a_damaged_index_is_made_again(shards: str, damage: str) -> None:
    path = Path(shmloader.Shards(shards).index_path)
    whole = path.read_bytes()
    path.unlink()  # who maps a file keeps it; a file that is changed in place would change below them
    path.write_bytes({"cut": whole[:-10], "empty": b"", "other": b"something else" * 100}[damage])
    assert len(shmloader.Shards(shards)) == 60 and path.read_bytes() == whole


def test_a_file_that_is_no_index_is_not_overwritten(shards: str, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("keep me, I am no index")
    with pytest.raises(ValueError, match=r"notes\.txt is no index of shards"):
        len(shmloader.Shards(shards, index=path))
    assert path.read_text().startswith("keep me")


def test_workers_map_one_index(shards: str) -> None:
    dataset = shmloader.Shards(shards)
    assert len(dataset) == 60
    path = dataset.index_path

    def mapped(pid: int) -> bool:
        return path in Path(f"/proc/{pid}/maps").read_text()

    loader = shmloader.DataLoader(dataset, batch_size=10, num_workers=2, multiprocessing_context="fork")
    batches = iter(loader)
    next(batches)
    pids = [process.pid or 0 for process in multiprocessing.active_children()]
    assert len(pids) == 2 and all(map(mapped, [os.getpid(), *pids]))
    del batches
