"""The clusters that are measured and simulated alike, on this machine's local Ray cluster."""

from __future__ import annotations

import math

from bench.scale.costs import COSTS
from bench.scale.plan import Death, Plan

_MAKING = 0.1  # seconds that the samples of a batch sleep
_WARM_UP = 2.05  # seconds; a half of the above more than any number of batches, so that none falls on the edge
_JITTER = 0.02  # without any, simulated workers stay in step for ever, and real ones do not; 0.01 to 0.1 give the same
_SMALL, _LARGE = 64e3, 1e6  # bytes of a batch; over a slow network its bytes should take longer than all else


def _plan(far: int, batch_bytes: float = _SMALL, **others: object) -> Plan:
    kind: dict[str, object] = {
        "far_bandwidth": math.inf,
        "far_per_node": 1,
        "warm_up": _WARM_UP,
        "jitter": _JITTER,
        **others,
    }
    return Plan(batch_bytes, _MAKING, far, **kind)  # type: ignore[arg-type]


_DEATHS = tuple(Death(_WARM_UP + at, far, COSTS["restart"].value) for far, at in enumerate((1.0, 4.0, 7.0)))


CASES = {
    # in the order of far workers, so that actors are used again
    "2 local": _plan(0, local=2),
    "1 far": _plan(1),
    "2 far": _plan(2),
    "2 far, 2 local": _plan(2, local=2),
    "4 far": _plan(4),
    "4 far, 2 local": _plan(4, local=2),
    "4 far, 2 local, in turns": _plan(4, local=2, steals=False),
    "4 far, one 3 times slower": _plan(4, slow=frozenset({1})),
    "4 far, one 3 times slower, in turns": _plan(4, slow=frozenset({1}), steals=False),
    "4 far, 50 ms, one request": _plan(4, latency=0.05, in_flight=1),
    "4 far, 50 ms, two requests": _plan(4, latency=0.05),
    "4 far, 50 ms, in turns": _plan(4, latency=0.05, steals=False),
    "4 far, 50 ms, in turns, prefetch_factor=4": _plan(4, latency=0.05, steals=False, prefetch_factor=4),
    "4 far, 150 ms, two requests": _plan(4, latency=0.15),
    "4 far, 50 ms, shallow ring": _plan(4, latency=0.05, deepens=False),
    "4 far, shallow ring, four requests": _plan(4, in_flight=4, deepens=False),
    "4 far, three die": _plan(4, deaths=_DEATHS, seconds=12.0),
    "6 far": _plan(6),
    "6 far, in turns": _plan(6, steals=False),
    "6 far, 20 MB/s": _plan(6, _LARGE, bandwidth=20e6),
    "6 far, 40 MB/s, 20 ms": _plan(6, _LARGE, bandwidth=40e6, latency=0.02),
    "6 far, 40 MB/s, in turns": _plan(6, _LARGE, bandwidth=40e6, steals=False),
}
