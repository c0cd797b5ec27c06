"""What a ring may take: a budget, and what the control groups of the process leave."""

from __future__ import annotations

import os
import pathlib
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from conftest import write_files
from scripts import run_script

import shmloader
from shmloader.ring import segment
from shmloader.system import limits

MiB = 1 << 20


def sized(sizes: list[int]) -> list[torch.Tensor]:
    return [torch.full((size,), k, dtype=torch.uint8) for k, size in enumerate(sizes)]


def load(sizes: list[int], **options: Any) -> list[Any]:
    """The sizes of the batches, and the texts of the errors in their places."""
    got: list[Any] = []
    with shmloader.DataLoader(sized(sizes), batch_size=None, num_workers=1, **options) as loader:
        iterator = iter(loader)
        while True:
            try:
                got.append(next(iterator).numel())
            except StopIteration:
                return got
            except MemoryError as error:
                got.append(str(error))


def test_a_budget_is_kept_in_place_and_the_epoch_goes_on() -> None:
    sizes = [1000, 2 * MiB, 4 * MiB, 1000, 3 * MiB, 2 * MiB]
    got = load(sizes, max_ring_bytes=9 * MiB)  # 2 in flight and 2 lent: 4 slots of 2.25 MiB
    assert [size for size in got if isinstance(size, int)] == [1000, 2 * MiB, 1000, 2 * MiB]
    for at, size in ((2, "4.0 MiB = 16.0 MiB"), (4, "3.0 MiB = 12.0 MiB")):
        text = got[at]
        for part in ("4 slots x", size, "max_ring_bytes allows 9.0 MiB", "batch_size", "spare_slots"):
            assert part in text, text
    assert load(sizes, max_ring_bytes=9 * MiB, spare_slots=0, prefetch_factor=1) == sizes


def beside_text(samples: list[Any]) -> Any:
    return torch.utils.data.default_collate(samples), "x" * 20_000


def test_a_batch_over_budget_is_a_memory_error_even_if_its_traceback_does_not_fit() -> None:
    loader = shmloader.DataLoader(
        sized([8150] * 12), batch_size=6, collate_fn=beside_text, num_workers=2, max_ring_bytes=200_000
    )
    iterator = iter(loader)
    for _ in range(2):
        with pytest.raises(MemoryError, match="max_ring_bytes allows"):
            next(iterator)


def test_a_budget_that_no_ring_can_keep() -> None:
    loader = shmloader.DataLoader(sized([10, 10]), num_workers=1, max_ring_bytes=4 * 16 * 1024 - 1)
    with pytest.raises(MemoryError, match=r"4 slots x 16.0 KiB = 64.0 KiB, and max_ring_bytes allows 64.0 KiB"):
        iter(loader)


def test_more_workers_than_the_ring_can_tell_apart() -> None:
    loader = shmloader.DataLoader(sized([10]), num_workers=1 << 16)
    with pytest.raises(ValueError, match=r"num_workers=65536 is too many\. A ring has at most 65535"):
        iter(loader)
    assert segment.reserve((1 << 16) - 1, 1, 1, 0, False, False, 1 << 40).workers == (1 << 16) - 1


# ------------------------------------------------------------------------------------------------- control groups


def test_version_2(groups: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = limits._of_the_machine()
    monkeypatch.setattr(limits, "_of_the_machine", lambda: machine)  # other processes change it at any moment
    (groups / "membership").write_text("0::/pod/box\n")
    write_files(groups / "pod" / "box", memory__max="max", memory__current=5)
    assert limits.available_memory() == machine
    write_files(
        groups / "pod", memory__max=1000, memory__current=700, memory__stat="anon 600\ninactive_file 60\nactive_file 4"
    )
    assert limits.available_memory() == 1000 - 700 + 64
    write_files(groups / "pod" / "box", memory__max=100, memory__current=130)
    assert limits.available_memory() == 0


def test_version_1(groups: pathlib.Path) -> None:
    (groups / "membership").write_text("5:cpu:/x\n4:memory:/box\n0::/\n")
    write_files(groups / "memory" / "box", memory__limit_in_bytes=1000, memory__usage_in_bytes=400)
    write_files(groups / "memory", memory__limit_in_bytes=2**63 - 4096, memory__usage_in_bytes=400)
    assert limits.available_memory() == 600


def test_a_container_that_sees_its_own_group_as_the_root(groups: pathlib.Path) -> None:
    (groups / "membership").write_text("0::/../../somewhere/else\n")
    write_files(groups, memory__max=1000, memory__current=1)
    assert limits.available_memory() == 999


# A batch of 400 MiB fits once beside the ballast of 200, and not twice.  The other 300 MiB are for what the processes
# write to besides, above all pages that they share until then: how many those are depends on the machine.
GROUPED = """
import os, pathlib, torch, shmloader
folder = pathlib.Path("FOLDER")
class Big(torch.utils.data.Dataset):
    def __len__(self): return 12
    def __getitem__(self, k): return torch.full(((400 << 20) if k == 6 else 1000,), k, dtype=torch.uint8)
(folder / "cgroup.procs").write_text(str(os.getpid()))
got = []
os.environ["SHMLOADER_RING_MEMORY"] = "WHERE"
with shmloader.DataLoader(Big(), batch_size=None, num_workers=1) as loader:
    ballast = bytearray(b"x") * (200 << 20)
    iterator = iter(loader)
    while True:
        try: got.append(next(iterator).numel())
        except StopIteration: break
        except MemoryError as error: print(error)
print("got", got)
"""


@pytest.fixture
def limited_group() -> Iterator[pathlib.Path]:
    """A control group of version 1 whose processes may have 900 MiB together."""
    groups = pathlib.Path("/sys/fs/cgroup/memory")
    if not groups.is_dir():
        pytest.skip("no control groups of version 1 here")
    folder = groups / f"shmloader_test_{os.getpid()}"
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this user may not make control groups")
    try:
        (folder / "memory.limit_in_bytes").write_text(str(900 * MiB))
        yield folder
    finally:
        folder.rmdir()


@pytest.mark.long
@pytest.mark.parametrize("memory", ["auto", "memfd"])
def test_a_real_group_answers_by_an_error_and_not_by_the_oom_killer(memory: str, limited_group: pathlib.Path) -> None:
    ran = run_script(GROUPED.replace("WHERE", memory).replace("FOLDER", str(limited_group)), fresh=True)
    group = [(limited_group / f"memory.{name}").read_text() for name in ("max_usage_in_bytes", "oom_control", "stat")]
    if ran.status == -signal.SIGKILL and "oom_kill 0" in group[1]:
        pytest.skip("something else than the OOM killer has killed the script, which had left its control group")
    assert ran.status == 0, "\n".join([ran.out, ran.err, *group])
    assert f"got {[1000] * 11}" in ran.out, ran.out + ran.err
    assert "this container" in ran.out and "400.0 MiB" in ran.out
