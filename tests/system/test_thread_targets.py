"""What a thread runs is prevented, or begun and awaited, wherever a signal's handler raises."""

from __future__ import annotations

import threading

import pytest

from shmloader.system.thread_targets import ThreadTarget


def test_the_first_one_decides() -> None:
    got: list[int] = []
    prevented, begun = ThreadTarget(got.append), ThreadTarget(got.append)
    assert prevented.prevent() and not prevented.prevent()
    prevented(1)
    begun(2)
    assert not begun.prevent()
    begun.wait()
    begun(3)
    assert got == [2]


def test_it_is_awaited_until_its_end_even_if_it_raises() -> None:
    may_end, order = threading.Event(), []

    def call() -> None:
        may_end.wait(20)
        order.append("end")
        raise ZeroDivisionError

    target = ThreadTarget(call)

    def run() -> None:
        with pytest.raises(ZeroDivisionError):
            target()

    thread = threading.Thread(target=run)
    thread.start()
    may_end.set()
    for _ in range(2):
        target.wait()
        order.append("awaited")
    assert order == ["end", "awaited", "awaited"]
    thread.join(20)
