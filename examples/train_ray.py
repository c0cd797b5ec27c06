"""Trains in Ray Train: two training workers stop in the middle of an epoch, and three go on after its last batch.

The checkpoint has the network and the place of the loader, which is the same for all training workers.  Each sample
comes once in the epoch, whatever their number.

    pip install 'shmloader[ray]' 'ray[train]'
    python -m examples.train_ray
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch
from torch import nn
from torch.utils.data import Dataset

import shmloader
import shmloader.ray


class Points(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Points of a plane with some noise, and their heights."""

    def __len__(self) -> int:
        return 960

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        place = torch.tensor([index % 31 / 31, index % 37 / 37])
        return place + 0.01 * torch.randn(2), 3 * place[:1] - place[1:]


def train(config: dict[str, Any]) -> None:
    """What each training worker does: an epoch, or a part of one."""
    # Each worker imports the main module, which is Ray's here.  So the fork server imports Ray once.
    multiprocessing.set_forkserver_preload(["shmloader", "ray"])
    loader: Any = shmloader.DataLoader(
        Points(),
        batch_size=16,
        shuffle=True,
        num_workers=1,
        multiprocessing_context="forkserver",  # Ray's threads run in this process, so nothing may be forked from it
        sample_seeds=True,  # the noise of a point does not depend on who makes it
    )
    loader = shmloader.ray.prepare_data_loader(loader)
    net: Any = ray.train.torch.prepare_model(nn.Linear(2, 1))
    plain = getattr(net, "module", net)
    if config["checkpoint"] is None:
        loader.set_epoch(0)
    else:
        with config["checkpoint"].as_directory() as folder:
            saved = torch.load(Path(folder) / "saved.pt")
        plain.load_state_dict(saved["net"])
        loader.load_state_dict(saved["loader"])
    optimizer = torch.optim.SGD(net.parameters(), 0.5)
    seen, loss = torch.zeros(1), torch.zeros(())
    for taken, (points, heights) in enumerate(loader, 1):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(points), heights)
        loss.backward()
        optimizer.step()
        seen += len(points)
        if taken == config["batches"]:
            break
    torch.distributed.all_reduce(seen)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if ray.train.get_context().get_world_rank() == 0:
            torch.save({"net": plain.state_dict(), "loader": loader.state_dict()}, Path(folder) / "saved.pt")
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({"samples": int(seen), "loss": loss.item()}, checkpoint=checkpoint)
    loader.close()


def fit(folder: str, ranks: int, checkpoint: Any, batches: int) -> Any:
    """Train with so many training workers, which take at most so many batches each."""
    trainer = ray.train.torch.TorchTrainer(
        train,
        train_loop_config={"checkpoint": checkpoint, "batches": batches},
        scaling_config=ray.train.ScalingConfig(num_workers=ranks),
        run_config=ray.train.RunConfig(storage_path=folder, name=f"{ranks} ranks"),
    )
    result = trainer.fit()
    samples, loss = result.metrics["samples"], result.metrics["loss"]
    print(f"{ranks} training workers: {samples} samples of the epoch, loss {loss:.4f}", flush=True)
    return result.checkpoint


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = fit(folder, 2, None, 9)
        fit(folder, 3, checkpoint, 1000)
    ray.shutdown()


if __name__ == "__main__":
    # Training workers and their loaders' workers find Points by this module's name; __main__ is another script there.
    from examples.train_ray import main as as_module

    as_module()
