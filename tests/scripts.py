"""Scripts that tests run in processes of their own, and the processes that these leave.

NOTE [ Scripts ]

    Most scripts need torch, and its import takes almost two seconds of CPU.  So run_script() asks a server for them: a
    process that has imported torch and shmloader once, and is forked for each script (script_server.py).  The forked
    process runs the script from a file, as `__main__`, and exits as any interpreter does.

    A test passes `fresh=True` where a script is about what a new interpreter does: what an import costs or changes, in
    which order atexit calls what, how large a process is.  A script that is given flags for Python, another environment
    or another folder also gets a new interpreter.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import multiprocessing
import os
import pathlib
import selectors
import signal
import socket
import subprocess
import sys
import textwrap
import time
from typing import Any

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
PYTHONS_START_METHOD = multiprocessing.get_all_start_methods()[0]  # forkserver since Python 3.14
SERVER = ROOT / "tests" / "script_server.py"
LONGEST = 600  # seconds after which a script hangs; a busy machine needs a third of it for some
GONE = 20  # seconds that what a process started may outlive it; a worker that is importing torch needs some


@dataclasses.dataclass
class Ran:
    status: int
    out: str
    err: str
    ended: float  # by the monotonic clock, which is the script's too

    @property
    def seconds(self) -> float:
        """From the time that the script printed first, before what it is about, to its end."""
        return self.ended - float(self.out.split(maxsplit=1)[0])


_NO_SCRIPTS = ("PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR")  # a test's name, and what torch's compiler sets


def environment() -> dict[str, str]:
    """What a script finds in os.environ: what this process has there, but for what changes from test to test.

    Otherwise the server would have another environment than most tests, and most scripts a new interpreter.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in _NO_SCRIPTS}
    return inherited | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]), "OMP_NUM_THREADS": "1"}


_usual: dict[str, str] = {}


def note_environment() -> None:
    """Note, before each test, what scripts find there: what a test changes for itself is not in it.

    What earlier tests have left there is, because it would keep all later scripts from the server.
    """
    _usual.clear()
    _usual.update(environment())


def start_script(text: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start a script in a new interpreter.

    Args:
        text: The script.
        arguments: Of its command line.
        options: Of subprocess.Popen; `flags` are Python's, and `before` is a command that runs it.
    """
    return subprocess.Popen(
        [*options.pop("before", ()), sys.executable, "-u", *options.pop("flags", ()), *script_file(text), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
        **options,
    )


_scripts: list[pathlib.Path] = []


def script_file(text: str) -> list[str]:
    """A real file, for spawn imports it again.  Its first line, which is empty, names the suite's start method."""
    path = pathlib.Path(os.environ["SHMLOADER_TEST_DIR"]) / f"script_{len(_scripts)}.py"
    text = textwrap.dedent(text)
    method = multiprocessing.get_start_method()
    if method != PYTHONS_START_METHOD and text.startswith("\n"):
        line = "import multiprocessing; multiprocessing.set_start_method"
        text = f'if __name__ == "__main__": {line}("{method}"){text}'
    path.write_text(text)
    _scripts.append(path)
    return [str(path)]


def run_script(text: str, seconds: float = LONGEST, fresh: bool = False, **options: Any) -> Ran:
    """Run a script in a session of its own; whatever it leaves running is a failure, and so is falling off the ring.

    Args:
        text: The script.
        seconds: It hangs if it takes longer.
        fresh: Whether it needs a new interpreter: NOTE [ Scripts ].
        options: As of start_script(); with any of them it has a new interpreter.
    """
    has_driver = torch.version.cuda is not None  # test-cuda: each script starts a driver of its own
    if fresh or has_driver or options or not (server := _server()).serves():
        process = start_script(text, **options)
        pid = process.pid
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(pid, signal.SIGKILL)
            out, err = process.communicate()
            raise AssertionError(f"the script hangs\n{out}\n{err}") from None
        status = process.returncode
    else:
        pid, status, out, err = server.run(script_file(text)[0], seconds)
    ended = time.monotonic()
    left = wait_until_gone(pid, GONE)
    for each in left:
        os.kill(each, signal.SIGKILL)
    assert not left, f"processes are left: {left}\n{out}\n{err}"
    assert "does not ride shmloader's ring" not in err, f"{out}\n{err}"
    return Ran(status, out, err, ended)


# ------------------------------------------------------------------------------------------------------- the server


class Server:
    """The process that is forked for each script."""

    def __init__(self) -> None:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-u", str(SERVER), str(its.fileno())]
        with its:
            self.process = subprocess.Popen(
                command, pass_fds=[its.fileno()], env=dict(_usual), stdin=subprocess.DEVNULL
            )
        self._socket = ours
        self.descriptor = ours.fileno()

    def serves(self) -> bool:
        """Whether a script would find the environment that no test has changed for itself alone."""
        return environment() == _usual

    def run(self, path: str, seconds: float) -> tuple[int, int, str, str]:
        """Run a script: its pid, its status as subprocess has it, what it wrote."""
        pipes = [os.pipe(), os.pipe()]
        try:
            request = json.dumps({"path": path, "folder": os.getcwd()}).encode()
            socket.send_fds(self._socket, [request], [write for _, write in pipes])
        finally:
            for _, write in pipes:
                os.close(write)
        pid = json.loads(self._receive())
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(open(read, "rb", buffering=0)) for read, _ in pipes]
            status, texts = self._follow(pid, files, time.monotonic() + seconds)
        out, err = (text.decode() for text in texts)
        if status is None:
            raise AssertionError(f"the script hangs\n{out}\n{err}")
        return pid, status, out, err

    def _follow(self, pid: int, files: list[Any], end: float) -> tuple[int | None, list[bytes]]:
        """Read until all have closed the pipes, and the server has reported the status; None: it was killed.

        What outlives the script holds the pipes.  So GONE after its end they are left as they are.
        """
        status: int | None = None
        texts = [b"" for _ in files]
        hangs = False
        with selectors.DefaultSelector() as selector:
            for at, file in enumerate(files):
                selector.register(file, selectors.EVENT_READ, at)
            selector.register(self._socket, selectors.EVENT_READ, None)
            while selector.get_map():
                ready = selector.select(max(0.0, end - time.monotonic()))
                if not ready and (hangs or status is not None):
                    break
                if not ready:
                    hangs, end = True, time.monotonic() + GONE
                    os.killpg(pid, signal.SIGKILL)
                for key, _ in ready:
                    if key.data is None:
                        status, end = json.loads(self._receive()), time.monotonic() + GONE
                        selector.unregister(self._socket)
                    elif part := key.fileobj.read(1 << 16):  # type: ignore[union-attr]
                        texts[key.data] += part
                    else:
                        selector.unregister(key.fileobj)
        return None if hangs else status, texts

    def _receive(self) -> bytes:
        answer = self._socket.recv(4096)
        assert answer, "the server of scripts has ended"
        return answer

    def close(self) -> None:
        """End it, also where a process that was forked meanwhile has a copy of the socket."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self.process.wait()


_started: list[Server] = []


def _server() -> Server:
    """The server of this process, started the first time."""
    if not _started:
        _started.append(Server())
    return _started[0]


def server_pids() -> set[int]:
    """The server's, if it was started."""
    return {server.process.pid for server in _started}


def server_descriptors() -> set[int]:
    """Those of this process that are for the server."""
    return {server.descriptor for server in _started}


def close_server() -> None:
    """End the server, if it was started."""
    while _started:
        _started.pop().close()


# --------------------------------------------------------------------------------------------------- what is left


def session_members(session: int) -> list[int]:
    """Living processes of a session (a zombie is no longer there)."""
    members = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = pathlib.Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(stat[3]) == session and stat[0] not in "ZX":
                members.append(int(entry))
    return members


def wait_until_gone(session: int, seconds: float) -> list[int]:
    """Wait for the processes of a session; those that are left then."""
    end = time.monotonic() + seconds
    while (left := session_members(session)) and time.monotonic() < end:
        time.sleep(0.02)
    return left


def own_shm(size: str) -> bool:
    """Have a /dev/shm of this process's and its children's own, this large; False where that is forbidden."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_mounts, recursive, private = 0x20000, 0x4000, 1 << 18
    return not (
        libc.unshare(new_mounts)
        or libc.mount(b"none", b"/", None, recursive | private, None)
        or libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, f"size={size}".encode())
    )
