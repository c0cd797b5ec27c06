"""Where the streams of an iterable dataset are: each worker reads a part of it, and knows alone where it is.

NOTE [ Cells ]

A worker asks its stream where it is behind each batch, and leaves the answer in a cell of the ring, before it publishes
the batch.  The trainer says with each task which cell that is.  A cell stays with its batch until the next one of the
same worker is handed out.  So one for each sequence in flight, and one for each worker, are always enough, whatever the
order in which batches come, and what is asked for is there, without a copy a batch.  Pages are committed as cells are
written.  An epoch that is left in the midst has them read once, before the ring's memory goes.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset

from shmloader._torch import ExceptionWrapper
from shmloader.resume.state import State

if TYPE_CHECKING:
    from shmloader._progress import Progress  # there is none off Linux

_UNBEGUN = {"batches": 0, "ended": False, "state": None}
_said: set[str] = set()


def workers_of(loader: Any) -> int | None:
    """How many workers have a part of the loader's stream; None if its dataset is none."""
    return int(loader.num_workers) if isinstance(loader.dataset, IterableDataset) else None


def tell(
    start: State, delivered: Progress, states: Callable[[], list[bytes | None]]
) -> tuple[list[dict[str, Any]], int]:
    """The fields `streams` and `latest` of State.

    Args:
        start: Where the epoch was begun.
        delivered: What was delivered since.
        states: What each stream said of itself behind its last batch, if `delivered` does not know it.

    Raises:
        Exception: What a stream raised when it was asked.
    """
    said = states() if delivered.states is None else delivered.states
    told = []
    for worker, batches in enumerate(delivered.of_workers):
        before: dict[str, Any] = start.streams[worker] if start.streams else _UNBEGUN
        ended, state = _read(said[worker]) if batches else (before["ended"], before["state"])
        ended = ended or delivered.ended[worker]
        told.append({"batches": before["batches"] + batches, "ended": ended, "state": state})
    return told, start.latest if delivered.latest < 0 else delivered.latest


def _read(said: bytes | None) -> Any:
    """Whether a stream has ended, and what it said of itself."""
    found: Any = (False, None) if said is None else pickle.loads(said)
    if type(found) is ExceptionWrapper:
        found.reraise()
    return found


def check(loader: Any, state: State) -> None:
    """Raise where a loader cannot go on with the streams of this state; say what is read through."""
    if not state.begun or state.workers is None:
        return
    if state.workers != loader.num_workers:
        raise ValueError(
            f"this state cannot be loaded: {state.workers} workers were reading parts of the stream, and this loader "
            f"has num_workers={loader.num_workers}. Nobody can tell where the parts of others would be: give it "
            f"num_workers={state.workers} until the epoch is over"
        )
    kind = type(loader.dataset).__name__
    if any(stream["batches"] and stream["state"] is None for stream in state.streams) and kind not in _said:
        _said.add(kind)
        warnings.warn(
            f"a loader is resumed whose dataset, {kind}, does not say where it is: what it has given is read once "
            "more and dropped. Give it a state_dict() and a load_state_dict()",
            RuntimeWarning,
            stacklevel=4,
        )
