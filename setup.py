"""Builds the Cython core: cython_ext/<name>.pyx becomes shmloader._<name>.

Everything else about the package is in pyproject.toml.  The build needs setuptools and Cython, never torch: the
extensions speak to torch only through addresses, DLPack and Python's buffer protocol.
"""

from __future__ import annotations

import sys
from glob import glob

from setuptools import Extension, setup

CORE = ("ring", "gather", "layout", "process", "probe", "current")


def extensions() -> list[Extension]:
    if sys.platform != "linux":
        return []  # importing still works there, and DataLoader says that it needs Linux
    from Cython.Build import cythonize

    modules = [
        Extension(
            f"shmloader._{name}",
            [f"cython_ext/{name}.pyx"],
            depends=[*sorted(glob("cython_ext/*.h")), *sorted(glob("cython_ext/*.pxd"))],
            extra_compile_args=["-O3", "-std=c11", "-Wall", "-Wextra", "-Wno-unused-parameter"],
        )
        for name in CORE
    ]
    return cythonize(modules, compiler_directives={"language_level": 3}, include_path=["cython_ext"], build_dir="build")


setup(ext_modules=extensions())
