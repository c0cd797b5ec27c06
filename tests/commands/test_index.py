"""`shmloader index` makes the index that shmloader.Shards finds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import shmloader
from shmloader.commands.line import main
from tests.storage.storage_tars import members_of_three, write


def test_it_makes_what_shards_finds(tmp_path: Path, capsys: Any) -> None:
    urls = members_of_three(tmp_path)
    assert main(["index", urls]) == 0
    out = capsys.readouterr().out
    assert "3 shards, 60 samples, 180 members" in out
    (path,) = tmp_path.glob("*.index")
    assert str(path) in out
    made = path.stat().st_ino
    assert len(shmloader.Shards(urls)) == 60 and path.stat().st_ino == made
    assert main(["index", urls, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["shards"], printed["samples"], printed["parts"], printed["index"]) == (3, 60, 180, str(path))
    assert path.stat().st_ino == made
    assert main(["index", urls, "--rebuild"]) == 0 and path.stat().st_ino != made


def test_another_file(tmp_path: Path, capsys: Any) -> None:
    urls, path = members_of_three(tmp_path), tmp_path / "deep" / "my.index"
    assert main(["index", urls, "--file", str(path)]) == 0
    assert str(path) in capsys.readouterr().out and shmloader.Shards(urls, index=path).index_path == str(path)


@pytest.mark.parametrize("url", ["*.none", "0.tgz", "missing.tar"])
def test_what_cannot_be_listed(tmp_path: Path, capsys: Any, url: str) -> None:
    assert main(["index", str(tmp_path / url)]) == 1
    assert capsys.readouterr().err.startswith("shmloader index: ")


def test_a_damaged_shard(tmp_path: Path, capsys: Any) -> None:
    path = Path(write(tmp_path / "0.tar", [("0.jpg", b"x" * 5000)]))
    path.write_bytes(path.read_bytes()[:3000])
    assert main(["index", str(path)]) == 1
    assert "0.tar is cut off" in capsys.readouterr().err
