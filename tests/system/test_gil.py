"""A Python without a GIL enables it for the core, and the user reads why."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import warnings

import pytest
from scripts import ROOT

from shmloader.system import gil

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def warnings_of(monkeypatch: pytest.MonkeyPatch, was_enabled: bool, is_enabled: bool) -> list[str]:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: is_enabled, raising=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gil.warn(was_enabled)
    return [f"{warning.category.__name__}: {warning.message}" for warning in caught]


def test_the_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    assert warnings_of(monkeypatch, True, True) == []
    (enabled,) = warnings_of(monkeypatch, False, True)
    assert enabled.startswith("RuntimeWarning: shmloader has enabled the GIL, because its core relies on it. A slot ")
    (forbidden,) = warnings_of(monkeypatch, False, False)
    assert forbidden.startswith("RuntimeWarning: shmloader runs without the GIL, on which its core relies. ")
    assert "PYTHON_GIL=0" in forbidden


def imported(*flags: str) -> subprocess.CompletedProcess[str]:
    code = "import sys, torch, shmloader; print(getattr(sys, '_is_gil_enabled', lambda: True)())"
    command = [sys.executable, *flags, "-c", code]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)


@pytest.mark.long
def test_the_warning_of_an_import() -> None:
    ran = imported()
    assert ran.stdout == "True\n"
    ours = "shmloader has enabled the GIL" in ran.stderr
    assert not ours or "(GIL) has been enabled to load module" in ran.stderr
    assert ours or "to load module 'shmloader." not in ran.stderr
    if not FREE_THREADED:
        assert "GIL" not in ran.stderr


@pytest.mark.long
@pytest.mark.skipif(not FREE_THREADED, reason="this Python cannot go without its GIL")
def test_the_warning_of_an_import_without_the_gil() -> None:
    ran = imported("-X", "gil=0")
    assert ran.stdout == "False\n" and "shmloader runs without the GIL" in ran.stderr
