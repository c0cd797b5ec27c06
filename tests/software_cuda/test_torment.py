"""What `make torment-cuda` does with a hundred thousand batches, with some hundreds; see torment.py."""

from __future__ import annotations

import pytest
import torch
from software_cuda import runtime, torment

from shmloader.system import user_line

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 9))])
def test_nothing_is_changed_and_nothing_is_left(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_line, "_met", user_line._met | {"not page-locked"})  # that page-locking was refused
    tormented = torment.Torment(seed)
    for late, wanted in ((torment.LATE, 150), (torment.QUICK, 600)):
        done = number = 0
        while done < wanted:
            done += tormented.run(number, late, torment.SHORT)
            number += 1
    runtime.late(0, 0)
    assert not tormented.failed, dict(tormented.found)
