"""Runs the aarch64 wheel on this x86-64 machine, under qemu-user: `make wheel` does, on Debian.

    python wheels/emulate.py dist

What runs: the smoke test, which resumes a loader and replaces a dead worker; the stress of the ring's protocol
(tests/core/stress), 20,000 sequences with workers that die, as owned ones and as stolen ones; the two fuzzers of
tests/images/fuzz, in which the NEON path must give the bytes of the plain one; and the decoder, whose pixels must be
those of the x86-64 wheel (pictures.py).

    python wheels/emulate.py --fuzz

runs the two fuzzers alone, and needs no wheel: it takes a minute.

It shows that the wheel builds, loads and makes the right system calls.  It says nothing of the order in which an arm64
processor lets others see what it writes: here that is this machine's.

Nothing is installed.  Debian's CPython for arm64 and qemu are unpacked in build/emulated, and so is the oldest torch
that is promised, whose wheel for aarch64 is the smallest.  Workers are forked only: a spawned one would be started by
the kernel, which cannot run it.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MADE = ROOT / "build" / "emulated"
SYSTEM, SITE, DEBS = MADE / "root", MADE / "site", MADE / "debs"
QEMU = MADE / "qemu" / "usr" / "bin" / "qemu-aarch64-static"

LIBRARIES = ("libgomp1", "libstdc++6", "zlib1g")  # that torch's wheel and numpy's want of the system
# what torch 2.6.0 asks for, without what it would bring for a GPU
NEEDS = ("torch==2.6.0", "numpy<2.3", "posix_ipc", "typing_extensions", "sympy==1.13.1", "mpmath", "networkx")
NEEDS += ("jinja2", "markupsafe", "filelock", "fsspec")
GLIBCS = ("2_28", "2_27", "2_17")
STRESS = ROOT / "tests" / "core" / "stress" / "ring_stress.c"
SEQUENCES = 20_000
FUZZ = ROOT / "tests" / "images" / "fuzz"
OPERATIONS, FILES = 100_000, 5_000  # as many each
ZIG = (sys.executable, "-m", "ziglang", "cc", "-std=c11", "-O2", "-pthread", "-ffp-contract=off")
LONGEST = 900  # seconds; importing torch alone takes twenty
SMOKE_LONGEST, SMOKE_TRIES = 600, 3


def main() -> int:
    if platform.machine() != "x86_64" or not all(map(shutil.which, ("apt-get", "dpkg"))):
        print("not tried: the aarch64 wheel, because this needs Debian's packages, on x86-64", file=sys.stderr)
        return 0
    if sys.argv[1] == "--fuzz":
        emulator()
        return fuzz()
    python = system()
    version = subprocess.run([*emulated(python), "-c", "import sys; print('%d%d' % sys.version_info[:2])"], **READ)
    found = sorted(Path(sys.argv[1]).glob(f"shmloader-*-cp{version.stdout.strip()}-*_aarch64.whl"))
    if not found:
        print(f"not tried: the aarch64 wheel; there is none for Debian's CPython {version.stdout}", file=sys.stderr)
        return 0
    packages(version.stdout.strip(), found[-1])
    command = [*emulated(python), str(ROOT / "wheels" / "smoke.py"), "--fork-only", str(SITE)]
    return smoke(command) or stress() or fuzz() or pictures(python, Path(sys.argv[1]))


def smoke(command: list[str]) -> int:
    """The status of the smoke test, which is tried again if it hangs.

    Sometimes a child that qemu has forked waits for ever for a lock of qemu's own: it has used no CPU time, and none of
    its own code has run.
    """
    for number in range(1, SMOKE_TRIES + 1):
        with subprocess.Popen(command, cwd=MADE, start_new_session=True) as process:
            try:
                return process.wait(SMOKE_LONGEST)
            except subprocess.TimeoutExpired:
                print(f"the smoke test hung, trial {number} of {SMOKE_TRIES}", file=sys.stderr)
            finally:  # such a child does not end with its trainer
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    return 1


def fuzz() -> int:
    """Whether the NEON paths of the decoder and of the operations on pixels give the bytes of plain C.

    The operations end with a digest of all that they made, which must be this machine's, too.
    """
    native, emulated = (MADE / f"fuzz_pixels_{name}" for name in ("native", "aarch64"))
    decoder = MADE / "fuzz_jpeg_aarch64"
    target = ("-target", "aarch64-linux-musl", "-static")
    for folder, program, options in (("pixels", native, ()), ("pixels", emulated, target), ("jpeg", decoder, target)):
        core = ROOT / "cython_ext" / folder
        in_c = sorted([*core.glob("*.c"), *(core.parent / "resize").glob("*.c")])
        sources = [str(FUZZ / f"{folder}_fuzz.c"), *map(str, in_c)]
        run([*ZIG, *options, f"-I{core}", *sources, "-lm", "-o", str(program)])
    messages = []
    for command in ([native], [QEMU, emulated]):
        ran = subprocess.run([*map(str, command), str(OPERATIONS)], timeout=LONGEST, stdout=subprocess.PIPE, text=True)
        if ran.returncode:
            return ran.returncode
        messages.append(ran.stdout.split()[-1])
        print(f"operations on pixels, {command[-1].name}: {ran.stdout.splitlines()[-1]}")
    if messages[0] != messages[1]:
        print("the operations on pixels are not those of this machine", file=sys.stderr)
        return 1
    return subprocess.run([str(QEMU), str(decoder), str(FILES)], cwd=MADE, timeout=LONGEST).returncode


def stress() -> int:
    """Run the stress of the ring, built for arm64 with the compiler that builds the wheels."""
    target = "aarch64-linux-gnu.2.28"
    for name, options in (("owned", []), ("stolen", ["-DSTEAL"])):
        program = MADE / f"stress_{name}"
        run([*ZIG, "-target", target, *options, f"-I{ROOT / 'cython_ext'}", str(STRESS), "-o", str(program)])
        status = subprocess.run(
            [str(QEMU), "-L", str(SYSTEM), str(program), str(SEQUENCES)], timeout=LONGEST
        ).returncode
        print(f"the ring's stress on aarch64, {SEQUENCES} sequences, {name}: status {status}")
        if status:
            return status
    return 0


def pictures(python: Path, wheels: Path) -> int:
    """Whether the decoder makes the same pixels on both architectures."""
    version = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    found = sorted(wheels.glob(f"shmloader-*-{version}-*_x86_64.whl"))
    if not found:
        print(f"not tried: the decoder on both architectures; there is no x86-64 wheel of {version}", file=sys.stderr)
        return 0
    here = MADE / "x86_64"
    shutil.rmtree(here, ignore_errors=True)
    unpack(found[-1], here)
    script = str(ROOT / "wheels" / "pictures.py")
    ran = [
        subprocess.run([*command, script, str(site)], timeout=LONGEST, **READ).stdout.split()
        for command, site in (([sys.executable], here), (emulated(python), SITE))
    ]
    print(f"the decoder: {' '.join(ran[0])} on x86-64\n             {' '.join(ran[1])} on aarch64")
    return int(ran[0][:3] != ran[1][:3])  # the ways of decoding, which come last, differ


def emulator() -> None:
    """qemu."""
    if not QEMU.exists():
        MADE.mkdir(parents=True, exist_ok=True)
        run(["apt-get", "-qq", "download", "qemu-user-static"], MADE)
        run(["dpkg", "-x", str(next(MADE.glob("qemu-user-static*.deb"))), str(MADE / "qemu")])


def system() -> Path:
    """A CPython for arm64 and the libraries it links, and qemu."""
    if not SYSTEM.exists():
        state = MADE / "apt"
        for folder in (DEBS / "archives" / "partial", state / "lists" / "partial"):
            folder.mkdir(parents=True, exist_ok=True)
        (state / "status").touch()  # of an empty system, so that everything is fetched
        options = {"Dir::State": state, "Dir::State::status": state / "status", "Dir::Cache": DEBS}
        options |= {"APT::Architecture": "arm64", "APT::Architectures": "arm64", "Debug::NoLocking": 1}
        apt = ["apt-get", "-qq", "-y", *(f"-o{name}={value}" for name, value in options.items())]
        run([*apt, "update"])
        run([*apt, "--no-install-recommends", "--download-only", "install", "python3", *LIBRARIES])
        for deb in sorted((DEBS / "archives").glob("*.deb")):
            run(["dpkg", "-x", str(deb), str(SYSTEM)])
    emulator()
    return next(path for path in sorted((SYSTEM / "usr" / "bin").glob("python3.*")) if path.suffix[1:].isdigit())


def packages(version: str, wheel: Path) -> None:
    """The wheel, and what it asks for, unpacked: pip of another machine would be emulated for minutes."""
    fetched = MADE / "wheels"
    if not list(fetched.glob("torch-*.whl")):
        platforms = [f"--platform=manylinux_{glibc}_aarch64" for glibc in GLIBCS] + ["--platform=manylinux2014_aarch64"]
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", *platforms]
        run([*pip, f"--python-version={version}", "--dest", str(fetched), *NEEDS])
        for file in fetched.glob("*.whl"):
            unpack(file)
    for old in SITE.glob("shmloader*"):
        shutil.rmtree(old)
    unpack(wheel)


def unpack(wheel: Path, folder: Path = SITE) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)


def emulated(python: Path) -> list[str]:
    return [str(QEMU), "-L", str(SYSTEM), "-E", f"PYTHONPATH={SITE}", str(python)]


READ = {"check": True, "stdout": subprocess.PIPE, "text": True}


def run(command: list[str], folder: Path = ROOT) -> None:
    ran = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if ran.returncode:
        sys.exit(f"{ran.stdout}\n{' '.join(command)} ended with status {ran.returncode}")


if __name__ == "__main__":
    sys.exit(main())
