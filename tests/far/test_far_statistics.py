"""What the statistics, traces and `shmloader top` say of far workers."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

from compared import DRAWN
from engine import Here

import shmloader
from shmloader.commands.top.rings import Rings
from shmloader.commands.top.screen import cells
from shmloader.commands.top.view import Watched


def test_batches_that_wait_there_are_no_work() -> None:
    """Otherwise a stand-in would be busy for longer than there was time."""
    far = Here(1, in_flight=4)
    options: dict[str, Any] = {"batch_size": 4, "prefetch_factor": 4, "persistent_workers": True, "far_workers": far}
    with shmloader.DataLoader(DRAWN, sampler=[index % 26 for index in range(800)], **options) as loader:
        for _ in range(2):
            assert len(list(loader)) == 200
        stats = loader.stats("epoch")
    assert stats.workers is not None and stats.workers[0].published == 200
    assert 0 < stats.workers[0].busy_s <= stats.elapsed_s


def test_statistics_name_the_machines_of_far_workers(tmp_path: pathlib.Path) -> None:
    loader: Any = shmloader.DataLoader(DRAWN, batch_size=4, num_workers=1, far_workers=Here(2))
    with loader:
        loader.trace(tmp_path / "trace.json")
        for k, _ in enumerate(loader):
            if k == 5:  # batches 0, 1 and 2 are there, so each far worker was ready
                assert [worker.node for worker in loader.stats().workers] == [None, "node-1", "node-2"]
                (held,) = Rings(os.getpid()).find()
                shown = [cells(lane)[0] for lane in Watched().look(held).lanes]
                assert shown == ["0", "1 on node-1", "2 on node-2"]
    assert [worker.node for worker in loader.stats().workers] == [None, "node-1", "node-2"]  # they are gone now
    text = str(loader.report())
    assert "far:      1 worker on node-1 made 2 batches, 29% of all" in text and "1 on node-1" in text
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    lanes = {event["args"]["name"].partition(" (")[0] for event in events if event["name"] == "thread_name"}
    assert lanes == {"trainer", "worker 0", "worker 1 on node-1", "worker 2 on node-2"}
    local = str(shmloader.DataLoader(DRAWN, num_workers=1).report())
    assert "far:" not in local
