"""For pytest, `-p software_cuda.plugin`: the operators, and what must hold behind each test.

Nothing is page-locked, no copy is under way, nothing was done that a device would not forgive, and no kernel was asked
for that there is none of.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from software_cuda import operators, runtime

from shmloader.device import pinning

COUNTED = ("violations", "unknown", "missing")


def pytest_configure(config: pytest.Config) -> None:
    torch.cuda.is_available()
    if not runtime.is_software():
        raise pytest.UsageError("torch has not loaded the software CUDA: see `make test-cuda`")
    operators.install()


@pytest.fixture(autouse=True)
def the_device_is_left_as_it_was() -> Iterator[None]:
    before = _seen()
    yield
    gc.collect()
    for _ in range(3):
        torch.cuda.synchronize()
        pinning._free_late()
    assert _seen() == before
    assert not runtime.under_way()
    assert not operators.errors()


def _seen() -> dict[str, int]:
    return {"registered": runtime.registered(), **{name: runtime.count(name) for name in COUNTED}}
