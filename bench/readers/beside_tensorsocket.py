"""The same batches through TensorSocket 0.0.5 (PyPI).

Its producer iterates a loader, and its consumers get each batch through shared memory.
"""

from __future__ import annotations

import importlib
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

TENSORSOCKET = "TensorSocket"
NEEDS = ("tensorsocket",)
JOINED = (
    2  # batches of the loader that it joins and cuts again: with 1 it hangs, and with its default of 8 it is slower
)
PORTS = 4  # of a producer: batches, acknowledgements, and two for heartbeats


def free_ports() -> list[int]:
    """Ports of the loopback interface that nobody uses now."""
    with ExitStack() as held:
        found = []
        for _ in range(PORTS):
            one = held.enter_context(socket.socket())
            one.bind(("127.0.0.1", 0))
            found.append(one.getsockname()[1])
        return found


def produce(loader: Any, ports: list[int], consumers: int) -> None:
    """Send a loader's batches to consumers, once all of these have come.  It does not return before the loader ends."""
    module: Any = importlib.import_module("tensorsocket.producer")
    module.LOCALHOST = "tcp://127.0.0.1"  # by default it listens on all of the machine's addresses
    producer = module.TensorProducer(
        loader,
        port=ports[0],
        ack_port=ports[1],
        heart_ports=(ports[2], ports[3]),
        rubber_band_pct=0,  # by default it keeps a share of the dataset's batches, and this dataset is endless
        producer_batch_size=JOINED,
    )
    while len(producer.hb.consumers) < consumers:
        time.sleep(0.05)
    for _ in producer:
        pass


def consume(ports: list[int], batch_size: int) -> Iterator[Any]:
    """The batches of a producer."""
    consumer: Any = importlib.import_module("tensorsocket").TensorConsumer(
        port=ports[0], ack_port=ports[1], heart_ports=(ports[2], ports[3]), batch_size=batch_size
    )
    for batch in consumer:
        yield batch[0]
