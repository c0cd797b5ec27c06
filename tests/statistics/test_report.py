"""loader.report(): what the verdict says of made figures, and what a report looks like.

The situations themselves are made in test_report_verdicts.py.
"""

from __future__ import annotations

import builtins
import dataclasses
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import iterate

import shmloader
from shmloader.core.figures import Taken
from shmloader.statistics.evidence import BLOCKS, Evidence, Settings, settings_of, shares_of
from shmloader.statistics.stats import Hot, Stats, Times, WorkerStats
from shmloader.statistics.verdict import Verdict, verdict_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork"),
]

BATCHES = 200
WAITS = dict.fromkeys(("open", "claim", "fetch", "collate", "wake", "hand_out"), 0.0)


def times(each: float, count: int = BATCHES) -> Times:
    return Times(count, each * count, each, each, each, each)


def worker(number: int = 0, fetch: float = 0.0, **more: Any) -> WorkerStats:
    """One that made 100 batches, each of which took so long."""
    given = {"published": 100, "fetch_s": 100 * fetch, "collate_s": 0.0, "idle_s": 0.0, "slot_wait_s": 0.0} | more
    given = {"waited_for_s": 0.0, "cpu_share": 1.0, "delayed_share": 0.0} | given
    return WorkerStats(worker=number, busy_s=given["fetch_s"] + given["collate_s"], **given)


def evidence(
    waited: float = 0.02,
    stepped: float = 0.005,
    workers: tuple[WorkerStats, ...] = (),
    cores: float = 8,
    ranks: tuple[float, ...] = (),
    shares: tuple[float, ...] | None = None,
    settings: dict[str, Any] | None = None,
    **stats: Any,
) -> Evidence:
    """A loop that waits so long for each batch, and takes so long for it."""
    share = waited / (waited + stepped)
    given = {
        "since": "start",
        "elapsed_s": BATCHES * (waited + stepped),
        "why_not_ring": None,
        "num_workers": len(workers),
        "batches": BATCHES,
        "batches_per_s": 1 / (waited + stepped),
        "input_wait": share,
        "wait": times(waited),
        "step": times(stepped),
        "first_wait": Times(),
        "taken_batches": BATCHES,
        "samples": 4 * BATCHES,
        "batch_bytes": 1e6,
        "copied_spare": 0,
        "held_batches": 2,
        "waits": WAITS,
        "workers": workers,
    }
    text = Settings(**({"num_workers": len(workers)} | (settings or {})))
    return Evidence(Stats(**(given | stats)), text, cores, (share,) * BLOCKS if shares is None else shares, ranks)


def two(fetch: float = 0.04, **more: Any) -> tuple[WorkerStats, ...]:
    return tuple(worker(number, fetch, **more) for number in range(2))


FIRST = {
    "wait": Times(200, 2.02, 0.01, 1e-4, 1e-4, 1),
    "first_wait": times(0.5, 4),
    "input_wait": 0.5,
    "starting_s": 2.0,
}
CASES: dict[str, tuple[Evidence, str]] = {
    "decode": (evidence(0.015, 0.001, two(0.032), cores=2), "shmloader.images"),
    "more workers first": (evidence(0.015, 0.001, two(0.032), cores=4), "num_workers=4, and make"),
    "read": (evidence(0.02, 0.001, two(0.042, cpu_share=0.02), cores=2), "num_workers=8, and read faster"),
    "collate": (evidence(0.02, 0.001, two(0.0, collate_s=4.0), cores=8), "collated straight into the slot"),
    "workers": (evidence(0.015, 0.005, two(0.04), cores=10), "num_workers=9"),
    "workers that sleep": (evidence(0.015, 0.005, two(0.04, cpu_share=0.1), cores=3), "num_workers=9"),
    "no workers": (evidence(0.02, 0.005, settings={"num_workers": 0}), "num_workers=4"),
    "one worker": (
        evidence(0.02, 0.001, (worker(0, 0.08, waited_for_s=4), worker(1, 0.01, idle_s=7)), cores=8),
        'schedule="steal"',
    ),
    "order": (evidence(0.02, 0.001, two(0.02, idle_s=2.0, waited_for_s=2.0)), 'schedule="steal"'),
    "order, though work is stolen": (
        evidence(0.02, 0.001, two(0.02, idle_s=2.0), settings={"schedule": "steal"}),
        "chunk_size",
    ),
    "cores": (
        evidence(0.02, 0.001, tuple(worker(k, 0.08, cpu_share=0.2, delayed_share=0.75) for k in range(8)), cores=2),
        "num_workers=2",
    ),
    "spare_slots": (
        evidence(
            0.02, 0.001, two(0.001), waits={**WAITS, "hand_out": 3.5}, copied_spare=100, held_batches=4,
            settings={"spare_slots": 2},
        ),
        "spare_slots=4",
    ),
    "hand_out, quick": (evidence(8e-6, 1e-6, two(0.0), waits={**WAITS, "hand_out": 0.0015}), "larger batches"),
    "hand_out, slow": (evidence(0.02, 0.001, two(0.0), waits={**WAITS, "hand_out": 3.9}), "a quicker sampler"),
    "first_batch": (
        evidence(0.001, 0.01, two(0.001), **FIRST),
        "persistent_workers=True",
    ),
    "first_batch of workers that persist": (
        evidence(0.001, 0.01, two(0.001), **FIRST,
                 settings={"persistent_workers": True}),
        "chunk_size, so that all workers make the first batch; or call iter(loader)",
    ),
    "device": (evidence(0.0001, 0.01, two(0.001), to_device=times(0.009, 12)), "normalize_on_device"),
    "device, on a busy machine": (
        evidence(0.017, 0.005, two(0.001, slot_wait_s=2.0), to_device=times(0.012, 12), empty_share=0.01),
        "normalize_on_device",
    ),
    "rank": (evidence(0.001, 0.01, two(0.001), ranks=(0.001, 0.008, 0.001)), "on rank 1"),
}  # fmt: skip
NAMES = {
    "more workers first": "decode",
    "workers that sleep": "workers",
    "no workers": "workers",
    "one worker": "worker",
    "order, though work is stolen": "order",
    "hand_out, quick": "hand_out",
    "device, on a busy machine": "device",
    "hand_out, slow": "hand_out",
    "first_batch of workers that persist": "first_batch",
}


@pytest.mark.parametrize("case", CASES)
def test_each_cause_has_its_name_and_its_change(case: str) -> None:
    evidence, change = CASES[case]
    verdict = verdict_of(evidence)
    assert verdict.cause is not None and verdict.cause.name == NAMES.get(case, case)
    assert change in verdict.cause.change
    # the one is over too soon, and the other may be the machine's fault
    assert verdict.kind == "input-bound" and verdict.sure == (
        case not in ("hand_out, quick", "device, on a busy machine")
    )
    assert verdict.cause.why and verdict.cause.effect


OUT_OF_ORDER = {"in_order": False}
REFUSED: dict[str, tuple[Evidence, str, str]] = {
    "steal, out of order": (
        evidence(0.02, 0.001, two(0.02, idle_s=2.0), settings=OUT_OF_ORDER),
        'schedule="steal" in place of in_order=False',
        "chunk_size",
    ),
    "a straggler, out of order": (
        evidence(0.02, 0.001, (worker(0, 0.08, waited_for_s=4), worker(1, 0.01, idle_s=7)), settings=OUT_OF_ORDER),
        'schedule="steal" in place of in_order=False',
        "chunk_size",
    ),
    "a stream that is out of order": (
        evidence(0.02, 0.001, two(0.02, idle_s=2.0), settings={**OUT_OF_ORDER, "is_stream": True}),
        "a larger prefetch_factor",
        "in_order=False",
    ),
    "chunks of another collate function": (
        evidence(0.02, 0.001, two(0.02, idle_s=2.0), settings={"schedule": "steal", "can_be_cut": False}),
        "a larger prefetch_factor",
        "chunk_size",
    ),
    "chunks that there are": (
        evidence(0.02, 0.001, two(0.02, idle_s=2.0), settings={"schedule": "steal", "chunk_size": 8}),
        "a chunk_size below 8",
        "iter(loader)",
    ),
    "the next epoch, out of order": (
        evidence(0.001, 0.01, two(0.001), **FIRST, settings={**OUT_OF_ORDER, "persistent_workers": True}),
        "iter(loader)",
        "chunk_size",
    ),
    "the next epoch, off the ring": (
        evidence(0.001, 0.01, **FIRST, why_not_ring="a pipe", settings={"num_workers": 2, "persistent_workers": True}),
        "before their first batch",
        "iter(loader)",
    ),
    "workers that there are, and that had no batch": (
        evidence(0.015, 0.005, two(0.04), cores=10, settings={"num_workers": 16}),
        "make a sample cheaper",
        "num_workers",
    ),
    "workers for whose batches there is no memory": (
        replace(evidence(0.015, 0.005, two(0.04), cores=10), memory_bytes=5e6),
        "num_workers=4, and make",
        "num_workers=9",
    ),
    "slots for which there is no memory": (
        replace(
            evidence(0.02, 0.001, two(0.001), waits={**WAITS, "hand_out": 3.5}, copied_spare=199), memory_bytes=1e8
        ),
        "there is no memory for 400 of them",
        "spare_slots",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_no_change_is_advised_that_cannot_be_made(case: str) -> None:
    evidence, change, never = REFUSED[case]
    cause = verdict_of(evidence).cause
    assert cause is not None and change in cause.change and never not in cause.change.replace(change, "")


def test_what_the_loader_would_take_is_known() -> None:
    fields = {name: settings_of(shmloader.DataLoader([0], **options)) for name, options in {
        "usual": {}, "out of order": {"in_order": False}, "no batches": {"batch_size": None},
        "another collate_fn": {"collate_fn": len},
    }.items()}  # fmt: skip
    assert [name for name, each in fields.items() if not each.can_be_cut] == ["no batches", "another collate_fn"]
    assert [name for name, each in fields.items() if not each.in_order] == ["out of order"]


def test_what_more_workers_would_bring_is_computed() -> None:
    """A batch takes 40 ms of a worker and the step 5 ms: 8 workers, and a little more, are as quick as the loop."""
    cause = verdict_of(CASES["workers"][0]).cause
    assert cause is not None and "9 workers would feed this loop (5.0 ms a step): 200 batches/s, now 50" in cause.effect
    cause = verdict_of(CASES["decode"][0]).cause
    assert cause is not None
    assert (
        "34 workers would feed this loop (1.0 ms a step); this machine has 2 cores, and it would take 32.0"
        in cause.effect
    )
    assert "2 workers give at most 62 batches/s, now 62 batches/s" in cause.effect


def test_a_worker_that_is_a_little_slower_is_no_straggler() -> None:
    near = worker(0, 0.042, waited_for_s=4), worker(1, 0.03)
    assert verdict_of(evidence(0.015, 0.001, near, cores=2)).cause.name == "decode"


def test_no_loop_is_promised_more_than_its_step_allows() -> None:
    fast = worker(0, 0.08, waited_for_s=4), worker(1, 0.01, idle_s=7)
    for stepped, times in ((0.001, "4.5"), (0.02, "2.0")):
        cause = verdict_of(evidence(0.02, stepped, fast)).cause
        assert cause is not None and cause.name == "worker" and f"up to {times} times" in cause.effect


def test_cores_that_others_have_are_no_ones_to_promise() -> None:
    seen = evidence(0.06, 0.001, two(0.12, cpu_share=0.25, delayed_share=0.75), cores=2)
    cause = verdict_of(seen).cause
    assert (
        cause is not None
        and cause.name == "decode"
        and "workers got 0.5; other processes have the rest" in cause.effect
    )
    assert "2 workers give at most 16 batches/s, now 16 batches/s" in cause.effect  # and not 67
    assert any("workers wait for a core 75%" in note for note in verdict_of(seen).notes)
    # a worker whose core others had is no straggler
    slow = worker(0, 0.08, delayed_share=0.9, cpu_share=0.1, waited_for_s=4), worker(1, 0.01)
    assert verdict_of(evidence(0.02, 0.001, slow)).cause.name != "worker"


def test_a_loop_that_hardly_waits() -> None:
    verdict = verdict_of(evidence(0.0001, 0.02, (*two(0.01), *two(0.01)), ready_batches=6.5))
    assert (verdict.kind, verdict.sure, verdict.cause) == ("consumer-bound", True, None)
    assert "6.5 batches were ready" in verdict.text and "2 workers of 4 would be enough" in verdict.text
    verdict = verdict_of(evidence(0.001, 0.016, two(0.02)))
    assert (verdict.kind, verdict.sure) == ("balanced", False)


UNSURE = {
    "few batches": evidence(0.02, 0.005, two(), wait=times(0.02, 30), step=times(0.005, 30)),
    "a short time": evidence(0.0005, 0.0005, two()),
    "shares that vary": evidence(0.004, 0.02, two(0.05), shares=(0, 0.6) * 4),
    "no log": evidence(0.02, 0.005, two(), shares=()),
    "workers that are not busy": evidence(0.015, 0.005, two(0.04, slot_wait_s=3.0)),
    "workers that do hardly anything": evidence(0.015, 0.005, two(0.01, slot_wait_s=9.0)),
    "half on a core": evidence(0.015, 0.001, two(0.032, cpu_share=0.55), cores=2),
}


@pytest.mark.parametrize("case", UNSURE)
def test_what_is_not_clear_is_not_sure(case: str) -> None:
    verdict = verdict_of(UNSURE[case])
    assert verdict.kind == "input-bound" and not verdict.sure and "likely" in verdict.text


def test_nothing_to_judge() -> None:
    verdict = verdict_of(evidence(batches=0, input_wait=None))
    assert (verdict.kind, verdict.share, verdict.sure) == ("unknown", None, False)
    assert "iterate over the loader first" in str(shmloader.DataLoader([1, 2]).report())


NOTES: dict[str, tuple[dict[str, Any], str]] = {
    "copies": ({"copied_spare": 62, "held_batches": 3}, "31% of the batches are copied out: your loop keeps 3"),
    "kept for ever": ({"copied_spare": 200, "held_batches": None}, "because your loop holds"),
    "kept by a worker": ({"copied_kept": 2}, "2 batches copied out, because a collate function"),
    "not locked": ({"copied_unlocked": 100}, "not page-locked yet"),
    "/dev/shm": ({"moved_slots": 3}, "/dev/shm is too small: 3 slots of the ring moved to a memfd"),
    "growth": ({"grown_slots": 90}, "slots had to grow 90 times"),
    "one grown": ({"grown_slots": 1, "taken_batches": 5}, "slots had to grow 1 time:"),
    "bad samples": ({"bad_samples": 2}, "2 samples raised and were replaced"),
    "one bad sample": ({"bad_samples": 1}, "1 sample raised and was replaced"),
    "deaths": ({"worker_deaths": 2}, "2 workers died and were replaced"),
    "one death": ({"worker_deaths": 1}, "1 worker died and was replaced"),
    "off the ring": ({"why_not_ring": "num_workers is 0"}, "only next() is measured"),
}


@pytest.mark.parametrize("case", NOTES)
def test_notes(case: str) -> None:
    stats, says = NOTES[case]
    assert any(says in note for note in verdict_of(evidence(0.0001, 0.02, two(0.01), **stats)).notes)
    assert not verdict_of(evidence(0.0001, 0.02, two(0.01))).notes


def test_the_slowest_function_has_a_name_and_a_line() -> None:
    hot = (Hot("PIL.Image.convert", "dataset.py", 41, 0.83),)
    cause = verdict_of(evidence(0.015, 0.001, two(0.032), cores=2, hot=hot)).cause
    assert cause is not None and "83% in PIL.Image.convert, dataset.py:41" in cause.why
    hot = (Hot("load", os.fsdecode(b"donn\xe9es.py"), 41, 0.83),)  # no UTF-8
    cause = verdict_of(evidence(0.015, 0.001, two(0.032), cores=2, hot=hot)).cause
    assert cause is not None and rb"in load, donn\udce9es.py:41" in cause.why.encode()


def test_a_report_since_the_last_one_judges_only_the_batches_since(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[list[Taken]] = []
    monkeypatch.setattr("shmloader.statistics.evidence.shares_of", lambda log: judged.append(log) or [])
    loader = shmloader.DataLoader(Range(), batch_size=2, num_workers=1)
    iterate(loader)
    loader.report("last")
    iterate(loader)
    loader.report("last")
    loader.report()
    assert [len(log) for log in judged] == [20, 20, 40]


def test_shares_of_blocks() -> None:
    def log(waits: list[float], epoch: int = 0) -> list[Taken]:
        taken, at = [], 1_000_000_000
        for number, wait in enumerate(waits):
            asked, handed_out = at, at + int(wait * 1e9)
            stamps = (at, at, at, at, asked, handed_out, handed_out, 0)
            taken.append(Taken(number, number, *stamps, epoch, 0, 0, 1))
            at = handed_out + 1_000_000  # the step
        return taken

    assert shares_of(log([0.001] * 15)) == []
    assert shares_of(log([0.001] * 80)) == pytest.approx([0.5] * BLOCKS, rel=0.01)
    half = shares_of(log([0.0] * 40 + [0.003] * 40))
    assert half[0] == 0 and half[-1] == pytest.approx(0.75, rel=0.01)
    assert shares_of([each._replace(chunk=1) for each in log([0.001] * 80)]) == []


# ----------------------------------------------------------------------------------------------------- what it is


class Range(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index])


@pytest.fixture
def loader() -> Any:
    loader = shmloader.DataLoader(Range(), batch_size=2, num_workers=2)
    iterate(loader)
    return loader


def test_a_report_is_plain_text(loader: Any) -> None:
    text = str(loader.report())
    assert text.split(" (")[0] in ("input-bound", "balanced", "consumer-bound")
    assert "measured: 20 batches in" in text and "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 112
    assert [line.split()[0] for line in text.splitlines()[-3:]] == ["worker", "0", "1"]
    assert isinstance(loader.report().verdict, Verdict) and loader.report("epoch").stats.since == "epoch"


def test_in_colour(loader: Any) -> None:
    console = pytest.importorskip("rich.console")
    with open("/dev/null", "w") as nowhere:
        terminal = console.Console(file=nowhere, force_terminal=True, width=120, record=True)
        terminal.print(loader.report())
        text = terminal.export_text()
    assert "measured" in text and "waited for" in text


def test_a_picture(loader: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    loader.report().plot(tmp_path / "wait.svg")
    drawn = (tmp_path / "wait.svg").read_text()
    assert drawn.startswith("<?xml") and len(drawn) > 10_000


def test_no_picture(loader: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(ValueError, match=r"there is nothing to draw. No batch was taken from a ring yet"):
        dataclasses.replace(loader.report(), log=()).plot(tmp_path / "wait.png")
    real = builtins.__import__

    def without(name: str, *more: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        ImportError, match=r"plot\(\) needs matplotlib, which is not installed. Run pip install matplotlib"
    ):
        loader.report().plot(tmp_path / "wait.png")


def test_other_ranks_are_asked_only_where_there_are_some(loader: Any) -> None:
    with pytest.raises((RuntimeError, ValueError), match="process group has not been initialized"):
        loader.report(ranks=True)


def test_the_verdict_on_a_single_epoch_leaves_out_its_start() -> None:
    one = {"wait": Times(200, 1.02, 0.0051, 1e-4, 1e-4, 1), "first_wait": times(1.0, 1), "starting_s": 1.0}
    verdict = verdict_of(evidence(0.0001, 0.01, two(0.001), input_wait=0.33, **one))
    assert (verdict.kind, verdict.cause) == ("consumer-bound", None)
    assert "per batch, not counting the wait for each worker's first batch (1.0 s in all)" in verdict.text
    single = verdict_of(evidence(0.0001, 0.01, input_wait=0.33, **one))
    assert "per batch, not counting the wait for the first batch (1.0 s)" in single.text
    verdict = verdict_of(evidence(0.002, 0.01, two(0.02), input_wait=0.42, **one | {"wait": Times(200, 1.4, 0.007)}))
    assert verdict.kind == "input-bound" and verdict.cause.name == "workers"
