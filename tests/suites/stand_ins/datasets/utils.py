"""In the place of the marks that datasets' archive lacks: tests of torch run, those of other libraries are skipped."""

import contextlib
from typing import Any

import pytest

assert_arrow_memory_doesnt_increase = contextlib.nullcontext


def __getattr__(name: str) -> Any:
    if name in ("require_torch", "require_not_windows", "require_numpy1_on_windows", "require_dill_gt_0_3_2"):
        return lambda test: test
    return pytest.mark.skip(reason=f"{name} is not in the archive")
