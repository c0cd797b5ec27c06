"""Files of pictures are read before their samples are made: local ones by the kernel, others by threads."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import socket
import threading
import time
import weakref
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
from shmloader.storage.remote import OfThisProcess
from shmloader.system import file_systems
from shmloader.worker.look_ahead import Announced, prefetch_of
from tests.images import torchvision_stand_ins as tv
from tests.images.kept_pictures import own_memory  # noqa: F401
from tests.images.made_photo import picture

COUNT = 24


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
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file system is local."""
    monkeypatch.setattr(early_files, "is_local", lambda device: False)
    monkeypatch.setattr(early_files, "_readers", OfThisProcess(early_files._Readers))


@pytest.fixture
def announced(far: None, monkeypatch: pytest.MonkeyPatch) -> list[Announced]:
    """No file system is local, and this process is a worker.  Its batch is the last of this list, while it lives."""
    batches = [Announced(1)]
    monkeypatch.setattr(early_files, "announced_batch", lambda: weakref.ref(batches[-1]))
    return batches


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


# ------------------------------------------------------------------------------------------------- a local file system


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

    def read() -> bool:
        """The kernel may leave out what it is asked to read ahead, and says nothing: it is asked until it has read."""
        prefetch(indices)
        return all(in_memory(paths[at]) for at in wanted)

    wait_for(read)
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


def test_files_in_memory_are_left_alone(
    root: Path, advised: list[str], blocks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = images.ImageFolder(root)
    folder.__prefetch__([0, 1, 2])  # nothing is known yet
    folder.__prefetch__([3, 4, 5])  # no block was read since
    assert advised == names(folder, 0, 1, 2, 3)
    advised.clear()
    blocks[0] += 8
    folder.__prefetch__([6, 7])
    assert advised == names(folder, 6, 7)
    monkeypatch.setattr(os, "getpid", lambda: -1)
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


# ------------------------------------------------------------------------------------------------ another file system


MOUNTS = """\
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
31 22 0:7 / /data rw,relatime shared:1 - {} server:/nfs rw,vers=4.2
32 22 0:8 / /nfs\\040-\\040nfs rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("kind", "is_far"),
    [("nfs4", True), ("nfs", True), ("cifs", True), ("fuse.sshfs", True), ("fuse", True), ("lustre", True),
     ("virtiofs", True), ("fuseblk", False), ("ext4", False), ("xfs", False), ("overlay", False)],
)  # fmt: skip
def test_which_file_systems_are_local(kind: str, is_far: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS.format(kind))
    monkeypatch.setattr(file_systems, "MOUNTS", str(tmp_path / "mountinfo"))
    is_local = file_systems.is_local.__wrapped__
    assert is_local(os.makedev(0, 7)) != is_far
    assert all(map(is_local, (os.makedev(8, 1), os.makedev(0, 8), os.makedev(0, 9))))
    (tmp_path / "mountinfo").unlink()
    assert is_local(os.makedev(0, 7))


def reads() -> list[Any]:
    """What this process has announced to its threads and not taken."""
    return list(early_files._readers()._files.values())


def held() -> int:
    """How many bytes are kept."""
    return sum(len(file.data) for file in reads())


def all_read() -> bool:
    return all(file.done.done() for file in reads())


def test_threads_read_them(root: Path, tmp_path: Path, announced: list[Announced], advised: list[str]) -> None:
    plain = images.ImageFolder(root, images.evaluation(16))
    folder = images.ImageFolder(root, images.evaluation(16), rows=tmp_path / "rows")
    order = [4, 2, 2, 5, 17, 0]  # with a PNG
    for _ in range(3):  # the first time makes the marks of rows
        folder.__prefetch__(order)
        assert len(reads()) == 5 and advised == []
        assert all(torch.equal(folder[at][0], plain[at][0]) for at in order)
        assert not reads()
    ends = early_files._readers()._threads._threads
    assert 0 < len(ends) <= early_files.THREADS


@dataclass
class Location:
    """A path without a hash, as dataclasses are."""

    path: str

    def __fspath__(self) -> str:
        return self.path


@pytest.mark.parametrize("kind", [str, Path, Location])
def test_the_bytes_come_from_the_threads(root: Path, announced: list[Announced], kind: Any) -> None:
    folder: Any = images.ImageFolder(root, images.evaluation(16))
    expected = [folder[at][0] for at in range(COUNT)]
    folder.samples = [(kind(path), target) for path, target in folder.samples]
    folder.__prefetch__(range(COUNT))
    wait_for(all_read)
    for path, _ in folder.samples:
        os.unlink(path)
    assert all(torch.equal(folder[at][0], expected[at]) for at in range(COUNT))
    with pytest.raises(FileNotFoundError):
        folder[0]


def test_their_errors_are_those_of_reading(root: Path, announced: list[Announced]) -> None:
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


def test_bytes_are_bounded(root: Path, announced: list[Announced], monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read as far as there is room, and the others when there is some again."""
    folder = images.ImageFolder(root, images.evaluation(16))
    expected = [folder[at][0] for at in range(COUNT)]
    sizes = [os.path.getsize(path) for path, _ in folder.samples]
    monkeypatch.setattr(early_files, "MOST", 4 * max(sizes))
    folder.__prefetch__(range(COUNT))
    for at in range(COUNT):
        wait_for(lambda: held() > max(sizes) or len(reads()) < 4)
        assert held() <= 4 * max(sizes)
        assert torch.equal(folder[at][0], expected[at])


def test_what_the_decoder_needs_first_waits_for_no_room(
    root: Path, announced: list[Announced], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = images.ImageFolder(root, images.evaluation(16))
    expected = [folder[at][0] for at in range(3)]
    paths = [path for path, _ in folder.samples[:3]]
    monkeypatch.setattr(early_files, "MOST", max(map(os.path.getsize, paths)))  # so there is room for one file
    with ExitStack() as at_end:
        opened = [at_end.enter_context(Opened(path)) for path in paths]
        folder.__prefetch__([0, 1, 2])
        wait_for(lambda: all(file.done.running() or file.done.done() for file in reads()) and held() > 0)
        waiting = [at for at in range(3) if not reads()[at].data]
        assert len(waiting) == 2
        for at in (*waiting, *{0, 1, 2}.difference(waiting)):
            assert torch.equal(folder[at][0], expected[at])
        assert [one.count() for one in opened] == [1, 1, 1]  # by threads, and not by the decoder


def test_a_file_that_is_larger_than_all_room_is_left_out(
    root: Path, announced: list[Announced], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = images.ImageFolder(root, images.evaluation(16))
    monkeypatch.setattr(early_files, "MOST", os.path.getsize(folder.samples[0][0]) - 1)
    folder.__prefetch__([0])
    wait_for(all_read)
    assert folder._early.source(folder.samples[0][0]) == folder.samples[0][0]


def test_bytes_of_earlier_batches_are_dropped(root: Path, announced: list[Announced]) -> None:
    folder = images.ImageFolder(root)
    folder.__prefetch__(range(4))
    wait_for(lambda: all_read() and held() > 0)
    announced[:] = [Announced(2)]
    assert folder._early.source(folder.samples[0][0]) == folder.samples[0][0]
    folder.__prefetch__([5])
    assert [file.path for file in reads()] == [folder.samples[5][0]]


def test_the_trainer_opens_no_file_twice(root: Path, far: None, advised: list[str]) -> None:
    """It has no threads, and would wait for each open()."""
    folder = images.ImageFolder(root)
    with Opened(folder.samples[0][0]) as first, Opened(folder.samples[1][0]) as second:
        for _ in range(2):
            folder.__prefetch__(range(8))
        assert first.count() == 1 and second.count() == 0  # the first one shows where they lie
    assert not reads() and advised == []


def test_only_workers_have_threads(root: Path, far: None) -> None:
    folder = images.ImageFolder(root, images.evaluation(16), target_transform=lambda target: threading.active_count())
    before = threading.active_count()
    assert {int(count) for _, counts in shmloader.DataLoader(folder, batch_size=4) for count in counts} == {before}
    batches = list(shmloader.DataLoader(folder, batch_size=4, num_workers=1))
    plain = list(shmloader.DataLoader(folder, batch_size=4, num_workers=1, look_ahead=0))
    assert max(int(count) for _, counts in batches for count in counts) > 1
    assert all(torch.equal(one, other) for (one, _), (other, _) in zip(batches, plain, strict=True))
    assert {int(count) for _, counts in plain for count in counts} == {1}


def test_loaders_give_the_same_by_threads(root: Path, far: None) -> None:
    folder = images.ImageFolder(root, images.training(16))
    options: dict[str, Any] = {"batch_size": 4, "num_workers": 2, "shuffle": True, "sample_seeds": True}

    def batches(**more: Any) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(3)
        loader = shmloader.DataLoader(folder, generator=generator, **options, **more)
        return [pictures for epoch in range(2) for pictures, _ in loader]

    for more in ({"schedule": "steal", "persistent_workers": True}, {"chunk_size": 2, "prefetch_factor": 1}):
        assert all(map(torch.equal, batches(**more), batches(**more, look_ahead=0)))


def test_a_file_that_changes_while_it_is_read_is_left_alone(root: Path, announced: list[Announced]) -> None:
    """Its size would not be that of its bytes, as for a file of /proc.  And bytes are a picture, and no path."""
    folder: Any = images.ImageFolder(root, images.evaluation(16))
    path, target = folder.samples[0]
    folder.samples = [("/proc/self/status", 0), (path, target), (bytearray(Path(path).read_bytes()), target)]
    expected = folder[1][0]
    folder.__prefetch__([0, 1, 2])
    wait_for(all_read)
    assert folder._early.source("/proc/self/status") == "/proc/self/status"
    assert torch.equal(folder[1][0], expected) and torch.equal(folder[2][0], expected)


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


def test_a_sample_waits_for_no_other_file_and_a_handler_may_limit_how_long_it_waits(
    root: Path, announced: list[Announced], slow: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_files, "THREADS", 1)
    folder = images.ImageFolder(root, images.evaluation(16))
    slow.append(folder.samples[0][0])
    folder.__prefetch__([1, 0, 2])
    wait_for(lambda: bool(reads()[1].done.running()))
    assert folder._early.source(folder.samples[2][0]) == folder.samples[2][0]
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
            wait_for(lambda: any(file.path == self.samples[16][0] and file.done.running() for file in reads()))
        return super().__getitem__(index)


def test_a_worker_that_waits_for_a_file_names_it(
    root: Path, far: None, slow: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shmloader.trainer.worker_set.PATIENCE", 0.2)
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
    assert " in take" in text and text.count("most recent call first") == 2, text
