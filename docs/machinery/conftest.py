"""The site, as `make docs` has built it."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def site() -> Path:
    folder = ROOT / "build" / "docs" / "html"
    if not (folder / "index.html").exists():
        pytest.fail("there is no site to look at: make docs builds it first")
    return folder
