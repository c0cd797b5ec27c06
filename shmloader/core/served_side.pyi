"""Types of the extension built from cython_ext/batch/served_side.pyx, where each is explained."""

import socket
from typing import Any, final

from shmloader.core.lease import Lease
from shmloader.core.ring import Ring

VERSION: tuple[int, int]
MOST_IN_SOCKET: int

@final
class ServedSide(Ring):
    shared: int
    def __init__(self, memory: Any, sock: socket.socket, beside: int, death: int) -> None: ...
    def receive(self) -> bytes | None: ...
    def messages(self) -> list[bytes]: ...
    def took(self, back: int = ...) -> None: ...
    def text_beside(self, at: int, size: int) -> bytes: ...
    def close(self) -> None: ...
    def lease(
        self,
        number: int,
        copies: bool,
        payload: int,
        used: int,
        table: tuple[int, int],
        rows: int,
        listed: list[list[int]] | None,
        parts: list[tuple[bytes, int, int, int]],
        at: int,
    ) -> tuple[Lease, bool]: ...
