"""What a crew adds to the ring's protocol keeps its promises in every interleaving; each fault breaks one."""

from __future__ import annotations

from typing import Any

import pytest
from model.crew_model import AFTER_CLOSE, ANY, HEARS, MUTANTS, Crew
from model.explore import explore
from model.promises import NO_DEADLOCK, NO_IDLER

ALONE: dict[str, Any] = {"owners": ((0, 0), (0, 0)), "workers": 1}
OWNED: dict[str, Any] = {"owners": ((0,), (0, 1))}
STOLEN: dict[str, Any] = {"owners": ((ANY,), (ANY,))}
MIXED: dict[str, Any] = {"owners": ((0,), (ANY,))}
PARTS: dict[str, Any] = {"parts": True}

SOUND: dict[str, dict[str, Any]] = {
    "one worker": ALONE | PARTS,
    "one worker, killed": ALONE | PARTS | {"kills": 1},
    "each its own": OWNED,
    "each its own, closed at any time": {"owners": ((0,), (1,))} | PARTS,
    "stolen": STOLEN,
    "stolen, closed at any time": STOLEN | PARTS,
    "stolen beside each its own": MIXED,
    "stolen, a worker killed": MIXED | {"kills": 1},
}
LARGE = ("stolen, closed at any time",)

CAUGHT: dict[str, tuple[dict[str, Any], str]] = {
    "looks into one ring before it sleeps": (ALONE, NO_DEADLOCK),
    "messages are not looked at before it sleeps": (ALONE | PARTS, HEARS),
    "open rings another's bell": (OWNED, NO_DEADLOCK),
    "notify does not toll": (ALONE | PARTS, HEARS),
    "close does not wait": (ALONE | PARTS, AFTER_CLOSE),
    "close waits for claims alone": (ALONE | PARTS, AFTER_CLOSE),
    "heard before it parts": (ALONE | PARTS, AFTER_CLOSE),
    "nobody is woken for what is left": (MIXED, NO_IDLER),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in LARGE else name for name in SOUND]
)
def test_it_is_sound(name: str) -> None:
    found = explore(Crew(**SOUND[name]))
    assert not found.violated, "\n".join([found.violated, *found.trace])
    assert found.states > 100


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_caught(mutant: str) -> None:
    options, violated = CAUGHT[mutant]
    assert explore(Crew(**options, mutant=mutant)).violated == violated
