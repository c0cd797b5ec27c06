"""What is timed: samples and batches from files, from shards and by WebDataset; an index; reads from afar.

These run in a process of their own, see core/child.py.
"""

from __future__ import annotations

import os
import random
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.core.loaders import LOADERS, OURS, Job
from bench.storage.archives import pack_small
from bench.storage.server import serving
from bench.storage.timing import cpu_seconds
from shmloader import Shards, images

__all__ = ["FILES", "SHARDS", "WEBDATASET", "far", "index", "load", "samples"]

FILES, SHARDS, WEBDATASET = "files", "shards", "webdataset"
SEED = 5
SLICE = 16  # samples that one way makes before it is the other's turn
WARM_UP = 2  # batches a worker that a loader makes before it is timed
LEAST = 8  # batches that are timed
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
OPENED = 20  # times that an index is opened


def samples(folder: str, ways: list[str], seconds: float) -> dict[str, float]:
    """Microseconds of processor time a sample, of each way by turns, in one thread on one core, at random."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    makers = {way: _maker(way, folder) for way in ways}
    took, made = dict.fromkeys(ways, 0.0), 0
    for make in makers.values():
        make()  # to warm up
    while made == 0 or min(took.values()) < seconds:
        for way, make in makers.items():
            torch.manual_seed(SEED + made)
            before = time.process_time()
            make()
            took[way] += time.process_time() - before
        made += SLICE
    return {way: 1e6 * spent / made for way, spent in took.items()}


def _maker(way: str, folder: str) -> Callable[[], None]:
    """What makes SLICE samples: of our datasets at random, of WebDataset in its order."""
    if way == WEBDATASET:
        stream = iter(_webdataset(folder))

        def take() -> None:
            for _ in range(SLICE):
                next(stream)

        return take
    dataset = _dataset(way, folder)
    order = cycle(random.Random(SEED).sample(range(len(dataset)), len(dataset)))

    def make() -> None:
        for _ in range(SLICE):
            dataset[next(order)]

    return make


def _dataset(way: str, folder: str) -> Any:
    recipe = images.training(224, mean=MEAN, std=STD)
    if way == FILES:
        return images.ImageFolder(f"{folder}/files", recipe)
    return images.fuse(Shards(f"{folder}/*.tar", progress=False), recipe)


def _webdataset(folder: str) -> Any:
    webdataset: Any = import_module("webdataset")
    urls = sorted(map(str, Path(folder).glob("*.tar")))
    stream = webdataset.WebDataset(urls, shardshuffle=len(urls), seed=SEED, empty_check=False).repeat()
    return stream.shuffle(256).decode("pil").to_tuple("jpg", "cls").map_tuple(_by_pil(), int)


def _by_pil() -> Callable[[Any], torch.Tensor]:
    """torchvision's transforms; where it is not installed, what they do by Pillow and torch."""
    try:
        transforms = import_module("torchvision.transforms")
    except ImportError:
        return _stand_in
    steps = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    composed: Callable[[Any], torch.Tensor] = transforms.Compose([*steps, transforms.Normalize(MEAN, STD)])
    return composed


def _stand_in(picture: Any) -> torch.Tensor:
    area = picture.width * picture.height * random.uniform(0.08, 1.0)
    ratio = random.uniform(3 / 4, 4 / 3)
    width = min(picture.width, round((area * ratio) ** 0.5))
    height = min(picture.height, round((area / ratio) ** 0.5))
    left, top = random.randint(0, picture.width - width), random.randint(0, picture.height - height)
    crop = picture.crop((left, top, left + width, top + height)).resize((224, 224), 2)
    pixels = torch.from_numpy(np.array(crop)).permute(2, 0, 1).contiguous().to(torch.float32).div(255)
    pixels = pixels.flip(-1) if random.random() < 0.5 else pixels
    return pixels.sub_(torch.tensor(MEAN).view(3, 1, 1)).div_(torch.tensor(STD).view(3, 1, 1))


def load(folder: str, way: str, seconds: float, workers: int, batch_size: int) -> dict[str, float]:
    """Images by a loader with workers: ours, or torch's of WebDataset.

    Returns:
        images_per_second; cpu: microseconds of processor time of trainer and workers an image.
    """
    batches = _batches(folder, way, workers, batch_size)
    for _ in range(WARM_UP * workers):
        next(batches)
    begin, cpu, count = time.perf_counter(), cpu_seconds(), 0
    while (spent := time.perf_counter() - begin) < seconds or count < LEAST:
        next(batches)
        count += 1
    images_made = count * batch_size
    return {"images_per_second": images_made / spent, "cpu": 1e6 * (cpu_seconds() - cpu) / images_made}


def _batches(folder: str, way: str, workers: int, batch_size: int) -> Iterator[Any]:
    if way == WEBDATASET:
        loader: Any = torch.utils.data.DataLoader(_webdataset(folder), batch_size, num_workers=workers)
        return iter(loader)
    dataset: Any = _Shuffled(_dataset(way, folder))
    return iter(LOADERS[OURS].open(Job(dataset, batch_size, None, workers, "fork", batch_size * 3 * 224 * 224 * 4)))


class _Shuffled(torch.utils.data.Dataset[Any]):
    """A dataset's samples in random order, repeated without an end.  The loader itself then takes them in order."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._order = np.random.default_rng(SEED).permutation(len(dataset)).tolist()

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> Any:
        return self._dataset[self._order[index % len(self._order)]]

    def __getitem_into__(self, index: int, row: Any) -> Any:
        return self._dataset.__getitem_into__(self._order[index % len(self._order)], row)


def index(members: int, size: int) -> dict[str, float]:
    """Make and open the index of one archive, whose headers are in the cache.

    Returns:
        made: members a second of processor time, and by tarfile; wall: members a second; open: milliseconds, the
        median; bytes: of the index a member; rss: bytes more that a process has once it has opened it.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.tar"
        pack_small(path, members, size)
        shards = Shards(path, progress=False)
        len(shards)  # now it is in the cache
        wall, cpu = time.perf_counter(), time.process_time()
        shards.make_index()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        before, opened = _rss(), []
        all_opened = []  # they stay alive until the memory is measured
        for _ in range(OPENED):
            begin = time.perf_counter()
            again = Shards(path)
            len(again)
            opened.append(time.perf_counter() - begin)
            all_opened.append(again)
        rss = (_rss() - before) / OPENED
        begin = time.process_time()
        with tarfile.open(path) as archive:
            listed = sum(1 for _, _ in zip(range(20_000), archive, strict=False))
        by_tarfile = listed / (time.process_time() - begin)
        return {
            "made": members / cpu,
            "wall": members / wall,
            "tarfile": by_tarfile,
            "open": 1e3 * sorted(opened)[OPENED // 2],
            "bytes": os.stat(shards.index_path).st_size / members,
            "rss": rss,
        }


def _rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def far(folder: str, depth: int, seconds: float, latency: float, megabytes: float) -> dict[str, float]:
    """Samples a second of one process, from a server on the loopback that is as slow as an object store.

    Args:
        folder: Of the archives.
        depth: Samples that are announced before they are needed; 0: none.
        latency: Seconds that each request waits.
        megabytes: That the server sends a second, in all.

    Returns:
        samples and bytes a second; cpu: microseconds of this process a request, which are mostly fsspec's.
    """
    with serving(folder, latency, 1e6 * megabytes) as url, tempfile.TemporaryDirectory() as cache:
        names = sorted(path.name for path in Path(folder).glob("*.tar"))
        shards = Shards([f"{url}{name}" for name in names], index=f"{cache}/far.index", progress=False)
        order = cycle(random.Random(SEED).sample(range(len(shards)), len(shards)))
        announced: list[int] = []
        size = count = 0
        for sample in range(len(names)):
            shards[sample * len(shards) // len(names)]  # each shard is looked at once
        begin, cpu = time.perf_counter(), time.process_time()
        while (spent := time.perf_counter() - begin) < seconds or count < LEAST:
            while len(announced) < max(1, depth):
                announced.append(next(order))
                if depth:
                    shards.__prefetch__(announced[-1:])
            columns = shards[announced.pop(0)]
            size += sum(len(value) for value in columns.values() if isinstance(value, bytes))
            count += 1
        cpu = time.process_time() - cpu
        return {"samples": count / spent, "bytes": size / spent, "cpu": 1e6 * cpu / count}
