"""The tests that every model has: it is sound, each mutant is caught, and each promise catches one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

import pytest
from model.explore import explore


class ModelChecks:
    """Explores one model.  A subclass is the tests of it.

    Attributes:
        model: The model's class.
        sound: Configurations in which no promise may be violated: their names and the model's arguments.
        large: The names of those that take long.
        mutants: The names of faults that the model can have.
        caught: For each mutant, a configuration in which it is caught, and the promise that it violates there.
        promises: All promises.  Each must be violated by some mutant, or it may be one that nothing can violate.
        fewest_states: How many states each configuration must have at least.
    """

    model: ClassVar[type[Any]]
    sound: ClassVar[dict[str, dict[str, Any]]]
    large: ClassVar[Collection[str]] = ()
    mutants: ClassVar[Collection[str]]
    caught: ClassVar[dict[str, tuple[dict[str, Any], str]]]
    promises: ClassVar[Collection[str]]
    fewest_states: ClassVar[int] = 1

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "configuration" in metafunc.fixturenames:
            marks = dict.fromkeys(self.large, pytest.mark.long)
            names = [pytest.param(name, marks=marks[name]) if name in marks else name for name in self.sound]
            metafunc.parametrize("configuration", names)
        if "mutant" in metafunc.fixturenames:
            metafunc.parametrize("mutant", self.mutants)

    def test_it_is_sound(self, configuration: str) -> None:
        found = explore(self.model(**self.sound[configuration]))
        assert not found.violated, "\n".join([found.violated, *found.trace])
        assert found.states >= self.fewest_states, f"{found.states} states: the configuration explores nothing"

    @pytest.mark.long
    def test_mutant_is_caught(self, mutant: str) -> None:
        options, promise = self.caught[mutant]
        violated = explore(self.model(**options, mutant=mutant)).violated
        assert violated == promise, f"it violates {violated or 'nothing'}, and should violate {promise}"

    def test_each_promise_catches_a_mutant(self) -> None:
        violated = {promise for _, promise in self.caught.values()}
        assert violated == set(self.promises), f"differ: {violated ^ set(self.promises)}"
