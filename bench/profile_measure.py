"""One cell of the profile experiment: a loader, and a consumer that sleeps in place of an inference.

Runs in a process of its own, see child.py, for DI-engine in another environment.
"""

from __future__ import annotations

import multiprocessing
import time

import torch

from bench.core._probe import touch_pages
from bench.experiment import PROFILES
from bench.profile_loaders import opened
from bench.sleeping import Sleeping, sharpen


def cell(loader: str, case: str, flow: str, scale: float, iterations: int, ignored: int) -> dict[str, float]:
    """Load so many batches, the first of them not counted.

    Returns:
        first: seconds from the loader's creation to its first batch;
        counted: batches that the rest is about;
        total, blocked: their seconds, and how many of these were spent in next();
        touch: seconds to touch every page of a batch, a mean; they are part of its inference;
        late: batches whose pages took longer to touch than the inference was to last.
    """
    multiprocessing.set_start_method("fork", force=True)  # jobs read what their worker was forked with
    sharpen()
    if loader == "di-engine":
        # Its workers, forked, share large samples by a parallel copy, and hang in OpenMP if this process has used that.
        torch.set_num_threads(1)
    what = PROFILES[case]
    inference = what.inference_seconds(flow, scale)
    data = Sleeping(what.sample(), what.sample_seconds(scale))
    blocked = touching = begun = 0.0
    late = 0
    created = due = time.perf_counter()
    with opened(loader, what, data) as batches:
        for k in range(iterations):
            asked = time.perf_counter()
            if k == ignored:
                blocked, touching, late, begun = 0.0, 0.0, 0, asked
            batch = next(batches)  # the batch before it is given back only now, as in a training loop
            got = time.perf_counter()
            if k == 0:
                first, due = got - created, asked
                if tuple(batch.shape) != (what.batch_size, what.sample_bytes):
                    raise AssertionError(f"{loader}: not the batch that was to be loaded: {tuple(batch.shape)}")
            # From when the last inference was to end, not from now: a sleep that was too long shortens the next.
            due += got - asked + inference
            blocked += got - asked
            touch_pages(batch.data_ptr(), batch.nbytes)
            touched = time.perf_counter()
            touching += touched - got
            late += touched - got > inference
            time.sleep(max(0.0, due - touched))
        total = time.perf_counter() - begun
    counted = iterations - ignored
    return {
        "first": first,
        "counted": counted,
        "total": total,
        "blocked": blocked,
        "touch": touching / counted,
        "late": late,
    }
