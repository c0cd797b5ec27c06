"""The attacker finds a fault that is planted, makes the program small, and prints one that runs."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from scripts import ROOT
from torch.utils.data import dataloader as torchs

import shmloader
from shmloader.batch.replace_tensors import replaced
from shmloader.core.batch_reader import BatchReader
from shmloader.private import replaced as private
from shmloader.private.of_torch import ExceptionWrapper
from shmloader.protocols import user_objects
from shmloader.resume import (
    dataset_epochs,
    place,
    rest_of_epoch,
    sampler_generators,
    sampler_states,
    samplers,
)
from shmloader.trainer import without_workers
from shmloader.trainer.delivery import Delivery
from shmloader.worker import fetch, look_ahead, loop, numbered_copy, random_states
from tests.attack import rules
from tests.attack.corpus import CORPUS
from tests.attack.draw import draw
from tests.attack.findings import Findings
from tests.attack.hooks import HOOKS, installed
from tests.attack.judge import Finding, check, forgiven_in_any_order, judged, sorted_by_epoch
from tests.attack.log import Log, caught, generators, set_generators
from tests.attack.print_program import script, short
from tests.attack.program import Data, Do, Order, Program
from tests.attack.run import run
from tests.attack.samplers import Itself, SamplerError
from tests.attack.shrink import shrunk
from tests.attack.source import compiled
from tests.attack.twin import twin

EPOCH = Program(actions=(Do("begin"), Do("rest")))
RESUMED = Program(actions=(Do("begin"), Do("take", 2), Do("save"), Do("resume"), Do("begin"), Do("rest")))


RAISES_LATE = Program(
    data=Data(length=18, noise="numpy", at=17),
    order=Order("raising", 17),
    batch_size=1,
    options=(("num_workers", 2), ("sample_seeds", True)),
    actions=EPOCH.actions,
)


def lose_the_third_batch() -> None:
    """Planted in the child alone."""

    def losing(batches: Iterator[Any]) -> Iterator[Any]:
        yield from (batch for number, batch in enumerate(batches) if number != 2)

    begin = shmloader.DataLoader.__iter__
    shmloader.DataLoader.__iter__ = lambda self: losing(begin(self))  # type: ignore[method-assign]


def miscount() -> None:
    state = shmloader.DataLoader.state_dict
    shmloader.DataLoader.state_dict = lambda self: state(self) | {"batches": 1}  # type: ignore[method-assign]


def hang() -> None:
    os.read(os.pipe()[0], 1)


def leak() -> None:
    forgotten.append(os.open("/dev/null", os.O_RDONLY))
    os.dup2(os.memfd_create("forgotten"), 99)


forgotten: list[int] = []


def test_a_sound_loader_is_found_sound() -> None:
    assert judged(RESUMED) is None
    assert judged(EPOCH.with_options(num_workers=2)) is None
    assert judged(RAISES_LATE) is None


def test_a_lost_batch_is_found() -> None:
    found = judged(EPOCH, plant=lose_the_third_batch)
    assert found is not None and found.cause == "a batch is lost"


def test_a_wrong_count_in_the_state_is_found() -> None:
    found = judged(RESUMED, plant=miscount)
    assert found is not None and "counts other batches" in found.cause


def test_a_loader_that_only_claims_to_ride_is_found() -> None:
    def say_it_rides() -> None:
        shmloader.DataLoader.rides_ring = property(lambda self: True)  # type: ignore[assignment,method-assign]

    program = replace(EPOCH.with_options(num_workers=1), loader="names_torchs_iterator")
    assert judged(program) is None
    found = judged(program, plant=say_it_rides)
    assert found is not None and found.cause == "rides_ring is True, and torch's iterator was made"


def test_a_loader_that_does_not_ride_is_found() -> None:
    def have_torchs_serve() -> None:
        shmloader.DataLoader.__iter__ = lambda self: torchs._MultiProcessingDataLoaderIter(self)  # type: ignore[method-assign]

    found = judged(EPOCH.with_options(num_workers=1), plant=have_torchs_serve)
    assert found is not None and found.cause == "it does not ride"


def deliver_tensors_apart() -> None:
    """As if each had been written out in full."""
    read = Delivery.read
    Delivery.read = lambda self: replaced(read(self), torch.Tensor.clone, lambda value: value)  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("form", "collate"),
    [
        *(("views", "as_list"), ("tensor", "with_views"), ("pair", "with_views"), ("nested", "annotated_views")),
        ("dict", "expanded"),
    ],
)
def test_views_that_share_no_memory_are_found(form: str, collate: str) -> None:
    program = replace(EPOCH.with_options(num_workers=2), data=Data(form=form), collate=collate)
    assert rules.why_not(program) is None
    assert judged(program) is None
    found = judged(program, plant=deliver_tensors_apart)
    assert found is not None and "batch" in found.cause


def deliver_containers_apart() -> None:
    """As if each place had an object of its own; the tensors share their memory."""
    read = Delivery.read
    Delivery.read = lambda self: replaced(read(self), torch.Tensor.detach, lambda value: value)  # type: ignore[method-assign]


def test_an_object_that_arrives_as_two_is_found() -> None:
    program = replace(EPOCH.with_options(num_workers=2), data=Data(length=24), collate="annotated_views")
    assert rules.why_not(program) is None
    assert judged(program) is None
    found = judged(program, plant=deliver_containers_apart)
    assert found is not None and found.cause == "another batch"


def leave_labels_in_the_slot() -> None:
    def reader(self: Any, *given: Any, **options: Any) -> None:
        init(self, *given, **options)
        self._reader = BatchReader(ExceptionWrapper, keeps=False)

    init = Delivery.__init__
    Delivery.__init__ = reader  # type: ignore[method-assign]


def test_labels_that_hold_their_batches_are_found() -> None:
    program = replace(EPOCH.with_options(num_workers=2), data=Data(form="labelled", length=24))
    assert judged(program) is None
    found = judged(program, plant=leave_labels_in_the_slot)
    assert found is not None and found.cause == "batches are copied, although only labels are kept"


def repeat_what_other_ranks_had() -> None:
    shmloader.DistributedSampler.after = lambda self, samples: iter(self)  # type: ignore[method-assign]


def test_an_epoch_goes_on_with_other_ranks() -> None:
    actions = (Do("begin"), Do("take", 2), Do("save"), Do("resume", 3, "ranks"), Do("begin"), Do("rest"))
    program = replace(EPOCH, data=Data(length=13), order=Order("distributed"), actions=(*actions, *EPOCH.actions))
    assert rules.why_not(program) is None
    assert judged(program) is None
    found = judged(program, plant=repeat_what_other_ranks_had)
    assert found is not None and found.cause == "a batch is lost"


def test_a_sample_that_raised_once_does_not_raise_again_in_a_run_that_goes_on() -> None:
    actions = (Do("begin"), Do("take", 3), Do("save"), Do("take", 1), Do("resume"), Do("begin"), Do("rest"))
    for at, position in ((3, "before the save"), (7, "after it")):
        program = replace(EPOCH, data=Data(length=12, habit="raises once", at=at), actions=actions)
        assert rules.why_not(program.with_options(num_workers=1)) is None
        assert judged(program.with_options(num_workers=1)) is None, position


def test_a_dataset_is_not_shortened_below_nothing() -> None:
    shorten = Do("change", what="length")
    for length, why in ((0, "fewer samples than none"), (1, None)):
        found = rules.why_not(replace(EPOCH, data=Data(length=length), actions=(shorten, *EPOCH.actions)))
        assert found is None if why is None else why in (found or ""), length
    for length, why in ((1, "divides by the length"), (2, None)):
        program = replace(EPOCH, data=Data(length=length), order=Order("shuffle"), actions=(shorten, *EPOCH.actions))
        assert (why or "") in (rules.why_not(program) or "") and (rules.why_not(program) is None) == (why is None)
    twice = replace(EPOCH, data=Data(length=1), actions=(shorten, *EPOCH.actions, shorten, *EPOCH.actions))
    assert "fewer samples than none" in (rules.why_not(twice) or "")


@pytest.mark.parametrize(("took", "why"), [(1, "no state"), (2, None), (24, "of an epoch's end")])
def test_a_look_is_drawn_where_each_copy_has_a_state(took: int, why: str | None) -> None:
    program = CORPUS["a stream that draws on, resumed behind a look into it"]
    actions = [replace(action, count=took) if action.verb == "take" else action for action in program.actions]
    found = rules.why_not(replace(program, actions=tuple(actions)))
    assert (why or "") in (found or "") and (found is None) == (why is None)


@pytest.mark.parametrize(("took", "why"), [(2, None), (4, "leaves out has drawn, or has not")])
def test_what_came_before_a_resume_counts_for_the_epoch_too(took: int, why: str | None) -> None:
    begin = Do("begin")
    saved, rest = (Do("save"), Do("resume"), begin), (Do("rest"),)
    actions = (begin, Do("take", 2), *saved, Do("take", took), *saved, *rest)
    found = rules.why_not(Program(data=Data(length=9), batch_size=2, order=Order("leaves out"), actions=actions))
    assert (why or "") in (found or "") and (found is None) == (why is None)


def test_a_small_shm_is_the_programs_alone() -> None:
    program = replace(EPOCH, data=Data(form="large", length=24), batch_size=4, shm="512k")
    assert judged(program.with_options(num_workers=2, ring_memory="posix", prefetch_factor=4)) is None
    assert os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize > 512 * 1024


def test_a_batch_that_is_refused_out_of_order_may_be_any() -> None:
    theirs = [("batch", 0), ("batch", 3), ("batch", 6), ("end",), ("batch", 0), ("batch", 3), ("end",)]
    refused = ("raised", "next()", "MemoryError", "")
    ours = [("batch", 6), refused, ("batch", 0), ("end",), ("batch", 3), ("batch", 0), ("end",)]
    assert sorted_by_epoch(forgiven_in_any_order(ours, theirs)) == sorted_by_epoch(theirs)
    twice = [("batch", 6), refused, ("batch", 6), ("end",), *ours[4:]]
    assert sorted_by_epoch(forgiven_in_any_order(twice, theirs)) != sorted_by_epoch(theirs)
    lost = [("batch", 6), ("batch", 0), ("end",), *ours[4:]]
    assert sorted_by_epoch(forgiven_in_any_order(lost, theirs)) != sorted_by_epoch(theirs)


def test_a_twin_without_workers_gives_the_same() -> None:
    program = replace(EPOCH, order=Order("shuffle"), actions=(*EPOCH.actions, *EPOCH.actions))
    program = program.with_options(num_workers=2, prefetch_factor=1)
    assert twin(program)[0].workers == 0
    assert judged(program) is None
    left = (Do("begin"), Do("begin"), Do("rest"))  # with workers the first epoch draws, and without it does not
    assert twin(replace(program, actions=left))[0].workers == 2


def _replaced() -> list[Any]:
    return [vars(where)[what] for hook in HOOKS.values() for where, what, _ in hook]


@pytest.mark.parametrize("hook", HOOKS)
def test_what_was_replaced_is_put_back(hook: str) -> None:
    before = _replaced()
    with installed(hook):
        assert _replaced() != before
    assert _replaced() == before
    with pytest.raises(KeyError), installed(hook):
        raise KeyError
    assert _replaced() == before


def test_what_was_replaced_is_put_back_when_a_program_raises() -> None:
    before = _replaced()
    log = Log()

    def user() -> None:
        log.hook("__iter__")
        raise KeyError

    caught(log, user)
    assert log.events == [("raised", "the program", "KeyError", "")]
    assert _replaced() == before


@pytest.mark.parametrize("hook", ["fetch", "__iter__", "_next_index"])
def test_a_hook_without_effect_is_found(hook: str) -> None:
    def hook_nothing() -> None:
        Log.hook = lambda self, name: None  # type: ignore[method-assign]

    program = replace(EPOCH, actions=(Do("hook", what=hook), *EPOCH.actions)).with_options(num_workers=1)
    assert rules.why_not(program) is None
    found = judged(program, plant=hook_nothing)
    assert found is not None and found.cause == "another batch"


def test_a_state_of_another_order_that_is_taken_is_found() -> None:
    def take_any_state() -> None:
        shmloader.DataLoader.load_state_dict = lambda self, state: None  # type: ignore[method-assign]

    program = CORPUS["another order in mid-epoch: seed, torchs distributed"]
    found = judged(program, plant=take_any_state)
    assert found is not None and found.cause == "another batch"


def test_an_error_without_its_text_is_found() -> None:
    def lose_texts() -> None:
        def losing(batches: Any) -> Iterator[Any]:
            for _ in range(4):
                try:
                    yield next(batches)
                except Exception:
                    raise TypeError("lost") from None

        begin = shmloader.DataLoader.__iter__
        shmloader.DataLoader.__iter__ = lambda self: losing(begin(self))  # type: ignore[method-assign]

    found = judged(CORPUS["an exception that torch cannot make again"], plant=lose_texts)
    assert found is not None and found.cause == "the error's text is lost: TypeError"


def ask_always() -> None:
    sampler_states.Saving.asked = True


def let_errors_end_the_epoch() -> None:
    def asking(self: Any, keeper: Any, used_up: bool = False) -> None:
        self.state = keeper.state_dict()

    sampler_states.Answer.__init__ = asking  # type: ignore[method-assign]


def forget_generators() -> None:
    sampler_generators.AllGenerators.text = lambda self: "[]"  # type: ignore[method-assign]


def forget_own_generators() -> None:
    every = sampler_generators._all
    sampler_generators._all = lambda sampler: (each for each in every(sampler) if each[0] < 0)  # type: ignore[assignment]


def set_all_generators_back() -> None:
    """Also one that the sampler restores, and draws the rest of the epoch from."""
    drawing_from = sampler_generators.drawing_from

    @contextlib.contextmanager
    def with_all_set_back(*given: Any) -> Iterator[Any]:
        before = generators()
        with drawing_from(*given) as begin:
            yield begin
        set_generators(before)

    rest_of_epoch.drawing_from = with_all_set_back  # type: ignore[assignment,attr-defined]


def take_all_generators_for_restored() -> None:
    sampler_generators.is_same = lambda one, other: False  # type: ignore[attr-defined]


def compare_collate_functions() -> None:
    make = fetch.fetch_from

    def comparing(dataset: Any, auto_collation: bool, collate_fn: Any, *given: Any, **options: Any) -> Any:
        assert collate_fn != 0
        return make(dataset, auto_collation, collate_fn, *given, **options)

    loop.fetch_from = comparing  # type: ignore[attr-defined]


def compare_samplers() -> None:
    def set_epoch_of(number: int, *given: Any) -> None:
        for part in {part: part for sampler in given for part in samplers.within(sampler)}:
            getattr(part, "set_epoch", lambda _: None)(number)

    place.set_epoch_of_samplers = set_epoch_of  # type: ignore[attr-defined]


def hash_datasets() -> None:
    dataset_epochs._epochs = weakref.WeakKeyDictionary()  # type: ignore[assignment]


def hash_loaders() -> None:
    place._places = weakref.WeakKeyDictionary()  # type: ignore[assignment]


def take_modules_for_stateful() -> None:
    def has_both(what: Any) -> bool:
        return hasattr(what, "state_dict") and hasattr(what, "load_state_dict")

    samplers.says_where_it_is = fetch.says_where_it_is = has_both  # type: ignore[attr-defined]


def meet_errors_of_look_ups() -> None:
    def look_up(of: Any, name: str, unless: Any = None) -> Any:
        return getattr(of, name, unless)

    for user in (samplers, user_objects, look_ahead):
        user.attribute = look_up  # type: ignore[attr-defined]


def let_copies_draw_apart() -> None:
    numbered_copy.seeded = lambda seed: random_states.untouched()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "plant"),
    [
        ("set_epoch in two workers that persist: rows whose epoch draws", let_copies_draw_apart),
        ("a sampler that counts how often it is asked", ask_always),
        ("a sampler whose state fails", let_errors_end_the_epoch),
        ("a sampler, resumed in mid-epoch: stub", let_errors_end_the_epoch),
        ("a sampler, resumed in mid-epoch: numpy's", forget_generators),
        ("a sampler, resumed in mid-epoch: module", take_modules_for_stateful),
        ("a stream that is a module", take_modules_for_stateful),
        ("a sampler, saved all along: unready", meet_errors_of_look_ups),
        ("may not be compared, or looked up: rows lazy, lazy, 0 workers", meet_errors_of_look_ups),
        ("may not be compared, or looked up: rows unready, unready, 2 workers", meet_errors_of_look_ups),
        ("may not be compared, or looked up: rows, unready in batches, 2 workers", meet_errors_of_look_ups),
        ("may not be compared, or looked up: stream unready", meet_errors_of_look_ups),
        ("may not be compared, or looked up: rows unlike, unlike in batches, 0 workers", compare_samplers),
        ("may not be compared, or looked up: rows unlike, unlike, 2 workers", compare_collate_functions),
        ("may not be compared, or looked up: rows unlike, unlike, 2 workers", hash_datasets),
        ("may not be compared, or looked up: stream unlike", hash_loaders),
        ("a sampler whose state leaves its generators out", forget_own_generators),
        ("a sampler that draws each index from a global generator: keeps random", set_all_generators_back),
        ("a sampler that draws each index from a global generator: keeps torch", set_all_generators_back),
        ("the user seeds again in mid-epoch: numpy's", take_all_generators_for_restored),
        ("a dataset that is not set up", meet_errors_of_look_ups),
    ],
)
def test_what_the_loader_asks_of_users_objects_is_found(name: str, plant: Any) -> None:
    assert judged(CORPUS[name]) is None
    assert judged(CORPUS[name], plant=plant) is not None


NO_ERRORS = property(lambda self: [], lambda self, errors: None)


def _has_torchs_code_or_none(found: Any, file: str | None) -> bool:
    return not hasattr(found, "__code__") or found.__code__.co_filename == file


@pytest.mark.parametrize(
    ("name", "where", "what", "planted"),
    [
        ("replaced in torch: _process_data", private, "_is_torchs", _has_torchs_code_or_none),
        ("a stream whose epoch is set each time, without workers", without_workers, "set_epoch_again", id),
        ("a stream that is its own iterator tries again what it raised", fetch, "by_next", iter),
        ("a stream tries again what it raised, without workers: stream", without_workers._Given, "errors", NO_ERRORS),
        ("drop_last drops all, without workers", without_workers, "warn_if_all_dropped", lambda *_: None),
        ("set_epoch() does not reach a sampler", place, "warn_of_unreached", lambda *_: None),
        ("a place past the end of a shorter dataset: in order", place, "why_past_end", lambda *_: None),
    ],
)
def test_a_fix_that_is_taken_out_is_found(name: str, where: Any, what: str, planted: Any) -> None:
    assert judged(CORPUS[name]) is None
    assert judged(CORPUS[name], plant=lambda: setattr(where, what, planted)) is not None


def test_a_sampler_without_end_raises() -> None:
    sampler = Itself(8)
    with pytest.raises(SamplerError):
        for _ in range(1000):
            assert next(iter(sampler)) == 0


@pytest.mark.parametrize("name", CORPUS)
def test_programs_of_the_corpus_make_sense(name: str) -> None:
    assert rules.why_not(CORPUS[name]) is None


def test_a_hang_is_found() -> None:
    assert run(compiled(EPOCH, "shmloader"), deadline=0.1, plant=hang).status is None


def test_an_exit_is_found() -> None:
    assert run(lambda log: os._exit(5)).status == 5


def test_a_program_is_made_small() -> None:
    data = Data(length=24, form="dict", noise="torch")
    actions = (*RESUMED.actions, Do("fork"), *EPOCH.actions, Do("drop"), *EPOCH.actions)
    big = replace(EPOCH, seed=9, data=data, order=Order("shuffle"), keep=3, actions=actions)
    big = big.with_options(num_workers=3, prefetch_factor=4, persistent_workers=True, sample_seeds=True)
    assert rules.why_not(big) is None

    small = shrunk(big, lambda program: program.does("resume") and program.workers > 1, 1000)

    assert small.actions == (Do("save"), Do("resume"))
    assert small.options == (("num_workers", 2),)
    assert shrunk(big, lambda program: program.does("resume"), 1000, until=time.monotonic()) == big
    assert (small.data.form, small.data.noise, small.order, small.keep, small.seed) == ("number", "", Order(), 0, 0)


def test_findings_of_one_cause_are_one() -> None:
    findings = Findings(lambda program: Finding("lost", "") if program.does("resume") else None)
    assert findings.add(RESUMED, Finding("lost", ""), "1", 0) is not None
    assert findings.add(replace(RESUMED, keep=3), Finding("lost", ""), "2", 1) is None
    assert findings.add(RESUMED, Finding("hangs", ""), "3", 1) is not None
    assert [group.count for group in findings.groups] == [2, 1]


def test_a_printed_program_is_the_program() -> None:
    text = script(EPOCH, Finding("a batch is lost", ""))
    assert len(text.splitlines()) <= 40
    names: dict[str, Any] = {"__name__": "printed"}
    exec(compile(text, "printed", "exec"), names)  # it finds nothing here, or it would exit
    with pytest.raises(SystemExit, match="a batch is lost"):
        check(EPOCH, names["ours"], names["expected"], plant=lose_the_third_batch)


@pytest.mark.long  # a process that imports torch
def test_a_printed_program_runs_by_itself() -> None:
    text = script(RESUMED, Finding("a batch is lost", ""))
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "no difference was found\n"


def test_drawn_programs_make_sense_and_are_drawn_again() -> None:
    programs = [draw(f"1-{number}") for number in range(200)]
    assert programs == [draw(f"1-{number}") for number in range(200)]
    assert all(rules.why_not(program) is None for program in programs)
    assert all(eval(short(program)) == program for program in programs)
    features = set(itertools.chain(*(program.features() for program in programs)))
    assert {"workers", "no workers", "does: resume", "data: stream", "order: weighted"} <= features
    assert any(feature.startswith("does: hook") for feature in features)
    assert {"order: used up", "order: itself with state", "does: resume seed", "data: stream of epoch"} <= features
