"""ignite's engines over a loader, and the loaders that it builds itself."""

from __future__ import annotations

from typing import Any

import ignite.distributed as idist
import pytest
import torch
from conftest import Augmented, assert_same
from epochs import WAYS, Record, assert_same_epochs, recording
from ignite.engine import DeterministicEngine, Engine, Events


def stepping(engine: type[Engine], record: Record) -> Engine:
    layer = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)

    def step(engine: Engine, batch: Any) -> None:
        record.see(batch)
        optimizer.zero_grad()
        layer(batch["x"]).square().mean().backward()
        optimizer.step()

    made = engine(step)
    made.add_event_handler(Events.COMPLETED, lambda: record.see(dict(layer.state_dict())))
    return made


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_engine(way: str, persistent: bool) -> None:
    def train(kind: Any) -> list[Record]:
        with recording() as record:
            loader = kind(Augmented(), batch_size=4, shuffle=True, num_workers=2, persistent_workers=persistent)
            stepping(Engine, record).run(loader, max_epochs=2)
        return [record]

    assert_same_epochs(train, way)


@pytest.mark.parametrize("way", WAYS)
def test_more_steps_than_batches(way: str) -> None:
    """The engine calls the loader's iter() again in the middle of its own epoch."""

    def train(kind: Any) -> list[Record]:
        with recording() as record:
            loader = kind(Augmented(), batch_size=4, shuffle=True, num_workers=2)
            stepping(Engine, record).run(loader, max_epochs=2, epoch_length=8)
        return [record]

    assert_same_epochs(train, way)


@pytest.mark.parametrize("way", WAYS)
def test_deterministic_engine(way: str) -> None:
    """It rebuilds the loader with a batch sampler that can begin in the middle, and continues from there."""

    def train(kind: Any) -> list[Record]:
        with recording() as record:
            engine = stepping(DeterministicEngine, record)
            torch.manual_seed(5)  # an engine draws its seed as it starts
            engine.run(kind(Augmented(), batch_size=4, shuffle=True, num_workers=2), max_epochs=2)
            state = {**engine.state_dict(), "iteration": 8}  # as if it had been saved there
            engine = stepping(DeterministicEngine, record)
            engine.load_state_dict(state)
            torch.manual_seed(5)
            engine.run(kind(Augmented(), batch_size=4, shuffle=True, num_workers=2))
        return [record]

    (record,) = assert_same_epochs(train, way)
    assert len(record.seen) == 12 + 1 + 4 + 1
    assert_same([batch["i"] for batch in record.seen[13:17]], [batch["i"] for batch in record.seen[8:12]])


def test_auto_dataloader() -> None:
    def train(kind: Any) -> list[Record]:
        with recording() as record:
            loader = idist.auto_dataloader(Augmented(), batch_size=4, shuffle=True, num_workers=2)
            stepping(Engine, record).run(loader, max_epochs=2)
        return [record]

    assert_same_epochs(train, "patched torch")
