"""What a crew adds to the ring's protocol keeps its promises in every interleaving; each fault breaks one."""

from __future__ import annotations

from typing import Any

from model.checks import ModelChecks
from model.crew_model import AFTER_CLOSE, ANY, HEARS, MUTANTS, Crew
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


class TestCrew(ModelChecks):
    model = Crew
    sound = SOUND
    large = LARGE
    mutants = MUTANTS
    caught = CAUGHT
    promises = (AFTER_CLOSE, HEARS, NO_DEADLOCK, NO_IDLER)
    fewest_states = 101
