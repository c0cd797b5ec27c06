"""Workers and jobs share kept pictures; if one is killed, no other waits for it."""

from __future__ import annotations

import gc
import os
import pickle
import random
import signal
import time
from typing import Any

import pytest
import torch
from scripts import run_script
from torch.utils.data import ConcatDataset, Subset

import shmloader
from shmloader import images
from shmloader.core.cache_table import Claim
from shmloader.images import cache as cache_module
from shmloader.images.cache import Cache
from tests.images import kept_pictures
from tests.images import torchvision_stand_ins as tv
from tests.images.kept_pictures import (
    ALL_CACHED,
    PICTURES,
    SIZE,
    check,
    counted,
    folder,
    memories,
    same,
    samples,
    warned,
)

# Fixtures; each test has memory of its own, which no job of this user finds.
own_memory, root = kept_pictures.own_memory, kept_pictures.root


# ------------------------------------------------------------------------------------------ what else reads the dataset


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_share_it(root: str, method: str) -> None:
    options: dict[str, Any] = {"batch_size": 4, "num_workers": 2, "shuffle": True, "multiprocessing_context": method}
    dataset = shmloader.freeze(folder(root, cache="8 MB"))

    def epochs(data: Any) -> list[Any]:
        torch.manual_seed(3)
        loader = shmloader.DataLoader(data, **options)
        found = [[part.clone() for part in batch] for _ in range(2) for batch in loader]
        epochs.report = str(loader.report())  # type: ignore[attr-defined]
        return found

    for one, other in zip(epochs(dataset), epochs(folder(root)), strict=True):
        assert same(one, other)
    figures = dataset._following.cache._memory.table.figures(dataset._following.cache._line)
    assert (figures.kept, figures.found, figures.missed) == (PICTURES, PICTURES, 0)
    assert counted(lambda: samples(dataset)) == ALL_CACHED
    if method == "fork":
        epochs(ConcatDataset([Subset(dataset, range(8)), dataset]))
        assert "of the pictures came from the cache" in epochs.report  # type: ignore[attr-defined]
        assert epochs.report.count("cache:") == 1  # type: ignore[attr-defined]


def test_jobs_that_were_started_apart_share_it(root: str, own_memory: str) -> None:
    dataset = folder(root, cache="8 MB")
    samples(dataset)
    inode = dataset._following.cache._memory.place[2]
    script = f"""
        import torch
        from shmloader import images
        from shmloader.images import cache
        cache.NAME = {own_memory!r}
        dataset = images.ImageFolder({root!r}, images.training(40), cache="8 MB")
        [dataset[k] for k in range(len(dataset))]
        print(images.counts()["cached"], dataset._following.cache._memory.place[2])
        """
    ran = run_script(script)
    assert ran.out.split() == [str(PICTURES), str(inode)], ran
    del dataset
    gc.collect()
    assert not memories(own_memory)  # it is gone with the last that had it


def test_datasets_whose_pictures_have_no_paths_are_refused() -> None:
    for module, name in (("datasets.arrow_dataset", "Dataset"), ("timm.data.dataset", "ImageDataset")):
        made = type(name, (), {"__module__": module})()
        with pytest.raises(TypeError, match=r"cache= needs the path of each picture.*Leave cache out"):
            images.fuse(made, cache="8 MB")
    sharded = type("Own", (shmloader.Shards,), {"__init__": lambda self: None})()
    for options in ({"cache": "8 MB"}, {"rows": "file"}):
        with pytest.raises(TypeError, match=f"{next(iter(options))}= needs the path of each picture"):
            images.fuse(sharded, **options)


def test_what_cannot_be_fused_has_no_cache_and_no_rows(root: str) -> None:
    dataset, found = tv.DatasetFolder([path for path, _ in folder(root).samples], lambda image: image), []
    for option in ("cache", "rows"):
        (text,) = warned(lambda option=option: found.append(images.fuse(dataset, **{option: "8 MB"})))
        assert f"{option}='8 MB' has no effect" in text and not found[-1].is_fused


def test_a_folder_has_no_columns(root: str) -> None:
    for name in ("image", "label"):
        with pytest.raises(TypeError, match=f"got {name}='other', but ImageFolder has no columns"):
            images.fuse(folder(root), **{name: "other"})


def test_a_copy_finds_the_same(root: str) -> None:
    dataset = folder(root, cache="8 MB")
    samples(dataset)
    copy = pickle.loads(pickle.dumps(dataset))
    assert counted(lambda: samples(copy)) == ALL_CACHED
    del dataset
    gc.collect()
    assert counted(lambda: samples(copy)) == ALL_CACHED


# --------------------------------------------------------------------------------------------------------------- deaths


STEPS = ("claimed", "reserved", "half written", "written", "published")


def die_at(step: str, cache: Cache) -> None:
    """Kill this process when it keeps a picture."""
    memory: Any = cache._memory

    def die(*_: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    write = memory.write
    if step == "claimed":

        class Dying(Claim):
            def take(self, *arguments: Any) -> bool:
                return bool(super().take(*arguments) and die())

        cache_module.Claim = Dying  # type: ignore[misc]
    elif step == "reserved":
        memory.write = die
    elif step == "half written":
        memory.write = lambda key, at, planes: die(write(key, at, planes[: len(planes) // 2]))
    elif step == "written":
        memory.write = lambda key, at, planes: die(write(key, at, planes))
    else:
        memory.why_full = die


@pytest.mark.parametrize("step", STEPS)
def test_a_death_at_each_step(root: str, step: str) -> None:
    dataset = folder(root, cache="8 MB")
    plain, cache = samples(folder(root)), dataset._following.cache
    child = os.fork()
    if child == 0:
        try:
            die_at(step, cache)
            dataset[3]
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    figures = cache._memory.table.figures(cache._line)
    assert figures.kept == (step == "published")
    found = counted(lambda: check(same(samples(dataset), plain)))
    assert found["cached"] == (step == "published")
    assert counted(lambda: check(same(samples(dataset), plain))) == ALL_CACHED


@pytest.mark.parametrize("claimant", ["living", "dead, with this pid"])
def test_whose_claim_is_taken_over(root: str, claimant: str) -> None:
    dataset = folder(root, cache="8 MB")
    cache, path = dataset._following.cache, dataset.samples[0][0]
    status = os.stat(path)
    key = cache_module._key(path, (status.st_size, status.st_mtime_ns))
    pid, start = cache_module._this_process()
    claim = Claim(cache._memory.table, pid, start if claimant == "living" else start - 1)
    assert claim.take(key, lambda *_: False)
    plain = samples(folder(root))
    for _ in range(2):
        assert same(samples(dataset), plain)
    assert (cache._memory.table.find(key) >= 0) == (claimant != "living")  # nobody waits for the living one
    at = cache._memory.table.reserve(1000)
    assert bool(claim.publish(at)) == (claimant == "living")  # whose claim is gone publishes nothing


def test_an_exception_leaves_no_claim(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = folder(root, cache="8 MB")
    memory = dataset._following.cache._memory

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(memory, "write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            dataset[0]
    samples(dataset)
    assert counted(lambda: samples(dataset)) == ALL_CACHED


@pytest.mark.parametrize("kills", [6, pytest.param(300, marks=pytest.mark.long)])
def test_killed_at_random_in_the_first_epoch(root: str, kills: int) -> None:
    """After each change of a file's time the picture is a new one, so processes keep pictures all the time."""
    dataset, draw = folder(root, cache="32 MB"), random.Random(7)
    paths = [path for path, _ in dataset.samples]
    for _ in range(kills // 2):
        children = []
        for _ in range(2):
            child = os.fork()
            if child == 0:
                try:
                    mine = random.Random()
                    while True:
                        os.utime(paths[k := mine.randrange(len(paths))], ns=(mine.randrange(50), mine.randrange(50)))
                        dataset[k]
                finally:
                    os._exit(1)
            children.append(child)
        time.sleep(draw.random() * 0.03)
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    for changed in range(0, 50, 1 if kills > 100 else 10):
        for path in paths:
            os.utime(path, ns=(changed, changed))
        assert same(samples(dataset), samples(folder(root)))  # nothing that is torn
        if dataset._following.cache._memory.table.takes(PICTURES * SIZE * 2):  # otherwise the rest need not fit
            assert counted(lambda: samples(dataset)) == ALL_CACHED  # and no claim is left
