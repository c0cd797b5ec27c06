"""The same samples as the webdataset package gives, in the same order."""

from __future__ import annotations

import random
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from storage_tars import samples_of, write
from test_tar_members import FORMATS, PLAIN, drawn, ours

import shmloader
from shmloader.storage import names

webdataset = pytest.importorskip("webdataset", reason="pip install webdataset")
pytestmark = pytest.mark.filterwarnings("ignore")  # of the package's own


def theirs(urls: Any, decode: bool = False) -> list[dict[str, Any]]:
    stream = webdataset.WebDataset(str(urls), shardshuffle=False, empty_check=False)
    samples = list(stream.decode() if decode else stream)
    return [{name: value for name, value in sample.items() if name != "__local_path__"} for sample in samples]


@pytest.mark.parametrize("what", PLAIN)
def test_plain_archives(tmp_path: Path, what: str) -> None:
    for format in FORMATS.values():
        path = write(tmp_path / "0.tar", PLAIN[what], format)
        assert ours(path) == theirs(path) == samples_of(path)


def test_drawn_archives(tmp_path: Path) -> None:
    draw, path, count = random.Random(11), tmp_path / "0.tar", 0
    for _ in range(60):
        drawn(draw, path)
        try:
            samples_of(path)
        except (AssertionError, tarfile.TarError):
            continue
        assert ours(str(path)) == theirs(path)
        count += 1
    assert count > 30


def test_what_it_writes_and_decodes(tmp_path: Path) -> None:
    for k in range(2):
        with webdataset.TarWriter(str(tmp_path / f"{k}.tar")) as writer:
            for number in range(5):
                writer.write({"__key__": f"{k}{number}", "txt": "grün", "cls": number, "json": {"a": [k]}})
    urls = str(tmp_path / "{0..1}.tar")
    dataset = shmloader.Shards(urls, decode=True)
    assert [dataset[at] for at in range(10)] == theirs(urls, decode=True)
    with webdataset.TarWriter(str(tmp_path / "array.tar")) as writer:
        writer.write({"__key__": "0", "npy": np.arange(6).reshape(2, 3)})
    one, other = (
        shmloader.Shards(tmp_path / "array.tar", decode=True)[0],
        theirs(tmp_path / "array.tar", decode=True)[0],
    )
    assert np.array_equal(one["npy"], other["npy"]) and one["npy"].dtype == other["npy"].dtype


def test_braces() -> None:
    braceexpand = pytest.importorskip("braceexpand").braceexpand
    for text in (
        "a{0..3}",
        "{000..012}",
        "x{a,b}{1..2}y",
        "{3..1}",
        "{0..10..5}",
        "{01..03}.tar",
        "a",
        "{a-{1..0},b}.t",
    ):
        assert list(names._braces(text)) == list(braceexpand(text))
