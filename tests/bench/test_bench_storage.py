"""`python -m bench storage` measures shards beside files, and its server is slow, whole, and gone afterwards."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from bench.commands import parser, run
from bench.storage.places import place
from bench.storage.server import serving


def _get(url: str, part: str | None = None) -> bytes:
    request = urllib.request.Request(url, headers={"Range": part} if part else {})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
        data: bytes = answer.read()
    return data


def test_the_server(tmp_path: Path) -> None:
    (tmp_path / "0.tar").write_bytes(whole := bytes(range(256)) * 2000)
    begin = time.monotonic()
    with serving(str(tmp_path), latency=0.05, bytes_per_second=5e6) as url:
        assert _get(f"{url}0.tar") == whole
        assert _get(f"{url}0.tar", "bytes=100-199") == whole[100:200]
        assert _get(f"{url}0.tar", "bytes=511900-") == whole[511900:]
        with pytest.raises(urllib.error.HTTPError):
            _get(f"{url}none.tar")
        assert time.monotonic() - begin > 0.2 + len(whole) / 5e6  # it is never quicker than that
    with pytest.raises(urllib.error.URLError):
        _get(f"{url}0.tar")


@pytest.mark.parametrize(("groups", "fewer"), [(20, 10), (50, 4.5)])
def test_row_groups_are_decoded_less_often_by_place(groups: int, fewer: float) -> None:
    """2 workers, forked, so a window is 4 batches of 64 rows in random order; the batches are compared."""
    pytest.importorskip("pyarrow")
    rows_decoded = place(groups, 2, 64, batches=24)
    assert rows_decoded["without"] > 24 * 64 * 0.9 and rows_decoded["fewer"] >= fewer


@pytest.mark.long
def test_it_measures_files_shards_and_an_index(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    asked = "storage --rounds 1 --parts samples load index place cold --pictures 80 --shards 2 --groups 3"
    more = "--seconds 0.1 --members 20000 --into"
    assert run(parser().parse_args([*asked.split(), *more.split(), str(tmp_path)])) == 0
    figures = json.loads((tmp_path / "storage.json").read_text())["summary"]
    assert figures["samples"]["shards"]["to_files"]["median"] > 0
    assert figures["load"]["shards"]["figure"]["median"] > 0 and figures["index"]["one archive"]["made"]["median"] > 0
    assert figures["place"]["3 row groups"]["fewer"]["median"] > 1
    assert figures["cold"]["cold files, workers: 1"]["gain"]["median"] > 0
