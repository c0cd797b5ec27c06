"""`python -m bench far --parts ray`: each loader gives the right pictures on a cluster, and its memory is seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.core import child, jpegs
from bench.far.beside_ray import LOADERS, OURS, SMALL_RING
from bench.far.pictures import BYTES

BATCH = 8


@pytest.fixture(autouse=True)
def nothing_left() -> None:
    """The cluster is another process's, and the bench ends all that belongs to that."""


@pytest.mark.long
@pytest.mark.parametrize("loader", LOADERS)
def test_it_measures(loader: str, tmp_path: Path) -> None:
    jpegs.make(tmp_path, 4)
    arguments: dict[str, Any] = {"loader": loader, "folder": str(tmp_path), "seconds": 1, "workers": 1}
    arguments |= {"batch_size": BATCH, "step": 0.3, "store": 1 << 28}
    found = child.run("bench.far.beside_ray:beside_ray", arguments, 200)
    assert found["images_per_second"] > 0 and found["slow_images_per_second"] <= BATCH / 0.3
    is_ours = loader in (OURS, SMALL_RING)
    held = found["ring"] if is_ours else found["store"]
    assert held > BATCH * BYTES and found["whole"] > 0 and found["slow_whole"] > 0
    assert found["store"] < BYTES or not is_ours  # batches of far workers do not come there
