"""The memory orders of atomics.h: silent under ThreadSanitizer, and each one that is weakened is caught."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEADER = (ROOT / "cython_ext" / "atomics.h").read_text()
STRESS = ROOT / "tests" / "stress" / "ring_stress.c"

INDENT = "\n" + 51 * " "

# verb -> what stands in it, and the same with the order taken away
WEAKENED = {
    "publish": (
        f"RING_READY),{INDENT}memory_order_release, memory_order_relaxed)",
        f"RING_READY),{INDENT}memory_order_relaxed, memory_order_relaxed)",
    ),
    "revoke": (
        f"who, RING_OPEN),{INDENT}memory_order_acq_rel, memory_order_relaxed)",
        f"who, RING_OPEN),{INDENT}memory_order_relaxed, memory_order_relaxed)",
    ),
    "open": ("RING_OPEN), memory_order_release)", "RING_OPEN), memory_order_relaxed)"),
    "load": ("&e->word, memory_order_acquire)", "&e->word, memory_order_relaxed)"),
}


def build(header: str, folder: Path, *options: str) -> Path:
    """The stress of the ring, compiled on this header."""
    (folder / "atomics.h").write_text(header)
    program = folder / "stress"
    flags = ["-std=c11", "-O1", "-g", "-fsanitize=thread", "-pthread", f"-I{folder}"]
    subprocess.run(["gcc", *flags, *options, str(STRESS), "-o", str(program)], check=True)
    return program


def races(program: Path) -> int:
    """How many data races ThreadSanitizer reports in one run."""
    run = subprocess.run([str(program), "3000"], capture_output=True, text=True)
    count = run.stderr.count("WARNING: ThreadSanitizer: data race")
    if not count:
        assert run.returncode == 0, run.stderr
    return count


@pytest.fixture(scope="module", autouse=True)
def sanitizer(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("probe")
    (folder / "probe.c").write_text("int main(void) { return 0; }")
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    built = subprocess.run(
        ["gcc", "-fsanitize=thread", str(folder / "probe.c"), "-o", str(folder / "probe")], capture_output=True
    )
    if built.returncode or subprocess.run([str(folder / "probe")], capture_output=True).returncode:
        pytest.skip("ThreadSanitizer does not run here")


@pytest.mark.parametrize("steal", [(), ("-DSTEAL",)])
def test_ring_has_no_data_race(steal: tuple[str, ...], tmp_path: Path) -> None:
    assert races(build(HEADER, tmp_path, *steal)) == 0


@pytest.mark.parametrize(
    ("verb", "steal"),
    [(verb, ()) for verb in WEAKENED] + [(verb, ("-DSTEAL",)) for verb in WEAKENED if verb != "revoke"],
)
def test_weaker_order_is_caught(verb: str, steal: tuple[str, ...], tmp_path: Path) -> None:
    strong, weak = WEAKENED[verb]
    assert HEADER.count(strong) == 1
    program = build(HEADER.replace(strong, weak), tmp_path, *steal)
    assert any(races(program) for run in range(20))  # on a crowded machine the threads of one run may never meet
