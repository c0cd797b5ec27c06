"""Most scripts use only a part of the package.  The rest is imported when it is used."""

from __future__ import annotations

import pytest
from scripts import run_script

import shmloader

LATE = ("AsyncDataLoader", "Shards", "attach", "freeze", "tune")
# One interpreter imports torch, and each program runs in a process that is forked from it.
FORKED = """
import os, traceback, torch.utils.data

def run(program):
    if os.fork() == 0:
        try:
            exec(program, {})
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    print(os.wait()[1])
"""
PLAIN = """
import sys, shmloader
LOOP
rooms = {"storage", "frozen", "commands", "readers", "images", "async_dataloader"}
late = [name for name in sys.modules if name.split(".")[:1] == ["shmloader"] and rooms & set(name.split(".")[1:2])]
assert not late, late
"""
STARRED = f"""
import shmloader
assert set(shmloader.__all__) <= set(dir(shmloader))
from shmloader import *
assert all(shmloader.__dict__[name] is globals()[name] for name in {LATE})
"""
LOOP = "for _ in shmloader.DataLoader(range(4), num_workers=1): pass"
PROGRAMS = [PLAIN.replace("LOOP", ""), PLAIN.replace("LOOP", LOOP), STARRED]
PROGRAMS += [f"import shmloader as loader; loader.{used}" for used in ("frozen.explain", "images.decode", *LATE)]


def test_a_plain_script_imports_none_of_them_and_one_import_reaches_each() -> None:
    ran = run_script(FORKED + "".join(f"run({program!r})\n" for program in PROGRAMS), fresh=True)
    assert (ran.status, ran.out.split()) == (0, ["0"] * len(PROGRAMS)), ran.err


def test_another_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="module 'shmloader' has no attribute 'Sharts'"):
        shmloader.Sharts  # noqa: B018
