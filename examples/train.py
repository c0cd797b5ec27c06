"""Trains a small network on JPEG files, with shmloader's DataLoader or torch's, and prints the loader's cost.

For the same seed both loaders deliver the same batches, augmented by TrivialAugment, so both reach the same accuracy;
what differs is the cost, on the last line.  With shmloader's loader shmloader.images decodes and augments, with torch's
PIL does.

    python -m examples.train                   # the digits of examples/digits.py, shmloader
    python -m examples.train --loader torch
    python -m examples.train --data FOLDER --epochs 5 --image-size 128
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from tqdm import tqdm

from examples.image_folder import (
    ByPil,
    ByShmloader,
    DataFolderError,
    Decode,
    ImageFolder,
    LabelledFile,
    Split,
    find_images,
)
from examples.loader_clock import LoaderClock
from examples.net import SmallNet

DIGITS = Path("data/digits")
DECODERS: dict[str, Decode] = {"shmloader": ByShmloader, "torch": ByPil}  # of which the pixels are the same

Batch = list[Tensor]  # images, uint8 [batch, size, size, 3], and labels, int64 [batch]


class Result(NamedTuple):
    loader: str
    images: int  # trained on, all epochs together
    seconds: float  # of all training epochs
    clock: LoaderClock  # of all training epochs
    accuracy: float  # share of the test images, 0 to 1

    def __str__(self) -> str:
        return (
            f"{self.loader}: {self.images / self.seconds:.0f} images/s"
            f" | {100 * self.clock.waiting / self.seconds:.1f} % of the time waiting for data"
            f" | {self.clock.cpu:.2f} s trainer CPU in the loader"
            f" | test accuracy {100 * self.accuracy:.2f} %"
        )


class Trainer:
    """A network, its optimizer, and the device of both."""

    def __init__(self, classes: int, highest_rate: float, steps: int) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.net = SmallNet(classes).to(self.device)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), highest_rate)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, highest_rate, total_steps=steps)
        self.loss_of = nn.CrossEntropyLoss(label_smoothing=0.1)

    def step(self, batch: Batch) -> Tensor:
        """Learns from one batch and gives its loss, a scalar on the device."""
        images, labels = (part.to(self.device, non_blocking=True) for part in batch)
        self.optimizer.zero_grad()
        loss: Tensor = self.loss_of(self.net(images), labels)
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return loss.detach()

    @torch.no_grad()
    def accuracy(self, loader: DataLoader[Any]) -> float:
        self.net.eval()
        right = total = 0
        for batch in loader:
            images, labels = (part.to(self.device, non_blocking=True) for part in batch)
            right += int((self.net(images).argmax(dim=1) == labels).sum())
            total += len(labels)
        return right / total


def train(split: Split, options: argparse.Namespace) -> Result:
    """Trains a fresh network and tests it.  Everything random depends only on `options.seed`."""
    make_repeatable(options.seed, options.threads)
    training = make_loader(split.train, options, training=True)
    trainer = Trainer(len(split.classes), options.lr, steps=options.epochs * len(training))
    images = options.epochs * len(split.train)
    clock = LoaderClock()
    started = time.perf_counter()
    with tqdm(total=images, unit=" images", disable=None) as bar:  # None: no bar where stderr is not a terminal
        for epoch in range(1, options.epochs + 1):
            loss_sum = torch.zeros((), device=trainer.device)
            for batch in clock.batches(training):
                loss_sum += trainer.step(batch)
                waiting = clock.waiting / (time.perf_counter() - started)
                bar.set_postfix_str(f"waiting {100 * waiting:.1f} %", refresh=False)
                bar.update(len(batch[0]))
            loss = loss_sum.item() / len(training)  # waits for the device, so that the time includes its work
            seconds = time.perf_counter() - started
            bar.write(f"epoch {epoch}/{options.epochs}: loss {loss:.3f}, {seconds:.0f} s", file=sys.stderr)
    accuracy = trainer.accuracy(make_loader(split.test, options, training=False))
    return Result(options.loader, images, seconds, clock, accuracy)


def make_loader(files: Sequence[LabelledFile], options: argparse.Namespace, *, training: bool) -> DataLoader[Any]:
    loader: DataLoader[Any] = loader_module(options.loader).DataLoader(
        ImageFolder(files, options.image_size, augment=training, decode=DECODERS[options.loader]),
        batch_size=options.batch_size,
        shuffle=training,
        num_workers=options.workers,
        pin_memory=torch.cuda.is_available(),
        persistent_workers=training and options.workers > 0,
    )
    return loader


def loader_module(name: str) -> ModuleType:
    """The module whose DataLoader is used: to change the loader, a program changes only its import."""
    if name == "torch":
        import torch.utils.data as loader

        return loader
    import shmloader

    return shmloader


def make_repeatable(seed: int, threads: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(threads)  # the order of floating-point sums depends on how many threads share them
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it, cuBLAS is free to vary
    torch.use_deterministic_algorithms(True, warn_only=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    def option(name: str, kind: type, default: object, meaning: str) -> None:
        parser.add_argument(name, type=kind, default=default, help=f"{meaning} (default: %(default)s)")

    loaders = ("shmloader", "torch")
    parser.add_argument("--loader", choices=loaders, default=loaders[0], help="whose DataLoader (default: %(default)s)")
    option("--data", Path, DIGITS, "folder of train/<class>/*.jpg and test/<class>/*.jpg, or of <class>/*.jpg")
    option("--epochs", int, 20, "times through the training images")
    option("--batch-size", int, 64, "images a batch")
    option("--workers", int, 2, "worker processes; 0 loads in the training process")
    option("--seed", int, 0, "of the weights, the order of the images and their augmentation")
    option("--lr", float, 1e-2, "learning rate at its highest")
    option("--image-size", int, 64, "height and width that images are scaled to, in pixels")
    option("--threads", int, 1, "CPU threads of the network; the workers have the other cores")
    options = parser.parse_args(arguments)
    if options.epochs < 1:
        parser.error(f"--epochs is {options.epochs}; training needs at least 1")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    if options.data == DIGITS and not DIGITS.exists():
        from examples.digits import build_digits  # needs scikit-learn, which other data does not need

        print(f"building {DIGITS}, once", file=sys.stderr)
        build_digits(DIGITS)
    try:
        split = find_images(options.data)
    except DataFolderError as error:
        sys.exit(f"examples.train: {error}")
    print(train(split, options))


if __name__ == "__main__":
    main()
