"""Trains a small denoiser on latents, as for a diffusion model: large arrays, and hardly any work a sample.

Each latent is 16 x 32 x 32 of float16 in one memory-mapped file, so a batch of 32 is 1 MB.  Workers copy rows from the
page cache straight into the batch (`__getitem_into__`).  They draw the level of the noise of each sample from a seed
that does not depend on the number of workers.

    python -m examples.latents
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import shmloader as loader

SHAPE = (16, 32, 32)

Row = dict[str, Any]


def write_latents(file: Path, count: int) -> None:
    """Smooth random fields, each a mixture of the same few patterns, which a network can learn."""
    rng = np.random.default_rng(0)
    coarse = rng.normal(size=(8, *SHAPE[:1], 4, 4))
    patterns = coarse.repeat(8, axis=2).repeat(8, axis=3)
    latents = np.memmap(file, np.float16, "w+", shape=(count, *SHAPE))
    for k in range(count):
        latents[k] = np.tensordot(rng.normal(size=8) / 8**0.5, patterns, axes=1)
    latents.flush()


class Latents(loader.Dataset[Row]):
    def __init__(self, file: Path, count: int) -> None:
        self.latents = np.memmap(file, np.float16, "r", shape=(count, *SHAPE))
        self.row_spec = {"latent": torch.empty(SHAPE, dtype=torch.float16, device="meta"), "level": None}

    def __len__(self) -> int:
        return len(self.latents)

    def __getitem__(self, index: int) -> Row:
        return self.__getitem_into__(index, {"latent": torch.empty(SHAPE, dtype=torch.float16), "level": None})

    def __getitem_into__(self, index: int, row: Row) -> Row:
        np.copyto(row["latent"].numpy(), self.latents[index])
        return {"latent": row["latent"], "level": torch.rand(()).item()}  # 0: no noise, 1: only noise


class Denoiser(nn.Module):
    """Predicts the noise from a noisy latent and the level of the noise."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.level = nn.Linear(1, width)
        self.begin = nn.Conv2d(SHAPE[0], width, 3, padding=1)
        self.end = nn.Sequential(
            nn.GELU(),
            nn.Conv2d(width, width, 5, padding=2),
            nn.GELU(),
            nn.Conv2d(width, SHAPE[0], 3, padding=1),
        )

    def forward(self, noisy: Tensor, level: Tensor) -> Tensor:
        foretold: Tensor = self.end(self.begin(noisy) + self.level(level[:, None])[:, :, None, None])
        return foretold


def loss_of(net: Denoiser, batch: Row) -> Tensor:
    latents, level = batch["latent"].float(), batch["level"].float()
    angle = level[:, None, None, None] * torch.pi / 2
    noise = torch.randn_like(latents)
    noisy = angle.cos() * latents + angle.sin() * noise
    loss: Tensor = (net(noisy, level) - noise).square().mean()
    return loss


def main(arguments: Sequence[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latents", type=int, default=512, help="how many there are (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=4, help="times through them (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="worker processes (default: %(default)s)")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the workers have the other cores
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "latents.bin"
        write_latents(file, options.latents)
        training: loader.DataLoader[Any] = loader.DataLoader(
            Latents(file, options.latents),
            batch_size=32,
            shuffle=True,
            num_workers=options.workers,
            sample_seeds=options.workers > 0,
            persistent_workers=options.workers > 0,
        )
        net = Denoiser()
        optimizer = torch.optim.AdamW(net.parameters(), 2e-3)
        losses = []
        for _ in range(options.epochs):
            for batch in training:
                optimizer.zero_grad()
                loss = loss_of(net, batch)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        training.close()
    last = float(np.mean(losses[-len(training) :]))
    print(f"mean squared error of the noise: {losses[0]:.2f} at first, {last:.2f} in the last epoch")
    return last


if __name__ == "__main__":
    main()
