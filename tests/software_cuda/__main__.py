"""Runs Python with the software CUDA below torch: NOTE [ Software CUDA ] in runtime.h.

    PYTHON -m tests.software_cuda HEADERS ARGUMENTS...

PYTHON has torch's CUDA build, HEADERS are NVIDIA's (of the package nvidia-cuda-runtime), and ARGUMENTS go to PYTHON.
The libraries are built for this torch when they are older than their sources, in build/software-cuda.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pathlib
import sys

from tests.software_cuda.build import HERE, build

ROOT = HERE.parent.parent


def main(headers: pathlib.Path, arguments: list[str]) -> None:
    torch = importlib.util.find_spec("torch")
    assert torch is not None and torch.origin is not None
    out = ROOT / "build" / "software-cuda" / importlib.metadata.version("torch")
    built = out / "built"
    newest = max(path.stat().st_mtime for path in (*HERE.glob("*.[ch]"), HERE / "build.py", HERE / "stubs.py"))
    if not built.exists() or built.stat().st_mtime < newest:
        build(pathlib.Path(torch.origin).parent / "lib", headers, out)
        built.touch()
    os.environ["LD_LIBRARY_PATH"] = str(out)
    os.environ["LD_PRELOAD"] = str(out / "unmapping.so")
    os.environ["CUDA_MODULE_LOADING"] = "LAZY"
    os.environ["OMP_NUM_THREADS"] = "1"  # the streams are threads too
    os.environ["PYTHONPATH"] = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
    os.execv(sys.executable, [sys.executable, *arguments])


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
