"""Builds the Cython core: cython_ext/<room>/<name>.pyx, with <name>.pxd, becomes shmloader.core.<name>.

A module includes parts, <part>.pxi.  What they declare is in <name>.pxd, too.

Everything else about the package is in pyproject.toml.  The build needs setuptools and Cython, never torch: the
extensions speak to torch only through addresses, DLPack and Python's buffer protocol.  The JPEG decoder is ours, so no
library is needed for it.  setuptools chooses the compiler ($CC).  No flag turns on vector instructions: a process
chooses its path when it first decodes (path.c in cython_ext/jpeg, pixels and resize).
"""

from __future__ import annotations

import sys
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# The rooms, and the modules of each, from the floor up: a module imports from those before it here, and from nothing
# else of the package (tests/core/test_core_layers.py).  There are few, because calls inside a module are direct, and
# because each module has a copy of what Cython needs at run time, some 20 KB of a wheel.
# All of them may use atomics.h and clock.h.
CORE = {
    "process": ("process",),
    "figures": ("figures", "onlooker"),
    "ring": ("ring", "lease", "trainer", "worker"),
    "batch": ("tensors", "batch_tree", "batch_writer", "batch_reader", "served_side"),
    "device": ("cuda",),
    "jpeg": ("jpeg",),
    "pixels": ("pixels",),
    "frozen": ("frozen_rows",),
    "cache": ("cache_table",),
    "storage": ("tar_members",),
}
# Modules of a few lines around what is written in C, and the rooms of that; both resize by the same code.
IN_C = {"jpeg": ("jpeg", "resize"), "pixels": ("pixels", "resize")}
# No fused multiplications: they round once where Pillow's weights of a resize are rounded twice.
FLAGS = ["-O3", "-std=c11", "-ffp-contract=off", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-psabi"]


def extension(name: str, source: str, room: str) -> Extension:
    in_c = IN_C.get(room, ())
    rooms = in_c or [other for other in CORE if other not in IN_C]
    return Extension(
        name,
        [source, *sorted(path for each in in_c for path in glob(f"cython_ext/{each}/*.c"))],
        depends=sorted(path for each in (".", *rooms) for path in glob(f"cython_ext/{each}/*.[hp]*")),
        include_dirs=["cython_ext"],
        extra_compile_args=FLAGS,
    )


def named_declarations() -> str:
    """A folder in which Cython finds cython_ext/<room>/<name>.pxd as shmloader.core.<name>: links."""
    folder = Path("build/cython/named")
    package = folder / "shmloader" / "core"
    package.mkdir(parents=True, exist_ok=True)
    for link in package.iterdir():
        link.unlink()  # its file may be gone
    for of_package in (package.parent, package):
        (of_package / "__init__.pxd").touch()
    for room, names in CORE.items():
        for name in names:
            if (declared := Path(f"cython_ext/{room}/{name}.pxd").resolve()).exists():
                (package / f"{name}.pxd").symlink_to(declared)
    return str(folder)


def cythonized(extensions: list[Extension]) -> list[Extension]:
    if sys.platform != "linux":
        return []  # importing still works there, and DataLoader says that it needs Linux
    from Cython.Build import cythonize

    return cythonize(
        extensions,
        # Nobody pickles these objects but those that have a __reduce__.  Cython would write one for each class, in a
        # seventh of the code.
        compiler_directives={"language_level": 3, "auto_pickle": False},
        include_path=["cython_ext", named_declarations()],
        build_dir="build/cython",
    )


class BuildExtensions(build_ext):
    """In a checkout (`build_ext --inplace`, `pip install -e`) it also builds what only bench/ imports."""

    def finalize_options(self) -> None:
        package = self.distribution.ext_modules
        if self.inplace or self.editable_mode:
            only_bench = cythonized([extension("bench.core._probe", "bench/core/probe.pyx", "ring")])
            self.distribution.ext_modules = [*package, *only_bench]
        super().finalize_options()
        self.distribution.ext_modules = package  # else an editable install would give `bench` to all who import it


setup(
    ext_modules=cythonized(
        [
            extension(f"shmloader.core.{name}", f"cython_ext/{room}/{name}.pyx", room)
            for room, names in CORE.items()
            for name in names
        ]
    ),
    cmdclass={"build_ext": BuildExtensions},
)
