"""Types of the extension built from cython_ext/batch/batch_reader.pyx, where each is explained."""

from collections.abc import Callable
from typing import Any

import torch

from shmloader.core.lease import Lease

class BatchReader:
    def __init__(
        self,
        failure: type,
        clone: Callable[[torch.Tensor], torch.Tensor] = ...,
        room: Callable[[int], torch.Tensor] | None = ...,
        keeps: bool = ...,
    ) -> None: ...
    def read(self, lease: Lease, copy: bool) -> Any: ...
