"""An option goes from the face to the layer that acts on it, and is forgotten nowhere: NOTE [ Options ]."""

from __future__ import annotations

import ast
import copy
import dataclasses
import inspect
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data
from torch.utils.data import IterableDataset

import shmloader
from shmloader import off_the_ring
from shmloader.commands.tuning.measure import options_of
from shmloader.commands.tuning.setting import VARIED
from shmloader.far_workers import FarSession, FarWorkers, Ticket
from shmloader.options import DEFAULTS, Options

ROOT = Path(__file__).parent.parent.parent


def first(batch: Any) -> Any:
    return batch


class Nowhere(FarWorkers):
    """Far workers that are never started."""

    num, heartbeat, libraries = 1, 30.0, "warn"

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
    "prefetch_epochs": (True, {"persistent_workers": True}, 1),
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
    monkeypatch.setattr(off_the_ring, "_warned", set())


# ------------------------------------------------------------------------------------------------ nothing is forgotten


def test_the_signature_has_them_with_their_defaults_and_types() -> None:
    ours = inspect.signature(shmloader.DataLoader.__init__).parameters
    theirs = inspect.signature(torch.utils.data.DataLoader.__init__).parameters
    assert {name: one.default for name, one in ours.items() if name not in theirs} == DEFAULTS
    types = {one.name: one.type for one in dataclasses.fields(Options)}
    assert {name: one.annotation for name, one in ours.items() if name not in theirs} == types


def test_a_class_with_another_init_has_the_defaults() -> None:
    assert {name: vars(shmloader.DataLoader)[name] for name in DEFAULTS} == DEFAULTS


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
    made = shmloader.DataLoader(range(8), num_workers=1)
    setattr(made, name, wrong)
    with pytest.raises(ValueError, match=text):
        iter(made)


def test_what_is_set_later_holds_for_the_next_iterator() -> None:
    with shmloader.DataLoader(range(8), batch_size=4, num_workers=1) as made:
        made.device, made.on_device = "cpu", lambda batch: batch + 100
        assert [batch.tolist() for batch in made] == [[100, 101, 102, 103], [104, 105, 106, 107]]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


def test_what_is_set_later_must_suit_the_loader() -> None:
    made = shmloader.DataLoader(Stream(), num_workers=1)
    made.schedule = "steal"
    with pytest.raises(ValueError, match="schedule='steal' needs a map-style dataset, but got Stream"):
        iter(made)


def test_options_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Options().chunk_size = 4  # type: ignore[misc]


# ------------------------------------------------------------------------------------------- it goes with the loader


@each
def test_copies_have_it(name: str) -> None:
    made = loader(name)
    for other in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert Options.of(other) == Options.of(made) != Options()


@each
def test_whoever_rebuilds_a_loader_from_its_attributes_finds_it(name: str) -> None:
    made = loader(name)
    assert vars(made)[name] == VALUES[name][0]
    assert name in VARIED or options_of(made)[name] == VALUES[name][0]


@each
def test_patch_torch_gives_it(name: str) -> None:
    value, needs, _ = VALUES[name]
    torchs = {key: needed for key, needed in needs.items() if key not in DEFAULTS}
    ours = {**{key: needed for key, needed in needs.items() if key in DEFAULTS}, name: value}
    with shmloader.patch_torch(**ours):
        given = torch.utils.data.DataLoader(range(8), num_workers=1, **torchs)  # type: ignore[arg-type]
        assert getattr(given, name) == value
