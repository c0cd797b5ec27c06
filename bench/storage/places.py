"""What is timed: how many row groups of Parquet workers decode in random order, with group_by and without.

This runs in a process of its own, see core/child.py.
"""

from __future__ import annotations

import mmap
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shmloader import DataLoader, Shards

__all__ = ["place"]

ROWS = 1000  # of a row group
AHEAD = 2  # prefetch_factor: with 2 workers, a window is 4 batches
SEED = 5


def place(groups: int, workers: int, batch_size: int, batches: int = 80) -> dict[str, float]:
    """Rows of one file in random order, where each worker keeps one decoded row group.

    Args:
        groups: Of ROWS rows.
        workers, batch_size: Of the loader.
        batches: How many of the file's are made.

    Returns:
        without, place: row groups that all workers decode; fewer: times as many without group_by; quicker: times as
        many batches a second with it.

    Raises:
        RuntimeError: The batches differ.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        arrow: Any = import_module("pyarrow")
        parquet: Any = import_module("pyarrow.parquet")
        rows = np.arange(groups * ROWS)
        table = arrow.table({"x": rows, "text": [f"row {row}" for row in rows]})
        parquet.write_table(table, path, row_group_size=ROWS)
        order = np.random.default_rng(SEED).permutation(len(rows))[: batches * batch_size].tolist()
        without, plain, slow = _epoch(path, order, workers, batch_size, None)
        by_place, grouped, quick = _epoch(path, order, workers, batch_size, "place")
    if any(not torch.equal(a["x"], b["x"]) or a["text"] != b["text"] for a, b in zip(plain, grouped, strict=True)):
        raise RuntimeError("group_by has changed a batch")
    return {
        "without": float(without),
        "place": float(by_place),
        "fewer": without / by_place,
        "quicker": slow / quick,
    }


def _epoch(
    path: Path, order: list[int], workers: int, batch_size: int, group_by: str | None
) -> tuple[int, list[Any], float]:
    dataset = _Counted(path, workers)
    loader = DataLoader(
        dataset,
        batch_size,
        sampler=order,
        num_workers=workers,
        prefetch_factor=AHEAD,
        group_by=group_by,
        multiprocessing_context="fork",
    )
    with loader:
        begin = time.perf_counter()
        made = list(loader)
        took = time.perf_counter() - begin
    return int(dataset.decoded.sum()), made, took


class _Counted(torch.utils.data.Dataset[Any]):
    """Rows of a file, and how many row groups each worker decodes."""

    def __init__(self, path: Path, workers: int) -> None:
        self.shards = Shards(path, cache_bytes=0, progress=False)  # one group is kept in any case
        len(self.shards)
        self.decoded = np.frombuffer(mmap.mmap(-1, 8 * workers), np.int64)  # forked workers share it

    def __len__(self) -> int:
        return len(self.shards)

    def __getitem__(self, index: int) -> Any:
        row = self.shards[index]
        info = torch.utils.data.get_worker_info()
        assert info is not None
        self.decoded[info.id] = self.shards._source().decoded_groups  # type: ignore[union-attr]  # they are tables
        return row

    def __place__(self, index: int) -> Any:
        return self.shards.__place__(index)
