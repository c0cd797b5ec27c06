"""What workers are started with: pickled once where they are spawned; and what their fork server has imported."""

from __future__ import annotations

import gc
import os
import pathlib
import resource
import threading
import warnings
import weakref
from multiprocessing import context, popen_forkserver, popen_spawn_posix, util
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
from conftest import BOTH, WARNS_OF_PICKLING, Items, descriptors
from scripts import run_script
from torch.multiprocessing.reductions import rebuild_cuda_tensor
from torch.utils.data import Dataset, get_worker_info

import shmloader
from shmloader.system import anonymous_files
from shmloader.system.spawn_arguments import SpawnArguments

SPAWNING = ["spawn", "forkserver"]


class Collected(Dataset):
    """Says whether a full collection looks through it."""

    def __init__(self) -> None:
        self.paths = [["a path"] for _ in range(3)]

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> bool:
        return any(found is self.paths for found in gc.get_objects())


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_the_dataset_is_not_looked_through_by_the_collector(start: str) -> None:
    before = gc.get_freeze_count()  # of the trainer, which is left as it is
    assert Collected()[0]
    with shmloader.DataLoader(Collected(), num_workers=1, multiprocessing_context=start) as loader:
        assert not any(batch.item() for batch in loader)
    assert before - 100 < gc.get_freeze_count() <= before  # some that were frozen may have been freed


def test_a_forked_worker_imports_nothing() -> None:
    text = """
import sys
import torch.utils.data, shmloader

class Imported(torch.utils.data.Dataset):
    before = ()

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return " ".join(name for name in sys.modules if name.startswith(("numpy", "torch", "shmloader"))
                        and name not in self.before)

Imported.before = set(sys.modules)
for batch in shmloader.DataLoader(Imported(), batch_size=4, num_workers=1, multiprocessing_context="fork"):
    print(batch)
"""
    ran = run_script(text, fresh=True)
    assert (ran.out, ran.err) == ("['', '', '', '']\n", "")


class Counted(Dataset):
    """Notes in a file each time it is pickled."""

    def __init__(self, folder: pathlib.Path, length: int = 12) -> None:
        self.note = str(folder / "pickled")
        self.length = length
        self.value = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return index, self.value

    def __getstate__(self) -> dict[str, Any]:
        with open(self.note, "ab") as note:
            note.write(b".")
        return self.__dict__


def pickled(folder: pathlib.Path) -> int:
    """How often a Counted in this folder was pickled."""
    note = folder / "pickled"
    return note.stat().st_size if note.exists() else 0


def open_parcels() -> int:
    return sum(count for name, count in descriptors().items() if "shmloader_parcel" in name)


# ------------------------------------------------------------------------------------------------------- with workers


class Equipped(Counted):
    """Holds what is inherited and not copied: memory, descriptors and locks."""

    def __init__(self, folder: pathlib.Path, start: str) -> None:
        super().__init__(folder)
        made = torch.multiprocessing.get_context(start)
        self.shared = torch.zeros(3, dtype=torch.int64).share_memory_()
        self.other = torch.arange(12)
        self.nothing = torch.empty(0)
        self.lock = made.Lock()
        self.queue = made.Queue()
        self.here, self.writer = made.Pipe(duplex=False)
        self.names = [f"{k}.jpeg" for k in range(50_000)]  # more than a pipe holds

    def __getitem__(self, index: int) -> Any:
        with self.lock:
            self.shared[get_worker_info().id] += 1
            self.shared[2] += 1
            self.writer.send(index)
        self.queue.put(index)
        return int(self.other[index]), self.names[index], gc.isenabled()


@pytest.mark.long
@pytest.mark.parametrize("start", SPAWNING)
def test_what_is_inherited_is_inherited_by_all(tmp_path: pathlib.Path, start: str) -> None:
    dataset = Equipped(tmp_path, start)
    options = {"batch_size": None, "num_workers": 2, "multiprocessing_context": start, "persistent_workers": True}
    with shmloader.DataLoader(dataset, **options) as loader:
        got = list(loader)
        assert pickled(tmp_path) == 1
        assert open_parcels() == 0, "nobody is started any more"
        assert got == [[k, f"{k}.jpeg", True] for k in range(12)]
        assert dataset.shared.tolist() == [6, 6, 12]
        assert sorted(dataset.queue.get(timeout=100) for _ in range(12)) == list(range(12))
        assert sorted(dataset.here.recv() for _ in range(12)) == list(range(12))
        dataset.shared += 10
        list(loader)
        assert dataset.shared.tolist() == [22, 22, 34], "the trainer's memory is the workers'"
    for end in (dataset.here, dataset.writer, dataset.queue):
        end.close()
    dataset.queue.join_thread()


class Outlived(Dataset):
    """It has its worker's multiprocessing say at the end whether the dataset is still there."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.asked = False

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        if not self.asked:
            self.asked = True
            util.Finalize(None, say_whether_there, (weakref.ref(self), self.path), exitpriority=10)
        return index


def say_whether_there(dataset: Any, path: pathlib.Path) -> None:
    torch.utils.data._utils.worker._worker_info = None  # torch < 2.14 leaves the dataset there
    path.write_text("there" if dataset() else "gone")


@pytest.mark.parametrize(("persistent", "start"), [(True, "spawn"), (False, "forkserver")])
def test_the_dataset_goes_with_the_loop(tmp_path: pathlib.Path, persistent: bool, start: str) -> None:
    """Before multiprocessing ends what it may use: its queues, its pools."""
    options = {"num_workers": 1, "multiprocessing_context": start, "persistent_workers": persistent}
    with shmloader.DataLoader(Outlived(tmp_path / "said"), **options) as loader:
        assert len(list(loader)) == 2
    assert (tmp_path / "said").read_text() == "gone"


def test_nothing_is_pickled_for_a_fork(tmp_path: pathlib.Path) -> None:
    dataset = Counted(tmp_path)
    dataset.bad = lambda: 1  # type: ignore[attr-defined]
    assert len(list(shmloader.DataLoader(dataset, num_workers=2, multiprocessing_context="fork"))) == 12
    assert pickled(tmp_path) == 0


@pytest.mark.long
def test_a_worker_that_takes_anothers_place_is_given_the_same(tmp_path: pathlib.Path) -> None:
    """Otherwise its batches would have what the trainer has set since, and those of the others would not."""
    dataset = Counted(tmp_path, 40)
    dataset.tensor = torch.ones(3)  # type: ignore[attr-defined]
    options = {"batch_size": None, "num_workers": 2, "multiprocessing_context": "spawn", "on_worker_death": "respawn"}
    with shmloader.DataLoader(dataset, **options) as loader:
        iterator = iter(loader)
        got = [next(iterator)]
        assert open_parcels() == 1
        dataset.value = 1
        iterator._workers[0].kill()
        got += [next(iterator) for _ in range(20)]
        assert pickled(tmp_path) == 1

        dataset.tensor = None  # type: ignore[attr-defined]  # the descriptor of the one before is closed by that
        iterator._workers[0].kill()
        got += list(iterator)
        assert pickled(tmp_path) == 2
    assert [index for index, _ in got] == list(range(40))
    values = [value for _, value in got]
    assert values[:21] == [0] * 21 and set(values[21:]) == {0, 1}
    assert open_parcels() == 0


@pytest.mark.parametrize("start", SPAWNING)
def test_what_cannot_be_pickled(tmp_path: pathlib.Path, start: str) -> None:
    messages = []
    for kind in BOTH:
        dataset = Items([torch.ones(2), threading.Lock()])  # a descriptor has been registered when it fails
        with warnings.catch_warnings(record=True) as caught, pytest.raises(TypeError) as raised:
            warnings.simplefilter("always")
            iter(kind(dataset, num_workers=2, multiprocessing_context=start))
        messages.append(str(raised.value))
        raised.value.__traceback__ = None  # it holds the half-made iterator
        texts = [str(w.message)[:16] for w in caught if w.category is UserWarning]
        assert texts == (["Got pickle error"] if WARNS_OF_PICKLING or kind is BOTH[1] else [])
        assert open_parcels() == 0
    assert messages[0] == messages[1]


@pytest.mark.long
def test_where_names_are_shared_each_worker_has_a_pickle_of_its_own() -> None:
    """A name that has had more readers than were counted is gone before its memory is."""
    ran = run_script(
        """
        import glob, os, time, torch, shmloader

        class Counted(torch.utils.data.Dataset):
            pickled = 0
            def __init__(self): self.tensor = torch.arange(3)
            def __len__(self): return 4
            def __getitem__(self, index): return self.tensor + index
            def __getstate__(self):
                Counted.pickled += 1
                return self.__dict__

        if __name__ == "__main__":
            torch.multiprocessing.set_sharing_strategy("file_system")
            loader = shmloader.DataLoader(Counted(), batch_size=None, num_workers=2, multiprocessing_context="spawn")
            print([batch.tolist() for batch in loader], Counted.pickled)
            del loader.dataset.tensor
            names = f"/dev/shm/torch_{os.getpid()}_*"
            end = time.monotonic() + 10
            while glob.glob(names) and time.monotonic() < end:  # torch's own process unlinks them
                time.sleep(0.05)
            print(glob.glob(names))
        """
    )
    assert ran.out == f"{[[k, k + 1, k + 2] for k in range(4)]} 2\n[]\n", ran.out + ran.err


# ------------------------------------------------------------------------------------------------------ without workers


def begin(value: Any, kind: Any = popen_spawn_posix.Popen, fds: tuple[int, ...] = (0,)) -> list[int]:
    """Pickle as a process that is given some descriptors is, and return what it is given then."""
    popen = kind.__new__(kind)
    popen._fds = list(fds)
    context.set_spawning_popen(popen)
    try:
        ForkingPickler.dumps(value)
    finally:
        context.set_spawning_popen(None)
    return popen._fds


@pytest.mark.parametrize("kind", [popen_spawn_posix.Popen, popen_forkserver.Popen])
def test_all_are_given_the_same_descriptors_at_the_same_places(tmp_path: pathlib.Path, kind: Any) -> None:
    here, away = os.pipe()
    with open(here), open(away, "w"):
        value = SpawnArguments({"dataset": Counted(tmp_path), "fd": Handed(away), "other": Handed(here)})
        first = begin(value, kind)
        assert first[:3] == [0, away, here] and len(first) == 4
        assert begin(value, kind) == first and pickled(tmp_path) == 1
        assert begin(value, kind, (0, 1))[:4] == [0, 1, away, here] and pickled(tmp_path) == 2, "at other places"
        value.close()
        value.close()


class Handed:
    """A descriptor that is handed over."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> Any:
        context.get_spawning_popen().duplicate_for_child(self.fd)
        return int, (self.fd,)


def test_a_descriptor_that_is_another_files_by_now(tmp_path: pathlib.Path) -> None:
    fd = os.memfd_create("test")
    value = SpawnArguments({"dataset": Counted(tmp_path), "fd": Handed(fd)})
    begin(value)
    begin(value)
    assert pickled(tmp_path) == 1
    other = os.memfd_create("test")
    os.dup2(other, fd)
    begin(value)
    assert pickled(tmp_path) == 2
    os.close(other)
    os.close(fd)
    value.close()


class Passing:
    """A descriptor that is closed as soon as it is handed over: a copy's, made to be pickled."""

    def __reduce__(self) -> Any:
        fd = os.memfd_create("test")
        context.get_spawning_popen().duplicate_for_child(fd)
        os.close(fd)
        return int, (fd,)


def test_a_descriptor_that_nobody_keeps(tmp_path: pathlib.Path) -> None:
    value = SpawnArguments({"dataset": Counted(tmp_path), "fd": Passing()})
    begin(value)
    begin(value)
    assert pickled(tmp_path) == 2
    value.close()


class Unknown(popen_spawn_posix.Popen):
    """Who knows what it does with its descriptors."""


def test_where_processes_are_spawned_otherwise(tmp_path: pathlib.Path) -> None:
    value = SpawnArguments({"dataset": Counted(tmp_path)})
    for times in (1, 2):
        assert begin(value, Unknown) == [0]
        assert pickled(tmp_path) == times
    assert type(ForkingPickler.loads(ForkingPickler.dumps(value))) is dict, "no process is being spawned"


def test_cuda_tensors_count_their_readers(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    plain = SpawnArguments({"dataset": Counted(tmp_path), "names": [str(k) for k in range(100_000)]})
    begin(plain)
    begin(plain)
    assert pickled(tmp_path) == 1
    plain.close()
    cuda = SpawnArguments({"dataset": Counted(tmp_path), "names": plain["names"], "tensor": rebuild_cuda_tensor})
    begin(cuda)
    begin(cuda)
    assert pickled(tmp_path) == 3
    cuda.close()


def test_too_little_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shmloader.system.anonymous_files.available_memory", lambda: 2 * anonymous_files.MiB)
    dataset = Items([bytes(8 * anonymous_files.MiB)])
    with pytest.raises(MemoryError, match=r"than 8 MiB of memory: 2 MiB are available\..* by fork") as raised:
        iter(shmloader.DataLoader(dataset, num_workers=2, multiprocessing_context="spawn"))
    raised.value.__traceback__ = None
    assert open_parcels() == 0


def test_a_limit_on_files_is_an_error() -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    value = SpawnArguments({"dataset": bytes(2 * anonymous_files.MiB)})
    resource.setrlimit(resource.RLIMIT_FSIZE, (anonymous_files.MiB, limits[1]))
    try:
        with pytest.raises(MemoryError, match="takes more than 2 MiB of memory: File too large"):
            begin(value)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert open_parcels() == 0


def test_no_thread_is_left_to_watch_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuses(thread: threading.Thread) -> None:
        if thread.name == "shmloader_watch":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuses)
    with pytest.raises(
        BlockingIOError, match=r"1 of 1 workers could be started. .* \(ulimit -u\) .*thread that watches"
    ):
        iter(shmloader.DataLoader(Items([1]), num_workers=1))


# ---------------------------------------------------------------------------------------------- killed as they start


@pytest.mark.parametrize("error", [EOFError("unexpected EOF"), BrokenPipeError(32, "Broken pipe"), EOFError()])
def test_a_worker_that_cannot_be_started(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """What multiprocessing raises where the fork server, or what it has forked, was killed."""

    def cannot_start(process: Any) -> None:
        raise error

    monkeypatch.setattr(context.ForkProcess, "start", cannot_start)
    loader = shmloader.DataLoader([1, 2], num_workers=2, multiprocessing_context="fork")
    with pytest.raises(RuntimeError, match="DataLoader worker 0 ended while it was being started") as caught:
        iter(loader)
    first, second = str(caught.value).splitlines()
    assert len(first) < 100 and "or the fork server" in second and "runs out of memory" in second
    assert caught.value.__cause__ is error


KILLED = """
import os, signal, sys, threading, time, shmloader
from multiprocessing import forkserver

class Dies:
    def __len__(self): return 8
    def __getitem__(self, index): return index
    def __reduce__(self): return die, ()

def die():
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    options = {"num_workers": 1, "multiprocessing_context": "forkserver"}
    try:
        list(shmloader.DataLoader(Dies(), **options))
    except RuntimeError as error:
        print(error)
    server = forkserver._forkserver._forkserver_pid
    os.kill(server, signal.SIGSTOP)  # it takes the next request, and never answers it
    threading.Timer(0.5, os.kill, (server, signal.SIGKILL)).start()
    try:
        list(shmloader.DataLoader(range(8), **options))
    except RuntimeError as error:
        print(error)
"""


@pytest.mark.long
def test_killed_as_they_start() -> None:
    ran = run_script(KILLED)
    lines = ran.out.splitlines()
    assert lines[0].endswith("exited unexpectedly") and lines[1].endswith("is killed by signal: Killed."), ran
    assert "It held no batch. Linux kills processes (SIGKILL) when the machine" in lines[2]
    assert lines[3] == "DataLoader worker 0 ended while it was being started (unexpected EOF)."
    assert lines[4].startswith("The worker was killed, or the fork server, which starts workers. Linux kills")


# ------------------------------------------------------------------------------------------------------ the fork server


DATASET = """
    import os, pathlib

    class Parents:
        '''Whether the process that forked this worker has torch.'''
        def __len__(self): return 2
        def __getitem__(self, i):
            return "libtorch" in pathlib.Path(f"/proc/{os.getppid()}/maps").read_text()
"""
LOADED = """
        import shmloader
        loader = shmloader.DataLoader(Parents(), batch_size=None, num_workers=1, multiprocessing_context="forkserver")
        print(list(loader), flush=True)
"""


@pytest.mark.parametrize(
    ("before", "has_torch"),
    [
        ("pass", True),
        ("multiprocessing.set_forkserver_preload(['json'])", False),
        pytest.param("multiprocessing.set_forkserver_preload([])", False, marks=pytest.mark.long),
        pytest.param("forkserver.ensure_running()", False, marks=pytest.mark.long),
    ],
    ids=["nothing", "a module of the user's", "nothing at all", "a server that runs"],
)
def test_the_fork_server_imports_torch_where_the_user_has_named_nothing(before: str, has_torch: bool) -> None:
    ran = run_script(f"""{DATASET}
    if __name__ == "__main__":
        import multiprocessing
        from multiprocessing import forkserver
        {before}
        {LOADED}
    """)
    assert (ran.status, ran.out.strip()) == (0, f"[{has_torch}, {has_torch}]"), ran.err


def test_other_processes_of_the_fork_server_draw_other_numbers() -> None:
    """NumPy before 2.0 brings numpy.random with each import of torch, so the server has it."""
    ran = run_script("""
    import os, random
    import numpy.random
    import shmloader.worker.preloaded

    for _ in range(2):
        if os.fork() == 0:
            print(numpy.random.random(), random.random(), flush=True)
            os._exit(0)
        os.wait()
    """)
    assert ran.status == 0 and len(set(ran.out.split())) == 4, ran.out + ran.err
