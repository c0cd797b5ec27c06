"""Builds the Cython core: cython_ext/<name>.pyx, with <name>.pxd, becomes shmloader._<name>.

Everything else about the package is in pyproject.toml.  The build needs setuptools and Cython, never torch: the
extensions speak to torch only through addresses, DLPack and Python's buffer protocol.
"""

from __future__ import annotations

import sys
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

CORE = (
    *("ring", "sequences", "figures", "log", "turns", "free_slots", "lease", "progress", "task_writer", "trainer"),
    *("next_batch", "lane", "worker", "onlooker"),
    *("tensors", "gather", "batch_tree", "batch_writer", "batch_reader"),
    *("process", "stack_timer", "current", "cuda_driver", "reclaim", "late_signals", "jpeg", "pixels"),
)
SOURCES = {name: sorted(glob(f"cython_ext/{name}/*.c")) for name in ("jpeg", "pixels")}  # in C, beside its .pyx
# No fused multiplications: they round once where Pillow's weights of a resize are rounded twice.
FLAGS = ["-O3", "-std=c11", "-ffp-contract=off", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-psabi"]


def extension(name: str, source: str) -> Extension:
    short = name.rpartition("._")[2]
    return Extension(
        name,
        [source, *SOURCES.get(short, [])],
        depends=sorted(glob(f"cython_ext/{short}/*.h") or glob("cython_ext/*.h") + glob("cython_ext/*.pxd")),
        include_dirs=["cython_ext"],
        extra_compile_args=FLAGS,
    )


def named_declarations() -> str:
    """A folder in which Cython finds cython_ext/<name>.pxd by the name of its module, shmloader/_<name>.pxd: links."""
    folder = Path("build/cython/named")
    package = folder / "shmloader"
    package.mkdir(parents=True, exist_ok=True)
    for link in package.iterdir():
        link.unlink()  # it may be of a file that is gone
    (package / "__init__.pxd").touch()
    for name in CORE:
        if (declared := Path(f"cython_ext/{name}.pxd").resolve()).exists():
            (package / f"_{name}.pxd").symlink_to(declared)
    return str(folder)


def cythonized(extensions: list[Extension]) -> list[Extension]:
    if sys.platform != "linux":
        return []  # importing still works there, and DataLoader says that it needs Linux
    from Cython.Build import cythonize

    return cythonize(
        extensions,
        compiler_directives={"language_level": 3},
        include_path=["cython_ext", named_declarations()],
        build_dir="build/cython",
    )


class BuildExtensions(build_ext):
    """In a checkout (`build_ext --inplace`, `pip install -e`) it also builds what only bench/ imports."""

    def finalize_options(self) -> None:
        package = self.distribution.ext_modules
        if self.inplace or self.editable_mode:
            only_bench = cythonized([extension("bench.core._probe", "bench/core/probe.pyx")])
            self.distribution.ext_modules = [*package, *only_bench]
        super().finalize_options()
        self.distribution.ext_modules = package  # else an editable install would give `bench` to all who import it


setup(
    ext_modules=cythonized([extension(f"shmloader._{name}", f"cython_ext/{name}.pyx") for name in CORE]),
    cmdclass={"build_ext": BuildExtensions},
)
