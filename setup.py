"""Builds the Cython core: cython_ext/<name>.pyx becomes shmloader._<name>.

Everything else about the package is in pyproject.toml.  The build needs setuptools and Cython, never torch: the
extensions speak to torch only through addresses, DLPack and Python's buffer protocol.
"""

from __future__ import annotations

import sys
from glob import glob

from setuptools import Extension, setup

CORE = ("ring", "gather", "layout", "process", "probe", "jpeg")
SOURCES = {"jpeg": sorted(glob("cython_ext/jpeg/*.c"))}  # in C, beside a module's own .pyx
# No fused multiplications: they round once where Pillow's weights of a resize are rounded twice.
FLAGS = ["-O3", "-std=c11", "-ffp-contract=off", "-Wall", "-Wextra", "-Wno-unused-parameter"]


def extensions() -> list[Extension]:
    if sys.platform != "linux":
        return []  # importing still works there, and DataLoader says that it needs Linux
    from Cython.Build import cythonize

    modules = [
        Extension(
            f"shmloader._{name}",
            [f"cython_ext/{name}.pyx", *SOURCES.get(name, [])],
            depends=sorted(glob(f"cython_ext/{name}/*.h") or glob("cython_ext/*.h") + glob("cython_ext/*.pxd")),
            extra_compile_args=FLAGS,
        )
        for name in CORE
    ]
    return cythonize(modules, compiler_directives={"language_level": 3}, include_path=["cython_ext"], build_dir="build")


setup(ext_modules=extensions())
