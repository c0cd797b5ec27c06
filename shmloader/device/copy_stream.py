"""The stream on which a thread copies batches to a device.

Each epoch has its own thread.  torch keeps freed memory of a device for the stream for which it was allocated.  With a
new stream for each epoch, the last epoch's memory would stay with its stream.  And torch has only 32 streams, which it
gives out in turn, so the loader's stream would soon be the user's own.  So a thread takes over the stream of one that
has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

_streams: dict[torch.device, list[tuple[Any, threading.Thread]]] = {}
_choosing = threading.Lock()


def copy_stream(device: torch.device, make: Callable[[], Any]) -> Any:
    """The stream of this thread.

    Args:
        device: The device of the stream.
        make: Makes another stream.
    """
    with _choosing:
        streams = _streams.setdefault(device, [])
        for k, (stream, thread) in enumerate(streams):
            if not thread.is_alive():
                streams[k] = stream, threading.current_thread()
                return stream
        streams.append((make(), threading.current_thread()))
        return streams[-1][0]
