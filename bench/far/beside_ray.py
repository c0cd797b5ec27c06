"""The same pictures by far workers and by Ray Data, on the same cluster.  It runs in a process of its own, see
core/child.py.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import torch

from bench.core import session
from bench.core._probe import touch_pages
from bench.core.cases import ENDLESS
from bench.core.loaders import PREFETCH, SPARE
from bench.far.cluster import Memory, start
from bench.far.pictures import Pictures

OURS, SMALL_RING = "shmloader", "shmloader, smallest ring"
RAY_DATA, SMALL_BLOCKS = "Ray Data", "Ray Data, blocks of a batch"
LOADERS = (OURS, SMALL_RING, RAY_DATA, SMALL_BLOCKS)
ROWS = 400_000  # of a dataset of Ray Data's: no measurement comes to their end
WARM_UP = 5.0  # seconds after the first batch, until all are at work
CHECKED = 2  # rows of a batch that are compared with the dataset's


def beside_ray(
    loader: str, folder: str, seconds: float, workers: int, batch_size: int, step: float, store: int
) -> dict[str, Any]:
    """Take batches as quickly as they come, then some in a loop that is slower than the loader, and watch the memory.

    Args:
        loader: One of LOADERS.
        folder: Of JPEG files.
        seconds: Of each of the two measurements.
        workers: Nodes of the cluster, of one CPU each, all of which make pictures.
        step: Seconds that the slow loop sleeps after each batch.
        store: Bytes of each node's object store.

    Returns:
        ray: its version; first: seconds to the first batch, on a cluster that is up;
        cpu: seconds of processor time an image in the quick loop, of all processes of the cluster, Ray's too;
        images_per_second; next_p50, next_p99: seconds that next() took in the quick loop;
        slow_images_per_second, slow_next_p99: the same of the slow loop;
        store, whole: the most bytes in the object stores, and by how many bytes all memory grew, in the quick loop;
        slow_store, slow_whole: the same in the slow loop;
        spilled: bytes that Ray wrote to disk; ring: bytes of our ring.
    """
    import ray

    start(workers, store)
    pictures = Pictures(folder, ENDLESS if loader in (OURS, SMALL_RING) else ROWS)
    with Memory() as memory:
        began = time.perf_counter()
        with OPEN[loader](pictures, workers, batch_size) as (batches, ring):
            _check(pictures, *next(batches))
            first = time.perf_counter() - began
            _take(batches, WARM_UP, 0)
            memory.begin()
            quick = {**_take(batches, seconds, 0), "store": memory.store, "whole": memory.whole}
            memory.begin()
            slow = {**_take(batches, seconds, step), "store": memory.store, "whole": memory.whole}
            _check(pictures, *next(batches))
            slow = {f"slow_{name}": value for name, value in slow.items()}
            return {"ray": ray.__version__, "first": first, "ring": ring(), "spilled": memory.spilled, **quick, **slow}


Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]  # numbers of samples, and their pictures


@contextmanager
def _ours(
    pictures: Pictures, workers: int, batch_size: int, prefetch_factor: int = PREFETCH, spare_slots: int = SPARE
) -> Iterator[tuple[Batches, Callable[[], int]]]:
    import shmloader
    import shmloader.ray

    with (
        shmloader.ray.Workers(workers) as far,
        shmloader.DataLoader(
            pictures, batch_size, far_workers=far, prefetch_factor=prefetch_factor, spare_slots=spare_slots
        ) as loader,
    ):
        batches = iter(loader)
        numbered = ((torch.arange(at * batch_size, (at + 1) * batch_size), batch) for at, batch in enumerate(batches))
        yield numbered, lambda: loader.stats().ring_bytes or 0


@contextmanager
def _small_ring(pictures: Pictures, workers: int, batch_size: int) -> Iterator[tuple[Batches, Callable[[], int]]]:
    """A slot for each far worker, and one for the batch in the loop."""
    with _ours(pictures, workers, batch_size, prefetch_factor=1, spare_slots=1) as opened:
        yield opened


@contextmanager
def _ray_data(
    pictures: Pictures, workers: int, batch_size: int, block: int | None = None
) -> Iterator[tuple[Batches, Callable[[], int]]]:
    import ray

    def made(rows: dict[str, Any]) -> dict[str, Any]:
        return {"id": rows["id"], "picture": [pictures.pixels(int(number)) for number in rows["id"]]}

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    if block is not None:
        context.target_max_block_size = block
    dataset = ray.data.range(len(pictures)).map_batches(made, batch_size=batch_size)
    with closing(iter(dataset.iter_torch_batches(batch_size=batch_size))) as batches:
        yield ((batch["id"], batch["picture"]) for batch in batches), lambda: 0


@contextmanager
def _small_blocks(pictures: Pictures, workers: int, batch_size: int) -> Iterator[tuple[Batches, Callable[[], int]]]:
    with _ray_data(pictures, workers, batch_size, batch_size * pictures[0].nbytes) as opened:
        yield opened


OPEN = {OURS: _ours, SMALL_RING: _small_ring, RAY_DATA: _ray_data, SMALL_BLOCKS: _small_blocks}


def _take(batches: Batches, seconds: float, step: float) -> dict[str, float]:
    """Take batches for so long, look at every page of each, and sleep after each."""
    waits: list[float] = []
    used, _ = session.used(os.getsid(0))
    images, now = 0, time.perf_counter()
    began, end = now, now + seconds
    while now < end:
        _, picture = next(batches)
        waits.append(time.perf_counter() - now)
        touch_pages(picture.data_ptr(), picture.nbytes)
        images += len(picture)
        if step:
            time.sleep(step)
        now = time.perf_counter()
    cpu = session.used(os.getsid(0))[0] - used
    waits.sort()
    return {
        "cpu": cpu / images,
        "images_per_second": images / (now - began),
        "next_p50": waits[len(waits) // 2],
        "next_p99": waits[len(waits) * 99 // 100],
    }


def _check(pictures: Pictures, numbers: torch.Tensor, batch: torch.Tensor) -> None:
    """Some rows of a batch are the dataset's, to the bit."""
    for row in range(0, len(numbers), max(1, len(numbers) // CHECKED)):
        if not torch.equal(batch[row], pictures[int(numbers[row])]):
            raise AssertionError("a batch has another picture than the dataset")
