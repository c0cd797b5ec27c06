"""Shards of tars through the loader, and what becomes of them when they change."""

from __future__ import annotations

import copy
import gzip
import json
import os
import pickle
import random
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from storage_tars import members_of_three, samples_in, write
from torch.utils.data import ConcatDataset, Subset

import shmloader
from shmloader.storage import make_index, names


@pytest.fixture
def shards(tmp_path: Path) -> str:
    """Three archives, as braces name them."""
    return members_of_three(tmp_path)


# ------------------------------------------------------------------------------------------------- ways to meet them


class Labels(torch.utils.data.Dataset[Any]):
    """A user's dataset around shards: tuples of a tensor and a label."""

    def __init__(self, shards: Any) -> None:
        self.shards = shards

    def __len__(self) -> int:
        return len(self.shards)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        sample = self.shards[index]
        return torch.tensor([len(sample["jpg"]), sample["jpg"][0]]), sample["cls"]


FORMS = {
    "dicts": lambda shards: shards,
    "tuples": Labels,
    "a subset": lambda shards: Subset(shards, [5, 3, 3, 59, 0]),
    "two of them": lambda shards: ConcatDataset([shards, Subset(shards, range(4))]),
    "frozen": lambda shards: shmloader.freeze(Labels(shards), least=1),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_batches_are_torchs(shards: str, form: str, method: str) -> None:
    def batches(kind: Any, workers: int) -> list[Any]:
        dataset = FORMS[form](shmloader.Shards(shards, decode=True))
        torch.manual_seed(3)
        loader = kind(
            dataset,
            batch_size=7,
            shuffle=True,
            num_workers=workers,
            multiprocessing_context=method if workers else None,
        )
        return [batch for _ in range(2) for batch in loader]

    ours = batches(shmloader.DataLoader, 2)
    theirs = batches(torch.utils.data.DataLoader, 0)
    assert len(ours) == len(theirs) > 0
    assert all(repr(one) == repr(other) for one, other in zip(ours, theirs, strict=True))


def test_samples_and_indices(shards: str, tmp_path: Path) -> None:
    dataset = shmloader.Shards(shards)
    assert [dataset[at] for at in range(60)] == samples_in(tmp_path)
    assert dataset[-1] == dataset[59] == dataset[np.int64(59)] == dataset[torch.tensor(59)]
    for index in (60, -61):
        with pytest.raises(IndexError, match=rf"sample {index} is asked for, and the shards have 60\. Ask for 0 to 59"):
            dataset[index]
    with pytest.raises(TypeError):
        dataset["0"]
    assert [dataset.__place__(at) for at in (0, 19, 20, -1)] == [0, 0, 1, 2]
    for made in (copy.copy(dataset), copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        assert made[7] == dataset[7] and made.index_path == dataset.index_path


def test_a_pickled_dataset_reads_shards_that_have_changed_since(shards: str, tmp_path: Path) -> None:
    dataset = shmloader.Shards(shards)
    assert len(dataset) == 60
    pickled = pickle.dumps(dataset)
    write(tmp_path / "train-001.tar", [("new.jpg", b"1")])
    shmloader.Shards(shards).make_index()
    assert len(pickle.loads(pickled)) == 41


def test_columns(shards: str) -> None:
    assert shmloader.Shards(shards, ["cls", "image=png;jpg"])[3] == {
        "__key__": "000003",
        "__url__": shards.replace("{000..002}", "000"),
        "cls": b"3",
        "image": b"\3" * 103,
    }
    with pytest.raises(
        KeyError, match=r"sample '000000' of .*000\.tar has no npy and no json\. It has jpg, cls, txt\."
    ):
        shmloader.Shards(shards, ["npy;json"])[0]
    with pytest.raises(TypeError, match=r"Write columns=\['jpg'\]"):
        shmloader.Shards(shards, "jpg")


def test_decode(tmp_path: Path) -> None:
    array = tmp_path / "x.npy"
    np.save(array, np.arange(3))
    np.savez(tmp_path / "x.npz", a=np.ones(2))
    members = {
        "txt": "grün".encode(), "cls": b" 12\n", "json": b'{"a": [1]}', "npy": array.read_bytes(),
        "npz": (tmp_path / "x.npz").read_bytes(), "left.id": b"5", "pkl": pickle.dumps(1), "jpg": b"bytes",
    }  # fmt: skip
    path = write(tmp_path / "0.tar", [(f"0.{name}", data) for name, data in members.items()])
    sample = shmloader.Shards(path, decode=True)[0]
    assert (sample["txt"], sample["cls"], sample["json"], sample["left.id"]) == ("grün", 12, {"a": [1]}, 5)
    assert sample["npy"].tolist() == [0, 1, 2] and sample["npz"]["a"].tolist() == [1, 1]
    assert sample["pkl"] == members["pkl"] and sample["jpg"] == b"bytes"
    sample = shmloader.Shards(path, decode={"jpg": len, "cls": None, "left.id": str})[0]
    assert (sample["jpg"], sample["cls"], sample["left.id"], sample["txt"]) == (5, b" 12\n", "b'5'", "grün")
    with pytest.raises(
        ValueError, match=r"0\.jpg in .*0\.tar cannot be decoded: ValueError: .* It has 5 bytes\. Give "
    ):
        shmloader.Shards(path, decode={"jpg": int})[0]


def test_members_that_gzip_has_packed(tmp_path: Path) -> None:
    """`.gz` is unpacked, and what the name says without it decides, as in WebDataset."""
    np.save(tmp_path / "x.npy", np.arange(3))
    members = {
        "json.gz": b'{"a": [1]}', "npy.gz": (tmp_path / "x.npy").read_bytes(), "id.gz": b"7", "seg.txt.gz": b"words",
        "jpg.gz": b"bytes", "gz": b"alone", "cls.gz": b"5",
    }  # fmt: skip
    path = write(tmp_path / "0.tar", [(f"0.{name}", gzip.compress(data)) for name, data in members.items()])
    sample = shmloader.Shards(path, decode=True)[0]
    assert sample["json.gz"] == {"a": [1]} and sample["npy.gz"].tolist() == [0, 1, 2]
    assert (sample["id.gz"], sample["seg.txt.gz"], sample["cls.gz"]) == (7, "words", 5)
    assert sample["jpg.gz"] == b"bytes" and sample["gz"] == b"alone"
    own = {"jpg": len, "json.gz": len, "cls": None, "gz": None}
    sample = shmloader.Shards(path, decode=own)[0]
    assert sample["json.gz"] == len(gzip.compress(members["json.gz"]))
    assert gzip.decompress(sample["jpg.gz"]) == b"bytes"  # gz: None leaves all as they are
    del own["gz"]
    sample = shmloader.Shards(path, decode=own)[0]
    assert sample["jpg.gz"] == 5 and sample["cls.gz"] == b"5"
    assert shmloader.Shards(path)[0]["json.gz"] == gzip.compress(members["json.gz"])
    path = write(tmp_path / "1.tar", [("1.json.gz", b"no gzip")])
    with pytest.raises(ValueError, match=r"1\.json\.gz in .* cannot be decoded: BadGzipFile"):
        shmloader.Shards(path, decode=True)[0]


# --------------------------------------------------------------------------------------------------------- which shards


def test_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a-0.tar", "a-1.tar", "b-10.tar"):
        write(tmp_path / name, [(f"{name}.jpg", b"1")])
    monkeypatch.chdir(tmp_path)
    for urls, found in {
        "*.tar": ["a-0.tar", "a-1.tar", "b-10.tar"],
        "{a-{1..0},b-10}.tar": ["a-1.tar", "a-0.tar", "b-10.tar"],
        "b-{08..10..2}.tar": ["b-08.tar", "b-10.tar"],
        f"file:{tmp_path}/a-0.tar": ["a-0.tar"],
        f"file://{tmp_path}/a-?.tar": ["a-0.tar", "a-1.tar"],
    }.items():
        assert shmloader.Shards(urls).urls == [str(tmp_path / name) for name in found]
    assert shmloader.Shards([Path("b-10.tar"), "a-*.tar"]).urls == [
        str(tmp_path / name) for name in ("b-10.tar", "a-0.tar", "a-1.tar")
    ]
    assert list(names._braces("x{a,b}{1..2}")) == ["xa1", "xa2", "xb1", "xb2"]


@pytest.mark.parametrize(
    ("urls", "why"),
    [
        ([], "names no shard. Name at least one"),
        ("{x}.tar", "has braces that are no range and no list"),
        ("{0..1.tar", "has a brace that is not closed"),
        ("pipe:cat 0.tar", "is a command, and its output can only be read in order"),
        ("/tmp", "is a folder. Name the shards in it, such as /tmp/"),
        ("/nowhere/*.tar", "matches no file"),
        (["0.tar", "1.parquet"], "is a parquet file, and .*0.tar a tar file"),
        ("0.tgz", "is compressed"),
    ],
)
def test_names_that_are_refused(urls: Any, why: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=why):
        shmloader.Shards(urls)


def test_a_list_of_wids(shards: str, tmp_path: Path) -> None:
    listed = {"wids_version": 1, "shardlist": [{"url": f"train-00{k}.tar", "nsamples": 20} for k in (2, 0)]}
    (tmp_path / "train.json").write_text(json.dumps(listed))
    dataset = shmloader.Shards(tmp_path / "train.json")
    assert len(dataset) == 40 and dataset[0]["__key__"] == "000040"
    (tmp_path / "odd.json").write_text("[]")
    with pytest.raises(ValueError, match="is no list of shards"):
        shmloader.Shards(tmp_path / "odd.json")


def test_bad_numbers(shards: str) -> None:
    with pytest.raises(ValueError, match=r"open_files is 0\. It has to be 1 or more"):
        shmloader.Shards(shards, open_files=0)


# ------------------------------------------------------------------------------------------------- what may befall them


def test_shards_that_change_or_vanish_below_a_reader(shards: str, tmp_path: Path) -> None:
    dataset = shmloader.Shards(shards, open_files=1)
    assert dataset[0] and len(dataset) == 60
    os.unlink(tmp_path / "train-001.tar")
    with pytest.raises(FileNotFoundError, match=r"train-001\.tar is gone\. .*Put it back, or make the dataset again"):
        dataset[20]
    write(tmp_path / "train-002.tar", [("0.jpg", b"1")])
    with pytest.raises(RuntimeError, match=r"train-002\.tar has changed since .*shmloader index --rebuild"):
        dataset[40]
    dataset.__prefetch__([20, 40, 0])  # errors are left to who asks for the sample
    os.truncate(tmp_path / "train-000.tar", 1000)
    dataset = shmloader.Shards(str(tmp_path / "train-000.tar"))
    with pytest.raises(ValueError, match="cut off"):
        len(dataset)


def test_a_shard_that_is_cut_while_it_is_open(shards: str, tmp_path: Path) -> None:
    dataset = shmloader.Shards(shards)
    assert dataset[19]
    os.truncate(tmp_path / "train-000.tar", 2000)
    with pytest.raises(OSError, match=r"train-000\.tar gave 0 of 119 bytes at byte .*Look at the shard"):
        dataset[19]


def test_few_descriptors_for_many_shards(tmp_path: Path) -> None:
    for k in range(300):
        write(tmp_path / f"{k:04}.tar", [("a.jpg", b"x"), ("b.jpg", b"y")])
    dataset = shmloader.Shards(tmp_path / "*.tar", open_files=8)
    before = psutil.Process().num_fds()
    draw = random.Random(0)
    for index in draw.sample(range(600), 600):
        dataset[index]
    assert psutil.Process().num_fds() <= before + 8 + 1  # Python's mmap keeps one of the index
    del dataset
    assert psutil.Process().num_fds() == before


def test_threads_of_one_dataset(shards: str, tmp_path: Path) -> None:
    """A descriptor that one thread drops is not closed below another one's read."""
    dataset, whole = shmloader.Shards(shards, open_files=1), samples_in(tmp_path)
    wrong: list[Any] = []

    def read(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(300):
            at = draw.randrange(60)
            if dataset[at] != whole[at]:
                wrong.append(at)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.long
def test_memory_stays_flat(tmp_path: Path) -> None:
    write(tmp_path / "0.tar", [(f"{k}.jpg", bytes(50_000)) for k in range(200)])
    dataset = shmloader.Shards(tmp_path / "0.tar")

    def epoch() -> int:
        for index in random.sample(range(200), 200):
            dataset.__prefetch__([index])
            dataset[index]
        return psutil.Process().memory_info().rss

    for _ in range(5):
        first = epoch()
    assert max(epoch() for _ in range(50)) < first + (2 << 20)


def test_ctrl_c_ends_the_listing_of_local_shards(shards: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    def list_for_ever(source: Any) -> None:
        while True:
            source.read(0, 1)

    monkeypatch.setattr(make_index, "list_tar", list_for_ever)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            len(shmloader.Shards(shards))
    finally:
        signal.signal(signal.SIGALRM, before)
