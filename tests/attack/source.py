"""The lines of Python of a program.  What is printed is what was run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.attack.datasets import KINDS
from tests.attack.program import Do, Program
from tests.attack.samplers import IN_BATCHES, ORDERS, OTHERS

HEAD = """\
import copy, gc, os, pickle
import torch, shmloader
from torch.utils.data import BatchSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler
from tests.attack import datasets, loaders, samplers
from tests.attack.log import seed_all
"""
TORCH, OURS = "torch.utils.data", "shmloader"

# What each verb is, with our loader; {count} and {what} are filled in.
_OURS: dict[str, list[str]] = {
    "begin": ["it = log.begin(loader)"],
    "take": ["log.take(it, {count})"],
    "rest": ["log.take(it)"],
    "take in thread": ["log.take_in_thread(it, {count})"],
    "drop": ["it = None; gc.collect()"],
    "close": ["loader.close()"],
    "close iterator": ["log.close(it)"],
    "save": ["saved = log.save(loader)"],
    "set epoch": ["loader.set_epoch({count}); log.epoch = {count} - 1"],
    "seed": ["seed_all({count})"],
    "set attribute": ["loader.dataset.attribute = {count}"],
    "copy": ["loader = copy.copy(loader)"],
    "pickle": ["loader = pickle.loads(pickle.dumps(loader))"],
    "nest": ["log.inner(loader)"],
    "fork": ["log.fork()"],
    "look": ["next(iter(loader.dataset), None)"],
    "hook": ["log.hook({what!r})"],
    "unhook": ["log.unhook()"],
    "go on": ["it = it if log.under_way else log.begin(loader)"],  # of a run that is not interrupted
}
# And with torch's, where that is something else.
_TORCHS: dict[str, list[str]] = {
    "close": ["it = loader._iterator = None; gc.collect()"],
    "close iterator": [],
    "look": [],
    "save": [],
    "resume": [],
    "set epoch": ["log.set_epoch({count}, loader.sampler, loader.dataset)"],
}
CHANGES: dict[str, str] = {
    "weights": "loader.sampler.weights = torch.arange(len(loader.dataset)) % 2 + 0.0",
    "weights in place": "loader.sampler.weights[::2] = 0",
    "indices": "loader.sampler.indices = range(0, len(loader.dataset), 2)",
    "seed": "loader.sampler.seed += 1",
    "shuffle": "loader.sampler.shuffle = False",
    "batch_size": "loader.batch_sampler.batch_size += 1",
    "length": "loader.dataset.length -= 1",
    "flag": "loader.sampler.flag = 1",
}


def make(program: Program, library: str) -> list[str]:
    """A function that makes the loader."""
    data, order = program.data, program.order
    given = [str(data.length)]
    given += [repr(data.form)] if data.form != "number" else []
    given += [f"noise={data.noise!r}"] if data.noise else []
    given += [f"habit={data.habit!r}, at={data.at}"] if data.habit else []
    options = ["dataset"]
    options += [f"batch_size={program.batch_size}"] if order.kind not in IN_BATCHES else []
    text = ORDERS[order.kind].format(
        length=data.length,
        at=order.at,
        batch_size=program.batch_size,
        distributed=f"{library}.DistributedSampler" if library == OURS else "samplers.Remainder",
        ranks=order.ranks,
        rank=min(1, order.ranks - 1),
    )
    text = text.replace("seed=5", OTHERS.get(order.other, "seed=5"))
    options += [text] if text else []
    options += [f"collate_fn=datasets.{program.collate}"] if program.collate else []
    options += [f"{name}={value!r}" for name, value in program.options if name != "ring_memory"]
    kind = f"{library}.DataLoader"
    kind = f"loaders.{program.loader}({kind})" if program.loader else kind
    memory = program.get("ring_memory", "auto")
    lines = [f"os.environ['SHMLOADER_RING_MEMORY'] = {memory!r}"] if memory != "auto" else []
    lines += [
        "def make():",
        f"    dataset = datasets.{KINDS[data.kind].__name__}({', '.join(given)})",
        f"    return {kind}({', '.join(options)})",
    ]
    return lines


def body(program: Program, library: str) -> list[str]:
    """What the user does with the loader: the lines of a function of `log`."""
    lines = [f"seed_all({program.seed})", *make(program, library), "loader = make()"]
    actions = program.actions if library == OURS else tuple(without_lost(program.actions))
    changed: list[str] = []
    saved: list[str] = []
    for action in actions:
        if action.verb == "change":
            changed = [*changed, CHANGES[action.what]]
            lines.append(changed[-1])
        elif action.verb == "resume":
            changed = saved
            lines += (_resumed if library == OURS else _in_other_ranks)(program, action, changed)
        else:
            saved = changed if action.verb == "save" else saved
            verbs = _OURS if library == OURS else {**_OURS, **_TORCHS}
            lines += [line.format(count=action.count, what=action.what) for line in verbs[action.verb]]
    generator = "loader.generator" if "generator" in program.order.kind else ""
    return [*lines, f"log.finish({generator})"]


def _resumed(program: Program, action: Do, changed: list[str]) -> list[str]:
    """A fresh loader, as in another process: the user's changes are made to that as well."""
    lines = ["it = loader = None"]
    if action.what == "workers":
        other = program.with_options(num_workers=action.count)
        if not action.count:
            gone = dict.fromkeys(("prefetch_factor", "persistent_workers", "timeout"))
            other = other.with_options(**gone)
        lines += make(other, OURS)
    elif action.what == "generator":
        order = replace(program.order, kind={"shuffle": "generator", "generator": "shuffle"}[program.order.kind])
        lines += make(replace(program, order=order), OURS)
    elif action.what == "shorter":
        lines += make(replace(program, data=replace(program.data, length=action.count)), OURS)
    elif action.what == "ranks":
        lines += make(_of_ranks(program, action.count), OURS)
    elif action.what:
        lines += make(replace(program, order=replace(program.order, other=action.what)), OURS)
    return [*lines, "loader = make()", *changed, "log.resume(loader, saved)"]


def _in_other_ranks(program: Program, action: Do, changed: list[str]) -> list[str]:
    """The same with torch's loader: it reads what the ranks before left of their epoch, and then whole epochs."""
    lines = ["it = None", *make(_of_ranks(program, action.count), TORCH), "before, loader = loader, make()", *changed]
    return [*lines, "log.go_on_in_other_ranks(before, loader)"]


def _of_ranks(program: Program, ranks: int) -> Program:
    return replace(program, order=replace(program.order, ranks=ranks))


_NOT_THE_EPOCHS_END = ("save", "drop", "close", "close iterator")


def without_lost(actions: tuple[Do, ...]) -> list[Do]:
    """What the run that is not interrupted does, which goes on where the other one saves and resumes."""
    held: list[Do] = []
    resumed = False  # and no iterator was asked for since
    for action in actions:
        if action.verb == "resume":
            while held[-1].verb != "save":  # what a crash takes back
                held.pop()
            save = held.pop()
            while held and held[-1].verb in _NOT_THE_EPOCHS_END:
                held.pop()
            held.append(save)
            resumed = action.what != "ranks"  # which is a loader of its own in each run
            held += [] if resumed else [action]
        elif resumed and action.verb in _NOT_THE_EPOCHS_END:
            if action.verb == "save":
                held.append(action)
        elif resumed and action.verb == "begin":
            held.append(Do("go on"))
            resumed = False
        else:
            held.append(action)
    return held


def function(name: str, program: Program, library: str) -> list[str]:
    return [f"def {name}(log):", *(f"    {line}" for line in body(program, library))]


def compiled(program: Program, library: str) -> Any:
    """The same, as a function."""
    names: dict[str, Any] = {"__name__": "program"}
    exec(compile(HEAD + "\n".join(function("run", program, library)), "<program>", "exec"), names)
    return names["run"]
