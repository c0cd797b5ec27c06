"""A Ctrl-C at the end of a profiled next() loses no batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd import profiler

import shmloader


class _InterruptedOnce(profiler.record_function):
    """The profiler's record of a next(), at whose end a Ctrl-C comes, once."""

    comes = True

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        if _InterruptedOnce.comes:
            _InterruptedOnce.comes = False
            raise KeyboardInterrupt


def test_a_batch_survives_a_ctrl_c_at_the_end_of_a_profiled_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """The profiler's record ends behind next(), and Python calls handlers there."""
    monkeypatch.setattr(profiler, "record_function", _InterruptedOnce)
    dataset: Any = torch.arange(6)
    with shmloader.DataLoader(dataset, batch_size=2, num_workers=1) as loader:
        assert loader.rides_ring
        batches = iter(loader)
        with profiler.profile():
            with pytest.raises(KeyboardInterrupt):
                next(batches)
            assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3], [4, 5]]
