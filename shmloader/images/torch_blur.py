"""torchvision's GaussianBlur in C, if that gives what torch's own convolution gives.

torch does not promise in which order it adds up a window, and the last bit of a sum depends on the order.  Every torch
that we saw adds row by row, from the left, with one fused multiply-add for each weight.  So each process checks the
order before it relies on it, for each size of picture and window.  The check uses sums that cancel, so that only the
roundings remain.  If the order differs, torchvision's function is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch

from shmloader.core.pixels import Picture

__all__ = ["blur"]

_MOST_SIZES = 32  # to check: pictures that are not resized have one size each, and a check takes as long as five blurs
_TRIES = 4
_LARGE = 2.0**16  # weights so large that their sums are rounded by whole numbers
_is_alike: dict[tuple[Any, ...], bool] = {}


def blur(picture: Any, transform: Any, version: int, sigma: float) -> None:
    """Blur as torchvision's GaussianBlur does.

    Args:
        picture: a shmloader.core.pixels.Picture.
        transform: torchvision's.
        version: 1 or 2.
        sigma: the drawn value.
    """
    across, down = transform.kernel_size
    key = version, picture.channels, picture.height, picture.width, across, down, torch.get_num_threads()
    is_alike = _is_alike.get(key)
    if is_alike is None:
        is_alike = len(_is_alike) < _MOST_SIZES and _agrees(picture, transform, version)
        if len(_is_alike) < _MOST_SIZES:
            _is_alike[key] = is_alike
    if not is_alike or not picture.convolve_window(_weights(transform.kernel_size, version, sigma)):
        _by_torch(picture, transform, version, sigma)


def _by_torch(picture: Any, transform: Any, version: int, sigma: float) -> None:
    # The channels of a pixel lie side by side, as in the tensor that torchvision makes of a PIL image.
    pixels = np.empty((picture.height, picture.width, picture.channels), np.uint8)
    picture.write(pixels.transpose(2, 0, 1))
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    if version == 1:
        function = import_module("torchvision.transforms.functional").gaussian_blur
        blurred = function(tensor, transform.kernel_size, [sigma, sigma])
    else:
        blurred = transform.transform(tensor, {"sigma": [sigma, sigma]})
    picture.load(blurred.permute(1, 2, 0).numpy())


def _weights(size: Sequence[int], version: int, sigma: float) -> Any:
    """Weights by torchvision's own functions, because the two versions round differently."""
    name = "torchvision.transforms._functional_tensor" if version == 1 else "torchvision.transforms.v2.functional._misc"
    window = import_module(name)._get_gaussian_kernel2d
    return window(list(size), [sigma, sigma], torch.float32, torch.device("cpu")).contiguous().numpy()


def _agrees(like: Any, transform: Any, version: int) -> bool:
    """Whether C and torch give the same result for a picture of this size."""
    across, down = transform.kernel_size
    if across // 2 >= like.width or down // 2 >= like.height:
        return False
    size, random = (like.height, like.width, like.channels), np.random.default_rng(1)
    try:
        noise = random.integers(0, 256, size, np.uint8)
        ours, theirs = Picture(), Picture()
        ours.load(noise)
        theirs.load(noise)
        if not ours.convolve_window(_weights(transform.kernel_size, version, 1.0)):
            return False
        _by_torch(theirs, transform, version, 1.0)
        return _bytes(ours) == _bytes(theirs) and all(_adds_alike(size, down, across, random) for _ in range(_TRIES))
    except (ImportError, AttributeError, TypeError):
        return False  # this torchvision has functions of other names or arguments


def _adds_alike(size: tuple[int, int, int], down: int, across: int, random: np.random.Generator) -> bool:
    """Whether sums of terms that cancel round alike: in a picture of one colour, each place has the same sum."""
    colour = random.integers(50, 256, size[2], np.uint8)
    weights = random.uniform(-_LARGE, _LARGE, (down, across)).astype(np.float32)
    weights.flat[-1] -= weights.sum(dtype=np.float64) - 128 / float(colour[0])
    ours = Picture()
    ours.load(np.broadcast_to(colour, size))
    if not ours.convolve_window(weights):
        return False
    flat = torch.from_numpy(np.broadcast_to(colour, size).copy()).permute(2, 0, 1)[None].float()
    sides = [across // 2, across // 2, down // 2, down // 2]
    wide = torch.nn.functional.pad(flat, sides, mode="reflect")
    kernel = torch.from_numpy(weights).expand(size[2], 1, down, across)
    sums = torch.nn.functional.conv2d(wide, kernel, groups=size[2])[0].round_().clamp_(0, 255).to(torch.uint8)
    theirs = Picture()
    theirs.load(sums.permute(1, 2, 0).numpy())
    return _bytes(ours) == _bytes(theirs)


def _bytes(picture: Any) -> bytes:
    pixels = np.empty((picture.channels, picture.height, picture.width), np.uint8)
    picture.write(pixels)
    return pixels.tobytes()
