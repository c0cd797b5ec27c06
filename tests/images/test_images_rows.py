"""A file of marks: crops that are read from their own rows are the same, whatever the file contains."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import random
import stat
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jpeg_writer import SAMPLINGS, Noise, write
from made_photo import picture

import shmloader
from shmloader import images
from shmloader.core import jpeg
from shmloader.images.rows import Rows
from tests.images import torchvision_stand_ins as tv

# ------------------------------------------------------------------------------------------------- marks of one picture


@pytest.mark.parametrize("is_wild", [False, True])
@pytest.mark.parametrize("sampling", list(SAMPLINGS))
@pytest.mark.parametrize("path", jpeg.paths())
def test_a_crop_from_its_mark_is_the_same(path: str, sampling: str, is_wild: bool) -> None:
    width, height = 150, 130  # of several pieces of 8 KB, where coefficients are wild
    data = write(Noise(7, width, height, SAMPLINGS[sampling], is_wild=is_wild))
    decoder, draw = jpeg.Decoder(path), random.Random(sampling)
    whole = np.zeros((3, height, width), np.uint8)
    assert decoder.open(data) is not None
    assert decoder.decode((0, 0, width, height), whole) and decoder.marks is None
    assert decoder.decode((0, 0, width, height), whole, marking=True)
    marks = decoder.marks
    assert marks is not None and len(marks) % 12 == 0 and marks[:12] == bytes(12)
    for _ in range(12):
        wide, high = draw.randint(1, width), draw.randint(1, 60)
        left, top = draw.randint(0, width - wide), draw.randint(0, height - high)
        crop = (left, top, wide, high)
        for exact in (True, False):
            got, expected = np.zeros((3, 20, 24), np.uint8), np.zeros((3, 20, 24), np.uint8)
            assert decoder.decode(crop, expected, exact)
            assert decoder.decode(crop, got, exact, marks=marks) and decoder.marks is None
            assert np.array_equal(got, expected)
            got[...] = 0
            assert decoder.decode(crop, got, exact, marking=True) and decoder.marks == marks
            assert np.array_equal(got, expected)
    # The bits above are not looked at: without them the crop is the same, read from its mark alone.
    begin = data.index(b"\xff\xda")
    begin += 2 + int.from_bytes(data[begin + 2 : begin + 4], "big")
    last = len(marks) - 12
    at = int.from_bytes(marks[last : last + 4], "little")
    blank = data[:begin] + bytes(at) + data[begin + at :]
    crop = (0, height - 1, width, 1)
    expected, got = np.zeros((3, 1, width), np.uint8), np.zeros((3, 1, width), np.uint8)
    if sampling in ("4:4:4", "4:2:2", "4:1:1", "grey"):  # whose last row of pixels needs no row of MCUs above
        assert decoder.decode(crop, expected)
        assert decoder.open(blank) is not None
        assert decoder.decode(crop, got, marks=marks) and np.array_equal(got, expected)


def test_files_with_restart_markers_have_none() -> None:
    decoder = jpeg.Decoder()
    out = np.zeros((3, 10, 10), np.uint8)
    assert decoder.open(write(Noise(1, 60, 60, restart=3))) is not None
    assert decoder.decode((5, 40, 10, 10), out, marking=True) and decoder.marks is None
    expected = out.copy()
    assert decoder.decode((5, 40, 10, 10), out, marks=bytes(12 * 4)) and np.array_equal(out, expected)


def test_marks_of_another_picture() -> None:
    """Wrong marks lead to other pixels or to none; tests/images/fuzz tries the same under ASan."""
    decoder, draw = jpeg.Decoder(), random.Random(1)
    data = write(Noise(2, 90, 90))
    out = np.zeros((3, 30, 30), np.uint8)
    assert decoder.open(data) is not None
    for size in (0, 11, 12, 12 * 5, 12 * 6, 12 * 6 + 1, 12 * 7):
        for _ in range(20):
            decoder.decode((3, draw.randint(0, 60), 30, 30), out, marks=draw.randbytes(size))
    assert decoder.open(data[: len(data) // 2]) is not None
    assert not decoder.decode((0, 0, 30, 30), out, marking=True) and decoder.marks is None


@pytest.mark.parametrize("change", [(1 << 31, 0), (-1, 0), (0, 8)], ids=["behind the file", "above", "no bit"])
def test_marks_that_cannot_be_are_not_used(change: tuple[int, int]) -> None:
    decoder = jpeg.Decoder()
    assert decoder.open(write(Noise(2, 90, 90))) is not None
    expected, out = np.zeros((3, 90, 90), np.uint8), np.zeros((3, 90, 90), np.uint8)
    assert decoder.decode((0, 0, 90, 90), expected, marking=True)
    marks = bytearray(decoder.marks)
    at, bit = struct.unpack_from("<IH", marks, 3 * 12)
    before = struct.unpack_from("<I", marks, 2 * 12)[0]
    struct.pack_into("<IH", marks, 3 * 12, before - 1 if change[0] < 0 else at + change[0], bit + change[1])
    assert decoder.decode((0, 0, 90, 90), out, marks=bytes(marks)) and np.array_equal(out, expected)


# ------------------------------------------------------------------------------------------------------------- the file


def saved(path: Path, seed: int, **options: Any) -> str:
    path.write_bytes(picture(seed, 120, 160, **options))
    return str(path)


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    (tmp_path / "pictures").mkdir()
    found = [saved(tmp_path / "pictures" / f"{k}.jpg", k) for k in range(6)]
    return [*found, saved(tmp_path / "pictures" / "6.jpg", 6, progressive=True)]


TRANSFORM = tv.Compose([tv.RandomResizedCrop(), tv.RandomHorizontalFlip(), tv.PILToTensor()])


def epoch(dataset: Any, seed: int = 1) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return [dataset[k][0] for k in range(len(dataset))]


def assert_same(one: list[torch.Tensor], other: list[torch.Tensor]) -> None:
    assert len(one) == len(other) and all(map(torch.equal, one, other))


def names(count: int) -> list[str]:
    return [f"{k}.jpg" for k in range(count)]


class Kept:
    """Counts the marks that are found in files of rows, and those that are put there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found = self.put = 0
        find, put = Rows.find, Rows.put

        def found(rows: Rows, *arguments: Any) -> Any:
            marks = find(rows, *arguments)
            self.found += marks is not None
            return marks

        def putting(rows: Rows, *arguments: Any) -> None:
            self.put += 1
            put(rows, *arguments)

        monkeypatch.setattr(Rows, "find", found)
        monkeypatch.setattr(Rows, "put", putting)

    def since(self) -> tuple[int, int]:
        counts, self.found, self.put = (self.found, self.put), 0, 0
        return counts


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Kept:
    return Kept(monkeypatch)


def test_kept_in_the_first_epoch_and_found_from_the_second_on(paths: list[str], tmp_path: Path, kept: Kept) -> None:
    dataset = tv.DatasetFolder(paths, TRANSFORM)
    fused = images.fuse(dataset, rows=tmp_path / "rows")
    assert_same(epoch(fused), epoch(dataset))
    assert kept.since() == (0, 6)  # the progressive one has none
    for seed in (2, 3):
        assert_same(epoch(fused, seed), epoch(dataset, seed))
        assert kept.since() == (6, 0)
    size = (tmp_path / "rows").stat().st_size
    again = images.fuse(dataset, rows=str(tmp_path / "rows"))  # in a later run
    assert_same(epoch(again), epoch(dataset))
    assert kept.since() == (6, 0) and (tmp_path / "rows").stat().st_size == size < 40 + 7 * 40 + 6 * 12 * 20 + 1


def test_a_picture_that_changed(paths: list[str], tmp_path: Path, kept: Kept) -> None:
    dataset = tv.DatasetFolder(paths, TRANSFORM)
    fused = images.fuse(dataset, rows=tmp_path / "rows")
    epoch(fused)
    saved(Path(paths[1]), 77, quality=50)
    os.utime(paths[2], ns=(1, 1))
    dataset.samples[3], dataset.samples[4] = dataset.samples[4], dataset.samples[3]
    for path in paths[3:5]:
        with open(path, "ab") as file:
            file.write(bytes(100_000 - os.path.getsize(path)))  # both of the same size now
        os.utime(path, ns=(5, 5))
    kept.since()
    assert_same(epoch(fused), epoch(dataset))
    assert kept.since() == (2, 4)
    assert_same(epoch(fused, 2), epoch(dataset, 2))
    assert kept.since() == (6, 0)
    dataset.samples[3], dataset.samples[4] = dataset.samples[4], dataset.samples[3]
    assert_same(epoch(fused), epoch(dataset))  # told apart by their paths alone
    assert kept.since() == (4, 2)


def test_a_picture_that_changed_unseen(paths: list[str], tmp_path: Path) -> None:
    """Another content of the same size and time: if it cannot be decoded from its mark, it is decoded without."""
    fused = images.fuse(tv.DatasetFolder(paths[:1], TRANSFORM), rows=tmp_path / "rows")
    epoch(fused)
    content = Path(paths[0]).read_bytes()
    size, scan = len(content), content.index(b"\xff\xda") + 14
    near_the_end = struct.pack("<IHhhh", size - scan - 5, 3, 0, 0, 0)  # where there is not a row of it left
    Rows(tmp_path / "rows", paths[:1]).put(0, paths[0], (size, os.stat(paths[0]).st_mtime_ns), near_the_end * 10)
    before = images.counts()["pillow"]
    assert_same(epoch(fused), epoch(images.fuse(tv.DatasetFolder(paths[:1], TRANSFORM))))
    assert images.counts()["pillow"] == before


def test_a_torn_file(paths: list[str], tmp_path: Path, kept: Kept) -> None:
    dataset = tv.DatasetFolder(paths, TRANSFORM)
    fused = images.fuse(dataset, rows=tmp_path / "rows")
    epoch(fused)
    content = (tmp_path / "rows").read_bytes()
    draw = random.Random(2)
    for k in range(30):
        torn = bytearray(content)
        if k % 3 == 0:
            del torn[draw.randrange(40, len(torn)) :]
        else:
            at = draw.randrange(40, len(torn))
            torn[at] ^= 1 << draw.randrange(8)
        (tmp_path / "rows").write_bytes(torn)
        kept.since()
        again = images.fuse(dataset, rows=tmp_path / "rows")
        assert_same(epoch(again, k), epoch(dataset, k))
        found, put = kept.since()
        assert found + put == 6 and (put <= 1 or k % 3 == 0)


def test_other_pictures(paths: list[str], tmp_path: Path, kept: Kept) -> None:
    """In a later run: pictures were added or removed, or the file was another dataset's."""
    epoch(images.fuse(tv.DatasetFolder(paths, TRANSFORM), rows=tmp_path / "rows"))
    for others in (paths[:3], paths[:3] * 2, [*reversed(paths[:3])] * 2):
        dataset = tv.DatasetFolder(others, TRANSFORM)
        kept.since()
        with pytest.warns(RuntimeWarning, match="was made from other pictures, and is replaced"):
            fused = images.fuse(dataset, rows=tmp_path / "rows")
        assert (tmp_path / "rows").stat().st_size == 40 + 36 * len(others)
        assert_same(epoch(fused), epoch(dataset))
        assert kept.since() == (0, len(others))
        del fused
        assert_same(epoch(images.fuse(dataset, rows=tmp_path / "rows")), epoch(dataset))
        assert kept.since() == (len(others), 0)


def test_two_datasets_with_one_file(paths: list[str], tmp_path: Path) -> None:
    """The same number of other pictures: otherwise each epoch of one dataset would replace the other's marks."""
    train, val = (tv.DatasetFolder(part, TRANSFORM) for part in (paths[:3], paths[3:6]))
    fused = images.fuse(train, rows=tmp_path / "rows")
    with pytest.raises(ValueError, match=r"is in use by another dataset, of other pictures\. Give each dataset a file"):
        images.fuse(val, rows=tmp_path / "rows")
    again = images.fuse(train, rows=tmp_path / "rows")  # of the same pictures
    assert_same(epoch(again), epoch(fused))
    fused.me = fused  # its end is the collector's
    del fused, again
    with pytest.warns(RuntimeWarning, match="was made from other pictures"):
        images.fuse(val, rows=tmp_path / "rows")


@pytest.mark.parametrize("others", [3, 4])  # as many pictures, and more
def test_another_run_has_made_it_anew(others: int, paths: list[str], tmp_path: Path) -> None:
    """Between the dataset's start and the worker's, which reads the header."""
    dataset = tv.DatasetFolder(paths[:3], TRANSFORM)
    fused = images.fuse(dataset, rows=tmp_path / "rows")
    images.fuse(tv.DatasetFolder(paths[-others:], TRANSFORM), rows=tmp_path / "others")
    (tmp_path / "others").replace(tmp_path / "rows")
    content = (tmp_path / "rows").read_bytes()
    with pytest.warns(RuntimeWarning, match="now belongs to other pictures, because another dataset") as warned:
        pixels = epoch(fused)
    assert_same(pixels, epoch(dataset))
    assert_same(epoch(fused, 2), epoch(dataset, 2))
    assert len(warned) == 1 and (tmp_path / "rows").read_bytes() == content
    torch.manual_seed(1)
    loader = shmloader.DataLoader(fused, num_workers=1)
    assert len(list(loader)) == 3 and (tmp_path / "rows").read_bytes() == content


def test_made_anew_between_the_two_opens(
    paths: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: Kept
) -> None:
    dataset = tv.DatasetFolder(paths[:3], TRANSFORM)
    fused = images.fuse(dataset, rows=tmp_path / "rows")
    images.fuse(dataset, rows=tmp_path / "others")
    opens = os.open

    def replacing(path: Any, flags: int, *more: Any) -> int:
        if flags & os.O_APPEND and (tmp_path / "others").exists():
            (tmp_path / "others").replace(tmp_path / "rows")
        return opens(path, flags, *more)

    monkeypatch.setattr("shmloader.images.rows.os.open", replacing)
    assert_same(epoch(fused), epoch(dataset))
    kept.since()
    assert_same(epoch(fused), epoch(dataset))
    assert kept.since() == (3, 0)


def test_files_that_are_no_rows(paths: list[str], tmp_path: Path) -> None:
    dataset = tv.DatasetFolder(paths, TRANSFORM)
    (tmp_path / "notes").write_text("what is in here must stay")
    with pytest.raises(ValueError, match=r"no file of rows\. It is not overwritten"):
        images.fuse(dataset, rows=tmp_path / "notes")
    with pytest.raises(FileNotFoundError):
        images.fuse(dataset, rows=tmp_path / "no folder" / "rows")
    assert (tmp_path / "notes").read_text() == "what is in here must stay"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".rows")]


def test_nothing_but_a_file_is_replaced(tmp_path: Path) -> None:
    """open() would wait for a FIFO, and root would replace /dev/null by a file (here a copy of it)."""
    os.mkfifo(tmp_path / "special")
    with contextlib.suppress(PermissionError):
        os.mknod(tmp_path / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        (tmp_path / "null").replace(tmp_path / "special")
    kind = stat.S_IFMT((tmp_path / "special").stat().st_mode)
    with pytest.raises(ValueError, match=r"no file of rows\. It is not overwritten"):
        Rows(tmp_path / "special", names(3))
    assert stat.S_IFMT((tmp_path / "special").stat().st_mode) == kind


@pytest.mark.filterwarnings("ignore:.* was made from other pictures")
def test_a_link_stays_and_leads_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "rows").symlink_to(tmp_path / "deep" / "rows")
    for samples in (3, 4):
        Rows(tmp_path / "rows", names(samples))
        assert (tmp_path / "rows").is_symlink() and (tmp_path / "deep" / "rows").stat().st_size == 40 + 36 * samples
    assert Rows(os.fsencode(tmp_path / "rows"), names(4)).takes_more  # type: ignore[arg-type]  # bytes, as open() takes them


def test_who_may_read_it(tmp_path: Path) -> None:
    """Whoever the umask allows, as for any file, because the pictures beside it are shared, too."""
    before = os.umask(0o027)
    try:
        Rows(tmp_path / "rows", names(3))
    finally:
        os.umask(before)
    assert (tmp_path / "rows").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("mtime", [-5, 2**64 + 7])  # before 1970, and after 2554: some file systems have both
def test_any_time_of_change(mtime: int, tmp_path: Path) -> None:
    rows = Rows(tmp_path / "rows", names(3))
    rows.put(1, "a.jpg", (5, mtime), b"marks")
    assert rows.takes_more and rows.find(1, "a.jpg", (5, mtime)) == b"marks"
    assert rows.find(1, "a.jpg", (5, mtime + 1)) is None


def test_a_broken_entry_costs_neither_an_error_nor_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, lengths = os.pread, []

    def pread(file: int, length: int, place: int) -> bytes:
        lengths.append(length)
        return reads(file, length, place)

    Rows(tmp_path / "rows", names(1)).put(0, "a.jpg", (5, 6), b"marks")
    good = (tmp_path / "rows").read_bytes()
    monkeypatch.setattr("shmloader.images.rows.os.pread", pread)
    for bit in range(8 * 36):
        broken = bytearray(good)
        broken[40 + bit // 8] ^= 1 << bit % 8
        (tmp_path / "rows").write_bytes(broken)
        assert Rows(tmp_path / "rows", names(1)).find(0, "a.jpg", (5, 6)) is None
    assert max(lengths) < 1 << 17


def test_a_full_disk(paths: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = tv.DatasetFolder(paths, TRANSFORM)
    fused = images.fuse(dataset, rows=tmp_path / "rows")

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shmloader.images.rows.os.write", full)
    with pytest.warns(UserWarning, match="It takes no more rows") as warned:
        assert_same(epoch(fused), epoch(dataset))
    assert len(warned) == 1
    (tmp_path / "rows").unlink()  # and gone
    for name in ("torchvision", "torchvision.transforms", "torchvision.transforms.transforms"):
        monkeypatch.setitem(sys.modules, name, tv)  # where pickle looks for the classes of the transforms
    assert_same(epoch(pickle.loads(pickle.dumps(fused._reader)) and fused), epoch(dataset))


def test_a_file_that_may_only_be_read(
    paths: list[str], tmp_path: Path, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a read-only disk: marks in the file are used, and no others are made."""
    opens = os.open

    def read_only(path: Any, flags: int, *more: Any) -> int:
        if os.fspath(path) == str(tmp_path / "rows") and flags & os.O_RDWR:
            raise OSError(errno.EROFS, "Read-only file system")
        return opens(path, flags, *more)

    dataset = tv.DatasetFolder(paths, TRANSFORM)
    half = images.fuse(dataset, rows=tmp_path / "rows")
    for k in range(3):
        half[k]
    monkeypatch.setattr("shmloader.images.rows.os.open", read_only)
    fused = images.fuse(dataset, rows=tmp_path / "rows")
    kept.since()
    with pytest.warns(UserWarning, match="cannot be written \\(it is read-only") as warned:
        assert_same(epoch(fused), epoch(dataset))
    assert len(warned) == 1 and kept.since() == (3, 1)
    assert_same(epoch(fused, 2), epoch(dataset, 2))
    assert kept.since() == (3, 0)


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_several_workers(method: str, paths: list[str], tmp_path: Path, kept: Kept) -> None:
    for k, path in enumerate(paths):
        (tmp_path / "classes" / str(k % 2)).mkdir(parents=True, exist_ok=True)
        os.link(path, tmp_path / "classes" / str(k % 2) / f"{k}.jpg")
    root, recipe = tmp_path / "classes", images.training(32)
    folder = images.ImageFolder(root, recipe, rows=tmp_path / "rows")
    batches = []
    for dataset in (images.ImageFolder(root, recipe), folder, folder):
        torch.manual_seed(1)
        loader = shmloader.DataLoader(dataset, batch_size=2, num_workers=2, multiprocessing_context=method)
        batches.append([images_.clone() for images_, _ in loader])
    assert_same(batches[0], batches[1])
    assert_same(batches[0], batches[2])
    assert kept.since() == (0, 0)
    assert_same(epoch(folder), epoch(images.ImageFolder(root, recipe)))
    assert kept.since() == (6, 0)  # the workers have put them there


def test_decode_by_path_alone(paths: list[str], tmp_path: Path, kept: Kept) -> None:
    read = images.from_bytes(images.training(32))
    read(Path(paths[0]).read_bytes())
    assert kept.since() == (0, 0)
