"""Loaders that others build, from one of ours or not: patch_torch() gives them options; without it, a warning."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch.utils.data
from conftest import Augmented, assert_same, seed_all
from scripts import run_script
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter
from torch.utils.data.datapipes.iter import IterableWrapper

import shmloader
from shmloader.system import user_line

OPTIONS: dict[str, Any] = {
    "on_worker_death": "respawn",
    "schedule": "steal",
    "on_bad_sample": "skip",
    "spare_slots": 3,
}


@pytest.fixture(autouse=True)
def _nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_line, "_met", set())


def rebuilt(loader: Any, **changed: Any) -> Any:
    """A loader from another one's attributes, as accelerate builds it: by torch's name."""
    names = "num_workers collate_fn pin_memory timeout worker_init_fn generator prefetch_factor persistent_workers"
    found = {name: getattr(loader, name) for name in names.split()} | changed
    return DataLoader(loader.dataset, batch_sampler=loader.batch_sampler, **found)


def as_ray_does(loader: Any) -> Any:
    """The same with the arguments that Ray Train hands on: no persistent_workers, no prefetch_factor."""
    sampler = torch.utils.data.DistributedSampler(loader.dataset, 2, 0, shuffle=False)
    names = "batch_size num_workers collate_fn pin_memory drop_last timeout worker_init_fn generator"
    return DataLoader(
        dataset=loader.dataset,
        shuffle=False,
        sampler=sampler,
        **{name: getattr(loader, name) for name in names.split()},
    )


def options_of(loader: Any) -> dict[str, Any]:
    return {name: getattr(loader, name) for name in OPTIONS}


@pytest.fixture
def silent() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        warnings.filterwarnings("ignore", r"patch_torch\(\) does not reach")
        yield


# -------------------------------------------------------------------------------------------------- under the patch


@pytest.mark.parametrize("build", [rebuilt, as_ray_does])
def test_a_rebuilt_loader_has_the_options_of_the_patch(build: Any, silent: None) -> None:
    loader = shmloader.DataLoader(Augmented(), batch_size=2, num_workers=1)
    with shmloader.patch_torch(**OPTIONS):
        theirs = build(build(loader))
    assert options_of(theirs) == OPTIONS and theirs.rides_ring
    assert len(list(theirs)) == len(theirs)


def test_and_not_those_of_the_loader_that_it_is_built_from(silent: None) -> None:
    loader = shmloader.DataLoader(Augmented(), num_workers=1, **OPTIONS)
    with shmloader.patch_torch(spare_slots=4):
        theirs = rebuilt(loader)
    assert (theirs.schedule, theirs.spare_slots) == ("round_robin", 4)


def test_what_is_given_goes_above_the_patch_and_a_later_patch_above_an_earlier_one(silent: None) -> None:
    with shmloader.patch_torch(spare_slots=4, on_worker_death="respawn", schedule="steal"):
        theirs: Any = DataLoader(Augmented(), num_workers=1, schedule="round_robin")  # type: ignore[call-arg]
        with shmloader.patch_torch(spare_slots=5):
            inner: Any = DataLoader(Augmented())
    assert (theirs.schedule, theirs.spare_slots, theirs.on_worker_death) == ("round_robin", 4, "respawn")
    assert (inner.schedule, inner.spare_slots, inner.on_worker_death) == ("steal", 5, "respawn")
    assert shmloader.DataLoader(Augmented()).spare_slots == 2


def test_a_named_class_has_the_options_of_the_patch(silent: None) -> None:
    class Theirs(DataLoader):
        def __init__(self, dataset: Any) -> None:
            super().__init__(dataset, num_workers=1)

    with shmloader.patch_torch(classes=[Theirs], on_worker_death="respawn"):
        assert Theirs(Augmented()).on_worker_death == "respawn"  # type: ignore[attr-defined]


def test_an_option_that_it_cannot_have_is_left_out_with_a_warning() -> None:
    loader = shmloader.DataLoader(Augmented(), num_workers=1, prefetch_factor=4)
    with (
        shmloader.patch_torch(look_ahead=4, schedule="steal"),
        pytest.warns(RuntimeWarning, match="was not given look_ahead=4.*is more than prefetch_factor=2"),
    ):
        theirs: Any = as_ray_does(loader)
    assert (theirs.look_ahead, theirs.schedule) == (None, "steal") and len(list(theirs)) == 11


@pytest.mark.off_the_ring
def test_and_so_is_what_only_the_ring_can_honour() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipe: Any = IterableWrapper(range(8))
    with (
        shmloader.patch_torch(on_worker_death="respawn", max_ring_bytes=1 << 30, spare_slots=3),
        pytest.warns(RuntimeWarning, match="was not given max_ring_bytes=1073741824, on_worker_death='respawn'"),
    ):
        theirs: Any = DataLoader(pipe, num_workers=1)
    assert (theirs.on_worker_death, theirs.max_ring_bytes, theirs.spare_slots) == ("raise", None, 3)
    with pytest.warns(RuntimeWarning, match="does not ride"):
        assert len(list(theirs)) == 8


def test_an_error_of_the_builders_own_is_its_own(silent: None) -> None:
    loader = shmloader.DataLoader(Augmented(), num_workers=1)
    with shmloader.patch_torch(spare_slots=3), pytest.raises(ValueError, match="prefetch_factor"):
        rebuilt(loader, prefetch_factor=-1)
    given: Any = {"group_by": "place", "num_workers": 1}
    with shmloader.patch_torch(spare_slots=3), pytest.raises(ValueError, match="has no __place__"):
        DataLoader(Augmented(), **given)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"on_worker_deaths": "respawn"}, TypeError, "takes shmloader's options, and not 'on_worker_deaths'"),
        ({"batch_size": 3}, TypeError, "an argument of torch's"),
        ({"on_bad_sample": "skip:"}, ValueError, "'skip:' with a number"),
    ],
)
def test_options_of_the_patch_are_checked(options: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        shmloader.patch_torch(**options)
    assert type(DataLoader([1])) is DataLoader


# ------------------------------------------------------------------------------------------------- without the patch


@pytest.mark.parametrize("build", [rebuilt, as_ray_does])
@pytest.mark.parametrize("keeps", [True, False])
def test_torchs_loader_built_from_ours_is_warned_of_once(build: Any, keeps: bool) -> None:
    loader: Any = shmloader.DataLoader(Augmented(), batch_size=2, num_workers=1, on_worker_death="respawn")
    theirs = build(loader)
    loader = loader if keeps else None
    gc.collect()
    with pytest.warns(RuntimeWarning, match="never iterated over.*respawn' has no effect.*patch_torch"):
        batches = len(list(theirs))
    assert batches == len(theirs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(theirs)


@pytest.mark.parametrize("workers", [0, 1])
def test_two_loaders_that_are_both_used_are_no_warning(workers: int) -> None:
    """A loader of torch's over the same dataset, for another purpose, is nobody's mistake."""
    dataset = Augmented()
    ours = shmloader.DataLoader(dataset, num_workers=workers, spare_slots=3)
    theirs = DataLoader(dataset, num_workers=workers)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(ours)) == len(list(theirs)) == 22


# ------------------------------------------------------------------------------------------------------- the escaped


class ByName(shmloader.DataLoader[Any]):
    def __iter__(self) -> Any:
        return _MultiProcessingDataLoaderIter(self)


@pytest.mark.off_the_ring
def test_torchs_iterator_by_name_is_warned_of_and_shows() -> None:
    loader: Any = ByName(Augmented(), batch_size=4, num_workers=1)
    assert loader.rides_ring
    seed_all()
    with pytest.warns(RuntimeWarning, match=r"ByName does not ride.*builds torch's iterator itself"):
        batches = list(loader)
    assert not loader.rides_ring and "_get_iterator()" in loader.why_not_ring()
    assert "torch's iterator" in str(loader.stats().why_not_ring)
    with pytest.raises(RuntimeError, match="torch's iterator"):
        loader.state_dict()
    seed_all()
    assert_same(batches, list(DataLoader(Augmented(), batch_size=4, num_workers=1)))
    assert len(list(loader._get_iterator())) == 6 and loader.rides_ring


def test_and_refused_where_the_ring_was_asked_for() -> None:
    loader = ByName(Augmented(), num_workers=1, on_worker_death="respawn")
    with pytest.raises(RuntimeError, match="only the ring can honour on_worker_death='respawn'"):
        iter(loader)


class Forgetful:
    """As fastai's: no loader of torch's, and it makes torch's iterator by name."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __iter__(self) -> Any:
        return _MultiProcessingDataLoaderIter(self)  # type: ignore[arg-type]


def test_the_patch_warns_of_loaders_that_it_does_not_reach() -> None:
    theirs = Forgetful(DataLoader(Augmented(), num_workers=1))
    with shmloader.patch_torch():

        class Later(DataLoader):
            pass

        with pytest.warns(RuntimeWarning, match=r"does not reach .*Later.*Give classes=\[Later\]"):
            list(Later(Augmented(), num_workers=1))
        with pytest.warns(RuntimeWarning, match="does not reach test_rebuilt_loaders.Forgetful.*does not inherit from"):
            assert len(list(theirs)) == 22


# ------------------------------------------------------------------------------------------------ the interpreter's end


@pytest.mark.parametrize(
    ("call", "device"),
    [("self._iterator._shutdown_workers()", None), ("self._iterator.close()", "cpu"), ("self.close()", None)],
)
def test_a_del_that_ends_the_workers_is_silent_at_exit(call: str, device: str | None) -> None:
    """As that of Streaming's loader, which runs when the names of our modules are already None."""
    ran = run_script(
        f"""
        import builtins
        import shmloader

        class Theirs(shmloader.DataLoader):
            def __del__(self):
                {call}

        loader = Theirs(range(8), num_workers=1, persistent_workers=True, device={device!r})
        builtins.held = loader
        print(next(iter(loader)).item())
        """
    )
    assert (ran.status, ran.out, ran.err) == (0, "0\n", "")
