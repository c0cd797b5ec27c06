"""Options go from the face to the layer that acts on them, and bad ones are refused: NOTE [ Options ]."""

from __future__ import annotations

import ast
import copy
import dataclasses
import inspect
import pickle
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data
from conftest import BOTH, Augmented, assert_same, iterate

import shmloader
from shmloader.commands.tuning.measure import Setting, options_of
from shmloader.far_workers import FarSession, FarWorkers, Ticket
from shmloader.options import DEFAULTS, Options
from shmloader.system import user_line

ROOT = Path(__file__).parent.parent.parent


def first(batch: Any) -> Any:
    return batch


class Nowhere(FarWorkers):
    """Far workers that are never started."""

    num, heartbeat = 1, 30.0

    def address(self) -> str:
        raise NotImplementedError

    def begin(self, tickets: list[Ticket], arguments: dict[str, Any]) -> FarSession:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return type(other) is Nowhere

    __hash__ = FarWorkers.__hash__


# Of each option: a value other than its default, the arguments which that needs, and a value that it may not have.
VALUES: dict[str, tuple[Any, dict[str, Any], Any]] = {
    "spare_slots": (3, {}, -1),
    "max_ring_bytes": (1 << 30, {}, 0),
    "on_worker_death": ("respawn", {}, "retry"),
    "workers_outlive_signals": (False, {}, 0),
    "schedule": ("steal", {}, "fifo"),
    "chunk_size": (2, {"batch_size": 4}, 0),
    "group_by": (int, {}, "shard"),
    "device": ("cpu", {}, "gpu"),
    "on_device": (first, {"device": "cpu"}, "halve"),
    "sample_seeds": (True, {}, 1),
    "on_bad_sample": ("skip:0.5", {}, "skip:1.5"),
    "look_ahead": (1, {}, -1),
    "far_workers": (Nowhere(), {}, 32),
}
NAMES = sorted(DEFAULTS)
each = pytest.mark.parametrize("name", NAMES)


def loader(name: str) -> Any:
    value, needs, _ = VALUES[name]
    return shmloader.DataLoader(range(8), num_workers=1, **{**needs, name: value})


@pytest.fixture(autouse=True)
def _nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_line, "_met", set())


# ------------------------------------------------------------------------------------------------ nothing is forgotten


def test_the_signature_has_them_with_their_defaults_and_types() -> None:
    ours = inspect.signature(shmloader.DataLoader.__init__).parameters
    theirs = inspect.signature(torch.utils.data.DataLoader.__init__).parameters
    assert {name: one.default for name, one in ours.items() if name not in theirs} == DEFAULTS
    types = {one.name: one.type for one in dataclasses.fields(Options)}
    assert {name: one.annotation for name, one in ours.items() if name not in theirs} == types


class WithAnotherInit(shmloader.DataLoader[Any]):
    def __init__(self, dataset: Any) -> None:
        torch.utils.data.DataLoader.__init__(self, dataset, num_workers=1)


def test_a_class_with_another_init_has_the_defaults() -> None:
    with WithAnotherInit(range(3)) as made:
        assert Options.of(made) == Options()
        assert made.rides_ring and torch.cat(list(made)).tolist() == [0, 1, 2]


def test_the_docstring_and_the_reference_have_them() -> None:
    arguments = str(inspect.getdoc(shmloader.DataLoader)).partition("\nArgs:\n")[2].partition("\nRaises:\n")[0]
    assert set(re.findall(r"^ {4}(\w+): ", arguments, re.MULTILINE)) - {"in_order"} == set(DEFAULTS)
    tree = ast.parse((ROOT / "docs/machinery/option_pages.py").read_text())
    (about,) = (
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ABOUT"
    )
    assert isinstance(about, ast.Dict)
    assert {ast.literal_eval(key) for key in about.keys if key is not None} == set(DEFAULTS)


def test_each_has_values_here() -> None:
    assert VALUES.keys() == DEFAULTS.keys()
    assert all(value != DEFAULTS[name] for name, (value, _, _) in VALUES.items())


@each
def test_a_layer_reads_it_and_none_reads_the_loaders(name: str) -> None:
    """An iterator goes by the options that it was made with; the loader's attribute may have been set since."""
    meant = {"schedule": "steals", "on_worker_death": "respawns", "on_bad_sample": "skips_bad_samples"}
    meant["sample_seeds"] = "seeds_samples"
    read, passed_by = [], []
    for path in Path(shmloader.__file__).parent.rglob("*.py"):
        if path.name in ("dataloader.py", "options.py", "requirements.py"):
            continue
        code = re.sub(r'""".*?"""', "", path.read_text(), flags=re.DOTALL)
        read += [path.name] * bool(re.search(rf"\boptions\.({name}|{meant.get(name, name)})\b", code))
        passed_by += [path.name] * bool(re.search(rf"\bloader\.{name}\b", code))
    assert read and not passed_by


# ------------------------------------------------------------------------------------------------------- it is checked


@each
def test_a_wrong_value_is_refused_where_it_is_given(name: str) -> None:
    wrong = VALUES[name][2]
    text = rf"^{name} should be .*, but got {name}={re.escape(repr(wrong))}"
    with pytest.raises(ValueError, match=text):
        shmloader.DataLoader(range(8), **{name: wrong})
    with pytest.raises(ValueError, match=text):
        shmloader.patch_torch(**{name: wrong})


@each
def test_it_cannot_be_set_later(name: str) -> None:
    value = VALUES[name][0]
    made = shmloader.DataLoader(range(8), num_workers=1)
    text = rf"^{name} cannot be set on a loader that is made already, but got {name}={re.escape(repr(value))}\. Make"
    with pytest.raises(ValueError, match=text):
        setattr(made, name, value)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made.options, name, value)
    assert Options.of(made) == Options()


def test_a_copy_may_be_made_by_setting_attributes() -> None:
    made = shmloader.DataLoader(range(8), spare_slots=7, schedule="steal")
    other = object.__new__(shmloader.DataLoader)
    for name, value in vars(made).items():
        setattr(other, name, value)
    assert Options.of(other) == Options.of(made) and list(other) == list(made)


def test_what_an_option_needs_may_be_lost_later() -> None:
    made = shmloader.DataLoader(range(8), batch_size=4, num_workers=1, chunk_size=2)
    made.collate_fn = list
    with pytest.raises(ValueError, match="chunk_size needs default_collate or a collate_fn that is marked"):
        iter(made)


# ------------------------------------------------------------------------------------------- it goes with the loader


@each
def test_copies_have_it(name: str) -> None:
    made = loader(name)
    for other in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert Options.of(other) == Options.of(made) != Options()


@each
def test_whoever_rebuilds_a_loader_from_its_attributes_finds_it(name: str) -> None:
    made = loader(name)
    assert vars(made)[name] == getattr(made.options, name) == VALUES[name][0]
    assert name in Setting._fields or options_of(made)[name] == VALUES[name][0]


@each
def test_patch_torch_gives_it(name: str) -> None:
    value, needs, _ = VALUES[name]
    torchs = {key: needed for key, needed in needs.items() if key not in DEFAULTS}
    ours = {**{key: needed for key, needed in needs.items() if key in DEFAULTS}, name: value}
    with shmloader.patch_torch(**ours):
        given = torch.utils.data.DataLoader(range(8), num_workers=1, **torchs)  # type: ignore[arg-type]
        assert getattr(Options.of(given), name) == getattr(given, name) == value


# --------------------------------------------------------------------------------- a subclass's attributes are its own


OWN = object()  # which no option may be


class SetsBefore(shmloader.DataLoader[Any]):
    """Has attributes of its own before it calls __init__(), as torch's loader allows."""

    def __init__(self, *args: Any, own: Iterable[str], **kwargs: Any) -> None:
        for name in own:
            setattr(self, name, OWN)
        super().__init__(*args, **kwargs)


class SetsAfter(shmloader.DataLoader[Any]):
    def __init__(self, *args: Any, own: Iterable[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in own:
            setattr(self, name, OWN)


def has_them(own: Iterable[str]) -> Any:
    """A class that has them without an instance."""
    return type("Has", (shmloader.DataLoader,), dict.fromkeys(own, OWN))


def reads_them(own: Iterable[str]) -> Any:
    """A class that has them as properties, which nobody may set."""
    return type("Reads", (shmloader.DataLoader,), {name: property(lambda self: OWN) for name in own})


@pytest.mark.parametrize(
    ("own", "workers"), [*(([name], 0) for name in NAMES), ([*NAMES, "options"], 2)], ids=lambda value: str(value)[-12:]
)
def test_its_attributes_are_no_options(own: list[str], workers: int) -> None:
    asked: dict[str, Any] = {"batch_size": 4, "shuffle": True, "num_workers": workers}
    torch.manual_seed(7)
    batches = [batch.tolist() for batch in torch.utils.data.DataLoader(range(30), **asked)]  # type: ignore[arg-type]
    for kind in (SetsBefore, SetsAfter, has_them(own), reads_them(own)):
        named = {"own": own} if kind in (SetsBefore, SetsAfter) else {}
        torch.manual_seed(7)
        with kind(range(30), **asked, **named) as made:
            assert [batch.tolist() for batch in made] == batches
            assert all(getattr(made, name) is OWN for name in own)
            assert Options.of(made) == Options()
            assert made.rides_ring == bool(workers)
            made.close()


@pytest.mark.parametrize("kind", [SetsBefore, SetsAfter])
def test_what_is_given_is_an_option_beside_them(kind: Any) -> None:
    with kind(range(30), batch_size=4, num_workers=1, chunk_size=2, device="cpu", own=["chunk_size"]) as made:
        assert (Options.of(made).chunk_size, made.chunk_size, made.device) == (2, OWN, "cpu")
        assert len(list(made)) == 8


def test_init_once_more_gives_the_options_of_that_call() -> None:
    """Frameworks that rebuild a loader may call it on one that is there."""
    made = shmloader.DataLoader(range(4), spare_slots=7)
    vars(made)["_DataLoader__initialized"] = False  # otherwise torch lets nobody set `dataset` again
    made.__init__(range(4), spare_slots=3)  # type: ignore[misc]
    assert made.spare_slots == made.options.spare_slots == Options.of(made).spare_slots == 3


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize("memory", ["", "shm", "memfd "])
def test_ring_memory(monkeypatch: pytest.MonkeyPatch, memory: str) -> None:
    monkeypatch.setenv("SHMLOADER_RING_MEMORY", memory)
    text = f"should be auto, posix or memfd, but got SHMLOADER_RING_MEMORY={memory!r}. Unset it"
    with pytest.raises(ValueError, match=text):
        iter(shmloader.DataLoader(Augmented(), num_workers=1))


@pytest.mark.parametrize("ranks", ["0", "", "all", "-1", "4"])
def test_any_declared_number_of_ranks(monkeypatch: pytest.MonkeyPatch, ranks: str) -> None:
    """It decides about spinning alone, and another launcher than torchrun may say anything."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert [batch.item() for batch in shmloader.DataLoader(range(3), num_workers=1)] == [0, 1, 2]


@pytest.mark.parametrize("options", [{"sample_seeds": True}, {"schedule": "steal"}])
def test_what_is_no_batch_where_samples_are_seeded(options: dict[str, Any]) -> None:
    theirs, ours = (
        iterate(
            kind(range(4), batch_sampler=[[0, 1], 2, [3]], num_workers=1, **(options if kind is not BOTH[0] else {}))
        )
        for kind in BOTH
    )
    assert_same(ours[::2], theirs[::2])
    assert (ours[1].kind, ours[1].first_line) == (theirs[1].kind, theirs[1].first_line)
