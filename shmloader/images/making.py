"""From a transform to the reader that makes samples by it, and to the lines that explain it."""

from __future__ import annotations

from typing import Any

from shmloader.images.cache import Cache
from shmloader.images.operations import Call
from shmloader.images.reader import Reader
from shmloader.images.recipe import Recipe
from shmloader.images.recognise import recognise
from shmloader.images.rows import Rows
from shmloader.images.views import Views, ViewsReader

__all__ = ["Making"]


class Making:
    """Analyses a transform, and makes the reader for it.

    Args:
        transform: images.training(...) or images.evaluation(...); images.views(...) of several; anything that
            recognise() takes; None: samples are whole pictures.
        exact: see fuse().

    Attributes:
        is_fused: whether any of it is fused.
        notes: a line for each part: what it is, and whether it is fused or called.
    """

    def __init__(self, transform: Any, exact: bool) -> None:
        self._exact = exact
        self._is_several = type(transform) is Views
        several = transform.transforms if self._is_several else [transform]
        known: dict[int, Recipe] = {}  # several views may share one transform
        self._recipes = [known.get(id(one)) or known.setdefault(id(one), _recipe(one, exact)) for one in several]
        self.is_fused = self._is_several or _is_fused(self._recipes[0])
        self.notes: list[str] = []
        seen: dict[int, int] = {}
        for number, recipe in enumerate(self._recipes, 1):
            first = seen.setdefault(id(recipe), number)
            if self._is_several:
                self.notes.append(f"  view {number}{':' if first == number else f': as view {first}'}")
            if first == number:
                indent = "    " if self._is_several else "  "
                self.notes += [f"{indent}{transform}: {reason}" for transform, reason in recipe.notes]

    def reader(
        self, scale_on_device: bool, rows: Rows | None = None, cache: Cache | None = None
    ) -> Reader | ViewsReader:
        """The reader that makes samples; see Reader."""
        if self._is_several:
            return ViewsReader([Reader(recipe, self._exact, False) for recipe in self._recipes], cache)
        return Reader(self._recipes[0], self._exact, scale_on_device, rows, cache)


def _is_fused(recipe: Recipe) -> bool:
    return recipe.finish is not None or not all(isinstance(step, Call) for step in recipe.steps)


def _recipe(transform: Any, exact: bool) -> Recipe:
    if transform is None:
        return Recipe(notes=(("no transform", "samples are whole pictures, as bytes"),))
    if isinstance(transform, Recipe):
        return transform if transform.notes else Recipe(transform.steps, transform.finish, (), _notes(transform))
    return recognise(transform, exact)


def _notes(recipe: Recipe) -> tuple[tuple[str, str], ...]:
    parts: tuple[Any, ...] = (*recipe.steps, *(recipe.finish.operations if recipe.finish else ()))
    return tuple((repr(part), "fused") for part in parts)
