"""A program of a user as plain data: it can be drawn, printed, compared, and made smaller."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Data:
    """A dataset.

    Attributes:
        kind: "rows" (map-style), or a stream: "stream", "stream with state", "stream whose iterator has state".
        length: How many samples it has; a stream deals them out to its workers.
        form: The form of a sample: a key of `FORMS` in datasets.py.
        noise: The generator that each sample draws a number from: "", "torch", "random" or "numpy".
        habit: A habit of the dataset: "" or a key of `HABITS` in datasets.py.
        at: The sample at which it does that.
    """

    kind: str = "rows"
    length: int = 8
    form: str = "number"
    noise: str = ""
    habit: str = ""
    at: int = 3


@dataclass(frozen=True)
class Order:
    """A sampler: a key of `ORDERS` in samplers.py.

    Attributes:
        kind: The key.
        at: The place where it raises, if it does.
        ranks: How many ranks a "distributed" one serves.
        other: What is not as the seed of the others has it: a key of OTHERS in samplers.py.
    """

    kind: str = "in order"
    at: int = 3
    ranks: int = 2
    other: str = ""


@dataclass(frozen=True)
class Do:
    """One action of the user; source.py has the lines of each verb."""

    verb: str
    count: int = 0
    what: str = ""


@dataclass(frozen=True)
class Program:
    """A program: one loader, and what the user does with it."""

    seed: int = 0
    data: Data = field(default_factory=Data)
    order: Order = field(default_factory=Order)
    batch_size: int | None = 2
    collate: str = ""
    options: tuple[tuple[str, Any], ...] = ()
    actions: tuple[Do, ...] = ()
    loader: str = ""  # the class that the user derives: a key of LOADERS in loaders.py
    keep: int = 0  # how many of the latest batches the user holds on to
    shm: str = ""  # the size of a small /dev/shm that the program has, as in a container: "1m"

    def get(self, name: str, unless: Any = None) -> Any:
        """The value of an option of the loader."""
        return dict(self.options).get(name, unless)

    def with_options(self, **options: Any) -> Program:
        """The same with other options; None leaves one out."""
        changed = {**dict(self.options), **options}
        return replace(self, options=tuple((name, value) for name, value in changed.items() if value is not None))

    @property
    def workers(self) -> int:
        return int(self.get("num_workers", 0))

    @property
    def is_stream(self) -> bool:
        return self.data.kind != "rows"

    @property
    def may_lack_memory(self) -> bool:
        """Whether the loader may refuse a batch because it is too large."""
        return bool(self.shm or self.get("max_ring_bytes"))

    def resumes(self, what: str) -> bool:
        """Whether it resumes with a loader of other "workers", another "generator", other "ranks" and so on."""
        return any(action.verb == "resume" and action.what == what for action in self.actions)

    def does(self, *verbs: str) -> bool:
        return any(action.verb in verbs for action in self.actions)

    def features(self) -> frozenset[str]:
        """What the program uses, by which findings are grouped."""
        found = {f"data: {self.data.kind}"}
        found |= {f"habit: {self.data.habit}"} if self.data.habit else set()
        found |= {f"noise: {self.data.noise}"} if self.data.noise else set()
        found |= {f"order: {self.order.kind}"} if self.order.kind != "in order" else set()
        found |= {f"form: {self.data.form}"} if self.data.form != "number" else set()
        found |= {f"collate: {self.collate}"} if self.collate else set()
        found |= {"batch_size: None"} if self.batch_size is None else set()
        found |= {f"loader: {self.loader}"} if self.loader else set()
        found |= {"keep"} if self.keep else set()
        found |= {"small /dev/shm"} if self.shm else set()
        found |= {f"option: {name}" for name, _ in self.options if name != "num_workers"}
        found |= {"workers"} if self.workers else {"no workers"}
        return frozenset(found | {f"does: {action.verb} {action.what}".strip() for action in self.actions})
