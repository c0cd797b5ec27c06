"""Every name of torch's that is not public, in one place: a new release breaks this file and no other.

A name without which nothing works is imported plainly.  `why_not()` compares the rest with what was tested, so that
a torch which has changed is served by its own iterator and never wrongly by ours.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.autograd.profiler as profiler
from torch._tensor import _rebuild_from_type_v2
from torch._utils import ExceptionWrapper, _get_obj_state, _rebuild_parameter
from torch.utils.data import IterDataPipe, MapDataPipe, _utils
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map
from torch.utils.data._utils.worker import _ResumeIteration, _worker_loop
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _DatasetKind,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

__all__ = [
    "ExceptionWrapper",
    "IterDataPipe",
    "MapDataPipe",
    "ResumeIteration",
    "_BaseDataLoaderIter",
    "_DatasetKind",
    "_MultiProcessingDataLoaderIter",
    "_SingleProcessDataLoaderIter",
    "collate_tensor_fn",
    "current_cuda_stream",
    "default_collate_fn_map",
    "dlpack_c_api",
    "has_primary_context",
    "is_exiting",
    "object_state",
    "pin_memory",
    "profiler",
    "raise_if_any_worker_failed",
    "rebuild_from_type",
    "rebuild_parameter",
    "run_worker_loop",
    "unwatch_pids",
    "watch_pids",
    "why_not",
    "without_torch_function",
]

ResumeIteration = _ResumeIteration
rebuild_from_type = _rebuild_from_type_v2
rebuild_parameter = _rebuild_parameter
object_state: Callable[[Any], Any] = _get_obj_state
# the id, device index and device type of a device's stream that is current in this thread: it reads memory, no more
current_cuda_stream: Callable[[int], tuple[int, int, int]] = getattr(torch._C, "_cuda_getCurrentStream", None)  # type: ignore[assignment]
without_torch_function: Any = torch._C.DisableTorchFunctionSubclass

_LOOP_ARGUMENTS = {
    "dataset_kind",
    "dataset",
    "index_queue",
    "data_queue",
    "done_event",
    "auto_collation",
    "collate_fn",
    "drop_last",
    "base_seed",
    "init_fn",
    "worker_id",
    "num_workers",
    "persistent_workers",
    "shared_seed",
}
_ITERATOR_METHODS = ("_reset", "_next_data", "_try_put_index", "_process_data", "_get_data", "_shutdown_workers")


def why_not() -> str | None:
    """Why this torch cannot be driven through the ring; None where it can."""
    arguments = set(inspect.signature(_worker_loop).parameters)
    if arguments != _LOOP_ARGUMENTS:
        return f"torch {torch.__version__} starts its workers with other arguments: {arguments ^ _LOOP_ARGUMENTS}"
    missing = [name for name in _ITERATOR_METHODS if not hasattr(_MultiProcessingDataLoaderIter, name)]
    return f"torch {torch.__version__} has no {missing} in its iterator" if missing else None


def run_worker_loop(**arguments: Any) -> None:
    """torch's worker: seeds, sets the worker info and the signal handlers, fetches, wraps exceptions."""
    _worker_loop(**arguments)


def dlpack_c_api() -> Any:
    """The capsule with which C reads and makes tensors (torch >= 2.10 or so); None where torch has none."""
    return getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)


def has_primary_context(device: int) -> bool:
    """Whether this process uses this CUDA device; true where torch does not tell."""
    ask = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    return True if ask is None else bool(ask(device))


def pin_memory(batch: Any) -> Any:
    """Page-lock a batch as torch does: tensors, containers, and whatever has a `pin_memory()` of its own."""
    return _utils.pin_memory.pin_memory(batch)


def is_exiting() -> bool:
    """Whether the interpreter is going down: then multiprocessing ends the workers, and nobody else may."""
    return _utils is None or _utils.python_exit_status is not False


def watch_pids(key: int, pids: tuple[int, ...]) -> None:
    """Have torch's SIGCHLD handler raise in the main thread when one of these processes fails."""
    torch._C._set_worker_pids(key, pids)
    _utils.signal_handling._set_SIGCHLD_handler()


def unwatch_pids(key: int) -> None:
    torch._C._remove_worker_pids(key)


def raise_if_any_worker_failed() -> None:
    """Raise torch's own error, with the signal or the exit code, where a watched child has failed."""
    torch._C._error_if_any_worker_fails()
