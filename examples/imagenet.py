"""ImageNet's reference recipe on a folder of pictures: a residual network, SGD, a cosine schedule, smoothed labels.

shmloader.images decodes the pictures.  They travel as bytes, and are normalised on the device.  It runs in one process,
or in many under torchrun.  Without --data it makes its own pictures: stripes, whose direction is the class.

    python -m examples.imagenet
    torchrun --standalone --nproc-per-node 2 -m examples.imagenet
    torchrun --nproc-per-node 8 -m examples.imagenet --data IMAGENET --size 224 --batch-size 256 --workers 8 --epochs 90
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import shmloader as loader
from shmloader import images

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Residual(nn.Module):
    def __init__(self, channels: int, wider: int, stride: int) -> None:
        super().__init__()
        self.long = nn.Sequential(
            nn.Conv2d(channels, wider, 3, stride, 1, bias=False),
            nn.BatchNorm2d(wider),
            nn.ReLU(inplace=True),
            nn.Conv2d(wider, wider, 3, 1, 1, bias=False),
            nn.BatchNorm2d(wider),
        )
        self.short = nn.Sequential(nn.Conv2d(channels, wider, 1, stride, bias=False), nn.BatchNorm2d(wider))

    def forward(self, pixels: Tensor) -> Tensor:
        both: Tensor = self.long(pixels) + self.short(pixels)
        return both.relu()


def network(classes: int, width: int) -> nn.Module:
    body = [Residual(width << k, width << (k + 1), 2) for k in range(3)]
    stem = nn.Conv2d(3, width, 7, 2, 3, bias=False)
    return nn.Sequential(stem, *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width << 3, classes))


def make_stripes(root: Path, count: int = 48, side: int = 96) -> Path:
    """Writes root/{train,val}/{0,45,90,135}/*.jpg: stripes at that angle, of some width, colour and shift."""
    rng = np.random.default_rng(0)
    down, across = np.mgrid[0:side, 0:side]
    for name, number in (("train", count), ("val", count // 4)):
        for angle in (0, 45, 90, 135):
            folder = root / name / f"{angle:03d}"
            folder.mkdir(parents=True)
            for k in range(number):
                at = np.deg2rad(angle)
                waves = np.sin((across * np.cos(at) + down * np.sin(at)) / rng.uniform(2, 4) + rng.uniform(0, 6))
                colours = rng.uniform(60, 125, 3)
                pixels = 128 + waves[..., None] * colours + rng.normal(0, 12, (side, side, 3))
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{k}.jpg", quality=85)
    return root


def loaders(options: argparse.Namespace, root: Path, device: str) -> tuple[Any, Any]:
    train = images.ImageFolder(root / "train", images.training(options.size))
    test = images.ImageFolder(root / "val", images.evaluation(options.size, resize=options.size * 8 // 7))
    common: dict[str, Any] = {
        "batch_size": options.batch_size,
        "num_workers": options.workers,
        "device": device,
        "on_device": loader.transforms.normalize_on_device(MEAN, STD, dtype=torch.float32),
        "persistent_workers": options.workers > 0,
    }
    sampler: Any = loader.DistributedSampler(train) if dist.is_initialized() else None
    training = loader.DataLoader(
        train, sampler=sampler, shuffle=sampler is None, drop_last=True, sample_seeds=True, **common
    )
    return training, loader.DataLoader(test, **common)


def train(options: argparse.Namespace, root: Path, device: str) -> float:
    """Trains, and returns the share of the test pictures that are classified correctly."""
    torch.manual_seed(options.seed)
    training, testing = loaders(options, root, device)
    net = network(len(training.dataset.classes), options.width).to(device)
    replica: nn.Module = DistributedDataParallel(net) if dist.is_initialized() else net
    # what normalises and shifts is not decayed
    groups: list[dict[str, Any]] = [
        {"params": [each for each in net.parameters() if each.ndim > 1], "weight_decay": 1e-4},
        {"params": [each for each in net.parameters() if each.ndim <= 1]},
    ]
    optimizer = torch.optim.SGD(groups, options.lr, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.lr, total_steps=options.epochs * len(training))
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.1)
    for epoch in range(options.epochs):
        training.set_epoch(epoch)
        net.train()
        for pictures, labels in training:
            optimizer.zero_grad()
            loss_of(replica(pictures), labels).backward()
            optimizer.step()
            schedule.step()
    net.eval()
    with torch.no_grad():
        right = sum(int((net(pictures).argmax(1) == labels).sum()) for pictures, labels in testing)
    training.close()
    testing.close()
    return right / len(testing.dataset)


def main(arguments: Sequence[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of train/CLASS/*.jpg and val/CLASS/*.jpg (default: made)")
    for name, default, meaning in (
        ("epochs", 20, "times through the training pictures"),
        ("batch-size", 32, "pictures a batch of one process"),
        ("size", 56, "height and width of a sample, in pixels"),
        ("width", 8, "channels of the first layer"),
        ("workers", 2, "worker processes of one process"),
        ("seed", 0, "of weights, order and augmentation"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{meaning} (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=0.1, help="learning rate at its highest (default: %(default)s)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # the workers have the other cores
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if "LOCAL_RANK" in os.environ:  # torchrun
        if device == "cuda":
            device = f"cuda:{os.environ['LOCAL_RANK']}"
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if device != "cpu" else "gloo")
    with tempfile.TemporaryDirectory() as folder:
        accuracy = train(options, options.data or make_stripes(Path(folder)), device)
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(f"test accuracy {100 * accuracy:.1f} %")
    if dist.is_initialized():
        dist.destroy_process_group()
    return accuracy


if __name__ == "__main__":
    main()
