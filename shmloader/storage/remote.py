"""Reads shards by fsspec: from object stores (s3, gs), the Hub (hf) and web servers.
Decides how many calls to a file system that is not asynchronous are under way.

What happens if a read fails, or gives too few bytes, is in tars.py and tables.py.

NOTE [ Remote files ]

    1. fsspec refuses a file system in a process that was forked after it was made.  So each process has its own, made
       when it first reads (`OfThisProcess`).
    2. The trainer must have no other thread when it forks workers.  It asks some questions before that: which files
       match a pattern, and what an index needs.  A thread with its own event loop asks them, and is joined at once
       (`asking`).  So fsspec's own thread never starts in the trainer.
    3. A worker has many requests under way.  Asynchronous file systems (s3, gs, http) take any number at a time, on
       their own event loop.  Other file systems (hf) are called in a few threads of ours.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import inspect
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

from shmloader.storage.threads import Threads

__all__ = ["OfThisProcess", "RemoteFiles", "asking", "matching", "read_whole", "stamp_of"]

THREADS = 16  # calls under way to a file system that is not asynchronous


def stamp_of(info: dict[str, Any]) -> str:
    """A text that changes with a file's content, from its file system's info: its size, and its tag or its time."""
    names = ("ETag", "etag", "md5Hash", "blob_id", "sha256", "LastModified", "last_modified", "mtime", "updated")
    tag = next((info[name] for name in (*names, "created") if info.get(name)), "")
    return f"{info.get('size')} {tag}"


class RemoteFiles:
    """Files that this process reads by fsspec.

    Args:
        options: For fsspec.
        loop: The event loop of asynchronous file systems; None: fsspec's own.
    """

    def __init__(self, options: dict[str, Any], loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._options = options
        self._loop = loop
        self._systems: dict[str, Any] = {}
        self._opening = threading.Lock()
        self._threads = Threads(THREADS)

    def read(self, url: str, begin: int, end: int) -> concurrent.futures.Future[bytes]:
        """Begin to read a part of a file."""
        return self._begin("cat_file", url, start=begin, end=end)

    def info(self, url: str) -> concurrent.futures.Future[dict[str, Any]]:
        """Begin to ask the file system for a file's info."""
        return self._begin("info", url)

    def submit(self, function: Callable[[], Any]) -> concurrent.futures.Future[Any]:
        """Call a function in a thread."""
        return self._threads.submit(function)

    def open(self, url: str) -> Any:
        """A file object, for libraries that need one."""
        system, path = self.at(url)
        return system.open(path, "rb")

    def call(self, method: str, url: str, **arguments: Any) -> Any:
        """Call a method of a URL's file system with the URL's path, and wait; in this thread if it can be."""
        system, path = self.at(url)
        if system.async_impl:
            return self._begin(method, url, **arguments).result()
        return getattr(system, method)(path, **arguments)

    def _begin(self, method: str, url: str, **arguments: Any) -> concurrent.futures.Future[Any]:
        system, path = self.at(url)
        if system.async_impl:
            loop = self._loop or system.loop
            return asyncio.run_coroutine_threadsafe(getattr(system, f"_{method}")(path, **arguments), loop)
        return self._threads.submit(lambda: getattr(system, method)(path, **arguments))

    def at(self, url: str) -> tuple[Any, str]:
        """A URL's file system, and the path in it."""
        from fsspec.core import get_filesystem_class, url_to_fs

        protocol = url.partition("://")[0]
        with self._opening:
            if protocol not in self._systems:
                try:
                    own: dict[str, Any] = {}
                    if self._loop is not None and "::" not in protocol and get_filesystem_class(protocol).async_impl:
                        own = {"asynchronous": True, "loop": self._loop, "skip_instance_cache": True}
                    self._systems[protocol] = url_to_fs(url, **self._options, **own)[0]
                except ImportError as error:  # fsspec's text names the package to install
                    raise ImportError(f"{url} cannot be read: {error}") from error
            system = self._systems[protocol]
        return system, system._strip_protocol(url)

    async def close(self) -> None:
        """Close the connections, in the loop of this object."""
        for system in self._systems.values():
            if system.async_impl:
                with contextlib.suppress(Exception):
                    session = await system.set_session()
                    closed = session.close()
                    if inspect.isawaitable(closed):
                        await closed


@contextlib.contextmanager
def asking(options: dict[str, Any]) -> Iterator[RemoteFiles]:
    """Files for the trainer: its calls end with the block, and their thread with it; see NOTE [ Remote files ]."""
    made: concurrent.futures.Future[RemoteFiles] = concurrent.futures.Future()
    over: concurrent.futures.Future[None] = concurrent.futures.Future()

    async def live() -> None:
        files = RemoteFiles(options, asyncio.get_running_loop())
        made.set_result(files)
        await asyncio.wrap_future(over)
        await files.close()

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        try:
            thread.submit(asyncio.run, live())
            yield made.result()
        finally:
            over.set_result(None)


def matching(pattern: str, options: dict[str, Any]) -> list[str]:
    """The URLs that match a pattern, sorted."""
    with asking(options) as files:
        system, _ = files.at(pattern)
        return [system.unstrip_protocol(path) for path in sorted(files.call("glob", pattern))]


def read_whole(url: str, options: dict[str, Any]) -> bytes:
    """All bytes of a file."""
    with asking(options) as files:
        data: bytes = files.call("cat_file", url)
    return data


class OfThisProcess:
    """An object that each process makes for itself when it first needs it.  A forked child does not use its parent's.

    Args:
        make: Makes it.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._made: tuple[int, Any] | None = None

    def __call__(self) -> Any:
        made = self._made
        if made is None or made[0] != os.getpid():
            made = self._made = os.getpid(), self._make()
        return made[1]

    def __reduce__(self) -> tuple[Any, ...]:
        return OfThisProcess, (self._make,)
