"""What the server gives to a client that does nothing but ask: the limit for any loader."""

from __future__ import annotations

import selectors
import socket
import time
from urllib.parse import urlsplit

__all__ = ["bare_rate"]

_WARM_UP = 0.2  # seconds


def bare_rate(url: str, size: int, connections: int, seconds: float) -> float:
    """Answers a second, if each connection asks again as soon as it has its answer.

    Args:
        url: Of a file.
        size: Bytes that each request asks for.
        connections: How many requests are under way.
        seconds: How long it is measured.
    """
    address = urlsplit(url)
    request = f"GET {address.path} HTTP/1.1\r\nHost: {address.netloc}\r\nRange: bytes=0-{size - 1}\r\n\r\n".encode()
    selector = selectors.DefaultSelector()
    left: dict[socket.socket, int] = {}  # bytes that are still to come; 0: the answer has not begun
    try:
        for _ in range(connections):
            one = socket.create_connection((address.hostname or "", address.port or 80))
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            left[one] = 0
            selector.register(one, selectors.EVENT_READ)
            one.sendall(request)
        count, begin = 0, time.perf_counter() + _WARM_UP
        while (now := time.perf_counter()) < begin + seconds:
            for key, _ in selector.select(1.0):
                one = key.fileobj  # type: ignore[assignment]
                data = one.recv(1 << 18)
                if not left[one]:
                    left[one] = data.index(b"\r\n\r\n") + 4 + size
                left[one] -= len(data)
                if not left[one]:
                    count += now >= begin
                    one.sendall(request)
        return count / (now - begin)
    finally:
        selector.close()
        for one in left:
            one.close()
