"""The stream that a thread copies batches to a device on.

Each epoch has a thread of its own.  torch keeps freed memory of a device for the stream that it was allocated on, so
with a new stream for each epoch, the last epoch's memory would stay with its stream.  And torch has only 32, given in
turn: then the loader's would be the user's own.  So a thread takes over the stream of one that has ended.
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
        device: Whose stream it is.
        make: Makes another one.
    """
    with _choosing:
        streams = _streams.setdefault(device, [])
        for k, (stream, thread) in enumerate(streams):
            if not thread.is_alive():
                streams[k] = stream, threading.current_thread()
                return stream
        streams.append((make(), threading.current_thread()))
        return streams[-1][0]
