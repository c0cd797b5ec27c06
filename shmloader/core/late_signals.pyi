"""Types of the extension built from cython_ext/process/late_signals.pyx, where each is explained."""

from collections.abc import Iterable

def late(signals: Iterable[int]) -> object: ...
