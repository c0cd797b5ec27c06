"""Runs measurements in processes forked from one which has imported torch, so that each starts in 20 ms and not in 2 s.

Otherwise it does what child.py does: each leads its own session, has a timeout, and is killed with all that it has
started.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from bench.core import child
from bench.core.session import sweep

LOOK = 0.02  # seconds between two looks at a measurement, at least
PATIENCE = 3  # the next look waits that many times as long as the last one took: looks take a quarter of a core at most


class Warm:
    """A process that has imported torch, and forks for each measurement.  warm() starts it.

    Attributes:
        session: the number of its session, in which only this process is.
    """

    def __init__(self, session: int, requests: IO[str], answers: IO[str]) -> None:
        self.session, self._requests, self._answers = session, requests, answers

    def run(self, function: str, arguments: dict[str, Any], timeout: float, look: Callable[[int], Any]) -> Any:
        """child.run(), but forked; meanwhile it calls look() again and again, with the number of the session.

        Raises:
            ChildError: as child.run() does.
        """
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
            pid, end = int(self._ask([function, arguments, scratch])), time.monotonic() + timeout
            try:
                while not (in_time := child.ended(pid, _look(look, pid))) and time.monotonic() < end:
                    pass
                printed, complaint = (child.last_line(Path(scratch, of).read_bytes()) for of in ("output", "errors"))
            finally:
                sweep(pid)  # before it is reaped: until then its number is not reused
                code = int(self._ask("reap"))
        if not in_time:
            raise child.ChildError(f"killed after {timeout:g} s")
        return child.result(printed, complaint, code)

    def _ask(self, request: Any) -> str:
        print(json.dumps(request), file=self._requests, flush=True)
        return self._answers.readline()


@contextlib.contextmanager
def warm(*modules: str, checkout: Path | None = None) -> Iterator[Warm]:
    """A process that has imported these modules; shmloader is that of the checkout."""
    with child.importable(checkout) as folder:
        environment, command = os.environ | child.ONE_THREAD, [sys.executable, "-m", "bench.core.warm", *modules]
        pipe = subprocess.PIPE
        # A session of its own, because Ctrl-C is the bench's affair.
        with subprocess.Popen(
            command, stdin=pipe, stdout=pipe, cwd=folder, env=environment, text=True, start_new_session=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            yield Warm(process.pid, process.stdin, process.stdout)


def _look(look: Callable[[int], Any], session: int) -> float:
    began = time.monotonic()
    look(session)
    return max(LOOK, PATIENCE * (time.monotonic() - began))


def _serve() -> None:
    """For each request, fork; print the new process's number, and, when it has been reaped, its exit code."""
    gc.collect()
    gc.freeze()  # so that a collection in a forked process does not write to these pages, which would copy them
    server = os.getpid()
    for line in sys.stdin:
        function, arguments, scratch = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os.setsid()
            for name, descriptor in (("output", 1), ("errors", 2), (os.devnull, 0)):
                os.dup2(os.open(Path(scratch, name), os.O_RDWR | os.O_CREAT), descriptor)
            os.environ["TMPDIR"] = scratch
            child.call(function, arguments, server)
        while os.getsid(pid) != pid:  # before that, its session is not yet its own, and sweep() would not find it
            time.sleep(0.0002)
        print(pid, flush=True)
        if not sys.stdin.readline():  # the bench has ended, and its processes end with this one
            return
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    for module in sys.argv[1:]:
        importlib.import_module(module)
    _serve()
