"""Some of aten's operators for the software CUDA: computed by the CPU, in the order of the stream.

The tests need few; each is an elementwise one, a sum, or a copy on the device.  Those of int64 that the checks of late
copies make in the thousands are done by the runtime itself (kernels.c), all others by the stream's thread in Python.
"""

from __future__ import annotations

import ctypes
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from software_cuda import runtime

OPERATORS = (
    "add.Tensor",
    "add_.Tensor",
    "clone",
    "div.Tensor",
    "eq.Scalar",
    "mul.Tensor",
    "ne.Scalar",
    "sub.Tensor",
    "sum",
    "sum.dim_IntList",
)
NE, SUM_OF_BOOLS, SUM, ADD_IN_PLACE, MUL, ADD = range(6)  # of kernels.c
WHERE = ("device", "layout", "pin_memory", "non_blocking")  # properties of the result, and not of its elements

_Call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_jobs: dict[int, tuple[Callable[[], Any], bool]] = {}  # by number: what to do, and whether it is done again and again
_numbers = itertools.count(1)
_errors: list[BaseException] = []
_library = torch.library.Library("aten", "IMPL")


def errors() -> list[BaseException]:
    """What was raised on the "device" since this was last asked."""
    found = _errors[:]
    _errors.clear()
    return found


@_Call
def _run(number: int) -> None:
    job, again = _jobs[number]
    try:
        with torch.no_grad():
            job()
    except BaseException as error:
        _errors.append(error)
    if not again:
        del _jobs[number]


def _enqueue(job: Callable[[], Any], device: torch.device) -> None:
    number, stream = next(_numbers), torch.cuda.current_stream(device)
    _jobs[number] = job, torch.cuda.is_current_stream_capturing()
    if error := runtime.library().software_cuda_call(stream.cuda_stream, stream.device_index, _run, number):
        raise RuntimeError(f"CUDA error: {error}")


def _on_host(value: Any) -> Any:
    """A CPU tensor over the memory of one of the device; of a CPU tensor a copy."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.device.type != "cuda":
        return value.clone()
    size = value.untyped_storage().nbytes()
    if not size:
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype)
    memory = (ctypes.c_char * size).from_address(value.untyped_storage().data_ptr())
    storage = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    return torch.empty(0, dtype=value.dtype).set_(storage, value.storage_offset(), value.size(), value.stride())


def _meta(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if value.device.type == "cpu" and value.dim() == 0:
        return value.item()
    return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta")


def _natively(name: str, out: torch.Tensor, first: torch.Tensor, second: Any = None) -> bool:
    """Leave it to the runtime, where it is one of those that it has."""
    if isinstance(second, torch.Tensor) and second.device.type == "cpu" and second.dim() == 0:
        second = second.item()
    integers, number = first.dtype == torch.int64, type(second) is int
    if not first.is_contiguous():
        return False
    to = out
    if name == "ne" and integers and number:
        code, source, value = NE, first, second
    elif name == "sum" and not out.dim() and first.dtype in (torch.bool, torch.int64):
        code, source, value = SUM if integers else SUM_OF_BOOLS, first, 0
    elif name == "add_" and integers and isinstance(second, torch.Tensor) and second.is_contiguous():
        if second.dtype != first.dtype or second.shape != first.shape:
            return False
        code, source, value, to = ADD_IN_PLACE, second, 0, first
    elif name in ("mul", "add") and integers and number:
        code, source, value = MUL if name == "mul" else ADD, first, second
    else:
        return False
    stream = torch.cuda.current_stream(first.device)
    if error := runtime.library().software_cuda_operate(
        stream.cuda_stream, stream.device_index, code, to.data_ptr(), source.data_ptr(), source.numel(), value
    ):
        raise RuntimeError(f"CUDA error: {error}")
    return True


def _operator(full_name: str) -> Callable[..., torch.Tensor]:
    name, _, overload = full_name.partition(".")
    operator = getattr(getattr(torch.ops.aten, name), overload or "default")

    def implementation(*arguments: Any, **options: Any) -> torch.Tensor:
        device = next(each.device for each in arguments if isinstance(each, torch.Tensor) and each.is_cuda)
        if name.endswith("_"):
            out = arguments[0]
        else:
            like = operator(*map(_meta, arguments), **options)
            out = torch.empty_strided(like.size(), like.stride(), dtype=like.dtype, device=device)
        if options or not _natively(name, out, *arguments):
            inputs = [_on_host(each) for each in arguments]
            if name.endswith("_"):
                _enqueue(lambda: operator(*inputs, **options), device)
            else:
                result = _on_host(out)
                _enqueue(lambda: result.copy_(operator(*inputs, **options)), device)
        return out

    return implementation


def _to_copy(
    tensor: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """aten::_to_copy of a tensor on the device: converted there, then copied if it is to be elsewhere."""
    like = torch.ops.aten._to_copy(_meta(tensor), dtype=dtype, memory_format=memory_format)
    if tensor.dtype == like.dtype and tensor.stride() == like.stride() and device not in (None, tensor.device):
        found = tensor
    else:
        found = torch.empty_strided(like.size(), like.stride(), dtype=like.dtype, device=tensor.device)
        source, result = _on_host(tensor), _on_host(found)
        _enqueue(lambda: result.copy_(source), tensor.device)
    if device in (None, tensor.device):
        return found
    out = torch.empty_strided(
        like.size(), like.stride(), dtype=like.dtype, device=device, pin_memory=bool(pin_memory) or None
    )
    return out.copy_(found, non_blocking=non_blocking)


def install() -> None:
    """Have torch use them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own are replaced
        for name in OPERATORS:
            _library.impl(name, _operator(name), "CUDA")
        _library.impl("_to_copy", _to_copy, "CUDA")
