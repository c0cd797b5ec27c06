"""accelerate's save_state and load_state in mid-epoch, with one file for all ranks."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
import torch
import torchdata.stateful_dataloader
from accelerate import Accelerator, DataLoaderConfiguration, debug_launcher
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import set_seed
from conftest import Augmented
from epochs import recording

import shmloader

pytestmark = pytest.mark.filterwarnings("ignore:the sampler .* has no state_dict")

# accelerate saves the state of a loader with this attribute; with it as an option, accelerate builds torchdata's loader
WAYS = ("patched torch, attribute set afterwards", "in torchdata's place")


def epochs(folder: pathlib.Path, way: str, seedable: bool, stop: int | None, loads: bool) -> list[Any]:
    """What this process gets of two epochs: all, up to so many batches, or what is left then."""
    set_seed(9 if loads else 4)
    config = DataLoaderConfiguration(use_stateful_dataloader=way == WAYS[1], use_seedable_sampler=seedable, data_seed=5)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    made = shmloader.DataLoader(Augmented(34), batch_size=3, shuffle=True, num_workers=1)
    if way == WAYS[0]:
        with shmloader.patch_torch():
            loader = accelerator.prepare(made)
        loader.use_stateful_dataloader = True
    else:
        loader = accelerator.prepare(made)
    first, got = 0, []
    if loads:
        accelerator.load_state(folder / "checkpoint")
        first = loader.base_dataloader.state_dict()["epoch"]
    for epoch in range(first, 2):
        loader.set_epoch(epoch)
        for batch in loader:
            got.append(batch["i"].tolist())
            if stop is not None and len(got) == stop:
                accelerator.save_state(folder / "checkpoint")
                loader.base_dataloader.close()
                return got
    return got


def of_a_process(folder: pathlib.Path, *arguments: Any) -> None:
    torchdata.stateful_dataloader.StatefulDataLoader = shmloader.DataLoader
    with recording() as record:
        got = epochs(folder, *arguments)
    assert set(record.iterators) <= {"RingIterator"} and (record.iterators or not got)
    (folder / f"got-{PartialState().process_index}").write_text(json.dumps(got))


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("seedable", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_it_goes_on(
    way: str, seedable: bool, processes: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(stop: int | None, loads: bool) -> list[list[Any]]:
        if processes == 1:
            monkeypatch.setattr(
                torchdata.stateful_dataloader, "StatefulDataLoader", torchdata.stateful_dataloader.StatefulDataLoader
            )
            of_a_process(tmp_path, way, seedable, stop, loads)
            AcceleratorState._reset_state(reset_partial_state=True)
        else:
            debug_launcher(of_a_process, (tmp_path, way, seedable, stop, loads), processes)
        return [json.loads((tmp_path / f"got-{rank}").read_text()) for rank in range(processes)]

    whole = run(None, False)
    each = len(whole[0]) // 2  # batches an epoch
    assert each == 12 // processes and whole[0][:each] != whole[0][each:]
    for stop in (2, each + 2) if processes > 1 else (2, each, each + 2, 2 * each):
        assert run(stop, False) == [got[:stop] for got in whole]
        assert run(None, True) == [got[stop:] for got in whole]
        state = torch.load(tmp_path / "checkpoint" / "dl_state_dict.bin", weights_only=True)
        assert state["version"] == 2 and state["ranks"] == processes and state["samples"] <= 36
