"""What a wheel must be: for the glibc that its name says, small, without debug symbols, and with nobody else's library.

python wheels/check.py dist/*.whl
"""

from __future__ import annotations

import io
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

MOST_BYTES = 2_000_000
ROOT = Path(__file__).resolve().parent.parent
LIBRARIES = len(list((ROOT / "cython_ext").glob("*/*.pyx")))  # one of each
GLIBCS = {
    "libc.so.6",
    "libdl.so.2",
    "libm.so.6",
    "libpthread.so.0",
    "librt.so.1",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
}
MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}


def problems(wheel: Path, image: str) -> Iterator[str]:
    """All that is wrong with it."""
    *_, platform = wheel.stem.split("-")
    arch = platform.removeprefix(f"{image}_").partition(".")[0]
    if arch not in MACHINES.values():
        yield f"its platform is {platform}, and not {image}_..."
    if wheel.stat().st_size > MOST_BYTES:
        yield f"it has {wheel.stat().st_size} bytes, and {MOST_BYTES} are allowed"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        files = [*ROOT.glob("shmloader/**/*.py"), *ROOT.glob("shmloader/core/*.pyi"), ROOT / "shmloader" / "py.typed"]
        wanted = {str(file.relative_to(ROOT)) for file in files}  # a new folder may be missing from pyproject.toml
        yield from (f"{name} is not in it" for name in sorted(wanted - set(names)))
        known = re.compile(r"shmloader/|shmloader-[\w.+]+\.dist-info/")
        yield from (f"{name} is in it" for name in names if not known.match(name))
        libraries = [name for name in names if ".so" in name]
        if len(libraries) != LIBRARIES:
            yield f"it has {len(libraries)} extensions, and should have {LIBRARIES}"
        for name in libraries:
            for wrong in of_library(ELFFile(io.BytesIO(archive.read(name))), arch, image):
                yield f"{name}: {wrong}"


def of_library(library: ELFFile, arch: str, image: str) -> Iterator[str]:
    newest = tuple(map(int, image.split("_")[1:]))
    if MACHINES.get(library["e_machine"]) != arch:
        yield f"it is for {library['e_machine']}"
    for section in library.iter_sections():
        if section.name.startswith((".debug", ".symtab")):
            yield f"it has {section.name}"
        if isinstance(section, DynamicSection):
            needed = {tag.needed for tag in section.iter_tags("DT_NEEDED")}
            yield from (f"it needs {name}" for name in sorted(needed - GLIBCS))
            yield from (f"it has a path of its own, {tag.entry.d_tag}" for tag in section.iter_tags("DT_RUNPATH"))
        if isinstance(section, GNUVerNeedSection):
            versions = [version.name for _, all_of in section.iter_versions() for version in all_of]
            for version in versions:
                found = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?", version)
                if found and tuple(map(int, found.groups())) > newest:
                    yield f"it needs {version}"


if __name__ == "__main__":
    wrong = [f"{name}: {problem}" for name in sys.argv[1:] for problem in problems(Path(name), "manylinux_2_28")]
    print("\n".join(wrong) or "nothing is wrong")
    sys.exit(bool(wrong))
