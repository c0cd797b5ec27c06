"""Runs the suite, or its main part, with VERSIONS of torch: one environment after another, each deleted when done.

    python tests/project/torch_matrix.py                # every version, unless it passed with these sources
    python tests/project/torch_matrix.py 2.6.0 2.15.0     # these, again
    python tests/project/torch_matrix.py --wheels dist    # no suite: whether these wheels work, with every torch;
                                                          # with SDIST_TOO also what pip builds of the sdist

The wheel is tested: the tests are copied to a folder without shmloader/ beside them.  torch comes from
wherever pip is configured to look; a version that pip refuses is named in the table, and the rest goes on.  PyPI's
builds for x86-64 are for CUDA, and bring 5 GB of libraries that only a GPU needs: stubs take their place
(stub_libraries.py), or --cuda-libraries installs them.

Nothing but the standard library is needed.  All that is made is in build/torch: the log of each run, results.json, and
while it runs the environment.  An interrupted run goes on with the environment that it had.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import stub_libraries
from torch_results import Result, count, key, note, read_results, release, row, table, write_results

ROOT = Path(__file__).resolve().parents[2]
MADE = ROOT / "build" / "torch"
ENVIRONMENT, RESULTS, LOGS = MADE / "environment", MADE / "results.json", MADE / "logs"
PACKAGE, SUITE = MADE / "package", MADE / "suite"  # what the wheel is built from, and what tests it

WHOLE, RING, SMOKE = "whole suite", "ring and conformance", "smoke test and documentation"
VERSIONS = {  # torch: with which Python, and what is run
    "2.6.0": ("3.10", WHOLE),
    "2.8.0": ("3.12", RING),
    "2.10.0": ("3.13", RING),
    "2.13.0": ("3.11", WHOLE),
    "2.14.1": ("3.12", RING),
    "2.15.0": ("3.13", WHOLE),
}
OTHER = ("3.12", RING)  # a version that is asked for by name
SDIST_TOO = ("2.6.0", "2.15.0")  # the oldest Python and the newest
# The rest of the suite: torch has no part in it, or no more than in the tests that are run.
NOT_RING = ("atomics", "bench*", "kill_at_each_step", "model", "training_example")

CORE_FILES = ("pyproject.toml", "cython_ext/**/*.pyx", "cython_ext/**/*.px[di]", "cython_ext/**/*.[ch]")
SOURCE_FILES = (
    *("setup.py", "MANIFEST.in", "README.md", "LICENSE"),
    *("shmloader/**/*.py", "shmloader/**/*.pyi", "shmloader/py.typed"),
)
UNTESTED = ("README.md", "LICENSE")  # but the wheel has them
SUITE_FILES = (
    *("constraints.txt", "setup.py", "tests/**/*.py", "tests/**/*.[ch]", "examples/**/*.py"),
    *("bench/**/*.py", "bench/core/probe.pyx", "bench/results/*.json"),
    *("README.md", "docs/*.md", "docs/machinery/*.py", "wheels/smoke.py"),  # for --wheels
)
LONGEST = 7200  # seconds a suite; each test has a limit of its own


class Refused(Exception):
    """A version that cannot be tried here, and why."""


class Held(Refused):
    """pip's own settings here (a constraint, say) allow other versions of torch alone."""


def main() -> int:
    arguments = parse()
    LOGS.mkdir(parents=True, exist_ok=True)
    with (MADE / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"another run is at work in {MADE}")
        try:
            return run_all(arguments)
        except KeyboardInterrupt:
            say("interrupted: the same command goes on from here")
            return 130


def run_all(arguments: argparse.Namespace) -> int:
    sources = copy_sources()
    holding = read_results(RESULTS, sources)
    versions = arguments.torch or list(VERSIONS)
    for version in versions:
        usual, tests = VERSIONS.get(version, OTHER)
        python = arguments.python or find_python(usual)
        tests = SMOKE if arguments.wheels else WHOLE if arguments.whole else tests
        tests = " ".join(arguments.pytest) if arguments.pytest else tests
        result = Result(version, python_version(python), tests, sources)
        known = holding.get(key(result))
        if known is not None and known.good and not arguments.torch:
            say(f"torch {version}: passed before, with these sources")
            continue
        try:
            run(result, python, arguments)
        except Held as held:
            result.untried = str(held)
        except Refused as refused:
            result.problem = str(refused)
        except (subprocess.CalledProcessError, FileNotFoundError) as error:  # no compiler, no binutils
            result.problem = f"no environment: {error}"
        if not arguments.keep:
            shutil.rmtree(ENVIRONMENT, ignore_errors=True)
        holding[key(result)] = result
        write_results(RESULTS, holding)
        say(row(result) if result.good else f"torch {version}: {note(result)}")
    asked = {version.lstrip("=") for version in arguments.torch}
    results = [result for result in holding.values() if not asked or result.torch.lstrip("=") in asked]
    print(table(sorted(results, key=lambda result: release(result.torch))))
    # What pip is held back from says nothing of the project.  Asked for by name, or where nothing else ran, it fails.
    may_be_untried = not asked and any(result.good for result in results)
    return 0 if all(result.good or (result.untried and may_be_untried) for result in results) else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("torch", nargs="*", help="versions; all without")
    parser.add_argument("--python", help="this Python for every version, and not the one that is planned for it")
    parser.add_argument("--whole", action="store_true", help="run the whole suite on every version")
    parser.add_argument("--wheels", type=Path, help="try the wheels of this folder, away from the checkout")
    parser.add_argument("--long", action="store_true", help="run the tests marked long as well")
    parser.add_argument("--cuda-libraries", action="store_true", help="install CUDA's libraries (5 GB) and use a GPU")
    parser.add_argument("--keep", action="store_true", help="keep the last environment for another run")
    parser.add_argument("--pytest", nargs="*", default=[], help="files, and a start method, for these tests alone")
    arguments, options = parser.parse_known_args()
    if options and not arguments.pytest:
        parser.error(f"unknown options: {' '.join(options)}")
    arguments.pytest += options
    if arguments.python and not works(arguments.python):
        parser.error(f"{arguments.python} cannot make environments, or has no headers to build with")
    return arguments


# -------------------------------------------------------------------------------------------------------- one version


def run(result: Result, python: str, arguments: argparse.Namespace) -> None:
    """Make the environment, or go on with one that is there, and run the suite in it."""
    stamp = ENVIRONMENT / "ready.json"
    wanted = {"torch": result.torch, "python": python, "cuda_libraries": arguments.cuda_libraries}
    if not stamp.exists() or json.loads(stamp.read_text())["wanted"] != wanted:
        say(f"torch {result.torch}: making an environment with {python}")
        build = make_environment(result, python, arguments.cuda_libraries)
        stamp.write_text(json.dumps({"wanted": wanted, "build": build}))
    result.build = json.loads(stamp.read_text())["build"]
    if not arguments.wheels:
        install_project(result)
    else:
        if result.torch in SDIST_TOO:
            try_sdist(result, arguments.wheels)
        install_wheel(result, arguments.wheels)
    check_what_is_imported(result)
    say(f"torch {result.torch} ({result.build}), Python {result.python}: {result.tests}")
    if arguments.wheels:
        run_smoke(result, "wheel", SUITE / "wheels" / "smoke.py", SUITE / "docs" / "machinery" / "blocks.py")
    else:
        run_suite(result, arguments.long, arguments.pytest)


def make_environment(result: Result, python: str, cuda_libraries: bool) -> str:
    """Make an environment with torch in it, and say which build of torch that is.

    Raises:
        Refused: pip will not install it.
    """
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    subprocess.run([python, "-m", "venv", str(ENVIRONMENT)], check=True)
    pinned = f"torch{result.torch if '=' in result.torch else f'=={result.torch}'}"
    # A wheel of half a gigabyte a version is nothing to keep in pip's cache.
    pip(result, "install", "--no-cache-dir", "--no-deps", pinned)
    folder = next(ENVIRONMENT.glob("lib/python*/site-packages/torch"))
    cuda = re.search(r"^cuda\b.*= '(.+)'", (folder / "version.py").read_text(), re.MULTILINE)
    if cuda is None or cuda_libraries:
        pip(result, "install", "--no-cache-dir", pinned)
        return "CPU" if cuda is None else f"CUDA {cuda[1]}"
    pip(result, "install", *(need for need in requirements("torch") if not re.match("nvidia|cuda|triton", need)))
    stub_libraries.build(folder / "lib", ENVIRONMENT / "stubs")
    return f"CUDA {cuda[1]}, stubs"


def install_project(result: Result) -> None:
    """Build the project's wheel, once for each Python, and install it with all that its tests need."""
    pins = (SUITE / "constraints.txt").read_text().splitlines()
    theirs = {"torch", "torchvision", *map(name_of, requirements("torch"))}  # torch may ask for older ones
    constraints = ENVIRONMENT / "constraints.txt"
    constraints.write_text("\n".join(pin for pin in pins if name_of(pin) not in theirs) + "\n")
    constrained = ("install", "-c", str(constraints))
    pip(result, *constrained, "setuptools>=77", "cython")
    wheels = MADE / "wheels" / result.sources
    name = f"shmloader-*-cp{result.python.replace('.', '')}-*.whl"
    for other in wheels.parent.glob("*"):
        if other != wheels:
            shutil.rmtree(other)
    if not list(wheels.glob(name)):
        shutil.rmtree(PACKAGE / "build", ignore_errors=True)  # another Python's
        pip(result, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(PACKAGE))
    # without what it asks for, or pip would find torch's own requirements missing and bring CUDA's libraries
    pip(result, "install", "--no-deps", "--force-reinstall", str(next(wheels.glob(name))))
    needs = requirements("shmloader", "test", "train", *(["bench"] if result.tests == WHOLE else []))
    pip(result, *constrained, *(need for need in needs if name_of(need) != "torch"))
    if result.tests == WHOLE:
        build_probe()


def install_wheel(result: Result, folder: Path) -> None:
    """Install the wheel that was built for this Python, and what it asks for."""
    tag = f"cp{result.python.replace('.', '')}"
    found = sorted(folder.glob(f"shmloader-*-{tag}-{tag}-*_{platform.machine()}.whl"))
    if not found:
        raise Refused(f"{folder} has no wheel for {tag} and {platform.machine()}: make wheel")
    install_file(result, found[-1])


def try_sdist(result: Result, folder: Path) -> None:
    """Have pip build the sdist as a stranger would, in an environment that has only torch, and run the smoke test."""
    if shutil.which("cc") is None:
        say("not tried: the sdist, because there is no compiler here")
        return
    sdist = next(folder.glob("shmloader-*.tar.gz"), None)
    if sdist is None:
        raise Refused(f"{folder} has no sdist: make wheel")
    say(f"torch {result.torch}: pip builds the sdist")
    install_file(result, sdist)
    check_what_is_imported(result)
    run_smoke(result, "sdist", SUITE / "wheels" / "smoke.py")


def install_file(result: Result, file: Path) -> None:
    pip(result, "install", "--no-deps", "--force-reinstall", str(file))
    pip(result, "install", *(need for need in requirements("shmloader", "images") if name_of(need) != "torch"))


def run_smoke(result: Result, name: str, *scripts: Path) -> None:
    """Run the smoke test and the documentation's code, each from a folder that has no package beside it."""
    log = LOGS / f"{result.torch}.{name}.log"
    began = time.monotonic()
    with log.open("w") as out:
        for script in scripts:
            ran = subprocess.run(
                [inside("python"), str(script)],
                cwd=MADE,
                env=variables(),
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=LONGEST,
            )
            result.passed += ran.returncode == 0
            if ran.returncode:
                result.failed += 1
                result.failures.append(f"{script.name} of the {name}, see {log}")
    result.seconds += round(time.monotonic() - began)


def build_probe() -> None:
    """Build what only bench/ imports, which is not in the wheel."""
    source = SUITE / "bench" / "core" / "_probe.pyx"
    shutil.copyfile(source.with_name("probe.pyx"), source)
    core = SUITE / "cython_ext"
    found_there = variables() | {"PYTHONPATH": str(core), "CFLAGS": f"-I{core}"}
    subprocess.run(
        [inside("cythonize"), "-q", "-i", "-3", str(source)],
        cwd=SUITE,
        env=found_there,
        check=True,
        capture_output=True,
    )


def check_what_is_imported(result: Result) -> None:
    """Import torch and the project, and see that both are the environment's."""
    code = "import shmloader, torch; print(shmloader.__file__, torch.__file__, torch.__version__, sep='\\n')"
    ran = subprocess.run([inside("python"), "-c", code], cwd=SUITE, env=variables(), capture_output=True, text=True)
    (LOGS / f"{result.torch}.import.log").write_text(ran.stdout + ran.stderr)
    if ran.returncode:
        raise Refused(f"does not import: {last_line(ran.stderr)} (status {ran.returncode})")
    *files, version = ran.stdout.splitlines()
    for file in files:
        if not Path(file).is_relative_to(ENVIRONMENT):
            raise Refused(f"{file} would be tested, and not what is installed in {ENVIRONMENT}")
    result.torch = version.partition("+")[0]


def run_suite(result: Result, long: bool, only: list[str]) -> None:
    report, log = MADE / "report.xml", LOGS / f"{result.torch}{'-selected' if only else ''}.log"
    report.unlink(missing_ok=True)
    command = [inside("python"), "-m", "pytest", "-v", "-p", "no:cacheprovider", f"--junitxml={report}", "-rfE"]
    command += [f"--numprocesses={min(4, len(os.sched_getaffinity(0)) + 1)}", "--dist=worksteal"]  # as in the Makefile
    if result.tests == RING:
        command += [f"--ignore-glob=*/test_{pattern}.py" for pattern in NOT_RING]
    if long:
        command += ["-m", "long or not long"]
    command += only
    began = time.monotonic()
    with log.open("w") as out:
        process = subprocess.Popen(command, cwd=SUITE, env=variables(), stdout=out, stderr=subprocess.STDOUT)
        try:
            status = process.wait(LONGEST)
        except subprocess.TimeoutExpired:
            raise Refused(f"the suite had not ended after {LONGEST} s; see {log}") from None
        finally:
            process.kill()
            process.wait()
    result.seconds = round(time.monotonic() - began)
    if not report.exists():
        raise Refused(f"pytest ended with status {status} and no report; see {log}")
    count(result, report)
    if status and not result.failed:
        result.problem = f"pytest ended with status {status}; see {log}"


# -------------------------------------------------------------------------------------------------- an environment's


def inside(program: str) -> str:
    return str(ENVIRONMENT / "bin" / program)


def variables() -> dict[str, str]:
    """The environment's variables, and nothing that could have another Python's modules imported."""
    held = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    held["VIRTUAL_ENV"] = str(ENVIRONMENT)
    held["PATH"] = os.pathsep.join([str(ENVIRONMENT / "bin"), os.environ["PATH"]])
    if (ENVIRONMENT / "stubs").exists():
        held["LD_LIBRARY_PATH"] = os.pathsep.join(
            filter(None, [str(ENVIRONMENT / "stubs"), os.environ.get("LD_LIBRARY_PATH", "")])
        )
    return held


def pip(result: Result, *arguments: str) -> None:
    command = [inside("python"), "-m", "pip", "--disable-pip-version-check", *arguments]
    ran = subprocess.run(command, env=variables(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with (LOGS / f"{result.torch}.pip.log").open("a") as log:
        log.write(f"{' '.join(arguments)}\n{ran.stdout}\n")
    if ran.returncode:
        # of a conflict pip says first what the user's own constraints are
        text = re.findall(r"^(?:ERROR: |\s*The user requested )(.+)", ran.stdout, re.MULTILINE)
        is_held = any(re.match(r"\(constraint\) torch\b", one) for one in text)
        raise (Held if is_held else Refused)(f"pip {arguments[0]}: {'; '.join(text) or last_line(ran.stdout)}")


def requirements(package: str, *extras: str) -> list[str]:
    """What a package in the environment asks for, and what it asks for with these extras."""
    code = f"import importlib.metadata, json; print(json.dumps(importlib.metadata.requires({package!r})))"
    ran = subprocess.run([inside("python"), "-c", code], env=variables(), stdout=subprocess.PIPE, text=True, check=True)
    found = []
    for need in json.loads(ran.stdout):
        extra = re.search(r"""extra == ['"]([\w-]+)['"]""", need)
        if extra is None or extra[1] in extras:
            found.append(re.sub(r"\s*(;|and)\s*extra == .*", "", need))
    return found


def name_of(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement.strip(), maxsplit=1)[0].lower().replace("_", "-")


# ---------------------------------------------------------------------------------------- Pythons, versions, sources


def find_python(version: str) -> str:
    """A Python of this version that can make environments and build extensions; otherwise the one that runs this."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    named = shutil.which(f"python{version}")
    for python in [named, *map(str, sorted(pyenv.glob(f"{version}.*/bin/python3")))]:
        if python is not None and works(python):
            return python
    say(f"not tried: Python {version}, which is not here with its headers; {sys.executable} takes its place")
    return sys.executable


def works(python: str) -> bool:
    code = "import ensurepip, os, sysconfig, venv; os.stat(sysconfig.get_path('include') + '/Python.h')"
    try:
        return subprocess.run([python, "-c", code], capture_output=True).returncode == 0
    except OSError:
        return False


def python_version(python: str) -> str:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.run([python, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def copy_sources() -> str:
    """Copy the project apart, the package from its tests, so that nothing that is edited meanwhile is tested by half.

    Returns:
        A digest of all that can make a test pass or fail.
    """
    digest = hashlib.sha256()
    for folder, patterns in ((PACKAGE, CORE_FILES + SOURCE_FILES), (SUITE, CORE_FILES + SUITE_FILES)):
        shutil.rmtree(folder, ignore_errors=True)
        for file in sorted(file for pattern in patterns for file in ROOT.glob(pattern)):
            to = folder / file.relative_to(ROOT)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, to)
            if file.name not in UNTESTED:
                digest.update(f"{file.relative_to(ROOT)}\0".encode() + to.read_bytes())
    return digest.hexdigest()[:16]


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["nothing was said"])[-1]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
