"""`shmloader doctor`: each trouble of a machine or a container is named, with what to do, and the exit status tells."""

from __future__ import annotations

import errno
import json
import os
import pathlib
import resource
import runpy
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from conftest import write_files
from scripts import run_script

import shmloader
from shmloader.checks import requirements
from shmloader.commands import line
from shmloader.commands.arguments import bytes_of
from shmloader.commands.doctor import Finding, Wanted, command, machine, software
from shmloader.system import file_systems, limits
from shmloader.trainer import iterator

MiB = 1 << 20
SMALL = Wanted(batch_bytes=MiB, workers=1, prefetch_factor=2, spare_slots=2, ranks=1)


def wanted(**others: int) -> Wanted:
    return SMALL._replace(**others)


# --------------------------------------------------------------------------------------------------- what is wanted


def test_what_rings_take() -> None:
    slot = 8 * MiB + 64 * 1024
    assert wanted(batch_bytes=8 * MiB, workers=3, prefetch_factor=4, spare_slots=1, ranks=2).ring_bytes == 2 * 13 * slot


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("64k", 65536), ("36.75M", 38535168), ("8GiB", 8 << 30), ("2TB", 2 << 40)]
)
def test_sizes(text: str, size: int) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize("arguments", [["--batch-bytes", "0"], ["--batch-bytes", "x"], ["--workers", "-1"], ["--no"]])
def test_a_wrong_command_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        line.main(["doctor", *arguments])
    assert end.value.code == 2
    assert arguments[0] in capsys.readouterr().err


# ----------------------------------------------------------------------------------------------------- control groups


def test_quotas_of_version_2(groups: pathlib.Path) -> None:
    (groups / "membership").write_text("0::/pod/box\n")
    write_files(groups / "pod" / "box", cpu__max="max 100000", pids__max="max", pids__current=3)
    assert limits.cores().quota is None and limits.available_processes() is None
    write_files(groups / "pod", cpu__max="150000 100000", pids__max=100, pids__current=40)
    assert limits.cores().quota == 1.5 and limits.available_processes() == 60
    write_files(groups / "pod" / "box", cpu__max="50000 100000", pids__max=10, pids__current=11)
    assert limits.cores().quota == 0.5 and limits.available_processes() == 0


def test_quotas_of_version_1(groups: pathlib.Path) -> None:
    (groups / "membership").write_text("5:cpu,cpuacct:/x\n4:memory:/box\n3:pids:/x\n0::/\n")
    write_files(groups / "cpu" / "x", cpu__cfs_quota_us=-1, cpu__cfs_period_us=100000)
    assert limits.cores().quota is None
    write_files(groups / "cpu" / "x", cpu__cfs_quota_us=250000)
    write_files(groups / "pids", pids__max=7, pids__current=2)
    write_files(groups / "memory", memory__limit_in_bytes=2**63 - 4096, memory__usage_in_bytes=400)
    assert limits.cores().quota == 2.5 and limits.available_processes() == 5
    assert 600 < limits.available_memory() < 1 << 60
    write_files(groups / "memory" / "box", memory__limit_in_bytes=1000, memory__usage_in_bytes=400)
    assert limits.available_memory() == 600


@pytest.mark.parametrize(
    ("quota", "ranks", "workers", "spins"),
    [(None, 1, 2, True), (2, 1, 2, False), (4, 1, 2, True), (3.9, 1, 2, False), (4, 2, 2, False), (64, 1, 63, False)],
)
def test_no_side_spins_on_a_quota(
    groups: pathlib.Path, monkeypatch: pytest.MonkeyPatch, quota: float | None, ranks: int, workers: int, spins: bool
) -> None:
    """A container of 2 cores' time on a machine of 64."""
    (groups / "membership").write_text("0::/pod/box\n")
    write_files(groups / "pod", cpu__max="max 100000" if quota is None else f"{quota * 1e5:.0f} 100000")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    made = []

    class NotMade(Exception):
        pass

    def segment_and_spin(segment: Any, spin: bool, *_: Any) -> Any:
        made.append(spin)
        raise NotMade

    monkeypatch.setattr(iterator, "TrainerSide", segment_and_spin)
    with pytest.raises(NotMade):
        iter(shmloader.DataLoader(range(4), num_workers=workers))  # type: ignore[arg-type]
    assert made == [spins]


def test_tune_counts_the_quota(groups: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (groups / "membership").write_text("0::/pod/box\n")
    write_files(groups / "pod", cpu__max="600000 100000")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: None)
    granted = []
    for ranks in (1, 2, 100):
        with limits.share_of_cores(ranks, 0) as share:
            granted.append(share)
    assert granted == [6, 3, 6]  # with fewer cores than ranks nothing is shared


@pytest.mark.parametrize(("ranks_text", "ranks"), [("4", 4), ("", 1), ("0", 1), ("many", 1)])
def test_ranks(ranks_text: str, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks_text)
    assert limits.ranks_here() == ranks


# ------------------------------------------------------------------------------------------------------------- memory


@pytest.fixture
def mount(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A /dev/shm of this size, with so much free."""

    def disk(size: int, free: int, flags: int = 0, kind: str = "tmpfs") -> None:
        device = os.stat("/dev/shm").st_dev
        line = f"32 22 {os.major(device)}:{os.minor(device)} / /dev/shm rw,nosuid - {kind} none rw"
        (tmp_path / "mountinfo").write_text(f"22 1 999:1 / / rw,relatime - ext4 /dev/sda1 rw\n{line}\n")
        monkeypatch.setattr(file_systems, "MOUNTS", str(tmp_path / "mountinfo"))
        figures = os.statvfs_result((4096, 4096, size // 4096, free // 4096, free // 4096, 0, 0, 0, flags, 255))
        monkeypatch.setattr(os, "statvfs", lambda path: figures)

    return disk


def test_shm_that_holds_the_rings(mount: Any) -> None:
    mount(64 * MiB, 64 * MiB)
    found = machine.shm(SMALL)  # 4 slots
    assert (found.level, found.state) == ("fine", "64.0 MiB, 64.0 MiB free")
    assert found.meaning == "a ring of 4 slots x 1.0 MiB takes 4.2 MiB"
    mount(64 * MiB, 8 * MiB)  # of which 4 MiB are left for others
    assert machine.shm(SMALL).level == "attention"


def test_shm_that_is_too_small(mount: Any) -> None:
    mount(64 * MiB, 60 * MiB)
    found = machine.shm(wanted(batch_bytes=30 * MiB, ranks=2))
    assert found.level == "attention"
    for part in ("2 ranks with a ring each of 4 slots x 30.0 MiB takes 240.5 MiB", "memfd", "bus error"):
        assert part in found.meaning
    assert "--shm-size=512m" in found.remedy and "remount,size=512m" in found.remedy


@pytest.mark.parametrize(
    ("how", "may_write", "state", "remedy"),
    [
        ({"kind": "ramfs"}, True, None, ""),
        ({"kind": "xfs"}, True, "and it is xfs, no tmpfs", "SHMLOADER_RING_MEMORY=memfd"),
        ({"flags": os.ST_RDONLY}, True, "and it is read-only", "mount -o remount,rw /dev/shm"),
        ({}, False, "", "chmod 1777 /dev/shm"),
    ],
    ids=["memory", "a disk", "read-only", "not to be written to"],
)
def test_how_shm_is_mounted(
    how: dict[str, Any], may_write: bool, state: str | None, remedy: str, mount: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount(64 * MiB, 64 * MiB, **how)
    monkeypatch.setattr(os, "access", lambda path, mode: may_write)
    found = machine.shm(SMALL)
    assert found.level == ("fine" if state is None else "attention")
    assert found.state.endswith(state or "") and remedy in found.remedy


def test_no_shm_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(path: str) -> Any:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    monkeypatch.setattr(os, "statvfs", gone)
    found = machine.shm(SMALL)
    assert found.level == "attention" and "No such file" in found.state and "memfd" in found.meaning


def test_memory(groups: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (groups / "membership").write_text("0::/\n")
    assert machine.memory(SMALL).level == "fine"
    write_files(groups, memory__max=6 * MiB, memory__current=0)
    found = machine.memory(SMALL)
    assert found.level == "note" and "control group" in found.state and "more than half" in found.meaning
    write_files(groups, memory__current=3 * MiB)
    found = machine.memory(SMALL)
    assert found.level == "attention" and found.state.startswith("3.0 MiB available")
    assert "MemoryError" in found.meaning and "at most 2 slots a rank" in found.remedy and "container" in found.remedy


def test_numa(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "CORES", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {2, 3, 9})
    assert machine.numa(SMALL) == Finding("fine", "one node")
    for core, node in {1: "node2", 2: "node0", 3: "node0"}.items():
        (tmp_path / f"cpu{core}" / node).mkdir(parents=True)
    assert machine.numa(SMALL).level == "fine" and machine.numa(SMALL).state.endswith("on node 0")
    (tmp_path / "cpu9" / "node1").mkdir(parents=True)
    found = machine.numa(SMALL)
    assert found.level == "note" and found.state.endswith("on node 0 and 1") and "numactl" in found.remedy


# ------------------------------------------------------------------------------------------------------------- bounds


def test_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(machine_has: int, affinity: int, quota: float | None, wanted: Wanted = SMALL) -> Finding:
        monkeypatch.setattr(limits, "cores", lambda: limits.Cores(machine_has, affinity, quota))
        return machine.enough_cores(wanted)

    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert found(8, 8, None).level == "fine"
    assert found(64, 8, None).level == "note"
    few = found(64, 2, None, wanted(workers=8))
    assert few.level == "attention" and few.state == "2 of 64 by affinity"
    assert "8 workers share 2 cores" in few.meaning
    few = found(64, 64, 16.0, wanted(workers=4, ranks=4))
    assert few.level == "attention" and few.state == "64 of 64 by affinity, 16 by the control group's quota"
    assert "OMP_NUM_THREADS=4" in few.remedy and "4 cores for each of 4 ranks" in few.remedy
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert found(64, 64, 16.0, wanted(workers=4, ranks=4)).level == "fine"


def test_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 4096))
    assert machine.files(wanted(workers=8)).level == "fine"  # 2 * 29 + 64
    found = machine.files(wanted(workers=40))  # 2 * 125 + 64
    assert found.level == "attention" and "some 314" in found.meaning and "ulimit -n 4096" in found.remedy
    found = machine.files(wanted(workers=2000))  # more than this user may set it to
    assert "ulimit -n 12074" in found.remedy and "nofile=12074" in found.remedy and "limit is 4096" in found.remedy
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY,) * 2)
    assert machine.files(wanted(workers=4000)).state == "unlimited open files"


def test_processes(groups: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    (groups / "membership").write_text("0::/\n")
    write_files(groups, pids__max=20, pids__current=5)
    assert machine.processes(wanted(workers=10)).level == "fine"
    found = machine.processes(wanted(workers=11))
    assert found.level == "attention" and found.state == "15 more processes and threads"
    assert "12 processes" in found.meaning and "--pids-limit" in found.remedy
    write_files(groups, pids__max="max")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(machine, "processes_of", lambda user: range(19))
    monkeypatch.setattr(machine, "status_of", lambda pid, name: "5")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (100, 100))
    assert machine.processes(wanted(workers=10)).level == "attention"


def test_a_ring_that_can_be_made_and_those_that_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*value: Any) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    found = machine.addresses(SMALL)
    assert found.level == "fine" and found.state.startswith("5 slots of up to ")
    found = machine.addresses(wanted(workers=1 << 16))
    assert found.level == "attention" and "at most 65535" in found.meaning
    with monkeypatch.context() as patch:
        patch.setattr(machine.resource, "getrlimit", lambda which: (3 * MiB, resource.RLIM_INFINITY))
        found = machine.addresses(SMALL)
    assert found.level == "attention" and "3.0 MiB (ulimit -v)" in found.meaning and "ulimit -v" in found.remedy
    monkeypatch.setattr(os, "memfd_create", refuses)
    found = machine.addresses(SMALL)
    assert found.level == "note" and "MemoryError" in found.meaning and "memfd_create is refused" in found.remedy


# ---------------------------------------------------------------------------------------------------------- software


def test_a_torch_that_does_not_ride(monkeypatch: pytest.MonkeyPatch) -> None:
    assert software.torch_and_the_ring(SMALL).level == "fine"
    monkeypatch.setattr(requirements, "why_not_here", lambda: "torch 9: _x is not there; install another")
    found = software.torch_and_the_ring(SMALL)
    assert (
        found.level == "attention" and "no loader rides the ring" in found.state and "_x is not there" in found.meaning
    )
    lines = [what for what, _ in command.examine(SMALL)]
    assert "memory" in lines and "transport" not in lines


def test_a_platform_without_a_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert [what for what, _ in command.examine(SMALL)] == ["torch"]


def test_start_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    class Spawns:
        get_start_method = staticmethod(lambda: "spawn")

    monkeypatch.setattr(software.multiprocessing, "get_context", Spawns)
    found = software.start_method(SMALL)
    assert found.level == "note" and found.state == "spawn" and "persistent_workers" in found.remedy


# ------------------------------------------------------------------------------------------------------- accelerators


class Locks:
    registers = True
    why = ""
    undone = 0

    def register(self, address: int, size: int) -> str:
        return self.why

    def unregister(self, address: int) -> None:
        type(self).undone += 1


@pytest.mark.skipif(torch.accelerator.is_available(), reason="is about a machine without a device")
def test_a_gpu_and_a_torch_that_does_not_use_it(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "DRIVER", tmp_path / "version")
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun\nGCC\n")
    monkeypatch.setattr(torch.version, "cuda", None)
    found = software.pinning(SMALL)
    assert found.level == "attention" and "driver 580.65.06" in found.state and "CUDA build" in found.remedy
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    found = software.pinning(SMALL)
    assert found.level == "attention" and "finds no device" in found.state and "--gpus all" in found.remedy
    (tmp_path / "version").unlink()
    assert software.pinning(SMALL).level == "note"
    monkeypatch.setattr(torch.version, "cuda", None)
    assert software.pinning(SMALL).level == "fine"


def test_page_locking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software.accelerator, "kind", lambda: "cuda")
    monkeypatch.setattr(software.accelerator, "count", lambda: 8)
    monkeypatch.setattr(software.accelerator, "find", Locks)
    found = software.pinning(SMALL)
    assert found.level == "fine" and found.state.startswith("8 x cuda") and Locks.undone == 1
    monkeypatch.setattr(Locks, "why", "CUDA_ERROR_NOT_SUPPORTED")
    found = software.pinning(SMALL)
    assert found.level == "note" and "CUDA_ERROR_NOT_SUPPORTED" in found.state and "as in torch" in found.meaning
    assert Locks.undone == 1


# ---------------------------------------------------------------------------------------------------------- transport


def test_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "SECONDS", 0.2)
    found = machine.transport(SMALL)
    assert "batches/s of 1.0 MiB" in found.state and "GB/s" in found.state
    monkeypatch.setattr(machine, "SLOW", 1e9)
    assert machine.transport(SMALL).level == "attention"
    monkeypatch.setattr(machine, "_through_a_ring", lambda *arguments: 1 / 0)
    assert machine.transport(SMALL) == Finding("attention", "no batch comes through a ring", "division by zero")


# ---------------------------------------------------------------------------------------------------- the whole of it


def findings(*levels: Any) -> Any:
    def examine(wanted: Wanted) -> Iterator[tuple[str, Finding]]:
        for level in levels:
            meaning, remedy = "slow" if level != "fine" else "", "more" if level == "attention" else ""
            yield "cores", Finding(level, "one", meaning, remedy)

    return examine


@pytest.mark.parametrize(
    ("levels", "status"),
    [(["fine"], 0), (["fine", "note"], 0), (["attention", "fine"], 1)],
    ids=["fine", "note", "bad"],
)
def test_the_exit_status(levels: Any, status: int, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(command, "examine", findings(*levels))
    assert line.main(["doctor"]) == status
    assert len(capsys.readouterr().out.splitlines()) == sum(
        {"fine": 1, "note": 2, "attention": 3}[one] for one in levels
    )
    assert line.main(["doctor", "--json", "--workers", "3", "--batch-bytes", "2M", "--ranks", "2"]) == status
    output = json.loads(capsys.readouterr().out)
    assert output["status"] == status and [one["level"] for one in output["findings"]] == levels
    assert output["for"] == {
        "batch_bytes": 2 * MiB, "workers": 3, "prefetch_factor": 2, "spare_slots": 2, "ranks": 2
    }  # fmt: skip


def test_state_meaning_and_remedy_are_shown() -> None:
    lines = command.lines("/dev/shm", Finding("attention", "64 MiB", "too little", "mount more"))
    assert lines[0].split() == ["attention", "/dev/shm", "64", "MiB"]
    assert lines[1].strip() == "that means: too little" and lines[2].strip() == "to do: mount more"


def test_the_default_is_a_worker_a_core_of_each_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "cores", lambda: limits.Cores(64, 12, 9.5))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    given = line.parser().parse_args(["doctor"])
    assert command.wanted_of(given) == Wanted(command.USUAL_BATCH, 4, 2, 2, 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "32")
    assert command.wanted_of(given).workers == 1


CONTAINER = """
import os, pathlib, sys
from conftest import mount_small_shm
from shmloader.commands import line
from shmloader.commands.doctor import machine
from shmloader.system import limits
mount_small_shm("64m")
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
groups = pathlib.Path(sys.argv[1])  # this user may make none
(groups / "membership").write_text("0::/\\n")
(groups / "memory.max").write_text(f"{400 << 20}\\n")
(groups / "memory.current").write_text(f"{200 << 20}\\n")
limits.CGROUPS, limits.MEMBERSHIP = groups, groups / "membership"
machine.SECONDS = 0.2
status = line.main(["doctor", "--workers", "8", "--json"])
print(os.listdir("/dev/shm"), file=sys.stderr)
sys.exit(status)
"""


def test_in_a_container(tmp_path: pathlib.Path) -> None:
    """64 MiB of /dev/shm (really), two cores (really), a memory limit (as a tree of files)."""
    ran = run_script(CONTAINER.replace("sys.argv[1]", repr(str(tmp_path))))
    if "not permitted" in ran.out:
        pytest.skip("this user may not mount")
    assert ran.status == 1, ran.err
    found = {one["what"]: one for one in json.loads(ran.out)["findings"]}
    assert found["/dev/shm"]["level"] == "attention" and found["/dev/shm"]["state"].startswith("64.0 MiB")
    assert found["memory"]["level"] == "attention" and "200.0 MiB available" in found["memory"]["state"]
    assert found["cores"]["level"] == "attention" and "8 workers share " in found["cores"]["meaning"]
    assert "no batch" not in found["transport"]["state"]
    assert ran.err.strip().endswith("[]"), "something is left in /dev/shm"


def test_from_a_shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["shmloader", "--version"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module("shmloader", run_name="__main__")
    assert end.value.code == 0
    assert capsys.readouterr().out == f"shmloader {shmloader.__version__}, torch {torch.__version__}\n"


def test_a_reader_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    ready, end = os.pipe()
    os.close(ready)
    with open(end, "w") as out:
        monkeypatch.setattr(command, "examine", findings("fine"))
        monkeypatch.setattr(sys, "stdout", out)
        assert line.main(["doctor"]) == 141
        monkeypatch.undo()


def test_another_error_is_not_the_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(wanted: Wanted) -> Any:
        raise OSError(errno.EIO, "a disk")

    monkeypatch.setattr(command, "examine", fails)
    with pytest.raises(OSError, match="a disk"):
        line.main(["doctor"])


def test_no_output_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "examine", findings("fine"))
    monkeypatch.setattr(sys, "stdout", None)
    assert line.main(["doctor"]) == 0
