"""images.fuse of timm's ImageDataset: the same samples, a broken picture skipped, and a transform that is set later."""

from __future__ import annotations

import os
import pickle
import random
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from shmloader import images
from shmloader.images import early_files
from shmloader.storage.remote import OfThisProcess
from shmloader.worker.look_ahead import Announced

timm = pytest.importorskip("timm.data")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for k in range(8):
        coarse = Image.fromarray(np.random.default_rng(k).integers(0, 256, (5, 5, 3), dtype=np.uint8))
        (tmp_path / "ab"[k % 2]).mkdir(exist_ok=True)
        coarse.resize((60 + k, 50)).save(tmp_path / "ab"[k % 2] / f"{k}.jpg")
    broken = tmp_path / "a" / "4.jpg"
    broken.write_bytes(broken.read_bytes()[:300])
    return tmp_path


def outcome(dataset: Any) -> Any:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    samples = [dataset[k] for k in range(len(dataset))]
    return samples, torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()


def assert_same(one: Any, other: Any) -> None:
    assert one[1:] == other[1:]
    for its, mine in zip(one[0], other[0], strict=True):
        assert its[1] == mine[1] and type(its[0]) is type(mine[0]) and np.array_equal(its[0], mine[0])


def test_the_same_samples(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    dataset = timm.create_dataset("", str(folder))
    dataset.transform = timm.create_transform(32, is_training=True, auto_augment="rand-m7-mstd0.5", re_prob=0.5)
    fused = images.fuse(dataset)
    assert fused.is_fused and "called" not in fused.explain() and fused.filename(0) == dataset.filename(0)
    expected = outcome(dataset)
    caplog.clear()
    assert_same(expected, outcome(fused))
    assert [record.message[:25] for record in caplog.records] == ["Skipped sample (index 2). "[:25]]
    text = fused.explain(measure=True)
    assert f"over {len(fused) - 1} samples" in text and "  read the file: " in text and "Truncated File Read" in text
    fused.transform = timm.create_transform(40)
    assert dataset.transform is fused.transform and fused[0][0].shape == (3, 40, 40)
    assert_same(outcome(dataset), outcome(pickle.loads(pickle.dumps(fused))))
    fused.transform = None
    assert_same(outcome(dataset), outcome(fused))


def test_what_is_not_fused(folder: Path) -> None:
    for options, why in (({"load_bytes": True}, "bytes"), ({"input_img_mode": "L"}, "the mode L")):
        fused = images.fuse(timm.ImageDataset(str(folder), **options))
        assert not fused.is_fused and why in fused.explain()


def test_files_are_read_early(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the kernel; or by threads where no file system is local, and then the errors are the same, too."""
    dataset = timm.create_dataset("", str(folder))
    dataset.transform = timm.create_transform(32, is_training=True)
    fused, asked = images.fuse(dataset), []
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fadvise", lambda file, *_: asked.append(os.readlink(f"/proc/self/fd/{file}")))
        fused.__prefetch__([3, 1, 99])
    assert asked == [os.path.realpath(dataset.reader.samples[at][0]) for at in (3, 1)]
    expected, batch = outcome(dataset), Announced(1)
    monkeypatch.setattr(early_files, "is_local", lambda device: False)
    monkeypatch.setattr(early_files, "_readers", OfThisProcess(early_files._Readers))
    monkeypatch.setattr(early_files, "announced_batch", lambda: weakref.ref(batch))
    fused = images.fuse(dataset)
    fused.__prefetch__(list(range(len(fused))))
    assert len(early_files._readers()._files) == len(fused)
    assert_same(expected, outcome(fused))
    assert not early_files._readers()._files
