"""Lightning's `Trainer.fit(ckpt_path=)` in mid-epoch; of many ranks, all get the first one's state."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
import torch
from conftest import Augmented, seed_all
from epochs import recording
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

import shmloader

pytestmark = pytest.mark.filterwarnings("ignore")


class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.got: list[list[Any]] = []

    def training_step(self, batch: Any, index: int) -> Any:
        self.got.append([batch["i"].tolist(), batch["r"].tolist()])
        return self.layer(batch["x"]).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """See docs/resume.md: Lightning takes the rest of an epoch, which may be empty, as the next one."""
        loop = checkpoint["loops"]["fit_loop"]
        if loop["epoch_loop.batch_progress"]["is_last_batch"]:
            loop["state_dict"].pop("combined_loader", None)


class Stops(Callback):
    """Saves behind so many batches, and has the trainer stop."""

    def __init__(self, path: pathlib.Path, stop: int | None) -> None:
        self.path, self.stop = path, stop

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.stop:
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True


class Notes(Callback):
    """Writes what each rank has got."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    def on_fit_start(self, *_: Any) -> None:
        self.recording = recording()
        self.record = self.recording.__enter__()

    def on_fit_end(self, trainer: Any, module: Any) -> None:
        self.recording.__exit__(None, None, None)
        assert set(self.record.iterators) == {"RingIterator"}
        (self.folder / f"got-{trainer.global_rank}").write_text(json.dumps(module.got))


def loader(ranks: int, persistent: bool) -> Any:
    return shmloader.DataLoader(
        Augmented(44),
        4,
        shuffle=True,
        num_workers=1,
        sample_seeds=True,
        persistent_workers=persistent,
        generator=torch.Generator().manual_seed(5),  # Lightning saves no generator: this one is in the loader's state
    )


def fit(folder: pathlib.Path, ranks: int, persistent: bool, stop: int | None, loads: bool) -> list[Any]:
    """What each rank gets of two epochs: all, up to so many batches, or what is left then."""
    seed_all(9 if loads else 4)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=2,
        devices=ranks,
        strategy="ddp_fork" if ranks > 1 else "auto",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Stops(folder / "checkpoint.ckpt", stop), Notes(folder)],
    )
    trainer.fit(Net(), loader(ranks, persistent), ckpt_path=folder / "checkpoint.ckpt" if loads else None)
    return [json.loads((folder / f"got-{rank}").read_text()) for rank in range(ranks)]


@pytest.mark.parametrize(("ranks", "persistent"), [(1, False), (1, True), (2, False)])
def test_it_goes_on(ranks: int, persistent: bool, tmp_path: pathlib.Path) -> None:
    def run(stop: int | None, loads: bool) -> list[Any]:
        return fit(tmp_path, ranks, persistent, stop, loads)

    whole = run(None, False)
    each = len(whole[0]) // 2
    assert each == -(-11 // ranks)
    for stop in (3, each + 2):
        assert run(stop, False) == [got[:stop] for got in whole]
        assert run(None, True) == [got[stop:] for got in whole]
    run(each, False)
    for after, got in zip(run(None, True), whole, strict=True):
        assert len(after) == each
        assert sum(len(indices) for indices, _ in after) == sum(len(indices) for indices, _ in got[:each])
