"""Checks whether a loader fits into the limits of this process: cores, open files, processes, addresses (ulimit)."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path

import torch

from shmloader.commands.doctor.finding import Finding, Wanted
from shmloader.ring.growth import in_units
from shmloader.ring.segment import Segment
from shmloader.system.cores import Cores
from shmloader.system.limits import available_processes

PROCESSES = Path("/proc")
RINGS = 2  # of each rank: for training and for validation
ENOUGH_FILES = 65536
OTHER_FILES = 64  # a training script has these open beside its rings


def cores(found: Cores, wanted: Wanted) -> Finding:
    """Whether there are cores for all workers, and whether libraries in this process see how few there are."""
    state = f"{found.affinity} of {found.machine} by affinity"
    if found.quota is not None:
        state += f", {found.quota:g} by the control group's quota"
    share = found.usable / wanted.ranks
    of_a_rank = f"{share:g} cores for each of {wanted.ranks} ranks" if wanted.ranks > 1 else f"{share:g} cores"
    threads = torch.get_num_threads()
    if found.quota is not None and threads > max(1.0, found.quota / wanted.ranks):
        return Finding(
            "cores",
            "attention",
            state,
            f"libraries that count cores see {found.affinity} (torch computes with {threads} threads here). So many "
            "threads use the quota up early in each period, and then every process waits, the workers too",
            f"OMP_NUM_THREADS={max(1, int(share))}, and num_workers for {of_a_rank}; or a larger quota",
        )
    if wanted.workers > max(1.0, share):
        return Finding(
            "cores",
            "attention",
            state,
            f"{wanted.workers} workers share {of_a_rank}. More workers than cores help if samples wait (network, "
            "disk), but not if they compute",
            "measure with `shmloader tune` how many workers help, or grant more cores",
        )
    if found.affinity < found.machine:
        return Finding("cores", "note", state, f"this process may not use the other {found.machine - found.affinity}")
    return Finding("cores", "fine", state)


def files(wanted: Wanted) -> Finding:
    """Whether a rank may open as many files as its rings need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = RINGS * (5 + 3 * wanted.workers) + OTHER_FILES
    enough = max(need, ENOUGH_FILES) if hard == resource.RLIM_INFINITY else min(hard, max(need, ENOUGH_FILES))
    state = f"{_limit(soft)} open files"
    if soft != resource.RLIM_INFINITY and soft < need:
        return Finding(
            "files",
            "attention",
            state,
            f"{RINGS} loaders with {wanted.workers} workers take some {need}, and the error would be 'too many open "
            "files'",
            f"ulimit -n {enough}, or fewer workers"
            if enough >= need
            else f"fewer workers, because this user's limit is {hard}; or start this with a larger limit (docker run "
            f"--ulimit nofile={need}, LimitNOFILE={need} in systemd)",
        )
    return Finding("files", "fine", state)


def processes(wanted: Wanted) -> Finding:
    """Whether the workers may be started."""
    soft, group = resource.getrlimit(resource.RLIMIT_NPROC)[0], available_processes()
    left = [] if group is None else [group]
    if soft != resource.RLIM_INFINITY and os.geteuid():  # the kernel does not count root's processes
        left.append(max(0, soft - _tasks_of_this_user()))
    if not left:
        return Finding("processes", "fine", "no limit")
    state = f"{min(left)} more processes and threads"
    need = wanted.ranks * (wanted.workers + torch.get_num_threads() + 3)
    if min(left) < need:
        return Finding(
            "processes",
            "attention",
            state,
            f"{wanted.ranks * (wanted.workers + 1)} processes and their threads are some {need}",
            "a larger pids limit for this container (docker run --pids-limit), ulimit -u, or fewer workers",
        )
    return Finding("processes", "fine", state)


def addresses(wanted: Wanted) -> Finding:
    """Whether a ring of this shape can be mapped; one is made, and nothing is written to it."""
    batches = wanted.workers * wanted.prefetch_factor
    try:
        segment = Segment(wanted.workers, batches, batches, wanted.spare_slots, "memfd", None, remember=False)
    except (MemoryError, OSError, ValueError) as error:
        return Finding("ring", "attention", "cannot be made", str(error), "")
    try:
        geometry = segment.geometry
    finally:
        segment.close()
    state = f"{geometry.payloads} slots of up to {in_units(geometry.slot_most)}"
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    whose = f"this process may use {_limit(limit, in_units)} of address space"
    if limit == resource.RLIM_INFINITY:
        whose = "all slots together get four times this machine's memory in addresses, 1 TiB at most"
    is_limited = limit != resource.RLIM_INFINITY
    if geometry.slot_most < wanted.batch_bytes or (is_limited and wanted.slots * wanted.batch_bytes > limit):
        return Finding(
            "ring",
            "attention",
            state,
            f"a batch of {in_units(wanted.batch_bytes)} does not fit: {whose}",
            "fewer slots (num_workers, prefetch_factor, spare_slots), or a smaller batch_size"
            + (", or ulimit -v unlimited" if is_limited else ""),
        )
    return Finding("ring", "fine", state)


def _tasks_of_this_user() -> int:
    """Processes and threads, as the kernel counts them for its limit."""
    count = 0
    for process in PROCESSES.glob("[0-9]*"):
        try:
            if process.stat().st_uid == os.getuid():
                count += len(os.listdir(process / "task"))
        except OSError:  # it has ended
            continue
    return count


def _limit(soft: int, shown: Callable[[int], str] = str) -> str:
    return "unlimited" if soft == resource.RLIM_INFINITY else shown(soft)
