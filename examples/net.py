"""A small convolutional network that takes images as the loader delivers them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTHS = (16, 32, 64, 128)  # channels after each block; a block halves height and width


class SmallNet(nn.Module):
    """Bytes of shape [batch, height, width, 3] to scores of shape [batch, classes]."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(_block(*ends) for ends in zip((3, *WIDTHS), WIDTHS, strict=False)))
        self.scores = nn.Linear(WIDTHS[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        # Colours go from last to second as a view: in memory they stay last, which convolutions on a CPU like best.
        pixels = images.permute(0, 3, 1, 2).to(torch.float32).sub(127.5).div(64)
        features: Tensor = self.blocks(pixels).mean(dim=(2, 3))
        scores: Tensor = self.scores(features)
        return scores


def _block(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(inplace=True),
    )
