"""The harness of `make test-long` finds what a loader does wrong: each of these does one thing wrong."""

from __future__ import annotations

import pytest
from scripts import run_script

SCRIPT = """
import os, subprocess, sys, time
import torch.utils.data
import shmloader
from tests.chaos import __main__ as chaos
from tests.chaos import inside, outside
class Wrong(shmloader.DataLoader):
    def __iter__(self):
        batches = super().__iter__()
        BODY
if __name__ == "__main__":
    LIMITS
    kinds = {"torch": torch.utils.data.DataLoader, "shmloader": Wrong}
    only = ["--only", *"SCENARIOS".split()]
    sys.exit(chaos.main(["--seed", "1", "--trials", "1", "--seconds", "1000", *only], kinds))
"""


SHORT = "inside.SETTLES, outside.SILENCE, outside.GRACE = 5.0, 20.0, 5.0"  # what is left does not go later either


def run(body: str, scenarios: str, limits: str = "pass") -> tuple[int, str, str]:
    """The status, and the flaws that the report lists for torch's loader and for this one."""
    script = SCRIPT.replace("LIMITS", limits).replace("BODY", body.replace("\n", "\n        "))
    ran = run_script(script.replace("SCENARIOS", scenarios))
    rows = [line for line in ran.out.splitlines() if line.startswith(scenarios.split()[0])]
    assert rows and not ran.err, ran.out + ran.err
    return ran.status, rows[-1][37:77].strip(), rows[-1][77:].strip()


@pytest.mark.long
def test_a_loader_that_does_nothing_wrong() -> None:
    assert run("return batches", "epochs errors forks") == (0, "nothing", "nothing")


FLAWS = {
    "batches are lost": ("for k, b in zip(range(7), batches): yield b", "stops", "lost"),
    "a batch comes twice": (
        "for k, b in enumerate(batches):\n    yield b\n    if k == 4: yield b",
        "forks",
        "wrong batch",
    ),
    "a value is another": ("for k, b in enumerate(batches):\n    b['x'] += k == 4; yield b", "stops", "wrong batch"),
    "an error ends the epoch": ("yield from batches", "errors", "otherwise than torch"),
    "a death ends the epoch": ("try:\n    yield from batches\nexcept RuntimeError: pass", "ends", "lost"),
    "it hangs": ("for b in batches: yield b; time.sleep(1000)", "stops", "hang"),
    "it ends otherwise": ("os._exit(7)", "exits", "status"),
    "it writes": ("print('Exception ignored in: that', file=sys.stderr); return batches", "stops", "noise"),
    "a descriptor is left": ("os.open('/dev/null', 0); return batches", "stops", "descriptors left"),
    "a process is left": ("os.system('sleep 100 &'); return batches", "stops", "process left"),
    "a name is left": ("open('/dev/shm/left', 'w'); return batches", "stops", "name left in /dev/shm"),
}


@pytest.mark.parametrize(
    "flaw", [flaw if flaw == "batches are lost" else pytest.param(flaw, marks=pytest.mark.long) for flaw in FLAWS]
)
def test_a_loader_that_does_one_thing_wrong(flaw: str) -> None:
    body, scenario, found = FLAWS[flaw]
    status, theirs, ours = run(body, scenario, SHORT)
    assert status == 1 and found in ours, ours
    assert found not in theirs, theirs


SIGNALLED = """
import os, random, signal, sys, time
import torch.utils.data
from tests.chaos.outside import Outside
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
def body(trial):
    os.kill(os.getpid(), trial.case["signal"])
    time.sleep(1)
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT):
    case = {"signal": number, "order": 1}
    print(Outside(body, torch.utils.data.DataLoader, False, case, random.Random(1)).finish().status)
"""


def test_signals_that_its_caller_ignores() -> None:
    """nohup ignores SIGHUP, and a script's & SIGINT and SIGQUIT: trials that send them would find wrong what is not."""
    ran = run_script(SIGNALLED)
    assert ran.out.split() == ["-15", "-1", "-3", "-2"], f"{ran.out}\n{ran.err}"


def test_nothing_is_left_to_import_under_a_limit() -> None:
    ran = run_script("import sys, tests.chaos.inside; print('numpy.random' in sys.modules)", fresh=True)
    assert ran.out == "True\n", ran.err
