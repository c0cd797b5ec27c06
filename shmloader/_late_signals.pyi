"""Types of the extension built from cython_ext/late_signals.pyx, where each is explained."""

from collections.abc import Iterable

def late(signals: Iterable[int]) -> object: ...
