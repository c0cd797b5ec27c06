"""Runs a script's function in the ranks of a group on this machine, with gloo, and returns what each of them does."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path
from typing import Any

from scripts import run_script

BEFORE = """
import faulthandler, os, pickle, signal, sys, time
import torch, torch.distributed as dist
import torch.utils.data as data
import shmloader

class Tens(data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, k):
        return torch.full((700,), float(k)), k

def run(rank):
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    dist.init_process_group("gloo", init_method="file://" + FOLDER + "/store", rank=rank, world_size=WORLD)
    torch.manual_seed(5)
    try:
        did = main(rank)
    except BaseException as error:
        did = f"{type(error).__name__}: {error}"
    with open(f"{FOLDER}/{rank}.new", "wb") as file:
        pickle.dump(did, file)
    os.rename(f"{FOLDER}/{rank}.new", f"{FOLDER}/{rank}")
    if did is not None:
        end = time.monotonic() + 30
        while not all(os.path.exists(f"{FOLDER}/{other}") for other in ENDS) and time.monotonic() < end:
            time.sleep(0.02)
    os._exit(0)

def loader_of(dataset=None, **options):
    given = {"batch_size": 4, "num_workers": 2, "shuffle": True, "multiprocessing_context": "fork"} | options
    return shmloader.DataLoader(Tens() if dataset is None else dataset, readers=dist.group.WORLD, **given)
"""
AFTER = """
if __name__ == "__main__":
    pids = []
    for rank in range(WORLD):
        pid = os.fork()
        if not pid:
            run(rank)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
"""


def in_ranks(main: str, world: int = 2, ends: tuple[int, ...] | None = None) -> list[Any]:
    """What main(rank) returns in each rank; the text of what it raises; None where the rank was killed.

    Args:
        main: Defines main(rank).
        world: How many ranks.
        ends: The ranks that live to the end, for which each waits before it ends; None: all.
    """
    ends = tuple(range(world)) if ends is None else ends
    with tempfile.TemporaryDirectory() as folder:
        text = f"WORLD, ENDS, FOLDER, SECONDS = {world}, {ends}, {folder!r}, 100\n{BEFORE}\n{main}\n{AFTER}"
        ran = run_script(text, 150)
        assert "Traceback" not in ran.err and "Timeout" not in ran.err, ran.err
        found = []
        for rank in range(world):
            path = Path(folder) / str(rank)
            found.append(pickle.loads(path.read_bytes()) if path.exists() else None)
    return found
