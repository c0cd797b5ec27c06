"""Times copies from slots to a GPU, training, the wait for the GIL, and how much page-locking adds to next().
These run in a process of their own, see core/child.py.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

import shmloader
from bench.core.cases import CASES, ENDLESS, Case
from shmloader.device.accelerator import Accelerator
from shmloader.transforms import normalize_on_device

CASE = CASES["uint8-images"]
SHAPE, DTYPE = (CASE.batch_size, 3, 224, 224), torch.uint8
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
STEP = 0.010  # seconds that a training step is to take on the GPU, about
SIDE = 4096  # of the matrices that it multiplies
WARM_UP = 60  # batches: each slot has been page-locked by then
HANDED = CASES["small-images"]
TURNS = 20_000  # of a loop that does nothing: a millisecond, about
HANDED_BY = ("torch", "shmloader", "shmloader, not page-locked")
SOFTWARE = "software CUDA"  # in the name of the device of tests/software_cuda
WAYS = ("torch", "shmloader", "shmloader device=")  # the first two with pin_memory=True and a prefetcher


def why_not() -> str:
    """Why nothing can be measured here; empty where it can."""
    if torch.cuda.is_available():
        return ""
    built = torch.version.cuda or torch.version.hip
    return f"this torch ({torch.__version__}) was built without CUDA and ROCm" if built is None else "there is no GPU"


def ceiling(seconds: float) -> dict[str, float]:
    """Copy one page-locked batch to the GPU again and again; bytes_per_second, by the GPU's clock."""
    here = torch.ones(CASE.batch_bytes, dtype=torch.uint8).pin_memory()
    copied = torch.empty_like(here, device="cuda")
    _copy_seconds(copied, here)
    rates: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(rates) < 3:
        rates.append(CASE.batch_bytes / _copy_seconds(copied, here))
    return {"bytes_per_second": statistics.median(rates)}


def transfer(seconds: float, workers: int) -> dict[str, float]:
    """Copy batches to the GPU straight from their slots.

    Returns:
        bytes_per_second: of the copies alone, by the GPU's clock, one at a time; page_locked: the share of batches that
        lay in a slot that is; batches.
    """
    clones = 0
    clone = Accelerator.clone

    def counted(self: Accelerator, tensor: torch.Tensor) -> torch.Tensor:
        nonlocal clones
        clones += 1
        return clone(self, tensor)

    Accelerator.clone = counted  # type: ignore[method-assign]  # what is copied on the host goes through it
    batches = iter(_loader("shmloader", workers, None))
    copied = torch.empty(SHAPE, dtype=DTYPE, device="cuda")
    for _ in range(WARM_UP):
        copied.copy_(next(batches), non_blocking=True)
    clones, took, count = 0, 0.0, 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or count < 10:
        took += _copy_seconds(copied, next(batches))
        count += 1
    batches.close()
    return {
        "bytes_per_second": count * CASE.batch_bytes / took,
        "page_locked": 1 - clones / count,
        "batches": count,
    }


def handing(way: str, seconds: float, workers: int) -> dict[str, float]:
    """Take small batches, drop each, and run Python for a while after each, as a training step does.

    Returns:
        next_p50: seconds of a next(), the death of the batch before it included; gil_wait: seconds a batch in which
        that Python stood still although its thread had a core to run on, so another thread had the GIL; batches.
    """
    batches = iter(_loader(way.partition(",")[0], workers, None, HANDED, pins=not way.endswith("not page-locked")))
    for _ in range(10 * WARM_UP):
        batch = next(batches)
    waits: list[float] = []
    stood = 0.0
    with open("/proc/thread-self/schedstat", "rb", buffering=0) as account:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            start = time.perf_counter()
            batch = next(batches)
            waits.append(time.perf_counter() - start)
            before = _stood_still(account)
            for _ in range(TURNS):
                pass
            stood += _stood_still(account) - before
    del batch
    batches._shutdown_workers()
    return {"next_p50": statistics.median(waits), "gil_wait": stood / len(waits), "batches": len(waits)}


def locking(seconds: float, workers: int) -> dict[str, float]:
    """Take small batches of two loaders by turns, of which one locks pages, and copy each batch of both.

    Both have the same machine, the same caches and the same neighbours, which two processes do not have.

    Returns:
        more, more_cpu: seconds that a next() takes more where pages are locked than the other's beside it, and seconds
        of this thread's processor; more_quarter: what is more between the quickest quarters of both; batches.
    """
    loaders = {pins: iter(_loader("shmloader", workers, None, HANDED, pins=pins)) for pins in (False, True)}
    batches: dict[bool, Any] = {}
    for pins, source in loaders.items():
        for _ in range(10 * WARM_UP):
            batches[pins] = next(source)
    copied = torch.empty_like(batches[True], device="cuda")
    took: dict[bool, list[int]] = {False: [], True: []}
    cpu: dict[bool, list[int]] = {False: [], True: []}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for pins in (True, False) if len(took[True]) % 2 else (False, True):
            copied.copy_(batches[pins], non_blocking=True)
            for _ in range(TURNS // 5):
                pass
            cpu_start, start = time.thread_time_ns(), time.perf_counter_ns()
            batches[pins] = next(loaders[pins])
            took[pins].append(time.perf_counter_ns() - start)
            cpu[pins].append(time.thread_time_ns() - cpu_start)
    batches.clear()
    for source in loaders.values():
        source._shutdown_workers()
    quarter, quarter_unlocked = (statistics.quantiles(took[pins], n=4)[0] for pins in (True, False))
    return {
        "more": _median_difference(took[True], took[False]) / 1e9,
        "more_cpu": _median_difference(cpu[True], cpu[False]) / 1e9,
        "more_quarter": (quarter - quarter_unlocked) / 1e9,
        "batches": len(took[True]),
    }


def _median_difference(these: list[int], those: list[int]) -> float:
    """Of two batches at a time: slots are looked after for each second batch, and a median would leave those out."""
    more = [this - that for this, that in zip(these, those, strict=True)]
    return statistics.median((more[k] + more[k + 1]) / 2 for k in range(0, len(more) - 1, 2))


def _stood_still(account: Any) -> float:
    """Seconds in which this thread has neither run nor waited for a core, up to now, and a constant."""
    account.seek(0)
    ran, waited = map(int, account.read().split()[:2])
    return time.perf_counter() - (ran + waited) / 1e9


def training(way: str, seconds: float, workers: int) -> dict[str, float]:
    """Train for a while on what a loader gives, with a step of about STEP seconds.

    Returns:
        images_per_second; next_p50, next_p99, next_max: seconds of the loader's next(); trainer_cpu: seconds of
        processor time a batch, of this process; gpu_idle: the share of the time in which the GPU ran no training step;
        step: seconds of one, alone; batches.
    """
    normalize = normalize_on_device(MEAN, STD)
    step = _step(normalize(torch.ones(SHAPE, dtype=DTYPE, device="cuda")))
    single = min(_gpu_seconds(step) for _ in range(5))
    source = iter(_loader(way.partition(" ")[0], workers, normalize if way.endswith("device=") else None))
    waits: list[float] = []
    timed: Iterator[Any] = _Timed(source, waits)
    batches = timed if way.endswith("device=") else _prefetched(timed, normalize)
    for _ in range(WARM_UP):
        step(next(batches))
    torch.cuda.synchronize()
    waits.clear()
    count, cpu, start = 0, time.process_time(), time.perf_counter()
    while time.perf_counter() < start + seconds or count < 10:
        step(next(batches))
        count += 1
        if count % 8 == 0:
            torch.cuda.synchronize()  # as a loop does that reads its loss: the CPU is not far ahead of the GPU
    torch.cuda.synchronize()
    took, cpu = time.perf_counter() - start, time.process_time() - cpu
    waits.sort()
    source._shutdown_workers()
    return {
        "images_per_second": count * CASE.batch_size / took,
        "next_p50": waits[len(waits) // 2],
        "next_p99": waits[len(waits) * 99 // 100],
        "next_max": waits[-1],
        "trainer_cpu": cpu / count,
        "gpu_idle": max(0.0, 1 - count * single / took),
        "step": single,
        "batches": count,
    }


def _loader(
    kind: str, workers: int, on_device: Callable[[Any], Any] | None, case: Case = CASE, pins: bool = True
) -> Any:
    options: dict[str, Any] = {"pin_memory": pins}
    if on_device is not None:
        options |= {"device": "cuda", "on_device": on_device}
    loader: Any = {"torch": torch.utils.data.DataLoader, "shmloader": shmloader.DataLoader}[kind]
    return loader(case.dataset(ENDLESS, ""), batch_size=case.batch_size, num_workers=workers, **options)


class _Timed:
    """Iterates, and notes how long each next() takes; it holds no batch, which is its consumer's to drop."""

    def __init__(self, source: Iterator[Any], waits: list[float]) -> None:
        self._source, self._waits = source, waits

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        start = time.perf_counter()
        try:
            return next(self._source)
        finally:
            self._waits.append(time.perf_counter() - start)


def _prefetched(source: Iterator[Any], normalize: Callable[[Any], Any]) -> Iterator[Any]:
    """The usual prefetcher: one batch ahead, copied and normalised on a side stream."""
    stream, ready = torch.cuda.Stream(), None
    for batch in source:
        with torch.cuda.stream(stream):
            batch = normalize(batch.to("cuda", non_blocking=True))
        if ready is not None:
            yield ready
        torch.cuda.current_stream().wait_stream(stream)
        ready = batch
        ready.record_stream(torch.cuda.current_stream())


def _step(batch: torch.Tensor) -> Callable[..., int]:
    """What is done with a batch, and how often it multiplies to take about STEP seconds."""
    left = torch.randn(SIDE, SIDE, device="cuda", dtype=batch.dtype) / SIDE
    right = torch.randn_like(left)

    def once() -> int:
        torch.mm(left, right)
        return 1

    times = max(1, round(STEP / min(_gpu_seconds(once) for _ in range(5))))

    def step(images: torch.Tensor = batch) -> int:
        left[0, 0] = images.float().mean()
        for _ in range(times):
            torch.mm(left, right)
        return 1

    step()
    return step


def _gpu_seconds(work: Callable[[], Any], times: int = 10) -> float:
    """Seconds that the GPU takes for one call."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(times):
        work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / times


def _copy_seconds(target: torch.Tensor, batch: torch.Tensor) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    target.copy_(batch, non_blocking=True)
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3
