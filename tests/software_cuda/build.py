"""Builds the software CUDA for a torch: NOTE [ Software CUDA ] in runtime.h.

    python -m tests.software_cuda.build TORCH_LIB HEADERS OUT

TORCH_LIB is the folder `torch/lib` of an installation, HEADERS the one with NVIDIA's driver_types.h, OUT where the
libraries go.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys

from tests.software_cuda import stubs

HERE = pathlib.Path(__file__).parent
PRELOADED = "unmapping.c"
DRIVER = "driver.c"


def build(torch_lib: pathlib.Path, headers: pathlib.Path, out: pathlib.Path) -> None:
    """Build all libraries, and the one that is to be preloaded."""
    flags = [f"-I{HERE}", f"-I{headers}", "-fno-strict-aliasing"]
    sources = [str(path) for path in sorted(HERE.glob("*.c")) if path.name not in (PRELOADED, DRIVER)]
    # what the driver takes from the runtime is found when it is loaded: torch loads the runtime for all to see
    stubs.make(torch_lib, out, {"libcudart.so": [*flags, *sources], "libcuda.so": [*flags, str(HERE / DRIVER)]})
    preloaded = ["gcc", "-O1", "-shared", "-fPIC", "-o", str(out / "unmapping.so"), str(HERE / PRELOADED), "-ldl"]
    subprocess.run(preloaded, check=True)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    build(*map(pathlib.Path, sys.argv[1:]))
