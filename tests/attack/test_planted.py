"""Each planted fault can still be planted: what it takes out is there, and so are the tests that must find it."""

from __future__ import annotations

import pytest

from tests.attack.plant import Plant
from tests.attack.planted import CHECKOUT, PLANTS


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.fault)
def test_it_can_be_planted(plant: Plant) -> None:
    assert not plant.not_there(CHECKOUT)
    for test in plant.tests:
        file, _, name = test.partition("::")
        assert not name or f"def {name.partition('[')[0]}(" in (CHECKOUT / file).read_text(), test
