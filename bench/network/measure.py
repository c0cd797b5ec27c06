"""Trains a net of torchvision's on JPEG files in bfloat16, and measures images a second and the time in next().
Each runs in a process of its own, see core/child.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any

import torch
from torch.utils.data import RandomSampler

import shmloader
from shmloader import images
from shmloader.transforms import normalize_on_device

ALONE, TORCH, FUSED, DEVICE = "the net alone", "torch", "shmloader, images.fuse", "shmloader, device="
WAYS = (TORCH, FUSED, DEVICE)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZE = 224
SAMPLES = 4_000_000  # of an epoch, whose end no measurement reaches
WARM_UP = 15  # batches, besides those that the net trains on alone while cuDNN tries its algorithms
READS_LOSS = 10  # steps: so often the loop waits for the device, as one that prints its loss


def training(way: str, root: str, network: str, seconds: float, workers: int, batch_size: int) -> dict[str, float]:
    """Train in bfloat16 on what a loader gives: a random crop of each picture, mirrored at random, and normalised.

    Args:
        way: ALONE (the same batch again and again) or one of WAYS.
        root: a folder of folders of pictures.
        network: the name of one of torchvision's.

    Returns:
        images_per_second; waiting: the share of the time that the loop spent in next(); trainer_cpu: seconds of this
        process's processor time a batch; first: seconds to the end of the first step, with the start of the workers.
    """
    from torchvision import models

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    step = _step(getattr(models, network)().to(device, memory_format=torch.channels_last), device)
    pictures = torch.randn(batch_size, 3, SIZE, SIZE, device=device).to(memory_format=torch.channels_last)
    same = (pictures, torch.zeros(batch_size, dtype=torch.int64, device=device))
    for _ in range(WARM_UP if device == "cuda" else 1):
        float(step(*same))

    began = time.perf_counter()
    batches: Iterator[Any] = repeat(same) if way == ALONE else iter(_loader(way, root, workers, batch_size, device))
    waits: list[float] = []

    def take() -> list[torch.Tensor]:
        start = time.perf_counter()
        batch = next(batches)
        waits.append(time.perf_counter() - start)
        return [part.to(device, non_blocking=True) for part in batch]

    float(step(*take()))
    first = time.perf_counter() - began
    for _ in range(WARM_UP - 1 if device == "cuda" else 1):
        loss = step(*take())
    float(loss)
    waits.clear()
    count, cpu, start = 0, time.process_time(), time.perf_counter()
    while time.perf_counter() < start + seconds:
        loss = step(*take())
        count += 1
        if count % READS_LOSS == 0:
            float(loss)
    float(loss)
    took, cpu = time.perf_counter() - start, time.process_time() - cpu
    if way != ALONE:
        batches._shutdown_workers()  # type: ignore[attr-defined]
    return {
        "images_per_second": count * batch_size / took,
        "waiting": sum(waits) / took,
        "trainer_cpu": cpu / count,
        "first": first,
    }


def _step(net: Any, device: str) -> Callable[..., torch.Tensor]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    loss_of = torch.nn.CrossEntropyLoss()

    def step(pictures: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16):
            loss: torch.Tensor = loss_of(net(pictures), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _loader(way: str, root: str, workers: int, batch_size: int, device: str) -> Any:
    data = images.ImageFolder(root, images.training(SIZE)) if way == DEVICE else _by_torchvision(root)
    options: dict[str, Any] = {
        "batch_size": batch_size,
        "num_workers": workers,
        "sampler": RandomSampler(data, replacement=True, num_samples=SAMPLES),
    }
    if way == DEVICE:
        normalize = normalize_on_device(MEAN, STD, dtype=torch.bfloat16)
        return shmloader.DataLoader(data, device=device, on_device=normalize, **options)
    options["pin_memory"] = device == "cuda"
    if way == FUSED:
        return shmloader.DataLoader(images.fuse(data), **options)
    return torch.utils.data.DataLoader(data, **options)


def _by_torchvision(root: str) -> Any:
    from torchvision import datasets, transforms

    steps = [
        transforms.RandomResizedCrop(SIZE),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(MEAN, STD),
    ]
    return datasets.ImageFolder(root, transforms.Compose(steps))
