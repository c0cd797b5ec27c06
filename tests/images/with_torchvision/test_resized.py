"""Colours, flips and borders before a resize: fused, and equal to torchvision's pictures and draws."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from made_photo import photo, saved
from PIL import Image
from torchvision.transforms import v2

from shmloader import images

PIPELINES: dict[str, list[Any]] = {
    "colours": [v2.RandomPhotometricDistort(p=0.7), v2.Resize((70, 90))],
    "flip": [v2.RandomHorizontalFlip(), v2.Resize(50), v2.CenterCrop(64)],
    "flip, contrast": [v2.RandomHorizontalFlip(), v2.ColorJitter(contrast=0.5), v2.Resize((33, 64))],
    "black border": [v2.RandomZoomOut(p=0.8), v2.Resize((64, 64), v2.InterpolationMode.BICUBIC)],
    "coloured border": [v2.RandomZoomOut((123, 117, 104), (1.0, 2.5)), v2.RandomHorizontalFlip(), v2.Resize((64, 80))],
    "border alone": [v2.RandomZoomOut((1, 2, 3), (2.0, 2.0), 1.0), v2.RandomHorizontalFlip()],
    "two borders": [v2.Pad(5, fill=9), v2.Pad((1, 0, 7, 3), fill=(7, 8, 9)), v2.Resize((40, 40)), v2.Resize((60, 60))],
    "a border of each kind": [
        v2.RandomZoomOut({Image.Image: (9, 8, 7), "others": 0}, p=1.0),
        v2.RandomHorizontalFlip(),
        v2.RandomCrop((40, 40), pad_if_needed=True),
    ],
}
NUMBERS = (v2.ToImage(), v2.ToDtype(torch.float32, scale=True))


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("name", PIPELINES)
def test_samples_and_draws_are_torchvisions(name: str, kind: str) -> None:
    transform = v2.Compose([*PIPELINES[name], *NUMBERS])
    read = images.from_bytes(transform)
    for seed, size in enumerate([(90, 70), (61, 97), (16, 33), (200, 40), (40, 200), (1, 1)] * 4):
        file = saved(photo(*size, seed), kind)
        torch.manual_seed(seed)
        said = transform(Image.open(io.BytesIO(file)).convert("RGB"))
        after = torch.get_rng_state()
        torch.manual_seed(seed)
        made = read(file)
        assert type(made) is type(said) and torch.equal(made, said)
        assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize("name", PIPELINES)
def test_nothing_is_left_to_pillow(name: str) -> None:
    notes = images.from_bytes(v2.Compose([*PIPELINES[name], *NUMBERS])).notes
    assert len(notes) == len(PIPELINES[name]) + 2 and all(note.endswith(": fused") for note in notes)
