"""Streams of a device that others have made: that one was left is known for as long as a batch may have died on it."""

from __future__ import annotations

from scripts import run_script


def test_a_stream_whose_event_has_passed_is_still_known_to_be_left() -> None:
    """Two epochs overlap: a batch of the first one is alive, and copies of the second one are marked and pass."""
    ran = run_script(
        """
        import shmloader
        from shmloader.core.cuda import drop_marks, moment, since, watch, watched

        now = [(0, 0, 1)]
        watch(lambda device: now[0], lambda stream: ("event", stream), [0])
        choose = watched(lambda stream: now.__setitem__(0, stream), lambda stream: 0)
        others, further = (0x7000, 0, 1), (0x8000, 0, 1)  # even numbers: these may be destroyed once they are left

        lent = moment()
        choose(others)
        choose((0, 0, 1))
        assert since(lent) == (set(), {others}, [("event", others)]), since(lent)
        between = moment()
        drop_marks(lambda event: True)
        assert since(lent) == (set(), {others}, []), since(lent)
        assert since(between) == (set(), set(), [])
        choose(further)
        choose((0, 0, 1))
        drop_marks(lambda event: False)
        assert since(lent) == (set(), {others, further}, [("event", further)])
        for number in range(200):  # streams that are made and destroyed for ever take no more and more memory
            choose((0x10000 + 2 * number, 0, 1))
            choose((0, 0, 1))
            drop_marks(lambda event: True)
        assert 32 <= len(since(lent)[1]) <= 128
        assert (0x10000 + 2 * 199, 0, 1) in since(lent)[1]
        print("known")
        """
    )
    assert ran.out.split() == ["known"], ran.err
