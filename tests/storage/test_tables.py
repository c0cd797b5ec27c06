"""Rows of Parquet and Arrow files."""

from __future__ import annotations

import io
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import shmloader
from shmloader import images

arrow = pytest.importorskip("pyarrow", reason="pip install pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def photograph(k: int, size: tuple[int, int] = (60, 40)) -> bytes:
    pixels = np.random.default_rng(k).integers(0, 256, (*size[::-1], 3), np.uint8)
    Image.fromarray(pixels).resize(size).save(made := io.BytesIO(), "JPEG")
    return made.getvalue()


def table(first: int, count: int) -> Any:
    rows = range(first, first + count)
    return arrow.table(
        {
            "image": [{"bytes": photograph(k), "path": f"{k}.jpg"} for k in rows],
            "raw": [photograph(k) for k in rows],
            "label": list(rows),
            "name": [f"picture {k}" for k in rows],
        }
    )


def write(folder: Path, kind: str) -> str:
    """Two files of 20 and 10 rows, in groups of 6."""
    for k, (first, count) in enumerate(((0, 20), (20, 10))):
        path, rows = folder / f"{k}.{kind}", table(first, count)
        if kind == "parquet":
            parquet.write_table(rows, path, row_group_size=6)
            continue
        opened = arrow.ipc.new_stream if k else arrow.ipc.new_file  # `datasets` writes streams
        with opened(path, rows.schema) as writer:
            writer.write_table(rows, 6)
    return str(folder / f"*.{kind}")


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_rows(tmp_path: Path, kind: str) -> None:
    dataset = shmloader.Shards(write(tmp_path, kind))
    whole = [*table(0, 30).to_pylist()]
    assert len(dataset) == 30 and [dataset[at] for at in range(30)] == whole and dataset[-1] == whole[-1]
    assert [dataset.__place__(at) for at in (0, 5, 6, 19, 20, 26)] == [0, 0, 1, 3, 4, 5]
    some = shmloader.Shards(write(tmp_path, kind), ["label", "n=title;name"], decode={"label": str})
    assert some[7] == {"label": "7", "n": "picture 7"}
    with pytest.raises(
        KeyError, match=r"0\.\w+ has no column 'x' and no 'y'\. Its columns are image, raw, label, name\."
    ):
        shmloader.Shards(write(tmp_path, kind), ["x;y"])[0]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_batches_of_workers(tmp_path: Path, kind: str) -> None:
    dataset = shmloader.Shards(write(tmp_path, kind), ["label", "name"])

    def batches(loader: Any, **options: Any) -> list[Any]:
        torch.manual_seed(1)
        return [(batch["label"].tolist(), batch["name"]) for batch in loader(dataset, 4, shuffle=True, **options)]

    dataset[0]  # whatever the parent has open is not the child's
    assert batches(shmloader.DataLoader, num_workers=2, multiprocessing_context="fork") == batches(
        torch.utils.data.DataLoader
    )


def test_row_groups_are_kept_within_bounds(tmp_path: Path) -> None:
    urls = write(tmp_path, "parquet")
    dataset = shmloader.Shards(urls, ["label"])
    for at in random.Random(0).sample(range(30), 30):
        assert dataset[at]["label"] == at
    assert dataset._source().decoded_groups == 6  # all fit
    dataset = shmloader.Shards(urls, ["label"], cache_bytes=0)
    for at in (0, 1, 2, 7, 8, 0):
        assert dataset[at]["label"] == at
    assert dataset._source().decoded_groups == 3 and len(dataset._source()._kept().tables) == 1


def test_prefetch(tmp_path: Path) -> None:
    dataset = shmloader.Shards(write(tmp_path, "parquet"), ["label"])
    dataset.__prefetch__([0, 29, 7])
    assert [dataset[at]["label"] for at in (0, 29, 7)] == [0, 29, 7]


def test_remote_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write(tmp_path, "parquet")
    memory = fsspec.filesystem("memory")
    for k in range(2):
        memory.pipe_file(f"/far/{k}.parquet", (tmp_path / f"{k}.parquet").read_bytes())
    try:
        dataset = shmloader.Shards("memory://far/*.parquet", ["label"])
        order = random.Random(2).sample(range(30), 30)
        dataset.__prefetch__(order)
        assert [dataset[at]["label"] for at in order] == order
        assert dataset._source().decoded_groups == 6 and dataset._ahead().bytes == 0
        memory.pipe_file("/far/0.parquet", (tmp_path / "1.parquet").read_bytes())
        with pytest.raises(RuntimeError, match=r"0\.parquet has changed"):
            shmloader.Shards("memory://far/*.parquet", ["label"])[0]
        del dataset
    finally:
        memory.rm("/far", recursive=True)


def test_what_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "0.parquet"
    path.write_bytes(b"PAR1 and nothing more")
    with pytest.raises(ValueError, match=r"0\.parquet is no Parquet file, or is damaged: .*Copy or write it again"):
        len(shmloader.Shards(path))
    urls = write(tmp_path, "parquet")
    dataset = shmloader.Shards(urls)
    assert len(dataset) == 30
    os.unlink(tmp_path / "1.parquet")
    with pytest.raises(FileNotFoundError, match=r"1\.parquet is gone"):
        dataset[25]
    with pytest.raises(ValueError, match=r"0\.arrow is a remote Arrow file\. Arrow files are mapped"):
        len(shmloader.Shards("memory://none/0.arrow") if _made_in_memory() else [])


def _made_in_memory() -> bool:
    import fsspec

    fsspec.filesystem("memory").pipe_file("/none/0.arrow", b"ARROW1")
    return True


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("image", ["image", "raw"])
def test_pictures_are_fused(tmp_path: Path, kind: str, image: str) -> None:
    dataset = shmloader.Shards(write(tmp_path, kind))
    fused = images.fuse(dataset, images.evaluation(16, resize=20), image=image)
    loader = shmloader.DataLoader(fused, 8, num_workers=1, multiprocessing_context="fork")
    pictures = torch.cat([batch[0] for batch in loader])
    expected = torch.stack([images.from_bytes(images.evaluation(16, resize=20))(photograph(k)) for k in range(30)])
    assert torch.equal(pictures, expected)
    assert [fused[at][1] for at in range(30)] == list(range(30))
    only_images = images.fuse(dataset, images.evaluation(16), image=image, label=None)
    assert only_images[3].shape == (3, 16, 16) and fused.__place__(7) == 1
    fused.__prefetch__([1, 2])
