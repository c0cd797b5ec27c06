"""The slow network of the bench: connections share its bandwidth."""

from __future__ import annotations

import pytest

pytest.importorskip("rich")

from bench.far import delay


class _Clock:
    """Seconds that pass only in sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_bytes_of_all_connections_pass_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock()
    monkeypatch.setattr(delay, "time", clock)
    line = delay._Line(5.0)
    line.carry(10)
    assert clock.now == pytest.approx(102)
    clock.now = 101.0  # another connection's thread, which began before the first one was done
    line.carry(5)
    assert clock.now == pytest.approx(103)
    clock.now = 200.0
    line.carry(5)
    assert clock.now == pytest.approx(201)
    delay._Line(None).carry(1 << 30)
    assert clock.now == pytest.approx(201)
