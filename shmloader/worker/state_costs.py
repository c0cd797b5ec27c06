"""Warns if a worker spends much of its time on asking its stream for its state, which it does after each batch."""

from __future__ import annotations

import warnings
from time import monotonic_ns
from typing import Any

SHARE = 0.1  # of the worker's time
LEAST = 0.1  # seconds on states, before which a share says nothing


class StateCosts:
    """Measures one worker.

    Args:
        dataset: The stream.
        worker: The worker's number.
    """

    def __init__(self, dataset: Any, worker: int) -> None:
        self._kind = type(dataset)
        self._worker = worker
        self._began = self._states = self._all = 0
        self._has_warned = False

    def begin(self) -> None:
        """The worker begins a batch."""
        self._began = monotonic_ns()

    def add(self, asked: int) -> None:
        """The worker has asked for the state behind the batch, and written it, since `asked`, a time in nanoseconds."""
        now = monotonic_ns()
        self._states += now - asked
        self._all += now - self._began
        if not self._has_warned and self._states > LEAST * 1e9 and self._states > SHARE * self._all:
            self._has_warned = True
            self._warn()

    def _warn(self) -> None:
        code = getattr(getattr(self._kind, "state_dict", None), "__code__", self._warn.__code__)
        warnings.warn_explicit(
            f"the state of the stream {self._kind.__name__} takes {self._states / self._all:.0%} of the time of worker "
            f"{self._worker} ({self._states / 1e9:.1f} s so far). A worker asks its stream for its state after each "
            f"batch, and that should take less than {SHARE:.0%}. Have state_dict() return less, or faster. Or leave it "
            "out, if you need not resume in mid-epoch.",
            RuntimeWarning,
            code.co_filename,
            code.co_firstlineno,
        )
