"""Under torchrun: a rank that dies takes its workers with it; and a job that is to end saves in mid-epoch, and resumes
there, also with other ranks.

torchrun puts each rank into a session of its own, so what belongs to a run is known by a mark in its environment.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import assert_same, left_in_shm, shm_names
from PIL import Image
from scripts import GONE, LONGEST, ROOT, script_file

from examples import train_ddp
from examples.image_folder import find_images
from examples.loader_clock import LoaderClock

MARK = "SHMLOADER_TEST_RUN"
RANKS, WORKERS = 2, 2
IMAGES = 48  # to train on


class Run:
    """A script under torchrun: two ranks by default, and a port of its own."""

    def __init__(self, folder: Path, text: str, *arguments: str, restarts: int = 0, ranks: int = RANKS) -> None:
        self.folder = folder
        self.mark = f"{MARK}={uuid.uuid4()}"
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
            "OMP_NUM_THREADS": "1",
            # else ranks that start again may meet the addresses of those killed (pytorch/pytorch#135712, still in 2.13)
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            MARK: self.mark.partition("=")[2],
        }
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        self.process = subprocess.Popen(
            [*torchrun, f"--max-restarts={restarts}", *script_file(text), *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )

    def members(self) -> set[int]:
        """Living processes of this run, torchrun and all below it."""
        found = set()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if self.mark.encode() in (entry / "environ").read_bytes().split(b"\0"):  # empty for a zombie
                        found.add(int(entry.name))
                except OSError:
                    continue
        return found

    def signal_all(self, number: int) -> None:
        """As a scheduler does that ends a job: to each of its processes, in the groups that they are in."""
        for group in {os.getpgid(pid) for pid in self.members()}:
            os.killpg(group, number)

    def end(self, seconds: float = LONGEST) -> tuple[int, str, str]:
        """Wait for torchrun, and for all that holds its pipes; exit status, output and errors."""
        try:
            out, err = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"torchrun ended with {self.process.poll()}; {self.members()} did not") from None
        assert gone(self.members), f"processes are left: {self.members()}\n{out}\n{err}"
        return self.process.returncode, out, err

    def noted(self, name: str, seconds: float = LONGEST) -> Any:
        """What a rank has written into its folder under that name, as soon as it is there."""
        end = time.monotonic() + seconds
        while not (self.folder / name).exists():
            assert time.monotonic() < end and self.process.poll() is None, self.process.communicate(timeout=10)
            time.sleep(0.02)
        return json.loads((self.folder / name).read_text())


def gone(those: Callable[[], set[int]], seconds: float = GONE) -> bool:
    end = time.monotonic() + seconds
    while those() and time.monotonic() < end:
        time.sleep(0.02)
    return not those()


@pytest.fixture
def torchrun(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Starts a script; whatever it leaves is a failure, and is ended."""
    names = shm_names()
    runs: list[Run] = []

    def start(text: str, *arguments: str, **options: Any) -> Run:
        runs.append(Run(tmp_path, text, *arguments, **options))
        return runs[-1]

    yield start
    for run in runs:
        left = run.members()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        run.process.communicate()
        assert not left
    assert not left_in_shm(names)


NOTE = """
import json, os, pathlib, signal, sys, time, psutil
rank, restart = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
def note(name, what):
    pathlib.Path(name + ".unfinished").write_text(json.dumps(what))
    os.rename(name + ".unfinished", name)
def workers(): return [child.pid for child in psutil.Process().children(recursive=True)]
"""


def shares(run: Run, name: str) -> list[list[int]]:
    return [run.noted(name.format(rank=rank)) for rank in range(RANKS)]


# ---------------------------------------------------------------------------------------------------------- the shares

# ----------------------------------------------------------------------------------------------------- a rank is killed

# The training example, with a sampler that records its order, and that kills rank 1 in the middle of its second epoch.
# No rank ends a file of json that it begins.  With torch's @record, rank 0 would write its error into one when rank 1
# is gone; torchrun would stop it meanwhile, and could not read the file.
TRAINING = (
    NOTE
    + """
import runpy, shmloader
json.dump = lambda data, file: time.sleep(60)
class Sampler(shmloader.DistributedSampler):
    epochs = 0
    def __iter__(self):
        self.epochs += 1
        order = list(super().__iter__())
        note(f"order-{restart}-{self.epochs}-{rank}", order)
        for k, index in enumerate(order):
            if (rank, restart, self.epochs, k) == ("1", "0", 2, 20):
                note("killed", workers())
                os.kill(os.getpid(), signal.SIGKILL)
            yield index
shmloader.DistributedSampler = Sampler
runpy.run_module("examples.train_ddp", run_name="__main__")
"""
)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for side, count in (("train", IMAGES // 2), ("test", 2)):
        for label in range(2):
            folder = tmp_path / "images" / side / str(label)
            folder.mkdir(parents=True)
            for k in range(count):
                Image.new("RGB", (32, 32), (200 * label, 5 * k, 0)).save(folder / f"{k}.jpg")
    return tmp_path / "images"


@pytest.mark.long
def test_training_goes_on_after_a_rank_is_killed(torchrun: Callable[..., Run], images: Path) -> None:
    run = torchrun(
        TRAINING,
        *("--data", str(images), "--checkpoint", "saved/checkpoint.pt", "--epochs", "3", "--batch-size", "2"),
        *("--image-size", "32", "--workers", str(WORKERS)),
        restarts=1,
    )
    workers = set(run.noted("killed"))
    assert len(workers) == WORKERS
    assert gone(lambda: workers & run.members()), "workers outlive their rank"
    status, out, err = run.end()
    assert status == 0, out + err
    assert re.fullmatch(
        r"epoch 1/3: loss \d\.\d+\n"
        r"going on after epoch 1 of saved/checkpoint\.pt\n"
        r"epoch 2/3: loss \d\.\d+\n"
        r"epoch 3/3: loss \d\.\d+\n"
        r"2 ranks x 2 workers: \d+ images/s \| \d+\.\d % of the time waiting for data \| test accuracy \d+\.\d\d %\n",
        out,
    ), out + err
    assert [file.name for file in (run.folder / "saved").iterdir()] == ["checkpoint.pt"]
    before, killed, again, last = (shares(run, f"order-{at}-{{rank}}") for at in ("0-1", "0-2", "1-1", "1-2"))
    assert killed == again, "the second epoch begins again in the same order"
    for mine, other in (before, again, last):
        assert sorted(mine + other) == list(range(IMAGES))
    assert before[0] != again[0] != last[0] != before[0]


@pytest.fixture(scope="module")  # gloo keeps a few descriptors for as long as the process lives
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    store = tmp_path_factory.mktemp("store") / "store"
    torch.distributed.init_process_group("gloo", f"file://{store}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.long
@pytest.mark.usefixtures("one_rank", "torch_settings")
def test_a_resumed_run_ends_as_one_that_was_never_stopped(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(name: str, *more: str) -> tuple[list[str], Any]:
        monkeypatch.setenv("LOCAL_RANK", "0")
        arguments = f"--data {images} --checkpoint {tmp_path / name} --epochs 3 --batch-size 8 --image-size 32".split()
        options = train_ddp.parse([*arguments, *more])
        train_ddp.train(find_images(images), options, torch.device("cpu"))
        lines = [re.sub(r"\d+ images/s.*waiting for data", "", line) for line in capsys.readouterr().out.splitlines()]
        return lines, torch.load(tmp_path / name, weights_only=True)

    def interrupted(state: Any, path: Path) -> None:
        if state["loader"]["epoch"] == 2:
            path.write_bytes(b"half a checkpoint")
            raise KeyboardInterrupt
        save(state, path)

    whole, state = run("whole.pt")
    save = torch.save
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(torch, "save", interrupted)
        run("parts.pt")
    assert capsys.readouterr().out.splitlines() == whole[:1]
    resumed, resumed_state = run("parts.pt")
    assert resumed == [f"going on after epoch 1 of {tmp_path / 'parts.pt'}", *whole[1:]]
    assert_same(resumed_state, state)
    again, _ = run("parts.pt")
    assert again == [f"going on after epoch 3 of {tmp_path / 'parts.pt'}", whole[-1]]

    taken = 0

    def signalled(self: LoaderClock, batches: Any) -> Iterator[Any]:
        nonlocal taken
        for batch in clocked(self, batches):
            taken += 1
            if taken == 9:
                signal.raise_signal(signal.SIGTERM)
            yield batch

    clocked, before = LoaderClock.batches, signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch:
        patch.setattr(LoaderClock, "batches", signalled)
        stopped, _ = run("signalled.pt")
    assert stopped == [whole[0], "SIGTERM: saved behind 24 samples of epoch 2"]
    assert signal.getsignal(signal.SIGTERM) is before
    resumed, resumed_state = run("signalled.pt")
    assert resumed[0] == f"going on behind 24 samples of epoch 2 of {tmp_path / 'signalled.pt'}"
    assert resumed[2:] == whole[2:]
    assert_same(resumed_state, state)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(LoaderClock, "batches", interrupted_at_ninth)
        run("every.pt", "--save-every", "2")
    capsys.readouterr()
    resumed, resumed_state = run("every.pt")
    assert resumed[0] == f"going on behind 16 samples of epoch 2 of {tmp_path / 'every.pt'}"
    assert_same(resumed_state, state)


def interrupted_at_ninth(self: LoaderClock, batches: Any) -> Iterator[Any]:
    for k, batch in enumerate(iter(batches)):
        self.waiting += 1
        if self.waiting == 9:
            raise KeyboardInterrupt
        yield batch
        assert k < 6


# ------------------------------------------------------------------------------------------------- a job is to end

# The training example, with images that their labels identify, which it records as it gets them.
NUMBERED = (
    NOTE
    + """
import runpy, torch, examples.image_folder, examples.loader_clock
class Folder(examples.image_folder.ImageFolder):
    def __getitem__(self, k):
        time.sleep(seconds)  # so that an epoch takes its time
        image, label = super().__getitem__(k)
        return image, label + 2 * k
class Clock(examples.loader_clock.LoaderClock):
    def batches(self, loader):
        got.append([])
        for images, labels in super().batches(loader):
            got[-1] += (labels // 2).tolist()
            if len(got[-1]) == 6: note("under-way-" + rank, workers())
            yield images, labels % 2
got, seconds = [], float(sys.argv.pop(1))
examples.image_folder.ImageFolder, examples.loader_clock.LoaderClock = Folder, Clock
runpy.run_module("examples.train_ddp", run_name="__main__")
note("got-" + rank, got)
"""
)


@pytest.mark.long
def test_training_that_gets_a_signal_continues_with_other_ranks(torchrun: Callable[..., Run], images: Path) -> None:
    arguments = ("--data", str(images), "--epochs", "2", "--batch-size", "2", "--image-size", "32", "--workers", "2")
    run = torchrun(NUMBERED, "0.3", *arguments, "--checkpoint", "1.pt")
    assert [len(those) for those in shares(run, "under-way-{rank}")] == [WORKERS] * RANKS
    run.signal_all(signal.SIGTERM)
    _, out, err = run.end()
    saved = re.search(r"^SIGTERM: saved behind (\d+) samples of epoch 1$", out, re.MULTILINE)
    assert saved, out + err
    samples = int(saved[1])
    assert 12 <= samples < IMAGES
    had = [i for epochs in shares(run, "got-{rank}") for i in epochs[0]]
    assert len(had) == samples
    shutil.copy(run.folder / "1.pt", run.folder / "3.pt")
    for ranks in (1, 3):
        run = torchrun(NUMBERED, "0", *arguments, "--checkpoint", f"{ranks}.pt", ranks=ranks)
        status, out, err = run.end()
        assert status == 0 and f"going on behind {samples} samples of epoch 1 of {ranks}.pt\n" in out, out + err
        after = [run.noted(f"got-{rank}") for rank in range(ranks)]
        rest = [i for epochs in after for i in epochs[0]]
        filled = -(IMAGES - samples) % ranks
        assert len(rest) == IMAGES - samples + filled
        assert set(had) | set(rest) == set(range(IMAGES)) and (filled or not set(had) & set(rest))
        assert sorted(i for epochs in after for i in epochs[1]) == list(range(IMAGES))


# ------------------------------------------------------------------------------------------------------- a rank raises
