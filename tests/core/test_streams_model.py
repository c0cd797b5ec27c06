"""No order of threads, streams and drops has a slot filled under a copy; each rule that sees to it is needed."""

from __future__ import annotations

from typing import Any

from model.checks import ModelChecks
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

LARGE = ("out of sight, closed at any time",)


class TestStreams(ModelChecks):
    model = Streams
    sound = SOUND
    large = LARGE
    mutants = MUTANTS
    caught = CAUGHT
    promises = PROPERTIES
