"""Runs one measurement in a new process: a fresh heap, one OpenMP thread, a timeout, and an error in one line.

`run("module:function", arguments, timeout)` starts `python -m bench.core.child`, which calls the function and
prints the result as JSON.  The process leads its own session.  When it has ended, or has taken too long, the rest of
the session is killed (session.py).  If the bench itself is killed, the kernel ends the child too.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

from bench.core.session import sweep

# As many as torch's and our workers have.  With more, SPDL's would crowd one another, and its arena's process would
# hang, because it is forked, and a pool of OpenMP's threads does not survive that.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}

_ROOT = Path(__file__).resolve().parents[2]
_PR_SET_PDEATHSIG = 1  # prctl(2)


class ChildError(Exception):
    """A child gave no result; the text has the reason, in one line and without paths."""


def run(
    function: str,
    arguments: dict[str, Any],
    timeout: float,
    python: str = sys.executable,
    checkout: Path | None = None,
) -> Any:
    """Call a function in a new process.

    Args:
        function: "module:name"; its result must be JSON.
        arguments: by keyword; they go through JSON too.
        timeout: seconds that starting, measuring and ending may take together.
        python: the interpreter; another environment's, if a loader has its own.
        checkout: whose shmloader is imported; None is the bench's own.  The bench is this one in either case.

    Raises:
        ChildError: it took longer, exited with a code or by a signal, or printed no result.
    """
    command = [python, "-m", "bench.core.child", function, json.dumps(arguments), str(os.getpid())]
    with (
        # Files and not pipes: a descriptor that a hung worker keeps open must not keep us waiting.
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
        # The child's files in it go with it.
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch,
        importable(checkout) as modules,
    ):
        environment = os.environ | ONE_THREAD | {"TMPDIR": scratch}
        process = subprocess.Popen(
            command, stdout=output, stderr=errors, cwd=modules, env=environment, start_new_session=True
        )
        try:
            in_time = ended(process.pid, timeout)
            # Read now, because the rest of the session may still complain about being killed.
            printed, complaint = (last_line(_all_of(file)) for file in (output, errors))
        finally:
            sweep(process.pid)  # before wait(): until the leader is reaped, its number is not reused
            process.wait()
    if not in_time:
        raise ChildError(f"killed after {timeout:g} s")
    return result(printed, complaint, process.returncode)


def result(printed: str, complaint: str, code: int) -> Any:
    """What a child that has ended by itself returned: from its last lines of output and of errors, and its exit code.

    Raises:
        ChildError: see run().
    """
    if code:
        raise ChildError(_without_paths(complaint)[:200] or f"exit code {code}")
    try:
        return json.loads(printed)
    except ValueError:
        raise ChildError(f"printed no result, but {_without_paths(printed)[:200]!r}") from None


@contextlib.contextmanager
def importable(checkout: Path | None) -> Iterator[Path]:
    """A folder with this bench and the checkout's shmloader, and nothing else of either.

    As the child's working directory it comes first in sys.path, before PYTHONPATH and what is installed; workers are
    given their trainer's sys.path.
    """
    if checkout is None:
        yield _ROOT
        return
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "bench").symlink_to(_ROOT / "bench")
        (folder / "shmloader").symlink_to(checkout.resolve() / "shmloader")
        yield folder


def ended(pid: int, timeout: float) -> bool:
    """Wait until a process has ended, or for so many seconds; whether it has ended."""
    descriptor = os.pidfd_open(pid)
    try:
        return bool(select.select([descriptor], [], [], timeout)[0])
    finally:
        os.close(descriptor)


def _all_of(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def last_line(text: bytes) -> str:
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def _without_paths(line: str) -> str:
    return re.sub(r"(?<![\w.])/\S*/", "", line)


def call(function: str, arguments: dict[str, Any], parent: int) -> NoReturn:
    """Call a function in this process, print its result, and end.  It also ends when its parent does."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the bench was killed before this line
        sys.exit("the bench has ended")
    module, name = function.split(":")
    code = 1
    try:
        print(json.dumps(getattr(importlib.import_module(module), name)(**arguments)), flush=True)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        # No clean-up: some loaders hang there, some complain after the last line.  session.py does it for all.
        os._exit(code)


if __name__ == "__main__":
    call(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]))
