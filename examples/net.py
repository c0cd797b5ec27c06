"""A small convolutional network that takes images as the loader delivers them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

# (channels, stride) of each convolution; stride 2 halves height and width.
CONVOLUTIONS = ((16, 2), (32, 2), (64, 2), (64, 1), (128, 2), (128, 1))


class SmallNet(nn.Module):
    """Bytes of shape [batch, height, width, 3] to scores of shape [batch, classes]."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels_in = 3
        for channels, stride in CONVOLUTIONS:
            layers += [
                nn.Conv2d(channels_in, channels, 3, stride=stride, padding=1, bias=False),
                nn.BatchNorm2d(channels),
                nn.ReLU(inplace=True),
            ]
            channels_in = channels
        self.features = nn.Sequential(*layers)
        self.scores = nn.Linear(channels_in, classes)

    def forward(self, images: Tensor) -> Tensor:
        # Colours move from last to second as a view: in memory they stay last, which is fastest for a CPU's
        # convolutions.
        pixels = images.permute(0, 3, 1, 2).to(torch.float32).sub(127.5).div(64)
        # The maximum over all places: most of an image is background, which a mean would include.
        strongest: Tensor = self.features(pixels).amax(dim=(2, 3))
        scores: Tensor = self.scores(strongest)
        return scores
