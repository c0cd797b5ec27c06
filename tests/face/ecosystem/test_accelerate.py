"""accelerate rebuilds every loader by torch's name, and reads one batch in advance: patch_torch() is for it."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
import torch
from accelerate import Accelerator, DataLoaderConfiguration, debug_launcher, skip_first_batches
from accelerate.state import AcceleratorState, PartialState
from conftest import Augmented, assert_same
from epochs import Record, assert_same_epochs, recording, saved

import shmloader

PATCHED = "patched torch"


@pytest.fixture(autouse=True)
def _fresh_state() -> Any:
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def epochs(kind: Any, record: Record, config: DataLoaderConfiguration | None = None, **options: Any) -> Any:
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    layer = torch.nn.Linear(2, 1)
    loader = kind(Augmented(), batch_size=4, shuffle=True, **options)
    model, optimizer, loader = accelerator.prepare(layer, torch.optim.SGD(layer.parameters(), 0.1), loader)
    for epoch in range(3):
        # as after a checkpoint in the middle of the second epoch
        for batch in skip_first_batches(loader, 2) if epoch == 1 else loader:
            record.see(batch)
            optimizer.zero_grad()
            accelerator.backward(model(batch["x"]).square().mean())
            optimizer.step()
    record.see(dict(layer.state_dict()))
    return loader


@pytest.mark.parametrize("seedable", [False, True])
@pytest.mark.parametrize("persistent", [False, True])
def test_prepare(persistent: bool, seedable: bool) -> None:
    def train(kind: Any) -> list[Record]:
        config = DataLoaderConfiguration(use_seedable_sampler=seedable)
        with recording() as record:
            loader = epochs(kind, record, config, num_workers=2, persistent_workers=persistent)
        assert isinstance(loader, torch.utils.data.DataLoader)
        return [record]

    (record,) = assert_same_epochs(train, PATCHED)
    assert len(record.iterators) == (2 if persistent else 3)


def epochs_of_a_process(kind: Any, folder: pathlib.Path, dispatch: bool) -> None:
    torch.manual_seed(3)
    config = DataLoaderConfiguration(dispatch_batches=dispatch)
    with recording() as record:
        if dispatch:  # tensors alone can be sent to the others
            dataset = torch.utils.data.TensorDataset(torch.arange(44.0).reshape(22, 2))
            loader = Accelerator(cpu=True, dataloader_config=config).prepare(
                kind(dataset, batch_size=4, shuffle=True, num_workers=1)
            )
            for batch in [*loader, *skip_first_batches(loader, 1)]:
                record.see(batch)
        else:
            epochs(kind, record, config, num_workers=1)
    record.save(folder / f"{PartialState().process_index}")


def test_two_processes(tmp_path: pathlib.Path) -> None:
    """Each process has its share of every loader's batches."""

    def train(kind: Any) -> list[Record]:
        debug_launcher(epochs_of_a_process, (kind, tmp_path, False))
        return saved(tmp_path, 2)

    first, second = assert_same_epochs(train, PATCHED)
    assert not set(first.seen[0]["i"].tolist()) & set(second.seen[0]["i"].tolist())


def test_dispatching(tmp_path: pathlib.Path) -> None:
    """One process loads and sends the others theirs."""

    def train(kind: Any) -> list[Record]:
        debug_launcher(epochs_of_a_process, (kind, tmp_path, True))
        loading, receiving = saved(tmp_path, 2)
        receiving.iterators = receiving.iterators or loading.iterators
        return [loading, receiving]

    assert_same_epochs(train, PATCHED)


def test_skip_first_batches_of_a_plain_loader() -> None:
    def train(kind: Any) -> list[Record]:
        with recording() as record:
            for batch in skip_first_batches(kind(Augmented(), batch_size=4, num_workers=2), 2):
                record.see(batch)
        return [record]

    (record,) = assert_same_epochs(train, PATCHED)
    assert len(record.seen) == 4


def test_without_the_patch_it_is_torchs_loader() -> None:
    """What the patch is for: once this fails, accelerate keeps the class that it is given."""
    with recording() as record:
        ours = shmloader.DataLoader(Augmented(), batch_size=4, num_workers=2)
        batches = list(Accelerator(cpu=True).prepare(ours))
    assert record.iterators == ["_MultiProcessingDataLoaderIter"]
    assert_same([batch["i"] for batch in batches], [batch["i"] for batch in ours])
