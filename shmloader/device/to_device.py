"""What the prefetch thread does with a batch: it copies it to a device, calls `on_device`, or leaves it as it is.

The thread copies on its own stream, from page-locked slots, so a copy runs beside the work of the consumer's streams.
It drops its batch as soon as the copies have started.  The slot is free when they have passed, because the thread's
stream is current where the last tensor dies (NOTE [ Pinning ]).  `on_device` runs on that stream as well.  The
consumer's stream, but not the consumer, waits for an event after all this.  The memory of the result was allocated for
the thread's stream, so it is kept until the consumer's stream is done with it (`record_stream`).

For the statistics, one batch in TIMED is timed: the thread waits until the stream is idle, starts the copies, and waits
for their end.  The stream's copies come one after another anyway, so that costs almost nothing.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from shmloader.batch.replace_tensors import replaced, tensors_of
from shmloader.device import accelerator
from shmloader.device.accelerator import Accelerator
from shmloader.device.prefetch_thread import Stage
from shmloader.device.views import copies
from shmloader.options import Options
from shmloader.statistics.account import figures_of

if TYPE_CHECKING:
    from shmloader.core.figures import Figures  # off Linux there is none
if sys.platform == "linux":
    from shmloader.core.figures import TO_DEVICE

OnDevice = Callable[[Any], Any]

AHEAD = 2  # batches that the thread has made ready and that were not asked for yet; each takes memory on the device
TIMED = 16  # of this many batches, the ninth is timed; the first ones allocate memory on the device


class ToDevice(Stage):
    """Copies batches to a device.

    Args:
        accelerator: the device.
        on_device: called with each batch on the device; its result is delivered.
        figures: counts how long copies take; None: they are not timed.
    """

    def __init__(self, accelerator: Accelerator, on_device: OnDevice | None, figures: Figures | None = None) -> None:
        self._accelerator = accelerator
        self._on_device = on_device
        self._figures = figures
        self._sent = 0
        self._last: Any = None  # the event of the former batch

    def begin(self) -> None:
        self._accelerator.enter()
        self._accelerator.own_stream()

    def send(self, batch: Any) -> Any:
        accelerator, figures = self._accelerator, self._figures
        self._sent += 1
        timed = figures is not None and self._sent % TIMED == TIMED // 2 + 1
        try:
            if timed and self._last is not None:
                accelerator.wait(self._last)
            began = time.monotonic_ns()
            copied = replaced(batch, copies(batch, accelerator.copy), accelerator.to)
            event = accelerator.mark()
            if timed and figures is not None:
                accelerator.wait(event)
                figures.add_time(TO_DEVICE, time.monotonic_ns() - began)
        except RuntimeError:
            if accelerator.failed():
                # It is never freed: after this, freeing memory that torch page-locked ends the process.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(batch))
            raise
        del batch
        if self._on_device is not None:
            copied = _called(self._on_device, copied)
            event = accelerator.mark()
        self._last = event if figures is not None else None
        return copied, event

    def failed(self) -> bool:
        return self._accelerator.failed()

    def arrive(self, sent: Any) -> Any:
        batch, event = sent
        self._accelerator.arrive(event, tensors_of(batch))
        return batch


class Pinned(Stage):
    """Leaves batches as they are: the source copies them into page-locked memory, and does so in this thread.

    Args:
        accelerator: The device for which they are page-locked.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator

    def begin(self) -> None:
        self._accelerator.enter()

    def failed(self) -> bool:
        return self._accelerator.failed()


class OnCpu(Stage):
    """Plain delivery, with a function on the way.

    Args:
        on_device: called with each batch; its result is delivered.
    """

    def __init__(self, on_device: OnDevice) -> None:
        self._on_device = on_device

    def send(self, batch: Any) -> Any:
        return _called(self._on_device, batch)


def _called(on_device: OnDevice, batch: Any) -> Any:
    """Call the function.  Its StopIteration becomes an error, as in a generator; it would end the epoch silently."""
    try:
        return on_device(batch)
    except StopIteration as error:
        raise RuntimeError(
            "on_device raised StopIteration. It would end the epoch early and without an error. Give next() in it a "
            "default."
        ) from error


def stage_of(loader: Any, options: Options, source: Any) -> tuple[Stage | None, int]:
    """The stage for an iterator's batches, and how many to make ready in advance; None if none is needed."""
    device = None if options.device is None else torch.device(options.device)
    found = None if device is None else accelerator.find(device)
    if found is not None:
        return ToDevice(found, options.on_device, figures_of(loader)), AHEAD
    if getattr(source, "copies_to_pin", False):
        pinned = accelerator.find()
        assert pinned is not None
        return Pinned(pinned), AHEAD
    return (None if options.on_device is None else OnCpu(options.on_device)), 0
