"""Why a loop waits for its batches, and what loader.report() recommends, such as num_workers or schedule="steal".
Each cause is a function, which returns None below the cause's limits.

verdict.py has their order: a cause that hides others comes first.  A cause is sure if the measured value is well beyond
its limit, so that a busy machine cannot have produced it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shmloader.statistics.evidence import DELAYED, Evidence

SLOW = 2.0  # times the others' median: such a worker is a straggler
IDLE = 0.25  # of the workers' time, while the trainer waits
BUSY = 0.25  # of their time: below it, more workers do not help
COPIED = 0.1  # of the batches
ENDLESS = 50  # workers a core: more than anybody would start
BLOCKED = 4  # workers a core, if they mostly wait for a disk or sleep: the report recommends no more


@dataclass(frozen=True)
class Cause:
    """Why a loop waits.

    Attributes:
        name: "device", "rank", "first_batch", "spare_slots", "hand_out", "worker", "order", "cores", "workers",
            "collate", "read" or "decode".
        why: The measurements that show it.
        change: What to change.
        effect: What the change would gain, computed from the measurements.
        sure: Whether the measurements are so clear that chance is excluded.
    """

    name: str
    why: str
    change: str
    effect: str
    sure: bool


def device(evidence: Evidence) -> Cause | None:
    """The copy to the device takes as long as the whole step."""
    sent = evidence.stats.to_device
    cycle = evidence.wait_s + evidence.step_s
    if sent is None or not cycle:
        return None
    part = sent.p50_s / cycle
    # the loop waits, although batches were ready whenever the thread that copies asked the ring
    between = evidence.steady_share >= 0.1 and (evidence.stats.empty_share or 0.0) < 0.25
    if part < (0.3 if between else 0.7):
        return None
    size = evidence.stats.batch_bytes or 0.0
    unlocked = (evidence.stats.copied_unlocked or 0) / max(1, evidence.stats.taken_batches or 0)
    change = "send smaller batches: images as bytes, with on_device=normalize_on_device(...) to make them floats there"
    if unlocked > COPIED:
        change = "see why slots are not page-locked (a RuntimeWarning has the reason); then " + change
    return Cause(
        "device",
        f"the copy of a batch to the device takes {ms(sent.p50_s)} of the {ms(cycle)} from one batch to the next"
        + (f" ({size / 1e6:.1f} MB at {size / sent.p50_s / 1e9:.1f} GB/s)" if size >= 1e5 else ""),
        change,
        f"floats sent as bytes are a quarter: {ms(sent.p50_s / 4)} a batch instead of {ms(sent.p50_s)}",
        part >= 0.85 and sent.count >= 4,
    )


def rank(evidence: Evidence) -> Cause | None:
    """The loader of one rank is slower than the others', and all ranks wait for it in the step."""
    if len(evidence.ranks) < 2:
        return None
    slowest = max(range(len(evidence.ranks)), key=lambda number: evidence.ranks[number])
    others = sorted(wait for number, wait in enumerate(evidence.ranks) if number != slowest)
    usual, longest = others[len(others) // 2], evidence.ranks[slowest]
    cycle = evidence.wait_s + evidence.step_s
    if longest < 2 * usual or longest - usual < 0.1 * cycle:
        return None
    return Cause(
        "rank",
        f"rank {slowest} waits {ms(longest)} a batch for its loader, the others {ms(usual)}; in a step that "
        "synchronises, all of them wait for it",
        f"look at loader.report() on rank {slowest}: its storage, its cores, and its share of the samples",
        f"a step would take up to {ms(longest - usual)} less, of {ms(cycle)}",
        longest >= 3 * usual and longest - usual >= 0.2 * cycle,
    )


def first_batch(evidence: Evidence) -> Cause | None:
    """Most of the waiting is for the first batch of each epoch."""
    first, rest = evidence.stats.first_wait, evidence.steady_share
    if first.count < 2 or evidence.first_share < 0.5 or rest >= 0.25:
        return None
    settings = evidence.settings
    if not settings.num_workers:
        change = "num_workers=2, persistent_workers=True, so that the first batch is made before the loop asks for it"
    elif not settings.persistent_workers:
        change = "persistent_workers=True, so that workers and what they have opened live on"
    elif evidence.stats.why_not_ring is not None:
        change = "have workers open and read less before their first batch"
    else:
        change = "call iter(loader) before your work between the epochs, or before you load the model"
        if settings.num_workers > 1 and settings.can_be_cut and settings.in_order and not settings.is_stream:
            change = f"{smaller_chunks(evidence)}, so that all workers make the first batch; or {change}"
    each = evidence.stats.starting_s / first.count
    return Cause(
        "first_batch",
        f"the loop waits {ms(each)} until each worker has made its first batch of an epoch. That is "
        f"{evidence.first_share:.0%} of all waiting; after it, waiting is {rest:.1%} of the time",
        change,
        f"up to {ms(each)} less for each epoch",
        evidence.first_share >= 0.7 and rest < 0.05 and evidence.stats.starting_s >= 0.05,
    )


def spare_slots(evidence: Evidence) -> Cause | None:
    """The loop holds more batches than the ring lends, and the copies take time."""
    note = copies(evidence)
    waits = evidence.stats.waits or {}
    share = waits.get("hand_out", 0.0) / evidence.stats.wait.total_s if evidence.stats.wait.total_s else 0.0
    if note is None or share < 0.5:
        return None
    copied = (evidence.stats.copied_spare or 0) / max(1, evidence.stats.taken_batches or 0)
    why, change = note
    return Cause("spare_slots", why, change, f"up to {share:.0%} less waiting, because no copies are made",
                 copied >= 2 * COPIED and share >= 0.6)  # fmt: skip


def copies(evidence: Evidence) -> tuple[str, str] | None:
    """How many batches were copied out because the ring lends no more, and what to change; None if hardly any were."""
    copied = (evidence.stats.copied_spare or 0) / max(1, evidence.stats.taken_batches or 0)
    if copied < COPIED / 2:
        return None
    lent, keeps = evidence.settings.spare_slots, evidence.stats.held_batches
    if copied < 1 and lent:  # of `keeps` batches in a row, all but `lent` are copies
        keeps = max(keeps or 0, round(lent / (1 - copied)))
    if keeps is None or keeps <= lent:
        return (
            f"{copied:.0%} of the batches are copied out, because your loop holds {lent} that lie in the ring",
            "clone what you keep for long and drop the batch, or raise spare_slots",
        )
    why = f"{copied:.0%} of the batches are copied out: your loop keeps {keeps}, and the ring lends spare_slots={lent}"
    if (keeps - lent) * (evidence.stats.batch_bytes or 0.0) > evidence.memory_bytes:
        return why, f"drop batches earlier (del batch), or keep less of each; there is no memory for {keeps} of them"
    return why, f"spare_slots={keeps}, or drop batches earlier (del batch)"


def hand_out(evidence: Evidence) -> Cause | None:
    """The time is spent in next() itself: in the sampler, or handing out many small batches."""
    waits = evidence.stats.waits
    if waits is None or not evidence.stats.wait.total_s:
        return None
    own = waits["hand_out"] + waits["open"]
    if own < 0.6 * evidence.stats.wait.total_s:
        return None
    each = own / max(1, evidence.stats.wait.count)
    samples = (evidence.stats.samples or 0) / max(1, evidence.stats.taken_batches or 0)
    if each < 100e-6:
        change = f"larger batches: {samples:.0f} samples take the loop {ms(evidence.step_s)}"
        effect = f"with twice as many samples in each, {ms(each)} is saved for every other batch"
    else:
        change = "use a quicker sampler; the trainer draws from it each time it hands out a batch"
        effect = f"up to {ms(each)} less a batch"
    return Cause(
        "hand_out",
        f"batches are ready, and next() itself takes {ms(each)} to draw from the sampler and hand a batch over",
        change,
        effect,
        own >= 0.8 * evidence.stats.wait.total_s,
    )


def no_workers(evidence: Evidence) -> Cause | None:
    """There are no workers, so the loop waits while its batches are made."""
    if evidence.settings.num_workers or not evidence.wait_s:
        return None
    most = max(1, int(evidence.cores))
    needed = math.ceil(evidence.wait_s / evidence.step_s) if evidence.step_s else most
    count = max(1, min(needed, most))
    best = max(evidence.step_s, evidence.wait_s / count)
    return Cause(
        "workers",
        f"batches are made in this process, {ms(evidence.wait_s)} each, while your loop waits",
        f"num_workers={count}{shared(evidence)}",
        f"up to {rate(1 / best)}, now {rate(evidence.stats.batches_per_s)}; {plural(needed, 'worker')} would feed "
        f"this loop, and this machine has {plural(evidence.cores, 'core')}",
        True,
    )


def worker(evidence: Evidence) -> Cause | None:
    """One worker is slower than the others, and batches come in order."""
    found = evidence.straggler
    if found is None or evidence.settings.schedule == "steal":
        return None
    slow, times = found
    waited = evidence.workers_s("waited_for_s")
    share = slow.waited_for_s / waited if waited else 0.0
    count = len(evidence.workers)
    if times < SLOW or share < max(0.5, 1.5 / count if count > 2 else 0.7):
        return None
    each = [evidence.each_s(one) for one in evidence.workers]
    faster = sum(1 / time for time in each) / (count / max(each))
    change = f"{steal(evidence)}, so that the others take over its work; or find out what that worker does differently"
    if evidence.settings.is_stream:  # no other worker can take it over
        change = "find out what that worker does differently, and how large its part of the stream is"
    return Cause(
        "worker",
        f"worker {slow.worker} takes {times:.1f} times as long for a batch as the others. {share:.0%} of the waiting "
        "is for its batches",
        change,
        f"up to {evidence.times_faster(faster):.1f} times as many batches from the same workers",
        times >= 1.5 * SLOW and share >= 0.7,
    )


def order(evidence: Evidence) -> Cause | None:
    """Workers are idle while the trainer waits: some batches take much longer, and later ones must wait for them."""
    if len(evidence.workers) < 2 or evidence.idle_share < IDLE:
        return None
    if evidence.settings.is_stream:  # no other worker can take it over
        change = "a larger prefetch_factor"
        change += "; or in_order=False, if you do not need the order" if evidence.settings.in_order else ""
    elif evidence.settings.schedule == "steal":
        change = "a larger prefetch_factor"
        if evidence.settings.can_be_cut:
            change = f"{smaller_chunks(evidence)}, so that all workers make the batch that is waited for; or {change}"
    else:
        change = f"{steal(evidence)}, so that idle workers make what comes next"
        change += (
            f"; or {smaller_chunks(evidence)}" if evidence.settings.can_be_cut and evidence.settings.in_order else ""
        )
    return Cause(
        "order",
        f"workers are idle for {evidence.idle_share:.0%} of their time while the trainer waits for one batch: a slow "
        "batch holds up those behind it",
        change,
        f"up to {evidence.times_faster(1 / (1 - evidence.idle_share)):.1f} times as many batches from the same workers",
        evidence.idle_share >= 1.4 * IDLE,
    )


def cores(evidence: Evidence) -> Cause | None:
    """There are more workers than cores, and they take the cores from one another."""
    count = len(evidence.workers) - evidence.settings.far  # far ones take cores elsewhere
    if count <= evidence.cores or evidence.delayed_share < DELAYED or evidence.runs_share < 0.5:
        return None
    fewer = max(1, int(evidence.cores))
    return Cause(
        "cores",
        f"{count} workers share {plural(evidence.cores, 'core')}, and wait for one {evidence.delayed_share:.0%} of "
        "the time",
        f"num_workers={fewer}; for more batches/s the work itself must shrink: {CHEAPER['decode']}",
        f"the same {rate(evidence.stats.batches_per_s)}, with {count - fewer} processes fewer, and less memory",
        count >= 1.5 * evidence.cores and evidence.delayed_share >= 1.4 * DELAYED,
    )


def work(evidence: Evidence) -> Cause | None:
    """Workers are always busy and cannot keep up: there are too few of them, or a batch takes too much work."""
    if not evidence.workers or not evidence.work_s or evidence.busy_share < BUSY:
        return None
    count, needed = max(len(evidence.workers), evidence.settings.num_workers), evidence.needed_workers
    most = min(evidence.cores if evidence.runs_share >= 0.5 else BLOCKED * evidence.cores, evidence.held_workers)
    stage = "collate" if evidence.collate_share >= 0.5 else "decode" if evidence.runs_share >= 0.5 else "read"
    where = {"collate": "collating", "decode": "the samples, on a core", "read": "the samples, waiting (disk, network)"}
    share = evidence.collate_share if stage == "collate" else 1 - evidence.collate_share
    hot = hottest(evidence)
    why = f"a batch takes {ms(evidence.work_s)} of a worker's time, {share:.0%} of it for {where[stage]}{hot}"
    feeds = f"{plural(needed, 'worker')} would feed this loop ({ms(evidence.step_s)} a step)"
    if endless := needed > ENDLESS * evidence.cores:
        feeds = f"your loop does almost nothing itself ({ms(evidence.step_s)} a step), so it always waits"
    busy = evidence.busy_share >= 0.85
    if stage != "collate" and count < needed <= most:
        effect = f"{feeds}: {rate(evidence.rate(needed))}, now {rate(evidence.stats.batches_per_s)}"
        return Cause(
            "workers", why, f"{in_all(evidence, needed)}{shared(evidence)}", effect, busy and needed >= count * 1.3
        )
    more = max(1, int(most))
    change = CHEAPER[stage]
    if more > count:
        change = f"{in_all(evidence, more)}{shared(evidence)}, and {change}"
    effect = f"{feeds}; this machine has {plural(evidence.cores, 'core')}"
    if most == evidence.held_workers:
        effect += f", and memory for the batches of {plural(int(most), 'worker')}"
    if stage != "read" and not endless:
        effect += f", and it would take {evidence.needed_cores:.1f}"
    if stage != "read" and evidence.got_cores < 0.8 * min(evidence.cores, count):
        effect += f" (workers got {evidence.got_cores:.1f}; other processes have the rest)"
    effect += f". {plural(max(more, count), 'worker')} give at most {rate(evidence.rate(max(more, count)))}, now "
    effect += rate(evidence.stats.batches_per_s)
    margin = abs(evidence.runs_share - 0.5) > 0.2 and abs(evidence.collate_share - 0.5) > 0.1
    return Cause(stage, why, change, effect, busy and margin and (stage == "collate" or needed > 1.3 * most))


CHEAPER = {
    "collate": "return tensors of one shape, which are collated straight into the slot; or pad and stack in "
    "__getitem__, or collate in C",
    "decode": "make a sample cheaper: decode only the crop (shmloader.images), use smaller files, or cache what does "
    "not change",
    "read": "read faster: from a local disk, from larger files, or many samples at once (__getitems__)",
}


def steal(evidence: Evidence) -> str:
    """The option by which workers take over the work of others, in the form in which this loader accepts it."""
    return 'schedule="steal"' + ("" if evidence.settings.in_order else " in place of in_order=False")


def smaller_chunks(evidence: Evidence) -> str:
    """The option by which several workers make one batch."""
    return (
        "chunk_size" if evidence.settings.chunk_size is None else f"a chunk_size below {evidence.settings.chunk_size}"
    )


def in_all(evidence: Evidence, count: int) -> str:
    """The setting with which a loader has this many workers.  Its num_workers counts the local ones alone."""
    far = evidence.settings.far
    return f"num_workers={count - far} beside {plural(far, 'far worker')}" if far else f"num_workers={count}"


def shared(evidence: Evidence) -> str:
    """For a stream, the condition for more workers: each has a copy of the stream, and must read its own part."""
    sharded = " (the stream must give each worker its own part, by get_worker_info(); otherwise samples repeat)"
    return sharded if evidence.settings.is_stream else ""


def hottest(evidence: Evidence) -> str:
    """The function in which workers spend the most time, if that is known."""
    if not evidence.stats.hot:
        return ""
    hot = evidence.stats.hot[0]
    where = f", {hot.file}:{hot.line}" if hot.file else ""
    text = f"; {hot.share:.0%} in {hot.function}{where}"
    return text.encode(errors="backslashreplace").decode()  # a file's name need not be UTF-8, but printed text must be


def ms(time: float) -> str:
    """A time in seconds, with the unit that suits it."""
    return f"{time * 1e6:.0f} us" if time < 1e-3 else f"{time * 1e3:.1f} ms" if time < 1 else f"{time:.1f} s"


def rate(batches: float) -> str:
    return f"{batches:,.0f} batches/s" if batches >= 10 else f"{batches:.1f} batches/s"


def plural(number: float, what: str, ending: str = "s") -> str:
    figure = f"{number:g}" if isinstance(number, float) else str(number)
    return f"{figure} {what}{ending if number != 1 else ''}"


def were(number: int) -> str:
    return "was" if number == 1 else "were"
