"""Where a trace goes: which folder is the current one, who was forked, who pressed Ctrl-C."""

from __future__ import annotations

import json
import os
import pathlib
import signal

import pytest

import shmloader
from shmloader.statistics import trace as module
from shmloader.statistics.account import close_trace


@pytest.fixture
def loader():
    with shmloader.DataLoader(list(range(8)), batch_size=4, num_workers=1) as loader:
        yield loader


def test_a_link_stays_one(loader, tmp_path):
    (tmp_path / "latest.json").symlink_to(tmp_path / "first.json")
    loader.trace(tmp_path / "latest.json", batches=2)
    list(loader)
    assert (tmp_path / "latest.json").is_symlink()
    assert json.loads((tmp_path / "first.json").read_text())


def test_a_folder_is_refused_at_once(loader, tmp_path):
    with pytest.raises(IsADirectoryError):
        loader.trace(tmp_path)


def test_a_relative_path_is_relative_to_the_folder_of_the_call(loader, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    loader.trace("t.json", batches=2)
    monkeypatch.chdir(tmp_path / "elsewhere")
    list(loader)
    assert (tmp_path / "t.json").exists()


def test_a_child_does_not_wait_for_who_was_writing_when_it_was_forked(loader, tmp_path):
    trace = loader.trace(tmp_path / "t.json")
    with trace._writing:  # another thread has it
        child = os.fork()
        if not child:
            trace.close()  # which atexit calls
            os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert not trace.written
    trace.close()


def test_ctrl_c_is_heard_when_it_is_written(loader, tmp_path, monkeypatch):
    def interrupted(path, text, write=pathlib.Path.write_text, **options):
        signal.raise_signal(signal.SIGINT)
        write(path, text, **options)

    trace = loader.trace(tmp_path / "t.json")
    list(loader)
    monkeypatch.setattr(pathlib.Path, "write_text", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trace.close()
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]


def test_ctrl_c_while_a_method_is_replaced_leaves_none(tmp_path, monkeypatch):
    def interrupted(*arguments, timed=module._timed):
        signal.raise_signal(signal.SIGINT)
        return timed(*arguments)

    loader = shmloader.DataLoader(list(range(8)), batch_size=4)
    batches = iter(loader)
    before = vars(batches).get("_next_data")
    monkeypatch.setattr(module, "_timed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        loader.trace(tmp_path / "t.json")
    close_trace(loader)
    assert vars(batches).get("_next_data") is before


def test_a_trace_that_is_written_observes_no_iterator(loader, tmp_path):
    trace = loader.trace(tmp_path / "t.json", batches=1)
    first, second = iter(loader), iter(loader)
    next(second)
    assert trace.written
    assert first._steps.observer is None and second._steps.observer is None
