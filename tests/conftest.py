"""What the tests share: torch's outcome beside ours, deep comparison, fork as the default, and checks of each test.
A test fails if it leaves anything behind, if torch's iterator serves our loader, or after HANGS.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import gc
import glob
import inspect
import multiprocessing
import os
import pathlib
import random
import re
import signal
import sys
import threading
import time
import warnings
from multiprocessing import forkserver, resource_tracker
from typing import Any

import numpy
import pytest
import scripts
import torch
import torch.utils.data
import tqdm
from factories import every_factory_is_named  # noqa: F401 - a fixture of all tests

import shmloader
from shmloader.system import limits

HANGS = 900  # seconds after which a test has failed: it hangs, and is not merely slow on a machine that is busy
BOTH = (torch.utils.data.DataLoader, shmloader.DataLoader)
# without workers, and with one that torch's own iterator is in charge of
WORKERS_OFF_THE_RING = pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.off_the_ring)])

# What torch's loader says differs from version to version; ours says what the newest does.
_TORCHS_WORDS = inspect.getsource(torch.utils.data.dataloader)
WARNS_OF_PICKLING = "Got pickle error" in _TORCHS_WORDS
ASKS_CUDA_ALONE = "loader.pin_memory and torch.cuda.is_available()" in _TORCHS_WORDS  # whether there is a device
IGNORES_PIN_MEMORY_DEVICE = "pin_memory_device is deprecated" in _TORCHS_WORDS
_ASSERTED = r"^(num_workers|prefetch_factor) must be greater than 0 for MultiProcessingDataLoaderIter$"
_ASSERTS_WITHOUT_A_WORD = "must be greater than 0 for MultiProcessingDataLoaderIter" not in _TORCHS_WORDS


def _let_threads_sleep() -> None:
    """Wait until no other thread runs: gcc's ASan has a lock that a fork beside a running thread may leave locked."""
    end = time.monotonic() + 1
    for task in pathlib.Path("/proc/self/task").iterdir():
        while int(task.name) != threading.get_native_id() and time.monotonic() < end:
            try:
                if (task / "stat").read_text().rpartition(")")[2].split()[0] == "S":
                    break
            except OSError:  # it has ended
                break
            time.sleep(0.001)


if "libasan" in os.environ.get("LD_PRELOAD", ""):  # make sanitize
    os.register_at_fork(before=_let_threads_sleep)


# ------------------------------------------------------------------------------------------------------ both loaders


@dataclasses.dataclass
class Raised:
    """An exception in place of a batch."""

    kind: type
    first_line: str
    text: str = ""


def seed_all(seed: int = 7) -> None:
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def into_environment(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> dict[str, Any]:
    """The options, without those that are environment variables: these are set for this test."""
    for name in filter(str.isupper, options):
        monkeypatch.setenv(name, options[name])
    return {name: value for name, value in options.items() if not name.isupper()}


def rng_states() -> list[Any]:
    return [
        torch.get_rng_state(),
        random.getstate(),
        [list(part) if isinstance(part, numpy.ndarray) else part for part in numpy.random.get_state()],
    ]


def iterate(loader: Any, most: int = 10_000) -> list[Any]:
    """All batches of an epoch, with a Raised wherever next() raised; the epoch goes on after it, as torch's does."""
    got = started(loader, most)
    assert len(got) < most, f"no end after {most} batches"
    return got


def started(loader: Any, most: int) -> list[Any]:
    """The same, of an epoch left after so many."""
    got: list[Any] = []
    try:
        iterator = iter(loader)
    except Exception as error:
        return [raised(error)]
    while len(got) < most:
        try:
            got.append(next(iterator))
        except StopIteration:
            break
        except Exception as error:
            got.append(raised(error))
    return got


def raised(error: BaseException) -> Raised:
    text = neutral(str(error))
    if _ASSERTS_WITHOUT_A_WORD:  # and asserts that it is greater, where ours asks whether it is not
        text = re.sub(_ASSERTED, "", text) if type(error) is AssertionError else text
        text = re.sub("^'>'(?= not supported between instances of 'NoneType')", "'<='", text)
    return Raised(type(error), (text.splitlines() or [""])[0], text)


def neutral(text: str) -> str:
    """A message without what no two runs have in common: pids, and the frames of ours that a traceback went through."""
    # of a lost worker, and of one that is late, ours says more below what torch says: see test_respawn.py
    text = re.sub(r"(exited unexpectedly)\n(DataLoader worker \(pid .*\n)*It held .*", r"\1", text)
    text = re.sub(r"(timed out after \S+ seconds)\nWorker (.|\n)*", r"\1", text)
    ours = re.escape(os.path.dirname(shmloader.__file__))  # a checkout's own folder may be called shmloader, too
    machinery = rf"{ours}/[\w/]+\.py|cython_ext/[\w/]+\.p(?:yx|xi)|/torch/utils/data/_utils/(?:worker|fetch)\.py"
    text = re.sub(rf'  File "[^"]*({machinery})".*\n(?:(?:    .*)?\n)*', "", text)
    text = re.sub(r'  File ".*", line \d+, in collate_tensor_fn\n(?:    .*\n)*', "", text)  # ours stand in its place
    quoted = rf'  File "[^"]*({machinery})"(?:(?!  File ").)*?\\n(?=  File|\w)'  # a text in a text: it is all one line
    text = re.sub(quoted, "", text)
    return re.sub(r"(pid(?:\(s\))?) \d+(?:, \d+)*", r"\1 N", text)


def outcome(
    kind: type, dataset: Any, *, epochs: int = 1, seed: int = 7, generator_seed: int | None = None, **options: Any
) -> Any:
    """What a loader of this class gives: each epoch's batches, and the state of the generators afterwards."""
    seed_all(seed)
    if generator_seed is not None:
        options["generator"] = torch.Generator().manual_seed(generator_seed)
    loader = kind(dataset(), **{key: value() if isinstance(value, Fresh) else value for key, value in options.items()})
    got = [iterate(loader) for _ in range(epochs)]
    states = rng_states()
    if options.get("generator") is not None:
        states.append(options["generator"].get_state())
    return got, states


class Passes:
    """A stage of a thread that is ahead: it does nothing with a batch."""

    def begin(self) -> None:
        pass

    def send(self, batch: Any) -> Any:
        return batch

    def failed(self) -> bool:
        return False

    def arrive(self, sent: Any) -> Any:
        return sent


class Fresh:
    """An option that is made for each of the two loaders: a sampler with a state, a collate function with one."""

    def __init__(self, make: Any) -> None:
        self.make = make

    def __call__(self) -> Any:
        return self.make()


def assert_same_outcome(dataset: Any, **options: Any) -> Any:
    """Run torch's loader and ours with the same options; returns our epochs once they are found equal."""
    (theirs, their_rng), (ours, our_rng) = (outcome(kind, dataset, **options) for kind in BOTH)
    assert_same(ours, theirs)
    assert_same(our_rng, their_rng)
    return ours


def label(value: Any) -> str:
    """A test's id: the value's repr without addresses, which differ from one pytest to another."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def compare(what: Any) -> Any:
    """Give torch's class and ours to a function: it must return the same, or raise the same, and warn the same.

    Returns what it returned for ours.
    """
    theirs, ours = (outcome_of(what, kind) for kind in BOTH)
    difference = None
    try:
        assert_same(ours[0], theirs[0], "outcome")
        assert_same(ours[1], theirs[1], "warnings")
    except AssertionError as error:
        difference = str(error)
    if difference is not None:
        del theirs, ours  # otherwise the failure keeps torch's batches, and their descriptors
        raise AssertionError(difference)
    return ours[0]


def outcome_of(what: Any, kind: type) -> tuple[Any, list[Any]]:
    """What the function returns or raises, and its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", ResourceWarning)  # these come when the collector does
        try:
            value = what(kind)
        except Exception as error:
            value = raised(error)
    # Python >= 3.12 says the first; the second is on_the_ring()'s to judge
    beside = ["multi-threaded, use of fork", "does not ride shmloader's ring"]
    beside += [] if WARNS_OF_PICKLING else ["Got pickle error"]
    mine = [w for w in caught if not any(words in str(w.message) for words in beside)]
    return value, [(w.category, neutral(str(w.message))) for w in mine]


# ---------------------------------------------------------------------------------------------------------- comparing


def assert_same(ours: Any, theirs: Any, at: str = "batch") -> None:
    """Type for type and bit for bit (so NaNs are equal)."""
    assert type(ours) is type(theirs), f"{at}: {type(ours)} for {type(theirs)}"
    if isinstance(theirs, torch.Tensor):
        assert_same_tensor(ours, theirs, at)
    elif isinstance(theirs, numpy.ndarray):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), at
        if theirs.dtype.hasobject:
            assert_same(ours.tolist(), theirs.tolist(), at)
        else:
            assert ours.tobytes() == theirs.tobytes(), at
        assert ours.flags.writeable == theirs.flags.writeable, f"{at}: writeable {ours.flags.writeable}"
    elif isinstance(theirs, collections.abc.Mapping):
        assert [(type(k), k) for k in ours] == [(type(k), k) for k in theirs], at
        for key in theirs:
            assert_same(ours[key], theirs[key], f"{at}[{key!r}]")
        assert getattr(ours, "default_factory", None) == getattr(theirs, "default_factory", None)
    elif isinstance(theirs, (list, tuple, collections.deque)):
        assert len(ours) == len(theirs), f"{at}: {len(ours)} items for {len(theirs)}"
        for k, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(a, b, f"{at}[{k}]")
    elif isinstance(theirs, (float, complex, numpy.generic)):
        assert repr(ours) == repr(theirs), at
    elif isinstance(theirs, (int, str, bytes, type(None), type)):
        assert ours == theirs, at
    elif dataclasses.is_dataclass(theirs) or hasattr(theirs, "__dict__"):
        for name in fields(theirs):
            assert_same(getattr(ours, name), getattr(theirs, name), f"{at}.{name}")
        assert fields(ours) == fields(theirs), at
    else:
        assert ours == theirs, at


def fields(value: Any) -> list[str]:
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    return list(vars(value))


def assert_same_tensor(ours: torch.Tensor, theirs: torch.Tensor, at: str) -> None:
    for what in ("dtype", "layout", "device", "shape", "requires_grad", "is_leaf", "is_nested", "is_quantized"):
        if what == "shape" and theirs.is_nested:
            continue
        assert getattr(ours, what) == getattr(theirs, what), f"{at}.{what}: {getattr(ours, what)}"
    if theirs.device.type == "meta":
        return
    if theirs.is_nested:
        assert_same(list(ours.unbind()), list(theirs.unbind()), at)
    elif theirs.is_quantized:
        assert ours.qscheme() == theirs.qscheme() and torch.equal(ours.int_repr(), theirs.int_repr()), at
        assert torch.equal(ours.dequantize(), theirs.dequantize()), at
    elif theirs.layout is torch.sparse_coo:
        assert ours.is_coalesced() == theirs.is_coalesced(), at
        assert_same([ours._indices(), ours._values()], [theirs._indices(), theirs._values()], at)
    elif theirs.layout in (torch.sparse_csr, torch.sparse_bsr):
        assert_same(
            [ours.crow_indices(), ours.col_indices(), ours.values()],
            [theirs.crow_indices(), theirs.col_indices(), theirs.values()],
            at,
        )
    else:
        assert bits(ours) == bits(theirs), f"{at}: {ours} for {theirs}"


def bits(tensor: torch.Tensor) -> bytes:
    """The elements of a tensor, in order, whatever their dtype."""
    with torch._C.DisableTorchFunctionSubclass():
        dense = tensor.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg()
        try:
            dense = dense.clone(memory_format=torch.contiguous_format)
        except RuntimeError:  # dtypes of less than a byte: a NotImplementedError, and not even that in torch 2.6
            assert dense.element_size() == 1
            dense = dense.view(torch.uint8).clone()
        return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8).numpy().tobytes()


# ------------------------------------------------------------------------------------------------------------ datasets


class Augmented(torch.utils.data.Dataset):
    """A dataset whose items depend on all three generators of the worker, and on how often they were drawn from."""

    def __init__(self, length: int = 22) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return {
            "x": torch.randn(3, 2) + index,
            "r": random.random(),
            "n": numpy.random.rand(2),
            "i": index,
            "s": f"item {index}",
        }


class Items(torch.utils.data.Dataset):
    """A dataset of given items; each is made by calling it, so that a worker can make what cannot be pickled."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        item = self.items[index]
        return item() if callable(item) else item


class Deadly(torch.utils.data.Dataset):
    """Another dataset, which kills its worker at some indices: as often as there are files for them in a folder.

    Args:
        dataset: The other one.
        folder: An empty folder.  When all workers have died that should, it is empty again.
        deaths: How often a worker dies, by index; or the indices at which one dies.
        how: What kills a worker.
    """

    def __init__(self, dataset: Any, folder: pathlib.Path, deaths: Any, how: Any = None) -> None:
        self.inner, self.folder, self.how = dataset, folder, how
        for index in deaths:
            for k in range(deaths[index] if isinstance(deaths, dict) else 1):
                (folder / f"{index}_{k}").touch()

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        item = self.inner[index]
        for path in self.folder.glob(f"{index}_*"):
            path.unlink()
            (self.how or die)()
        return item


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# ------------------------------------------------------------------------------------------------------------ /dev/shm


def mount_small_shm(size: str) -> None:
    """In a script: mount a /dev/shm of this size for it alone; print a message and end if that is forbidden."""
    if not scripts.own_shm(size):
        print("not permitted")
        sys.exit()


# ------------------------------------------------------------------------------------------------------------ leftovers


def shm_names() -> frozenset[str]:
    """All names in /dev/shm: what was there before, for left_in_shm()."""
    return frozenset(os.listdir("/dev/shm"))


def left_in_shm(before: frozenset[str]) -> set[str]:
    """Names in /dev/shm that are new and can be ours.

    Not torch's: it makes one for each tensor that it shares, and unlinks it at once.  A worker of torch's loader that
    ends in between leaves it, whichever test has started that worker.  test_start.py looks at those of our loaders.
    """
    others = "sem.mp-", "sem.loky-", "psm_", "torch_"
    return {name for name in shm_names() - before if not name.startswith(others)}


def children() -> set[int]:
    """The living processes that this one has started, and those that they have; not what stays for all tests.

    A process without a parent is not among them.  The kernel lists the children of each thread, which takes a tenth of
    the time that it takes to look at all processes of the machine.
    """
    keep = {resource_tracker._resource_tracker._pid, forkserver._forkserver._forkserver_pid, *scripts.server_pids()}
    found: set[int] = set()
    parents = [os.getpid()]
    while parents:
        for task in glob.glob(f"/proc/{parents.pop()}/task/*/children"):
            with contextlib.suppress(OSError):  # the thread has ended
                born = set(map(int, pathlib.Path(task).read_text().split()))
                parents += born - found
                found |= born
    return found - keep


def descriptors() -> collections.Counter[str]:
    found: collections.Counter[str] = collections.Counter()
    stay = set(map(str, scripts.server_descriptors()))
    for fd in set(os.listdir("/proc/self/fd")) - stay:
        with contextlib.suppress(OSError):  # the one of this listing
            target = re.sub(r":\[\d+\]", "", os.readlink(f"/proc/self/fd/{fd}"))
            if not target.endswith(".ttf"):  # matplotlib keeps its fonts open
                found[target] += 1
    return found


def without_the_drivers(found: collections.Counter[str]) -> collections.Counter[str]:
    """Without what a GPU's driver opens with its first work in a process, and keeps."""
    if not any(map(_is_the_drivers, found)):
        return found
    kept_open = {"pipe", "anon_inode:[eventfd]"}
    return collections.Counter(
        {what: n for what, n in found.items() if what not in kept_open and not _is_the_drivers(what)}
    )


def _is_the_drivers(target: str) -> bool:
    return target.startswith("/dev/nvidia")


def own_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


@pytest.fixture(scope="session", autouse=True)
def _settled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What starts once and stays (multiprocessing's own processes) is started before anything is counted."""
    os.environ["SHMLOADER_TEST_DIR"] = str(tmp_path_factory.mktemp("scripts"))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(scripts.ROOT), str(scripts.ROOT / "tests")])
    scripts.note_environment()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell has started this in the background
    tqdm.tqdm.monitor_interval = 0  # otherwise the first bar of any test starts a thread that stays
    resource_tracker.ensure_running()
    # Otherwise each worker of the fork server imports torch, which takes seconds of CPU.
    forkserver.set_forkserver_preload(["torch", "shmloader", "conftest"])
    forkserver.ensure_running()
    torch.multiprocessing.get_context("fork").SimpleQueue().put(torch.ones(1))
    list(torch.utils.data.DataLoader(Items([1, 2]), num_workers=1))
    list(shmloader.DataLoader(Items([1, 2]), num_workers=1))
    collect()
    yield
    scripts.close_server()


_frozen = 0  # modules whose objects the collector does not look at
_collected = 0  # times

FROZEN_EVERY = 20  # tests, which leave about a thousand objects of pytest's behind


def collect() -> None:
    """Collect, and have later collections pass over what is left: modules, pytest's reports of tests.

    gc.unfreeze() undoes this until the next time, and collections take a hundred times as long.  Nothing asks how many
    objects are frozen: Python counts them one by one, which takes 40 ms.
    """
    global _frozen, _collected
    gc.collect()
    _collected += 1
    if _collected % FROZEN_EVERY == 0 or len(sys.modules) > _frozen + 20:
        _frozen = len(sys.modules)
        gc.freeze()


off_the_ring: list[str] = []  # loaders of ours, with workers, that torch's own iterator was made for


def as_torchs(function: Any) -> Any:
    """The function, as if torch had compiled it, so that shmloader does not take it for other code's."""
    torchs = torch.utils.data.DataLoader.__len__.__code__
    function.__code__ = function.__code__.replace(co_filename=torchs.co_filename)
    return function


def _note_torchs_iterators() -> None:
    """Note where torch's own iterator serves a loader of ours: from below, whatever the loader says of itself."""
    kind = torch.utils.data.dataloader._MultiProcessingDataLoaderIter
    make = kind.__init__

    @functools.wraps(make)
    def noted(self: Any, loader: Any) -> None:
        if isinstance(loader, shmloader.DataLoader):
            off_the_ring.append(f"{type(loader).__name__}: {loader.why_not_ring()}")
        make(self, loader)

    kind.__init__ = as_torchs(noted)


def _join_what_torch_terminates() -> None:
    """Older torch leaves a worker that it had to terminate a zombie, which would be taken for one of ours."""
    kind = torch.utils.data.dataloader._MultiProcessingDataLoaderIter
    shut_down = kind._shutdown_workers

    @functools.wraps(shut_down)
    def joined(self: Any) -> None:
        try:
            shut_down(self)
        finally:
            if getattr(self, "_shutdown", False):  # otherwise it has ended none, because the interpreter seems to exit
                for worker in getattr(self, "_workers", ()):
                    if worker._parent_pid == os.getpid():
                        worker.join()

    kind._shutdown_workers = joined


_note_torchs_iterators()
_join_what_torch_terminates()


@pytest.fixture(autouse=True)
def on_the_ring(request: pytest.FixtureRequest) -> Any:
    """No test passes since torch's own iterator did the work, but one that is marked as being about that."""
    off_the_ring.clear()
    yield
    if request.node.get_closest_marker("off_the_ring") is None:
        assert not off_the_ring, "loaders with workers did not ride the ring"
    else:
        assert off_the_ring, "it is marked off_the_ring, and every loader of it rides"


@pytest.fixture(autouse=True)
def nothing_left(_settled: None) -> Any:
    """No process, descriptor, thread or name in /dev/shm outlives a test.  A new test has this check without asking."""
    collect()
    scripts.note_environment()
    before = descriptors(), shm_names(), own_threads(), children()
    yield
    end = time.monotonic() + scripts.GONE
    while True:
        left = {
            "descriptors": dict(without_the_drivers(descriptors() - before[0])),
            "/dev/shm": left_in_shm(before[1]),
            "threads": own_threads() - before[2],
            "processes": children() - before[3],
        }
        if not any(left.values()):
            return
        if time.monotonic() > end:
            break
        gc.collect()  # only here, because it takes longer than to look
        time.sleep(0.05)
    raise AssertionError(f"left behind: { {what: those for what, those in left.items() if those} }")


@pytest.fixture
def groups(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A folder taken for this machine's control groups; `membership` in it says which is this process's."""
    monkeypatch.setattr(limits, "CGROUPS", tmp_path)
    monkeypatch.setattr(limits, "MEMBERSHIP", tmp_path / "membership")
    return tmp_path


def write_files(folder: pathlib.Path, **files: object) -> None:
    """Files of one line, as the kernel has them: `memory__max=5` is memory.max."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


@pytest.fixture
def torch_settings() -> Any:
    """Training changes how torch computes in this process; the tests that follow must not notice."""
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)


def differs(reason: str) -> Any:
    """What ours does otherwise than torch's; once it does not, the mark must go."""
    return pytest.mark.xfail(strict=True, reason=reason)


@pytest.fixture(scope="module")
def impatient_torch() -> Any:
    """torch looks for dead workers every 5 s, and waits as long for each that it can no longer reach."""
    iterator = torch.utils.data.dataloader._MultiProcessingDataLoaderIter
    with pytest.MonkeyPatch.context() as patch:
        for module in (torch.utils.data._utils, torch.utils.data._utils.worker):
            patch.setattr(module, "MP_STATUS_CHECK_INTERVAL", 0.2)
        patch.setattr(iterator._try_get_data, "__defaults__", (0.2,))
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--start-method",
        default="fork",
        choices=multiprocessing.get_all_start_methods(),
        help="how workers start in a test that names no method: most tests have what only a forked worker inherits",
    )


@pytest.hookimpl(tryfirst=True)  # before a test file makes a lock of the default context
def pytest_configure(config: pytest.Config) -> None:
    multiprocessing.set_start_method(config.getoption("--start-method"), force=True)


def pytest_make_parametrize_id(val: Any) -> str | None:
    return label(val) if " at 0x" in repr(val) else None


@pytest.hookimpl(tryfirst=True)  # before `-m "not long"` is looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("forked") is not None and multiprocessing.get_start_method() != "fork":
            item.add_marker(pytest.mark.skip(reason="its workers inherit what cannot be pickled"))
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(HANGS))
        case = getattr(item, "callspec", None)
        if case is not None and re.search("spawn|forkserver", case.id):  # each worker imports torch: a second and more
            item.add_marker(pytest.mark.long)
