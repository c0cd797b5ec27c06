"""Most scripts use only a part of the package.  The rest is imported when it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import shmloader

LATE = ("AsyncDataLoader", "Shards", "attach", "freeze", "tune")


@pytest.mark.parametrize("script", ["", "for _ in shmloader.DataLoader(range(4), num_workers=1): pass"])
def test_a_plain_script_imports_none_of_them(script: str) -> None:
    program = (
        f"import sys, shmloader\n{script}\n"
        "rooms = {'storage', 'frozen', 'commands', 'readers', 'images', 'async_dataloader'}\n"
        "print(sorted(name for name in sys.modules if name.split('.')[:1] == ['shmloader'] "
        "and rooms & set(name.split('.')[1:2])))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


def test_they_seem_to_be_there() -> None:
    program = (
        "import shmloader\n"
        f"assert set(shmloader.__all__) <= set(dir(shmloader))\n"
        "from shmloader import *\n"
        f"print([shmloader.__dict__[name] is globals()[name] for name in {LATE}])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.returncode) == (f"{[True] * len(LATE)}\n", 0), done.stderr


@pytest.mark.parametrize("used", ["frozen.explain", "images.decode", *LATE])
def test_one_import_reaches_it(used: str) -> None:
    program = f"import shmloader as loader; loader.{used}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_another_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="module 'shmloader' has no attribute 'Sharts'"):
        shmloader.Sharts  # noqa: B018
