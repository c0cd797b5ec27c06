"""Files of pictures are read before their samples are made: on a disk by the kernel, on a slow mount by threads."""

from __future__ import annotations

import ctypes
import mmap
import os
import pickle
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import UnidentifiedImageError

import shmloader
from shmloader import images
from shmloader.images import early_files
from shmloader.worker.look_ahead import prefetch_of
from tests.images import torchvision_stand_ins as tv
from tests.images.kept_pictures import own_memory  # noqa: F401
from tests.images.test_images_folder import picture

COUNT = 24
TRANSFORM = tv.Compose([tv.CenterCrop(16), tv.ToTensor()])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for k in range(COUNT):
        file = tmp_path / "pictures" / str(k % 2) / f"{k:02}.{'png' if k == 5 else 'jpg'}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(picture(k, kind="PNG" if k == 5 else "JPEG"))
    return tmp_path / "pictures"


@pytest.fixture
def advised(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that the kernel was asked to read."""
    names: list[str] = []

    def advise(file: int, begin: int, size: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_WILLNEED and size == 1 << 20
        names.append(os.path.basename(os.readlink(f"/proc/self/fd/{file}")))

    monkeypatch.setattr(os, "posix_fadvise", advise)
    return names


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many blocks this process has read from disks."""
    count = [0]
    monkeypatch.setattr(early_files.resource, "getrusage", lambda who: SimpleNamespace(ru_inblock=count[0]))
    return count


@pytest.fixture
def on_a_slow_mount(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every open() counts as slow, and this process as a worker."""
    monkeypatch.setattr(early_files, "SLOW", 0.0)
    monkeypatch.setattr(early_files, "get_worker_info", lambda: True)


@pytest.fixture(autouse=True)
def no_descriptor_stays_open() -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd"))
    yield
    wait_for(lambda: len(os.listdir("/proc/self/fd")) <= before)  # a thread may be reading a file that nobody takes


def names(folder: Any, *indices: int) -> list[str]:
    return [os.path.basename(folder.samples[at][0]) for at in indices]


def in_memory(path: str) -> bool:
    """Whether the page cache has the file; asking does not read it."""
    with (
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as data,
    ):
        pages = (ctypes.c_ubyte * (len(data) // mmap.PAGESIZE + 1))()
        address = ctypes.addressof(whole := ctypes.c_char.from_buffer(data))
        assert ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(len(data)), pages) == 0
        del whole
        return bool(pages[0] & 1)


def drop(paths: list[str]) -> None:
    """Take files out of the page cache; the test is skipped where that has no effect."""
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)
    if any(map(in_memory, paths)):
        pytest.skip("this file system keeps files in memory")


class Opened:
    """Counts how often a file was opened, by any process, since this was made."""

    def __init__(self, path: str) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._file = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        is_open = 0x20  # IN_OPEN of <sys/inotify.h>
        if self._file < 0 or self._libc.inotify_add_watch(self._file, os.fsencode(path), is_open) < 0:
            pytest.skip("there is no inotify")

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: Any) -> None:
        os.close(self._file)

    def count(self) -> int:
        try:
            return len(os.read(self._file, 4096)) // 16  # the size of an event without a name
        except BlockingIOError:
            return 0


@pytest.fixture(params=["FIFO", "socket", "device", "folder"])
def no_file(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The path of something that is no regular file."""
    path = tmp_path / "picture.jpg"
    with ExitStack() as at_end:
        if request.param == "FIFO":
            os.mkfifo(path)
        elif request.param == "socket":
            at_end.enter_context(socket.socket(socket.AF_UNIX)).bind(str(path))
        elif request.param == "device":
            for end in (ends := os.openpty()):
                at_end.callback(os.close, end)
            path.symlink_to(os.ttyname(ends[1]))
        else:
            path.mkdir()
        yield str(path)


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


# ------------------------------------------------------------------------------------------------------------- a disk


@pytest.mark.parametrize("kind", ["folder", "fused", "subset", "concat"])
def test_the_kernel_reads_them(root: Path, kind: str) -> None:
    folder = images.ImageFolder(root, images.evaluation(16))
    wanted, indices = [3, 7, 1], [3, 7, 1]
    dataset: Any = folder
    if kind == "fused":
        dataset = images.fuse(
            tv.DatasetFolder([path for path, _ in folder.samples], tv.Compose([tv.CenterCrop(16), tv.ToTensor()]))
        )
    elif kind == "subset":
        dataset, indices = torch.utils.data.Subset(folder, [7, 1, 3]), [2, 0, 1]
    elif kind == "concat":
        dataset, indices = images.fuse(torch.utils.data.ConcatDataset([folder, folder])), [3, COUNT + 7, 1 - COUNT]
    paths = [path for path, _ in folder.samples]
    drop(paths)
    prefetch = prefetch_of(dataset)
    assert prefetch is not None
    prefetch(indices)
    wait_for(lambda: all(in_memory(paths[at]) for at in wanted))
    assert sum(map(in_memory, paths)) == len(wanted)


def test_a_loader_asks_for_them(root: Path) -> None:
    """Each file is read early, but none with look_ahead=0."""

    class Cold(images.ImageFolder):
        def __getitem__(self, index: int) -> Any:
            end = time.monotonic() + 2
            while not (found := in_memory(self.samples[index][0])) and self.patient and time.monotonic() < end:
                time.sleep(0.01)
            return found

        patient = True
        __getitem_into__ = None  # type: ignore[assignment]

    folder = Cold(root)
    for look_ahead in (None, 0):
        drop([path for path, _ in folder.samples])
        folder.patient = look_ahead is None
        loader = shmloader.DataLoader(folder, batch_size=4, num_workers=2, look_ahead=look_ahead)
        assert torch.cat(list(loader)).all() == (look_ahead is None)


def test_files_in_memory_are_left_alone(root: Path, advised: list[str], blocks: list[int]) -> None:
    folder = images.ImageFolder(root)
    folder.__prefetch__([0, 1, 2])  # nothing is known yet
    folder.__prefetch__([3, 4, 5])  # no block was read since
    assert advised == names(folder, 0, 1, 2, 3)
    advised.clear()
    blocks[0] += 8
    folder.__prefetch__([6, 7])
    assert advised == names(folder, 6, 7)
    folder = pickle.loads(pickle.dumps(folder))
    folder.__prefetch__([8, 9])  # another process
    assert advised == names(folder, 6, 7, 8, 9)


def test_errors_are_left_to_the_samples(root: Path, advised: list[str]) -> None:
    folder = images.ImageFolder(root, images.evaluation(16))
    os.unlink(folder.samples[2][0])
    folder.__prefetch__([0, COUNT, "x", 2, -1, None])
    assert advised == names(folder, 0, -1)
    with pytest.raises(FileNotFoundError):
        folder[2]
    loader = shmloader.DataLoader(folder, batch_size=4, num_workers=1, on_bad_sample="skip:1")
    with pytest.warns(RuntimeWarning, match="FileNotFoundError"):
        assert len(list(loader)) == COUNT // 4


def test_what_is_in_the_cache_is_not_read(root: Path, advised: list[str]) -> None:
    folder = images.ImageFolder(root, images.evaluation(16), cache="64 MB")
    [folder[at] for at in (1, 2, 5)]  # the PNG is not kept
    folder.__prefetch__([0, 1, 2, 3, 14])
    png = next(at for at, (path, _) in enumerate(folder.samples) if path.endswith("png"))
    assert advised == names(folder, 0, 3, 14)
    advised.clear()
    folder[png]
    folder._early = early_files.EarlyFiles()
    folder.__prefetch__([1, png])
    assert advised == names(folder, png)


def test_only_regular_files_are_opened(root: Path, no_file: str, advised: list[str]) -> None:
    """The writer of a FIFO would see a reader come and go, and some devices act when they are opened."""
    folder: Any = images.ImageFolder(root)
    link = root / "link.jpg"
    link.symlink_to(folder.samples[1][0])
    folder.samples = [folder.samples[0], (no_file, 0), (str(link), 0)]
    with Opened(no_file) as opened, Opened(folder.samples[0][0]) as file:
        folder.__prefetch__([0, 1, 2])
        assert opened.count() == 0 and file.count() == 1
    assert len(advised) == 2


def test_a_fused_dataset_that_reads_early_itself_is_asked(root: Path, advised: list[str]) -> None:
    asked: list[Any] = []

    class Own(tv.DatasetFolder):
        def __prefetch__(self, indices: Any) -> None:
            asked.extend(indices)

    fused = images.fuse(
        Own([path for path, _ in images.ImageFolder(root).samples], tv.Compose([tv.CenterCrop(16), tv.ToTensor()]))
    )
    fused.__prefetch__([1, 2])
    assert asked == [1, 2] and advised == []


# ------------------------------------------------------------------------------------------------------- a slow mount


def held(folder: Any) -> int:
    """How many bytes are kept."""
    return int(folder._early._readers.room._held)


def all_begun(folder: Any) -> bool:
    """Whether threads have begun to read all files that wait."""
    return bool(folder._early._readers.threads._waiting.qsize() == 0)


def settled(folder: Any) -> bool:
    """Whether no bytes are kept."""
    return held(folder) == 0


def test_threads_read_them(root: Path, tmp_path: Path, on_a_slow_mount: None) -> None:
    plain = images.ImageFolder(root, images.evaluation(16))
    folder = images.ImageFolder(root, images.evaluation(16), rows=tmp_path / "rows")
    order = [4, 2, 2, 5, 17, 0]  # with a PNG
    for _ in range(3):  # the first time makes the marks of rows
        folder.__prefetch__(order)
        assert folder._early.by_threads
        assert all(torch.equal(folder[at][0], plain[at][0]) for at in order)
        wait_for(lambda: settled(folder))
    ends = folder._early._readers.threads._threads
    assert 0 < len(ends) <= early_files.THREADS
    folder._early._forget()
    for thread in ends:
        thread.join(20)
    assert not [thread for thread in threading.enumerate() if thread.name == "shmloader storage"]


def test_the_bytes_come_from_the_threads(root: Path, on_a_slow_mount: None) -> None:
    folder = images.ImageFolder(root, images.evaluation(16))
    expected = [folder[at][0] for at in range(COUNT)]
    folder.__prefetch__(range(COUNT))
    wait_for(lambda: all_begun(folder) and len(folder._early._seen.took) == COUNT)
    for path, _ in folder.samples:
        os.unlink(path)
    assert all(torch.equal(folder[at][0], expected[at]) for at in range(COUNT))
    with pytest.raises(FileNotFoundError):
        folder[0]


@dataclass
class Location:
    """A path without a hash, as dataclasses are."""

    path: str

    def __fspath__(self) -> str:
        if not self.path:
            raise ZeroDivisionError
        return self.path


@pytest.mark.parametrize("kind", [Path, Location])
def test_paths_of_any_class_are_read_by_threads(root: Path, on_a_slow_mount: None, kind: Any) -> None:
    folder: Any = images.ImageFolder(root, images.evaluation(16))
    expected = [folder[at][0] for at in range(4)]
    folder.samples = [(kind(path), target) for path, target in folder.samples]
    folder.__prefetch__(range(4))
    wait_for(lambda: all_begun(folder) and len(folder._early._seen.took) == 4)
    for path, _ in folder.samples[:4]:
        os.unlink(path)
    assert all(torch.equal(folder[at][0], expected[at]) for at in range(4))


def test_a_path_that_raises_is_left_to_its_sample(root: Path, on_a_slow_mount: None) -> None:
    folder: Any = images.ImageFolder(root, images.evaluation(16))
    folder.samples[1] = Location(""), 0
    folder.__prefetch__([0, 1, 2])
    with pytest.raises(ZeroDivisionError):
        folder[1]


def test_their_errors_are_those_of_reading(root: Path, on_a_slow_mount: None) -> None:
    folder = images.ImageFolder(root, images.evaluation(16))
    os.unlink(folder.samples[1][0])
    Path(folder.samples[2][0]).write_bytes(b"no picture")
    Path(folder.samples[3][0]).write_bytes(Path(folder.samples[3][0]).read_bytes()[:300])
    errors = []
    for is_early in (False, True):
        for at in (1, 2, 3):
            if is_early:
                folder.__prefetch__([at])
            with pytest.raises((FileNotFoundError, UnidentifiedImageError, OSError)) as caught:
                folder[at]
            errors.append((type(caught.value), str(caught.value)))
    assert errors[:3] == errors[3:]
    wait_for(lambda: settled(folder))


def test_bytes_are_bounded(root: Path, on_a_slow_mount: None, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = images.ImageFolder(root, images.evaluation(16))
    expected = [folder[at][0] for at in range(COUNT)]
    size = max(os.path.getsize(path) for path, _ in folder.samples)
    monkeypatch.setattr(early_files, "MOST", 3 * size)
    most = 0
    for _ in range(3):
        folder.__prefetch__(range(COUNT))
        for at in range(COUNT):
            most = max(most, held(folder))
            assert torch.equal(folder[at][0], expected[at])
    assert 0 < most <= 3 * size
    folder.__prefetch__(range(COUNT))  # these are never asked for
    for _ in range(3):
        folder.__prefetch__([0])
        folder[0]
    wait_for(lambda: held(folder) <= 3 * size)


def test_the_threads_stop_once_files_are_quick(root: Path, on_a_slow_mount: None, advised: list[str]) -> None:
    folder = images.ImageFolder(root, images.evaluation(16))
    folder.__prefetch__(range(COUNT))
    [folder[at] for at in range(COUNT)]
    wait_for(lambda: len(folder._early._seen.took) >= 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(early_files, "SLOW", 100.0)
        folder.__prefetch__([0])
        assert not folder._early.by_threads
        folder[0]
        folder.__prefetch__([1])
        assert not folder._early.by_threads
    assert torch.equal(folder[1][0], images.ImageFolder(root, images.evaluation(16))[1][0])


def test_the_trainer_does_not_open_files_twice(
    root: Path, monkeypatch: pytest.MonkeyPatch, advised: list[str], blocks: list[int]
) -> None:
    """Where opening is slow: it has no threads, and would wait for each open()."""
    folder = images.ImageFolder(root)
    folder.__prefetch__(range(0, 8))
    monkeypatch.setattr(early_files, "SLOW", 0.0)
    for at in range(8, 24, 8):
        blocks[0] += 1
        folder.__prefetch__(range(at, at + 8))
    assert advised == names(folder, *range(0, 8), *range(8, 12))


def test_only_workers_have_threads(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_files, "SLOW", 0.0)
    folder = images.ImageFolder(root, images.evaluation(16), target_transform=lambda target: threading.active_count())
    before = threading.active_count()
    assert {int(count) for _, counts in shmloader.DataLoader(folder, batch_size=4) for count in counts} == {before}
    batches = list(shmloader.DataLoader(folder, batch_size=4, num_workers=1))
    plain = list(shmloader.DataLoader(folder, batch_size=4, num_workers=1, look_ahead=0))
    assert max(int(count) for _, counts in batches for count in counts) > 1
    assert all(torch.equal(one, other) for (one, _), (other, _) in zip(batches, plain, strict=True))
    assert {int(count) for _, counts in plain for count in counts} == {1}


def test_loaders_give_the_same_from_a_slow_mount(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_files, "SLOW", 0.0)
    folder = images.ImageFolder(root, images.training(16))
    options: dict[str, Any] = {"batch_size": 4, "num_workers": 2, "shuffle": True, "sample_seeds": True}

    def batches(**more: Any) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(3)
        loader = shmloader.DataLoader(folder, generator=generator, **options, **more)
        return [pictures for epoch in range(2) for pictures, _ in loader]

    for more in ({}, {"persistent_workers": True}, {"schedule": "steal"}, {"chunk_size": 2}, {"prefetch_factor": 1}):
        assert all(map(torch.equal, batches(**more), batches(**more, look_ahead=0)))


class FailsOnce(images.ImageFolder):
    """The first sample of the last batch raises once, when the files of the whole batch have been read early."""

    has_failed = False
    __getitem_into__ = None  # type: ignore[assignment]

    def __getitem__(self, index: int) -> Any:
        if index == COUNT - 4 and not self.has_failed:
            begun: Any = self._early._ahead._begun  # type: ignore[union-attr]
            wait_for(lambda: len(begun) == 4 and all(reading._future.done() for _, _, reading in begun.values()))
            self.has_failed = True
            raise ZeroDivisionError
        return super().__getitem__(index)


def test_bytes_serve_only_the_batch_that_they_were_read_for(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three samples of a batch are not asked for, because its first one raises, and then their files are rewritten.

    A later batch needs them.
    """
    monkeypatch.setattr(early_files, "SLOW", 0.0)
    folder = FailsOnce(root, images.evaluation(16))
    options: dict[str, Any] = {"batch_size": 4, "num_workers": 1, "persistent_workers": True}
    with shmloader.DataLoader(folder, multiprocessing_context="fork", **options) as loader:
        with pytest.raises(ZeroDivisionError):
            list(loader)
        for at in range(COUNT - 3, COUNT):
            Path(folder.samples[at][0]).write_bytes(picture(100 + at))
        pictures = torch.cat([pictures for pictures, _ in loader])
    plain = images.ImageFolder(root, images.evaluation(16))
    assert all(torch.equal(pictures[at], plain[at][0]) for at in range(COUNT))


def test_all_datasets_of_a_process_share_threads_and_room(
    root: Path, on_a_slow_mount: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = max(path.stat().st_size for path in root.glob("*/*"))
    monkeypatch.setattr(early_files, "MOST", 6 * size)
    whole: Any = images.fuse(
        torch.utils.data.ConcatDataset([images.ImageFolder(root, images.evaluation(16)) for _ in "abc"])
    )
    prefetch = prefetch_of(whole)
    assert prefetch is not None
    expected = [images.ImageFolder(root, images.evaluation(16))[at][0] for at in range(COUNT)] * 3
    prefetch(list(range(len(whole))))
    first, *others = whole.datasets
    readers: Any = first._early._readers
    assert all(folder._early._readers is readers for folder in others)
    assert (
        len([thread for thread in threading.enumerate() if thread.name == "shmloader storage"]) <= early_files.THREADS
    )
    for at in range(len(whole)):
        assert readers.room._held <= 6 * size
        assert torch.equal(whole[at][0], expected[at])
    wait_for(lambda: bool(readers.room._held == 0))
    prefetch(list(range(len(whole))))
    wait_for(lambda: bool(readers.room._held > 0 and not readers.threads._waiting.qsize()))
    del whole, prefetch, first, others  # without taking them
    wait_for(lambda: bool(readers.room._held == 0))


def test_a_file_that_changes_while_it_is_read_is_left_alone(root: Path, on_a_slow_mount: None) -> None:
    """Its size would not be that of its bytes, as for a file of /proc.  And bytes are a picture, and no path."""
    folder: Any = images.ImageFolder(root, images.evaluation(16))
    path, target = folder.samples[0]
    folder.samples = [("/proc/self/status", 0), (path, target), (bytearray(Path(path).read_bytes()), target)]
    expected = folder[1][0]
    folder.__prefetch__([0, 1, 2])
    wait_for(lambda: all_begun(folder) and len(folder._early._seen.took) == 1)
    assert folder._early.source("/proc/self/status") == "/proc/self/status"
    assert torch.equal(folder[1][0], expected) and torch.equal(folder[2][0], expected)
    wait_for(lambda: settled(folder))


def test_threads_open_only_regular_files(root: Path, no_file: str, on_a_slow_mount: None) -> None:
    folder: Any = images.ImageFolder(root, images.evaluation(16))
    folder._early.by_threads = True
    folder.samples = [(no_file, 0), folder.samples[0]]
    with Opened(no_file) as opened:
        folder.__prefetch__([0, 1])
        wait_for(lambda: all_begun(folder) and len(folder._early._seen.took) == 1)
        assert folder._early.source(no_file) == no_file
        assert opened.count() == 0
    folder[1]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Files whose open() waits until a signal, if it is the main thread's, or until the end."""
    paths: list[str] = []
    opens, may_go_on = os.open, threading.Event()

    def wait_and_open(path: Any, *more: Any, **options: Any) -> int:
        if str(path) in paths:
            may_go_on.wait(20)
        return opens(path, *more, **options)

    def handle(number: int, frame: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, handle)
    monkeypatch.setattr(os, "open", wait_and_open)
    yield paths
    may_go_on.set()
    signal.signal(signal.SIGALRM, before)


def test_a_handler_may_limit_how_long_a_sample_waits_for_its_file(
    root: Path, on_a_slow_mount: None, slow: list[str]
) -> None:
    folder = images.ImageFolder(root, images.evaluation(16))
    folder._early.by_threads = True
    slow.append(folder.samples[0][0])
    folder.__prefetch__([0])
    wait_for(lambda: all_begun(folder))
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    with pytest.raises(TimeoutError):
        folder[0]


def test_a_handler_may_limit_how_long_a_batch_waits_for_its_files(root: Path, slow: list[str]) -> None:
    folder = images.ImageFolder(root, images.evaluation(16))
    slow.append(folder.samples[0][0])
    asked = folder.__prefetch__
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    with pytest.raises(TimeoutError):
        asked([0])


class WaitsForAThread(images.ImageFolder):
    """Its sample 16 begins when a thread has begun to read its file."""

    __getitem_into__ = None  # type: ignore[assignment]

    def __getitem__(self, index: int) -> Any:
        if index == 16:
            begun: Any = self._early._ahead._begun  # type: ignore[union-attr]
            wait_for(lambda: begun[self.samples[16][0]][2]._future.running())
        return super().__getitem__(index)


def test_a_worker_that_waits_for_a_file_names_it(root: Path, monkeypatch: pytest.MonkeyPatch, slow: list[str]) -> None:
    monkeypatch.setattr(early_files, "SLOW", 0.0)
    folder = WaitsForAThread(root, images.evaluation(16))
    slow.append(folder.samples[16][0])
    options: dict[str, Any] = {"batch_size": 4, "num_workers": 1, "multiprocessing_context": "fork"}
    with (
        shmloader.DataLoader(folder, timeout=1, look_ahead=2, **options) as loader,
        pytest.raises(RuntimeError, match="timed out after 1 seconds") as raised,
    ):
        list(loader)
    text = str(raised.value)
    assert text.endswith(f"Files of the samples at hand:\n  {slow[0]!r}"), text
    assert " in taken" in text and text.count("most recent call first") == 2, text
