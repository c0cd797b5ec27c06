"""Finds rectangles in pictures of different sizes: ragged batches, as for detectors.

A sample is a picture and its boxes, whose number varies, so a batch is a list of tensors.  All of them lie in one slot
of the ring.  The network needs pictures of one size, which the training step makes by padding.

    python -m examples.detection
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, TypedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

import shmloader as loader

STRIDE = 4  # pixels of a cell of the network's output
LARGEST = 64  # pixels, height and width


class Target(TypedDict):
    boxes: Tensor  # (objects, 4): left, top, right, bottom, in pixels
    labels: Tensor  # (objects,): 0 is dark, 1 is bright


class Rectangles(loader.Dataset[tuple[Tensor, Target]]):
    """Pictures of noise with up to three rectangles, each drawn from its index alone."""

    def __init__(self, count: int, first: int = 0) -> None:
        self.count, self.first = count, first

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Target]:
        made = torch.Generator().manual_seed(self.first + index)

        def draw(low: int, high: int) -> int:
            return int(torch.randint(low, high, (), generator=made))

        height, width = draw(48, LARGEST + 1), draw(48, LARGEST + 1)
        picture = torch.randint(96, 160, (3, height, width), dtype=torch.uint8, generator=made)
        boxes, labels = [], []
        for _ in range(draw(0, 4)):
            high, wide = draw(10, 20), draw(10, 20)
            top, left = draw(0, height - high), draw(0, width - wide)
            label = draw(0, 2)
            picture[:, top : top + high, left : left + wide] = 255 * label
            boxes.append((left, top, left + wide, top + high))
            labels.append(label)
        return picture, {
            "boxes": torch.tensor(boxes, dtype=torch.float32).view(-1, 4),
            "labels": torch.tensor(labels, dtype=torch.int64),
        }


def as_lists(samples: list[tuple[Tensor, Target]]) -> tuple[list[Tensor], list[Target]]:
    """The form that torchvision's detectors take: nothing is padded on the way."""
    return [picture for picture, _ in samples], [target for _, target in samples]


def padded(pictures: list[Tensor]) -> Tensor:
    whole = torch.full((len(pictures), 3, LARGEST, LARGEST), 128.0, device=pictures[0].device)
    for row, picture in zip(whole, pictures, strict=True):
        row[:, : picture.shape[1], : picture.shape[2]] = picture
    return whole.sub_(128).div_(64)


class Centres(nn.Module):
    """For each cell: the probability that the centre of a dark or a bright box lies in it, and the size of that box."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after, stride in ((3, 16, 2), (16, 32, 2), (32, 32, 1), (32, 32, 1), (32, 32, 1)):
            layers += [nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
        self.net = nn.Sequential(*layers, nn.Conv2d(32, 4, 1))

    def forward(self, pictures: list[Tensor]) -> tuple[Tensor, Tensor]:
        answer = self.net(padded(pictures))
        return answer[:, :2], answer[:, 2:].exp()


def wanted(targets: list[Target], cells: int) -> tuple[Tensor, Tensor, Tensor]:
    """The targets of the network: the centres, the sizes in their cells, and a mask of these cells."""
    centres, sizes = torch.zeros(len(targets), 2, cells, cells), torch.ones(len(targets), 2, cells, cells)
    for k, target in enumerate(targets):
        for (left, top, right, bottom), label in zip(target["boxes"].tolist(), target["labels"].tolist(), strict=True):
            column, row = int((left + right) / 2 / STRIDE), int((top + bottom) / 2 / STRIDE)
            centres[k, label, row, column] = 1
            sizes[k, :, row, column] = torch.tensor([right - left, bottom - top]) / STRIDE
    return centres, sizes, centres.amax(1, keepdim=True)


def loss_of(answer: tuple[Tensor, Tensor], targets: list[Target]) -> Tensor:
    likely, size = answer
    centres, sizes, counts = wanted(targets, likely.shape[-1])
    found = functional.binary_cross_entropy_with_logits(likely, centres, pos_weight=torch.tensor(20.0))
    off = ((size.log() - sizes.log()).abs() * counts).sum() / counts.sum().clamp(min=1)
    return found + off


def recall(net: Centres, batches: Any) -> float:
    """The share of the objects that the network finds, with the right label, in their cell or in one beside it."""
    seen = found = 0
    net.eval()
    with torch.no_grad():
        for pictures, targets in batches:
            likely, _ = net(pictures)
            near = functional.max_pool2d(likely.sigmoid(), 3, 1, 1)
            centres, _, _ = wanted(targets, likely.shape[-1])
            seen += int((near[centres > 0] > 0.5).sum())
            found += int(centres.sum())
    return seen / found


def main(arguments: Sequence[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4, help="times through 512 pictures (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="worker processes (default: %(default)s)")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the workers have the other cores
    training: loader.DataLoader[Any] = loader.DataLoader(
        Rectangles(512),
        batch_size=16,
        shuffle=True,
        collate_fn=as_lists,
        num_workers=options.workers,
        persistent_workers=options.workers > 0,
    )
    net = Centres()
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
    for _ in range(options.epochs):
        for pictures, targets in training:
            optimizer.zero_grad()
            loss_of(net(pictures), targets).backward()
            optimizer.step()
    training.close()
    found = recall(net, loader.DataLoader(Rectangles(64, first=512), batch_size=16, collate_fn=as_lists))
    print(f"{100 * found:.1f} % of the objects are found")
    return found


if __name__ == "__main__":
    main()
