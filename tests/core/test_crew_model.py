"""What a crew adds to the ring's protocol keeps its promises in every interleaving; each fault breaks one."""

from __future__ import annotations

from typing import Any

import pytest
from model.crew_model import AFTER_CLOSE, ANY, MUTANTS, Crew
from model.explore import explore
from model.promises import NO_DEADLOCK, NO_IDLER

OWNED: dict[str, Any] = {"owners": ((0, 1), (1, 0))}
STOLEN: dict[str, Any] = {"owners": ((ANY, ANY), (ANY,))}
MIXED: dict[str, Any] = {"owners": ((0, 1), (ANY, ANY))}

SOUND: dict[str, dict[str, Any]] = {
    "each its own": OWNED,
    "each its own, closed at any time": OWNED | {"parts": True},
    "each its own, a worker killed": OWNED | {"parts": True, "kills": 1},
    "stolen": STOLEN | {"parts": True},
    "stolen beside each its own": MIXED | {"parts": True},
    "stolen, a worker killed": STOLEN | {"kills": 1},
}

CAUGHT: dict[str, tuple[dict[str, Any], str]] = {
    "looks into one ring before it sleeps": (OWNED, NO_DEADLOCK),
    "messages are not looked at before it sleeps": (OWNED | {"parts": True}, NO_DEADLOCK),
    "messages are not looked at again": (OWNED | {"parts": True}, NO_DEADLOCK),
    "open rings another's bell": (OWNED, NO_DEADLOCK),
    "notify does not toll": (OWNED | {"parts": True}, NO_DEADLOCK),
    "close does not wait": (OWNED | {"parts": True}, AFTER_CLOSE),
    "close waits for claims alone": (OWNED | {"parts": True}, AFTER_CLOSE),
    "heard before it parts": (OWNED | {"parts": True}, AFTER_CLOSE),
    "hears nothing while there is work": (OWNED | {"parts": True}, ""),  # it does the work first, and closing waits
    "nobody is woken for what is left": (MIXED, NO_IDLER),
}


@pytest.mark.parametrize("name", SOUND)
def test_it_is_sound(name: str) -> None:
    found = explore(Crew(**SOUND[name]))
    assert not found.violated, "\n".join([found.violated, *found.trace])
    assert found.states > 100


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_caught(mutant: str) -> None:
    options, violated = CAUGHT[mutant]
    assert explore(Crew(**options, mutant=mutant)).violated == violated
