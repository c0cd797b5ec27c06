"""FFCV: it loads no dataset but a file of its own, which is written here from the dataset's samples.

Compiled code copies them in threads of this process, and none of the dataset's Python runs.  That is another thing than
the others do: it is measured beside them and not counted among them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from bench.job import PREFETCH, Job
from bench.samples import PERIOD

LONGEST = PERIOD << 18  # samples in an epoch, for it lists them all; of whole periods and whole batches
CASES = ("scalar", "small-images", "uint8-images", "float32-images", "epoch")  # what its file can hold
NOTE = "copies from a file of its own by compiled code, in threads; its start-up has the writing and compiling in it"
HINT = "it builds where the headers of OpenCV and libturbojpeg are"


class Rows:
    """One period of a dataset as FFCV's writer wants it: tuples of arrays."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return PERIOD

    def __getitem__(self, index: int) -> tuple[Any]:
        return (np.atleast_1d(self._dataset[index].numpy()),)


class Epochs:
    """FFCV's loader, with the shapes that the others have, and without an end where a dataset has none."""

    def __init__(self, loader: Any, shape: tuple[int, ...], endless: bool) -> None:
        self._loader = loader
        self._shape = shape
        self._endless = endless

    def __iter__(self) -> Iterator[Any]:
        while True:
            for (batch,) in self._loader:
                yield batch.view(-1, *self._shape)
            if not self._endless:
                return


def open_ffcv(job: Job) -> Iterable[Any]:
    from ffcv.fields import NDArrayField
    from ffcv.fields.decoders import NDArrayDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import ToTensor
    from ffcv.writer import DatasetWriter

    rows: Any = Rows(job.dataset)
    (row,) = rows[0]
    samples: int = len(job.dataset)  # type: ignore[arg-type]
    file, path = tempfile.mkstemp(suffix=".beton")
    os.close(file)
    DatasetWriter(path, {"sample": NDArrayField(row.dtype, row.shape)}, num_workers=1).from_indexed_dataset(rows)
    loader = Loader(
        path,
        batch_size=job.batch_size,
        num_workers=job.workers,
        order=OrderOption.SEQUENTIAL,
        indices=np.arange(min(samples, LONGEST)) % PERIOD,
        os_cache=True,
        batches_ahead=PREFETCH * job.workers,
        pipelines={"sample": [NDArrayDecoder(), ToTensor()]},
    )
    return Epochs(loader, tuple(job.dataset[0].shape), samples > LONGEST)
