"""The gallery: each example runs, rides the ring, and learns what its data has.  `make train`'s are elsewhere."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from scripts import run_script

import shmloader
from examples import actors, detection, imagenet, latents, packed_text, waiting

ROOT = Path(__file__).resolve().parents[2]


def test_rectangles_are_ragged_and_travel_as_they_are() -> None:
    dataset = detection.Rectangles(24)
    loader = shmloader.DataLoader(dataset, batch_size=8, num_workers=2, collate_fn=detection.as_lists)
    assert loader.rides_ring
    seen = 0
    for pictures, targets in loader:
        for picture, target in zip(pictures, targets, strict=True):
            here, found = dataset[seen]
            assert torch.equal(picture, here)
            assert torch.equal(target["boxes"], found["boxes"])
            seen += 1
    assert seen == 24
    assert len({picture.shape for picture, _ in map(dataset.__getitem__, range(24))}) > 1
    assert 0 in {len(target["boxes"]) for _, target in map(dataset.__getitem__, range(24))}


def test_text_is_packed_without_padding_and_written_in_place(tmp_path: Path) -> None:
    packed_text.write_tokens(tmp_path, most=20_000)
    dataset = packed_text.Packed(tmp_path, 64, 0, 1)
    loader = shmloader.DataLoader(dataset, batch_size=8, num_workers=2)
    assert loader.rides_ring
    tokens = torch.cat([batch["tokens"][:, :-1].flatten() for batch in loader])
    written = torch.from_numpy(dataset.tokens[: len(tokens)].copy())
    assert torch.equal(tokens, written.to(torch.int64))
    assert dataset[0]["documents"].max() < dataset[len(dataset) - 1]["documents"].min() + 1


def test_the_level_of_the_noise_is_the_same_for_any_number_of_workers(tmp_path: Path) -> None:
    file = tmp_path / "latents.bin"
    latents.write_latents(file, 16)
    seen = []
    for workers in (1, 2):
        torch.manual_seed(3)
        dataset = latents.Latents(file, 16)
        loader = shmloader.DataLoader(dataset, batch_size=4, num_workers=workers, sample_seeds=True)
        seen.append(list(loader))
    for one, other in zip(*seen, strict=True):
        assert torch.equal(one["level"], other["level"])
        assert torch.equal(one["latent"], other["latent"])


def test_the_report_on_a_loop_over_a_slow_disk_is_that_it_waits(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = waiting.main(["--batches", "16"])
    assert set(kinds) == {"quick", "disk", "uneven"}  # on a busy machine the other two may wait as well
    assert kinds["disk"] == "input-bound"
    assert "change:" in capsys.readouterr().out


@pytest.mark.long
def test_stripes_are_distinguished() -> None:
    assert imagenet.main([]) > 0.6


@pytest.mark.long
def test_the_reference_recipe_runs_under_torchrun() -> None:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "examples.imagenet"]
    ran = subprocess.run(
        [sys.executable, *torchrun, "--epochs", "2", "--workers", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("test accuracy") == 1


@pytest.mark.long
def test_rectangles_are_found() -> None:
    assert detection.main([]) > 0.6


@pytest.mark.long
def test_bytes_are_foretold() -> None:
    assert packed_text.main([]) < 4.5  # 8 are in a byte


@pytest.mark.long
def test_noise_is_foretold() -> None:
    assert latents.main([]) < 0.7  # 1 is what nothing but noise would leave


@pytest.mark.long
def test_the_pole_stands_longer() -> None:
    assert actors.main([]) > 60


@pytest.mark.parametrize("keeps", [False, True], ids=["drops batches", "keeps batches"])
def test_the_ring_in_100_lines_loses_nothing(keeps: bool) -> None:
    """Whichever batch its worker is killed in, and however many the user keeps."""
    ran = run_script(
        f"""
import os
from examples.ring_in_100_lines import Ring
before = sorted(os.listdir("/proc/self/fd"))
for dies_at in range(-1, 12):
    ring, held = Ring(12, dies_at), []
    try:
        for number, batch in enumerate(ring):
            assert batch.min() == batch.max() == number, (dies_at, number)
            held = [*held, batch] if {keeps} else []
    finally:
        ring.close()
    assert number == 11 and [batch[-1] for batch in held] == list(range(12)) * {keeps}, (dies_at, number)
assert sorted(os.listdir("/proc/self/fd")) == before
print("all came")
""",
    )
    assert ran.out == "all came\n" and not ran.err, ran.err


def test_the_ring_in_100_lines_ends_with_its_trainer() -> None:
    """run_script fails if a worker is left."""
    ran = run_script("""
import os, signal
from examples.ring_in_100_lines import Ring
for number, batch in enumerate(Ring(12, 5)):
    if number == 7: os.kill(os.getpid(), signal.SIGKILL)
""")
    assert ran.status == -signal.SIGKILL


@pytest.mark.long
def test_a_sweep_of_three_jobs_reads_one_server() -> None:
    ran = run_script("from examples import sweep\nif __name__ == '__main__':\n    sweep.main()")
    assert ran.status == 0 and not ran.err, ran.err
    # where Python does not buffer (PYTHONUNBUFFERED), two jobs may print into one line
    found = [float(right) for right in re.findall(r"learning rate [\d.]+: ([\d.]+)% of \d+", ran.out)]
    assert len(found) == 3 and max(found) > 90, ran.out


@pytest.mark.long
def test_two_tensor_parallel_ranks_get_the_same_batches() -> None:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "examples.same_batches"]
    ran = subprocess.run([sys.executable, *torchrun], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    # two ranks may print into one line
    found = sorted(re.findall(r"rank (\d), epoch (\d): ([\d.]+)%", ran.stdout))
    epochs = [(epoch, value) for _, epoch, value in found]
    assert len(epochs) == 6 and epochs[:3] == epochs[3:], ran.stdout
    assert float(epochs[2][1]) > 90, ran.stdout
