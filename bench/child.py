"""One measurement, one process: a fresh heap each time, and an end to it whatever happens.

`run("module:function", arguments, timeout)` starts `python -m bench.child`, which calls the function and prints what
it returns as JSON.  The process leads a group of its own; when it has ended, or has taken too long, all that is left
of the group is killed.  If the bench itself is killed, the kernel ends the child too.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

_ROOT = Path(__file__).resolve().parent.parent


class ChildError(Exception):
    """A child gave no result; the text says why, in one line and without paths."""


def run(function: str, arguments: dict[str, Any], timeout: float, python: str = sys.executable) -> Any:
    """Call a function in a new process.

    Args:
        function: "module:name"; what it returns goes through JSON.
        arguments: by keyword; they go through JSON too.
        timeout: seconds that starting, measuring and ending may take together.
        python: the interpreter, where it is to be that of another environment.

    Raises:
        ChildError: it took longer, exited with a code or by a signal, or printed no result.
    """
    command = [python, "-m", "bench.child", function, json.dumps(arguments), str(os.getpid())]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        # Files and not pipes: what a hung worker keeps open must not keep us waiting.
        process = subprocess.Popen(command, stdout=output, stderr=errors, cwd=_ROOT, start_new_session=True)
        try:
            in_time = _ended(process.pid, timeout)
        finally:
            # Before wait(): as long as the leader is not reaped, its number is nobody else's.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        printed, complaint = _last_line(output), _without_paths(_last_line(errors))[:200]
    if not in_time:
        raise ChildError(f"killed after {timeout:g} s")
    if process.returncode:
        raise ChildError(complaint or f"exit code {process.returncode}")
    try:
        return json.loads(printed)
    except ValueError:
        raise ChildError(f"printed no result, but {_without_paths(printed)[:200]!r}") from None


def _ended(pid: int, timeout: float) -> bool:
    descriptor = os.pidfd_open(pid)
    try:
        return bool(select.select([descriptor], [], [], timeout)[0])
    finally:
        os.close(descriptor)


def _last_line(file: IO[bytes]) -> str:
    file.seek(0)
    lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def _without_paths(line: str) -> str:
    return re.sub(r"(?<![\w.])/\S*/", "", line)


def _main() -> None:
    from shmloader._process import die_with_parent

    if die_with_parent() != int(sys.argv[3]):  # the bench was killed before this line
        sys.exit("the bench has ended")
    module, name = sys.argv[1].split(":")
    result = getattr(importlib.import_module(module), name)(**json.loads(sys.argv[2]))
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    _main()
