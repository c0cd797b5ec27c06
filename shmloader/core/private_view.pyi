"""Types of the extension built from cython_ext/ring/private_view.pyx, where each is explained."""

from typing import final

from shmloader.core.ring import Ring

WAYS: tuple[str, ...]

@final
class PrivateView:
    way: str
    looks: int
    def lend(self, payload: int, bytes: int) -> int: ...
    def address(self, payload: int) -> int: ...
    def __init__(self, ring: Ring, fd: int, ways: tuple[str, ...] = ...) -> None: ...
