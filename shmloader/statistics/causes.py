"""Why a loop waits for its batches: one function for each cause, which says None where it is not that.

The order is that of verdict.py: a cause that hides others comes first.  A cause is sure where what was measured is well
beyond the limit, so that a busy machine cannot have made it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shmloader.statistics.evidence import DELAYED, Evidence

SLOW = 2.0  # times as long as the others' median makes a straggler
IDLE = 0.25  # of the workers' time, while the trainer waits
BUSY = 0.25  # of their time, below which it is not for lack of workers that a loop waits
COPIED = 0.1  # of the batches
ENDLESS = 50  # workers a core, that nobody would ever start
BLOCKED = 4  # workers a core, where they read or sleep, before more of them are not the advice any more


@dataclass(frozen=True)
class Cause:
    """Why a loop waits.

    Attributes:
        name: "device", "rank", "first_batch", "spare_slots", "hand_out", "worker", "order", "cores", "workers",
            "collate", "read" or "decode".
        why: What was seen.
        change: What to change.
        effect: What that would bring, by what was measured.
        sure: Whether it is well beyond what chance can do.
    """

    name: str
    why: str
    change: str
    effect: str
    sure: bool


def device(of: Evidence) -> Cause | None:
    """The copy to the device takes as long as the whole step."""
    sent = of.stats.to_device
    cycle = of.wait_s + of.step_s
    if sent is None or not cycle:
        return None
    part = sent.p50_s / cycle
    # the loop waits, though batches were there whenever the thread that copies asked the ring
    between = of.steady_share >= 0.1 and (of.stats.empty_share or 0.0) < 0.25
    if part < (0.3 if between else 0.7):
        return None
    size = of.stats.batch_bytes or 0.0
    unlocked = (of.stats.copied_unlocked or 0) / max(1, of.stats.taken_batches or 0)
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


def rank(of: Evidence) -> Cause | None:
    """Another rank's loader is slower than the others', and all wait for it in the step; or this one's is."""
    if len(of.ranks) < 2:
        return None
    slowest = max(range(len(of.ranks)), key=lambda number: of.ranks[number])
    others = sorted(wait for number, wait in enumerate(of.ranks) if number != slowest)
    usual, longest = others[len(others) // 2], of.ranks[slowest]
    cycle = of.wait_s + of.step_s
    if longest < 2 * usual or longest - usual < 0.1 * cycle:
        return None
    return Cause(
        "rank",
        f"rank {slowest} waits {ms(longest)} a batch for its loader, the others {ms(usual)}; in a step that "
        "synchronises, all of them wait for it",
        f"look at loader.report() on rank {slowest}: its storage, its cores, or what it was given to load",
        f"a step would take up to {ms(longest - usual)} less, of {ms(cycle)}",
        longest >= 3 * usual and longest - usual >= 0.2 * cycle,
    )


def first_batch(of: Evidence) -> Cause | None:
    """Most of the waiting is for the first batch of each epoch."""
    first, rest = of.stats.first_wait, of.steady_share
    if first.count < 2 or of.first_share < 0.5 or rest >= 0.25:
        return None
    settings = of.settings
    early = of.stats.why_not_ring is None and settings.in_order and not settings.is_stream
    if not settings.num_workers:
        change = "num_workers=2, persistent_workers=True, so that the first batch is made before the loop asks for it"
    elif not settings.persistent_workers:
        change = "persistent_workers=True, so that workers and what they have opened live on"
        if early:
            change += "; prefetch_epochs=True as well, so that the next epoch's first batches are made during this one"
    elif not settings.prefetch_epochs and early:
        change = "prefetch_epochs=True, so that the next epoch's first batches are made during this one"
    elif of.stats.why_not_ring is not None:
        change = "have workers open and read less before their first batch"
    else:
        change = "call loader.start() before your work between the epochs, or before you load the model"
    each = of.stats.starting_s / first.count
    return Cause(
        "first_batch",
        f"the loop waits {ms(each)} until each worker has made its first batch of an epoch. That is "
        f"{of.first_share:.0%} of all waiting; after it, waiting is {rest:.1%} of the time",
        change,
        f"up to {ms(each)} less for each epoch",
        of.first_share >= 0.7 and rest < 0.05 and of.stats.starting_s >= 0.05,
    )


def spare_slots(of: Evidence) -> Cause | None:
    """The loop holds more batches than may be lent, and the copies take time."""
    note = copies(of)
    waits = of.stats.waits or {}
    share = waits.get("hand_out", 0.0) / of.stats.wait.total_s if of.stats.wait.total_s else 0.0
    if note is None or share < 0.5:
        return None
    copied = (of.stats.copied_spare or 0) / max(1, of.stats.taken_batches or 0)
    why, change = note
    return Cause("spare_slots", why, change, f"up to {share:.0%} less waiting, because no copies are made",
                 copied >= 2 * COPIED and share >= 0.6)  # fmt: skip


def copies(of: Evidence) -> tuple[str, str] | None:
    """How many batches were copied out since spare_slots were lent, and what to change; None if hardly any were."""
    copied = (of.stats.copied_spare or 0) / max(1, of.stats.taken_batches or 0)
    if copied < COPIED / 2:
        return None
    lent, keeps = of.settings.spare_slots, of.stats.held_batches
    if copied < 1 and lent:  # so many of each `keeps` in a row are copies
        keeps = max(keeps or 0, round(lent / (1 - copied)))
    if keeps is None or keeps <= lent:
        return (
            f"{copied:.0%} of the batches are copied out, because your loop holds {lent} that lie in the ring",
            "clone what you keep for long and drop the batch, or raise spare_slots",
        )
    why = f"{copied:.0%} of the batches are copied out: your loop keeps {keeps}, and the ring lends spare_slots={lent}"
    if (keeps - lent) * (of.stats.batch_bytes or 0.0) > of.memory_bytes:
        return why, f"drop batches earlier (del batch), or keep less of each; there is no memory for {keeps} of them"
    return why, f"spare_slots={keeps}, or drop batches earlier (del batch)"


def hand_out(of: Evidence) -> Cause | None:
    """Next() itself takes the time: the sampler, or so small batches that there is nothing else."""
    waits = of.stats.waits
    if waits is None or not of.stats.wait.total_s:
        return None
    own = waits["hand_out"] + waits["open"]
    if own < 0.6 * of.stats.wait.total_s:
        return None
    each = own / max(1, of.stats.wait.count)
    samples = (of.stats.samples or 0) / max(1, of.stats.taken_batches or 0)
    if each < 100e-6:
        change = f"larger batches: {samples:.0f} samples take the loop {ms(of.step_s)}"
        effect = f"with twice as many samples in each, {ms(each)} is saved for every other batch"
    else:
        change = "use a quicker sampler; the trainer draws from it each time it hands out a batch"
        effect = f"up to {ms(each)} less a batch"
    return Cause(
        "hand_out",
        f"batches are ready, and next() itself takes {ms(each)} to draw from the sampler and hand a batch over",
        change,
        effect,
        own >= 0.8 * of.stats.wait.total_s,
    )


def no_workers(of: Evidence) -> Cause | None:
    """There are no workers: the loop waits while its batches are made."""
    if of.settings.num_workers or not of.wait_s:
        return None
    most = max(1, int(of.cores))
    needed = math.ceil(of.wait_s / of.step_s) if of.step_s else most
    count = max(1, min(needed, most))
    best = max(of.step_s, of.wait_s / count)
    persists = ", persistent_workers=True" if of.settings.prefetch_epochs else ""  # which it needs, with workers
    return Cause(
        "workers",
        f"batches are made in this process, {ms(of.wait_s)} each, while your loop waits",
        f"num_workers={count}{persists}{shared(of)}",
        f"up to {rate(1 / best)}, now {rate(of.stats.batches_per_s)}; {plural(needed, 'worker')} would feed this loop, "
        f"and this machine has {plural(of.cores, 'core')}",
        True,
    )


def worker(of: Evidence) -> Cause | None:
    """One worker is slower than the others, and batches come in order."""
    found = of.straggler
    if found is None or of.settings.schedule == "steal":
        return None
    slow, times = found
    waited = of.workers_s("waited_for_s")
    share = slow.waited_for_s / waited if waited else 0.0
    count = len(of.workers)
    if times < SLOW or share < max(0.5, 1.5 / count if count > 2 else 0.7):
        return None
    each = [of.each_s(one) for one in of.workers]
    faster = sum(1 / time for time in each) / (count / max(each))
    change = f"{steal(of)}, so that the others take over its work; or find out what that worker does differently"
    if of.settings.is_stream:  # no other worker can take it over
        change = "find out what that worker does differently, and how large its part of the stream is"
    return Cause(
        "worker",
        f"worker {slow.worker} takes {times:.1f} times as long for a batch as the others. {share:.0%} of the waiting "
        "is for its batches",
        change,
        f"up to {of.times_faster(faster):.1f} times as many batches from the same workers",
        times >= 1.5 * SLOW and share >= 0.7,
    )


def order(of: Evidence) -> Cause | None:
    """Workers stand idle while the trainer waits: some batches take much longer, and those behind them must wait."""
    if len(of.workers) < 2 or of.idle_share < IDLE:
        return None
    if of.settings.is_stream:  # no other worker can take it over
        change = "a larger prefetch_factor"
        change += "; or in_order=False, if you do not need the order" if of.settings.in_order else ""
    elif of.settings.schedule == "steal":
        change = "a larger prefetch_factor"
        if of.settings.can_be_cut:
            change = f"{smaller_chunks(of)}, so that all workers make the batch that is waited for; or {change}"
    else:
        change = f"{steal(of)}, so that idle workers make what comes next"
        change += f"; or {smaller_chunks(of)}" if of.settings.can_be_cut and of.settings.in_order else ""
    return Cause(
        "order",
        f"workers are idle for {of.idle_share:.0%} of their time while the trainer waits for one batch: a slow batch "
        "holds up those behind it",
        change,
        f"up to {of.times_faster(1 / (1 - of.idle_share)):.1f} times as many batches from the same workers",
        of.idle_share >= 1.4 * IDLE,
    )


def cores(of: Evidence) -> Cause | None:
    """More workers than cores, which take the cores from one another."""
    count = len(of.workers)
    if count <= of.cores or of.delayed_share < DELAYED or of.runs_share < 0.5:
        return None
    fewer = max(1, int(of.cores))
    return Cause(
        "cores",
        f"{count} workers share {plural(of.cores, 'core')}, and wait for one {of.delayed_share:.0%} of the time",
        f"num_workers={fewer}; for more batches/s the work itself must shrink: {CHEAPER['decode']}",
        f"the same {rate(of.stats.batches_per_s)}, with {count - fewer} processes less, and their memory",
        count >= 1.5 * of.cores and of.delayed_share >= 1.4 * DELAYED,
    )


def work(of: Evidence) -> Cause | None:
    """Workers are at work all the time, and it is not enough: too few of them, or too much work."""
    if not of.workers or not of.work_s or of.busy_share < BUSY:
        return None
    count, needed = max(len(of.workers), of.settings.num_workers), of.needed_workers
    most = min(of.cores if of.runs_share >= 0.5 else BLOCKED * of.cores, of.held_workers)
    stage = "collate" if of.collate_share >= 0.5 else "decode" if of.runs_share >= 0.5 else "read"
    where = {"collate": "collating", "decode": "the samples, on a core", "read": "the samples, waiting (disk, network)"}
    share = of.collate_share if stage == "collate" else 1 - of.collate_share
    why = f"a batch takes {ms(of.work_s)} of a worker's time, {share:.0%} of it for {where[stage]}{hottest(of)}"
    feeds = f"{plural(needed, 'worker')} would feed this loop ({ms(of.step_s)} a step)"
    if endless := needed > ENDLESS * of.cores:
        feeds = f"your loop does almost nothing itself ({ms(of.step_s)} a step), so it always waits"
    busy = of.busy_share >= 0.85
    if stage != "collate" and count < needed <= most:
        effect = f"{feeds}: {rate(of.rate(needed))}, now {rate(of.stats.batches_per_s)}"
        return Cause("workers", why, f"num_workers={needed}{shared(of)}", effect, busy and needed >= count * 1.3)
    more = max(1, int(most))
    change = CHEAPER[stage]
    if more > count:
        change = f"num_workers={more}{shared(of)}, and {change}"
    effect = f"{feeds}; this machine has {plural(of.cores, 'core')}"
    if most == of.held_workers:
        effect += f", and memory for the batches of {plural(int(most), 'worker')}"
    if stage != "read" and not endless:
        effect += f", and it would take {of.needed_cores:.1f}"
    if stage != "read" and of.got_cores < 0.8 * min(of.cores, count):
        effect += f" (workers got {of.got_cores:.1f}; other processes have the rest)"
    effect += f". {plural(max(more, count), 'worker')} give at most {rate(of.rate(max(more, count)))}, now "
    effect += rate(of.stats.batches_per_s)
    margin = abs(of.runs_share - 0.5) > 0.2 and abs(of.collate_share - 0.5) > 0.1
    return Cause(stage, why, change, effect, busy and margin and (stage == "collate" or needed > 1.3 * most))


CHEAPER = {
    "collate": "return tensors of one shape, which are collated straight into the slot; or pad and stack in "
    "__getitem__, or collate in C",
    "decode": "make a sample cheaper: decode only the crop (shmloader.images), use smaller files, or cache what does "
    "not change",
    "read": "read faster: from a local disk, from larger files, or many samples at once (__getitems__)",
}


def steal(of: Evidence) -> str:
    """The option by which workers take over what others do not come to, as this loader may be given it."""
    return 'schedule="steal"' + ("" if of.settings.in_order else " in place of in_order=False")


def smaller_chunks(of: Evidence) -> str:
    """The option by which workers make a batch together."""
    return "chunk_size" if of.settings.chunk_size is None else f"a chunk_size below {of.settings.chunk_size}"


def shared(of: Evidence) -> str:
    """The condition for more workers on a stream: each has a copy of it, so each must read a part of its own."""
    sharded = " (the stream must give each worker its own part, by get_worker_info(); otherwise samples repeat)"
    return sharded if of.settings.is_stream else ""


def hottest(of: Evidence) -> str:
    """The function that takes the most, if that is known."""
    if not of.stats.hot:
        return ""
    hot = of.stats.hot[0]
    where = f", {hot.file}:{hot.line}" if hot.file else ""
    said = f"; {hot.share:.0%} in {hot.function}{where}"
    return said.encode(errors="backslashreplace").decode()  # a file's name need not be UTF-8, but what is printed must


def ms(time: float) -> str:
    """A time in seconds, as people say it."""
    return f"{time * 1e6:.0f} us" if time < 1e-3 else f"{time * 1e3:.1f} ms" if time < 1 else f"{time:.1f} s"


def rate(batches: float) -> str:
    return f"{batches:,.0f} batches/s" if batches >= 10 else f"{batches:.1f} batches/s"


def plural(number: float, what: str, ending: str = "s") -> str:
    figure = f"{number:g}" if isinstance(number, float) else str(number)
    return f"{figure} {what}{ending if number != 1 else ''}"


def were(number: int) -> str:
    return "was" if number == 1 else "were"
