"""Whether an installed shmloader works, away from the checkout: `python smoke.py`, with any Python and any torch.

It asks for the mechanisms one by one: fork and spawn, the same batches as torch's, stealing and chunks, a worker that
is killed, a place in mid-epoch, memory outside /dev/shm, the decoder.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import shmloader

FILE = Path(tempfile.gettempdir()) / f"shmloader-smoke-{os.getpid()}"


class Squares(torch.utils.data.Dataset[Any]):
    def __init__(self, deadly: str = "") -> None:
        self.deadly = deadly

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[torch.Tensor, float]:
        if index == 23 and self.deadly and not os.path.exists(self.deadly):
            Path(self.deadly).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.full((3, 5), index**2), torch.rand(()).item()


def batches(kind: Any, **options: Any) -> list[Any]:
    torch.manual_seed(7)
    return list(kind(Squares(), batch_size=6, shuffle=True, num_workers=2, **options))


def same(ours: list[Any], theirs: list[Any]) -> bool:
    pairs = zip(ours, theirs, strict=True)
    return all(torch.equal(one, other) for both in pairs for one, other in zip(*both, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", nargs="?", default=sys.prefix, help="where shmloader must come from")
    parser.add_argument("--fork-only", action="store_true", help="spawn no worker: the kernel cannot start this Python")
    options = parser.parse_args()
    installed = Path(shmloader.__file__).resolve()
    assert installed.is_relative_to(Path(options.site).resolve()), f"{installed} is not what was installed"
    assert shmloader.__version__ == importlib.metadata.version("shmloader")
    assert shmloader.DataLoader(Squares(), num_workers=1).why_not_ring() is None

    theirs = batches(torch.utils.data.DataLoader)
    assert same(batches(shmloader.DataLoader), theirs)
    if not options.fork_only:
        assert same(batches(shmloader.DataLoader, multiprocessing_context="spawn"), theirs)
        ran = subprocess.run([sys.executable, "-m", "shmloader", "--version"], stdout=subprocess.PIPE, text=True)
        assert shmloader.__version__ in ran.stdout
    os.environ["SHMLOADER_RING_MEMORY"] = "memfd"
    assert same(batches(shmloader.DataLoader), theirs)
    del os.environ["SHMLOADER_RING_MEMORY"]
    stolen = batches(shmloader.DataLoader, schedule="steal")
    assert same(batches(shmloader.DataLoader, schedule="steal", chunk_size=2), stolen)

    deadly = shmloader.DataLoader(Squares(str(FILE)), batch_size=6, num_workers=2, on_worker_death="respawn")
    got = torch.cat([squares[:, 0, 0] for squares, _ in deadly])
    assert FILE.exists()
    FILE.unlink()
    assert got.tolist() == [index**2 for index in range(40)]

    torch.manual_seed(7)
    loader = shmloader.DataLoader(Squares(), batch_size=6, shuffle=True, num_workers=2, sample_seeds=True)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    rest = list(iterator)
    again = shmloader.DataLoader(Squares(), batch_size=6, shuffle=True, num_workers=1, sample_seeds=True)
    again.load_state_dict(state)
    assert same(list(again), rest)

    from shmloader.core.jpeg import Decoder, paths  # the compiled decoder, whatever Pillow can

    assert paths()
    Decoder()
    print(f"shmloader {shmloader.__version__}, torch {torch.__version__}, Python {sys.version.split()[0]}: it works")


if __name__ == "__main__":
    main()
