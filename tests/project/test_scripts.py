"""A script that the server of scripts runs sees and does what it would in a new interpreter: NOTE [ Scripts ]."""

from __future__ import annotations

import os
import signal

import pytest
import scripts
import torch
from scripts import close_server, run_script, server_pids

SAME = {
    "its name": """
        import os, sys
        print(__name__, sys.argv[1:], sys.argv[0] == __file__, sys.path[0] == os.path.dirname(__file__))
        """,
    "a status": "import sys; sys.exit(3)",
    "an error": "def f(): raise ValueError(5)\nf()",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "interrupted": "import signal; signal.raise_signal(signal.SIGINT)",
    "at exit": "import atexit; atexit.register(print, 'at exit'); print('before')",
    "the collector at the end": """
        import os
        class Kept:
            def __del__(self, write=os.write): write(1, b"gone")
        cycle = Kept()
        cycle.itself = cycle
        """,
    "a thread that goes on": """
        import threading, time
        threading.Thread(target=lambda: (time.sleep(0.1), print("late"))).start()
        """,
    "handlers": """
        import signal
        print([str(signal.getsignal(number)) for number in range(1, 32)], signal.pthread_sigmask(0, []))
        """,
    "a session of its own": "import os; print(os.getsid(0) == os.getpid() == os.getpgid(0))",
    "descriptors": """
        import os
        print(sorted(os.readlink(f"/proc/self/fd/{fd}")[:5] for fd in (0, 1, 2)), len(os.listdir("/proc/self/fd")))
        """,
    "a spawned process": """
        import multiprocessing
        def child(): print("child of", __name__)
        if __name__ == "__main__":
            process = multiprocessing.get_context("spawn").Process(target=child)
            process.start()
            process.join()
            print(process.exitcode)
        """,
    "environment": "import os; print(sorted(os.environ.items()))",
}


@pytest.mark.long
@pytest.mark.skipif(torch.version.cuda is not None, reason="with a driver each script has a new interpreter")
def test_the_server_runs_it_whichever_test_starts_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    close_server()
    with monkeypatch.context() as changed:
        changed.setenv("SHMLOADER_OF_A_TEST", "1")
        run_script("pass")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "set by an import")
    for test in ("tests/one.py::test_one (call)", "tests/another.py::test_another (setup)"):
        monkeypatch.setenv("PYTEST_CURRENT_TEST", test)
        assert int(run_script("import os; print(os.getppid())").out) in server_pids()


@pytest.mark.parametrize("script", SAME.values(), ids=SAME)
def test_it_is_as_in_a_new_interpreter(script: str) -> None:
    served, fresh = run_script(script), run_script(script, fresh=True)
    assert (served.status, served.out) == (fresh.status, fresh.out.replace("script_server", "script"))
    assert served.err.splitlines()[-1:] == fresh.err.splitlines()[-1:]


@pytest.mark.parametrize("fresh", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_process_that_it_leaves_is_a_failure(fresh: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that the server runs is reported with its output, also where what it leaves holds that."""
    monkeypatch.setattr(scripts, "GONE", 1)
    closed = "os.close(1), os.close(2)," if fresh else ""  # a new interpreter's output is read to its end
    script = f"import os; print('begun', flush=True); os.fork() or ({closed} os.execlp('sleep', 'sleep', '100'))"
    with pytest.raises(AssertionError, match=r"processes are left.*\nbegun"):
        run_script(script, seconds=50, fresh=fresh)
    assert run_script("print('after it')").out == "after it\n"


@pytest.mark.parametrize("fresh", [False, pytest.param(True, marks=pytest.mark.long)])
def test_one_that_hangs_is_a_failure(fresh: bool) -> None:
    with pytest.raises(AssertionError, match="the script hangs\nbegun"):
        run_script("import time; print('begun', flush=True); time.sleep(100)", seconds=1, fresh=fresh)
    assert run_script("print('after it')").out == "after it\n"


def test_another_environment_needs_a_new_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHMLOADER_OF_A_TEST", "1")
    script = "import os, sys; print(os.environ['SHMLOADER_OF_A_TEST'], 'torch' in sys.modules)"
    assert run_script(script).out == "1 False\n"


def test_two_scripts_are_two_processes() -> None:
    pids = {run_script("import os; print(os.getpid())").out for _ in range(2)}
    assert len(pids) == 2 and str(os.getpid()) not in pids
    assert run_script("import os; os.kill(os.getpid(), 9)").status == -signal.SIGKILL
