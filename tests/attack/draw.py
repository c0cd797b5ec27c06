"""Draws programs from a seed, and decides how often each option, dataset, sampler, resume or special scene comes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.attack import rules
from tests.attack.datasets import COLLATE, FORMS, HABITS, KINDS, NEED_COLLATE, NOISE, NUMBERED, OF_EPOCH
from tests.attack.hooks import FETCHERS, ITERATORS, LOADER
from tests.attack.loaders import LOADERS
from tests.attack.program import Data, Do, Order, Program
from tests.attack.samplers import ASKED, CALLING, DISTRIBUTED, DRAW_FROM_GLOBAL, ONE_BY_ONE, ORDERS, OTHERS
from tests.attack.samplers import NUMBERED as NUMBERED_ORDERS
from tests.attack.twin import OURS_ALONE


def draw(seed: str) -> Program:
    """The program of this seed."""
    drawn = random.Random(seed)
    while True:
        program = _program(drawn)
        if rules.why_not(program) is None:
            return program


def _some(drawn: random.Random, share: float, values: Sequence[Any], unless: Any) -> Any:
    return drawn.choice(values) if drawn.random() < share else unless


def _program(drawn: random.Random) -> Program:
    kind = drawn.choice([*(kind for kind in KINDS if kind not in OF_EPOCH), "rows", "rows", "stream with state"])
    kind = "rows" if kind in ("rows with generator", "stream that draws on by epoch") else kind
    stream = kind.startswith("stream")
    length = drawn.choice([0, 1, 5, 6, 7, 8, 9, 12, 13, 24])
    data = Data(
        kind,
        length,
        _some(drawn, 0.4, [*FORMS], "number"),
        _some(drawn, 0.2, [*NOISE], ""),
        _some(drawn, 0.3, [*HABITS], ""),
        drawn.randrange(max(length, 1)),
    )
    order = Order("in order" if stream else _some(drawn, 0.8, [*ORDERS], "in order"), drawn.randrange(max(length, 1)))
    collate = _some(drawn, 0.4 if "large" in data.form or data.form == "labelled" else 0.15, [*COLLATE], "")
    collate = "as_list" if data.form in NEED_COLLATE else collate
    batch_size = _some(drawn, 0.1, [None], drawn.choice([1, 2, 2, 3, 4]))
    if order.kind in ONE_BY_ONE:
        batch_size, collate, data = None, "", replace(data, form="number" if data.form == "ragged" else data.form)
    program = Program(drawn.randrange(1000), data, order, batch_size, collate, keep=_some(drawn, 0.3, [1, 3, 99], 0))
    program = replace(program, loader=_some(drawn, 0.1, [*LOADERS], ""))
    program = program.with_options(**_options(drawn, stream, data))
    scenes = [_counting, _with_generator, _failing, _with_raising_sampler, _with_uncut_batch, _among_ranks]
    scenes += [_short_of_memory, _in_another_order, _between_epochs, _between_epochs, _saving, _saving]
    scenes += [_with_set_epoch, _in_a_shorter_dataset, _looking, _failing, _seeding, _seeding, _odd, _odd]
    scenes += [_sent_to_workers] if drawn.random() < 0.04 else []
    special = _some(drawn, 0.4, scenes, None)
    if special:
        return _some(drawn, 0.12, [_hooked], _as_it_is)(drawn, special(drawn, program))
    program = _some(drawn, 0.25, [_lasting, _forking], _as_it_is)(drawn, program)
    actions: list[Do] = []
    changes = bool(program.get("persistent_workers"))
    for number in range(drawn.randint(1 + changes, 3)):
        actions += _epoch(drawn, program, number, 0.6 if changes and number else 0.2)
    return _some(drawn, 0.12, [_hooked], _as_it_is)(drawn, replace(program, actions=tuple(actions)))


def _hooked(drawn: random.Random, program: Program) -> Program:
    """The same with something of torch's replaced during the whole program or a part of it."""
    hook = drawn.choice([*drawn.choice([FETCHERS, LOADER, ITERATORS])])
    actions = [*program.actions]
    if hook in ITERATORS and program.workers:
        program = replace(program, loader="").with_options(**dict.fromkeys(OURS_ALONE))
        actions = [do for do in actions if do.verb not in ("save", "resume", "close", "close iterator")]
    if hook in FETCHERS:
        gone = ("on_bad_sample", "chunk_size", "sample_seeds", "schedule")
        program = program.with_options(**dict.fromkeys(gone))
    begins = [place for place, do in enumerate(actions) if do.verb in ("begin", "set epoch")]
    at = _some(drawn, 0.3, begins[:2], 0)
    later = [place for place in begins if place > at and any(do.verb == "begin" for do in actions[at:place])]
    if drawn.random() < 0.3 and later:  # behind something that the hook had an effect on
        actions.insert(drawn.choice(later), Do("unhook"))
    actions.insert(at, Do("hook", what=hook))
    return replace(program, actions=tuple(actions))


def _options(drawn: random.Random, stream: bool, data: Data) -> dict[str, Any]:
    def often(share: float, *values: Any) -> Any:
        return _some(drawn, share, values, None)

    options: dict[str, Any] = {
        "num_workers": drawn.choice([0, 1, 1, 2, 2, 2, 3]) or None,
        "drop_last": often(0.1, True),
        "device": often(0.08, "cpu"),
    }
    if not options["num_workers"]:
        return options
    options |= {
        "prefetch_factor": often(0.4, 1, 2, 3, 4),
        "persistent_workers": often(0.4, True),
        "timeout": often(0.1, 120),
        "pin_memory": often(0.05, True),
        "in_order": often(0.08, False),
        "spare_slots": often(0.2, 0, 1, 4),
        "ring_memory": often(0.05, "memfd"),
        "max_ring_bytes": often(0.1, 200_000, 2_000_000),
    }
    if not stream:
        options |= {
            "schedule": often(0.2, "steal"),
            "chunk_size": often(0.2, 1, 2, 3),
            "sample_seeds": often(0.2, True),
            "on_worker_death": "respawn" if data.habit == "exits once" else often(0.1, "respawn"),
        }
        if data.habit in ("raises", "raises odd") and drawn.random() < 0.3:
            options |= {"on_bad_sample": "skip:100"}
    return options


def _as_it_is(drawn: random.Random, program: Program) -> Program:
    return program


def _lasting(drawn: random.Random, program: Program) -> Program:
    """The same with workers that persist, and a sampler that can be changed between their epochs."""
    order = drawn.choice(sorted({kind for kinds in rules.CHANGES_OF.values() for kind in kinds}))
    program = replace(program, data=replace(program.data, kind="rows"), order=Order(order))
    return program.with_options(num_workers=program.workers or 1, persistent_workers=True, in_order=None)


def _forking(drawn: random.Random, program: Program) -> Program:
    """The same with a dataset that forks a process, which collates tensors while batches are collated here."""
    size = program.batch_size or 2
    last = size * drawn.randint(1, 3) - 1  # of a batch: the child's collate() would write where that batch lies
    data = replace(program.data, kind="rows", form="tensor", habit="forks", at=last)
    program = replace(program, data=data, order=Order(), batch_size=size, keep=9, collate="")
    gone = ("chunk_size", "on_bad_sample", "on_worker_death")
    return program.with_options(num_workers=drawn.choice([1, 1, 2]), **dict.fromkeys(gone))


_OF_WORKERS = (
    *("prefetch_factor", "persistent_workers", "timeout", "spare_slots", "ring_memory", "max_ring_bytes"),
    "on_worker_death",
)
_OF_ROWS = ("schedule", "chunk_size", "sample_seeds", "on_worker_death", "on_bad_sample")
BEGIN, REST, SAVE = Do("begin"), Do("rest"), Do("save")


def _streaming(program: Program, kind: str, length: int, habit: str = "", at: int = 0) -> Program:
    data = Data(kind, length, program.data.form, "", habit, at)
    gone = dict.fromkeys((*_OF_ROWS, "max_ring_bytes", "in_order"))
    return replace(program, data=data, order=Order(), shm="").with_options(**gone)


def _counting(drawn: random.Random, program: Program) -> Program:
    """A stream that counts its epochs, resumed between two of them or early in one."""
    program = _streaming(program, "stream with state", drawn.choice([6, 8, 13, 24]))
    program = program.with_options(num_workers=drawn.choice([1, 2, 3]), persistent_workers=True)
    actions = [BEGIN, REST] * drawn.randint(1, 2)
    actions += _some(drawn, 0.6, [[BEGIN, Do("take", number)] for number in (1, 2, 3)], [])
    return replace(program, actions=(*actions, SAVE, Do("resume"), BEGIN, REST, BEGIN, REST))


def _with_generator(drawn: random.Random, program: Program) -> Program:
    """A state that is loaded where there is no generator, or where there is one and was none."""
    order = Order(drawn.choice(["shuffle", "generator"]))
    data = replace(program.data, kind="rows", length=max(program.data.length, 5))
    actions = (BEGIN, Do("take", drawn.randint(1, 4)), SAVE, Do("resume", what="generator"), BEGIN, REST)
    return replace(program, data=data, order=order, actions=actions).with_options(in_order=None)


def _failing(drawn: random.Random, program: Program) -> Program:
    """A stream that raises while the user goes on, resumed behind the error or before it."""
    kind = drawn.choice(["stream", "stream itself", "stream whose iterator has state"])
    habit = drawn.choice(["raises", "raises odd", "raises once"])
    if kind in rules.WITHOUT_PLACE and habit == "raises once":
        form = "number" if program.data.form == "ragged" else program.data.form
        data = replace(program.data, form=form)
        program = replace(program, batch_size=None, collate="", data=data).with_options(drop_last=None)
    program = _streaming(program, kind, drawn.choice([8, 13, 24]), habit, drawn.randrange(6))
    program = program.with_options(num_workers=drawn.choice([None, None, 1, 1, 2]))
    if not program.workers:
        program = program.with_options(**dict.fromkeys(_OF_WORKERS))
    actions = (BEGIN, Do("take", drawn.randint(1, 7)), SAVE, Do("resume"), BEGIN, REST)
    return replace(program, actions=(*actions, BEGIN, REST) if drawn.random() < 0.5 else actions)


def _with_raising_sampler(drawn: random.Random, program: Program) -> Program:
    """A sampler that raises while batches are under way, and a state that is saved behind the error."""
    size = drawn.choice([1, 2, 3])
    ahead = drawn.choice([1, 2]) * drawn.choice([1, 2])  # batches that are open before the first one is taken
    at = size * (ahead + drawn.randint(0, 4))
    data = replace(program.data, kind="rows", length=at + size * drawn.randint(1, 3), habit="")
    program = replace(program, data=data, order=Order("raising", at), batch_size=size, shm="", loader="")
    gone = (*_OF_ROWS, "max_ring_bytes", "in_order", "persistent_workers")
    program = program.with_options(**dict.fromkeys(gone))
    workers = 2 if ahead % 2 == 0 else 1
    program = program.with_options(num_workers=workers, prefetch_factor=ahead // workers)
    taken = drawn.randint(1, at // size + 1)
    actions = (BEGIN, Do("take", taken), SAVE, REST, SAVE)
    return replace(program, actions=(*actions, Do("resume"), BEGIN, REST) if drawn.random() < 0.5 else actions)


def _with_uncut_batch(drawn: random.Random, program: Program) -> Program:
    """Batches in chunks, one of which cannot be cut, so that it is not opened, and a state that is saved behind it."""
    size = drawn.choice([1, 2, 3])
    form = "number" if program.data.form in NEED_COLLATE else program.data.form
    data = replace(program.data, kind="rows", length=drawn.choice([9, 13, 24]), form=form, noise="", habit="")
    order = Order("odd batches", drawn.randrange(1, 6))
    program = replace(program, data=data, order=order, batch_size=size, collate="", shm="", loader="")
    gone = ("on_bad_sample", "max_ring_bytes", "in_order", "drop_last")
    program = program.with_options(**dict.fromkeys(gone))
    program = program.with_options(num_workers=program.workers or 1, chunk_size=drawn.choice([1, 2, 3]))
    actions = (BEGIN, Do("take", drawn.randint(1, 7)), SAVE)
    return replace(program, actions=(*actions, *_some(drawn, 0.5, [(Do("resume"), BEGIN)], ()), REST))


def _among_ranks(drawn: random.Random, program: Program) -> Program:
    """An epoch that goes on with another number of ranks."""
    kind = drawn.choice(["rows", "rows", "rows of epoch"])
    data = replace(program.data, kind=kind, noise="", length=max(program.data.length, 5), habit="")
    program = replace(program, data=data, order=Order("distributed"))
    program = program.with_options(on_bad_sample=None, in_order=None)
    actions = _epoch(drawn, program, 0) if drawn.random() < 0.4 else []
    actions += [BEGIN, Do("take", drawn.randint(1, 4)), SAVE, Do("resume", drawn.choice([1, 3, 4]), "ranks")]
    actions += [BEGIN, Do("take", 1), SAVE, Do("resume")] if drawn.random() < 0.3 else []
    return replace(program, actions=(*actions, BEGIN, REST, BEGIN, REST))


def _in_another_order(drawn: random.Random, program: Program) -> Program:
    """An epoch that is to go on with a sampler of another seed, or other samples of the same."""
    data = replace(program.data, kind="rows", noise="", length=max(program.data.length, 5), habit="")
    order = Order(drawn.choice(DISTRIBUTED), ranks=drawn.choice([1, 2, 3]))
    program = replace(program, data=data, order=order)
    program = program.with_options(on_bad_sample=None, in_order=None)
    other = "seed" if order.kind == "straight distributed" else drawn.choice([*OTHERS])
    actions = _epoch(drawn, program, 0) if drawn.random() < 0.3 else []
    resumed = (BEGIN, Do("take", drawn.choice([1, 1, 2, 3])), SAVE, Do("resume", what=other), BEGIN, REST)
    return replace(program, actions=(*actions, *resumed))


def _in_a_shorter_dataset(drawn: random.Random, program: Program) -> Program:
    """An epoch that is to go on behind the end of the dataset."""
    data = replace(program.data, kind="rows", noise="", habit="", length=drawn.choice([8, 9, 13, 24]))
    program = replace(program, data=data, order=Order(drawn.choice(rules.WHOLE)), shm="")
    program = program.with_options(on_bad_sample=None, in_order=None, drop_last=None, max_ring_bytes=None)
    size = program.batch_size or 1
    took = drawn.randint(2, 6)
    length = drawn.randint(1, max(min(took * size, data.length) - 1, 1))
    return replace(program, actions=(BEGIN, Do("take", took), SAVE, Do("resume", length, "shorter"), BEGIN, REST))


def _between_epochs(drawn: random.Random, program: Program) -> Program:
    """A sampler or a stream that keeps where it was, resumed between two epochs or within one, and used for more."""
    if drawn.random() < 0.4:
        program = _streaming(program, "stream of epoch", drawn.choice([6, 8, 13, 24]))
        workers, lasts = drawn.choice([(None, None), (None, None), (1, None), (1, True)])
        program = program.with_options(num_workers=workers, persistent_workers=lasts)
        program = replace(program, loader="" if lasts else program.loader)
    else:
        order = Order(drawn.choice([kind for kind in ORDERS if "itself" in kind or "used up" in kind]))
        data = replace(program.data, kind="rows", noise="", length=max(program.data.length, 5))
        data = replace(data, form="number") if data.form in NEED_COLLATE else data
        program = replace(program, data=data, order=order).with_options(num_workers=drawn.choice([None, 1, 2]))
        gone = ("on_bad_sample", "in_order", "drop_last")
        program = program.with_options(**dict.fromkeys(gone))
        alone = order.kind in ONE_BY_ONE
        program = replace(program, batch_size=None if alone else program.batch_size or 2, collate="")
        program = program.with_options(chunk_size=None) if alone else program
    if not program.workers:
        program = replace(program.with_options(**dict.fromkeys(_OF_WORKERS)), shm="")
    numbers = [Do("set epoch", number) for number in range(2)] if "of epoch" in program.data.kind else []
    numbers = numbers[: drawn.choice([0, 1, 1, 2])]  # a user may forget it, also in later epochs
    actions: list[Do] = numbers[:1]
    actions += [
        BEGIN,
        *_some(drawn, 0.5, [[Do("take", count)][:count] for count in range(6)], [REST]),
        SAVE,
        Do("resume"),
    ]
    actions += [BEGIN, REST, *numbers[1:], BEGIN, REST, BEGIN, REST]
    return replace(program, actions=tuple(actions))


def _saving(drawn: random.Random, program: Program) -> Program:
    """A sampler that is asked for its state, or seems to have one: saved early or late, once or again, and resumed."""
    order = Order(drawn.choice([*ASKED, "leaves out", "leaves out"]))
    data = replace(program.data, kind=drawn.choice(["rows", "rows", "rows unready"]), noise="", habit="")
    data = replace(data, length=drawn.choice([5, 8, 13, 24]))
    data = replace(data, form="number") if data.form in NEED_COLLATE else data
    alone = order.kind in ONE_BY_ONE
    program = replace(
        program, data=data, order=order, batch_size=None if alone else program.batch_size or 2, collate=""
    )
    gone = ("on_bad_sample", "in_order", "drop_last", "max_ring_bytes")
    program = replace(program.with_options(**dict.fromkeys(gone)), shm="")
    program = program.with_options(chunk_size=None) if alone else program
    actions: list[Do] = [BEGIN, REST] * drawn.choice([0, 0, 1])
    actions += [SAVE] * drawn.choice([0, 0, 1])
    for _ in range(drawn.choice([1, 1, 2])):
        actions += [BEGIN, *_some(drawn, 0.8, [[Do("take", count)] for count in range(1, 5)], []), SAVE]
        actions += _some(drawn, 0.3, [[Do("take", 1), SAVE], [Do("take", 2)]], [])
        actions += [Do("resume")]
    if order.kind in ("failing state", "counting"):
        actions = [do for do in actions if do.verb != "resume" and (do is not SAVE or order.kind == "failing state")]
        actions = [do for k, do in enumerate(actions) if do is not BEGIN or k == 0 or actions[k - 1] is REST]
    actions += [] if actions[-1] is REST or order.kind == "leaves out" else [BEGIN, REST]
    return replace(program, actions=(*actions, BEGIN, REST))


def _seeding(drawn: random.Random, program: Program) -> Program:
    """A user who seeds the generators, perhaps alike, before an epoch and within it."""
    kinds = [*DRAW_FROM_GLOBAL, "numpy's", "numpy's", "numpy's", "buffer", "own generator"]
    order, length = Order(drawn.choice(kinds)), drawn.choice([5, 8, 13, 24])
    form = "number" if program.data.form in NEED_COLLATE else program.data.form
    data = replace(program.data, kind="rows", length=length, noise="", habit="", form=form)
    program = replace(program, data=data, order=order, batch_size=program.batch_size or 2, collate="", shm="")
    gone = ("on_bad_sample", "in_order", "drop_last", "max_ring_bytes")
    program = program.with_options(**dict.fromkeys(gone))

    def seed(share: float) -> list[Do]:
        return [Do("seed", drawn.choice([1, 1, 2]))] if drawn.random() < share else []

    actions = [*seed(0.8), BEGIN, Do("take", drawn.randint(1, 3)), *seed(0.8)]
    actions += [SAVE, Do("resume"), *seed(0.4), BEGIN] if drawn.random() < 0.7 else []
    return replace(program, actions=(*actions, REST, *seed(0.3), BEGIN, REST))


def _odd(drawn: random.Random, program: Program) -> Program:
    """Objects that may not be compared, or whose attributes raise, in one or several places, with set_epoch()."""
    kind = drawn.choice([*NUMBERED, "rows", "rows of epoch", "stream unready", "stream unlike"])
    if kind.startswith("stream"):
        program = _streaming(program, kind, drawn.choice([6, 8, 13, 24]))
    order = Order() if kind.startswith("stream") else Order(drawn.choice([*NUMBERED_ORDERS, "own unlike generator"]))
    form = "number" if program.data.form in NEED_COLLATE else program.data.form
    data = replace(program.data, kind=kind, noise="", habit="", form=form, length=max(program.data.length, 6))
    program = replace(program, data=data, order=order, batch_size=program.batch_size or 2)
    program = replace(program, collate=drawn.choice(["unlike", ""]), loader=drawn.choice(["unlike", ""]))
    chunk_size = None if program.collate else program.get("chunk_size")
    program = program.with_options(on_bad_sample=None, chunk_size=chunk_size)
    actions: list[Do] = []
    for number in range(drawn.choice([1, 2, 3])):
        actions += [Do("set epoch", number)] if drawn.random() < 0.7 and not kind.startswith("stream") else []
        actions += [BEGIN, *_some(drawn, 0.3, [[Do("take", 1), SAVE, Do("resume"), BEGIN]], []), REST]
        actions += _some(drawn, 0.1, [[Do("drop"), Do("copy")], [SAVE, Do("resume")]], [])
    return replace(program, actions=tuple(actions))


def _with_set_epoch(drawn: random.Random, program: Program) -> Program:
    """A set_epoch() that counts, shuffles, seeds or resets an attribute, or that a sampler calls."""
    kind = drawn.choice([*OF_EPOCH, "rows of epoch", "rows whose epoch counts"])
    if kind.startswith("stream"):
        program = _streaming(program, kind, drawn.choice([6, 8, 13, 24]))
    calls = kind in ("rows of epoch", "rows whose epoch counts") and drawn.random() < 0.5
    noise = drawn.choice([*NOISE]) if kind == "rows whose epoch seeds" else ""
    form = "number" if program.data.form in NEED_COLLATE else program.data.form
    data = Data(kind, drawn.choice([6, 8, 13, 24]), form, noise)
    order = Order(drawn.choice(CALLING) if calls else _some(drawn, 0.3, ["shuffle", "list"], "in order"))
    order = Order() if kind.startswith("stream") else order
    program = replace(program, data=data, order=order, batch_size=program.batch_size or 2, loader="", shm="")
    program = program.with_options(on_bad_sample=None)
    if noise:
        program = program.with_options(**dict.fromkeys(("schedule", "sample_seeds", "chunk_size")))
    actions: list[Do] = []
    for number in range(drawn.choice([2, 3])):
        actions += [] if calls or drawn.random() < 0.2 else [Do("set epoch", _some(drawn, 0.2, range(4), number))]
        actions += [Do("set attribute", number + 1)] if kind == "rows with an epoch's attribute" else []
        actions += [BEGIN, *_some(drawn, 0.2, [[Do("take", 1)]], []), REST]
    return replace(program, actions=tuple(actions))


def _looking(drawn: random.Random, program: Program) -> Program:
    """A stream that is resumed by more draws, and of which the user takes a sample before that."""
    program = _streaming(program, "stream that draws on by epoch", drawn.choice([8, 13, 24]))
    gone = dict.fromkeys(("persistent_workers", "drop_last"))
    workers = drawn.choice([1, 2])
    program = program.with_options(num_workers=workers, **gone)
    actions = [Do("set epoch", 1), BEGIN, Do("take", drawn.randint(workers, 3)), SAVE, Do("resume"), Do("look")]
    return replace(program, actions=(*actions, BEGIN, REST, Do("set epoch", 2), BEGIN, REST))


def _sent_to_workers(drawn: random.Random, program: Program) -> Program:
    """A dataset with a generator, or a number, in workers that do not inherit it.  Rare, because they import torch."""
    kind = drawn.choice(["rows with generator", "rows whose epoch counts"])
    data = Data(kind, 6, drawn.choice(["number", "tensor", "dict"]))
    program = Program(program.seed, data, Order(drawn.choice(["in order", "shuffle"])), drawn.choice([1, 2, 3]))
    numbers = [Do("set epoch", 2)] if "epoch" in kind else []
    return replace(program, actions=(*numbers, BEGIN, REST)).with_options(
        num_workers=1, multiprocessing_context="forkserver"
    )


def _short_of_memory(drawn: random.Random, program: Program) -> Program:
    """The same in a container with a small /dev/shm."""
    form = drawn.choice(["large", "large", "growing", "dict"])
    data = replace(program.data, kind="rows", form=form, length=max(program.data.length, 8), noise="")
    program = replace(program, data=data, shm=drawn.choice(["256k", "512k", "1m", "3m"]), order=Order())
    program = replace(program, collate="as_list" if form == "growing" else "")
    memory = drawn.choice([None, None, "posix", "memfd"])
    program = program.with_options(num_workers=program.workers or 1, ring_memory=memory, max_ring_bytes=None)
    program = program.with_options(on_bad_sample=None)
    actions: list[Do] = []
    for number in range(drawn.randint(1, 2)):
        actions += _epoch(drawn, program, number)
    return replace(program, actions=tuple(actions))


def _epoch(drawn: random.Random, program: Program, number: int, changing: float = 0.2) -> list[Do]:
    """What a user does in an epoch, and before it."""
    actions: list[Do] = []
    if drawn.random() < changing:
        changes = [what for what, kinds in rules.CHANGES_OF.items() if program.order.kind in kinds]
        actions += [Do("change", what=drawn.choice(changes))] if changes else []
    if drawn.random() < 0.6 and (program.order.kind in NUMBERED_ORDERS or "of epoch" in program.data.kind):
        actions.append(Do("set epoch", _some(drawn, 0.2, range(4), number)))
    actions.append(Do("begin"))
    for _ in range(drawn.choice([0, 0, 1, 1, 2])):
        actions += _within(drawn, program)
    if drawn.random() < 0.85:
        actions.append(Do("rest"))
    if drawn.random() < 0.25:
        actions += [Do("save"), _resume(drawn, program)] if drawn.random() < 0.7 else [Do("drop")]
    if drawn.random() < 0.15:
        actions.append(Do(drawn.choice(["close", "drop", "fork"])))
    if drawn.random() < 0.1:
        actions += [Do("drop"), Do(drawn.choice(["copy", "pickle"]))]
    return actions


def _within(drawn: random.Random, program: Program) -> list[Do]:
    count = drawn.randint(1, 5)
    chosen = drawn.random()
    if chosen < 0.15:
        return [Do("take in thread", count)]
    if chosen < 0.3:
        return [Do("take", count), Do(drawn.choice(["nest", "fork", "seed"]))]
    actions = [Do("take", count)]
    if chosen < 0.4:
        actions.append(Do("close iterator"))
    actions.append(Do("save"))
    if drawn.random() < 0.4 and actions[-2].verb != "close iterator":
        actions.append(Do("take", drawn.randint(1, 3)))
    return [*actions, _resume(drawn, program), Do("begin")]


def _resume(drawn: random.Random, program: Program) -> Do:
    if program.order.kind in ("shuffle", "generator") and drawn.random() < 0.3:
        return Do("resume", what="generator")
    if program.order.kind == "distributed" and drawn.random() < 0.4:
        return Do("resume", drawn.choice([1, 3, 4]), "ranks")
    if drawn.random() < 0.4 and not program.is_stream:
        return Do("resume", drawn.randint(0, 3), "workers")
    return Do("resume")
