"""Types of the extension built from cython_ext/batch/collate_plain.pyx, where each is explained."""

from collections.abc import Callable
from typing import Any

from shmloader.core.batch_writer import Writer

class PlainCollate:
    def __init__(
        self,
        writer: Writer,
        entries: dict[Any, Any],
        ignored: Any,
        collate: Callable[..., Any],
        default_collate: Callable[[Any], Any],
        modes: Callable[[], int],
    ) -> None: ...
    def __call__(self, batch: Any) -> Any: ...
