"""A loader rides the ring, or says why not, and what only the ring can honour is refused: NOTE [ Off the ring ]."""

from __future__ import annotations

import types
import warnings
from typing import Any

import pytest
import torch
from conftest import Augmented
from scripts import run_script
from torch.utils.data.datapipes.iter import IterableWrapper

import shmloader
from shmloader.system import user_line

ONLY_ON_THE_RING: list[dict[str, Any]] = [
    {"on_worker_death": "respawn"},
    {"schedule": "steal"},
    {"chunk_size": 2},
    {"max_ring_bytes": 1 << 20},
]


@pytest.fixture(autouse=True)
def _nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_line, "_met", set())


def pipe() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return IterableWrapper(range(8))


class OfItsOwn(shmloader.DataLoader[Any]):
    """Makes its iterators itself, as loaders of other projects do."""

    def _get_iterator(self) -> Any:
        return iter([1, 2, 3])


# ------------------------------------------------------------------------------------------------------ warnings


def test_riding_is_silent() -> None:
    loader = shmloader.DataLoader(Augmented(), num_workers=1, on_worker_death="respawn")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert loader.rides_ring and loader.why_not_ring() is None
        assert len(list(loader)) == 22


@pytest.mark.parametrize("options", [{}, *ONLY_ON_THE_RING], ids=str)
def test_without_workers_there_is_no_warning_and_no_error(options: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = shmloader.DataLoader(Augmented(), num_workers=0, **options)
        assert not loader.rides_ring
        assert "num_workers is 0" in str(loader.why_not_ring())
        assert len(list(loader)) == 22


@pytest.mark.off_the_ring
def test_a_datapipe_is_warned_of_once() -> None:
    loader = shmloader.DataLoader(pipe(), num_workers=1)
    assert not loader.rides_ring
    with pytest.warns(RuntimeWarning, match="does not ride shmloader's ring.*DataPipes.*use a Dataset"):
        assert [int(x) for x in loader] == list(range(8))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert [int(x) for x in loader] == list(range(8))


@pytest.mark.parametrize("options", ONLY_ON_THE_RING[3:] + ONLY_ON_THE_RING[:1], ids=str)
def test_what_only_the_ring_honours_is_refused_when_it_is_made(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(RuntimeError, match=f"only the ring can honour {name}=.*DataPipes.*leave it out"):
        shmloader.DataLoader(pipe(), num_workers=1, **options)


def test_and_when_it_is_iterated_over() -> None:
    loader = shmloader.DataLoader(pipe(), on_worker_death="respawn")
    loader.num_workers = 1
    loader.prefetch_factor = 2
    with pytest.raises(RuntimeError, match="only the ring can honour on_worker_death='respawn'"):
        iter(loader)


def test_a_class_with_iterators_of_its_own() -> None:
    loader = OfItsOwn(Augmented(), num_workers=1)
    assert not loader.rides_ring
    with pytest.warns(RuntimeWarning, match="OfItsOwn.*OfItsOwn._get_iterator.*call super"):
        assert list(loader) == [1, 2, 3]


class Stateful(torch.utils.data.DataLoader):
    """As torchdata's StatefulDataLoader: it sets all up itself, and makes and keeps iterators of its own."""

    def __init__(self, *arguments: Any, snapshot_every_n_steps: int = 1, **options: Any) -> None:
        torch.utils.data.DataLoader.__init__(self, *arguments, **options)
        self.iterator: Any = None

    def __iter__(self) -> Any:
        self.iterator = self._get_iterator()
        return self.iterator

    def _get_iterator(self) -> Any:
        return OfStateful(torch.utils.data.dataloader._MultiProcessingDataLoaderIter(self))

    def state_dict(self) -> Any:
        return {"given": self.iterator.given}


class OfStateful:
    def __init__(self, source: Any) -> None:
        self.source, self.given = source, 0

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        batch = next(self.source)
        self.given += 1
        return batch


def stateful() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from torchdata.stateful_dataloader import StatefulDataLoader
        except ImportError:
            return [pytest.param(Stateful, marks=pytest.mark.off_the_ring)]
    # torchdata's iterators are not torch's, which the mark is about
    return [pytest.param(Stateful, marks=pytest.mark.off_the_ring), StatefulDataLoader]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("theirs", stateful())
@pytest.mark.parametrize("first", [True, False])
def test_a_loader_that_saves_its_state_is_theirs_with_a_warning(theirs: Any, first: bool) -> None:
    bases = (theirs, shmloader.DataLoader) if first else (shmloader.DataLoader, theirs)
    with pytest.warns(RuntimeWarning, match=f"the class Both will not ride.*{theirs.__name__}._get_iterator") as caught:
        both: Any = types.new_class("Both", bases)
    assert caught[0].filename == types.__file__
    loader = both(range(8), batch_size=2, num_workers=1)
    assert not loader.rides_ring and theirs.__name__ in loader.why_not_ring()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert loader.state_dict()
    for options in ONLY_ON_THE_RING:
        with pytest.raises((RuntimeError, TypeError), match=r"only the ring can honour|unexpected keyword argument"):
            both(range(8), num_workers=1, **options)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("options", [{}, {"on_worker_death": "respawn"}])
def test_torchs_loader_that_has_an_attribute_of_every_name(workers: int, options: dict[str, Any]) -> None:
    class Lenient(torch.utils.data.DataLoader[Any]):
        def __getattr__(self, name: str) -> Any:
            return None

    kept = shmloader.DataLoader(list(range(5)), num_workers=1, **options)  # torch's iterators are watched because of it
    assert [int(batch) for batch in Lenient(list(range(4)), num_workers=workers)] == [0, 1, 2, 3]
    assert kept.rides_ring


# -------------------------------------------------------------------------- a torch that lacks a name, or has another

# Each case is a child of one process that has imported torch and not yet shmloader.
CHANGED_TORCH = """
    import importlib, inspect, os, sys, traceback, types, warnings
    import torch, torch.utils.data, torch.autograd.profiler
    from torch.utils.data._utils import pin_memory, signal_handling, worker

    class Numbers(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return torch.full((2,), float(index)), index

    def collate(samples):  # default_collate, and what only pickle carries
        return *torch.utils.data.default_collate(samples), torch.nn.Parameter(torch.ones(1))

    PARTS = [0, 1, 2], [3, 4, 5], [6, 7]

    def outcome(loader):
        return [[x.tolist(), i.tolist(), y.tolist()] for x, i, y in loader]

    def owner(path):
        try:
            return importlib.import_module(path)
        except ImportError:
            module, _, last = path.rpartition(".")
            return getattr(owner(module), last)

    def other(found):
        if isinstance(found, type):
            def __init__(self, *, something_new):
                raise AssertionError("called with other arguments")
            return type(found.__name__, (found,), {"__init__": __init__})
        def function(*, something_new):
            raise AssertionError("called with other arguments")
        return function

    def child(name, change):
        path, _, last = name.rpartition(".")
        where = owner(path)
        found = vars(where)[last]
        is_module = isinstance(found, types.ModuleType)
        if change == "gone":
            delattr(where, last)
            if is_module:
                sys.modules[name] = None  # cannot be imported
        else:
            setattr(where, last, other(found))
        import shmloader

        if is_module:
            sys.modules[name] = found
        setattr(where, last, found)  # a torch that has changed the name goes by its own new one
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loader = shmloader.DataLoader(Numbers(), batch_size=3, num_workers=1, collate_fn=collate)
            ours = outcome(loader)
            assert ours == [[[[float(i)] * 2 for i in part], part, [1.0]] for part in PARTS], ours
            try:
                survivor = shmloader.DataLoader(
                    Numbers(), batch_size=3, num_workers=1, collate_fn=collate, on_worker_death="respawn"
                )
                assert survivor.rides_ring
                assert outcome(survivor) == ours
            except RuntimeError as error:
                assert not loader.rides_ring and name in str(error), error
        messages = [str(w.message) for w in caught if w.category is RuntimeWarning and name in str(w.message)]
        assert len(messages) == 1, messages
        print(name, change, "rides" if loader.rides_ring else "does not ride")

    def names():
        pipe = os.pipe()
        if not os.fork():
            from shmloader.private import lookup, of_torch
            os.write(pipe[1], repr((lookup.NAMES, lookup.CALLED)).encode())
            os._exit(0)
        os.wait()
        return eval(os.read(pipe[0], 1 << 16))

    failed = False
    NAMES, CALLED = names()
    for name in NAMES:
        path, _, last = name.rpartition(".")
        found = getattr(owner(path), last)
        checked = callable(found) and name in CALLED
        for change in ["gone", "other"] if checked else ["gone"]:
            if (pid := os.fork()) == 0:
                try:
                    sys.exit(child(name, change))
                except BaseException as error:
                    if not isinstance(error, SystemExit):
                        print("FAILED", name, change, flush=True)
                        traceback.print_exc()
                    sys.stdout.flush()
                    os._exit(1 if not isinstance(error, SystemExit) else 0)
            failed |= os.waitpid(pid, 0)[1] != 0
    sys.exit(failed)
"""


@pytest.mark.long
def test_each_private_name_gone_or_otherwise() -> None:
    ran = run_script(CHANGED_TORCH, flags=["-W", "ignore"])
    assert ran.status == 0, f"{ran.out}\n{ran.err}"
    assert "FAILED" not in ran.out
    assert "torch._C._set_worker_pids gone rides" in ran.out
    assert "torch._utils.ExceptionWrapper gone does not ride" in ran.out


# ---------------------------------------------------------------------------------------------- on another platform

ELSEWHERE = """
    import os, sys, warnings
    import torch, torch.utils.data
    sys.platform = "darwin"
    for name in ("eventfd", "pidfd_open", "memfd_create", "posix_fallocate", "sched_getaffinity"):
        if hasattr(os, name):
            delattr(os, name)
    class Nothing:
        def find_spec(self, name, path=None, target=None):
            if name.startswith("shmloader.core.") or name == "posix_ipc":  # not built
                raise ImportError(f"there is no {name} on this platform")
    sys.meta_path.insert(0, Nothing())
    import shmloader
    if __name__ == "__main__":
        data = torch.utils.data.TensorDataset(torch.arange(10))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loader = shmloader.DataLoader(data, batch_size=4, num_workers=2)
            batches = [[x.tolist() for x, in loader] for _ in range(2)]
            assert batches == [[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]] * 2, batches
            assert [x.tolist() for x, in shmloader.DataLoader(data, batch_size=10)] == [list(range(10))]
            patch = shmloader.patch_torch()
            assert type(torch.utils.data.DataLoader(data)) is shmloader.DataLoader
            patch.undo()
            jobs = shmloader.AsyncDataLoader(lambda n: [torch.ones(2)] * n, batch_size=2, device="cpu", num_workers=2)
            assert next(jobs).tolist() == [[1, 1], [1, 1]]
            jobs.close()
        messages = [str(w.message) for w in caught if w.category is RuntimeWarning]
        assert len(messages) == 1 and "needs 64-bit Linux, and this is darwin" in messages[0], messages
        for options in (dict(on_worker_death="respawn"), dict(schedule="steal"), dict(chunk_size=2)):
            try:
                shmloader.DataLoader(data, batch_size=4, num_workers=2, **options)
            except RuntimeError as error:
                assert "only the ring can honour" in str(error) and "darwin" in str(error)
            else:
                raise AssertionError(options)
            assert len(list(shmloader.DataLoader(data, batch_size=4, **options))) == 3
        print("done")
"""


def test_elsewhere_it_warns_once_and_loads_as_torch_does() -> None:
    ran = run_script(ELSEWHERE, fresh=True)
    assert ran.status == 0 and "done" in ran.out, f"{ran.out}\n{ran.err}"
