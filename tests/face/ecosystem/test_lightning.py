"""Lightning's Trainer and Fabric, which rebuild a loader to give it a distributed sampler."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
import torch
from conftest import Augmented
from epochs import WAYS, Record, assert_same_epochs, recording, saved
from lightning import Fabric, LightningModule, Trainer

pytestmark = pytest.mark.filterwarnings("ignore")


class Net(LightningModule):
    def __init__(self, kind: Any, record: Record, folder: pathlib.Path) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.kind, self.record, self.folder = kind, record, folder

    def training_step(self, batch: Any, index: int) -> Any:
        self.record.see(batch)
        return self.layer(batch["x"]).square().mean()

    def validation_step(self, batch: Any, index: int) -> None:
        self.record.see(batch)

    def predict_step(self, batch: Any, index: int) -> Any:
        self.record.see(batch)
        return batch["i"]

    def val_dataloader(self) -> Any:  # made in a hook, where Lightning records the arguments of constructors
        return self.kind(Augmented(8), 4, num_workers=1)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)

    def on_fit_end(self) -> None:
        self.record.see(type(self.trainer.train_dataloader.sampler).__name__)
        self.record.see(type(self.trainer.val_dataloaders.sampler).__name__)
        self.record.see(dict(self.layer.state_dict()))
        self.record.save(self.folder / f"{self.global_rank}")


def trainer(**options: Any) -> Trainer:
    return Trainer(
        accelerator="cpu",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_trainer(way: str, persistent: bool, tmp_path: pathlib.Path) -> None:
    def train(kind: Any) -> list[Record]:
        with recording() as record:
            loader = kind(Augmented(), batch_size=4, shuffle=True, num_workers=2, persistent_workers=persistent)
            trainer(devices=1).fit(Net(kind, record, tmp_path), loader)
        return [record]

    assert_same_epochs(train, way)


@pytest.mark.parametrize("way", WAYS)
def test_trainer_distributed(way: str, tmp_path: pathlib.Path) -> None:
    """Two processes; both loaders are rebuilt with a DistributedSampler, one from attributes, one from arguments."""

    def train(kind: Any) -> list[Record]:
        with recording() as record:
            loader = kind(Augmented(), batch_size=4, shuffle=True, num_workers=1)
            trainer(devices=2, strategy="ddp_fork").fit(Net(kind, record, tmp_path), loader)
        return saved(tmp_path, 2)

    for record in assert_same_epochs(train, way):
        assert record.seen[-3:-1] == ["DistributedSampler", "DistributedSampler"]


@pytest.mark.parametrize("way", WAYS)
def test_prediction(way: str, tmp_path: pathlib.Path) -> None:
    """To predict, Lightning rebuilds the loader with a batch sampler of its own."""

    def train(kind: Any) -> list[Record]:
        with recording() as record:
            loader = kind(Augmented(), batch_size=4, num_workers=2)
            record.see(trainer(devices=1).predict(Net(kind, record, tmp_path), loader))
        return [record]

    assert_same_epochs(train, way)


def fabric_epochs(fabric: Fabric, kind: Any, folder: pathlib.Path) -> None:
    with recording() as record:
        loader = fabric.setup_dataloaders(kind(Augmented(), batch_size=4, shuffle=True, num_workers=1))
        record.see(type(loader.sampler).__name__)
        layer = torch.nn.Linear(2, 1)
        model, optimizer = fabric.setup(layer, torch.optim.SGD(layer.parameters(), 0.1))
        for _ in range(2):
            for batch in loader:
                record.see(batch)
                optimizer.zero_grad()
                fabric.backward(model(batch["x"]).square().mean())
                optimizer.step()
        record.see(dict(layer.state_dict()))
    record.save(folder / f"{fabric.global_rank}")


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_fabric(way: str, devices: int, tmp_path: pathlib.Path) -> None:
    def train(kind: Any) -> list[Record]:
        fabric = Fabric(accelerator="cpu", devices=devices, strategy="ddp_fork" if devices > 1 else "auto")
        fabric.launch(fabric_epochs, kind, tmp_path)
        return saved(tmp_path, devices)

    for record in assert_same_epochs(train, way):
        assert record.seen[0] == ("DistributedSampler" if devices > 1 else "RandomSampler")
