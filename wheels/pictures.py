"""Prints a digest of what an installed decoder makes of 60 pictures: it must be the same on every machine.

    python wheels/pictures.py SITE      # a folder that has the wheel in it, unpacked

The pictures are noise, in every sampling, whole and cropped and scaled.  Neither torch nor numpy is needed: only the
extension is imported.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SIZES = ((64, 48), (37, 91), (130, 17), (16, 16), (75, 75))


def main() -> None:
    package = types.ModuleType("shmloader")  # without its __init__, which imports torch
    package.__path__ = [str(Path(sys.argv[1]) / "shmloader")]
    sys.modules["shmloader"] = package
    jpeg = importlib.import_module("shmloader.core.jpeg")
    sys.path.insert(0, str(ROOT / "tests" / "images"))
    from jpeg_writer import SAMPLINGS, Noise, write

    digest, pictures = hashlib.sha256(), 0
    for name, factors in SAMPLINGS.items():
        for number, (width, height) in enumerate(SIZES):
            data = write(Noise(pictures, width, height, factors, restart=number % 3))
            pictures += 1
            for crop in ((0, 0, width, height), (3, 2, width // 2, height // 2)):
                for side in (0, 24):  # as it is; scaled
                    rows, columns = (side, side) if side else (crop[3], crop[2])
                    out = memoryview(bytearray(3 * rows * columns)).cast("B", (3, rows, columns))
                    decoder = jpeg.Decoder()
                    taken = decoder.open(data) is not None and decoder.decode(crop, out)
                    digest.update(f"{name} {crop} {side} {taken}".encode() + bytes(out if taken else b""))
    print(f"{pictures} pictures {digest.hexdigest()} {','.join(jpeg.paths())}")


if __name__ == "__main__":
    main()
