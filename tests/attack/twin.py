"""The program whose outcome is expected: the same with torch's loader; where torch cannot do it, a calm one of ours."""

from __future__ import annotations

from dataclasses import replace

from tests.attack.program import Do, Program
from tests.attack.samplers import CALLING, DRAWS
from tests.attack.source import OURS, TORCH, without_lost

OURS_ALONE = (
    "spare_slots",
    "schedule",
    "chunk_size",
    "sample_seeds",
    "prefetch_epochs",
    "max_ring_bytes",
    "on_bad_sample",
    "on_worker_death",
    "ring_memory",
    "device",
)
NOT_TORCHS = (*OURS_ALONE, "multiprocessing_context")  # torch's workers may die of what they are sent


def seeds_samples(program: Program) -> bool:
    """Whether each sample is seeded by itself, so that random samples are not torch's."""
    return bool(program.get("schedule") == "steal" or program.get("sample_seeds"))


def raises_elsewhere(program: Program) -> bool:
    """Whether a sampler is asked earlier than torch's loader asks it, so that its error takes another batch's place."""
    return bool(program.get("schedule") or program.get("chunk_size") or program.get("prefetch_epochs"))


def is_compared_with_ours(program: Program) -> bool:
    """Whether torch's loader cannot give the same samples."""
    return bool(program.get("on_bad_sample") or (program.data.noise and seeds_samples(program)))


def is_followed(program: Program) -> bool:
    """Whether workers of ours follow a set_epoch() that torch's do not hear of, so that the twin has none."""
    persistent = program.get("persistent_workers") and "epoch" in program.data.kind
    return program.order.kind in CALLING or bool(persistent and not program.data.noise)


def twin(program: Program) -> tuple[Program, str]:
    """The program, and the library whose loader it is run with."""
    calm = program.with_options(**dict.fromkeys(NOT_TORCHS))
    if program.data.habit == "exits once":
        calm = replace(calm, data=replace(calm.data, habit=""))
    if is_followed(program):
        return _without_workers(calm), TORCH
    skips = program.get("on_bad_sample")
    if is_compared_with_ours(program):
        # How many batches are drawn in advance depends on the workers.  So does which one a sampler's error replaces.
        workers = (program.workers or None) if program.order.kind == "raising" else 1
        calm = replace(calm.with_options(num_workers=workers), actions=tuple(_undisturbed(program)))
        return calm.with_options(
            sample_seeds=seeds_samples(program) or None,
            on_bad_sample=skips,
        ), OURS
    if program.order.kind == "raising" and raises_elsewhere(program):
        gone = ("num_workers", "prefetch_factor", "persistent_workers", "timeout", "in_order")
        calm = calm.with_options(**dict.fromkeys(gone))
    return (_without_workers(calm) if _needs_no_workers(calm) else calm), TORCH


def _needs_no_workers(program: Program) -> bool:
    """Whether torch's loader gives the same without workers, in half the time."""
    data, order = program.data, program.order
    if (
        not program.workers
        or data.kind.startswith("stream")
        or data.noise
        or data.habit not in ("", "keeps")
        or program.loader
        or program.does("hook")
    ):
        return False
    if program.get("persistent_workers") or program.get("pin_memory") or order.kind in ("raising", "odd batches"):
        return False
    return order.kind not in DRAWS or _ends_each_epoch(program)


def _ends_each_epoch(program: Program) -> bool:
    """Whether a sampler is asked for nothing, or for all, before the next one draws from the same generator."""
    is_over, was_begun = True, False
    for action in [*without_lost(program.actions), Do("begin")]:
        begins = action.verb == "begin" or (action.verb == "go on" and is_over)
        if action.verb == "nest" or (begins and not is_over):
            return False
        if was_begun and action.verb not in ("take", "take in thread", "rest"):
            return False
        is_over, was_begun = (is_over and not begins) or action.verb == "rest", begins
    return True


def _without_workers(program: Program) -> Program:
    gone = ("num_workers", "prefetch_factor", "timeout", "in_order", "persistent_workers")
    return program.with_options(**dict.fromkeys(gone))


def _undisturbed(program: Program) -> list[Do]:
    left_out = ("save", "resume", "start", "close iterator")
    return [do for do in without_lost(program.actions) if do.verb not in left_out]
