"""The memory orders of atomics.h: silent under ThreadSanitizer, and each one that is weakened is caught."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STRESS = ROOT / "tests" / "core" / "stress" / "ring_stress.c"
# Not ring_claim: what it orders the ring_load before it has ordered already.
ORDERED = ("ring_open", "ring_load", "ring_publish", "ring_revoke")


def build(folder: Path, *options: str) -> Path:
    """The stress of the ring, compiled."""
    program = folder / "stress"
    flags = ["-std=c11", "-O1", "-g", "-fsanitize=thread", "-pthread", f"-I{ROOT / 'cython_ext'}"]
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
    assert races(build(tmp_path, *steal)) == 0


def test_what_weakens_one_verb_leaves_the_others(tmp_path: Path) -> None:
    assert races(build(tmp_path, '-DWEAKEN="no verb"')) == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("verb", "steal"),
    [(verb, ()) for verb in ORDERED] + [(verb, ("-DSTEAL",)) for verb in ORDERED if verb != "ring_revoke"],
)
def test_weaker_order_is_caught(verb: str, steal: tuple[str, ...], tmp_path: Path) -> None:
    program = build(tmp_path, f'-DWEAKEN="{verb}"', *steal)
    assert any(races(program) for run in range(20))  # on a crowded machine the threads of one run may never meet
