"""No order of threads, streams and drops has a slot filled under a copy; each rule that sees to it is needed."""

from __future__ import annotations

from typing import Any

import pytest
from model.explore import explore
from model.streams_model import ALIVE, MAPPED, MUTANTS, PROPERTIES, UNTOUCHED, Streams

SOUND: dict[str, dict[str, Any]] = {
    "watched": {},
    "closed at any time": {"closes": True},
    "out of sight, closed at any time": {"closes": True, "hidden": True},
}

CAUGHT: dict[str, tuple[dict[str, Any], str]] = {
    "only where it died": ({}, UNTOUCHED),
    "streams that were left are forgotten": ({}, UNTOUCHED),
    "streams of other threads are forgotten": ({}, UNTOUCHED),
    "the default stream is forgotten": ({}, UNTOUCHED),
    "a stream is left when another one is noted": ({}, UNTOUCHED),
    "the moment is taken behind the hand-out": ({}, UNTOUCHED),
    "a stream of others is asked when it is gone": ({}, ALIVE),
    "a mark is forgotten": ({}, UNTOUCHED),
    "what was left out of sight is forgotten": ({"hidden": True}, UNTOUCHED),
    "events are not waited for": ({}, UNTOUCHED),
    "unmapped without a wait": ({"closes": True, "hidden": True}, MAPPED),
}


LARGEST = "out of sight, closed at any time"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name == LARGEST else name for name in SOUND]
)
def test_watching_is_sound(name: str) -> None:
    found = explore(Streams(**SOUND[name]))
    assert not found.violated, "\n".join([found.violated, *found.trace])


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_caught(mutant: str) -> None:
    options, violated = CAUGHT[mutant]
    assert explore(Streams(**options, mutant=mutant)).violated == violated


def test_each_property_catches_a_mutant() -> None:
    assert {violated for _, violated in CAUGHT.values()} == set(PROPERTIES)
