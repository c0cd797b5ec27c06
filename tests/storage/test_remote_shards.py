"""Shards that fsspec reads: by a file system that is asynchronous inside, and by one that is not."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem
from storage_tars import photographs, samples_in, write

import shmloader
from bench.storage.server import serving
from shmloader.storage.read_ahead import ReadAhead


class Slow:
    """What both file systems do: files of a folder, by their names."""

    root = ""
    under_way = most_under_way = requests = 0
    lag = 0.0
    fail: Any = None  # called with method and path before each request

    def path(self, name: str) -> Path:
        return Path(self.root) / name.rpartition("/")[2]

    def part(self, name: str, start: Any, end: Any) -> bytes:
        return self.path(name).read_bytes()[start:end]

    def status(self, name: str) -> dict[str, Any]:
        status = self.path(name).stat()
        return {"name": name, "size": status.st_size, "type": "file", "ETag": str(status.st_mtime_ns)}

    def begin(self, method: str, name: str) -> None:
        Slow.under_way += 1
        Slow.requests += 1
        Slow.most_under_way = max(Slow.most_under_way, Slow.under_way)
        if Slow.fail is not None:
            Slow.fail(method, name)


class Asynchronous(Slow, AsyncFileSystem):  # type: ignore[misc]
    protocol = "slowasync"

    async def _cat_file(self, path: str, start: Any = None, end: Any = None, **_: Any) -> bytes:
        try:
            self.begin("cat", path)
            await asyncio.sleep(self.lag)
            return self.part(path, start, end)
        finally:
            Slow.under_way -= 1

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        Slow.requests += 1
        if Slow.fail is not None:
            Slow.fail("info", path)
        return self.status(path)

    async def _glob(self, path: str, **_: Any) -> list[str]:
        return [f"{path.rpartition('/')[0]}/{found.name}" for found in Path(self.root).glob(path.rpartition("/")[2])]


class Synchronous(Slow, AbstractFileSystem):  # type: ignore[misc]
    protocol = "slowsync"

    def cat_file(self, path: str, start: Any = None, end: Any = None, **_: Any) -> bytes:
        try:
            self.begin("cat", path)
            time.sleep(self.lag)
            return self.part(path, start, end)
        finally:
            Slow.under_way -= 1

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return self.status(path)

    def glob(self, path: str, **_: Any) -> list[str]:
        return [f"{path.rpartition('/')[0]}/{found.name}" for found in Path(self.root).glob(path.rpartition("/")[2])]


@pytest.fixture(params=["slowasync", "slowsync"])
def remote(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Two archives, as a pattern names them from afar."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(Slow, "root", str(tmp_path))
    for name, value in (("lag", 0.0), ("fail", None), ("under_way", 0), ("most_under_way", 0), ("requests", 0)):
        monkeypatch.setattr(Slow, name, value)
    for kind in (Asynchronous, Synchronous):
        fsspec.register_implementation(kind.protocol, kind, clobber=True)
        kind.clear_instance_cache()
    members = [*photographs(40)]
    for k in range(2):
        write(tmp_path / f"{k}.tar", members[60 * k : 60 * (k + 1)])
    yield f"{request.param}://bucket/*.tar"
    stop_fsspec()


def stop_fsspec() -> None:
    """End fsspec's thread, for conftest looks whether a test has left any; and ours, which end when nobody has them."""
    from fsspec import asyn

    Asynchronous.clear_instance_cache()
    if asyn.loop[0] is not None:
        asyn.loop[0].call_soon_threadsafe(asyn.loop[0].stop)
        asyn.iothread[0].join()
        asyn.loop[0].close()
        asyn.loop[0] = asyn.iothread[0] = None


def expected(tmp_path: Path) -> list[dict[str, Any]]:
    return [*map(without_url, samples_in(tmp_path))]


def without_url(sample: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in sample.items() if key != "__url__"}


def test_samples(remote: str, tmp_path: Path) -> None:
    dataset = shmloader.Shards(remote)
    assert [without_url(dataset[at]) for at in range(len(dataset))] == expected(tmp_path)
    assert dataset[39]["__url__"] == remote.replace("*", "1")
    assert Path(dataset.index_path).parent == tmp_path / "cache" / "shmloader"
    before = Slow.requests
    assert len(shmloader.Shards(remote)) == 40 and Slow.requests == before  # an index that is there asks for nothing


def test_no_thread_is_left_before_a_fork(remote: str) -> None:
    before = threading.active_count()
    assert len(shmloader.Shards(remote)) == 40
    assert threading.active_count() == before


def test_an_index_within_a_running_event_loop(remote: str) -> None:
    async def in_a_notebook() -> int:
        return len(shmloader.Shards(remote))

    assert asyncio.run(in_a_notebook()) == 40


@pytest.mark.parametrize("step", [1 << 10, 1 << 16])
def test_an_index_read_in_steps(remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    from shmloader.storage import make_index

    write(tmp_path / "1.tar", [("big.bin", bytes(300_000)), ("big.cls", b"1"), *photographs(5), ("last.bin", b"")])
    monkeypatch.setattr(make_index, "_REMOTE_READS", (step, 4 * step))
    dataset = shmloader.Shards(remote)
    assert [without_url(dataset[at]) for at in range(len(dataset))] == expected(tmp_path)


@pytest.mark.parametrize("cut", [700, 5000, 50_100])
def test_cut_off(remote: str, tmp_path: Path, cut: int) -> None:
    whole = (tmp_path / "1.tar").read_bytes()
    (tmp_path / "1.tar").write_bytes(whole[:cut])
    with pytest.raises(ValueError, match=r"1\.tar (is cut off|is no tar)"):
        len(shmloader.Shards(remote))


def test_a_dataset_that_was_used_before_the_fork(remote: str, tmp_path: Path) -> None:
    """fsspec refuses a file system that was inherited by fork, and threads are not inherited."""
    dataset = shmloader.Shards(remote)
    dataset.__prefetch__(range(10))
    assert without_url(dataset[3]) == expected(tmp_path)[3]
    context = multiprocessing.get_context("fork")
    samples = context.SimpleQueue()

    def read() -> None:
        assert dataset._ahead().take(7) is None  # its parent's reads are not under way here
        dataset.__prefetch__([5, 6])
        samples.put([without_url(dataset[at]) for at in (4, 5, 6)])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        process = context.Process(target=read)
        process.start()
    process.join(60)
    assert process.exitcode == 0 and samples.get() == expected(tmp_path)[4:7]
    process.close()
    samples.close()


def test_reads_under_way(remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = shmloader.Shards(remote)
    assert len(dataset) == 40
    monkeypatch.setattr(Slow, "lag", 0.05)
    Slow.most_under_way = 0
    order = torch.randperm(40).tolist()
    dataset.__prefetch__(order)
    assert [without_url(dataset[at]) for at in order] == [expected(tmp_path)[at] for at in order]
    assert Slow.most_under_way >= 16  # remote.THREADS for one that is not asynchronous
    assert dataset._ahead().bytes == 0 and not dataset._ahead()._known
    del dataset


def test_reads_under_way_are_bounded(remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = shmloader.Shards(remote, prefetch_bytes=400)
    assert len(dataset) == 40
    monkeypatch.setattr(Slow, "lag", 0.02)
    Slow.most_under_way = 0
    for begin in (0, 20):
        dataset.__prefetch__(range(begin, begin + 20))
        assert dataset._ahead().bytes <= 400 and len(dataset._ahead()._known) - len(dataset._ahead()._begun) >= 16
        for at in range(begin, begin + 20):
            assert without_url(dataset[at]) == expected(tmp_path)[at]
            assert dataset._ahead().bytes <= 400
    assert Slow.most_under_way <= 4


def test_a_shard_is_looked_at_once(remote: str) -> None:
    dataset = shmloader.Shards(remote)
    assert len(dataset) == 40
    looked: list[str] = []
    Slow.fail = lambda method, name: looked.append(name) if method == "info" else None
    dataset.__prefetch__(range(40))
    for at in range(40):
        dataset[at]
    assert len(looked) == (2 if remote.startswith("slowasync") else 0)  # the other one does not count


def test_ctrl_c_ends_the_making_of_an_index(remote: str) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    def alarm() -> None:
        if not 0 < signal.getitimer(signal.ITIMER_REAL)[0] < 1:  # otherwise each call would put it off
            signal.setitimer(signal.ITIMER_REAL, 0.05)

    if remote.startswith("slowasync"):  # a call of the other one cannot be ended
        Slow.lag = 10_000
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        Slow.fail = lambda method, name: alarm() if method == "cat" else None
        with pytest.raises(KeyboardInterrupt):
            for _ in range(100_000):
                shmloader.Shards(remote).make_index()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_failed_early_read_is_read_again(remote: str, tmp_path: Path) -> None:
    dataset = shmloader.Shards(remote)
    assert dataset[0] and dataset[20]
    failures = []

    def fail(method: str, name: str) -> None:
        failures.append(name)
        raise OSError("connection reset")

    Slow.fail = fail
    dataset.__prefetch__([5])
    while not failures:
        time.sleep(0.001)
    Slow.fail = None
    assert without_url(dataset[5]) == expected(tmp_path)[5]
    Slow.fail = fail
    with pytest.raises(OSError, match="connection reset"):
        dataset[6]


def test_shards_that_change_vanish_or_are_cut(remote: str, tmp_path: Path) -> None:
    dataset = shmloader.Shards(remote)
    assert len(dataset) == 40
    whole = (tmp_path / "1.tar").read_bytes()
    write(tmp_path / "0.tar", [("0.jpg", bytes(9000))])
    with pytest.raises(RuntimeError, match=r"0\.tar has changed since its index was made.*shmloader index --rebuild"):
        dataset[0]
    assert dataset[20]
    (tmp_path / "1.tar").write_bytes(whole[:5000])
    with pytest.raises(OSError, match=r"1\.tar gave \d+ of .* bytes at byte .*Look at the shard"):
        dataset[30]
    (tmp_path / "1.tar").unlink()
    with pytest.raises(FileNotFoundError, match=r"1\.tar is gone"):
        dataset[30]
    with pytest.raises(FileNotFoundError, match=r"2\.tar is not there\. It is shard 2 of 3"):
        len(shmloader.Shards([f"{remote[:-5]}{k}.tar" for k in (0, 0, 2)]))


def test_a_remote_list_of_wids(remote: str, tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text('{"shardlist": [{"url": "1.tar", "nsamples": 20}]}')
    dataset = shmloader.Shards(remote.replace("*.tar", "train.json"))
    assert len(dataset) == 20 and dataset.urls == [remote.replace("*", "1")]


def test_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises((ImportError, ValueError), match=r"nosuch"):
        len(shmloader.Shards("nosuch://bucket/0.tar"))


def test_a_web_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("aiohttp", reason="pip install aiohttp")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    members = [*photographs(40)]
    for k in range(2):
        write(tmp_path / f"{k}.tar", members[60 * k : 60 * (k + 1)])
    with serving(str(tmp_path), latency=0.001, bytes_per_second=1e9) as url:
        dataset = shmloader.Shards(f"{url}{{0..1}}.tar")
        assert len(dataset) == 40
        loader = shmloader.DataLoader(dataset, 8, num_workers=2, multiprocessing_context="fork")
        found = [key for batch in loader for key in batch["__key__"]]
        assert found == [sample["__key__"] for sample in expected(tmp_path)]
        dataset.__prefetch__(range(40))
        assert [without_url(dataset[at]) for at in range(40)] == expected(tmp_path)
        write(tmp_path / "1.tar", [("0.jpg", b"1")])
        with pytest.raises(RuntimeError, match=r"1\.tar has changed"):
            shmloader.Shards(f"{url}{{0..1}}.tar")[30]
        with pytest.raises(FileNotFoundError, match=r"2\.tar is not there"):
            len(shmloader.Shards(f"{url}2.tar"))
    http = fsspec.get_filesystem_class("http")
    for system in http._cache.values():  # fsspec keeps them, and their connections
        if system._session is not None:
            http.close_session(system.loop, system._session)
    http.clear_instance_cache()
    stop_fsspec()


# ----------------------------------------------------------------------------------------------------- read ahead alone


class Read:
    def __init__(self, log: list[Any], key: Any) -> None:
        self.log, self.key = log, key
        log.append(key)

    def cancel(self) -> None:
        self.log.append(("dropped", self.key))


def test_what_is_not_taken_is_dropped() -> None:
    log: list[Any] = []
    reads = ReadAhead(1000)

    def announce(keys: range) -> None:
        reads.announce((key, 100, lambda key=key: Read(log, key)) for key in keys)

    announce(range(30))  # an epoch that is left after three samples
    assert log == [*range(10)]
    assert [reads.take(key).key for key in range(3)] == [0, 1, 2]
    announce(range(100, 200))
    taken = [reads.take(key) for key in range(100, 200)]
    assert taken[-1].key == 199 and ("dropped", 3) in log and ("dropped", 12) in log
    assert all(read is not None for read in taken[90:])  # what was left keeps no room
    assert reads.bytes == 0 and not reads._known and not reads._begun


def test_a_key_is_announced_twice_and_taken_twice() -> None:
    log: list[Any] = []
    reads = ReadAhead(1000)
    for _ in range(2):
        reads.announce([("a", 600, lambda: Read(log, "a")), ("b", 600, lambda: Read(log, "b"))])
    assert log == ["a"]
    assert reads.take("b") is None  # it waits for room, and whoever needs it now reads it
    assert reads.take("a").key == "a" and reads.take("a") is None
    assert log == ["a"] and reads.bytes == 0
    reads.announce([("c", 5000, lambda: Read(log, "c"))])  # one at least is under way
    assert reads.take("c").key == "c"
