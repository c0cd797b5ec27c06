"""What becomes of a crew's other loaders where a worker fails, or dies, while it joins one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import shmloader
from shmloader import Crew


class Unloadable:
    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise OSError("it cannot be unpickled")


@pytest.mark.parametrize("persistent", [False, True])
def test_a_dataset_that_cannot_be_unpickled_is_the_error_of_each_batch_and_epoch(persistent: bool) -> None:
    with Crew(1, multiprocessing_context="fork") as crew:
        next(iter(shmloader.DataLoader(torch.arange(2), crew=crew)))
        broken: Any = shmloader.DataLoader([0, 1, Unloadable()], crew=crew, persistent_workers=persistent)
        for _ in range(2):
            iterator = iter(broken)
            for _ in range(3):
                with pytest.raises(OSError, match="it cannot be unpickled"):
                    next(iterator)
            assert next(iterator, None) is None
