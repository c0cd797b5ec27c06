"""constraints.txt pins one version of each package for each Python, and leaves out nothing that make installs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = [f"3.{minor}" for minor in range(10, 15)]
TORCHS_FOR_CUDA = re.compile(r"(nvidia|cuda|triton)\b")  # torch's wheel for CUDA names their versions itself

pytestmark = pytest.mark.skipif(not (ROOT / "Makefile").exists(), reason="this is no checkout")


def lines() -> list[str]:
    return [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]


def pinned(python: str | None = None) -> list[tuple[str, str]]:
    """The packages that are pinned for one Python, or for the one that runs this, and their versions."""
    pins = [pin for pin in map(Requirement, lines()) if applies(pin, python)]
    return [(canonicalize_name(pin.name), str(pin.specifier).removeprefix("==")) for pin in pins]


def applies(requirement: Requirement, python: str | None = None, extra: str = "") -> bool:
    version = {"python_version": python, "python_full_version": f"{python}.0"} if python else {}
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra, **version})


def asked_for(python: str | None = None) -> set[str]:
    """The packages that the Makefile and the workflows install with these constraints by name, or as our extras."""
    makefile = (ROOT / "Makefile").read_text()
    extras = {extra for group in re.findall(r"-e '\.\[(.+?)\]'", makefile) for extra in group.split(",")}
    ours = list(map(Requirement, requires("shmloader") or []))
    names = {need.name for need in ours for extra in extras if applies(need, python, extra)}
    texts = [makefile.replace("\\\n", ""), *(file.read_text() for file in ROOT.glob(".github/workflows/*.yml"))]
    for words in re.findall(r"-c constraints\.txt ([^>|&\n]+)|^\w+_NEEDS := (.+)", "\n".join(texts), re.MULTILINE):
        names.update(re.findall(r"(?<!\S)[a-z][\w-]+(?!\S)", "".join(words)))  # one with a version is pinned there
    return {canonicalize_name(name) for name in names}


def required(names: set[str]) -> Iterator[str]:
    """These packages, and all that they require in turn, as far as the pinned versions are installed here."""
    pins = dict(pinned())
    waiting = [(name, "") for name in sorted(names)]
    seen = set(waiting)
    while waiting:
        name, extra = waiting.pop()
        yield name
        try:
            if version(name).partition("+")[0] != pins.get(name):
                continue
            needs = [need for need in map(Requirement, requires(name) or []) if applies(need, None, extra)]
        except PackageNotFoundError:
            continue
        found = {(canonicalize_name(need.name), extra) for need in needs for extra in ("", *need.extras)}
        waiting += sorted(found - seen)
        seen |= found


def test_each_line_pins_one_version_in_the_order_of_names() -> None:
    pins = [Requirement(line) for line in lines()]
    assert [str(pin) for pin in pins if not re.fullmatch(r"==[\w.]+", str(pin.specifier))] == []
    names = [canonicalize_name(pin.name) for pin in pins]
    assert names == sorted(names)


@pytest.mark.parametrize("python", PYTHONS)
def test_no_package_is_pinned_twice_for_one_python(python: str) -> None:
    names = [name for name, _ in pinned(python)]
    assert [name for name in sorted(set(names)) if names.count(name) > 1] == []


@pytest.mark.parametrize("python", PYTHONS[1:])
def test_each_package_that_make_installs_is_pinned(python: str) -> None:
    asked = asked_for(python)
    assert {"torch", "webdataset", "grain", "auditwheel", "sphinx", "ffcv", "setuptools"} <= asked
    assert asked - set(dict(pinned(python))) == set()


def test_each_package_that_those_require_is_pinned() -> None:
    needed = {name for name in required(asked_for()) if not TORCHS_FOR_CUDA.match(name)}
    assert needed - set(dict(pinned())) == set()
