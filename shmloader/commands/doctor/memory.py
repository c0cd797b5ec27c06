"""Checks whether /dev/shm, the machine and the container have memory for the rings; finds huge pages and NUMA nodes."""

from __future__ import annotations

import os
from pathlib import Path

from shmloader.commands.doctor.finding import Finding, Wanted
from shmloader.ring.growth import free_in_shm, in_units
from shmloader.system import limits
from shmloader.system.cores import affinity_of_this
from shmloader.system.nameless import SHM_MOUNT

SYSTEM = Path("/sys")
MOUNTS = Path("/proc/self/mounts")
IN_MEMORY = ("tmpfs", "devtmpfs", "ramfs", "hugetlbfs")  # kinds of mounts that no disk backs
LEFT_FREE = 1 / 16  # of /dev/shm: "auto" leaves it free (growth.py)


def shm(wanted: Wanted) -> Finding:
    """Whether /dev/shm holds the rings."""
    try:
        mount = os.statvfs(SHM_MOUNT)
    except OSError as error:
        return Finding(
            SHM_MOUNT,
            "attention",
            f"cannot be used: {error.strerror}",
            "rings lie in a memfd, which is as fast; torch's own loader cannot work",
            f"mount a tmpfs at {SHM_MOUNT}",
        )
    size, free = mount.f_blocks * mount.f_frsize, free_in_shm()
    state = f"{in_units(size)}, {in_units(free)} free"
    if mount.f_flag & os.ST_RDONLY:
        return Finding(
            SHM_MOUNT,
            "attention",
            f"{state}, and it is read-only",
            "rings lie in a memfd, which is as fast; torch's own loader cannot work",
            f"mount -o remount,rw {SHM_MOUNT}",
        )
    if not os.access(SHM_MOUNT, os.W_OK | os.X_OK):
        return Finding(
            SHM_MOUNT,
            "attention",
            f"{state}, and this user may not write there",
            "rings lie in a memfd, which is as fast; torch's own loader cannot work",
            f"chmod 1777 {SHM_MOUNT}",
        )
    kind, _ = _mount()
    if kind and kind not in IN_MEMORY:
        return Finding(
            SHM_MOUNT,
            "attention",
            f"{state}, and it is {kind}, no tmpfs",
            "the kernel writes everything there to a disk: the batches of rings, and of torch's own loader",
            f"mount -t tmpfs tmpfs {SHM_MOUNT}; in Kubernetes an emptyDir with medium: Memory there; or give each "
            "loader SHMLOADER_RING_MEMORY=memfd",
        )
    if wanted.ring_bytes > free - size * LEFT_FREE:
        return Finding(
            SHM_MOUNT,
            "attention",
            state,
            f"{wanted.need}: shmloader moves slots to a memfd, which is as fast. SHMLOADER_RING_MEMORY=posix "
            "raises an error, and torch's own loader fails: a bus error, or no space",
            f"docker run --shm-size={_enough(wanted.ring_bytes)}; in Kubernetes an emptyDir with medium: Memory at "
            f"{SHM_MOUNT}; elsewhere mount -o remount,size={_enough(wanted.ring_bytes)} {SHM_MOUNT}",
        )
    return Finding(SHM_MOUNT, "fine", state, wanted.need)


def memory(wanted: Wanted) -> Finding:
    """Whether the machine and the control group have enough memory for the rings."""
    available, group = limits.available_memory(), limits.available_to_groups()
    state = f"{in_units(available)} available"
    if group is not None and group <= available:
        state += ", all that the control group's limit leaves"
    if wanted.ring_bytes > available:
        fit = max(0, available // wanted.ranks // (wanted.ring_bytes // (wanted.ranks * wanted.slots)))
        return Finding(
            "memory",
            "attention",
            state,
            f"{wanted.need}. A batch that finds no memory is a MemoryError in its place",
            f"at most {fit} slots a rank fit: use a smaller batch_size, fewer workers, prefetch_factor or spare_slots, "
            + ("chunk_size, or a larger limit for this container" if group is not None else "or chunk_size"),
        )
    if wanted.ring_bytes > available // 2:
        return Finding(
            "memory",
            "note",
            state,
            f"{wanted.need}, more than half of it, and the dataset, the workers and the model need theirs",
            "use chunk_size or a smaller prefetch_factor, so that fewer batches are under way",
        )
    return Finding("memory", "fine", state, wanted.need)


def huge_pages() -> Finding:
    """Whether the rings can get huge pages."""
    shmem = _chosen(SYSTEM / "kernel/mm/transparent_hugepage/shmem_enabled")
    mount = _mount_option("huge")
    state = f"for memfds: {shmem or 'unknown'}; for {SHM_MOUNT}: huge={mount or 'never'}"
    huge = [
        where for where, how in (("a memfd", shmem), (SHM_MOUNT, mount)) if how in ("always", "within_size", "force")
    ]
    if huge:
        return Finding("huge pages", "fine", state, f"rings in {' and '.join(huge)} get huge pages where there are any")
    return Finding("huge pages", "fine", state, "rings lie in small pages, as torch's batches do")


def numa() -> Finding:
    """Whether this process runs on more than one memory node."""
    here = affinity_of_this() or set(range(os.cpu_count() or 1))
    nodes = {}
    for node in sorted((SYSTEM / "devices/system/node").glob("node[0-9]*"), key=lambda path: int(path.name[4:])):
        try:
            nodes[node.name[4:]] = set(_cores_in((node / "cpulist").read_text()))
        except (OSError, ValueError):
            continue
    mine = [name for name, its in nodes.items() if its & here]
    if len(nodes) < 2:
        return Finding("NUMA", "fine", "one node")
    if len(mine) < 2:
        return Finding("NUMA", "fine", f"{len(nodes)} nodes, and this process runs on node {mine[0] if mine else '?'}")
    return Finding(
        "NUMA",
        "note",
        f"{len(nodes)} nodes, and this process may run on {', '.join(mine)}",
        "a slot's pages lie on the node of the worker that filled it first, and reading them from another is slower",
        "start each rank on the node of its GPU: numactl --cpunodebind=N --membind=N python train.py",
    )


def _enough(size: int) -> str:
    """The next power of two above this many bytes and a quarter more, in the form for docker and mount: "512m"."""
    number, unit = in_units(1 << (size * 5 // 4).bit_length()).split()
    return f"{float(number):.0f}{unit[0].lower()}"


def _chosen(file: Path) -> str:
    """The word in brackets of "always [never] advise"; empty if the kernel does not answer."""
    try:
        return file.read_text().partition("[")[2].partition("]")[0]
    except OSError:
        return ""


def _mount_option(name: str) -> str:
    """The value of an option of the mount of /dev/shm; empty if it has none."""
    _, options = _mount()
    return next((word.partition("=")[2] for word in options.split(",") if word.startswith(f"{name}=")), "")


def _mount() -> tuple[str, str]:
    """The kind and the options of the mount of /dev/shm; empty if the kernel does not answer."""
    folder = os.path.realpath(SHM_MOUNT)  # on some systems it is a link
    where, kind, options = "", "", ""
    try:
        for line in MOUNTS.read_text().splitlines():
            _, at, its_kind, its_options, *_ = line.split()
            within = f"{folder}/".startswith(f"{at.rstrip('/')}/")
            if within and len(at) >= len(where):  # the last mount counts, because it hides earlier ones
                where, kind, options = at, its_kind, its_options
    except (OSError, ValueError):
        pass
    return kind, options


def _cores_in(listed: str) -> list[int]:
    """The numbers in "0-3,8"."""
    found: list[int] = []
    for part in listed.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            found += range(int(first), int(last or first) + 1)
    return found
