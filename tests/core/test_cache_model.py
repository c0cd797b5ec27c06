"""The table of kept pictures keeps its promises in every interleaving; each rule of it is needed."""

from __future__ import annotations

from typing import Any

from model.cache_model import FINAL, FREE, MUTANTS, ONCE, ONE_WRITER, PROPERTIES, WHOLE, Cache
from model.checks import ModelChecks

TWO: dict[str, Any] = {"wants": ((0, 1), (1, 0))}
APART: dict[str, Any] = TWO | {"homes": (0, 1)}
KILLED: dict[str, Any] = {"wants": ((0,), (0,)), "kills": 1}
MISTAKEN: dict[str, Any] = {"wants": ((0,), (0,)), "errors": 1}
FAILING: dict[str, Any] = {"wants": ((0,), (0,)), "failures": 1}

SOUND: dict[str, dict[str, Any]] = {
    "two pictures": TWO,
    "two pictures, each at its place": APART,
    "two pictures, each at its place, one killed": APART | {"kills": 1},
    "three processes": {"wants": ((0, 1), (1, 0), (0,))},
    "a table that is too small": {"wants": ((0, 1), (1, 0)), "slots": 1},
    "one killed": {"wants": ((0, 1), (1, 0)), "kills": 1},
    "two killed, three processes": {"wants": ((0,), (0,), (0,)), "kills": 2},
    "taken for dead": {"wants": ((0, 1), (1, 0)), "errors": 2},
    "taken for dead, another one killed": {"wants": ((0, 1), (1, 0)), "errors": 1, "kills": 1},
    "there is no memory": {"wants": ((0, 1), (1, 0)), "failures": 2, "errors": 1},
}

LONG = ("taken for dead, another one killed", "two killed, three processes")

# mutant -> what it runs in, and what it violates
CAUGHT: dict[str, tuple[dict[str, Any], str]] = {
    "publish before the bytes are written": (TWO, WHOLE),
    "publish when half is written": ({"wants": ((0,), (0,))}, WHOLE),
    "publish by store": (MISTAKEN, FINAL),
    "claim by store": (TWO, FINAL),
    "take over by store": (MISTAKEN, FINAL),
    "release by store": ({**MISTAKEN, "failures": 1}, FINAL),
    "release is forgotten": (FAILING, FREE),
    "reserve in two steps": (APART, ONE_WRITER),
    "take over with the bytes of the dead": (MISTAKEN, ONE_WRITER),
    "who is dead is known by its pid alone": (KILLED, FREE),
    "the dead are left alone": (KILLED, FREE),
    "who meets a claim claims behind it": ({"wants": ((0,), (0,))}, ONCE),
    "an entry is taken for a claim's end": (TWO, FINAL),
}


class TestCacheTable(ModelChecks):
    model = Cache
    sound = SOUND
    large = LONG
    mutants = MUTANTS
    caught = CAUGHT
    promises = PROPERTIES
