"""The streams that may have a copy out of a lent batch: those that were current in any thread while it was lent.

NOTE [ Streams ]

torch copies on the stream that is current in the thread that copies.  Any thread may copy a batch, and any other thread
may drop it, long after that stream was left: enumerate() and tqdm keep a batch until the following next() has returned.
So the place where a batch dies says little about where it was read.  But streams can be watched:

    1. From `import shmloader` on, the calls that make a stream current are watched: torch.cuda.set_stream() (which
       torch.cuda.stream(), torch.cuda.graph() and all frameworks call), torch.accelerator.set_stream(), and
       `with stream:`.  We record for each thread which stream is current, and for each stream when it was last left.
    2. When a batch is lent, the moment is recorded.  When it has died, a copy from it can only be on
           the default stream of each device that is in use, for threads that never chose another;
           a stream that is current in some thread now;
           a stream that was left since the batch was lent.
       Events on all of these come after all copies from the batch.  No further copy can begin, because that would need
       the batch.
    3. torch's own streams live as long as the process.  A stream that others have made (ExternalStream) may be
       destroyed after it is left, and then it cannot be queried.  So an event is recorded on it when it is left.
    4. When a thread that Python started ends, its streams are no longer current.  The streams of a thread that other
       code started stay current, because that thread may call Python again.
    5. Two kinds of streams are not seen: one that C++ makes current and leaves again, and one that a thread made
       current before shmloader was imported.  In any case, events are recorded on the streams that are current where a
       batch dies, and on those that are current where the next batch is handed out (NOTE [ Pinning ]).  If one of these
       streams became current without the watch seeing it, there is a warning.  Under SHMLOADER_STRICT_PINNING=1 loaders
       wait for all streams of all devices.  So they do if the streams of this torch cannot be watched.

Watching costs a fraction of a microsecond each time a stream is made current, and nothing else.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import torch

from shmloader.device import events
from shmloader.device.captures import relaxed
from shmloader.private import of_torch
from shmloader.system.user_line import warn_once

if sys.platform == "linux":
    from shmloader.core.cuda import drop_marks, replace_method, watch, watched

CUDA = 1  # the type of a device, as a stream's numbers have it; ROCm's too


def _watch_streams() -> bool:
    """From now on, watch which streams are made current; returns whether that is possible."""
    if sys.platform != "linux" or of_torch.current_cuda_stream is None:  # torch was built without CUDA
        return False
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    watch(of_torch.current_cuda_stream, _mark, devices)
    return of_torch.replace_stream_setters(
        lambda original: watched(original, _device_of_number),
        lambda original: watched(original, _device_of_stream),
        replace_method,
    )


def _device_of_number(stream_id: int, device_index: int, device_type: int = CUDA) -> int | None:
    return device_index


def _device_of_stream(stream: Any, *ignored: Any) -> int | None:
    return int(stream.device_index) if stream.device_type == CUDA else None


def _mark(stream: tuple[int, int, int]) -> Any:
    """An event after the present work of a stream; None if it is being captured, or the device has failed.

    This runs inside any code of the user's, while another thread may capture a graph.  In a forked process the parent's
    threads end, whose streams it cannot query.
    """
    if of_torch.is_in_bad_fork():
        return None
    event = None
    with contextlib.suppress(RuntimeError), relaxed():
        if not events.is_capturing(stream):
            event = events.record(stream)
            drop_marks(events.passed)  # it may raise for another stream's event; this event is valid anyway
    return event


def say_unknown(stream: tuple[int, int, int]) -> None:
    """Warn, once, that a stream is current that nobody was seen to choose."""
    warn_once(
        f"CUDA stream {stream[0]:#x} of device {stream[1]} was made current by code that shmloader cannot watch. That "
        "code is C++, or it ran before shmloader was imported. If it copies batches with non_blocking=True, a copy may "
        "read a slot that has been filled again. Give the loader device=, or wait for that stream before you drop the "
        "batch, or set SHMLOADER_STRICT_PINNING=1.",
        UserWarning,
        "unknown streams",
    )


WATCHED = _watch_streams()
