"""Types of the extension built from cython_ext/device/reclaim.pyx, where each is explained."""

from collections.abc import Callable

from shmloader.core.free_slots import Slots

class Reclaim:
    def __init__(
        self,
        slots: Slots,
        devices: tuple[int, ...],
        lent: list[int],
        unshared: list[bool],
        address: Callable[[tuple[int, int, int]], int],
    ) -> None: ...
    def __call__(self) -> bool: ...
