"""Which programs make sense: those whose outcome somebody can predict."""

from __future__ import annotations

import itertools

from tests.attack.datasets import NEED_COLLATE, NUMBERED, OF_EPOCH, ROW_WISE
from tests.attack.hooks import FETCHERS, ITERATORS
from tests.attack.loaders import NOT_PERSISTENT, OFF_THE_RING
from tests.attack.program import Program
from tests.attack.samplers import (
    CALLING,
    DISTRIBUTED,
    DRAWS,
    IN_BATCHES,
    KEEPS,
    ONE_BY_ONE,
    OTHERS,
    STATEFUL,
    WITHOUT_STATE,
)
from tests.attack.samplers import NUMBERED as NUMBERED_ORDERS
from tests.attack.twin import OURS_ALONE, is_compared_with_ours, is_followed, raises_elsewhere, seeds_samples

# They are read again after a resume.
WITHOUT_PLACE = ("stream", "stream itself", "stream module", "stream unready", "stream unlike")
OF_STREAMS = (
    *(*WITHOUT_PLACE, "stream with state", "stream whose iterator has state", "stream of epoch"),
    *("stream with failing state", "stream whose epoch counts", "stream that draws on by epoch"),
)
COUNT = (
    "stream with state",
    "stream of epoch",
    "stream that draws on by epoch",
)  # their places are their own, and not their iterators'
WHOLE = ("in order", "shuffle", "list", "own")  # an epoch has each sample once
CHANGES_OF = {
    "weights": ("weighted",),
    "weights in place": ("weighted",),
    "indices": ("subset",),
    "seed": ("distributed",),
    "shuffle": ("distributed",),
    "batch_size": ("in order", "shuffle"),
    "length": ("in order", "shuffle"),
    "flag": ("own",),
}


def why_not(program: Program) -> str | None:
    """Why nobody can say what this program should do; None if it makes sense."""
    parts = (_options, _samples, _states, _ranks, _loader, _hooks, _epochs, _actions)
    return next((why for part in parts if (why := part(program))), None)


def replaced_iterator(program: Program) -> str:
    """The method of torch's iterators that somebody replaces; "": none."""
    return next((do.what for do in program.actions if do.verb == "hook" and do.what in ITERATORS), "")


def fails_to_save(program: Program) -> bool:
    """Whether state_dict() may raise, because that of the sampler or of the stream does."""
    return program.order.kind == "failing state" or program.data.kind == "stream with failing state"


def leaves_ring(program: Program) -> bool:
    """Whether torch's iterator serves a loader that has workers."""
    return program.loader in OFF_THE_RING or bool(replaced_iterator(program))


def tries_again(program: Program) -> bool:
    """Whether a stream that has raised is read once more, and does not raise there."""
    return program.data.habit == "raises once" and program.data.kind in WITHOUT_PLACE and program.does("resume")


def unreached(program: Program) -> bool:
    """Whether an epoch with a number of its own has begun, and set_epoch() is called again, of a hidden sampler.

    Off the ring, nothing counts the epochs.
    """
    if program.order.kind != "hidden distributed" or program.does("resume", "copy", "pickle") or leaves_ring(program):
        return False
    done = [do for do in program.actions if do.verb in ("set epoch", "begin")]
    return any(
        (one.verb, other.verb, third.verb) == ("set epoch", "begin", "set epoch") and one.count and third.count
        for one, other, third in zip(done, done[1:], done[2:], strict=False)
    )


def _options(program: Program) -> str | None:
    data, get = program.data, program.get
    if not program.workers and program.shm:
        return "there is no ring"
    if not program.workers and any(
        get(name)
        for name in ("prefetch_factor", "persistent_workers", "timeout", "max_ring_bytes", "ring_memory", "spare_slots")
    ):
        return "torch refuses options of workers where there are none, and ours ignores its own"
    if program.is_stream and data.kind in OF_STREAMS:
        if program.order.kind != "in order":
            return "a stream has no sampler"
        refused = ("chunk_size", "sample_seeds", "on_bad_sample", "on_worker_death")
        if get("schedule") or any(get(name) for name in refused):
            return "refused for streams"
    ordered = ("schedule", "chunk_size", "sample_seeds")
    if get("in_order") is False and any(get(name) for name in ordered):
        return "refused out of order"
    is_cut = not program.collate or program.collate in ROW_WISE
    if get("chunk_size") and (program.batch_size is None or not is_cut or data.form in NEED_COLLATE):
        return "refused"
    if "views" in (data.form, *program.collate.split("_")) and (data.habit or program.batch_size is None):
        return "what is written into a batch may be the dataset's own"
    if program.batch_size is None and (program.order.kind in IN_BATCHES or program.collate or data.form == "ragged"):
        return "no batches to collate"
    if program.order.kind in ONE_BY_ONE and program.batch_size is not None:
        return "torch's BatchSampler does not end"
    if get("multiprocessing_context") and (data.habit or data.noise or program.loader or program.shm):
        return "what processes share, or cannot be pickled"
    if get("drop_last") and (program.batch_size is None or program.order.kind in IN_BATCHES):
        return "torch refuses"
    return None


def _states(program: Program) -> str | None:
    """Whether the program asks for states that it cannot have."""
    if fails_to_save(program) and program.does("resume"):
        return "no state to resume from"
    if program.order.kind == "counting" and program.does("save", "resume"):
        return "then it is asked at each draw"
    return None


def _ranks(program: Program) -> str | None:
    """Whether the rest of an epoch is defined for another number of ranks, or another order."""
    if sum(action.what == "ranks" for action in program.actions if action.verb == "resume") > 1:
        return "the second time, nobody has written down what the first ones had"
    if program.resumes("ranks") and program.resumes("workers"):
        return "its loader would have the ranks of the first one"
    return None


def _loader(program: Program) -> str | None:
    """Whether the class of the loader can do what the program does with it."""
    if program.loader and program.does("pickle"):
        return "the class has no name that pickle could find"
    if program.loader == "hooks_itself" and program.does("copy"):
        return "the copy makes iterators of the loader"
    if program.loader == "hooks_itself" and any(do.what == "_get_iterator" for do in program.actions):
        return "it holds the method that torch had when the loader was made"
    if program.loader in NOT_PERSISTENT and program.get("persistent_workers"):
        return "each iter() makes other workers"
    if not leaves_ring(program) or not (program.workers or program.loader):
        return None
    if not program.workers or any(program.get(name) for name in OURS_ALONE):
        return "refused off the ring"
    if program.does("save", "resume", "close", "close iterator"):
        return "only our iterators can do that"
    return None


def _hooks(program: Program) -> str | None:
    """Whether the loader can do with what is replaced what it does without."""
    hooks = [do.what for do in program.actions if do.verb == "hook"]
    if len(hooks) > 1 or (program.does("unhook") and not hooks):
        return "one at a time"
    if hooks and (is_compared_with_ours(program) or program.get("multiprocessing_context")):
        return "the twin is one of ours, or workers do not inherit what is replaced"
    if any(hook in FETCHERS for hook in hooks) and (
        seeds_samples(program) or program.get("chunk_size") or program.get("on_bad_sample")
    ):
        return "refused, because samples are made one by one"
    if replaced_iterator(program) and program.resumes("workers"):
        return "off the ring, nobody has counted"
    return None


def _epochs(program: Program) -> str | None:
    """Whether it can be said what a dataset's set_epoch() does: without workers, and in torch's workers."""
    data, get = program.data, program.get
    calls = program.order.kind in CALLING
    sets = [do for do in program.actions if do.verb in ("set epoch", "begin")]
    if program.does("set attribute") and (data.kind != "rows with an epoch's attribute" or get("persistent_workers")):
        return "no attribute, or workers that have no copy of it"
    if data.kind in OF_EPOCH and program.does("resume", "copy", "pickle"):
        return "after a resume only what follows from the number is promised"
    if calls and data.kind not in ("rows of epoch", "rows whose epoch counts"):
        return "nothing to call"
    if program.order.kind == "calls set_epoch twice" and data.kind != "rows of epoch":
        return "a worker whose first sample has the second number does not count the first"
    if calls and program.does("set epoch", "resume", "nest", "copy", "pickle"):
        return "which of two numbers is the last, or how often the sampler was asked"
    if data.kind == "rows whose epoch seeds" and (seeds_samples(program) or get("on_bad_sample")):
        return "its own seeds are not those of its samples"
    differs = data.kind in ("rows of epoch", "stream of epoch")
    if differs and data.noise and get("persistent_workers") and program.does("set epoch"):
        return "torch's workers that persist do not learn the epoch, and a twin without workers draws other noise"
    if not is_followed(program):
        return None
    alone = data.kind == "stream of epoch" and program.workers == 1
    if data.noise or data.habit or program.loader or program.does("hook") or get("on_bad_sample"):
        return "the twin has no workers"
    if program.does("resume") and not alone:
        return "the twin has no workers"
    followed = ("rows of epoch", "rows whose epoch counts", "rows whose epoch draws", *["stream of epoch"] * alone)
    if get("persistent_workers") and data.kind not in followed:
        return "torch's workers that persist do not learn the epoch"
    if get("persistent_workers") and program.order.kind in (*DRAWS, "raising", "odd batches"):
        return "the twin has no workers, and draws a base seed for each epoch"
    if data.kind == "rows whose epoch draws" and get("persistent_workers"):
        pairs = itertools.pairwise(sets)
        begun = {set_.count for set_, do in pairs if (set_.verb, do.verb) == ("set epoch", "begin")}
        if len(begun) < sum(do.verb == "begin" for do in sets):
            return "a worker that makes nothing in an epoch draws in a later one of the same number, by that one's seed"
    if data.kind == "rows whose epoch counts" and get("persistent_workers"):
        if program.workers > 1:
            return "a worker that makes nothing in an epoch does not count it"
        if any(one.verb == other.verb == "set epoch" for one, other in itertools.pairwise(sets)):
            return "nothing is made between two numbers"
        numbers = [do.count for do in sets if do.verb == "set epoch"]
        if any(one == other for one, other in itertools.pairwise(numbers)):
            return "two calls with one number are one"
    return None


def _samples(program: Program) -> str | None:
    data, get = program.data, program.get
    if data.form in NEED_COLLATE and program.collate != "as_list" and program.batch_size is not None:
        return "default_collate cannot stack these"
    if data.noise and (get("chunk_size") and not seeds_samples(program)):
        return "draws depend on the chunks"
    if data.noise and program.order.kind in KEEPS and (not program.workers or program.resumes("workers")):
        return "the dataset draws between two draws of the sampler"
    if data.noise and get("in_order") is False:
        return "draws depend on who made the batch"
    if data.noise and program.does("resume") and not seeds_samples(program):
        return "draws do not go on where samples are not seeded"
    if data.noise and data.habit.startswith("raises") and get("chunk_size"):
        return "which samples of the batch were drawn depends on the chunks"
    if data.habit == "exits once" and (not program.workers or get("on_worker_death") != "respawn"):
        return "nobody replaces the worker"
    if data.habit == "exits once" and (program.is_stream and data.kind in OF_STREAMS):
        return "nobody replaces the worker of a stream"
    if data.habit == "raises once" and (get("chunk_size") or program.does("nest", "close", "pickle")):
        return "which copy of a sample is the first"
    if data.habit == "raises once" and program.order.kind in ("replacement", "weighted"):
        return "which of the batches with that sample is the first"
    if data.habit == "raises once" and program.resumes("ranks"):
        return "samples that fill up the last round are read twice"
    if tries_again(program) and program.batch_size is not None:
        return "in which batch the sample that raised comes, where the stream is read once more"
    if program.shm and (program.is_stream and data.kind in OF_STREAMS):
        return "a stream whose place finds no room is read once more"
    if program.shm and leaves_ring(program):
        return "torch's iterator cannot put its batches there"
    if program.shm and get("on_bad_sample"):
        return "a sample that is bad and too large"
    if program.resumes("ranks") and (data.noise or get("on_bad_sample")):
        return "the twin is one of ours, and has other ranks"
    if data.kind in COUNT and data.habit.startswith("raises") and program.does("resume"):
        return "the generator that raised is over, and the one that is made behind the error goes on"
    if get("on_bad_sample") and data.habit not in ("raises", "raises odd"):
        return "nothing is bad"
    if get("on_bad_sample") and program.workers == 0:
        return "the twin has a worker"
    if get("on_bad_sample") and data.noise and not seeds_samples(program):
        return "draws depend on the workers"
    if get("on_bad_sample") and get("persistent_workers") and program.resumes("workers"):
        return "replacements follow the base seed, and workers that persist keep theirs"
    if data.habit == "timer" and program.does("take in thread") and (not program.workers or program.resumes("workers")):
        return "a timer cannot be set in a thread of the trainer"
    if program.order.kind == "raising" and not program.workers and program.does("save"):
        return "the error takes no batch's place, so a run that goes on behind it meets it again"
    if program.order.kind == "raising" and raises_elsewhere(program) and program.does("save"):
        return "behind which of the batches the state is"
    if program.order.kind == "raising" and (
        get("in_order") is False
        or any(d.what == "workers" for d in program.actions)
        or (is_compared_with_ours(program) and raises_elsewhere(program))
    ):
        return "which batch the sampler's error replaces"
    if program.order.kind == "raising" and program.does("resume") and program.does("set epoch"):
        return "where iter() raises what the sampler raised, set_epoch() drops the epoch that it did not resume"
    if program.order.kind in ("raising", "odd batches") and data.habit.startswith("raises"):
        return "two exceptions at a time"
    if get("in_order") is False and data.habit.startswith(("raises", "exits")):
        return "torch's order of exceptions"
    return None


def _actions(program: Program) -> str | None:
    """Follow the actions: is there an iterator, an epoch, a state?"""
    open_, midway, saved, fresh, nested, another = False, False, False, False, False, False
    lost_midway = moved = was_begun = False
    ranks = 1
    shortened = took = took_at_save = 0
    was_resumed = False
    leaves_out = program.order.kind == "leaves out"
    keeps = program.order.kind in STATEFUL or program.data.kind in COUNT
    persistent = bool(program.get("persistent_workers"))
    workers = program.workers  # of the loader in use: a resume may make one with another number
    unordered = program.get("in_order") is False
    for action in program.actions:
        verb = action.verb
        took += action.count or 1 if verb in ("take", "take in thread") else 0
        if another and (verb not in ("begin", "take", "rest", "take in thread") or (verb == "begin" and open_)):
            return "later epochs are in the other order"
        if verb == "begin":
            if leaves_out and was_resumed and not fresh:
                return "a generator that its sampler's state leaves out may be a draw behind"
            if midway and not fresh and program.data.habit == "raises once":
                return "whether the sample of an epoch that is left was read depends on how much was prefetched"
            if midway and not fresh and bool(workers) != bool(program.workers) and program.order.kind in DRAWS:
                return "without workers, an epoch that is left may have drawn nothing"
            if midway and not fresh and _draws_at_another_time(program, workers):
                return "torch's sampler draws once more at its end, and how soon that is depends on the workers"
            if midway and not fresh and unordered:
                return "which batches of an epoch come before it is left"
            if midway and not fresh and (keeps or program.data.kind in OF_STREAMS):
                return "where an epoch that is left leaves its sampler or stream depends on how much was prefetched"
            took = took_at_save if fresh and midway else 0  # in this epoch, before its state and after it
            open_, midway, fresh, nested = True, True, False, False
            was_begun = True
        elif verb in ("take", "rest", "take in thread", "fork") and not open_ and verb != "fork":
            return "no iterator"
        elif verb == "rest":
            midway, open_ = False, True
        elif verb == "save":
            if nested:
                return "the state is of one of two epochs"
            if midway and unordered and workers > 1:
                return "state_dict() raises there"
            if midway and unordered and took * (program.batch_size or 1) >= program.data.length:
                return "batches of two epochs would be sorted as those of one"
            saved, lost_midway, moved, took_at_save = True, midway, False, took
        elif verb == "resume":
            if not saved:
                return "nothing is saved"
            if moved:
                return "the state is of other ranks"
            begun_at_save = 0 < took_at_save * (program.batch_size or 1) < program.data.length
            if leaves_out and not (lost_midway and begun_at_save):
                return "a generator that its sampler's state leaves out has drawn, or has not"
            was_resumed = True
            moved, another = action.what == "ranks", action.what in (*OTHERS, "shorter")
            if action.what == "shorter" and (why := _shorter(program, action.count, took if lost_midway else 0)):
                return why
            ranks = max(ranks, action.count) if moved else ranks
            if action.what in OTHERS and (program.order.kind not in DISTRIBUTED or not lost_midway or not took):
                return "the order is what the user wants"
            among = max(program.order.ranks, ranks)
            if action.what in OTHERS and took * (program.batch_size or 1) > program.data.length // among:
                return "the epoch may be over, and the next one is in the other order"
            if another and program.order.kind == "straight distributed" and action.what != "seed":
                return "its order is another one without shuffle, and the same"
            if moved and (program.order.kind != "distributed" or not action.count):
                return "no ranks"
            open_, midway, fresh, nested = False, lost_midway, True, False
            workers = {"workers": action.count, "generator": program.workers}.get(action.what, workers)
            if action.what == "generator" and not midway:
                return "between epochs, another generator is the user's wish"
            if why := _other(program, action.what, action.count):
                return why
        elif verb in ("drop", "close", "close iterator"):
            if verb == "close iterator" and (not open_ or not workers):
                return "no iterator of ours"
            if verb == "close iterator" and persistent and program.data.kind in COUNT:
                return "workers that would live on end, and the epochs that their streams count with them"
            if verb == "close" and midway and persistent and not program.workers:
                return "nothing to close"
            open_ = False
            if verb in ("close", "drop") and midway and persistent:
                pass
        elif verb == "set epoch" and (
            midway
            or fresh
            or not (
                program.order.kind in NUMBERED_ORDERS or program.data.kind in NUMBERED or "epoch" in program.data.kind
            )
        ):
            return "no epoch to set"
        elif verb == "look" and not (fresh and workers and program.data.kind == "stream that draws on by epoch"):
            return "what is read of the trainer's dataset is not given by its copies"
        elif verb == "look" and not (lost_midway and took >= workers and program.actions[0].verb == "set epoch"):
            return "a copy begins where the trainer's dataset is, if it has no state, or no number from which to begin"
        elif verb == "look" and took * (program.batch_size or 1) >= program.data.length:
            return "the state may be that of an epoch's end, and no copy has one then"
        elif verb == "seed" and (midway or fresh) and program.order.kind in KEEPS:
            return "only the sampler's own draws may change its order"
        elif verb == "seed" and midway and not (took and (took_at_save or not fresh)):
            return "whether the sampler has drawn its order"
        elif verb == "seed" and midway and program.data.noise and (not workers or program.resumes("workers")):
            return "whether the next samples have drawn"
        elif verb == "set attribute" and (midway or fresh):
            return "workers have their copy"
        elif verb in ("hook", "unhook") and (midway or saved or (persistent and was_begun)):
            return "workers keep what they have inherited, and a crash puts back what was replaced"
        elif verb == "change":
            if midway or program.order.kind not in CHANGES_OF[action.what]:
                return "nothing to change"
            if action.what == "batch_size" and program.batch_size is None:
                return "no batches"
            if action.what in ("weights", "weights in place") and program.data.length < 2:
                return "no weight is left, and workers meet the sampler's error earlier than the twin, which has none"
            shortened += action.what == "length"  # by one sample each time
            if shortened > program.data.length:
                return "a dataset of fewer samples than none raises in len(), which torch asks for later than we"
            if shortened == program.data.length and program.order.kind == "shuffle":
                return "RandomSampler divides by the length, and workers meet its error earlier than the twin"
            if action.what == "length" and (program.is_stream and program.data.kind in OF_STREAMS):
                return "the worker's copy of a stream keeps its length"
            if action.what == "length" and persistent and "epoch" in program.data.kind:
                return "workers' copies keep their length, and what an epoch's number gives follows from that"
            if action.what in ("batch_size", "length") and program.does("resume"):
                return "another dataset than that of the state"
        elif verb == "nest":
            if not midway or not open_ or persistent or keeps or unordered or program.order.kind == "raising":
                return "no two epochs at a time"
            if "itself" in program.order.kind or "itself" in program.data.kind:
                return "the inner epoch moves the outer one's place"
            if bool(workers) != bool(program.workers) and program.order.kind in DRAWS:
                return "without workers, the outer epoch may have drawn nothing yet"
            if _draws_at_another_time(program, workers):
                return "torch's sampler draws once more at its end, and how soon that is depends on the workers"
            nested = True
        elif verb in ("copy", "pickle"):
            if midway or open_ or fresh or persistent or program.data.kind in OF_STREAMS:
                return "the copy and the loader share their workers, or nobody knows its place"
            if verb == "pickle" and "lazy" in f"{program.data.kind} {program.order.kind}":
                return "unpickling looks up attributes"
            if verb == "pickle" and (program.does("save") or program.data.habit in ("keeps", "forks")):
                return "no state goes with it"
            if program.does("save"):
                return "no state goes with it"
    if midway and unordered:
        return "which batches of an epoch come before it is left"
    return None


def _draws_at_another_time(program: Program, workers: int) -> bool:
    """Whether a sampler with a generator of its own may be at its end while the twin's is not, or the other way."""
    # the twin of samples that are seeded, or skipped, has one worker
    alone = seeds_samples(program) or program.get("on_bad_sample")
    steals = program.get("schedule") == "steal"  # which prefetches more batches than torch
    others = program.resumes("workers") or (alone and workers > 1) or steals
    return "generator" in program.order.kind and bool(others)


def _shorter(program: Program, length: int, took: int) -> str | None:
    """Whether the place in an epoch is past the end of a dataset of this length."""
    if program.order.kind not in WHOLE or (program.is_stream and program.data.kind in OF_STREAMS):
        return "how long an epoch is"
    size, whole = program.batch_size or 1, program.data.length
    if took * size >= whole + size or program.get("drop_last"):
        return "the epoch is over"
    if not 0 < length < min(took * size, whole) or program.data.habit:
        return "it is not past the end"
    return None


def _other(program: Program, what: str, count: int) -> str | None:
    """Whether the program can go on with a loader that is changed so."""
    draws = program.data.noise or (program.workers and program.order.kind in DRAWS)
    if what == "workers" and not count and program.get("persistent_workers") and draws:
        return "workers that persist keep one base seed, and without workers each epoch draws one"
    if what == "workers" and not count and program.data.habit == "exits once":
        return "the exit would be the trainer's"
    if what == "workers":
        if program.data.kind in OF_STREAMS and count != program.workers:
            return "nobody knows where the parts of other workers are"
        if program.get("in_order") is False or program.order.kind in (*STATEFUL, *WITHOUT_STATE):
            return None
        if not count and (program.get("on_bad_sample") or program.get("on_worker_death")):
            return "options of workers"
        if not count and any(program.get(n) for n in ("max_ring_bytes", "ring_memory", "spare_slots")):
            return "options of workers"
        if not program.workers:
            return None
    if what == "generator" and program.order.kind not in ("shuffle", "generator"):
        return "no generator"
    return None
