"""With in_order=False there is no state in mid-epoch, because one number does not say which batches the user has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from resuming import quiet, through_json
from torch.utils.data import Dataset

import shmloader

pytestmark = quiet
RAISES = (
    r"state_dict\(\) in mid-epoch needs batches in order, but got in_order=False with 2 workers. Save the state "
    r"between two epochs, or use schedule='steal' in place of in_order=False"
)


def loader(**options: Any) -> Any:
    return shmloader.DataLoader(range(20), 4, **{"num_workers": 2, "in_order": False} | options)


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}, {"device": "cpu", "on_device": torch.clone}])
def test_it_raises_while_a_batch_may_be_missing(options: dict[str, Any]) -> None:
    with loader(**options) as made:
        batches, got = iter(made), []
        assert through_json(made.state_dict())["batches"] == 0
        for _ in range(4):
            got += next(batches).tolist()
            with pytest.raises(RuntimeError, match=RAISES):
                made.state_dict()
        got += next(batches).tolist()
        assert sorted(got) == list(range(20))
        state = through_json(made.state_dict())  # Lightning saves here: it knows the length, and asks for no more
        assert (state["epoch"], state["begun"], state["batches"], state["samples"]) == (0, True, 5, 20)
        assert next(batches, None) is None
        assert made.state_dict()["epoch"] == 1
    with loader(**options) as again:
        again.load_state_dict(state)
        assert list(again) == []
        assert sorted(torch.cat(list(again)).tolist()) == list(range(20))


def test_a_closed_iterator_has_no_state_either() -> None:
    with loader() as made:
        batches = iter(made)
        next(batches)
        batches.close()
        with pytest.raises(RuntimeError, match=RAISES):
            made.state_dict()
        assert len(list(made)) == 5
        assert made.state_dict()["epoch"] == 2


class Late(Dataset[int]):
    """The first sample waits until it may go."""

    def __init__(self) -> None:
        self.go = torch.multiprocessing.get_context("fork").Event()

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        assert index or self.go.wait(60)
        return index


@pytest.mark.parametrize("device", [{}, {"device": "cpu", "on_device": torch.clone}])
def test_a_missing_batch_is_not_taken_for_one_at_the_end(device: dict[str, Any]) -> None:
    """Each other batch has come, and the sampler has no more."""
    dataset = Late()
    options: dict[str, Any] = {"prefetch_factor": 1, "multiprocessing_context": "fork", **device}
    with shmloader.DataLoader(dataset, 4, num_workers=2, in_order=False, **options) as made:
        batches = iter(made)
        assert {next(batches)[0].item() for _ in range(4)} == {4, 8, 12, 16}
        with pytest.raises(RuntimeError, match=RAISES):
            made.state_dict()
        dataset.go.set()
        assert next(batches).tolist() == [0, 1, 2, 3]
        assert made.state_dict()["batches"] == 5


@pytest.mark.parametrize("options", [{"num_workers": 1}, {"num_workers": 0}, {"in_order": True, "schedule": "steal"}])
def test_there_is_a_state_where_the_order_is_kept(options: dict[str, Any]) -> None:
    with loader(**options) as made:
        batches = iter(made)
        got = next(batches).tolist()
        state = through_json(made.state_dict())
    with loader() as again:
        again.load_state_dict(state)
        assert sorted(got + torch.cat(list(again)).tolist()) == list(range(20))
