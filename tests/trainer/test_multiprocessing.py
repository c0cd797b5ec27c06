"""The names of multiprocessing's that are not public: this Python has them, and one that lacks them does without."""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing import reduction
from typing import Any

import pytest
from conftest import Augmented

import shmloader
from shmloader.private import of_multiprocessing


class Asked:
    """Says, while a process is spawned with it, which descriptors that is given."""

    given: Any = None

    def __reduce__(self) -> Any:
        Asked.given = of_multiprocessing.given_descriptors()
        return int, ()


@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_the_descriptors_of_a_process_that_is_spawned(start: str) -> None:
    context: Any = multiprocessing.get_context(start)
    assert of_multiprocessing.given_descriptors() is None
    process = context.Process(target=int, args=(Asked(),))
    process.start()
    process.join()
    assert type(Asked.given) is list, f"Python {sys.version}: Popen._fds of {start} is {Asked.given!r}"
    sentinel = process.sentinel
    of_multiprocessing.close_pipes(process)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(sentinel)


def test_what_users_registered() -> None:
    found = getattr(reduction.ForkingPickler, "_extra_reducers", None)
    assert of_multiprocessing.EXTRA_REDUCERS is found, f"Python {sys.version}: its _extra_reducers is {found}"


@pytest.mark.long
def test_without_the_list_of_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dataset is pickled for each worker."""
    monkeypatch.setattr(of_multiprocessing, "get_spawning_popen", lambda: object())
    assert of_multiprocessing.given_descriptors() is None
    monkeypatch.setattr("shmloader.system.spawn_arguments.given_descriptors", of_multiprocessing.given_descriptors)
    loader = shmloader.DataLoader(Augmented(4), num_workers=2, multiprocessing_context="spawn")
    assert [batch["i"].item() for batch in loader] == [0, 1, 2, 3]
