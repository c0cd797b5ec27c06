"""Reads shards by fsspec: from object stores (s3, gs), the Hub (hf) and web servers.
Decides how many calls are under way: to file systems that are not asynchronous, and while an index is made.

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
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from shmloader.storage.threads import Threads

__all__ = ["Asker", "RemoteFiles", "asking", "matching", "read_whole", "stamp_of"]

THREADS = 16  # calls under way to a file system that is not asynchronous
AT_ONCE = 32  # questions under way while an index is made

Result = TypeVar("Result")


def _filesystem(url: str, options: dict[str, Any], **more: Any) -> tuple[Any, str]:
    """fsspec's file system for a URL, and the path in it."""
    from fsspec.core import url_to_fs

    try:
        found: tuple[Any, str] = url_to_fs(url, **options, **more)
    except ImportError as error:  # fsspec's text names the package to install
        raise ImportError(f"{url} cannot be read: {error}") from error
    return found


def stamp_of(info: dict[str, Any]) -> str:
    """A text that changes with a file's content, from its file system's info: its size, and its tag or its time."""
    names = ("ETag", "etag", "md5Hash", "blob_id", "sha256", "LastModified", "last_modified", "mtime", "updated")
    tag = next((info[name] for name in (*names, "created") if info.get(name)), "")
    return f"{info.get('size')} {tag}"


# --------------------------------------------------------------------------------------------------- before the workers


class Asker:
    """Calls to file systems while an index is made; awaited in one event loop, see NOTE [ Remote files ].

    Args:
        options: For fsspec.
        threads: For file systems that are not asynchronous.
    """

    def __init__(self, options: dict[str, Any], threads: concurrent.futures.Executor) -> None:
        self._options = options
        self._threads = threads
        self._systems: dict[str, Any] = {}
        self.one_at_a_time = asyncio.Lock()  # for calls that take the memory of a whole shard

    async def call(self, method: str, url: str, **arguments: Any) -> Any:
        """Call a method of a URL's file system with the URL's path."""
        system, path = self._at(url)
        if system.async_impl:
            return await getattr(system, f"_{method}")(path, **arguments)
        function = getattr(system, method)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: function(path, **arguments))

    async def all(self, ask: Callable[[Any], Awaitable[Result]], of: Iterable[Any]) -> list[Result]:
        """The results of `ask` for each of these, with AT_ONCE under way; the first error ends all of them."""
        places = asyncio.Semaphore(AT_ONCE)

        async def one(each: Any) -> Result:
            async with places:
                return await ask(each)

        tasks = [asyncio.ensure_future(one(each)) for each in of]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    def unstripped(self, url: str, path: str) -> str:
        """The URL of a path in the same file system as `url`."""
        name: str = self._at(url)[0].unstrip_protocol(path)
        return name

    async def close(self) -> None:
        """Close the connections."""
        for system in self._systems.values():
            if system.async_impl:
                with contextlib.suppress(Exception):
                    session = await system.set_session()
                    closed = session.close()
                    if inspect.isawaitable(closed):
                        await closed

    def _at(self, url: str) -> tuple[Any, str]:
        from fsspec.core import split_protocol

        protocol = split_protocol(url)[0] or "file"
        if protocol not in self._systems:
            from fsspec import get_filesystem_class

            is_async = bool(get_filesystem_class(protocol).async_impl) if "::" not in url else False
            more = {"asynchronous": True, "loop": asyncio.get_running_loop()} if is_async else {}
            self._systems[protocol] = _filesystem(url, self._options, skip_instance_cache=True, **more)[0]
        system = self._systems[protocol]
        return system, system._strip_protocol(url)


def asking(options: dict[str, Any], questions: Callable[[Asker], Awaitable[Result]]) -> Result:
    """Ask file systems questions, in a thread that ends before this returns; see NOTE [ Remote files ]."""

    begun: concurrent.futures.Future[Any] = concurrent.futures.Future()

    async def asked() -> Result:
        begun.set_result((asyncio.get_running_loop(), asyncio.current_task()))
        with concurrent.futures.ThreadPoolExecutor(THREADS) as threads:
            asker = Asker(options, threads)
            try:
                return await questions(asker)
            finally:
                await asker.close()

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        answer = thread.submit(asyncio.run, asked())
        try:
            return answer.result()
        except BaseException:  # such as Ctrl-C: otherwise the join would wait until all questions are answered
            loop, task = begun.result()
            with contextlib.suppress(RuntimeError):  # it has ended
                loop.call_soon_threadsafe(task.cancel)
            raise


def matching(pattern: str, options: dict[str, Any]) -> list[str]:
    """The URLs that match a pattern, sorted."""

    async def asked(asker: Asker) -> list[str]:
        return [asker.unstripped(pattern, path) for path in sorted(await asker.call("glob", pattern))]

    return asking(options, asked)


def read_whole(url: str, options: dict[str, Any]) -> bytes:
    """All bytes of a file."""
    data: bytes = asking(options, lambda asker: asker.call("cat_file", url))
    return data


# ---------------------------------------------------------------------------------------------------------- in a worker


class RemoteFiles:
    """Files that this process reads by fsspec.

    Args:
        options: For fsspec.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._systems: dict[str, Any] = {}
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
        system, path = self._at(url)
        return system.open(path, "rb")

    def _begin(self, method: str, url: str, **arguments: Any) -> concurrent.futures.Future[Any]:
        system, path = self._at(url)
        if system.async_impl:
            return asyncio.run_coroutine_threadsafe(getattr(system, f"_{method}")(path, **arguments), system.loop)
        return self._threads.submit(lambda: getattr(system, method)(path, **arguments))

    def _at(self, url: str) -> tuple[Any, str]:
        protocol = url.partition("://")[0]
        if protocol not in self._systems:
            self._systems[protocol] = _filesystem(url, self._options)[0]
        system = self._systems[protocol]
        return system, system._strip_protocol(url)


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
