"""Checks whether a loader fits into this machine and its limits: memory, limits, open files, processes, addresses.
And a test of two seconds: batches through a ring, beside a plain copy of the same bytes.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import resource
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy
import torch

from shmloader.commands.doctor import Finding, Wanted
from shmloader.dataloader import DataLoader
from shmloader.ring.growth import free_in_shm, in_units
from shmloader.ring.segment import Segment
from shmloader.system import limits
from shmloader.system.anonymous_files import SHM_MOUNT
from shmloader.system.file_systems import kinds_of
from shmloader.system.processes import processes_of, status_of

CORES = Path("/sys/devices/system/cpu")
IN_MEMORY = {"tmpfs", "devtmpfs", "ramfs", "hugetlbfs"}  # kinds of mounts that no disk backs
NO_TORCH = "rings lie in a memfd, which is as fast; torch's own loader cannot work"
SECONDS = 2.0  # of the test
SLOTS = 5  # of the test's ring; beside them the batch takes memory twice
SLOW = 1 / 4  # of a plain copy's speed; on a healthy machine it is more than half


def shm(wanted: Wanted) -> Finding:
    """Whether /dev/shm holds the rings."""
    try:
        mount, kinds = os.statvfs(SHM_MOUNT), kinds_of(os.stat(SHM_MOUNT).st_dev)
    except OSError as error:
        return Finding("attention", f"cannot be used: {error.strerror}", NO_TORCH, f"mount a tmpfs at {SHM_MOUNT}")
    size, free = mount.f_blocks * mount.f_frsize, free_in_shm()
    state = f"{in_units(size)}, {in_units(free)} free"
    if mount.f_flag & os.ST_RDONLY:
        return Finding("attention", f"{state}, and it is read-only", NO_TORCH, f"mount -o remount,rw {SHM_MOUNT}")
    if not os.access(SHM_MOUNT, os.W_OK | os.X_OK):
        return Finding("attention", f"{state}, and this user may not write there", NO_TORCH, f"chmod 1777 {SHM_MOUNT}")
    if kinds and not IN_MEMORY & kinds:
        meaning = "the kernel writes everything there to a disk: the batches of rings, and of torch's own loader"
        remedy = f"mount -t tmpfs tmpfs {SHM_MOUNT}; in Kubernetes an emptyDir with medium: Memory there; or give each "
        remedy += "loader SHMLOADER_RING_MEMORY=memfd"
        return Finding("attention", f"{state}, and it is {' or '.join(kinds)}, no tmpfs", meaning, remedy)
    if wanted.ring_bytes <= free - size / 16:  # which "auto" leaves free (growth.py)
        return Finding("fine", state, wanted.need)
    enough = f"{1 << (wanted.ring_bytes * 5 // 4 >> 20).bit_length()}m"  # as docker and mount read it
    meaning = f"{wanted.need}: shmloader moves slots to a memfd, which is as fast. SHMLOADER_RING_MEMORY=posix raises "
    meaning += "an error, and torch's own loader fails: a bus error, or no space"
    remedy = f"docker run --shm-size={enough}; in Kubernetes an emptyDir with medium: Memory at {SHM_MOUNT}; elsewhere "
    return Finding("attention", state, meaning, f"{remedy}mount -o remount,size={enough} {SHM_MOUNT}")


def memory(wanted: Wanted) -> Finding:
    """Whether the machine and the control group have enough memory for the rings."""
    available = limits.available_memory()
    state = f"{in_units(available)} available to this process and its control group"
    if wanted.ring_bytes > available:
        fit = max(0, available // wanted.ranks // (wanted.ring_bytes // (wanted.ranks * wanted.slots)))
        meaning = f"{wanted.need}. A batch that finds no memory is a MemoryError in its place"
        remedy = f"at most {fit} slots a rank fit: use a smaller batch_size, fewer workers, prefetch_factor or "
        remedy += "spare_slots, or chunk_size, or a machine or container with more memory"
        return Finding("attention", state, meaning, remedy)
    if wanted.ring_bytes > available // 2:
        meaning = f"{wanted.need}, more than half of it, and the dataset, the workers and the model need theirs"
        remedy = "use chunk_size or a smaller prefetch_factor, so that fewer batches are under way"
        return Finding("note", state, meaning, remedy)
    return Finding("fine", state, wanted.need)


def enough_cores(wanted: Wanted) -> Finding:
    """Whether there are cores for all workers, and whether libraries in this process see how few there are."""
    found, threads = limits.cores(), torch.get_num_threads()
    state = f"{found.affinity} of {found.machine} by affinity"
    state += "" if found.quota is None else f", {found.quota:g} by the control group's quota"
    share = found.usable / wanted.ranks
    of_a_rank = f"{share:g} cores" + (f" for each of {wanted.ranks} ranks" if wanted.ranks > 1 else "")
    if found.quota is not None and threads > max(1.0, found.quota / wanted.ranks):
        meaning = f"libraries that count cores see {found.affinity} (torch computes with {threads} threads here). So "
        meaning += "many threads use the quota up early in each period, and then every process waits, the workers too"
        remedy = f"OMP_NUM_THREADS={max(1, int(share))}, and num_workers for {of_a_rank}; or a larger quota"
        return Finding("attention", state, meaning, remedy)
    if wanted.workers > max(1.0, share):
        meaning = f"{wanted.workers} workers share {of_a_rank}. More workers than cores help if samples wait (network, "
        meaning += "disk), but not if they compute"
        return Finding("attention", state, meaning, "measure by `shmloader tune` how many help, or grant more cores")
    if found.affinity < found.machine:
        return Finding("note", state, f"this process may not use the other {found.machine - found.affinity}")
    return Finding("fine", state)


def files(wanted: Wanted) -> Finding:
    """Whether a rank may open as many files as its rings need."""
    soft, hard = _limits(resource.RLIMIT_NOFILE)
    need = 2 * (5 + 3 * wanted.workers) + 64  # for training and for validation, and what a script has open besides
    state = f"{soft if soft < math.inf else 'unlimited'} open files"
    if soft >= need:
        return Finding("fine", state)
    enough = max(need, min(1 << 16, hard))
    remedy = f"ulimit -n {enough} (in a container, docker run --ulimit nofile={enough}), or fewer workers"
    if hard < need:
        remedy += f"; the first is for root, because this user's limit is {hard}"
    meaning = f"two loaders with {wanted.workers} workers take some {need}, and the error is 'too many open files'"
    return Finding("attention", state, meaning, remedy)


def processes(wanted: Wanted) -> Finding:
    """Whether the workers may be started."""
    left: float = math.inf if (group := limits.available_processes()) is None else group
    if (soft := _limits(resource.RLIMIT_NPROC)[0]) < math.inf and os.geteuid():  # root's are not counted; threads are
        left = min(left, max(0, soft - sum(int(status_of(pid, "Threads") or 0) for pid in processes_of(os.getuid()))))
    state = f"{left} more processes and threads" if left < math.inf else "no limit"
    need = wanted.ranks * (wanted.workers + torch.get_num_threads() + 3)
    if left >= need:
        return Finding("fine", state)
    meaning = f"{wanted.ranks * (wanted.workers + 1)} processes and their threads are some {need}"
    remedy = "a larger pids limit for this container (docker run --pids-limit), ulimit -u, or fewer workers"
    return Finding("attention", state, meaning, remedy)


def addresses(wanted: Wanted) -> Finding:
    """Whether a ring of this shape can be mapped; one is made, and nothing is written to it."""
    batches = wanted.workers * wanted.prefetch_factor
    try:
        segment = Segment(wanted.workers, batches, batches, wanted.spare_slots, "memfd", None, remember=False)
    except (MemoryError, OSError, ValueError) as error:
        return Finding("attention", "cannot be made", str(error))
    with contextlib.closing(segment):
        most, limit = segment.geometry.slot_most, _limits(resource.RLIMIT_AS)[0]
        state = f"{segment.geometry.payloads} slots of up to {in_units(most)}"
    if wanted.batch_bytes > most or wanted.slots * wanted.batch_bytes > limit:
        most_of_all = f"{in_units(limit)} (ulimit -v)" if limit < math.inf else "four times the memory, or 1 TiB"
        meaning = f"a batch of {in_units(wanted.batch_bytes)} does not fit: all slots have {most_of_all} of addresses"
        remedy = "fewer slots (num_workers, prefetch_factor, spare_slots), a smaller batch_size, or ulimit -v unlimited"
        return Finding("attention", state, meaning, remedy)
    if segment.no_memfd:
        meaning = f"rings lie in {SHM_MOUNT} alone, and a batch for which it has no room is a MemoryError"
        return Finding("note", state, meaning, segment.no_memfd)
    return Finding("fine", state)


def numa(wanted: Wanted) -> Finding:
    """Whether this process runs on more than one memory node."""
    here = [CORES / f"cpu{core}" for core in limits.affinity_of_this() or range(os.cpu_count() or 1)]
    nodes = sorted({node.name[4:] for core in here for node in core.glob("node[0-9]*")}, key=int)  # links in its folder
    state = f"this process may run on node {' and '.join(nodes)}" if nodes else "one node"
    if len(nodes) < 2:
        return Finding("fine", state)
    meaning = "a slot's pages lie on the node of the worker that filled it first; reading them from another is slower"
    remedy = "start each rank on the node of its GPU: numactl --cpunodebind=N --membind=N python train.py"
    return Finding("note", state, meaning, remedy)


def transport(wanted: Wanted) -> Finding:
    """The cost of a batch through the ring, with a dataset that does nothing."""
    size = max(1, min(wanted.batch_bytes, 256 << 20, limits.available_memory() // (4 * SLOTS)))  # more is no faster
    try:
        carried = size * _through_a_ring(size)
    except Exception as error:  # any error of this machine is a finding
        return Finding("attention", "no batch comes through a ring", str(error).strip())
    source, target = numpy.ones(size, numpy.uint8), numpy.zeros(size, numpy.uint8)  # so the target has its pages
    copied = size * _rate(lambda: numpy.copyto(target, source), SECONDS / 4)
    speeds = f"{carried / 1e9:.3g} GB/s, a plain copy {copied / 1e9:.3g} GB/s"
    state = f"{carried / size:,.0f} batches/s of {in_units(size)}: {speeds}"
    if carried < SLOW * copied and size >= 1 << 20:  # the cost of a small batch does not depend on its bytes
        meaning = "the ring is much slower than a copy by one core: something else uses the cores or the memory now"
        remedy = "look at what else runs (top), at the quota of the control group, and run this again"
        return Finding("attention", state, meaning, remedy)
    return Finding("fine", state, "no loader is quicker than its dataset; this is the most that it can be")


def _through_a_ring(size: int) -> float:
    """Batches a second, with one worker."""
    batch = torch.utils.data.TensorDataset(torch.ones(1, size, dtype=torch.uint8, device="cpu"))
    again = itertools.repeat(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fork beside threads and a small /dev/shm have their own findings
        with DataLoader(batch, None, sampler=again, num_workers=1, multiprocessing_context="fork") as loader:
            batches = iter(loader)
            for _ in range(2 * SLOTS):  # until every slot has its pages
                next(batches)
            return _rate(lambda: next(batches), SECONDS * 3 / 4)


def _rate(step: Callable[[], object], seconds: float) -> float:
    """How often a step can be done in a second."""
    began, count = time.monotonic(), 0
    while (passed := time.monotonic() - began) < seconds:
        step()
        count += 1
    return count / passed


def _limits(which: int) -> list[float]:
    """This process's limit, and the most that it may set it to; inf: there is none."""
    return [math.inf if each == resource.RLIM_INFINITY else each for each in resource.getrlimit(which)]
