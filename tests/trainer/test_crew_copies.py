"""Copies of a loader of a crew, and of what it was made with, are loaders of the same crew."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import shmloader
from shmloader import Crew


def unpickled(loader: Any) -> Any:
    return pickle.loads(pickle.dumps(loader))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, unpickled])
def test_a_copy_of_a_loader_is_a_loader_of_its_crew(copied: Callable[[Any], Any]) -> None:
    with Crew(1, multiprocessing_context="fork") as crew:
        loader = shmloader.DataLoader(torch.arange(4), batch_size=2, crew=crew, persistent_workers=True)
        twin = copied(loader)
        assert [batch.tolist() for batch in twin] == [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]
        assert twin.crew is crew
        assert len(crew._workers.workers) == 1


def test_an_equal_context_is_the_crews_and_another_method_is_not() -> None:
    crew = Crew(1, multiprocessing_context=multiprocessing.get_context("fork"))
    again = copy.deepcopy(crew.multiprocessing_context)
    shmloader.DataLoader(torch.arange(4), crew=crew, multiprocessing_context=again)
    with pytest.raises(ValueError, match="is not the crew's"):
        shmloader.DataLoader(torch.arange(4), crew=crew, multiprocessing_context=multiprocessing.get_context("spawn"))
