"""Metrics for Prometheus, and for programs that read its format: SHMLOADER_METRICS_PORT.

NOTE [ Metrics ]

    1. shmloader sends nothing, and listens only if a port is named.  In that case each process has one HTTP server on
       that port, from its first iterator on, in a thread that sleeps until a request comes.  It listens on 127.0.0.1
       only, unless SHMLOADER_METRICS_ADDRESS names another address, because it has no authentication.  If several ranks
       share a machine (LOCAL_RANK), rank k listens on the port plus k.
    2. Figures are made when a request comes, from the accounts of all living loaders.  So they cost nothing between
       requests.  A figure that only grows is a counter, so the reader can compute any rate.
    3. A run must not end because of its metrics: a port that is in use or invalid gives only a RuntimeWarning.
    4. Workers do not listen, and neither does a loader that a dataset makes in a worker.  A forked process closes the
       socket that it inherits.  Otherwise the forked process would still occupy the port when the next run begins.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch.utils.data

from shmloader.statistics.stats import Stats, Times
from shmloader.system.limits import rank_here

PORT, ADDRESS = "SHMLOADER_METRICS_PORT", "SHMLOADER_METRICS_ADDRESS"
QUANTILES = {"0.5": "p50_s", "0.9": "p90_s", "0.99": "p99_s"}

# gauges and counters, with their descriptions
GAUGES = {
    "input_wait": "Share of the time spent in next(), since the loader was made",
    "ready_batches": "Ready batches when next() was called, on average",
    "empty_share": "Share of calls of next() that found no batch ready",
    "lent_slots": "Batches that the user holds, and whose bytes lie in the ring",
    "ring_bytes": "Bytes of the ring's slots",
    "num_workers": "Workers",
}
COUNTERS = {
    "batches": "Batches that next() has given",
    "samples": "Samples in the batches that were taken",
    "copied_spare": "Batches copied out because the user held spare_slots batches already",
    "grown_slots": "Times that a slot had to grow",
    "bad_samples": "Samples that raised and were replaced",
    "worker_deaths": "Workers that died and were replaced",
}
SUMMARIES = {
    "wait": "Seconds in next()",
    "step": "Seconds between two calls of next()",
    "fetch": "Seconds to fetch a batch's samples, in a worker",
    "collate": "Seconds to collate and write a batch, in a worker",
    "order_wait": "Seconds that a ready batch waited for an earlier one",
    "lent": "Seconds from handing out a batch until the user has dropped it",
    "to_device": "Seconds to copy a batch to the device, measured for one in 16",
}
OF_WORKERS = ("busy_s", "idle_s", "slot_wait_s", "waited_for_s")

Named = Iterable[tuple[str, Stats]]  # each loader's name and stats

_tried_in: int | None = None  # the process that has tried to listen


def serve_once(all_stats: Callable[[], Named]) -> None:
    """Listen, if a port is named and this process has not tried yet.

    Args:
        all_stats: Returns the loaders' stats at each request.
    """
    global _tried_in
    setting = os.environ.get(PORT, "")
    if not setting or _tried_in == os.getpid() or torch.utils.data.get_worker_info() is not None:
        return
    _tried_in = os.getpid()
    _serve(setting, os.environ.get(ADDRESS) or "127.0.0.1", all_stats)


def _serve(port: str, address: str, all_stats: Callable[[], Named]) -> None:
    try:
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry()  # our own, because the user's may be served elsewhere
        registry.register(Collector(all_stats))
        served: Any = start_http_server(int(port) + rank_here(), addr=address, registry=registry)
    except Exception as error:  # not installed; no port, or one in use; no such address; no more threads
        text = f"no metrics are served: {PORT}={port!r}, {ADDRESS}={address!r}, LOCAL_RANK={rank_here()}: {error!r}."
        warnings.warn(text, RuntimeWarning, stacklevel=6)
        return
    if served is not None:  # the client returns the server since 0.19
        os.register_at_fork(after_in_child=served[0].socket.close)


class Collector:
    """The collector that Prometheus's client asks for all metrics.

    Args:
        all_stats: Returns the loaders' stats.
    """

    def __init__(self, all_stats: Callable[[], Named]) -> None:
        self._all_stats = all_stats

    def describe(self) -> list[Any]:
        """Nothing in advance, because the metrics depend on the loaders."""
        return []

    def collect(self) -> Iterator[Any]:
        """All metrics of all loaders, each with the label `loader`."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily

        stats = list(self._all_stats())
        for kind, names in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTERS)):
            for name, what in names.items():
                family = kind(f"shmloader_{name}", what, labels=["loader"])
                for loader, each in stats:
                    if (value := getattr(each, name)) is not None:
                        family.add_metric([loader], value)
                yield family
        for name, what in SUMMARIES.items():
            summary = SummaryMetricFamily(f"shmloader_{name}_seconds", what, labels=["loader"])
            quantiles = GaugeMetricFamily(f"shmloader_{name}_quantile_seconds", what, labels=["loader", "quantile"])
            for loader, each in stats:
                times: Times | None = getattr(each, name)
                if times is not None:
                    summary.add_metric([loader], count_value=times.count, sum_value=times.total_s)
                    for quantile, field in QUANTILES.items():
                        quantiles.add_metric([loader, quantile], getattr(times, field))
            yield summary
            yield quantiles
        for field in OF_WORKERS:
            counter = CounterMetricFamily(
                f"shmloader_worker_{field.removesuffix('_s')}_seconds", "See WorkerStats", labels=["loader", "worker"]
            )
            for loader, each in stats:
                for worker in each.workers or ():
                    counter.add_metric([loader, str(worker.worker)], getattr(worker, field))
            yield counter
