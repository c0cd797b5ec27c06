"""Programs that found a fault once, or each kind of fault that a loader once had.  `make attack` runs them first."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from tests.attack.datasets import OF_EPOCH
from tests.attack.hooks import HOOKS
from tests.attack.program import Data, Do, Order, Program
from tests.attack.samplers import CALLING, DISTRIBUTED, KEEPS, OTHERS

BEGIN, REST, SAVE, RESUME = Do("begin"), Do("rest"), Do("save"), Do("resume")


SAVED_BETWEEN = (BEGIN, REST, SAVE, RESUME, BEGIN, REST, BEGIN, REST)


def _resumed(batches: int) -> tuple[Do, ...]:
    """Go on in a fresh loader behind so many batches, and then with another epoch."""
    return (BEGIN, Do("take", batches), SAVE, RESUME, BEGIN, REST, BEGIN, REST)


def _changed(what: str, order: str, **options: Any) -> Program:
    """An epoch, a change of the sampler, and two epochs more, of workers that persist."""
    actions = (BEGIN, REST, Do("change", what=what), BEGIN, REST, BEGIN, REST)
    if order == "distributed":
        first, change, *rest = Do("set epoch", 0), actions[2], *actions[3:]
        actions = (first, BEGIN, REST, change, Do("set epoch", 1), *rest)
    program = Program(order=Order(order), actions=actions)
    return program.with_options(num_workers=1, persistent_workers=True, **options)


def _hooked(what: str, *actions: Do, **options: Any) -> Program:
    """An epoch, or these actions, with something of torch's replaced."""
    return Program(actions=(Do("hook", what=what), *(actions or (BEGIN, REST)))).with_options(**options)


def _in_another_order(what: str, order: str) -> Program:
    """An epoch that is to go on with a sampler that gives another order."""
    actions = (BEGIN, Do("take", 1), SAVE, Do("resume", what=what), BEGIN, REST)
    return Program(data=Data(length=23), order=Order(order, ranks=2), actions=actions)


def _numbered(kind: str) -> tuple[Do, ...]:
    """Two epochs with numbers of their own."""
    attribute = (Do("set attribute", 3),) if "attribute" in kind else ()
    return (Do("set epoch", 0), *attribute, BEGIN, REST, Do("set epoch", 1), BEGIN, REST)


def _of(
    data: Data, actions: tuple[Do, ...], order: str = "in order", batch_size: int | None = 2, **options: Any
) -> Program:
    return Program(0, data, Order(order), batch_size, actions=actions).with_options(**options)


CORPUS: dict[str, Program] = {
    "a stream's state behind batch 4": _of(Data("stream with state", 24), _resumed(4), num_workers=1),
    "a stream's state behind batch 7": _of(Data("stream with state", 32), _resumed(7), num_workers=2),
    "a stream's state, prefetch_factor=1": _of(
        Data("stream with state", 24), _resumed(3), num_workers=1, prefetch_factor=1
    ),
    "a stream counts its epochs, saved between them": _of(
        Data("stream with state", 8), (BEGIN, REST, SAVE, RESUME, BEGIN, REST), num_workers=2, persistent_workers=True
    ),
    "a stream counts its epochs, saved early in the second": _of(
        Data("stream with state", 16),
        (BEGIN, REST, BEGIN, Do("take", 1), SAVE, RESUME, BEGIN, REST),
        num_workers=2,
        persistent_workers=True,
    ),
    "a stream counts its epochs, without workers": _of(
        Data("stream with state", 8), (BEGIN, REST, SAVE, RESUME, BEGIN, REST)
    ),
    "a closed iterator": _of(
        Data(), (BEGIN, Do("take", 2), Do("close iterator"), SAVE, RESUME, BEGIN, REST), num_workers=1
    ),
    "the sampler raises": _of(Data(), (BEGIN, REST), "raising", num_workers=1, prefetch_factor=1),
    "the sampler raises, and the state is saved behind that": _of(
        Data(), (BEGIN, Do("take", 1), SAVE, REST), "raising", num_workers=1, prefetch_factor=1
    ),
    "opening is refused": _of(Data(length=12), (BEGIN, REST), "odd batches", num_workers=1, chunk_size=1),
    "opening is refused, and the run is resumed": _of(
        Data(length=14), _resumed(2), "odd batches", num_workers=1, chunk_size=1
    ),
    "opening is refused, and the run is resumed behind that": _of(
        Data(length=14), _resumed(5), "odd batches", num_workers=1, chunk_size=1
    ),
    "no batch of indices, and samples are seeded": _of(
        Data(length=14), (BEGIN, REST), "odd batches", num_workers=1, sample_seeds=True
    ),
    "a sampler with a state, saved behind a partial last batch": _of(
        Data(length=7), _resumed(4), "stateful", num_workers=1
    ),
    "a generator that was not there": _of(
        Data(), (BEGIN, Do("take", 2), SAVE, Do("resume", what="generator"), BEGIN, REST), "shuffle", num_workers=1
    ),
    "a generator that is not there": _of(
        Data(), (BEGIN, Do("take", 2), SAVE, Do("resume", what="generator"), BEGIN, REST), "generator", num_workers=1
    ),
    "a stream without a state raises, and the run goes on": _of(
        Data("stream", 16, habit="raises", at=3), _resumed(4), num_workers=1
    ),
    "a stream without a state raises at the end of a batch": _of(
        Data("stream", 16, habit="raises", at=2), _resumed(4), num_workers=1
    ),
    "workers persist, and the sampler is changed: weights": _changed("weights", "weighted"),
    "workers persist, and the sampler is changed: weights in place": _changed("weights in place", "weighted"),
    "workers persist, and the sampler is changed: indices": _changed("indices", "subset"),
    "workers persist, and the sampler is changed: seed": _changed("seed", "distributed"),
    "workers persist, and the sampler is changed: shuffle": _changed("shuffle", "distributed"),
    "workers persist, and the sampler is changed: batch_size": _changed("batch_size", "in order"),
    "workers persist, and the sampler is changed: length": _changed("length", "shuffle"),
    "workers persist, and the sampler is changed: an attribute": _changed("flag", "own"),
    "a sampler is its own iterator": _of(Data(), (BEGIN, REST, BEGIN, REST), "itself", None, num_workers=1),
    "a batch sampler is its own iterator, resumed": _of(
        Data(), (BEGIN, SAVE, RESUME, BEGIN, REST), "itself in batches", num_workers=1
    ),
    "a batch sampler is its own iterator and has a state": _of(
        Data(), (BEGIN, REST, BEGIN, REST), "itself in batches with state", num_workers=1
    ),
    "a sampler is its own iterator and has a state, without workers": _of(
        Data(), _resumed(2), "itself with state", None
    ),
    "a used-up sampler, saved between epochs": _of(Data(), SAVED_BETWEEN, "used up", num_workers=1),
    "a used-up sampler, saved behind the last batch": _of(Data(), _resumed(4), "used up", num_workers=1),
    "a used-up sampler, saved early and behind the last batch": _of(
        Data(), (SAVE, *_resumed(4)), "used up", num_workers=1
    ),
    "a used-up sampler, resumed in the second epoch": _of(
        Data(), (BEGIN, REST, *_resumed(2)), "used up", num_workers=1
    ),
    "a used-up sampler, without workers": _of(Data(), SAVED_BETWEEN, "used up batches"),
    "a stream whose epoch was set once, without workers": _of(
        Data("stream of epoch", 12), (Do("set epoch", 0), *_resumed(2))
    ),
    "a stream tries again what it raised": _of(
        Data("stream", habit="raises once"), _resumed(5), batch_size=None, num_workers=1
    ),
    "a stream tries again what it raised, by another fetcher": _of(
        Data("stream itself", 13, habit="raises once", at=1),
        (Do("hook", what="_MapDatasetFetcher"), *_resumed(4)[:-2]),
        batch_size=None,
        num_workers=1,
    ),
    "a stream whose epoch is set each time, without workers": _of(
        Data("stream of epoch", 12), (Do("set epoch", 0), *_resumed(2)[:-2], Do("set epoch", 1), BEGIN, REST)
    ),
    "a stream that is its own iterator tries again what it raised": _of(
        Data("stream itself", habit="raises once"), _resumed(4), batch_size=None, num_workers=1
    ),
    **{
        f"set_epoch in fresh workers: {kind}": _of(
            Data(kind, 12, noise="random" if "seeds" in kind else ""), _numbered(kind), num_workers=2
        )
        for kind in OF_EPOCH
    },
    **{
        f"set_epoch in workers that persist: {kind}": _of(
            Data(kind, 12, noise="numpy" if "seeds" in kind else ""),
            (Do("set epoch", 0), BEGIN, REST, BEGIN, REST, Do("set epoch", 2), BEGIN, REST),
            num_workers=1,
            persistent_workers=True,
        )
        for kind in ("rows of epoch", "rows whose epoch counts", "rows whose epoch seeds")
    },
    "set_epoch in two workers that persist: rows whose epoch draws": _of(
        Data("rows whose epoch draws", 12),
        _numbered("rows whose epoch draws"),
        num_workers=2,
        persistent_workers=True,
    ),
    **{
        f"a sampler {order}, {schedule}": _of(
            Data("rows of epoch", 12), (BEGIN, REST, BEGIN, REST), order, num_workers=2, schedule=schedule
        )
        for order, schedule in itertools.product(CALLING, ("round_robin", "steal"))
    },
    "set_epoch in workers of a fork server": _of(
        Data("rows whose epoch counts", 6),
        (Do("set epoch", 2), BEGIN, REST),
        num_workers=1,
        multiprocessing_context="forkserver",
    ),
    "a stream of epoch, resumed in a worker that persists": _of(
        Data("stream of epoch", 12),
        (Do("set epoch", 1), *_resumed(2), BEGIN, REST),
        num_workers=1,
        persistent_workers=True,
    ),
    "a stream that draws on, resumed behind a look into it": _of(
        Data("stream that draws on by epoch", 24),
        (Do("set epoch", 1), BEGIN, Do("take", 2), SAVE, RESUME, Do("look"), BEGIN, REST),
        num_workers=2,
    ),
    "a sampler that empties its states, saved again without a batch": _of(
        Data(length=13), (BEGIN, Do("take", 2), SAVE, RESUME, BEGIN, SAVE, *_resumed(1)[-5:]), "stateful", num_workers=1
    ),
    **{
        f"an epoch that is left, and whole ones that end with a batch: {order}": _of(
            Data(length=6), (BEGIN, BEGIN, REST, BEGIN, REST), order, num_workers=2
        )
        for order in ("generator", "own generator")
    },
    "a state before the first draw, then resumed twice": _of(
        Data(length=13), (SAVE, *_resumed(1)[:4], *_resumed(1)), "buffer", num_workers=1
    ),
    "a state before the first draw, and behind the last": _of(Data(), (SAVE, *_resumed(4)), "pool"),
    "a state before the first draw, and of a used-up sampler": _of(
        Data(), (SAVE, *_resumed(4)), "stateful", num_workers=1
    ),
    "an exception that torch cannot make again": _of(Data(habit="raises with message"), (BEGIN, REST), num_workers=1),
    "drop_last drops all": _of(Data(length=3), (BEGIN, REST), batch_size=4, num_workers=1, drop_last=True),
    "drop_last drops all, without workers": _of(Data(length=3), (BEGIN, REST), batch_size=4, drop_last=True),
    "drop_last drops all of each worker's part": _of(
        Data("stream", length=6), (BEGIN, REST), batch_size=4, num_workers=2, drop_last=True
    ),
    "a generator is sent to the workers": _of(
        Data("rows with generator"), (BEGIN, REST), num_workers=1, multiprocessing_context="forkserver"
    ),
    **{
        f"another order in mid-epoch: {what}, {order}": _in_another_order(what, order)
        for what, order in itertools.product(OTHERS, DISTRIBUTED[:2])
    },
    **{
        f"a place past the end of a shorter dataset: {order}": _of(
            Data(length=13), (BEGIN, Do("take", 4), SAVE, Do("resume", 5, "shorter"), BEGIN, REST), order, num_workers=1
        )
        for order in ("in order", "shuffle")
    },
    "another seed in mid-epoch, without shuffle": _in_another_order("seed", "straight distributed"),
    **{f"replaced in torch: {what}": _hooked(what, num_workers=1) for what in HOOKS},
    "replaced in torch: __iter__, resumed": _hooked("__iter__", *_resumed(2), num_workers=1),
    "replaced in torch: _get_iterator, resumed without workers": _hooked("_get_iterator", *_resumed(2)),
    "replaced in torch from the second epoch on": Program(
        actions=(BEGIN, REST, Do("hook", what="_next_data"), BEGIN, REST, Do("unhook"), BEGIN, REST)
    ).with_options(num_workers=1),
    "a loader has a hook of its own, without workers": replace(_of(Data(), (BEGIN, REST)), loader="hooks_itself"),
    "a loader of the user's comes behind ours": replace(
        _of(Data(), (BEGIN, REST), num_workers=1), loader="comes_after"
    ),
    "a dataset forks and collates": replace(
        _of(Data(form="tensor", habit="forks", at=1), (BEGIN, REST), num_workers=1), keep=9
    ),
}

CORPUS |= {
    f"a sampler, resumed in mid-epoch: {order}": _of(Data(length=13), _resumed(3), order, num_workers=1)
    for order in ("pool", "pool in batches", "buffer", "numpy's", "stub", "module", "unready")
}
CORPUS |= {
    f"a sampler, saved all along: {order}": _of(
        Data(length=13), (BEGIN, Do("take", 1), SAVE, Do("take", 5), SAVE, RESUME, BEGIN, REST, BEGIN, REST), order
    )
    for order in ("pool", "pool in batches", "buffer", "numpy's", "stub", "module", "unready")
}
CORPUS |= {
    "a sampler whose state fails": _of(
        Data(), (SAVE, BEGIN, Do("take", 2), SAVE, REST, SAVE, BEGIN, REST), "failing state", num_workers=1
    ),
    "a sampler that counts how often it is asked": _of(Data(), (BEGIN, REST, BEGIN, REST), "counting", num_workers=1),
    "a stream whose state fails": _of(
        Data("stream with failing state"), (BEGIN, Do("take", 2), SAVE, REST, SAVE, BEGIN, REST), num_workers=1
    ),
    "a stream that is a module": _of(Data("stream module", 13), _resumed(3), num_workers=2),
    "a dataset that is not set up": _of(Data("rows unready"), (BEGIN, REST, BEGIN, REST), num_workers=1),
}
CORPUS |= {
    f"tensors share memory: {form}, {collate}": replace(
        _of(Data(form=form), (BEGIN, REST), num_workers=2), collate=collate
    )
    for form, collate in (
        ("views", "as_list"),
        ("tensor", "with_views"),
        ("pair", "with_views"),
        ("labelled", "with_views"),
        ("nested", "annotated_views"),
    )
}
CORPUS |= {
    f"tensors share memory in copies: {form}, {collate}": replace(
        _of(Data(form=form), (BEGIN, REST), num_workers=2, spare_slots=0), collate=collate
    )
    for form, collate in (("views", "as_list"), ("dict", "with_views"))
}
CORPUS |= {
    f"batches of another structure, or of other tensors: {form}, {collate}": replace(
        _of(Data(form=form, length=24), (BEGIN, REST), num_workers=2), collate=collate
    )
    for form, collate in (("number", "by_name"), ("dict", "by_name"), ("labelled", "mixed"), ("two large", "mixed"))
}
CORPUS |= {
    f"what is met twice, or is NumPy's: {form}, {collate}, {order}": replace(
        _of(Data(form=form, length=24), (BEGIN, REST), order, num_workers=1), collate=collate
    )
    for form, collate, order in (
        ("tensor", "twice", "in order"),
        ("dict", "twice", "in order"),
        ("marked", "twice", "in order"),
        ("twins", "as_list", "in order"),
        ("number", "as_list", "numpy ints"),
    )
}
CORPUS |= {
    f"a stream tries again what it raised, without workers: {kind}": _of(
        Data(kind, habit="raises once"), _resumed(5), batch_size=None
    )
    for kind in ("stream", "stream itself")
}
CORPUS |= {
    f"a stream raises behind the last sample that came, {habit}, {workers} workers": _of(
        Data("stream", habit=habit), _resumed(4), batch_size=None, num_workers=workers or None
    )
    for workers, habit in ((0, "raises"), (0, "raises once"), (1, "raises"))
}
CORPUS |= {
    "a sampler whose state leaves its generators out": _of(
        Data(length=13), (BEGIN, REST, *_resumed(3)[:-2]), "leaves out", num_workers=1
    ),
    "a sampler whose state leaves its generators out, saved early": _of(
        Data(length=13), (SAVE, BEGIN, REST, *_resumed(3)[:-2]), "leaves out"
    ),
}
CORPUS |= {
    f"a sampler that draws each index from a global generator: {order}": _of(
        Data(length=13), _resumed(3), order, num_workers=workers
    )
    for order, workers in zip(KEEPS, (1, None, 1), strict=True)
}
CORPUS |= {
    f"the user seeds again in mid-epoch: {order}{' and behind the load' if again else ''}": _of(
        Data(length=13),
        (Do("seed", 1), *_resumed(3)[:2], Do("seed", 1), SAVE, RESUME, *again, BEGIN, REST, BEGIN, REST),
        order,
        num_workers=1,
    )
    for order, again in (
        *(("numpy's", ()), ("shuffle", ())),
        *(("numpy's", (Do("seed", 2),)), ("weighted", (Do("seed", 2),))),
    )
}
NUMBERS = (Do("set epoch", 0), *_resumed(1)[:-2], Do("set epoch", 1), BEGIN, REST)
CORPUS |= {
    f"may not be compared, or looked up: {kind}, {order}, {workers} workers": replace(
        _of(Data(kind), NUMBERS, order, num_workers=workers or None), loader=loader, collate=loader
    )
    for kind, order, loader in (
        ("rows unlike", "unlike in batches", ""),
        ("rows unlike", "unlike", "unlike"),
        ("rows", "unready in batches", ""),
        ("rows lazy", "lazy", ""),
        ("rows unready", "unready", ""),
        ("rows of epoch", "own unlike generator", "unlike"),
    )
    for workers in (0, 2)
}
CORPUS |= {
    f"may not be compared, or looked up: {kind}": replace(
        _of(Data(kind, 13), _resumed(2), num_workers=workers), collate="unlike", loader="unlike"
    )
    for kind, workers in (("stream unlike", 2), ("stream unready", 1))
}
CORPUS["may not be compared, or looked up, where bad samples are skipped"] = replace(
    _of(Data(habit="raises"), (BEGIN, REST), "unready", num_workers=1, on_bad_sample="skip:100"), loader="unlike"
)
CORPUS |= {
    f"may not be looked up, with {option}={value}": _of(
        Data(), (BEGIN, REST), "unready in batches", num_workers=1, **{option: value}
    )
    for option, value in (("schedule", "steal"), ("chunk_size", 1))
}
CORPUS |= {
    "views that share memory with themselves alone": replace(
        _of(Data(form="dict"), (BEGIN, REST), num_workers=1), collate="expanded"
    ),
    "one tensor under two keys, in some chunks only": replace(
        _of(Data(form="tensor"), (BEGIN, REST), batch_size=4, num_workers=1, chunk_size=1), collate="rows_twice"
    ),
}
CORPUS["set_epoch() does not reach a sampler"] = _of(
    Data(), (Do("set epoch", 1), BEGIN, REST, Do("set epoch", 2), BEGIN, REST), "hidden distributed"
)
CORPUS["labels are kept"] = _of(Data(form="labelled", length=24), (BEGIN, REST), num_workers=2)
