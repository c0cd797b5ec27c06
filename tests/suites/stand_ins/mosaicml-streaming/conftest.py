"""In the place of the fixture that Streaming's archive lacks: two folders."""

from pathlib import Path

import pytest


@pytest.fixture
def local_remote_dir(tmp_path: Path) -> tuple[str, str]:
    return str(tmp_path / "local"), str(tmp_path / "remote")
