"""All private names of torch that are used, so that a new release needs changes in this file only.

NOTE [ Private names ]

torch may drop or change any of these names in any release; 2.14 did.  So each name is looked up here, together with the
arguments with which it is called (lookup.py), and a missing name breaks nothing.  A name that is missing, or
that takes other arguments, is noted in LACKS with the consequence:

    the ring needs the name         no loader rides the ring; `why_not()` has the reason, and dataloader.py warns, or
                                    refuses options that only the ring can honour
    any other name                  the loader rides; something smaller is lost, and there is one warning

Signatures are not compared as a whole, because a further argument with a default is no reason to refuse.

This is what differs between 2.6.0, 2.8.0, 2.10.0, 2.13.0, 2.14.1 and 2.15.0, which `make test-torch` runs:

    _worker_loop                        takes `dataset`; since 2.14 it takes `dataset_holder`, a list with the
                                        dataset, and drops the worker info at its end
    _process_data                       takes the data; as of 2.8 also the worker's number, for _workers_num_tasks
    _pin_memory_device                  what the user gave; as of 2.10 the type of the current accelerator
    tensor.pin_memory()                 in 2.6 looks for a device by torch.cuda only; as of 2.8 by torch.accelerator
    Tensor.__dlpack_c_exchange_api__    as of 2.10; before, tensors are made over slots by DLPack's capsules
    WorkerInfo                          as of 2.13 a frozen dataclass
    torch._utils.cpu_count              as of 2.13; before, torch's own dataloader.py counted the cores
    _clean_up_worker                    until 2.10; as of 2.13 _persistent_workers_atexit takes its place
    torch.profiler._pattern_matcher     until 2.13

Only tests notice the last four of these differences.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import torch
import torch.autograd.profiler
import torch.utils.data

from shmloader.private.lookup import LACKS, find

# ------------------------------------------------------------------------------------------- what the ring stands on

_BaseDataLoaderIter: Any = find("torch.utils.data.dataloader._BaseDataLoaderIter", "loader", instead=object)
_MultiProcessingDataLoaderIter: Any = find(
    "torch.utils.data.dataloader._MultiProcessingDataLoaderIter", "loader", instead=object
)
_SingleProcessDataLoaderIter: Any = find(
    "torch.utils.data.dataloader._SingleProcessDataLoaderIter", "loader", instead=object
)
_InfiniteConstantSampler: Any = find(
    "torch.utils.data.dataloader._InfiniteConstantSampler",
    called=False,
    means="an interrupt in the sampler of a stream ends its epoch",
    instead=object,
)
ExceptionWrapper: Any = find("torch._utils.ExceptionWrapper", "exc_info", "where")
WorkerInfo: Any = find(
    "torch.utils.data._utils.worker.WorkerInfo", "id", "num_workers", "seed", "dataset", called=False
)
_worker: Any = find("torch.utils.data._utils.worker", called=False)

_TORCHS = "if other code has replaced torch's fetchers, that has no effect in workers"
_FETCH = ("kind", "dataset", "auto_collation", "collate_fn", "drop_last")
_create: Any = find("torch.utils.data._DatasetKind.create_fetcher", *_FETCH, means=_TORCHS)
fetchers: Any = None if _create is None else find("torch.utils.data._utils.fetch", called=False, means=_TORCHS)


def why_not() -> str | None:
    """Why no loader can ride the ring with this torch; None if loaders can."""
    return next((str(lack) for lack in LACKS if not lack.means), None)


def what_is_lost() -> list[str]:
    """The smaller features that this torch lacks, a sentence for each."""
    return [str(lack) for lack in LACKS if lack.means]


def begin_iterator(iterator: Any, loader: Any) -> None:
    """The first steps of torch's iterators: read the loader's options, get its sampler's iterator, draw the seed."""
    _BaseDataLoaderIter.__init__(iterator, loader)


_unwatched: dict[Any, tuple[Any, Any]] = {}  # by torch's class: its own __init__, and ours


def watch_iterators(began: Callable[[Any, Any], None]) -> None:
    """Call a function with each new iterator of torch's own, and its loader, before anything else happens to it.

    Iterators of ours are not seen, because they call the `__init__` of torch's base class.  That one is not watched,
    because it warns with its caller's line, which would be in this file.  Watching twice changes nothing.
    """
    for kind in (_MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter):
        if kind is not object and kind not in _unwatched:
            own = kind.__init__
            _unwatched[kind] = own, _watched(own, began)
            kind.__init__ = _unwatched[kind][1]


def unwatch_iterators() -> None:
    """Restore torch's classes, unless somebody has changed them since."""
    for kind, (own, watched) in list(_unwatched.items()):
        if kind.__init__ is watched:
            kind.__init__ = own
            del _unwatched[kind]


def before_watch(kind: Any, init: Any) -> Any:
    """The `__init__` of one of torch's classes as it was before watch_iterators(), if this one is from there."""
    own, watched = _unwatched.get(kind, (init, init))
    return own if init is watched else init


_made_by: list[Callable[[Any, Any, types.CodeType], Any]] = []


def make_iterators_by(make: Callable[[Any, Any, types.CodeType], Any]) -> None:
    """Ask a function for each new iterator of torch's own two classes, from now on.

    Python calls the `__init__` of what it returns, with the loader alone, if that is an instance of torch's class.

    Args:
        make: a function of the class, the loader and the code that calls the class; it returns None if torch's iterator
            is wanted.
    """
    if _made_by:
        return
    _made_by.append(make)
    for kind in (_MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter):
        if kind is not object:
            kind.__new__ = _new_of(kind, make)


def _new_of(kind: Any, make: Callable[[Any, Any, types.CodeType], Any]) -> Any:
    def new(cls: Any, *arguments: Any, **named: Any) -> Any:
        made = make(kind, arguments[0], sys._getframe(1).f_code) if cls is kind and arguments else None
        return object.__new__(cls) if made is None else made

    return new


def initialised_once(init: Callable[..., None]) -> Callable[..., None]:
    """Decorates an `__init__` that Python calls again where make_iterators_by() has torch's class return the object."""

    @functools.wraps(init)
    def begin(self: Any, loader: Any, *given: Any) -> None:
        if given:  # otherwise torch's class was called, with the loader alone
            init(self, loader, *given)

    return begin


def _watched(init: Any, began: Callable[[Any, Any], None]) -> Any:
    @functools.wraps(init)
    def begin(self: Any, loader: Any) -> None:
        try:
            began(self, loader)
        except BaseException:
            self._shutdown = True  # its __del__ reads that
            raise
        init(self, loader)

    return begin


def warn_of_length(iterator: Any) -> None:
    """Give torch's warning if an iterable dataset has given more batches than its length promises."""
    promised, given = iterator._IterableDataset_len_called, iterator._num_yielded
    if promised is not None and given > promised:
        warnings.warn(
            f"Length of IterableDataset {iterator._dataset} was reported to be {promised}"
            f"(when accessing len(dataloader)), but {given} samples have been fetched. "
            "For multiprocessing data-loading, this could be caused by not properly configuring the IterableDataset "
            "replica at each worker. Please see https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset"
            " for examples.",
            stacklevel=3,
        )


# ------------------------------------------------------------------------------------------------ in a worker process


def set_worker_info(info: dict[str, Any] | None) -> None:
    """Set the result of `get_worker_info()` in this process."""
    _worker._worker_info = None if info is None else WorkerInfo(**info)


def worker_loop() -> Any:
    """The function that torch's workers run."""
    return getattr(_worker, "_worker_loop", None)


# sets torch's handlers: a worker reports a SIGBUS or SIGSEGV, and exits at a SIGTERM from its parent
set_worker_signal_handlers: Callable[[], None] = find(
    "torch.utils.data._utils.signal_handling._set_worker_signal_handlers",
    means="a worker that crashes says nothing of a bus error",
    instead=lambda: None,
)
# sets the name of this process's main thread, which `top` shows
set_thread_name: Callable[[str], None] = find(
    "torch.multiprocessing._set_thread_name", "name", means="workers keep Python's name", instead=lambda name: None
)


# ------------------------------------------------------------------------------------------------------- the datasets

# DataPipes are deprecated.  In a torch without them, no dataset is one.
_PIPES: tuple[Any, ...] = tuple(
    pipe for name in ("IterDataPipe", "MapDataPipe") if (pipe := getattr(torch.utils.data, name, None)) is not None
)


def is_pipe(dataset: Any) -> bool:
    """Whether a dataset is a DataPipe, which torch's own iterator seeds and shards differently."""
    return isinstance(dataset, _PIPES)


# -------------------------------------------------------------------------------------------------------- collating

default_collate_fn_map: dict[Any, Any] = find(
    "torch.utils.data._utils.collate.default_collate_fn_map",
    called=False,
    means="default_collate's tensors are copied into the slot, and not made there",
    instead={},
)
collate_tensor_fn: Any = find(
    "torch.utils.data._utils.collate.collate_tensor_fn",
    "batch",
    means="default_collate's tensors are copied into the slot, and not made there",
)

collate: Any = find(
    "torch.utils.data._utils.collate.collate",
    "batch",
    means="default_collate takes samples apart in Python, which takes longer",
)

_BY_TORCH = "numbers and arrays are collated by torch, and copied into the slot then"


def _find_entry(name: str) -> Any:
    return find(f"torch.utils.data._utils.collate.{name}", "batch", means=_BY_TORCH)


collate_numpy_array_fn: Any = _find_entry("collate_numpy_array_fn")
collate_numpy_scalar_fn: Any = _find_entry("collate_numpy_scalar_fn")
collate_float_fn: Any = _find_entry("collate_float_fn")
collate_int_fn: Any = _find_entry("collate_int_fn")
collate_str_fn: Any = _find_entry("collate_str_fn")
# the number of active torch function modes (a default device is one); None: not known
count_modes: Callable[[], int] | None = find("torch._C._len_torch_function_stack", means=_BY_TORCH)


def collate_entries() -> list[tuple[Any, Any]]:
    """torch's default_collate_fn_map, in its order, if nobody has changed it."""
    return [
        (torch.Tensor, collate_tensor_fn),
        (numpy.ndarray, collate_numpy_array_fn),
        ((numpy.bool_, numpy.number, numpy.object_), collate_numpy_scalar_fn),
        (float, collate_float_fn),
        (int, collate_int_fn),
        (str, collate_str_fn),
        (bytes, collate_str_fn),
    ]


# ---------------------------------------------------------------------------------------------------------- tensors

_AS_PICKLED = "tensors of classes of their own are pickled as torch pickles them, with more copies"
rebuild_from_type: Any = find(
    "torch._tensor._rebuild_from_type_v2", "function", "type", "args", "state", means=_AS_PICKLED
)
object_state: Any = find("torch._utils._get_obj_state", "obj", means=_AS_PICKLED)
rebuild_parameter: Any = find(
    "torch._utils._rebuild_parameter",
    "data",
    "requires_grad",
    "backward_hooks",
    means="parameters are pickled as torch pickles them, with more copies",
)
without_torch_function: Any = find(
    "torch._C.DisableTorchFunctionSubclass",
    called=False,
    means="tensors of classes of their own see how they are carried",
    instead=contextlib.nullcontext,
)


# -------------------------------------------------------------------------------------------------------- profiling


find(
    "torch.autograd.profiler._is_profiler_enabled",
    called=False,
    means="each batch is announced to the profiler, which costs some microseconds",
)
profiler: Any = torch.autograd.profiler  # called once a batch
if not hasattr(profiler, "_is_profiler_enabled"):  # nothing shows whether it is on: every batch is recorded
    profiler = types.SimpleNamespace(_is_profiler_enabled=True, record_function=profiler.record_function)

# ------------------------------------------------------------------------------------------------------ accelerators

# the id, device index and device type of the stream of a device that is current in this thread; it only reads memory
current_cuda_stream: Callable[[int], tuple[int, int, int]] = getattr(torch._C, "_cuda_getCurrentStream", None)  # type: ignore[assignment]


def replace_stream_setters(
    by_number: Callable[[Any], Any],
    by_stream: Callable[[Any], Any],
    replace_method: Callable[[type, str, Any], bool],
) -> bool:
    """Replace the functions that make a stream current; returns whether all could be replaced.

    Args:
        by_number: makes the replacement of a function that is called with a stream's numbers.
        by_stream: makes the replacement of a function, or method, that is called with a stream.
        replace_method: sets a method of a type that is written in C.
    """
    if not hasattr(torch._C, "_cuda_setStream"):
        return False
    torch._C._cuda_setStream = by_number(torch._C._cuda_setStream)
    if hasattr(torch._C, "_accelerator_setStream"):
        torch._C._accelerator_setStream = by_stream(torch._C._accelerator_setStream)
    replaced = True
    for name in ("__enter__", "__exit__"):
        if hasattr(torch.Stream, name):  # newer than torch 2.6
            replaced &= replace_method(torch.Stream, name, by_stream(getattr(torch.Stream, name)))
    return replaced


def is_in_bad_fork() -> bool:
    """Whether this process was forked from one that had used CUDA; false if torch does not know."""
    ask = getattr(torch._C, "_cuda_isInBadFork", None)
    return ask is not None and bool(ask())


def replace_capture_begin(by: Callable[[Any], Any]) -> None:
    """Replace the function that begins the capture of a CUDA graph, if there is one.

    Args:
        by: makes the replacement of that function.
    """
    graphs: Any = getattr(torch._C, "_CUDAGraph", None)
    if hasattr(graphs, "capture_begin"):  # missing if torch was built without CUDA
        graphs.capture_begin = by(graphs.capture_begin)


def has_primary_context(device: int) -> bool:
    """Whether this process uses this CUDA device; true if torch does not know."""
    ask = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    return True if ask is None else bool(ask(device))


def is_capturing(stream: Any) -> bool:
    """Whether a graph is captured on this CUDA stream."""
    ask = getattr(stream, "is_capturing", None)
    if ask is not None:
        return bool(ask())
    with torch.cuda.stream(stream):  # older than torch 2.8 or so
        return bool(torch.cuda.is_current_stream_capturing())


# page-locks a batch as torch does: tensors, containers, and objects with their own `pin_memory()`
pin_memory: Callable[[Any], Any] = find(
    "torch.utils.data._utils.pin_memory.pin_memory",
    "batch",
    means="only tensors are page-locked, and no object's own",
    instead=lambda batch: batch,
)


# --------------------------------------------------------------------------------------------- processes and the end

_DEATHS = "a dead worker is noticed by shmloader's own watch alone, and not by torch's SIGCHLD handler"
_set_worker_pids: Any = find("torch._C._set_worker_pids", "key", "pids", means=_DEATHS)
_remove_worker_pids: Any = find("torch._C._remove_worker_pids", "key", means=_DEATHS)
_error_if_any_worker_fails: Any = find("torch._C._error_if_any_worker_fails", means=_DEATHS)
_set_handler: Any = find("torch.utils.data._utils.signal_handling._set_SIGCHLD_handler", means=_DEATHS)
_watches = None not in (_set_worker_pids, _remove_worker_pids, _error_if_any_worker_fails, _set_handler)


def watch_pids(key: int, pids: tuple[int, ...]) -> None:
    """Have torch's SIGCHLD handler raise in the main thread when one of these processes fails."""
    if _watches:
        with contextlib.suppress(ValueError):  # a forked child has its parent's keys, and ids are reused
            _remove_worker_pids(key)
        _set_worker_pids(key, pids)
        _set_handler()


def unwatch_pids(key: int) -> None:
    if _watches:
        _remove_worker_pids(key)


def raise_if_any_worker_failed() -> None:
    """Raise torch's own error, with the signal or the exit code, if a watched child has failed."""
    if _watches:
        _error_if_any_worker_fails()


find("torch.utils.data._utils.python_exit_status", called=False, means="the interpreter is asked whether it ends")
_utils: Any = getattr(torch.utils.data, "_utils", None)


def is_exiting() -> bool:
    """Whether the interpreter is exiting.  Then only multiprocessing may end the workers."""
    if _utils is None:  # this module is being torn down
        return True
    return getattr(_utils, "python_exit_status", sys.is_finalizing()) is not False


# the key-value store of the default process group, which must be initialised; None if there is none
default_store: Callable[[], Any] = find(
    "torch.distributed.distributed_c10d._get_default_store",
    means="each rank of a machine has a frozen dataset for itself",
    instead=lambda: None,
)
