"""torchvision's GaussianBlur: by C where torch adds up as C does, and otherwise by torchvision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torchvision import transforms as v1
from torchvision.transforms import v2

from shmloader.core.pixels import Picture
from shmloader.images import torch_blur


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_blur, "_is_alike", {})


def picture_of(array: Any) -> Any:
    picture = Picture()
    picture.load(array)
    return picture


def pixels_of(picture: Any) -> Any:
    pixels = np.empty((picture.channels, picture.height, picture.width), np.uint8)
    picture.write(pixels)
    return pixels


def expected(array: Any, transform: Any, sigma: float) -> Any:
    tensor = torch.from_numpy(array).permute(2, 0, 1)
    return v1.functional.gaussian_blur(tensor, transform.kernel_size, [sigma, sigma]).numpy()


SIZES = [(40, 56), (17, 13), (9, 100), (96, 96)]
WINDOWS = [9, (5, 3), (1, 7), 1, 17]


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("transforms", [v1, v2], ids=["v1", "v2"])
def test_the_same_bytes(transforms: Any, channels: int) -> None:
    random = np.random.default_rng(3)
    for size in SIZES:
        for window in WINDOWS:
            transform = transforms.GaussianBlur(window)
            for sigma in (0.1, 0.5, 1.7, 30.0):
                array = random.integers(0, 256, (*size, channels), np.uint8)
                picture = picture_of(array)
                torch_blur.blur(picture, transform, 1 if transforms is v1 else 2, sigma)
                tensor = torch.from_numpy(array).permute(2, 0, 1)
                theirs = transforms.functional.gaussian_blur(tensor, transform.kernel_size, [sigma, sigma]).numpy()
                np.testing.assert_array_equal(pixels_of(picture), theirs, f"{size}, {window}, {sigma}")


def test_a_torch_that_adds_up_in_another_order_does_it_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one whose convolution goes column by column: bytes differ seldom, and the sums that cancel show it."""
    convolved = torch.nn.functional.conv2d
    array = np.random.default_rng(4).integers(0, 256, (60, 70, 3), np.uint8)
    if not picture_of(array).convolve_window(np.ones((1, 1), np.float32)):
        pytest.skip("this processor has no fused multiply-add that is used")

    def by_columns(image: Any, kernel: Any, **options: Any) -> Any:
        return convolved(image.mT.contiguous(), kernel.mT.contiguous(), **options).mT

    calls = []

    def counted(image: Any, kernel: Any, **options: Any) -> Any:
        calls.append(1)
        return convolved(image, kernel, **options)

    def blurred() -> int:
        """How often torch was asked for a second picture of the size."""
        for _ in range(2):
            calls.clear()
            picture = picture_of(array)
            torch_blur.blur(picture, transform, 1, 1.3)
        np.testing.assert_array_equal(pixels_of(picture), theirs)
        return len(calls)

    transform = v1.GaussianBlur(9)
    monkeypatch.setattr("torchvision.transforms._functional_tensor.conv2d", counted)
    theirs = expected(array, transform, 1.3)
    is_row_by_row = torch_blur._agrees(picture_of(array), transform, 1)
    assert blurred() == (0 if is_row_by_row else 1)
    torch_blur._is_alike.clear()
    monkeypatch.setattr(torch.nn.functional, "conv2d", by_columns)
    assert blurred() == (1 if is_row_by_row else 0)


def test_sizes_beyond_those_that_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of photographs that are blurred before they are resized costs no more than without."""
    transform, looked = v1.GaussianBlur(5), []
    agrees = torch_blur._agrees
    monkeypatch.setattr(torch_blur, "_agrees", lambda *given: looked.append(1) or agrees(*given))
    for width in range(20, 70):
        array = np.random.default_rng(width).integers(0, 256, (10, width, 3), np.uint8)
        picture = picture_of(array)
        torch_blur.blur(picture, transform, 1, 0.8)
        np.testing.assert_array_equal(pixels_of(picture), expected(array, transform, 0.8))
    assert len(looked) == torch_blur._MOST_SIZES
