"""Libraries in place of NVIDIA's that torch's CUDA build links, so that it can be imported where none of them is.

    python -m tests.software_cuda.stubs TORCH_LIB OUT

TORCH_LIB is the folder `torch/lib` of an installation, OUT where the libraries go.  With LD_LIBRARY_PATH=OUT torch then
imports, and finds that there is no device.  All is read from torch's own libraries, so any release of it will do: the
names of the libraries that they need, the symbols that they take from them, and the versions of these symbols.  Each
symbol becomes a function that returns cudaErrorNoDevice, or a string where one is asked for.  It needs gcc and
binutils (nm, readelf).
"""

from __future__ import annotations

import collections
import pathlib
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence

NVIDIAS = re.compile(r"lib(cu|nv|nccl)")  # of the libraries' names
TELLS = re.compile(
    r"(cuda|cudnn|nvrtc|nccl|cublas|cublasLt|cusparse|cusparseLt)Get(Error|Status)(String|Name)|ncclGetLastError"
)
NVIDIAS_SYMBOL = re.compile(r"(__)?(cu|nv|nccl)\w+$")

IMPLICIT = "-Werror=implicit-function-declaration"  # otherwise a pointer is returned as an int

STUB = """\
__attribute__((weak)) long software_cuda_missing(const char *name); /* in libcudart.so, where it is the software one */
static long missing(const char *name) { return software_cuda_missing ? software_cuda_missing(name) : 100; }
"""


def needed(torch_lib: pathlib.Path) -> dict[str, dict[str, set[str]]]:
    """What torch needs of NVIDIA's: by library, by version ("" is none), the symbols."""
    libraries: dict[str, dict[str, set[str]]] = {}
    for library in sorted(torch_lib.glob("*.so*")):
        names = re.findall(r"\(NEEDED\).*\[(.*)\]", _ask("readelf", "-d", library))
        for name in filter(NVIDIAS.match, names):
            libraries.setdefault(name, collections.defaultdict(set))
        owners = _owners(library)
        # A symbol without a version is looked for in all libraries: it makes no difference that several have it.
        rest = [name for name in names if NVIDIAS.match(name) and name not in owners.values()]
        for line in _ask("nm", "-D", "--undefined-only", library).splitlines():
            symbol, _, version = line.split()[-1].partition("@")
            version = version.lstrip("@")
            if version in owners:
                libraries[owners[version]][version].add(symbol)
            elif not version and NVIDIAS_SYMBOL.match(symbol):
                for name in rest:
                    libraries[name][""].add(symbol)
    return libraries


def _owners(library: pathlib.Path) -> dict[str, str]:
    """By the versions of symbols that this one needs, which of NVIDIA's libraries has them."""
    owners, owner = {}, ""
    for line in _ask("readelf", "--wide", "-V", library).splitlines():
        if file := re.search(r"File: (\S+)", line):
            owner = file[1]
        elif (version := re.search(r"Name: (\S+)", line)) and NVIDIAS.match(owner):
            owners[version[1]] = owner
    return owners


def make(torch_lib: pathlib.Path, out: pathlib.Path, real: Mapping[str, Sequence[str]] | None = None) -> None:
    """Make a library for each one that torch needs.

    Args:
        torch_lib: the folder of torch's libraries.
        out: where the new ones go.
        real: by the beginning of a library's name ("libcudart.so"), the sources, and options of gcc, of those of its
            functions that are more than stubs.
    """
    out.mkdir(parents=True, exist_ok=True)
    for library, versions in needed(torch_lib).items():
        source, script = out / f"{library}.c", out / f"{library}.map"
        symbols = sorted(set().union(*versions.values()))
        source.write_text(STUB + "".join(map(_stub, symbols)))
        command = [
            "gcc",
            "-O1",
            "-g",
            "-Wall",
            IMPLICIT,
            "-shared",
            "-fPIC",
            f"-Wl,-soname,{library}",
            "-o",
            out / library,
            source,
        ]
        for beginning, more in (real or {}).items():
            if library.startswith(beginning):
                command += more
        named = [version for version in versions if version]
        if named:
            first, *others = named
            lines = [f"{first} {{ global: *; }};\n"]
            lines += [f"{version} {{ global: {'; '.join(versions[version])}; }};\n" for version in others]
            script.write_text("".join(lines))
            command.append(f"-Wl,--version-script={script}")
        subprocess.run([str(part) for part in [*command, "-lpthread", "-ldl"]], check=True)


def _stub(name: str) -> str:
    weak = "__attribute__((weak))"
    if TELLS.fullmatch(name):  # what an error is called
        return f'{weak} const char *{name}(void) {{ return "this is not CUDA, but {name}() of a stub"; }}\n'
    return f'{weak} long {name}(void) {{ return missing("{name}"); }}\n'


def _ask(*command: object) -> str:
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    make(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
