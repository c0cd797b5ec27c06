"""Trains and validates in turns, with one crew of workers for both loaders.

python -m examples.train_and_validate
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import shmloader as loader


class Rings(Dataset[Any]):
    """Points in a plane, of which those between two circles are of one class.  Those to train on are moved a little."""

    def __init__(self, count: int, moved: float, seed: int) -> None:
        self.points = torch.randn(count, 2, generator=torch.Generator().manual_seed(seed))
        self.moved = moved

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        point = self.points[index]
        radius = float(point.norm())
        return point + self.moved * torch.randn(2), int(0.7 < radius < 1.5)


def loaders(crew: loader.Crew) -> tuple[loader.DataLoader[Any], loader.DataLoader[Any]]:
    """Both are made before either is iterated, so forked workers have both datasets."""
    train: loader.DataLoader[Any] = loader.DataLoader(
        Rings(4096, 0.02, 0), batch_size=64, shuffle=True, crew=crew, persistent_workers=True
    )
    validation: loader.DataLoader[Any] = loader.DataLoader(
        Rings(512, 0.0, 1), batch_size=256, crew=crew, persistent_workers=True
    )
    return train, validation


def main(arguments: Sequence[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4, help="times through the data (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="worker processes (default: %(default)s)")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the workers have the other cores
    net = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    share = 0.0
    with loader.Crew(options.workers) as crew:
        train, validation = loaders(crew)
        for epoch in range(options.epochs):
            for points, kinds in train:
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(points), kinds).backward()
                optimizer.step()
            right = 0
            with torch.no_grad():
                for points, kinds in validation:
                    right += int((net(points).argmax(1) == kinds).sum())
            share = right / 512
            print(f"epoch {epoch}: {share:.0%} of the validation set are right")
    return share


if __name__ == "__main__":
    main()
