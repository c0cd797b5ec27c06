"""What a device may refuse, and what is left when it fails, or when the process ends in the middle."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
import unittest.mock
from typing import Any

import pytest
import torch
from scripts import run_script
from software_cuda import runtime
from software_cuda.loops import BATCHES, LATE, SIZE, changed, copied, loader

import shmloader
from shmloader.system import user_line
from shmloader.transforms import normalize_on_device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]
on_software = pytest.mark.skipif(not runtime.is_software(), reason="a real device is not told when to fail")

SCRIPT = """
    import gc, os, signal, sys, threading, torch, shmloader
    from software_cuda import operators, runtime
    operators.install()

    class Numbered(torch.utils.data.Dataset):
        def __len__(self):
            return 100

        def __getitem__(self, index):
            return torch.full((4096,), index)

    def loader(**options):
        return shmloader.DataLoader(Numbered(), batch_size=None, num_workers=2, **options)
"""
ASSERT = 710  # cudaErrorAssert


def script(text: str, status: int = 0, **environment: Any) -> Any:
    """The output of a script that ends as it should."""
    added = {f"SOFTWARE_CUDA_{name.upper()}": str(value) for name, value in environment.items()}
    with unittest.mock.patch.dict(os.environ, added):
        ran = run_script(SCRIPT + text, fresh=True)
    assert ran.status == status and "VIOLATION" not in ran.err, ran.err
    return ran.out


# -------------------------------------------------------------------------------------------------- a device that fails


@on_software
@pytest.mark.parametrize("at", [0, 7, 50])
@pytest.mark.parametrize("options", [{"pin_memory": True}, {"device": "cuda"}, {"device": "cuda", "num_workers": 0}])
def test_an_error_that_sticks_is_raised_and_ends_it(options: dict[str, Any], at: int) -> None:
    """The consumer gets torch's error, and the thread that is ahead ends.

    All tensors are kept, and the process ends at once: torch itself aborts a process that frees a tensor after such an
    error.
    """
    out = script(
        f"""
    made = shmloader.DataLoader(Numbered(), batch_size=None, **{ {"num_workers": 2, **options}!r})
    batches, held = iter(made), []
    try:
        for batch in batches:
            held += [batch, batch.to("cuda", non_blocking=True)]
            torch.cuda.current_stream().query()
    except RuntimeError as error:
        held.append(error)
        print("raised", "cudaErrorAssert" in str(error))
    while True:
        try:
            held.append(next(batches))
        except StopIteration:
            break
        except RuntimeError as error:
            held.append(error)
            if "pin_memory" in {list(options)}:
                break
    print("threads", [t.name for t in threading.enumerate() if t.name == "shmloader_ahead"])
    os._exit(0)
    """,
        stick=f"{ASSERT}@{at}",
    )
    assert "raised True" in out and "threads []" in out


# --------------------------------------------------------------------------------------------------------- page-locking


@on_software
@pytest.mark.parametrize("error", [712, 801, 2])
@pytest.mark.parametrize("after", [0, 1, 3])
def test_registration_refused_at_any_call(error: int, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_line, "_met", user_line._met | {"not page-locked"})
    runtime.late(*LATE)
    runtime.refuse(error, after)
    try:
        copies = [copied(batch) for batch in loader()]
        wrong = changed(copies)
        assert (len(copies), wrong) == (BATCHES, 0)
    finally:
        runtime.refuse(0)
        runtime.late(0, 0)


@on_software
def test_closing_waits_for_a_copy_that_torch_does_not_know() -> None:
    """A library that copies on a stream of its own, by the batch's address."""
    cuda = ctypes.CDLL(None)
    stream = ctypes.c_void_p()
    assert not cuda.cudaStreamCreateWithFlags(ctypes.byref(stream), 1)
    on_device = torch.empty(SIZE, dtype=torch.int64, device="cuda")
    iterator = iter(loader())
    for _ in range(20):
        batch = next(iterator)
    runtime.late(2000, 2000)  # longer than the workers take to end
    source, target = ctypes.c_void_p(batch.data_ptr()), ctypes.c_void_p(on_device.data_ptr())
    assert not cuda.cudaMemcpyAsync(target, source, ctypes.c_size_t(batch.nbytes), 1, stream)
    del batch
    iterator.close()
    runtime.late(0, 0)
    assert not runtime.under_way() and not runtime.count("violations")
    torch.cuda.synchronize()
    assert bool((on_device.cpu() == 19).all())


@on_software
def test_two_devices() -> None:
    """A batch is copied to both, on streams of both, and dropped where the current device is the one or the other."""
    out = script(
        """
    streams = [torch.cuda.Stream(0), torch.cuda.Stream(1), torch.cuda.default_stream(0), torch.cuda.default_stream(1)]
    copies = []
    for k, batch in enumerate(loader(pin_memory=True)):
        for stream in (streams[k % 4], streams[(k + 1) % 4]):
            with torch.cuda.stream(stream):
                copies.append((k, batch.to(stream.device, non_blocking=True)))
        with torch.cuda.device(k // 4 % 2):
            del batch
    others = list(enumerate(loader(device="cuda:1")))
    torch.cuda.synchronize(0), torch.cuda.synchronize(1)
    copies += others
    print(len(copies), sum(not bool((copy.cpu() == k).all()) for k, copy in copies))
    print({str(copy.device) for _, copy in others})
    """,
        devices=2,
        late_ms="1-10",
    )
    assert out == "300 0\n{'cuda:1'}\n"


# ------------------------------------------------------------------------------------------------------ device memory


@pytest.mark.parametrize("persistent", [pytest.param(False, marks=pytest.mark.long), True])
def test_the_memory_of_a_device_does_not_grow(persistent: bool) -> None:
    epochs = 50

    class Large(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> Any:
            return torch.full((1 << 19,), index)

    made = shmloader.DataLoader(Large(), batch_size=None, num_workers=1, device="cuda", persistent_workers=persistent)
    reserved = []
    with made:
        for _ in range(epochs):
            for k, batch in enumerate(made):
                assert int(batch[-1]) == k
            reserved.append(torch.cuda.memory_reserved())
    assert len(set(reserved[1:])) == 1, reserved


def test_constants_belong_to_the_stream_that_they_are_used_on() -> None:
    """Else one stream's may be freed, and their memory used again, while another still reads them."""
    normalize = normalize_on_device((0.5,), (0.5,))
    for _ in range(2):
        for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
            with torch.cuda.stream(stream):
                normalize(torch.zeros(1, 1, 2, 2, dtype=torch.uint8, device="cuda"))
    held = list(normalize._constants.values())
    assert len({scale.data_ptr() for scale, _ in held}) == len(held) == 3


# -------------------------------------------------------------------------------------------------------------- the GIL


TORCHS = {"cuDevicePrimaryCtxGetState"}  # torch.accelerator.current_device_index(), where an epoch begins


@on_software
@pytest.mark.parametrize("options", [{"pin_memory": True}, {"device": "cuda"}])
def test_no_call_is_made_with_the_gil_held(options: dict[str, Any]) -> None:
    """Any may wait for a lock of the driver's, and who has that may wait for the GIL."""
    out = script(
        f"""
    from software_cuda.loops import current, external, side
    held = []
    for k, batch in enumerate(loader(**{options!r})):
        with (current, side, external)[k // 30 % 3]():  # the short look, and the long one
            held.append(batch.to("cuda", non_blocking=True))
            del batch
    torch.cuda.synchronize()
    calls = runtime.blocking_calls()
    for name in ("cuEventQuery", "cuEventRecord", "cuStreamIsCapturing"):
        assert calls[name][0], calls
    print("held:", *sorted(name for name, (made, held) in calls.items() if held))
    """,
        gil=1,
    )
    assert set(out.split("held:")[1].split()) <= TORCHS


# -------------------------------------------------------------------------------------------------------------- the end


ENDS = {
    "at its end": "",
    "with copies under way": "sys.exit()",
    "by an exception": "sys.excepthook = lambda *error: None; print('by an exception'); assert False",
    "with a loader kept": "import builtins; builtins.held = (batches, batch)",
}


@on_software
@pytest.mark.parametrize("options", [{"pin_memory": True}, {"device": "cuda"}])
@pytest.mark.parametrize("end", ENDS)
def test_a_process_may_end_in_the_middle(end: str, options: dict[str, Any]) -> None:
    text = f"""
    batches = iter(loader(**{options!r}))
    for _ in range(30):
        batch = next(batches)
        copy = batch.to("cuda", non_blocking=True)
    {ENDS[end]}
    """
    script(text, status=1 if "exception" in end else 0, late_ms="5-50")


def test_a_fork_in_the_middle() -> None:
    """The child may iterate, and drops what it has got from its parent; the parent goes on."""
    runtime.late(*LATE)
    batches, copies = iter(loader()), []
    for _ in range(20):
        batch = next(batches)
        copies.append(copied(batch))
    child = torch.multiprocessing.get_context("fork").Process(target=_drop, args=([batch],))
    child.start()
    child.join()
    assert child.exitcode == 0
    copies += [copied(batch) for batch in batches]
    wrong = changed(copies)
    runtime.late(0, 0)
    assert (len(copies), wrong) == (BATCHES, 0)


@on_software
def test_a_fork_while_another_thread_is_on_a_stream_of_others() -> None:
    """In the child that thread ends, and leaves its stream."""
    out = script(
        """
    from software_cuda.loops import created
    is_there, over = threading.Event(), threading.Event()

    def stay():
        with torch.cuda.stream(torch.cuda.ExternalStream(created())):
            is_there.set()
            over.wait()

    thread = threading.Thread(target=stay)
    thread.start()
    is_there.wait()
    child = os.fork()
    if not child:
        gc.collect()
        os._exit(0)
    print("child", os.waitpid(child, 0)[1], len(list(loader(pin_memory=True))))
    over.set()
    thread.join()
    """
    )
    assert out == "child 0 100\n"


def _drop(held: list[Any]) -> None:
    assert bool((held.pop() == 19).all())
    gc.collect()


def test_close_and_collection_with_copies_under_way() -> None:
    runtime.late(*LATE)
    for how in ("close", "collect", "break", "raise"):
        made, copies = loader(), []
        try:
            for _, batch in enumerate(made):
                with torch.cuda.stream(torch.cuda.Stream()):
                    copies.append(copied(batch))
                if len(copies) == 40:
                    if how == "raise":
                        raise KeyError
                    break
        except KeyError:
            pass
        del batch
        if how == "close":
            made.close()
        del made
        gc.collect()
        wrong = changed(copies)
        assert (how, len(copies), wrong) == (how, 40, 0)
    runtime.late(0, 0)


def test_three_threads_with_a_loader_each() -> None:
    runtime.late(*LATE)
    found: list[tuple[int, int]] = []

    def consume(options: dict[str, Any]) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            copies = [copied(batch) if not batch.is_cuda else batch for _, batch in enumerate(loader(**options))]
        found.append((len(copies), changed(copies)))

    given: list[dict[str, Any]] = [{}, {"pin_memory": False, "device": "cuda"}, {"persistent_workers": True}]
    threads = [threading.Thread(target=consume, args=(options,)) for options in given]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    runtime.late(0, 0)
    gc.collect()
    assert found == [(BATCHES, 0)] * 3
