"""The page-locked ring (`pin_memory`): which slots are locked, and which ones a copy to a device may still be reading.
It warns if the ring cannot be page-locked.

NOTE [ Pinning ]

torch copies each batch into fresh page-locked memory.  Here the slots themselves are page-locked once, and a batch is
delivered in its slot, with `is_pinned()` true and no copy.  accelerator_of() (accelerator.py) decides whether there is
a device to do this for.  If there is none, nothing is page-locked, and `is_pinned()` is false.

    1. Each slot is one registration: its committed bytes, from its start.  A copy to a device may not span two
       registrations.  So a slot that has grown is registered again as a whole, by a thread, and only while nothing is
       lent from it.  A batch in a slot that is not locked yet is copied into torch's page-locked memory.  So
       `is_pinned()` is always true.
    2. The first slot's first pages are registered when the iterator begins.  If that is refused (confidential
       computing, WSL, accelerators other than CUDA and ROCm), there is one warning, and a prefetch thread copies all
       batches, as in torch (prefetch.py).
    3. torch knows which streams copy out of memory that it has allocated, and waits for them before it uses that memory
       again.  It does not know our memory.  A copy that began with `non_blocking=True` may still run long after the
       last tensor over its slot has died.  Therefore a lease over a locked slot is *guarded*: its death does not free
       the slot.  It only records which streams are current, on all devices, in the thread where the lease dies.  That
       reads a few words and does not call CUDA.  A call to CUDA there, with the GIL held, could wait for a thread that
       waits for the GIL.
       When the next batch is handed out, events are recorded: on the noted streams, on those that are current now, and
       on all others that may have a copy because they were current in some thread while the batch was lent
       (NOTE [ Streams ]).  Recording the events later than the death does no harm, because a later event covers more
       copies.  When all events have passed, the slot is free.  Until then it counts as lent.  If too many slots are
       lent, batches are copied, so nothing ever waits for a device.
       Usually the trainer waits until two batches have died, and records the events for both at once.  While slots are
       scarce, it records them for each batch.  In all usual cases one C function does that (reclaim.pxi): it calls the
       driver without the GIL and reuses its events.  The Python code here covers all cases: foreign streams, streams
       that became current unseen, errors, ROCm, and the end.
       Batches for `device=` are copied by one thread, on one stream.  If such a batch has only tensors, no other code
       ever sees the slot: `on_device` and the consumer get only the copy.  Then events on that thread's current streams
       are enough, and no slot waits for the consumer's computation.
       A stream that the watch does not see (NOTE [ Streams ], 5) is covered only if it is current where the lease dies
       or at the next hand-out.  With SHMLOADER_STRICT_PINNING=1 the trainer waits until all devices are idle.
    4. While a CUDA graph is captured on one of these streams, nothing is recorded or queried, and slots stay lent.  If
       a capture began in another thread while the events were being recorded, the events are dropped, and recorded
       again at the next hand-out.  We read the number of captures that ever began, once before the recording and once
       after it.  If it has grown, there was a capture, even if that is already over.  All calls are made in the
       thread's relaxed mode, so they break no capture of another thread.  Waiting for a whole device breaks a capture
       even in that mode, so no capture may begin until such a wait is over (captures.py).
    5. When the iterator ends, it waits for the device, so that no copy still runs, not even one that we do not know of.
       Then slots that are not lent are unregistered, and after that unmapped.  While a graph is captured, waiting for a
       device is not allowed, so the events alone have to be enough.  A slot that is lent, or read by a copy, stays
       locked and mapped until its lease has died and its events have passed.  That is checked when another locked ring
       hands out a batch, begins or ends.
    6. A forked process uses no device: leases note nothing and free nothing there.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable
from typing import Any

import numpy
import torch

from shmloader.core.cuda import captures_begun, moment
from shmloader.core.lease import Lease
from shmloader.core.trainer import TrainerSide
from shmloader.device.accelerator import Accelerator
from shmloader.device.captures import no_capture_begins
from shmloader.device.streams import say_unknown
from shmloader.private import of_torch
from shmloader.system.signals import held
from shmloader.system.user_line import warn_once

LARGEST = 64 << 30  # bytes of one registration; drivers refuse some hundreds of GiB at once
UNLOCKED = -1  # in place of a number of bytes: no batch in this slot counts as page-locked, not even an empty one
IN_TRANSIT = 4  # slots beyond `spare_slots`, for dead batches whose copies or events have not passed

_late: set[Pinning] = set()  # of closed rings, with slots that are not given back yet


class Pinning:
    """Page-locks the slots of one ring, and frees a lent slot when no copy reads it.

    Args:
        ring: The trainer's side.
        accelerator: Copies out of the slots.
        private: Whether only one thread gets the batches' tensors, and copies them (device=).
    """

    def __init__(self, ring: TrainerSide, accelerator: Accelerator, private: bool = False) -> None:
        self._ring = ring
        self._accelerator = accelerator
        self._strict = os.environ.get("SHMLOADER_STRICT_PINNING", "") not in ("", "0")
        self._private = private
        self._locked = [UNLOCKED] * ring.payloads  # bytes of each slot that may be lent
        self._lent = [0] * ring.payloads  # when each slot was lent last
        self._unshared = [False] * ring.payloads  # whether only the thread that copies can have had the batch of each
        self._registered: dict[int, int] = {}  # registered bytes of each slot; the thread's, while there is one
        self._asked = [False] * ring.payloads
        self._hopeless: set[int] = set()
        self._refused = ""  # the reason, until the warning
        self._requests: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._quick_reclaim: Callable[[], bool] | None = None
        self._closed = False
        self._owner = os.getpid()
        self.thread: threading.Thread | None = None

    # ------------------------------------------------------------------------------------------------- locking

    def start(self) -> bool:
        """Lock a first slot, and start the thread that locks the others; false if that is refused.

        Call it after the fork of the workers.
        """
        _free_late()
        why = self._register(0)
        if why:
            _say(why)
            return False
        self._ring.slots.guard_with(self._accelerator.current, self._accelerator.devices)
        for device in self._accelerator.devices:
            self._accelerator.current(device)  # the first call initialises something, which must not happen at a death
        if not self._strict:
            self._quick_reclaim = self._accelerator.quick_reclaim(self._ring.slots, self._lent, self._unshared)
        self.thread = threading.Thread(target=self._lock, name="shmloader_pin", daemon=True)
        self.thread.start()
        return True

    def _lock(self) -> None:
        self._accelerator.enter()
        while (asked := self._requests.get()) is not None:
            size = self._committed(asked)
            for payload in (asked, *range(self._ring.payloads)):
                # Other slots that have grown as far will be needed soon.  Registered ones wait until a batch needs
                # them, because only then it is certain that nothing is lent from them.
                if payload == asked or (payload not in self._registered and self._committed(payload) >= size):
                    self._refused = self._register(payload) or self._refused
            self._asked[asked] = False

    def _register(self, payload: int) -> str:
        """Register a slot of which nothing is lent, as far as it has pages now; returns the reason of a refusal."""
        size, before = self._committed(payload), self._registered.get(payload, 0)
        if payload in self._hopeless:
            return ""
        if size > before:
            if before:
                self._unregister(payload)
            if why := self._try(payload, size):
                self._hopeless.add(payload)
                return why
            self._registered[payload] = size
        self._locked[payload] = self._registered[payload]
        return ""

    def _try(self, payload: int, size: int) -> str:
        if size > LARGEST:
            return f"a slot of {size >> 30} GiB is too large"
        try:
            with self._accelerator.relaxed():
                return self._accelerator.register(self._ring.slots.address(payload), size)
        except RuntimeError as error:
            # torch's error about the device.  If it ended the thread, all batches would be copied without a warning.
            return str(error).partition("\n")[0]

    def _unregister(self, payload: int) -> None:
        if self._registered.pop(payload, 0):
            with self._accelerator.relaxed():
                self._accelerator.unregister(self._ring.slots.address(payload))

    def _committed(self, payload: int) -> int:
        return min(self._ring.committed(payload), self._ring.slot_stride)

    # ------------------------------------------------------------------------------------------------- lending

    def guard(self, lease: Lease) -> bool:
        """Whether the lease's batch may be lent: it is page-locked as a whole, and the slot is guarded from now on."""
        payload = lease.payload
        if lease.guard(self._locked[payload]):
            self._lent[payload], self._unshared[payload] = moment(), False
            return True
        if self.thread is not None and not self._asked[payload] and payload not in self._hopeless:
            self._asked[payload], self._locked[payload] = True, UNLOCKED  # before the thread may unregister it
            self._requests.put(payload)
        if self._refused:
            _say(self._refused)
            self._refused = ""
        return False

    def finish(self, batch: Any, lease: Lease) -> Any:
        """Page-lock what is not locked yet, as torch does it: objects with their own `pin_memory()`, pickled tensors.

        All other tensors are page-locked already, in the slot or in torch's memory.
        """
        if self._private:
            self._unshared[lease.payload] = _is_of_tensors(batch)
        return batch if _is_locked(batch, lease.may_have_objects) else of_torch.pin_memory(batch)

    def free(self) -> None:
        """Free the slots that no copy reads.  Called with every hand-out of a batch."""
        if self._quick_reclaim is None or not self._quick_reclaim():
            slots = self._ring.slots
            if slots.any_held_back:
                slots.one_at_a_time(self._reclaim)
        if _late:
            _free_late()

    def _reclaim(self) -> None:
        slots, accelerator = self._ring.slots, self._accelerator
        returned, started = slots.returns(), captures_begun()
        noted = [streams for _, streams in returned if streams is not None]
        streams = accelerator.streams(noted, self._first_lent(returned))
        if accelerator.capturing(streams):
            return
        if streams.unknown is not None and streams.all and not self._strict:
            say_unknown(streams.unknown)
        with accelerator.relaxed():
            if returned:
                events: list[Any] = []
                if self._strict or not streams.all or len(noted) < len(returned):  # some streams are not known
                    if not self._synchronize():
                        return
                else:
                    events = accelerator.record(streams)
                    if accelerator.capturing(streams) or captures_begun() != started:
                        return  # an event recorded in a capture can be neither queried nor waited for
                slots.await_events(len(returned), events)
            for entry in slots.awaiting():
                if all(accelerator.passed(event) for event in entry[1]):
                    if self._closed:
                        self._unlock(entry[0])
                    slots.reclaim(entry)

    def _first_lent(self, returned: list[tuple[int, Any]]) -> int | None:
        """When the first of the dead batches was lent; None if no other thread can have copied from them.

        If we must wait for the whole device, other threads matter in any case, because one may be capturing a graph.
        """
        if not returned:
            return None
        if not self._strict and all(self._unshared[payload] for payload, _ in returned):
            here = [self._accelerator.current(device) for device in self._accelerator.devices]
            if all(streams == here for _, streams in returned):
                return None
        return min(self._lent[payload] for payload, _ in returned)

    def _unlock(self, payloads: list[int]) -> None:
        """Unregister these slots for good: the ring is closed, and they are unmapped when they are reclaimed."""
        self._wait()
        for payload in payloads:
            self._unregister(payload)

    def _wait(self) -> None:
        """Wait until the device is idle, before memory is unregistered for good and unmapped.

        No copy that we know of reads it now.  But a library may copy on its own stream, and would read unmapped memory.
        While a graph is captured, or after the device has failed, waiting is not allowed.
        """
        with self._accelerator.relaxed(), contextlib.suppress(RuntimeError):
            self._synchronize()

    def _synchronize(self) -> bool:
        """Wait until all devices are idle; False, without waiting, while a graph is captured."""
        with no_capture_begins():
            # Asked only in here: another thread may have made a stream current, and begun its capture, a moment ago.
            if self._accelerator.capturing(self._accelerator.streams((), moment())):
                return False
            self._accelerator.synchronize()
        return True

    # ------------------------------------------------------------------------------------------------- the end

    def close(self) -> None:
        """End the thread and unregister what is not lent.  The ring may be closed only after this."""
        self.stop()
        if self._closed:
            return
        self.free()
        self._closed = True
        self._wait()
        slots = self._ring.slots
        slots.one_at_a_time(self._reclaim)  # slots that were being read a moment ago
        for payload in set(self._registered) - slots.lent_payloads():
            self._unregister(payload)
        if self._registered:
            _late.add(self)

    def stop(self) -> None:
        """End only the thread, because the interpreter exits."""
        if self.thread is not None:
            self._requests.put(None)
            self.thread.join()


def _free_late() -> None:
    """Give back the memory of closed rings that was still in use."""
    with held():  # a signal in between would leave a slot half unregistered, and it would be unmapped
        for pinning in list(_late):
            if pinning._owner != os.getpid():  # a forked process uses no device
                _late.discard(pinning)
                continue
            pinning._ring.slots.one_at_a_time(pinning._reclaim)
            if not pinning._registered:
                _late.discard(pinning)


def _say(why: str) -> None:
    warn_once(
        f"the ring could not be page-locked ({why}). A thread copies each batch into page-locked memory instead, as "
        "torch's own DataLoader does.",
        UserWarning,
        "not page-locked",
    )


_NO_CONTAINER = frozenset((int, float, complex, bool, str, bytes, type(None)))


def _is_of_tensors(batch: Any) -> bool:
    """Whether the batch is plain tensors and numbers in plain containers, so that its copy shares no memory with it.

    An array or an object goes on to `on_device` and to the consumer as it is.
    """
    kind = type(batch)
    if kind is torch.Tensor:
        return not batch.requires_grad  # otherwise its copy leads back to it
    if kind is dict:
        return set(map(type, batch)) <= _NO_CONTAINER and all(map(_is_of_tensors, batch.values()))
    if kind is list or kind is tuple:
        return all(map(_is_of_tensors, batch))
    return kind in _NO_CONTAINER


_NOTHING_TO_LOCK = _NO_CONTAINER | {numpy.ndarray}  # as in torch


def _is_locked(batch: Any, any_pickled: bool) -> bool:
    """Whether torch's pin_memory() would leave the batch as it is, if a few microseconds are enough to see it."""
    kind = type(batch)
    if kind is torch.Tensor:
        return not any_pickled or batch.is_pinned()
    if kind is dict:
        batch = batch.values()
    elif kind is not list and kind is not tuple:
        return kind in _NOTHING_TO_LOCK
    return set(map(type, batch)) <= _NOTHING_TO_LOCK or all(_is_locked(part, any_pickled) for part in batch)
