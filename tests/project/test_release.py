"""What must agree before a release is tagged."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import shmloader

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(not (ROOT / "CHANGELOG.md").exists(), reason="this is no checkout")


def read(name: str) -> str:
    return (ROOT / name).read_text()


def test_the_version_is_written_once_and_repeated_right() -> None:
    assert 'dynamic = ["version"]' in read("pyproject.toml")
    assert re.search(r"^version: (.+)$", read("CITATION.cff"), re.MULTILINE)[1] == shmloader.__version__  # type: ignore[index]
    assert f"## [{shmloader.__version__}]" in read("CHANGELOG.md")


def test_all_versions_of_python_that_are_promised_get_a_wheel() -> None:
    configuration = read("pyproject.toml")
    promised = re.findall(r'"Programming Language :: Python :: 3\.(\d+)"', configuration)
    built = re.search(r'^build = "(.+)"$', configuration, re.MULTILINE)[1].split()  # type: ignore[index]
    assert built == [*(f"cp3{minor}-*" for minor in promised), "cp314t-*"]


def test_workflows_try_the_torch_versions_that_the_limits_name() -> None:
    named = set(re.findall(r"^\| (2\.\d+\.\d+) \| (3\.\d+) \|", read("docs/limits.md"), re.MULTILINE))
    tried = set(re.findall(r'torch: "([\d.]+)", python: "([\d.]+)"', read(".github/workflows/tests.yml")))
    assert named - tried == {("2.13.0", "3.11")}  # the job `suite`
    assert tried <= named


def test_no_registry_is_named_by_its_host() -> None:
    for file in [*ROOT.glob(".github/workflows/*.yml"), *ROOT.glob("wheels/*.py"), ROOT / "Makefile"]:
        assert not re.search(r"https?://|\.org\b|\.io\b", file.read_text()), file


@pytest.mark.parametrize("broken", ["", "docs"])
def test_a_release_check_ends_with_all_that_was_not_tried(tmp_path: Path, broken: str) -> None:
    make = tmp_path / "make"
    make.write_text(f"""#!/bin/sh
echo "$2"
test "$2" != wheel || echo 'not tried: CPython 3.99, which is not here' >&2
test "$2" != "{broken}"
""")
    make.chmod(0o755)
    command = [sys.executable, str(ROOT / "wheels" / "release.py")]
    ran = subprocess.run(command, env=os.environ | {"MAKE": str(make)}, stdout=subprocess.PIPE, text=True)
    assert ran.returncode == bool(broken)
    steps, end = ran.stdout.split("\n| step | result | minutes |\n")
    assert [line for line in steps.splitlines() if line in ("suite", "docs", "wheel")] == ["suite", "docs", "wheel"]
    assert f"| documentation | {'failed' if broken else 'passed'} | 0 |" in end
    untried, remarks = end.partition("\nNot tried:\n")[2].split("\nBefore the tag:\n")
    assert untried.startswith("- CPython 3.99, which is not here\n- the gates of each commit: .ci/run\n")
    for target in re.findall(r"make ([\w.-]+)", untried):
        assert f"\n{target}:" in read("Makefile")
    assert remarks.startswith("- ")


def test_every_package_of_the_checkout_is_in_a_wheel() -> None:
    listed = re.search(r"^packages = \[(.+?)\]", read("pyproject.toml"), re.MULTILINE | re.DOTALL)
    assert listed is not None
    folders = {file.parent.relative_to(ROOT) for file in (ROOT / "shmloader").rglob("__init__.py")}
    assert set(re.findall(r'"([\w.]+)"', listed[1])) == {".".join(folder.parts) for folder in folders}
