"""A job that attached calls iter() again before it has had a batch: it goes through epochs that others read."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any

import torch

import shmloader
from shmloader.readers.server import serve


def test_iter_again_and_again_passes_over_the_epochs_before() -> None:
    # While the job takes nothing, the server begins some epochs of one batch.  Then the oldest batch is of an epoch
    # before the one that the job leaves, and the server begins no further one until the job has dropped it.
    name = f"left at once {os.getpid()}"
    pid = os.fork()
    if not pid:
        with contextlib.suppress(KeyboardInterrupt):
            data: Any = torch.arange(2)
            loader: Any = shmloader.DataLoader(
                data, 2, num_workers=1, persistent_workers=True, multiprocessing_context="fork"
            )
            serve(loader, name)
        os._exit(0)
    try:
        while True:
            with contextlib.suppress(ConnectionError):
                batches = shmloader.attach(name)
                break
            time.sleep(0.01)
        with batches:
            for k in range(20):
                iter(batches)
                assert batches.state_dict()["epoch"] == k
            assert [batch.tolist() for batch in batches] == [[0, 1]]
            assert batches.state_dict()["epoch"] == 21
    finally:
        os.kill(pid, signal.SIGINT)
        os.waitpid(pid, 0)
