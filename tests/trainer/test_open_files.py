"""Which open files of a dataset are named before workers inherit them."""

from __future__ import annotations

import contextlib
import gc
import gzip
import io
import mmap
import multiprocessing
import os
import pathlib
import sqlite3
import sys
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from conftest import label
from PIL import Image
from torch.utils.data import ConcatDataset, Subset

import shmloader
from shmloader.system import user_line
from shmloader.trainer import before_workers

FORK = multiprocessing.get_context("fork")


class Holds(torch.utils.data.Dataset):
    def __init__(self, held: Any) -> None:
        self.held = held

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


@pytest.fixture(autouse=True)
def nothing_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_line, "_met", set())


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    text = tmp_path / "text"
    text.write_bytes(b"what workers read")
    with gzip.open(tmp_path / "gzip", "wb") as packed:
        packed.write(b"packed")
    with zipfile.ZipFile(tmp_path / "zip", "w") as archive:
        archive.write(text)
    with tarfile.open(tmp_path / "tar", "w") as tar:
        tar.add(text)
    numpy.savez(tmp_path / "npz.npz", one=numpy.arange(3))
    Image.new("RGB", (8, 8)).save(tmp_path / "png.png")
    return tmp_path


def warned(*datasets: Any, context: Any = FORK, has_init: bool = False) -> list[str]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        before_workers.warn_of_open_files(context, datasets, has_init)
    return [str(warning.message) for warning in seen]


SHARED: dict[str, Callable[[pathlib.Path], Any]] = {
    "_io.BufferedReader": lambda folder: (folder / "text").open("rb"),
    "_io.TextIOWrapper": lambda folder: (folder / "text").open(),
    "_io.BufferedRandom": lambda folder: (folder / "text").open("r+b"),
    "_io.FileIO": lambda folder: io.FileIO(folder / "text"),
    "gzip.GzipFile": lambda folder: gzip.GzipFile(folder / "gzip"),
    "zipfile.ZipFile": lambda folder: zipfile.ZipFile(folder / "zip"),
    "tarfile.TarFile": lambda folder: tarfile.TarFile(folder / "tar"),
    "NpzFile": lambda folder: numpy.load(folder / "npz.npz"),
    "sqlite3.Connection": lambda folder: sqlite3.connect(folder / "sqlite"),
    "PngImageFile": lambda folder: Image.open(folder / "png.png"),
}


@pytest.mark.parametrize("kind", SHARED)
def test_an_open_file_is_named_until_it_is_closed(kind: str, folder: pathlib.Path) -> None:
    held = SHARED[kind](folder)
    (text,) = warned(Holds(held))
    assert text.startswith("workers are forked while Holds holds an open file, a ")
    assert f"{kind}. Forked workers share its position" in text and "on the first use" in text
    assert warned(Holds(held)) == []  # once
    held.close()
    user_line._met.clear()
    assert warned(Holds(held)) == []


def test_a_file_in_a_container_or_a_wrapped_dataset_is_named(folder: pathlib.Path) -> None:
    with open(folder / "text", "rb") as held:
        for dataset in (Holds([held]), Holds((held,)), Holds({"a": held}), ConcatDataset([Subset(Holds(held), [0])])):
            user_line._met.clear()
            assert len(warned(dataset)) == 1
        assert warned(held)[0].startswith("workers are forked while BufferedReader holds an open file, a ")


def foreign(name: str, **attributes: Any) -> Any:
    """An object of a class of a library that is not installed."""
    module, _, kind = name.rpartition(".")
    return type(kind, (), {"__module__": module, **attributes})()


def test_files_of_other_libraries_are_known_by_their_names() -> None:
    for name in ("h5py._hl.files.File", "h5py._hl.dataset.Dataset", "netCDF4._netCDF4.Dataset", "tables.file.File"):
        isopen = {"netCDF4._netCDF4.Dataset": lambda _: True, "tables.file.File": 1}.get(name)
        assert f"an open file, a {name}. " in warned(Holds(foreign(name, isopen=isopen)))[0]
    assert warned(Holds(foreign("h5py._hl.files.File", __bool__=lambda _: False))) == []
    for name in ("lmdb.Environment", "builtins.Environment", "lmdb.cffi.Environment"):
        for lock, readonly, count in ((True, True, 1), (False, False, 1), (False, True, 0)):
            user_line._met.clear()
            flags = {"lock": lock, "readonly": readonly}
            assert len(warned(Holds(foreign(name, flags=lambda _, flags=flags: flags)))) == count
    assert warned(Holds(foreign("somebody.Environment"))) == []


def test_what_workers_may_share_is_not_named(folder: pathlib.Path) -> None:
    loaded = Image.open(folder / "png.png")
    loaded.load()
    with contextlib.ExitStack() as stack:
        text = stack.enter_context(open(folder / "text", "rb"))
        mapped = stack.enter_context(mmap.mmap(text.fileno(), 0, access=mmap.ACCESS_READ))
        harmless = [
            stack.enter_context(open("/dev/null")),
            stack.enter_context(open(folder / "log", "a")),
            stack.enter_context(open(folder / "written", "w")),
            io.BytesIO(b"memory"),
            io.StringIO("memory"),
            zipfile.ZipFile(io.BytesIO((folder / "zip").read_bytes())),
            Image.open(io.BytesIO((folder / "png.png").read_bytes())),
            stack.enter_context(contextlib.closing(sqlite3.connect(":memory:"))),
            loaded,
            mapped,
            numpy.memmap(folder / "text"),
            *(sys.stdin, sys.stdout, sys.stderr, sys.__stdout__),
            *(None, "text", [], {}, (), torch.ones(2)),
        ]
        for held in harmless:
            assert warned(Holds(held)) == [], held
        beside = Holds(text)
        beside.pages = mapped  # type: ignore[attr-defined]
        assert warned(beside) == []


def test_only_forked_workers_are_warned_of(folder: pathlib.Path) -> None:
    with open(folder / "text", "rb") as held:
        for method in ("spawn", "forkserver"):
            assert warned(Holds(held), context=multiprocessing.get_context(method)) == []
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert len(list(shmloader.DataLoader(Holds(held)))) == 4
        assert warned(Holds(held), has_init=True) == []  # worker_init_fn may open it again


def test_files_by_process_are_not_named(folder: pathlib.Path) -> None:
    with open(folder / "text", "rb") as held:
        assert warned(Holds({os.getpid(): held})) == []
        assert len(warned(Holds({os.getpid() + 1: held}))) == 1


def test_a_loader_warns_where_it_is_iterated(folder: pathlib.Path) -> None:
    with open(folder / "text", "rb") as held:
        for persistent in (False, True):
            options: dict[str, Any] = {"num_workers": 1, "persistent_workers": persistent}
            loader = shmloader.DataLoader(Holds(held), multiprocessing_context="fork", **options)
            user_line._met.clear()
            with pytest.warns(RuntimeWarning, match="workers are forked while Holds holds an open file") as seen:
                assert len(list(loader)) == 4
            assert [warning.filename for warning in seen if "holds an open" in str(warning.message)] == [__file__]


class Fast(torch.utils.data.Dataset):
    """Says whether its attributes lie in a `__dict__` by now."""

    def __init__(self) -> None:
        self.number, self.numbers = 1, [1]

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return any(type(each) is dict for each in gc.get_referents(self))

    def set_epoch(self, epoch: int) -> None:
        self.number = epoch


@pytest.mark.skipif(not (3, 11) <= sys.version_info < (3, 13), reason="attributes are as quick, or as slow, either way")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"persistent_workers": True},
        {"chunk_size": 2, "sample_seeds": True},
        {"schedule": "steal", "on_worker_death": "respawn"},
        {"on_bad_sample": "skip"},
        {"device": "cpu", "on_device": torch.clone},
        {"num_workers": 0, "multiprocessing_context": None},
    ],
    ids=label,
)
def test_the_attributes_of_a_dataset_stay_quick(options: dict[str, Any]) -> None:
    """Whoever asks for a `__dict__` makes each later `self.x` slower: 7 % of a worker's time, for small pictures."""
    dataset = Fast()
    with shmloader.DataLoader(dataset, 4, **{"num_workers": 1, "multiprocessing_context": FORK} | options) as loader:
        for epoch in range(2):
            loader.set_epoch(epoch)
            assert not torch.cat(list(loader)).any()
        state = loader.state_dict()
        loader.report()
        loader.load_state_dict(state)
        assert not torch.cat(list(loader)).any()
    assert not dataset[0]
