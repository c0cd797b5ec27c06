"""Reading a file's bits without decoding them, which the benchmark compares decoders with."""

from __future__ import annotations

import pytest
from jpeg_writer import SAMPLINGS, Noise, write

from shmloader.core import jpeg


@pytest.mark.parametrize("path", jpeg.paths())
@pytest.mark.parametrize("restart", [0, 3])
@pytest.mark.parametrize("sampling", list(SAMPLINGS))
def test_skimming_reads_a_whole_file_and_no_broken_one(path: str, sampling: str, restart: int) -> None:
    data = write(Noise(5, 61, 47, SAMPLINGS[sampling], restart=restart))
    decoder = jpeg.Decoder(path)
    for crop in ((0, 0, 61, 47), (3, 40, 5, 1), (0, 0, 1, 1), (60, 46, 1, 1)):
        assert decoder.open(data) is not None and decoder.skim(crop)
    assert decoder.open(data[:-2]) is not None and not decoder.skim((0, 0, 61, 47))
    assert decoder.open(data[: len(data) * 3 // 4]) is not None and not decoder.skim((0, 0, 61, 47))
    decoder.close()
    with pytest.raises(ValueError, match="no file is open"):
        decoder.skim((0, 0, 1, 1))
