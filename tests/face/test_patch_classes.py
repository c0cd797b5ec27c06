"""patch_torch() and subclasses of torch's loader: a warning for those not reached; named ones are ours, and theirs."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
import threading
import types
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch.utils.data
from conftest import Augmented, assert_same, seed_all
from scripts import run_script
from torch.utils.data import DataLoader

import shmloader
from shmloader import patch as patch_module
from shmloader.patch import Patch
from shmloader.trainer.iterator import RingIterator

TORCH_INIT = vars(DataLoader)["__init__"]


class Collater:
    def __init__(self, follow: list[str]) -> None:
        self.follow = follow

    def __call__(self, samples: list[Any]) -> Any:
        return torch.utils.data.default_collate(samples), self.follow


class OfGraphs(DataLoader):
    """As PyTorch Geometric's: it has its own options and collate function, and passes the rest on."""

    def __init__(self, dataset: Any, batch_size: int = 1, follow: list[str] | None = None, **options: Any) -> None:
        options.pop("collate_fn", None)
        self.follow = follow or []
        super().__init__(dataset, batch_size, collate_fn=Collater(self.follow), **options)


class OfTwo(DataLoader):
    """Passes on nothing that it does not know."""

    def __init__(self, dataset: Any) -> None:
        DataLoader.__init__(self, dataset, 2, False, num_workers=2)


class Mixin:
    mixed = True

    def __len__(self) -> int:
        return 1000


class Mixed(Mixin, OfGraphs):
    pass


class Meta(type):
    pass


class WithMeta(DataLoader, metaclass=Meta):
    __slots__ = ("slot",)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.slot = 1
        super().__init__(*arguments, **options)


class ReducesItself(DataLoader):
    def __reduce__(self) -> Any:
        return ReducesItself, (self.dataset, self.batch_size), {"reduced": True}

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)


class OwnIterator(DataLoader):
    def _get_iterator(self) -> Any:
        return iter([1])


class DerivedFromIt(OwnIterator):
    pass


class OwnIter(DataLoader):
    def __iter__(self) -> Any:
        return super().__iter__()


class ByGenerator(DataLoader):
    """As MONAI's ThreadDataLoader."""

    def __iter__(self) -> Any:
        yield from super().__iter__()


class Infinite(DataLoader):
    """As ultralytics' loader: its sampler never ends, and one iterator serves all epochs."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        object.__setattr__(self, "batch_sampler", Again(self.batch_sampler))
        self.iterator: Any = super().__iter__()

    def __len__(self) -> int:
        return len(self.batch_sampler.sampler)  # type: ignore[union-attr]

    def __iter__(self) -> Any:
        for _ in range(len(self)):
            yield next(self.iterator)

    def reset(self) -> None:
        self.iterator = self._get_iterator()


class Again:
    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Any:
        while True:
            yield from iter(self.sampler)


class Wrapping(DataLoader):
    """As PyTorch Geometric's NodeLoader: a function of its own is called with each batch."""

    def _get_iterator(self) -> Any:
        return Wrapped(super()._get_iterator())


class Wrapped:
    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self.iterator._reset(loader, first_iter)

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return "wrapped", next(self.iterator)


class Hook(DataLoader):
    """Its `__iter__` asks for torch's hook."""

    def __iter__(self) -> Any:
        return self._get_iterator()


class TorchsIter(DataLoader):
    """Its `__iter__` names torch's."""

    def __iter__(self) -> Any:
        return DataLoader.__iter__(self)


class Alias(DataLoader):
    """It has torch's own method, under another class's name."""

    _get_iterator = DataLoader._get_iterator


class KeepsToItself(DataLoader):
    def __iter__(self) -> Any:
        return (self.dataset[k] for k in range(3))


class NotMade(DataLoader):
    def __init_subclass__(cls, *, needed: int) -> None:
        pass


COVERABLE = [OfGraphs, OfTwo, Mixed, WithMeta, ReducesItself, OwnIter, Alias]
REACHED = [ByGenerator, Infinite, Wrapping, Hook, TorchsIter]


@pytest.fixture(autouse=True)
def _torch_is_whole(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(patch_module, "_warned", set())
    yield
    assert vars(DataLoader)["__init__"] is TORCH_INIT and not patch_module._covered and not patch_module._patches


@pytest.fixture
def quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def build(kind: Any, **options: Any) -> Any:
    return kind(Augmented()) if kind is OfTwo else kind(Augmented(), batch_size=2, num_workers=2, **options)


def epoch(loader: Any) -> tuple[type, list[Any]]:
    seed_all()
    iterator = iter(loader)
    return type(iterator), list(iterator)


# ----------------------------------------------------------------------------------------------------------- covering


@pytest.mark.parametrize("kind", COVERABLE)
def test_loaders_of_a_named_class_are_ours_and_theirs(kind: Any, quietly: None) -> None:
    torchs, theirs = epoch(build(kind))
    with shmloader.patch_torch(classes=[kind]):
        loader = build(kind)
    assert isinstance(loader, kind) and isinstance(loader, shmloader.DataLoader) and loader.rides_ring
    assert type(loader).__name__ == kind.__name__ and repr(type(loader)) == repr(kind)
    if "__init__" in vars(kind):
        assert inspect.signature(type(loader)) == inspect.signature(kind)
    ours, batches = epoch(loader)
    assert issubclass(ours, RingIterator) and not issubclass(torchs, RingIterator)
    assert_same(batches, theirs)
    assert len(loader) == len(build(kind))
    again = type(loader)(loader.dataset)  # as Lightning does
    assert isinstance(again, kind) and isinstance(again, shmloader.DataLoader)
    assert not isinstance(build(kind), shmloader.DataLoader)


@pytest.mark.parametrize(
    ("kind", "named", "persistent"),
    [(kind, named, (k + named) % 2 == 0) for k, kind in enumerate(REACHED) for named in (True, False)],
)
def test_a_class_whose_iterator_comes_by_another_way_is_reached(
    kind: Any, named: bool, persistent: bool, quietly: None
) -> None:
    """Equal batches of three epochs, and the iterators behind them are the ring's."""

    def three(make: Any) -> Any:
        seed_all()
        loader = make(Augmented(), batch_size=4, shuffle=True, num_workers=2, persistent_workers=persistent)
        return loader, [list(loader) for _ in range(3)]

    _, theirs = three(kind)
    if named:
        with shmloader.patch_torch(classes=[kind]), warnings.catch_warnings():
            warnings.simplefilter("error")
            loader, ours = three(kind)
    else:
        loader, ours = three(types.new_class("Both", (kind, shmloader.DataLoader)))
    assert loader.rides_ring and loader.stats().batches >= 18 and loader.stats().why_not_ring is None
    assert_same(ours, theirs)
    if kind is Infinite:
        loader.reset()
        assert isinstance(loader.iterator, RingIterator)


@pytest.mark.parametrize("kind", [*REACHED[2:], ByGenerator])
def test_it_goes_on_in_mid_epoch(kind: Any, quietly: None) -> None:
    """Batches that such a class hands on are counted, with workers and without."""
    made = types.new_class("Both", (kind, shmloader.DataLoader))
    for workers in 0, 1:
        seed_all()
        loader = made(range(20), batch_size=2, shuffle=True, num_workers=workers)
        iterator = iter(loader)
        before = [next(iterator) for _ in range(3)]
        state = loader.state_dict()
        rest = list(iterator)
        other = made(range(20), batch_size=2, shuffle=True, num_workers=workers)
        other.load_state_dict(state)
        assert_same(list(other), rest)
        assert len(before) + len(rest) == 10


def test_a_wrapper_behind_ours_is_not_passed_over() -> None:
    with pytest.warns(RuntimeWarning, match=r"will not ride .*Wrapping\._get_iterator.*name Wrapping before"):
        behind: Any = types.new_class("Behind", (shmloader.DataLoader, Wrapping))
    loader = behind([1, 2], num_workers=0)
    assert not loader.rides_ring and [word for word, _ in loader] == ["wrapped"] * 2


def test_what_they_override_holds(quietly: None) -> None:
    with shmloader.patch_torch(classes=[Mixed]):
        loader = Mixed(Augmented(), follow=["x"], num_workers=1, spare_slots=5, schedule="steal")
    assert loader.mixed and len(loader) == 1000 and loader.follow == ["x"]
    assert (loader.spare_slots, loader.schedule) == (5, "steal")
    assert next(iter(loader))[1] == ["x"]


def test_a_class_that_does_not_pass_on_options_has_the_defaults(quietly: None) -> None:
    with shmloader.patch_torch(classes=[OfTwo]):
        loader: Any = OfTwo(Augmented())
        with pytest.raises(TypeError, match="unexpected keyword argument 'schedule'"):
            OfTwo(Augmented(), schedule="steal")  # type: ignore[call-arg]
    assert (loader.schedule, loader.spare_slots, loader.chunk_size) == ("round_robin", 2, None)


def test_exactly_the_classes_that_were_named(quietly: None) -> None:
    with shmloader.patch_torch(classes=(kind for kind in [OfGraphs, OfGraphs, DataLoader])) as patch:
        assert patch.covered == (DataLoader, OfGraphs)
        assert not isinstance(build(Mixed), shmloader.DataLoader)  # derived from it
        assert not isinstance(build(OfTwo), shmloader.DataLoader)
        assert isinstance(build(OfGraphs), shmloader.DataLoader) and isinstance(build(DataLoader), shmloader.DataLoader)


def test_nested_and_undone_in_any_order(quietly: None) -> None:
    def ours() -> list[bool]:
        return [isinstance(build(kind), shmloader.DataLoader) for kind in (DataLoader, OfGraphs, OfTwo)]

    first, second = shmloader.patch_torch(classes=[OfGraphs]), shmloader.patch_torch(classes=[OfGraphs, OfTwo])
    before = build(OfGraphs)
    assert ours() == [True, True, True]
    with shmloader.patch_torch():
        second.undo()
        assert ours() == [True, True, False]
    first.undo()
    first.undo()
    assert ours() == [False, False, False]
    with second:
        assert ours() == [True, True, True]
        assert type(build(OfGraphs)) is type(before)
    assert ours() == [False, False, False] and isinstance(before, shmloader.DataLoader)


@pytest.mark.parametrize("protocol", [0, 2, pickle.HIGHEST_PROTOCOL])
@pytest.mark.parametrize("kind", [OfGraphs, Mixed, ReducesItself])
def test_they_pickle(kind: Any, protocol: int, quietly: None) -> None:
    with shmloader.patch_torch(classes=[kind]):
        loader = build(kind)
    for other in pickle.loads(pickle.dumps(loader, protocol)), copy.copy(loader), copy.deepcopy(loader):
        assert type(other) is type(loader) and len(other.dataset) == 22
        assert other.reduced if kind is ReducesItself else other.rides_ring
        assert isinstance(other, kind) and next(iter(other)) is not None
    assert pickle.loads(pickle.dumps(kind)) is kind


@pytest.mark.long
def test_sent_to_a_spawned_process() -> None:
    ran = run_script(
        """
        import multiprocessing, warnings
        warnings.simplefilter("ignore")
        import torch.utils.data
        import shmloader

        class Theirs(torch.utils.data.DataLoader):
            def __init__(self, count, **options):
                super().__init__(range(count), **options)

        def child(loader):
            print(type(loader).__name__, isinstance(loader, Theirs), loader.rides_ring, [int(x) for x in loader])
            print(isinstance(Theirs(3), shmloader.DataLoader))

        if __name__ == "__main__":
            with shmloader.patch_torch(classes=[Theirs]):
                loader = Theirs(4, num_workers=1)
            process = multiprocessing.get_context("spawn").Process(target=child, args=(loader,))
            process.start()
            process.join()
        """,
    )
    assert ran.status == 0, ran.err
    assert ran.out == "Theirs True True [0, 1, 2, 3]\nFalse\n"


def test_from_many_threads(quietly: None) -> None:
    wrong: list[Any] = []

    def patch_and_build() -> None:
        for _ in range(100):
            with shmloader.patch_torch(classes=[OfGraphs]):
                if not isinstance(OfGraphs([1]), shmloader.DataLoader):
                    wrong.append("torch's under the patch")

    threads = [threading.Thread(target=patch_and_build) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if type(loader := DataLoader([1])) not in (DataLoader, shmloader.DataLoader):
            wrong.append(loader)
    for thread in threads:
        thread.join()
    assert not wrong and not isinstance(OfGraphs([1]), shmloader.DataLoader)


# ----------------------------------------------------------------------------------------------------------- refusing


@pytest.mark.parametrize(
    ("kind", "error", "says"),
    [
        (OwnIterator, ValueError, r"cannot cover .*OwnIterator: .*OwnIterator has a _get_iterator\(\) of its own\.$"),
        (
            DerivedFromIt,
            ValueError,
            r"cannot cover .*DerivedFromIt: .*OwnIterator has a _get_iterator\(\) of its own\.$",
        ),
        (
            KeepsToItself,
            ValueError,
            r"KeepsToItself has an __iter__\(\) of its own, which calls neither super\(\)'s nor _get_iterator\(\)\.$",
        ),
        (NotMade, ValueError, "cannot cover .*NotMade: no class can inherit from it and .*needed"),
        (
            shmloader.DataLoader,
            ValueError,
            "got shmloader.dataloader.DataLoader, which is a shmloader.DataLoader already",
        ),
        (list, TypeError, "should be subclasses of torch.utils.data.DataLoader, but got <class 'list'>"),
        ("OfGraphs", TypeError, "but got 'OfGraphs'"),
    ],
)
def test_what_cannot_be_covered(kind: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        shmloader.patch_torch(classes=[OfGraphs, kind])
    assert not isinstance(OfGraphs([1]), shmloader.DataLoader)


# -------------------------------------------------------------------------------------------------------------- saying


def patched(**options: Any) -> tuple[Patch, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        patch = shmloader.patch_torch(**options)
    patch.undo()
    assert all(one.category is RuntimeWarning and one.filename == __file__ for one in caught)
    return patch, [str(one.message) for one in caught]


def about(kind: type, messages: list[str]) -> list[str]:
    return [message for message in messages if re.search(rf"\.{kind.__qualname__}, which inherits", message)]


def test_a_subclass_that_is_not_reached_is_warned_of_once_with_the_remedy() -> None:
    patch, messages = patched()
    (message,) = about(OfGraphs, messages)
    assert "patch_torch() does not reach test_patch_classes.OfGraphs" in message
    assert (
        "Give classes=[OfGraphs] to patch_torch(), or define `class Loader(OfGraphs, shmloader.DataLoader)" in message
    )
    (message,) = about(OwnIterator, messages)
    assert "patch_torch() cannot cover it: test_patch_classes.OwnIterator has a _get_iterator() of its own." in message
    assert len(about(Mixed, messages)) == 1, "one that is derived from another"
    assert patched()[1] == []
    assert OfGraphs in patch.uncovered and patch.covered == (DataLoader,)

    class Later(DataLoader):
        pass

    assert [len(about(Later, patched()[1])) for _ in range(2)] == [1, 0]


def test_classes_without_a_warning(quietly: None) -> None:
    class Ours(shmloader.DataLoader[Any]):
        pass

    class Both(OfGraphs, shmloader.DataLoader[Any]):
        pass

    class Stateful(DataLoader):
        __module__ = "torchdata.stateful_dataloader.stateful_dataloader"

    with shmloader.patch_torch(classes=[OfTwo]):
        made = build(OfTwo)
    patch, messages = patched(classes=[OfGraphs])
    for kind in Ours, Both, Stateful, OfGraphs, type(made):
        assert kind not in patch.uncovered
    assert not about(OfGraphs, messages) and len(about(OfTwo, messages)) == 1


def test_a_patch_tells_what_it_covers() -> None:
    patch, _ = patched(classes=[OfGraphs])
    with patch:
        text = repr(patch)
    covers, _, rest = text.partition("; does not reach ")
    assert covers == "<patch_torch() holds; covers torch.utils.data.DataLoader, test_patch_classes.OfGraphs"
    assert "test_patch_classes.OfTwo" in rest and "test_patch_classes.OfGraphs" not in rest
    assert repr(patch).startswith("<patch_torch() undone; covers")


def test_that_none_rides_where_the_ring_cannot_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    patch, _ = patched()
    assert re.search("none rides the ring: the ring needs 64-bit Linux, and this is darwin", repr(patch))
