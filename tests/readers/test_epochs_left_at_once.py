"""A job that attached calls iter() again before it has had a batch: it goes through epochs that others read."""

from __future__ import annotations

import os

from served import server_of

import shmloader


def test_iter_again_and_again_passes_over_the_epochs_before() -> None:
    # While the job takes nothing, the server begins some epochs of one batch.  Then the oldest batch is of an epoch
    # before the one that the job leaves, and the server begins no further one until the job has dropped it.
    name = f"left at once {os.getpid()}"
    with server_of(2, name), shmloader.attach(name) as batches:
        for k in range(20):
            iter(batches)
            assert batches.state_dict()["epoch"] == k
        assert [batch.tolist() for batch in batches] == [[0, 1]]
        assert batches.state_dict()["epoch"] == 21
