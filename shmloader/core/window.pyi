"""Types of the extension built from cython_ext/ring/window.pyx, where each is explained."""

from typing import Any, final

@final
class Window:
    def __init__(
        self,
        tasks: list[tuple[int, int, list[Any], list[int] | None]],
        samples: list[int],
        seeds: list[int],
        workers: int,
    ) -> None: ...
