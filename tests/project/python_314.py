"""Runs the suite with CPython 3.14, whose default start method is the fork server: `make test-3.14` does.

    python tests/project/python_314.py
    python tests/project/python_314.py --long      # the long tests too

It takes the python3.14 on the PATH.  Where there is none, debootstrap unpacks Debian's, with a compiler, in
build/python-3.14 (630 MB, once); that needs root, apt-get, and a mirror in apt's configuration.

The suite runs twice, with the newest torch (torch_matrix.py): all of it with workers that are forked, as it names them,
and FORK_SERVER, where no test needs a fork, with Python's default.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from torch_matrix import ROOT, VERSIONS, release, say, works

MADE = ROOT / "build" / "python-3.14"
SYSTEM, READY = MADE / "root", MADE / "ready"
SUITE, SCRIPT = "forky", "sid"  # Debian's; an older debootstrap does not know the first, which is made as the second
PACKAGES = ("python3.14-dev", "python3.14-venv", "gcc", "libc6-dev", "ca-certificates")
TORCH = max(VERSIONS, key=release)
# What gives the same with every start method, whatever a test names.
FORK_SERVER = (
    "tests/trainer/test_idle.py",
    "tests/trainer/test_same_batches.py",
    "tests/resume/test_resume.py",
    "tests/trainer/test_stealing.py",
    "tests/trainer/test_many_tensors.py",
    "tests/trainer/test_start.py",
    "tests/trainer/test_multiprocessing.py",
)
# In a mount namespace of its own, so that nothing stays mounted.  $1: the root, $2: the checkout; then the command.
ENTER = """
root=$1 checkout=$2; shift 2
mkdir -p "$root$checkout"
mount --bind "$checkout" "$root$checkout"
for folder in /proc /dev /sys; do mount --rbind $folder "$root$folder"; done
for file in /etc/resolv.conf /etc/hosts /etc/ssl/certs/ca-certificates.crt; do
    test ! -e $file || cp $file "$root$file"
done
exec chroot "$root" "$@"
"""


def main() -> int:
    python = shutil.which("python3.14")
    inside: list[str] = []
    if python is None or not works(python):
        make_system()
        python = "/usr/bin/python3.14"
        enter = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", ENTER, "enter", str(SYSTEM), str(ROOT)]
        inside = [*enter, "/usr/bin/env", "-C", str(ROOT)]
    os.environ["PIP_CONFIG_FILE"] = os.devnull  # it may hold torch back: this one is asked for by name
    matrix = [*inside, python, "tests/project/torch_matrix.py", "--python", python, "--whole", "--keep", TORCH]
    selected = [*matrix, "--pytest", *FORK_SERVER, "--start-method=forkserver"]
    return max(subprocess.run(run, cwd=ROOT).returncode for run in ([*matrix, *sys.argv[1:]], selected))


def make_system() -> None:
    """Debian's CPython 3.14 with its headers and a compiler, in a folder."""
    if READY.exists():
        return
    missing = [program for program in ("apt-get", "debootstrap", "unshare", "chroot") if shutil.which(program) is None]
    if missing == ["debootstrap"] and os.getuid() == 0:
        subprocess.run(["apt-get", "-qq", "update"], check=True)
        subprocess.run(["apt-get", "-qq", "install", "--no-install-recommends", "-y", "debootstrap"], check=True)
        missing = []
    if os.getuid() != 0:
        missing.append("root's rights")
    if missing:
        sys.exit(
            f"there is no python3.14 with its headers on the PATH, and none can be unpacked without "
            f"{', '.join(missing)}. Install python3.14, python3.14-dev and python3.14-venv"
        )
    say(f"unpacking Debian's CPython 3.14 in {SYSTEM} (630 MB, once)")
    shutil.rmtree(SYSTEM, ignore_errors=True)
    MADE.mkdir(parents=True, exist_ok=True)
    options = ["--variant=minbase", f"--include={','.join(PACKAGES)}"]
    with (MADE / "debootstrap.log").open("w") as log:
        command = ["debootstrap", *options, SUITE, str(SYSTEM), mirror(), SCRIPT]
        if subprocess.run(command, stdout=log, stderr=subprocess.STDOUT).returncode:
            sys.exit(f"debootstrap failed: see {log.name}")
    READY.touch()


def mirror() -> str:
    """Debian's mirror, as apt is configured."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)|$(ORIGIN)|$(LABEL)", "Created-By: Packages"]
    for line in subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines():
        uri, origin, label = line.split("|")
        if (origin, label) == ("Debian", "Debian"):
            return uri
    sys.exit("apt knows no mirror of Debian's: run `apt-get update`, or install python3.14-dev and python3.14-venv")


if __name__ == "__main__":
    sys.exit(main())
