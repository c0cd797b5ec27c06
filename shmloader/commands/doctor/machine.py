"""Checks whether a loader fits into this machine and its limits: memory, cores, open files, processes, addresses."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path

import torch

from shmloader.commands.doctor.finding import Finding, Wanted
from shmloader.ring.growth import free_in_shm, in_units
from shmloader.ring.segment import Segment
from shmloader.system import cores, limits
from shmloader.system.anonymous_files import SHM_MOUNT
from shmloader.system.processes import processes_of, status_of

SYSTEM, MOUNTS = Path("/sys"), Path("/proc/self/mounts")
IN_MEMORY = ("tmpfs", "devtmpfs", "ramfs", "hugetlbfs")  # kinds of mounts that no disk backs
LEFT_FREE = 1 / 16  # of /dev/shm: "auto" leaves it free (growth.py)
NO_TORCH = "rings lie in a memfd, which is as fast; torch's own loader cannot work"
RINGS = 2  # of each rank: for training and for validation
ENOUGH_FILES = 65536
OTHER_FILES = 64  # a training script has these open beside its rings


def shm(wanted: Wanted) -> Finding:
    """Whether /dev/shm holds the rings."""
    try:
        mount = os.statvfs(SHM_MOUNT)
    except OSError as error:
        return Finding("attention", f"cannot be used: {error.strerror}", NO_TORCH, f"mount a tmpfs at {SHM_MOUNT}")
    size, free = mount.f_blocks * mount.f_frsize, free_in_shm()
    state, kind = f"{in_units(size)}, {in_units(free)} free", _mount()[0]
    if mount.f_flag & os.ST_RDONLY:
        return Finding("attention", f"{state}, and it is read-only", NO_TORCH, f"mount -o remount,rw {SHM_MOUNT}")
    if not os.access(SHM_MOUNT, os.W_OK | os.X_OK):
        return Finding("attention", f"{state}, and this user may not write there", NO_TORCH, f"chmod 1777 {SHM_MOUNT}")
    if kind and kind not in IN_MEMORY:
        meaning = "the kernel writes everything there to a disk: the batches of rings, and of torch's own loader"
        remedy = f"mount -t tmpfs tmpfs {SHM_MOUNT}; in Kubernetes an emptyDir with medium: Memory there; or give each "
        return Finding(
            "attention", f"{state}, and it is {kind}, no tmpfs", meaning, remedy + "loader SHMLOADER_RING_MEMORY=memfd"
        )
    if wanted.ring_bytes <= free - size * LEFT_FREE:
        return Finding("fine", state, wanted.need)
    number, unit = in_units(1 << (wanted.ring_bytes * 5 // 4).bit_length()).split()
    enough = f"{float(number):.0f}{unit[0].lower()}"  # as docker and mount read it: "512m"
    return Finding(
        "attention",
        state,
        f"{wanted.need}: shmloader moves slots to a memfd, which is as fast. SHMLOADER_RING_MEMORY=posix raises an "
        "error, and torch's own loader fails: a bus error, or no space",
        f"docker run --shm-size={enough}; in Kubernetes an emptyDir with medium: Memory at {SHM_MOUNT}; elsewhere "
        f"mount -o remount,size={enough} {SHM_MOUNT}",
    )


def memory(wanted: Wanted) -> Finding:
    """Whether the machine and the control group have enough memory for the rings."""
    available, group = limits.available_memory(), limits.available_to_groups()
    state = f"{in_units(available)} available"
    if group is not None and group <= available:
        state += ", all that the control group's limit leaves"
    if wanted.ring_bytes > available:
        fit = max(0, available // wanted.ranks // (wanted.ring_bytes // (wanted.ranks * wanted.slots)))
        meaning = f"{wanted.need}. A batch that finds no memory is a MemoryError in its place"
        others = "chunk_size, or a larger limit for this container" if group is not None else "or chunk_size"
        fewer = "use a smaller batch_size, fewer workers, prefetch_factor or spare_slots"
        return Finding("attention", state, meaning, f"at most {fit} slots a rank fit: {fewer}, {others}")
    if wanted.ring_bytes > available // 2:
        meaning = f"{wanted.need}, more than half of it, and the dataset, the workers and the model need theirs"
        remedy = "use chunk_size or a smaller prefetch_factor, so that fewer batches are under way"
        return Finding("note", state, meaning, remedy)
    return Finding("fine", state, wanted.need)


def enough_cores(wanted: Wanted) -> Finding:
    """Whether there are cores for all workers, and whether libraries in this process see how few there are."""
    found, threads = cores.cores(), torch.get_num_threads()
    state = f"{found.affinity} of {found.machine} by affinity"
    state += "" if found.quota is None else f", {found.quota:g} by the control group's quota"
    share = found.usable / wanted.ranks
    of_a_rank = f"{share:g} cores for each of {wanted.ranks} ranks" if wanted.ranks > 1 else f"{share:g} cores"
    if found.quota is not None and threads > max(1.0, found.quota / wanted.ranks):
        meaning = (
            f"libraries that count cores see {found.affinity} (torch computes with {threads} threads here). So many "
            "threads use the quota up early in each period, and then every process waits, the workers too"
        )
        remedy = f"OMP_NUM_THREADS={max(1, int(share))}, and num_workers for {of_a_rank}; or a larger quota"
        return Finding("attention", state, meaning, remedy)
    if wanted.workers > max(1.0, share):
        meaning = f"{wanted.workers} workers share {of_a_rank}. More workers than cores help if samples wait (network, "
        remedy = "measure with `shmloader tune` how many workers help, or grant more cores"
        return Finding("attention", state, meaning + "disk), but not if they compute", remedy)
    if found.affinity < found.machine:
        return Finding("note", state, f"this process may not use the other {found.machine - found.affinity}")
    return Finding("fine", state)


def files(wanted: Wanted) -> Finding:
    """Whether a rank may open as many files as its rings need."""
    soft, hard = _limit(resource.RLIMIT_NOFILE), _limit(resource.RLIMIT_NOFILE, 1)
    need = RINGS * (5 + 3 * wanted.workers) + OTHER_FILES
    state = f"{'unlimited' if soft is None else soft} open files"
    if soft is None or soft >= need:
        return Finding("fine", state)
    remedy = f"ulimit -n {min(max(need, ENOUGH_FILES), hard or ENOUGH_FILES + need)}, or fewer workers"
    if hard is not None and hard < need:
        remedy = f"fewer workers, because this user's limit is {hard}; or start this with a larger limit (docker run "
        remedy += f"--ulimit nofile={need}, LimitNOFILE={need} in systemd)"
    meaning = f"{RINGS} loaders with {wanted.workers} workers take some {need}, and the error would be 'too many open "
    return Finding("attention", state, meaning + "files'", remedy)


def processes(wanted: Wanted) -> Finding:
    """Whether the workers may be started."""
    soft, group = _limit(resource.RLIMIT_NPROC), limits.available_processes()
    left = [] if group is None else [group]
    if soft is not None and os.geteuid():  # the kernel does not count root's processes
        left.append(max(0, soft - _tasks_of_this_user()))
    if not left:
        return Finding("fine", "no limit")
    state = f"{min(left)} more processes and threads"
    need = wanted.ranks * (wanted.workers + torch.get_num_threads() + 3)
    if min(left) >= need:
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
        geometry = segment.geometry
    state, limit = f"{geometry.payloads} slots of up to {in_units(geometry.slot_most)}", _limit(resource.RLIMIT_AS)
    fits = limit is None or wanted.slots * wanted.batch_bytes <= limit
    if fits and wanted.batch_bytes <= geometry.slot_most:
        return Finding("fine", state)
    whose = "all slots together get four times this machine's memory in addresses, 1 TiB at most"
    remedy = "fewer slots (num_workers, prefetch_factor, spare_slots), or a smaller batch_size"
    if limit is not None:
        whose, remedy = f"this process may use {in_units(limit)} of address space", f"{remedy}, or ulimit -v unlimited"
    return Finding("attention", state, f"a batch of {in_units(wanted.batch_bytes)} does not fit: {whose}", remedy)


def huge_pages(wanted: Wanted) -> Finding:
    """Whether the rings can get huge pages."""
    shmem, options = "", _mount()[1].split(",")
    with contextlib.suppress(OSError):  # the word in brackets of "always [never] advise"
        shmem = (
            (SYSTEM / "kernel/mm/transparent_hugepage/shmem_enabled").read_text().partition("[")[2].partition("]")[0]
        )
    mount = next((option.partition("=")[2] for option in options if option.startswith("huge=")), "")
    state = f"for memfds: {shmem or 'unknown'}; for {SHM_MOUNT}: huge={mount or 'never'}"
    chosen = {"a memfd": shmem, SHM_MOUNT: mount}
    huge = [where for where, how in chosen.items() if how in ("always", "within_size", "force")]
    if huge:
        return Finding("fine", state, f"rings in {' and '.join(huge)} get huge pages where there are any")
    return Finding("fine", state, "rings lie in small pages, as torch's batches do")


def numa(wanted: Wanted) -> Finding:
    """Whether this process runs on more than one memory node."""
    here = cores.affinity_of_this() or set(range(os.cpu_count() or 1))
    nodes: dict[int, set[int]] = {}
    for node in (SYSTEM / "devices/system/node").glob("node[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            parts = [part.split("-") for part in (node / "cpulist").read_text().strip().split(",") if part]  # "0-3,8"
            nodes[int(node.name[4:])] = {core for a, *b in parts for core in range(int(a), int((b or [a])[0]) + 1)}
    mine = [str(node) for node in sorted(nodes) if nodes[node] & here]
    if len(nodes) < 2:
        return Finding("fine", "one node")
    if len(mine) < 2:
        return Finding("fine", f"{len(nodes)} nodes, and this process runs on node {mine[0] if mine else '?'}")
    return Finding(
        "note",
        f"{len(nodes)} nodes, and this process may run on {', '.join(mine)}",
        "a slot's pages lie on the node of the worker that filled it first, and reading them from another is slower",
        "start each rank on the node of its GPU: numactl --cpunodebind=N --membind=N python train.py",
    )


def _limit(which: int, hard: int = 0) -> int | None:
    """A soft limit of this process, or its hard one; None: there is none."""
    limit = resource.getrlimit(which)[hard]
    return None if limit == resource.RLIM_INFINITY else limit


def _tasks_of_this_user() -> int:
    """Processes and threads, as the kernel counts them for its limit."""
    return sum(int(status_of(pid, "Threads") or 0) for pid in processes_of(os.getuid()))


def _mount() -> tuple[str, str]:
    """The kind and the options of the mount of /dev/shm; empty if the kernel does not answer."""
    folder = os.path.realpath(SHM_MOUNT)  # on some systems it is a link
    where, kind, options = "", "", ""
    with contextlib.suppress(OSError, ValueError):
        for line in MOUNTS.read_text().splitlines():
            _, at, its_kind, its_options, *_ = line.split()
            if f"{folder}/".startswith(f"{at.rstrip('/')}/") and len(at) >= len(where):  # the last mount hides others
                where, kind, options = at, its_kind, its_options
    return kind, options
