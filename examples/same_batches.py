"""Two tensor-parallel ranks that get the same batches: the first one loads, the other one reads its memory.

    torchrun --standalone --nproc-per-node 2 -m examples.same_batches

Each rank has half of the layer's columns, and an all-gather joins what they compute.  A batch is loaded once.
"""

from __future__ import annotations

import torch
import torch._dynamo  # before the group is made, because an optimizer imports it: see below
import torch.distributed as dist
from torch.utils.data import TensorDataset

import shmloader


def main() -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    inputs = torch.randn(2048, 64)
    labels = (inputs.sum(1) > 0).long()
    loader = shmloader.DataLoader(
        TensorDataset(inputs, labels),
        batch_size=64,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
        readers=dist.group.WORLD,
    )
    columns = torch.nn.Linear(64, 32 // ranks)  # this rank's
    head = torch.nn.Linear(32, 2)  # every rank has it, from the same seed
    for parameter in head.parameters():
        dist.broadcast(parameter.data, 0)
    optimizer = torch.optim.Adam([*columns.parameters(), *head.parameters()], lr=0.01)
    for epoch in range(3):
        right = count = 0
        for batch, target in loader:
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
    loader.close()
    # This ends the threads of gloo.  It would not if torch._dynamo were imported since (torch 2.13).  One that still
    # frees a tensor where the interpreter ends aborts the process: "terminate called without an active exception".
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
