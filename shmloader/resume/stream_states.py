"""The places of an iterable dataset's streams in a state, one for each worker.
In mid-epoch it refuses a state of another number of workers, and warns if a stream without state_dict() is read again.

NOTE [ Cells ]

A worker asks its stream for its state after each batch, and at the stream's end.  It writes the state into a cell of
the ring before it publishes the batch, or the end.  Each task names the cell.  So the trainer finds every state in
shared memory, and need not copy one with each batch.  The pages of a cell are committed when it is written.

    1. A cell is in use from the opening of its sequence until a later state of the same worker takes effect.  A state
       takes effect when its batch is handed out, when the trainer learns that its worker's stream is at its end, or
       when its batch is dropped because the user has left the epoch.  In each of these cases, the cell of the same
       worker's previous state becomes free.  If next() drops a batch because an error takes its place, the batch's
       state does not take effect, and its own cell becomes free when the next batch is taken.
    2. So the cells in use are: one for each sequence in flight; one for each worker, with the state that took effect
       last; and one for the batch that was taken and not handed out yet.  A sequence is no longer in flight once its
       batch is taken, so no batch counts twice.
    3. A sequence is opened only while fewer than `entries` are in flight.  At that moment at most (entries - 1) +
       workers + 1 cells are in use.  The ring has one cell more, so one is free.  TrainerSide.check_may_open() checks
       that.
    4. If there is no memory for a state, the worker reports the size NO_ROOM for it, and state_dict() warns.
    5. If the user leaves an epoch half-way, the iterator reads its cells once and keeps what they have for
       state_dict().  It does that before the states of dropped batches take effect, and before the ring's memory is
       unmapped.

NOTE [ Streams from epoch to epoch ]

Some streams count their own epochs: they shuffle differently in each, and a number in their state grows at the end of
each epoch.  If workers are persistent, or if there are none, such a stream lives from epoch to epoch.  So before the
first batch of an epoch, a loader's state contains the stream's state at the end of the former epoch.  Before a worker's
first epoch there is no such state: the stream starts in the state in which its dataset was made.  In mid-epoch, a
stream's state has two parts: that of the dataset, and that of its iterator if it has one.  Between two epochs it is the
dataset's alone, because each epoch makes a new iterator.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset

from shmloader.batch.exceptions import raise_again
from shmloader.resume.state import State
from shmloader.system.user_line import caller, warn_once

if TYPE_CHECKING:
    from shmloader.core.trainer import Progress  # off Linux there is none
    from shmloader.resume.epoch import Epoch

_UNBEGUN: dict[str, Any] = {"batches": 0, "samples": 0, "errors": [], "ended": False, "state": None}


def workers_of(loader: Any) -> int | None:
    """How many workers read a part of the loader's stream; None if its dataset is map-style."""
    return int(loader.num_workers) if isinstance(loader.dataset, IterableDataset) else None


# ---------------------------------------------------------------------------------------------------- its state


def fields(
    loader: Any,
    start: State,
    delivered: Progress,
    in_ring: Callable[[], list[bytes | None]],
    carried: Sequence[bytes | None],
) -> dict[str, Any]:
    """The fields `streams` and `latest` of State.

    Args:
        loader: The loader.
        start: Where the epoch began.
        delivered: What was delivered since.
        in_ring: The states of streams after their last batches, or at their ends, if `delivered` does not have them.
        carried: The state of each stream before this epoch; empty in the first epoch.

    Raises:
        Exception: What a stream's state_dict() raised.
    """
    pickled = in_ring() if delivered.states is None else delivered.states
    size, found = loader.batch_size or 1, []
    for worker, batches in enumerate(delivered.of_workers):
        before = start.streams[worker] if start.streams else _UNBEGUN
        if not batches and not delivered.ended[worker]:
            if carried and not start.streams:
                before = _between_epochs(loader, carried[worker], worker)
            found.append({**before, "errors": [*before["errors"]]})
            continue
        ended, state, passed = _read(loader, pickled[worker], worker)
        samples, errors = passed or (before["samples"] + batches * size, before["errors"])
        found.append(
            {
                "batches": before["batches"] + batches,
                "samples": samples,
                "errors": [*errors],
                "ended": ended or delivered.ended[worker],
                "state": state,
            }
        )
    return {"streams": found, "latest": start.latest if delivered.latest < 0 else delivered.latest}


def without_batch(epoch: Epoch) -> list[int]:
    """The workers whose streams have ended in an epoch without a batch.

    A worker whose stream has not ended does not count, because the user may have left the epoch.
    """
    delivered, before = epoch.handed_out, epoch.start.streams or ()
    had = {worker for worker, stream in enumerate(before) if stream["batches"] or stream["ended"]}
    return [
        worker
        for worker, ended in enumerate(delivered.ended)
        if ended and not delivered.of_workers[worker] and worker not in had
    ]


def at_end(loader: Any, states: Callable[[], list[bytes | None]]) -> list[dict[str, Any]] | None:
    """The field `streams` between two epochs: None if each epoch begins as the dataset was made."""
    if loader.num_workers and (not loader.persistent_workers or loader._iterator is None):
        return None
    try:
        state = states()
    except RuntimeError:  # the workers have ended
        return None
    found = [_between_epochs(loader, each, worker) for worker, each in enumerate(state)]
    return found if any(stream["state"] is not None for stream in found) else None


def at_start(streams: Any) -> Any:
    """The field `streams` for the start of an epoch, from its value within it; None if it is not known."""
    if not streams or any(stream["batches"] or stream["ended"] for stream in streams):
        return None
    return streams


def _read(loader: Any, report: bytes | None, worker: int) -> Any:
    """Whether a stream has ended; its state; and, if they are not whole batches, the samples that it has given."""
    if report == b"":
        _warn_of_lost_place(loader, worker, "there was no shared memory for its state. Make /dev/shm larger")
    if not report:
        return False, None, None
    try:
        found: Any = pickle.loads(report)
    except Exception as error:
        raise RuntimeError(
            f"the state of worker {worker}'s stream cannot be unpickled in the trainer "
            f"({type(error).__name__}: {error}). Have its state_dict() return only types that JSON has."
        ) from error
    if len(found) == 1:  # error_as_state()
        raise_again(found[0])
    return found


def _between_epochs(loader: Any, report: bytes | None, worker: int) -> dict[str, Any]:
    """The state of a stream at the start of the next epoch, from the one at the end of this epoch.

    If its state_dict() raised there, that is a warning and not an error, because some streams have a state only in
    mid-epoch.
    """
    try:
        _, state, _ = _read(loader, report, worker)
    except Exception as error:
        _warn_of_lost_place(loader, worker, f"its state_dict() raised {type(error).__name__} at the end of the epoch")
        return _UNBEGUN
    if state is None or state["dataset"] is None:
        return _UNBEGUN
    return {**_UNBEGUN, "state": {"dataset": state["dataset"], "iterator": None}}


def _warn_of_lost_place(loader: Any, worker: int, why: str) -> None:
    warnings.warn(
        f"the state of this loader lacks the place of {type(loader.dataset).__name__} in worker {worker}: {why}, or "
        "have its state_dict() return less, and work at the end of an epoch too. A run that resumes from this state "
        "starts this stream at its beginning. In mid-epoch it again reads the samples that were already delivered, and "
        "drops them.",
        RuntimeWarning,
        stacklevel=caller()[1],
    )


# --------------------------------------------------------------------------------------------------- what is loaded


def fitted(loader: Any, state: State) -> State:
    """The state in the form in which this loader can load it.  Warns if a stream must be read again to its place.

    Raises:
        ValueError: The loader cannot resume its streams.
    """
    if state.workers is None or workers_of(loader) is None:
        return state
    if not state.begun:
        return _for_all_workers(loader, state)
    if state.workers != loader.num_workers:
        raise ValueError(
            f"this state cannot be loaded: {state.workers} workers were reading the stream, and this loader has "
            f"num_workers={loader.num_workers}. Each worker's place is a place in its own part of the stream. Give the "
            f"loader num_workers={state.workers} until the epoch is over."
        )
    if any(stream["batches"] and stream["state"] is None and not stream["ended"] for stream in state.streams):
        kind = type(loader.dataset).__name__
        warn_once(
            f"the dataset {kind} has no state_dict(), or the loaded state lacks what that returned. So a resumed "
            "loader cannot jump to its place. The samples that it delivered are read again and dropped. Give it a "
            "state_dict() and a load_state_dict()."
        )
    return state


def _for_all_workers(loader: Any, state: State) -> State:
    """Between two epochs: the state for this number of workers, if all streams have the same state."""
    if not state.streams or state.workers == loader.num_workers:
        return state
    streams: Any = None
    if len({pickle.dumps(stream["state"]) for stream in state.streams}) == 1:
        streams = [state.streams[0]] * max(1, loader.num_workers)
    else:
        warnings.warn(
            f"the loaded state has {state.workers} streams ({type(loader.dataset).__name__}) at different places, and "
            f"this loader has num_workers={loader.num_workers}. The next epoch starts without their states. Give the "
            f"loader num_workers={state.workers} to resume each stream from its place.",
            RuntimeWarning,
            stacklevel=caller()[1],
        )
    return replace(state, streams=streams, workers=workers_of(loader))
