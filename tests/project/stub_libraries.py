"""Libraries in the place of CUDA's: with them torch's CUDA builds import, and find no device.

A CUDA build of torch links some twenty libraries of NVIDIA's, of 5 GB, before it can be imported at all.  A stub has
the soname of one of them and the symbols that torch wants of it, under the versions that torch wants them by.  Whatever
is called says that there is no device.

    python tests/project/stub_libraries.py .../site-packages/torch/lib FOLDER
    LD_LIBRARY_PATH=FOLDER python -c 'import torch; print(torch.version.cuda, torch.cuda.is_available())'
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

NVIDIAS = re.compile(r"lib(cu|nccl|nv)\w*\.so")
# Python's, and C++'s own: some of torch's libraries ask for the latter without a version.  A stub of `operator delete`
# or of a string's `append` would be called by all of torch.
NOT_NVIDIAS = re.compile(r"_?Py|_ZT?[IVS]?(NK?)?S[tabsiod]|_Z[dn][al]|__cxa_|__gxx_")
NO_DEVICE = 100  # cudaErrorNoDevice; to the other libraries just an error
UNVERSIONED = ""

Wanted = dict[str, dict[str, set[str]]]  # by soname, by symbol version: symbols


def wanted(libraries: Path) -> Wanted:
    """What torch's libraries want of NVIDIA's.

    A symbol that has a version is wanted of one library.  One that has none may be of any that its user links, so each
    of these gets it: whichever comes first is taken.
    """
    files = sorted(libraries.glob("*.so*"))
    users = {file: (_linked(file), _symbols(file, "--undefined-only")) for file in files}
    theirs = {symbol for file in files for _, symbol, _ in _symbols(file, "--defined-only")}
    found: Wanted = {}
    for (needed, _), _ in users.values():
        for soname in filter(NVIDIAS.match, needed):
            if not (libraries / soname).exists():
                found.setdefault(soname, defaultdict(set))
    for (needed, versions), symbols in users.values():
        unversioned = [soname for soname in needed if soname in found and soname not in versions.values()]
        for kind, symbol, version in symbols:
            if version:
                if versions.get(version) in found:
                    found[versions[version]][version].add(symbol)
            elif kind == "U" and symbol not in theirs and not NOT_NVIDIAS.match(symbol):
                for soname in unversioned:
                    found[soname][UNVERSIONED].add(symbol)
    return found


def build(libraries: Path, folder: Path) -> list[str]:
    """Make a stub of each library that torch's own, in this folder, want and do not bring.

    Returns:
        The stubs' names.

    Raises:
        subprocess.CalledProcessError: the compiler or binutils failed; their output went to stderr.
        FileNotFoundError: there is no compiler, or there are no binutils.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stubs = wanted(libraries)
    for soname, versions in stubs.items():
        code, script = folder / f"{soname}.c", folder / f"{soname}.map"
        code.write_text("\n".join(_function(symbol) for symbol in sorted(set().union(*versions.values()))) + "\n")
        command = [os.environ.get("CC", "cc"), "-w", "-shared", "-fPIC", f"-Wl,-soname,{soname}"]
        named = {version: symbols for version, symbols in versions.items() if version != UNVERSIONED}
        if named:
            script.write_text("".join(f"{name} {{ global: {'; '.join(each)}; }};\n" for name, each in named.items()))
            command.append(f"-Wl,--version-script={script}")
        subprocess.run([*command, "-o", str(folder / soname), str(code)], check=True)
    return sorted(stubs)


def _function(symbol: str) -> str:
    if re.search(r"(ErrorString|ErrorName)$", symbol):
        return f'const char *{symbol}(void) {{ return "there is no device"; }}'
    return f"long {symbol}(void) {{ return {NO_DEVICE}; }}"


def _linked(file: Path) -> tuple[list[str], dict[str, str]]:
    """The libraries that a file links, and which of them each version of a symbol belongs to."""
    needed, versions, soname = [], {}, ""
    for line in _lines("objdump", "-p", file):
        if found := re.match(r"\s+NEEDED\s+(\S+)", line):
            needed.append(found[1])
        elif found := re.match(r"\s+required from (\S+):", line):
            soname = found[1]
        elif found := re.match(r"\s+0x\w+ 0x\w+ \d+ (\S+)", line):
            if soname:
                versions[found[1]] = soname
        else:
            soname = ""
    return needed, versions


def _symbols(file: Path, which: str) -> list[tuple[str, str, str]]:
    """Symbols of a file: the kind (U: wanted, w: wanted if it is there), the name, the version or nothing."""
    lines = (line.split() for line in _lines("nm", "-D", "--with-symbol-versions", which, file))
    return [(words[-2], *words[-1].replace("@@", "@").partition("@")[::2]) for words in lines if len(words) > 1]


def _lines(*command: str | Path) -> list[str]:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python tests/project/stub_libraries.py TORCH_LIB FOLDER")
    print("\n".join(build(Path(sys.argv[1]), Path(sys.argv[2]))))
