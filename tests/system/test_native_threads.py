"""Which threads of native libraries are named before a process forks workers beside them."""

from __future__ import annotations

import contextlib
import multiprocessing
import pathlib
import sys
import threading
import time
import types
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from scripts import run_script

import shmloader
from shmloader.commands.doctor import software
from shmloader.commands.doctor.finding import Wanted
from shmloader.system import native_threads, user_line

FORK, SPAWN = multiprocessing.get_context("fork"), multiprocessing.get_context("spawn")


@contextlib.contextmanager
def a_thread(name: str) -> Iterator[None]:
    """A thread that the kernel knows by this name."""
    named, end = threading.Event(), threading.Event()
    task = pathlib.Path("/nowhere")

    def wait() -> None:
        pathlib.Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)
        named.set()
        end.wait()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    try:
        assert named.wait(60)
        task = pathlib.Path(f"/proc/self/task/{thread.native_id}")
        yield
    finally:
        end.set()
        thread.join()
        while task.exists():  # join() returns before the kernel has removed the thread
            time.sleep(0.001)


@pytest.fixture(autouse=True)
def nothing_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_line, "_met", set())
    for library in native_threads.LIBRARIES:
        monkeypatch.delitem(sys.modules, library.module, raising=False)


def imported(monkeypatch: pytest.MonkeyPatch, name: str, version: str = "1.2.3") -> None:
    module: Any = types.ModuleType(name)
    module.__version__ = version
    monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize(
    ("library", "thread"),
    [("polars", "polars-0"), ("polars", "polars-17"), ("grpc", "event_engine"), ("jax", "tf_XLAEigen")],
)
def test_a_library_whose_threads_run_is_named(library: str, thread: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert native_threads.libraries_with_threads() == []
    with a_thread(thread):
        assert native_threads.libraries_with_threads() == []  # a thread that happens to have this name
        imported(monkeypatch, library)
        assert native_threads.libraries_with_threads() == [library]
    assert native_threads.libraries_with_threads() == []


def test_a_library_that_was_only_imported_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for library in native_threads.LIBRARIES:
        imported(monkeypatch, library.module, "0.1")
    with a_thread("polars-ooc-clea"), a_thread("jemalloc_bg_thd"), a_thread("grpc_global_tim"), a_thread("python"):
        assert native_threads.libraries_with_threads() == []


@pytest.mark.parametrize(("version", "named"), [("0.30.0", True), ("1.0.0", False), ("14.0.2", False), ("", False)])
def test_a_version_that_works_is_not_named(version: str, named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    imported(monkeypatch, "lance", version)
    with a_thread("lance_backgroun"):
        assert native_threads.libraries_with_threads() == (["lance"] if named else [])


@pytest.mark.parametrize(("given", "named"), [("1", False), ("True", False), ("0", True), (None, True)])
def test_grpc_can_be_made_to_work(given: str | None, named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    imported(monkeypatch, "grpc")
    monkeypatch.delenv("GRPC_ENABLE_FORK_SUPPORT", raising=False)
    if given is not None:
        monkeypatch.setenv("GRPC_ENABLE_FORK_SUPPORT", given)
    with a_thread("event_engine"):
        assert native_threads.libraries_with_threads() == (["grpc"] if named else [])


def test_a_loader_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    imported(monkeypatch, "polars")
    loader: Any = shmloader.DataLoader(range(8), batch_size=4, num_workers=1, multiprocessing_context="fork")
    with a_thread("polars-0"):
        with pytest.warns(RuntimeWarning, match="forked beside threads of polars, .*forkserver") as seen:
            assert len(list(loader)) == 2
        assert len([each for each in seen if "polars" in str(each.message)]) == 1  # CPython >= 3.12 warns of forks too
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert len(list(loader)) == 2


def test_workers_that_are_spawned_are_not_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    imported(monkeypatch, "polars")
    with a_thread("polars-0"), warnings.catch_warnings():
        warnings.simplefilter("error")
        native_threads.warn_before_fork(SPAWN)


# ------------------------------------------------------------------------------------------------------------ OpenMP


def test_an_openmp_of_its_own_is_known_by_where_its_threads_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The place where a thread of this process waits, and that of a library beside it."""
    imported(monkeypatch, "sklearn")
    with a_thread("python"):
        place = next(place for place in native_threads._places() if place)
        for low, high, named in ((place, place + 1, True), (place + 1, place + 2, False)):
            monkeypatch.setattr(native_threads, "_copies", lambda _, at=(low, high): [("sklearn", at)])
            assert (native_threads.libraries_with_threads() == ["sklearn"]) is named


def test_copies_of_openmp_are_found_in_the_folders_of_wheels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    maps = tmp_path / "maps"
    maps.write_text(
        "1000-2000 r-xp 0 0:1 2 /x/site-packages/torch.libs/libgomp-1.so\n"
        "3000-4000 r-xp 0 0:1 2 /x/site-packages/scikit_learn.libs/libgomp-2.so\n"
        "4000-5000 rw-p 0 0:1 2 /x/site-packages/scikit_learn.libs/libgomp-2.so\n"
        "6000-7000 r-xp 0 0:1 2 /x/site-packages/xgboost.libs/libgomp-3.so\n"
        "8000-9000 r-xp 0 0:1 2 /x/lib/libgomp.so.1\n"
    )
    monkeypatch.setattr(native_threads, "MAPS", str(maps))
    assert native_threads._copies.__wrapped__(("sklearn", "lightgbm")) == [("sklearn", (0x3000, 0x4000))]


# -------------------------------------------------------------------------------------------------- no false alarm

PLAIN = """
import warnings
warnings.simplefilter("error")
import numpy, torch, shmloader
torch.set_num_threads(4)
before = torch.ones(4_000_000).sum(), numpy.ones((500, 500)) @ numpy.ones((500, 500))
torch.ones(9, requires_grad=True).sum().backward()
from shmloader.system import native_threads
assert native_threads.libraries_with_threads() == []
loader = shmloader.DataLoader(torch.arange(8), batch_size=4, num_workers=2, multiprocessing_context="fork")
assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
print("quiet")
"""


def test_torch_and_numpy_alone_are_not_warned_of() -> None:
    ran = run_script(PLAIN)
    assert (ran.status, ran.out) == (0, "quiet\n"), ran.err


# ------------------------------------------------------------------------------------------------------------ doctor


WANTED = Wanted(1 << 20, 1, 2, 2, 1)


def test_the_doctor_names_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software.multiprocessing, "get_context", lambda: FORK)
    monkeypatch.setattr(software.importlib.util, "find_spec", lambda name: name if name == "polars" else None)
    found = software.fork_beside_threads(WANTED)
    assert (found.level, found.state) == ("note", "polars installed")
    assert "forkserver" in found.remedy
    monkeypatch.setattr(software.importlib.util, "find_spec", lambda name: None)
    assert software.fork_beside_threads(WANTED).level == "fine"
    monkeypatch.setattr(software.multiprocessing, "get_context", lambda: SPAWN)
    assert software.fork_beside_threads(WANTED).level == "fine"
