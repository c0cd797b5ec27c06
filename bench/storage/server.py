"""A web server on the loopback that is as slow as an object store: each request waits, and all share a bandwidth.
A file FAULTS in the folder makes requests fail, hang or end early.

It stops with the process that started it.

A line of FAULTS is the byte at which a request begins, and what happens to it: FAIL (500), HANG (no answer) or CUT
(half of the bytes, and the connection ends).
"""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import re
import selectors
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["CUT", "FAIL", "FAULTS", "HANG", "serving"]

FAULTS = "faults"
FAIL, HANG, CUT = "fail", "hang", "cut"

_PIECE = 1 << 16  # bytes that are sent at a time
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_PDEATHSIG = 1  # prctl's


class _Bandwidth:
    """Hands out the right to send bytes, so many a second, in the order of asking."""

    def __init__(self, bytes_per_second: float) -> None:
        self._each = 1 / bytes_per_second
        self._free_at = 0.0

    async def take(self, count: int) -> None:
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now) + count * self._each
        await asyncio.sleep(max(0.0, self._free_at - now))


async def _answer(reader: Any, writer: Any, folder: Path, latency: float, bandwidth: _Bandwidth) -> None:
    try:
        while request := await reader.readuntil(b"\r\n\r\n"):
            method, target, *_ = request.decode("latin-1").split(" ", 2)
            path = folder / os.path.basename(target)
            fault = _fault(folder, request.decode("latin-1"))
            await asyncio.sleep(latency if fault != HANG else 1e6)
            if not path.is_file():
                writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                continue
            if fault == FAIL:
                writer.write(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n")
                continue
            status = path.stat()
            found = _RANGE.search(request.decode("latin-1"))
            begin = int(found[1]) if found else 0
            end = min(int(found[2]) + 1 if found and found[2] else status.st_size, status.st_size)
            state = "206 Partial Content" if found else "200 OK"
            content_range = f"Content-Range: bytes {begin}-{end - 1}/{status.st_size}\r\n" if found else ""
            writer.write(
                f'HTTP/1.1 {state}\r\nAccept-Ranges: bytes\r\nETag: "{status.st_mtime_ns}"\r\n{content_range}'
                f"Content-Length: {end - begin}\r\n\r\n".encode()
            )
            if method == "HEAD":
                continue
            with open(path, "rb", buffering=0) as file:
                end = end if fault != CUT else (begin + end) // 2
                for at in range(begin, end, _PIECE):
                    piece = os.pread(file.fileno(), min(_PIECE, end - at), at)
                    await bandwidth.take(len(piece))
                    writer.write(piece)
                    await writer.drain()
            if fault == CUT:
                return
    except (ConnectionError, asyncio.IncompleteReadError):
        pass  # whoever asked has gone
    finally:
        writer.close()


def _fault(folder: Path, request: str) -> str:
    """What is to go wrong with a request; empty: nothing."""
    found, faults = _RANGE.search(request), folder / FAULTS
    if found is None or not faults.is_file():
        return ""
    return dict(line.split() for line in faults.read_text().splitlines()).get(found[1], "")


def _serve(folder: str, latency: float, bytes_per_second: float, port: Any) -> None:
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the bench, which ends this

    async def run() -> None:
        bandwidth = _Bandwidth(bytes_per_second)
        server = await asyncio.start_server(
            lambda reader, writer: _answer(reader, writer, Path(folder), latency, bandwidth), "127.0.0.1", 0
        )
        port.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    # select() waits to the microsecond.  epoll rounds up to a millisecond, and a request waits twice: 4 % of 50 ms.
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    loop.run_until_complete(run())


@contextmanager
def serving(folder: str, latency: float, bytes_per_second: float) -> Iterator[str]:
    """Serve the files of a folder.

    Args:
        folder: Of the files; those in folders of it are not served.
        latency: Seconds that each request waits.
        bytes_per_second: Of all answers together.

    Yields:
        The URL of the folder, with a slash.
    """
    context = multiprocessing.get_context("fork")
    port = context.SimpleQueue()
    process = context.Process(target=_serve, args=(folder, latency, bytes_per_second, port), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{port.get()}/"
    finally:
        process.kill()
        process.join()
        process.close()
        port.close()
