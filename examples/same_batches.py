"""Two tensor-parallel ranks that get the same batches from one loader, which the first rank's server hosts.

    torchrun --standalone --nproc-per-node 2 -m examples.same_batches

Each rank has half of the layer's columns, and an all-gather joins what they compute.  A batch is loaded once.
"""

from __future__ import annotations

import os
import subprocess
import sys

import torch
import torch._dynamo  # before the group is made, because an optimizer imports it: see below
import torch.distributed as dist
from torch.utils.data import TensorDataset

import shmloader


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


def served(name: str) -> subprocess.Popen[bytes]:
    """A server that gives its first batch when all ranks have attached."""
    command = [sys.executable, "-m", "shmloader", "serve", "examples.same_batches:loader", "--name", name]
    server = subprocess.Popen([*command, "--readers", str(dist.get_world_size())], stdout=subprocess.PIPE)
    assert server.stdout is not None
    server.stdout.readline()  # it serves now
    return server


def main() -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    name = f"ranks-{os.environ.get('MASTER_PORT')}"  # another job on this machine has another port
    server = served(name) if rank == 0 else None
    dist.barrier()
    torch.manual_seed(0)
    columns = torch.nn.Linear(64, 32 // ranks)  # this rank's
    head = torch.nn.Linear(32, 2)  # every rank has it, from the same seed
    for parameter in head.parameters():
        dist.broadcast(parameter.data, 0)
    optimizer = torch.optim.Adam([*columns.parameters(), *head.parameters()], lr=0.01)
    with shmloader.attach(name) as batches:
        for epoch in range(3):
            right = count = 0
            for batch, target in batches:
                mine = torch.relu(columns(batch))
                parts = [torch.empty_like(mine) for _ in range(ranks)]
                dist.all_gather(parts, mine.detach())
                parts[rank] = mine
                output = head(torch.cat(parts, 1))
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(output, target).backward()
                optimizer.step()
                right += int((output.argmax(1) == target).sum())
                count += len(target)
            print(f"rank {rank}, epoch {epoch}: {right / count:.1%} of {count}", flush=True)
    dist.barrier()
    if server is not None:
        server.terminate()
        server.wait()
    # This ends the threads of gloo.  It would not if torch._dynamo were imported since (torch 2.13).  One that still
    # frees a tensor where the interpreter ends aborts the process: "terminate called without an active exception".
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
