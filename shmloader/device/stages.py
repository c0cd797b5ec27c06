"""What becomes of batches that a thread is ahead with: they are copied to a device, or stay as they are.

The thread copies on a stream of its own, from slots that are page-locked, so a copy runs beside what the consumer's
streams do.  Its batch is dropped as soon as the copies are begun; the slot is free when they have passed, for the
thread's stream is the one that is current where the last tensor dies (NOTE [ Pinning ]).  `on_device` runs on that
stream as well.  The consumer's stream, and not the consumer, waits for the event behind all this; and the memory of
what it gets is kept until that stream is done with it (`record_stream`), for it was allocated for the other one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from shmloader.batch.tree import replaced, tensors_of
from shmloader.device.accelerator import Accelerator

OnDevice = Callable[[Any], Any]


class ToDevice:
    """Copies batches to a device.

    Args:
        accelerator: the device.
        on_device: called with each batch when it is there; what it returns is delivered.
    """

    def __init__(self, accelerator: Accelerator, on_device: OnDevice | None) -> None:
        self._accelerator = accelerator
        self._on_device = on_device

    def begin(self) -> None:
        self._accelerator.enter()
        self._accelerator.own_stream()

    def send(self, batch: Any) -> Any:
        accelerator = self._accelerator
        try:
            there = replaced(batch, accelerator.copy, accelerator.to)
            event = accelerator.mark()
        except RuntimeError:
            if accelerator.failed():
                _keep_for_ever(batch)
            raise
        del batch
        if self._on_device is not None:
            there = _called(self._on_device, there)
            event = accelerator.mark()
        return there, event

    def failed(self) -> bool:
        return self._accelerator.failed()

    def arrive(self, sent: Any) -> Any:
        batch, event = sent
        self._accelerator.arrive(event, tensors_of(batch))
        return batch


def _keep_for_ever(batch: Any) -> None:
    """Where the device has failed, torch ends the process when memory is freed that it has page-locked, and copied."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(batch))


class Pinned:
    """Leaves batches as they are: the source copies them into page-locked memory, and the thread does it ahead.

    Args:
        accelerator: what they are page-locked for.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator

    def begin(self) -> None:
        self._accelerator.enter()

    def send(self, batch: Any) -> Any:
        return batch

    def failed(self) -> bool:
        return self._accelerator.failed()

    def arrive(self, sent: Any) -> Any:
        return sent


class OnCpu:
    """Plain delivery, with a function on the way.

    Args:
        on_device: called with each batch; what it returns is delivered.
    """

    def __init__(self, on_device: OnDevice) -> None:
        self._on_device = on_device

    def begin(self) -> None:
        """There is no thread."""

    def send(self, batch: Any) -> Any:
        return _called(self._on_device, batch)

    def failed(self) -> bool:
        return False

    def arrive(self, sent: Any) -> Any:
        return sent


def _called(on_device: OnDevice, batch: Any) -> Any:
    """What the function gives; its StopIteration is an error, as in a generator: it would end the epoch in silence."""
    try:
        return on_device(batch)
    except StopIteration as error:
        raise RuntimeError("on_device raised StopIteration") from error
