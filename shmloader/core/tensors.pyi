"""Types of the extension built from cython_ext/batch/tensors.pyx, where each is explained."""

from typing import Any

import torch

def tensor_over(
    buffer: Any, dtype: torch.dtype, at: int, shape: tuple[int, ...], strides: tuple[int, ...] | None = ...
) -> torch.Tensor: ...
def learn() -> None: ...
