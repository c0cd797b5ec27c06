"""Samples of tars of every kind: the same as WebDataset's, whether the archive is listed in C or by tarfile."""

from __future__ import annotations

import contextlib
import io
import os
import random
import tarfile
import warnings
from pathlib import Path
from typing import Any

import pytest
from storage_tars import samples_of, write

import shmloader
from shmloader.core.tar_members import TarMembers
from shmloader.storage import tar_listing
from shmloader.storage.listing import Source

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
LONG = "a-folder-with-a-long-name/" * 12


def ours(path: str) -> list[dict[str, Any]]:
    shards = shmloader.Shards(path)
    return [shards[at] for at in range(len(shards))]


@pytest.fixture
def by_tarfile(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The archives that tarfile listed."""
    listed: list[str] = []
    inner = tar_listing._by_tarfile

    def noted(shard: Any) -> Any:
        listed.append(shard.name)
        return inner(shard)

    monkeypatch.setattr(tar_listing, "_by_tarfile", noted)
    return listed


PLAIN: dict[str, list[tuple[str, bytes]]] = {
    "two members a sample": [("0.jpg", b"x" * 700), ("0.cls", b"1"), ("1.jpg", b"y" * 512), ("1.cls", b"2")],
    "dots in folders": [("a.b/c.jpg", b"1"), ("a.b/c.cls", b"2"), ("a.b/c", b"no extension"), ("d.e/f.g.h", b"3")],
    "the first dot": [("0.seg.png", b"1"), ("0.png", b"2"), ("0.", b"3"), ("1.tar.gz", b"4")],
    "hidden": [
        (".hidden.jpg", b"1"),
        ("d/.hidden", b"2"),
        ("d/.other.jpg", b"3"),
        ("d.e/.x", b"4"),
        ("d.e/f/.x", b"5"),
    ],
    "WebDataset's own": [
        ("__meta__", b"1"),
        ("__a__/0.jpg", b"2"),
        ("__a/0.jpg", b"3"),
        ("___.x", b"4"),
        ("____/a.b", b"5"),
    ],
    "empty members": [("0.jpg", b""), ("0.cls", b"1"), ("1.jpg", b"2"), ("1.cls", b""), ("2.jpg", b"")],
    "capitals": [("A.JPG", b"1"), ("A.Cls", b"2"), ("a.ÄÖ", b"3")],
    "unicode": [("bär/ö.jpg", b"1"), ("bär/ö.cls", b"2"), ("日本.jpg", b"3"), ("\udcff.jpg", b"not utf-8")],
    "a key twice, apart": [("0.jpg", b"1"), ("1.jpg", b"2"), ("0.jpg", b"3")],
    "spaces and lines": [("a b.jpg", b"1"), ("a\nb.jpg", b"2"), ("a\nb/c.d", b"3"), ("x\n.y\n", b"4")],
    "slashes": [("/abs/0.jpg", b"1"), ("./0.jpg", b"2"), ("a//.x", b"3"), ("../0.cls", b"4")],
    "folders": [("d/", b""), ("d/0.jpg", b"1"), ("d.jpg/", b""), ("d/0.cls", b"2")],
    "no samples": [("README", b"no dot"), ("d/", b"")],
}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("what", PLAIN)
def test_plain_archives(tmp_path: Path, what: str, format: str, by_tarfile: list[str]) -> None:
    path = write(tmp_path / "0.tar", PLAIN[what], FORMATS[format])
    assert ours(path) == samples_of(path)
    if what not in ("unicode", "spaces and lines"):  # of these pax writes records that are left to tarfile
        assert not by_tarfile


@pytest.mark.parametrize("format", ["gnu", "pax"])
def test_long_names_and_links(tmp_path: Path, format: str, by_tarfile: list[str]) -> None:
    path = tmp_path / "0.tar"
    with tarfile.open(path, "w", format=FORMATS[format]) as archive:
        for k in range(3):
            for extension in ("jpg", "cls"):
                member = tarfile.TarInfo(f"{LONG}{k}.{extension}")
                member.size, member.mtime = 3 * k, 1.5 + k  # what is no whole number has a record in pax
                archive.addfile(member, io.BytesIO(b"abc" * k))
            link = tarfile.TarInfo(f"{k}.link.jpg")
            link.type, link.linkname = (tarfile.SYMTYPE, tarfile.LNKTYPE)[k % 2], f"{LONG}{k}.jpg"
            archive.addfile(link)
    assert ours(str(path)) == samples_of(path) and len(samples_of(path)) == 3
    assert not by_tarfile


def test_no_bytes_are_asked_for_behind_the_end(tmp_path: Path) -> None:
    """Stores answer such a request by an error.  The archive ends with its last member, without blocks of zeros."""
    write(tmp_path / "a.tar", [("0.jpg", b"x" * 700_000), ("1.jpg", b"y" * 700_160)])
    content = (tmp_path / "a.tar").read_bytes()[: 2 * 512 + 700_416 + 700_416]

    def read(at: int, size: int) -> bytes:
        assert at < len(content), "a range without bytes"
        return content[at : at + size]

    for length in (4096, 1 << 20):
        source = Source("a.tar", len(content), read, lambda: io.BytesIO(content), length, length)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert tar_listing.list_tar(source) is not None


def test_ustar_prefix(tmp_path: Path) -> None:
    path = write(tmp_path / "0.tar", [(f"{'folder/' * 20}{k}.jpg", b"x") for k in range(3)])
    assert ours(path) == samples_of(path) and "folder/folder" in ours(path)[0]["__key__"]


def test_global_pax_header_and_unknown_kinds(tmp_path: Path, by_tarfile: list[str]) -> None:
    path = tmp_path / "0.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "of git archive"}) as archive:
        for name, kind in (("0.jpg", b"0"), ("0.odd", b"V"), ("0.cont", b"7"), ("0.fifo", b"6"), ("0.cls", b"0")):
            member = tarfile.TarInfo(name)
            member.type, member.size = kind, 5 if kind in b"07V" else 0
            archive.addfile(member, io.BytesIO(b"12345"))
    assert (
        ours(str(path))
        == samples_of(path)
        == [{"__key__": "0", "__url__": str(path), "jpg": b"12345", "cont": b"12345", "cls": b"12345"}]
    )
    assert by_tarfile


def sparse(path: Path, kind: str) -> None:
    """Write an archive with a member that has holes, as GNU tar does."""
    hole = path.parent / "0.bin"
    with open(hole, "wb") as file:
        file.truncate(1 << 20)
        for at in (0, 300_000, 700_000):
            file.seek(at)
            file.write(os.urandom(5000))
    (path.parent / "0.cls").write_bytes(b"7")
    format = {"gnu": "--format=gnu", "0.0": "--sparse-version=0.0", "0.1": "--sparse-version=0.1"}
    options = [format.get(kind, "--sparse-version=1.0")] + ([] if kind == "gnu" else ["--format=posix"])
    os.spawnvp(os.P_WAIT, "tar", ["tar", "-S", *options, "-C", str(path.parent), "-cf", str(path), "0.bin", "0.cls"])


@pytest.mark.parametrize("kind", ["gnu", "0.0", "0.1", "1.0"])
def test_sparse_members_are_refused(tmp_path: Path, kind: str) -> None:
    sparse(tmp_path / "s.tar", kind)
    assert (tmp_path / "s.tar").stat().st_size < 200_000  # it has holes
    with pytest.raises(ValueError, match=r"s\.tar has a sparse member, '.*0\.bin', .*without --sparse"):
        len(shmloader.Shards(tmp_path / "s.tar"))


def test_sizes_in_base_256(tmp_path: Path, by_tarfile: list[str]) -> None:
    """A member of more than 8 GB, in a file that has a hole in its place."""
    path, size = tmp_path / "0.tar", (8 << 30) + 3
    member = tarfile.TarInfo("0.bin")
    member.size = size
    after = tarfile.TarInfo("1.cls")
    after.size = 1
    with open(path, "wb") as file:
        file.write(member.tobuf(tarfile.GNU_FORMAT))
        file.seek(512 + -(-size // 512) * 512)
        file.write(after.tobuf(tarfile.GNU_FORMAT) + b"7".ljust(512, b"\0") + bytes(1024))
    shards = shmloader.Shards(path, ["cls;bin"])
    assert len(shards) == 2 and shards[1]["cls;bin"] == b"7"
    assert shards._source().index["member_size"][0] == size
    assert not by_tarfile


def test_pax_size(tmp_path: Path, by_tarfile: list[str]) -> None:
    path = tmp_path / "0.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo("0.bin")
        member.size, member.pax_headers = 700, {"size": "700"}
        archive.addfile(member, io.BytesIO(b"x" * 700))
        member = tarfile.TarInfo("0.cls")
        member.size = 1
        archive.addfile(member, io.BytesIO(b"1"))
    assert ours(str(path)) == samples_of(path)
    assert not by_tarfile


def test_an_extension_twice_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "0.tar", [("a.jpg", b"1"), ("a.cls", b"2"), ("a.JPG", b"3")])
    with pytest.raises(ValueError, match=r"0\.tar: 'a\.JPG' is in its sample twice\. .* Write the shard again"):
        len(shmloader.Shards(path))


def test_joined_archives_warn(tmp_path: Path) -> None:
    one, other = (write(tmp_path / f"{k}.tar", [(f"{k}.jpg", b"x")]) for k in range(2))
    path = tmp_path / "both.tar"
    path.write_bytes(Path(one).read_bytes() + Path(other).read_bytes())
    with pytest.warns(RuntimeWarning, match=r"both\.tar has more bytes after its end at byte 1,024.*tar --concatenate"):
        assert ours(str(path)) == samples_of(path)


def test_archives_without_an_end(tmp_path: Path) -> None:
    path = write(tmp_path / "0.tar", [("0.jpg", b"x" * 600), ("0.cls", b"1")])
    whole = Path(path).read_bytes()
    for end in (512 + 1024 + 512 + 512, 512 + 1024 + 512 + 512 + 512, len(whole)):
        Path(path).write_bytes(whole[:end])
        assert ours(path) == samples_of(path)


@pytest.mark.parametrize("odd", [False, True])
def test_cut_off_archives_are_refused(tmp_path: Path, odd: bool) -> None:
    path = tmp_path / "0.tar"
    headers: Any = {"pax_headers": {"hdrcharset": "ISO-IR 10646 2000 UTF-8"}} if odd else {}  # tarfile lists it
    format = tarfile.PAX_FORMAT if odd else tarfile.USTAR_FORMAT
    write(path, [("0.jpg", b"x" * 600), ("0.cls", b"1"), ("1.jpg", b"y" * 600)], format, **headers)
    whole = path.read_bytes()
    end = len(whole.rstrip(b"\0")) // 512 * 512 + 512
    why = r"0\.tar (is cut off|is no tar archive, or is damaged).*again, or leave it out"
    for cut in {*range(1, end, 197), end - 512, end - 1, end - 513}:
        path.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match=why):
            len(shmloader.Shards(path, progress=False))
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"0\.tar is empty"):
        len(shmloader.Shards(path))


@pytest.mark.parametrize("at", [512 + 512, 0])
def test_damage_is_refused(tmp_path: Path, at: int) -> None:
    """WebDataset ends there without a word."""
    path = write(tmp_path / "0.tar", [("0.jpg", b"x" * 5), ("0.cls", b"1"), ("1.jpg", b"2")])
    whole = bytearray(Path(path).read_bytes())
    whole[at + 130] ^= 0x55
    Path(path).write_bytes(whole)
    with pytest.raises(ValueError, match=r"0\.tar is no tar archive, or is damaged: .*leave it out"):
        len(shmloader.Shards(path))


@pytest.mark.parametrize("mode", ["gz", "bz2", "xz"])
def test_compressed_archives_are_refused(tmp_path: Path, mode: str) -> None:
    with tarfile.open(tmp_path / f"0.tar.{mode}", f"w:{mode}"):
        pass
    with pytest.raises(ValueError, match=r"is compressed, .*must not be compressed\. Unpack it"):
        shmloader.Shards(tmp_path / f"0.tar.{mode}")
    os.rename(tmp_path / f"0.tar.{mode}", tmp_path / "0.tar")
    with pytest.raises(ValueError, match=r"0\.tar is a \w+ file, .*Unpack it \((gunzip|bunzip2|unxz)\)"):
        len(shmloader.Shards(tmp_path / "0.tar"))


def drawn(draw: random.Random, path: Path) -> None:
    """An archive at random."""
    parts = ["a", "b.c", "__m__", "ä", ".h", "d" * 60, "e", "日"]
    with tarfile.open(path, "w", format=draw.choice([*FORMATS.values()])) as archive:
        for _ in range(draw.randrange(12)):
            folder = "".join(f"{draw.choice(parts)}/" for _ in range(draw.choice([0, 0, 1, 2, 4])))
            name = f"{folder}{draw.choice(parts)}.{draw.randrange(10**6)}.{draw.choice(['jpg', 'CLS', 'x.y', ''])}"
            member = tarfile.TarInfo(name if draw.random() < 0.9 else name.replace(".", ""))
            member.type = draw.choice([b"0"] * 6 + [b"2", b"5", b"1", b"7"])
            member.linkname = draw.choice(["x", LONG]) if member.type in b"12" else ""
            member.mtime = draw.choice([0, 1.5])
            member.size = draw.choice([0, 1, 511, 512, 513, 5000]) if member.type in b"07" else 0
            with contextlib.suppress(ValueError):  # ustar has no room for it
                archive.addfile(member, io.BytesIO(draw.randbytes(member.size)))


def test_drawn_archives(tmp_path: Path, by_tarfile: list[str]) -> None:
    draw, count = random.Random(5), 0
    for k in range(60):
        drawn(draw, path := tmp_path / f"{k}.tar")
        try:
            theirs = samples_of(path)
        except (AssertionError, tarfile.TarError):
            continue
        assert ours(str(path)) == theirs
        count += 1
    assert count > 40 and len(by_tarfile) < 10


def test_mutated_headers_are_listed_as_tarfile_lists_them(tmp_path: Path) -> None:
    """One byte of an archive is another one: the samples are tarfile's, or it is refused, but not other samples."""
    draw = random.Random(7)
    path = tmp_path / "0.tar"
    members = [(f"{LONG if k % 3 == 0 else ''}{k}.jpg", bytes(k * 200)) for k in range(6)]
    refused = same = 0
    for format in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        write(path, members, format, mtime=1.5)
        whole = path.read_bytes()
        for _ in range(50):
            changed = bytearray(whole)
            changed[draw.randrange(len(whole.rstrip(b"\0")))] ^= 1 << draw.randrange(8)
            path.write_bytes(changed)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    found = ours(str(path))
            except ValueError:
                refused += 1
                continue
            assert found == samples_of(path)
            same += 1
    assert refused > 20 and same > 20


def test_fed_in_parts(tmp_path: Path) -> None:
    path = write(tmp_path / "0.tar", [(f"{LONG}{k}.jpg", bytes(k * 300)) for k in range(20)], tarfile.PAX_FORMAT)
    whole = Path(path).read_bytes()
    for step in (512, 1024, 5000, 10**6):
        members = TarMembers()
        while members.feed(whole[members.at : members.at + max(step, members.needed)], members.at):
            pass
        assert members.count == 20 and members.ended
        at_once = TarMembers()
        at_once.feed(whole, 0)
        assert members.found() == at_once.found()
