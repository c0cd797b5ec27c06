"""Waiting for a whole device, and beginning a capture, exclude each other, but in no child."""

from __future__ import annotations

import os
import signal
import threading

from shmloader.device.captures import no_capture_begins


def test_a_child_may_begin_a_capture_although_a_thread_of_its_parent_waits_for_the_device() -> None:
    waits, over = threading.Event(), threading.Event()

    def wait() -> None:
        with no_capture_begins():
            waits.set()
            over.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    waits.wait()
    child = os.fork()
    if not child:
        signal.alarm(10)
        with no_capture_begins():
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    over.set()
    thread.join()
