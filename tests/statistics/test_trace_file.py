"""Where a trace goes: what lies there already, which folder is the current one, who was forked, who pressed Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import stat

import pytest

import shmloader
from shmloader.statistics import trace as module


@pytest.fixture
def loader():
    with shmloader.DataLoader(list(range(8)), batch_size=4, num_workers=1) as loader:
        yield loader


def test_what_is_no_regular_file_is_not_replaced(loader, tmp_path):
    os.mkfifo(pipe := tmp_path / "pipe")
    with pytest.raises(OSError, match="no regular file"):
        loader.trace(pipe)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_link_stays_one(loader, tmp_path):
    (tmp_path / "latest.json").symlink_to(tmp_path / "first.json")
    loader.trace(tmp_path / "latest.json", batches=2)
    list(loader)
    assert (tmp_path / "latest.json").is_symlink()
    assert json.loads((tmp_path / "first.json").read_text())


def test_a_relative_path_is_relative_to_the_folder_of_the_call(loader, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    loader.trace("t.json", batches=2)
    monkeypatch.chdir(tmp_path / "elsewhere")
    list(loader)
    assert (tmp_path / "t.json").exists()


@pytest.mark.parametrize("batches", [1 << 25, 10**12])
def test_more_than_can_be_kept_is_named(loader, tmp_path, batches):
    with pytest.raises(ValueError, match=f"batches={batches} .* at most {module.MOST}, "):
        loader.trace(tmp_path / "t.json", batches=batches)
    loader.trace(tmp_path / "t.json").close()


def test_ctrl_c_is_heard_when_it_is_written(loader, tmp_path, monkeypatch):
    def interrupted(path, text, write=module._write):
        signal.raise_signal(signal.SIGINT)
        write(path, text)

    trace = loader.trace(tmp_path / "t.json")
    list(loader)
    monkeypatch.setattr(module, "_write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trace.close()
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
