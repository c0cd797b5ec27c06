"""A sweep: three jobs with learning rates of their own, over one loader that a server hosts.

    python -m examples.sweep

By hand it is `shmloader serve examples.sweep:loader --name sweep`, and one process for each job.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time

import torch
from torch.utils.data import TensorDataset

import shmloader

EPOCHS = 2


def loader() -> shmloader.DataLoader[tuple[torch.Tensor, ...]]:
    """What the server hosts."""
    torch.manual_seed(0)
    inputs = torch.randn(2048, 64)
    return shmloader.DataLoader(
        TensorDataset(inputs, (inputs.sum(1) > 0).long()),
        batch_size=64,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
    )


def job(name: str, rate: float) -> None:
    """Train with this learning rate, on the batches that all jobs get."""
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    with shmloader.attach(name, join="epoch") as batches:
        for _ in range(EPOCHS):
            right = count = 0
            for batch, target in batches:
                batch.mul_(0.5)  # in place: no other job sees it
                output = net(batch)
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(output, target).backward()
                optimizer.step()
                right += int((output.argmax(1) == target).sum())
                count += len(target)
    print(f"learning rate {rate}: {right / count:.1%} of {count}", flush=True)


def main() -> None:
    name = f"sweep-{os.getpid()}"
    command = [sys.executable, "-m", "shmloader", "serve", "examples.sweep:loader", "--name", name]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_for(name)
        context = multiprocessing.get_context("spawn")
        jobs = [context.Process(target=job, args=(name, rate)) for rate in (0.01, 0.1, 1.0)]
        for each in jobs:
            each.start()
        for each in jobs:
            each.join()
    finally:
        server.terminate()
        server.wait()


def wait_for(name: str) -> None:
    """Wait until the server is there."""
    while True:
        try:
            shmloader.attach(name)
            return
        except ConnectionError:
            time.sleep(0.1)


if __name__ == "__main__":
    main()
