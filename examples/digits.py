"""Builds the default data: handwritten digits on photographs, as JPEG files in class folders.

Nothing is downloaded: the digits (8x8 scans of real handwriting) and the two photographs ship inside scikit-learn.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tqdm import tqdm

IMAGE_SIZE = 160  # pixels, height and width of each file
DIGIT_SIZES = (88, 129)  # pixels, the second one excluded
MARGIN = 12  # pixels that stay free around a digit, so that a random crop rarely cuts into it
FADING = 0.4  # how far the photograph fades to white or black: enough that ink is legible anywhere on it
DARK_INK = (0, 90)  # each of red, green and blue, the second one excluded
BRIGHT_INK = (166, 256)
COPIES = 2  # files a digit, each with its own background, place, size and ink
TEST_SHARE = 0.2
JPEG_QUALITY = 90


def build_digits(root: Path, *, digits: int | None = None, seed: int = 0) -> None:
    """Writes `root`/{train,test}/<digit>/<index>-<copy>.jpg from the first `digits` scans (default: all 1,797).

    The split is by scan, so no copy of a test digit is ever trained on.  The same seed writes the same files.  `root`
    appears in one rename: it is either absent or complete, even if the building is interrupted.
    """
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{root.name}-", dir=root.parent) as scratch:
        unfinished = Path(scratch) / root.name
        _write_files(unfinished, digits, seed)
        try:
            unfinished.rename(root)
        except OSError:
            if not root.is_dir():  # otherwise another run has finished first, with the same files
                raise


def _write_files(root: Path, digits: int | None, seed: int) -> None:
    # Imported here, because users with their own folder need neither scikit-learn nor the second that it takes.
    from sklearn.datasets import load_digits, load_sample_images

    scans = load_digits()
    photographs = [Image.fromarray(photograph) for photograph in load_sample_images().images]
    count = len(scans.images[:digits])
    rng = np.random.default_rng(seed)
    test_scans = set(rng.permutation(count)[: round(count * TEST_SHARE)].tolist())
    for index in tqdm(range(count), desc=f"building {root.name}", unit="digit", disable=None):
        split = "test" if index in test_scans else "train"
        folder = root / split / str(scans.target[index])
        folder.mkdir(parents=True, exist_ok=True)
        for copy in range(COPIES):
            image = _draw(scans.images[index], photographs[rng.integers(len(photographs))], rng)
            image.save(folder / f"{index:04d}-{copy}.jpg", quality=JPEG_QUALITY)


def _draw(scan: NDArray[np.float64], photograph: Image.Image, rng: np.random.Generator) -> Image.Image:
    """One scan (8x8, intensities 0 to 16), dark on a brightened part of the photograph or bright on a darkened one."""
    dark_ink = rng.random() < 0.5
    ground = Image.new("RGB", (IMAGE_SIZE, IMAGE_SIZE), "white" if dark_ink else "black")
    image = Image.blend(_random_part(photograph, rng), ground, FADING)
    red, green, blue = rng.integers(*DARK_INK if dark_ink else BRIGHT_INK, size=3).tolist()
    size = int(rng.integers(*DIGIT_SIZES))
    coverage = Image.fromarray((scan * (255 / 16)).astype(np.uint8)).resize((size, size), Image.Resampling.BICUBIC)
    left, top = rng.integers(MARGIN, IMAGE_SIZE - MARGIN - size, size=2, endpoint=True).tolist()
    image.paste((red, green, blue), (left, top), coverage)
    return image


def _random_part(photograph: Image.Image, rng: np.random.Generator) -> Image.Image:
    side = int(rng.integers(IMAGE_SIZE // 2, min(photograph.size)))
    left = int(rng.integers(photograph.width - side))
    top = int(rng.integers(photograph.height - side))
    return photograph.resize((IMAGE_SIZE, IMAGE_SIZE), box=(left, top, left + side, top + side))
