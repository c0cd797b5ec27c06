"""Every name of torch's that is not public, in one place: a new release breaks this file and no other.

NOTE [ Private names ]

torch may drop or change any of these names in any release; 2.14 did.  So each is looked up here, softly, with what it
is called with.  A name that is missing, or that takes other arguments, is noted in LACKS with what that means:

    a name that the ring cannot do without      no loader rides the ring; `why_not()` says so, and dataloader.py
                                                warns, or refuses what only the ring could have honoured
    any other                                   the loader rides, something smaller is lost, and that is said once

Nothing is decided by comparing a whole signature: an argument more that has a default is no reason to refuse.

What differed between 2.6.0, 2.8.0, 2.10.0, 2.13.0, 2.14.1 and 2.15.0, those that `make test-torch` runs:

    _worker_loop                        takes `dataset`; as of 2.14 `dataset_holder`, a list of it, and forgets the
                                        worker info when it ends
    _process_data                       takes the data; as of 2.8 also the worker, and there is _workers_num_tasks
    _pin_memory_device                  what the user gave; as of 2.10 the current accelerator's
    pinning                             asks torch.cuda alone in 2.6, torch.accelerator as of 2.8
    Tensor.__dlpack_c_exchange_api__    as of 2.10; before, tensors are made over slots by DLPack's capsules
    WorkerInfo                          as of 2.13 a frozen dataclass
    torch._utils.cpu_count              as of 2.13; before, cores were counted in place
    _clean_up_worker                    until 2.10; as of 2.13 _persistent_workers_atexit has the iterators
    torch.profiler._pattern_matcher     until 2.13

The last four are met by tests alone.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.autograd.profiler
import torch.utils.data


@dataclass(frozen=True)
class Lack:
    """A private name that this torch does not have, or has otherwise."""

    name: str
    why: str
    means: str  # what is lost; empty: the ring

    def __str__(self) -> str:
        lost = self.means or "the ring cannot work without it"
        return f"torch {torch.__version__}: {self.name} {self.why}; {lost}"


LACKS: list[Lack] = []
NAMES: list[str] = []  # all that were looked for
CALLED: list[str] = []  # those of them whose arguments were looked at


def _find(name: str, *called_with: str, called: bool = True, means: str = "", instead: Any = None) -> Any:
    """Look a private name up.

    Args:
        name: module and name, dotted.
        called_with: what it is called with, one word an argument.
        called: whether it is called at all.
        means: what is lost without it; empty: the ring.
        instead: what stands for it then.
    """
    NAMES.append(name)
    CALLED.extend([name] if called else [])
    path, _, last = name.rpartition(".")
    try:
        found = getattr(_owner(path), last)
    except (ImportError, AttributeError):
        LACKS.append(Lack(name, "is not there", means))
        return instead
    if called and (other := _takes_other(found, called_with)):
        LACKS.append(Lack(name, other, means))
        return instead
    return found


def _owner(path: str) -> Any:
    """The module, or the class in a module, of this dotted name."""
    try:
        return importlib.import_module(path)
    except ImportError:
        module, _, last = path.rpartition(".")
        return getattr(_owner(module), last)


def _takes_other(function: Any, called_with: tuple[str, ...]) -> str:
    """Why a function cannot be called with these arguments; empty where it can, or where it does not tell."""
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return ""
    try:
        signature.bind(*called_with)
    except TypeError as error:
        return f"takes other arguments than ({', '.join(called_with)}): {error}"
    return ""


# ------------------------------------------------------------------------------------------- what the ring stands on

_BaseDataLoaderIter: Any = _find("torch.utils.data.dataloader._BaseDataLoaderIter", "loader", instead=object)
_MultiProcessingDataLoaderIter: Any = _find(
    "torch.utils.data.dataloader._MultiProcessingDataLoaderIter", "loader", instead=object
)
_SingleProcessDataLoaderIter: Any = _find(
    "torch.utils.data.dataloader._SingleProcessDataLoaderIter", "loader", instead=object
)
ExceptionWrapper: Any = _find("torch._utils.ExceptionWrapper", "exc_info", "where")
ResumeIteration: Any = _find("torch.utils.data._utils.worker._ResumeIteration", "seed")

for _method in ("_try_put_index", "_process_data", "_get_data", "_shutdown_workers"):
    _find(f"torch.utils.data.dataloader._MultiProcessingDataLoaderIter.{_method}", called=False)

_worker_loop: Any = _find("torch.utils.data._utils.worker._worker_loop", called=False)

# What torch's loop is given, under every name that it has had for it: since 2.14 the dataset comes in a list, from
# which the loop takes it, so that the process does not keep it alive.
_LOOP_ARGUMENTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "dataset_kind": lambda given: given["dataset_kind"],
    "dataset": lambda given: given["dataset"],
    "dataset_holder": lambda given: [given["dataset"]],
    "index_queue": lambda given: given["queues"],
    "data_queue": lambda given: given["queues"],
    "done_event": lambda given: given["queues"],
    "auto_collation": lambda given: given["auto_collation"],
    "collate_fn": lambda given: given["collate_fn"],
    "drop_last": lambda given: given["drop_last"],
    "base_seed": lambda given: given["base_seed"],
    "init_fn": lambda given: given["init_fn"],
    "worker_id": lambda given: given["worker_id"],
    "num_workers": lambda given: given["num_workers"],
    "persistent_workers": lambda given: given["persistent_workers"],
    "shared_seed": lambda given: given["shared_seed"],
}


def _loop_parameters() -> list[inspect.Parameter]:
    return list(inspect.signature(_worker_loop).parameters.values()) if _worker_loop is not None else []


_unknown = [p.name for p in _loop_parameters() if p.name not in _LOOP_ARGUMENTS and p.default is p.empty]
if _unknown:
    LACKS.append(
        Lack("torch.utils.data._utils.worker._worker_loop", f"wants arguments that are not known: {_unknown}", "")
    )


def why_not() -> str | None:
    """Why this torch cannot be driven through the ring; None where it can."""
    return next((str(lack) for lack in LACKS if not lack.means), None)


def what_is_lost() -> list[str]:
    """What is lost, besides, on a torch that lacks a name: a sentence each."""
    return [str(lack) for lack in LACKS if lack.means]


def run_worker_loop(**given: Any) -> None:
    """torch's worker: seeds, sets the worker info and the signal handlers, fetches, wraps exceptions."""
    names = [p.name for p in _loop_parameters() if p.name in _LOOP_ARGUMENTS]
    arguments = {name: _LOOP_ARGUMENTS[name](given) for name in names}
    given.clear()  # or this frame would keep the dataset for as long as the process lives
    _worker_loop(**arguments)


# ------------------------------------------------------------------------------------------------------- the datasets

# DataPipes are deprecated: where they are gone, nothing is one of them
_PIPES: tuple[Any, ...] = tuple(
    pipe for name in ("IterDataPipe", "MapDataPipe") if (pipe := getattr(torch.utils.data, name, None)) is not None
)


def is_pipe(dataset: Any) -> bool:
    """Whether a dataset is a DataPipe, which torch's own iterator seeds and shards in ways of its own."""
    return isinstance(dataset, _PIPES)


# -------------------------------------------------------------------------------------------------------- collating

default_collate_fn_map: dict[Any, Any] = _find(
    "torch.utils.data._utils.collate.default_collate_fn_map",
    called=False,
    means="default_collate's tensors are copied into the slot, and not made there",
    instead={},
)
collate_tensor_fn: Any = _find(
    "torch.utils.data._utils.collate.collate_tensor_fn",
    "batch",
    means="default_collate's tensors are copied into the slot, and not made there",
)

# ---------------------------------------------------------------------------------------------------------- tensors

_AS_PICKLED = "tensors of classes of their own are pickled as torch pickles them, with more copies"
rebuild_from_type: Any = _find(
    "torch._tensor._rebuild_from_type_v2", "function", "type", "args", "state", means=_AS_PICKLED
)
object_state: Any = _find("torch._utils._get_obj_state", "obj", means=_AS_PICKLED)
rebuild_parameter: Any = _find(
    "torch._utils._rebuild_parameter",
    "data",
    "requires_grad",
    "backward_hooks",
    means="parameters are pickled as torch pickles them, with more copies",
)
without_torch_function: Any = _find(
    "torch._C.DisableTorchFunctionSubclass",
    called=False,
    means="tensors of classes of their own see how they are carried",
    instead=contextlib.nullcontext,
)


def dlpack_c_api() -> Any:
    """The capsule with which C reads and makes tensors (torch >= 2.10 or so); None where torch has none."""
    return getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)


# -------------------------------------------------------------------------------------------------------- profiling


class _AlwaysOn:
    """Stands for torch's profiler where it does not say whether it is on: every batch is recorded."""

    _is_profiler_enabled = True
    record_function = torch.autograd.profiler.record_function


_find(
    "torch.autograd.profiler._is_profiler_enabled",
    called=False,
    means="each batch is announced to the profiler, which costs some microseconds",
)
profiler: Any = (
    torch.autograd.profiler if hasattr(torch.autograd.profiler, "_is_profiler_enabled") else _AlwaysOn
)  # asked once a batch

# ------------------------------------------------------------------------------------------------------ accelerators

# the id, device index and device type of a device's stream that is current in this thread: it reads memory, no more
current_cuda_stream: Callable[[int], tuple[int, int, int]] = getattr(torch._C, "_cuda_getCurrentStream", None)  # type: ignore[assignment]


def has_primary_context(device: int) -> bool:
    """Whether this process uses this CUDA device; true where torch does not tell."""
    ask = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    return True if ask is None else bool(ask(device))


_pin_memory: Any = _find(
    "torch.utils.data._utils.pin_memory.pin_memory", "batch", means="only tensors are page-locked, and no object's own"
)


def pin_memory(batch: Any) -> Any:
    """Page-lock a batch as torch does: tensors, containers, and whatever has a `pin_memory()` of its own."""
    return batch if _pin_memory is None else _pin_memory(batch)


# --------------------------------------------------------------------------------------------- processes and the end

_DEATHS = "a dead worker is noticed by shmloader's own watch alone, and not by torch's SIGCHLD handler"
_set_worker_pids: Any = _find("torch._C._set_worker_pids", "key", "pids", means=_DEATHS)
_remove_worker_pids: Any = _find("torch._C._remove_worker_pids", "key", means=_DEATHS)
_error_if_any_worker_fails: Any = _find("torch._C._error_if_any_worker_fails", means=_DEATHS)
_set_handler: Any = _find("torch.utils.data._utils.signal_handling._set_SIGCHLD_handler", means=_DEATHS)
_watches = None not in (_set_worker_pids, _remove_worker_pids, _error_if_any_worker_fails, _set_handler)


def watch_pids(key: int, pids: tuple[int, ...]) -> None:
    """Have torch's SIGCHLD handler raise in the main thread when one of these processes fails."""
    if _watches:
        _set_worker_pids(key, pids)
        _set_handler()


def unwatch_pids(key: int) -> None:
    if _watches:
        _remove_worker_pids(key)


def raise_if_any_worker_failed() -> None:
    """Raise torch's own error, with the signal or the exit code, where a watched child has failed."""
    if _watches:
        _error_if_any_worker_fails()


_find("torch.utils.data._utils.python_exit_status", called=False, means="the interpreter is asked whether it ends")
_utils: Any = getattr(torch.utils.data, "_utils", None)


def is_exiting() -> bool:
    """Whether the interpreter is going down: then multiprocessing ends the workers, and nobody else may."""
    if _utils is None:  # this module is being taken apart
        return True
    return getattr(_utils, "python_exit_status", sys.is_finalizing()) is not False
