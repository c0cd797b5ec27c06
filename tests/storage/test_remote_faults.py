"""A request that fails, hangs or is cut off, while others are under way: its batch raises, the others come whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import assert_same, iterate, seed_all

import shmloader
from bench.storage.archives import pack_sized
from bench.storage.server import CUT, FAIL, FAULTS, HANG, serving

SIZE, COUNT = 3000, 48
IN_TAR = 3072 + 512  # bytes from one picture's to the next


class Pictures(shmloader.Shards):
    def __getitem__(self, index: Any) -> Any:
        return torch.frombuffer(bytearray(super().__getitem__(index)["jpg"]), dtype=torch.uint8)


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an archive."""
    pytest.importorskip("aiohttp", reason="pip install aiohttp")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    pack_sized(tmp_path / "0.tar", COUNT, SIZE)
    with serving(str(tmp_path), latency=0.002, bytes_per_second=1e9) as url:
        yield f"{url}0.tar"


def pictures(url: str, tmp_path: Path) -> Pictures:
    """What is there, with an index that was made while all was well."""
    import aiohttp

    options = {"client_kwargs": {"timeout": aiohttp.ClientTimeout(total=1)}}
    dataset = Pictures(url, index=tmp_path / "index", storage_options=options, progress=False)
    assert len(dataset) == COUNT
    return dataset


def loader(dataset: Any, **options: Any) -> Any:
    given = {"batch_size": 4, "num_workers": 2, "multiprocessing_context": "fork", "prefetch_factor": 4, **options}
    return shmloader.DataLoader(dataset, **given)


def spoil(tmp_path: Path, index: int, fault: str) -> None:
    (tmp_path / FAULTS).write_text(f"{512 + index * IN_TAR} {fault}\n")


@pytest.mark.parametrize("depth", [*(pytest.param(depth, marks=pytest.mark.long) for depth in (0, 1)), 4])
@pytest.mark.parametrize(
    ("fault", "says"),
    [(FAIL, "500"), (CUT, "ClientPayloadError|payload|gave"), (HANG, "Timeout")],
)
def test_its_batch_raises(fault: str, says: str, depth: int, remote: str, tmp_path: Path) -> None:
    dataset = pictures(remote, tmp_path)
    spoil(tmp_path, 13, fault)
    whole, raised = [], []
    with loader(dataset, look_ahead=depth) as ours:
        batches = iter(ours)
        for number in range(COUNT // 4):
            try:
                batch = next(batches)
            except Exception as error:
                raised.append((number, f"{type(error).__name__}: {error}"))
            else:
                whole.append(batch[:, :4].contiguous().view(torch.int32).flatten().tolist())
    ((number, text),) = raised
    assert number == 3 and any(word in text for word in says.split("|")), text
    assert whole == [list(range(4 * k, 4 * k + 4)) for k in range(COUNT // 4) if k != 3]


@pytest.mark.parametrize("fault", [FAIL, CUT])
def test_it_is_replaced(fault: str, remote: str, tmp_path: Path) -> None:
    dataset = pictures(remote, tmp_path)
    spoil(tmp_path, 13, fault)
    found = []
    for depth in (0, 4):
        with loader(dataset, look_ahead=depth, on_bad_sample="skip:5", shuffle=True) as ours:
            seed_all()
            with pytest.warns(RuntimeWarning, match="13"):
                found.append(iterate(ours))
    assert_same(*found)


def test_equal_batches_at_any_depth(remote: str, tmp_path: Path) -> None:
    dataset, found = pictures(remote, tmp_path), []
    for depth in (0, 1, 2, 4):
        with loader(dataset, look_ahead=depth, shuffle=True) as ours:
            seed_all()
            found.append(iterate(ours))
    for batches in found[1:]:
        assert_same(batches, found[0])
