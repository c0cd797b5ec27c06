"""A connection wakes its process seldom, and still hears a slow sender, and misses a silent one."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from shmloader.far.link import AWAITED, CLOSED, Gone, Link

SIZE = 3 * AWAITED + 17
PATIENCE = 0.4


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
        with near, far:
            yield near, far


def lowest(sock: socket.socket) -> int:
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)


def later(work: list[bytes], far: socket.socket, pause: float) -> threading.Thread:
    def send() -> None:
        for part in work:
            far.sendall(part)
            time.sleep(pause)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


@pytest.mark.parametrize("size", [1, 100, AWAITED - 1, AWAITED, SIZE])
def test_it_receives_what_was_sent_and_no_more(ends: tuple[socket.socket, socket.socket], size: int) -> None:
    near, far = ends
    data = bytes(k % 251 for k in range(size))
    link = Link(near, 10.0)
    sender = later([data[: size // 2], data[size // 2 :], b"next"], far, 0.02)
    view = bytearray(size)
    link.receive_into(memoryview(view))
    assert view == data
    assert link.receive(4) == b"next"
    assert lowest(near) == 1
    sender.join()


def test_a_sender_of_a_few_bytes_at_a_time_is_not_taken_for_a_silent_one(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    near, far = ends
    sender = later([b"x" * 1000] * 5 + [b"x" * (SIZE - 5000)], far, PATIENCE / 2)
    view = bytearray(SIZE)
    Link(near, PATIENCE).receive_into(memoryview(view))
    assert view == b"x" * SIZE and lowest(near) == 1
    sender.join()


def test_one_that_falls_silent_in_the_middle_is_gone(ends: tuple[socket.socket, socket.socket]) -> None:
    near, far = ends
    far.sendall(b"x" * 1000)
    with pytest.raises(Gone, match=r"no sign of life for 0\.4 seconds"):
        Link(near, PATIENCE).receive_into(memoryview(bytearray(SIZE)))
    assert lowest(near) == 1


def test_one_that_hangs_up_in_the_middle_is_gone_at_once(ends: tuple[socket.socket, socket.socket]) -> None:
    near, far = ends
    far.sendall(b"x" * 1000)
    closing = threading.Timer(0.05, lambda: far.shutdown(socket.SHUT_RDWR))
    closing.start()
    with pytest.raises(Gone, match=CLOSED):
        Link(near, None).receive_into(memoryview(bytearray(SIZE)))
    closing.join()


def test_a_large_receive_is_not_woken_for_each_segment(ends: tuple[socket.socket, socket.socket]) -> None:
    near, far = ends
    link = Link(near, 10.0)
    looks: list[int] = []
    receive_into = link._sock.recv_into

    class Counting:
        def __getattr__(self, name: str) -> object:
            return getattr(near, name)

        def recv_into(self, *arguments: object) -> int:
            got = receive_into(*arguments)  # type: ignore[arg-type]
            looks.append(got)
            return got

    link._sock = Counting()  # type: ignore[assignment]
    sender = later([b"x" * 10_000] * (SIZE // 10_000 + 1), far, 0.0005)
    link.receive_into(memoryview(bytearray(SIZE)))
    assert len(looks) <= 10, looks
    far.close()
    sender.join()
