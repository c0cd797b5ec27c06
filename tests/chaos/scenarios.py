"""What may happen to a loader: kills, stops, signals, Ctrl-C, exits, forks, threads, little memory, limits, errors.

A scenario draws a case, runs it in a process of its own (`inside`), disturbs that process meanwhile (`outside`), and
judges the outcome.  It compares it with `expected`, the batches of torch's loader for the same case undisturbed.
Scenarios without a disturbance are compared with the outcome of torch's loader in the same trial.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import gc
import multiprocessing
import os
import random
import re
import resource
import signal
import sys
import threading
import time
from typing import Any, ClassVar

import torch
import torch.utils.data

import shmloader
from tests.chaos.inside import ENDS, ERRORS, Case, Inside, digest, seed_all
from tests.chaos.outside import NOISE, Outcome, Outside
from tests.scripts import own_shm

Expected = list[list[int]]  # digests, by epoch

IGNORED = {signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH, signal.SIGCONT, signal.SIGPIPE, signal.SIGXFSZ}
STOPPING = {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
DEADLY = sorted(set(map(int, signal.valid_signals())) - set(map(int, IGNORED | STOPPING)))
LOST = re.compile(r"DataLoader worker \(pid")


class Scenario:
    """One kind of trial."""

    name: ClassVar[str]
    share: ClassVar[float] = 1.0  # of the time, beside the others
    epochs: ClassVar[int] = 2  # that are judged by what is expected
    shared_work: ClassVar[bool] = True  # whether cases may have ours steal work, or cut batches into chunks
    noise: ClassVar[re.Pattern[str]] = NOISE  # what nobody may write to stderr

    # ------------------------------------------------------------------------------------------------------ drawing

    def draw(self, random: random.Random) -> Case:
        """A case; the fields that a scenario adds are its own."""
        stream = random.random() < 0.1
        case: Case = {
            "order": random.randrange(4),  # seeds order and samples; few, so the expected batches are known already
            "batches": random.choice([8, 24]),
            "floats": random.choice([1, 100, 10_000]),
            "pause": random.choice([0, 0.0002, 0.001]),
            "workers": random.choice([1, 2, 3]),
            "prefetch": random.choice([1, 2, 3]),
            "persistent": random.random() < 0.4,
            "start": "fork",
            "timeout": 0,
            "stream": stream,
            "misdeeds": {},
            "ours": {"spare_slots": random.choice([0, 1, 2, 3])},
        }
        if random.random() < 0.3:
            case["memory"] = random.choice(["posix", "memfd"])
        if self.shared_work and not stream:
            if random.random() < 0.3:
                case["ours"]["schedule"] = "steal"
            if random.random() < 0.3:
                case["ours"]["chunk_size"] = random.choice([1, 2, 3])
        # drawn values are torch's where each worker makes the batches that torch's would, from the first epoch on
        case["draws"] = not case["persistent"] and not case["ours"].keys() & {"schedule", "chunk_size"}
        return case

    # ------------------------------------------------------------------------------------------------------ running

    def inside(self, trial: Inside) -> None:
        raise NotImplementedError

    def outside(self, trial: Outside, case: Case) -> None:
        """What is done meanwhile; nothing."""

    # ------------------------------------------------------------------------------------------------------ judging

    def judge(self, case: Case, outcome: Outcome, expected: Expected) -> list[str]:
        """What is wrong, each with a first word that says of which kind: here, each epoch must be whole."""
        flaws = self.judge_end(outcome)
        if flaws:
            return flaws
        return [flaw for k, got in enumerate(outcome.epochs()) for flaw in judge_epoch(got, expected[k], k)]

    def compare(self, case: Case, ours: Outcome, theirs: Outcome) -> list[str]:
        """The flaws of our outcome beside torch's."""
        return []

    def judge_end(self, outcome: Outcome, statuses: tuple[int, ...] = (0,)) -> list[str]:
        """What is wrong with how it ended, whatever happened before."""
        flaws = []
        if outcome.hangs:
            flaws.append("hang: no word and no end")
        elif outcome.status not in statuses:
            flaws.append(f"status: {outcome.status} and not {' or '.join(map(str, statuses))}")
        if outcome.processes:
            flaws.append(f"process left: {'; '.join(outcome.processes)}")
        if outcome.names:
            flaws.append(f"name left in /dev/shm: {outcome.names}")
        for (left,) in outcome.of("left"):
            flaws += [f"{what} left: {those}" for what, those in left.items()]
        if noise := self.noise.search(outcome.err):
            flaws.append(f"noise: {noise[0]}")
        return flaws


def judge_epoch(got: list[Any], right: list[int], number: int, allowed: re.Pattern[str] | None = None) -> list[str]:
    """An epoch that is whole; or, where an error is allowed, whole up to it."""
    for at, value in enumerate(got):
        if isinstance(value, list):
            if allowed is None or not allowed.search(value[1]):
                return [f"error: epoch {number}, at {at}: {value[0]}: {value[1]}"]
            if at < len(got) - 1:
                return [f"after the error: epoch {number} goes on after {at}: {got[at + 1 : at + 3]}"]
            return []
        if at >= len(right) or value != right[at]:
            return [f"wrong batch: epoch {number}, at {at}: {_place(value, right)}"]
    return [] if len(got) == len(right) else [f"lost: epoch {number} has {len(got)} batches of {len(right)}"]


def _place(value: int, right: list[int]) -> str:
    return f"it is number {right.index(value)}" if value in right else "it is no batch of this epoch"


# ------------------------------------------------------------------------------------------------- workers that die


class Kills(Scenario):
    """A worker gets a signal, any of all, at any moment: the batches before it, torch's error, and then a new epoch."""

    name = "kills"
    kills = 1
    victims = DEADLY + sorted(map(int, IGNORED))

    def draw(self, random: random.Random) -> Case:
        case = super().draw(random)
        case["signals"] = [random.choice(self.victims) for _ in range(self.kills)]
        case["at"] = random.choice([0, 0, random.randrange(case["batches"])])  # so many batches came; 0: it starts
        case["start"] = random.choice(["fork"] * 30 + ["forkserver", "spawn"])
        return case

    def inside(self, trial: Inside) -> None:
        trial.count()
        for number in range(2):
            loader = trial.loader()
            trial.epoch(loader, number)
            if trial.ours:
                loader.close()
            del loader
        if trial.case["start"] == "fork":
            trial.count_again()

    def outside(self, trial: Outside, case: Case) -> None:
        for number in case["signals"]:
            trial.until("epoch")
            trial.until("batch", times=case["at"])
            trial.pause(0.02 if case["start"] == "fork" else 3)
            workers = trial.workers()
            if workers and not trial.has_printed("epoch", 1):
                trial.kill(trial.random.choice(workers[-case["workers"] :]), number)

    def judge(self, case: Case, outcome: Outcome, expected: Expected) -> list[str]:
        flaws = self.judge_end(outcome)
        epochs = outcome.epochs()
        if flaws:
            return flaws
        allowed = LOST if set(case["signals"]) - set(map(int, IGNORED)) else None
        return judge_epoch(epochs[0], expected[0], 0, allowed) + judge_epoch(epochs[1], expected[1], 1, allowed)


class Respawn(Kills):
    """Two workers are killed, and others take their places: not a batch is lost, or another one."""

    name = "respawn"
    kills = 2
    victims = DEADLY

    def draw(self, random: random.Random) -> Case:
        case = super().draw(random)
        case["ours"]["on_worker_death"] = "respawn"
        case["stream"] = False
        return case

    def judge(self, case: Case, outcome: Outcome, expected: Expected) -> list[str]:
        return Scenario.judge(self, case, outcome, expected)


class OneEpoch(Scenario):
    """One epoch of one loader; afterwards nothing of it is left."""

    def inside(self, trial: Inside) -> None:
        trial.count()
        loader = trial.loader()
        trial.epoch(loader, 0)
        if trial.ours:
            loader.close()
        del loader
        trial.count_again()


class Ends(OneEpoch):
    """A dataset ends its worker: exits, crashes, kills itself, raises what no `except Exception` stops."""

    name = "ends"

    def draw(self, random: random.Random) -> Case:
        case = super().draw(random)
        case["misdeeds"] = {str(random.randrange(4 * case["batches"])): random.choice(list(ENDS))}
        return case

    def judge(self, case: Case, outcome: Outcome, expected: Expected) -> list[str]:
        return self.judge_end(outcome) or judge_epoch(outcome.epochs()[0], expected[0], 0, LOST)


class Stops(Scenario):
    """Workers and the trainer are stopped and go on, again and again: every batch comes."""

    name = "stops"

    def inside(self, trial: Inside) -> None:
        trial.count()
        trial.epoch(trial.loader(), 0)
        trial.count_again()

    def outside(self, trial: Outside, case: Case) -> None:
        trial.until("epoch")
        for _ in range(6):
            trial.pause(0.05)
            victim = trial.random.choice([trial.pid, *trial.workers()])
            if trial.kill(victim, signal.SIGSTOP):
                trial.pause(0.1)
                trial.kill(victim, signal.SIGCONT)

    def judge(self, case: Case, outcome: Outcome, expected: Expected) -> list[str]:
        return self.judge_end(outcome) or judge_epoch(outcome.epochs()[0], expected[0], 0)


class EndsWhileStopped(Scenario):
    """A worker is stopped and the trainer ends its iterator, or itself: the worker is gone too."""

    name = "ends-while-stopped"
    share = 0.7  # it takes seconds

    def draw(self, random: random.Random) -> Case:
        return {**super().draw(random), "end": random.choice(["close", "del", "exit", "exception"])}

    def inside(self, trial: Inside) -> None:
        trial.count()
        loader = trial.loader()
        iterator = iter(loader)
        next(iterator)
        trial.say("begun")
        time.sleep(0.5)
        how = trial.case["end"]
        if how == "exit":
            sys.exit(3)
        if how == "exception":
            raise ZeroDivisionError
        if how == "close" and trial.ours:
            iterator.close()
        del iterator, loader
        trial.count_again()

    def outside(self, trial: Outside, case: Case) -> None:
        if trial.until("begun") and (workers := trial.workers()):
            trial.kill(trial.random.choice(workers), signal.SIGSTOP)

    def judge(self, case: Case, outcome: Outcome, expected: Expected) -> list[str]:
        return self.judge_end(outcome, ({"exit": 3, "exception": 1}.get(case["end"], 0),))


class Timeouts(OneEpoch):
    """A sample never comes: an error after the timeout, and another worker in its place, with the others' batches."""

    name = "timeouts"
    share = 0.7  # it takes seconds

    def draw(self, random: random.Random) -> Case:
        case = super().draw(random)
        case["misdeeds"] = {str(random.randrange(4 * case["batches"])): random.choice(["hang", "hang in C"])}
        case["timeout"] = 2
        return case

    def judge(self, case: Case, outcome: Outcome, expected: Expected) -> list[str]:
        error = re.compile("timed out after 2")
        return self.judge_end(outcome) or judge_epoch(outcome.epochs()[0], expected[0], 0, error)


# ---------------------------------------------------------------------------------------------------------- interrupts


class Interrupts(Scenario):
    """SIGINT at any moment of start, next and end; the trainer drops the iterator, or goes on with it.

    Nothing else comes of it than KeyboardInterrupt, and at most the batch that next() was about to give is lost.
    """

    name = "interrupts"
    share = 3.0
    rounds = 6
    epochs = rounds + 1
    # what was interrupted in a __del__, Python says and goes on
    noise = re.compile(r"Fatal Python error|leaked|not a ring of version|Assertion.*failed")

    def draw(self, random: random.Random) -> Case:
        case = super().draw(random)
        case["batches"] = 8
        case["most"] = random.choice([3, 1000])  # batches, then the epoch is left
        case["then"] = random.choice(["go on", "go on", "drop", "close", "keep"])
        if case["then"] == "go on":
            case["persistent"] = case["stream"] = False
            case["draws"] = not case["ours"].keys() & {"schedule", "chunk_size"}
        case["moments"] = [random.choice([0.02, 0.1, 0.2]) for _ in range(self.rounds)]  # seconds at most
        return case

    def inside(self, trial: Inside) -> None:
        trial.arm()
        trial.count()
        held: list[Any] = []
        loader = trial.loader()
        for number in range(self.rounds):
            self.disturbed(trial, loader, number, held)
        held.clear()
        if trial.ours:
            loader.close()
        del loader
        trial.say("calm")
        loader = trial.loader()
        trial.epoch(loader, self.rounds)
        if trial.ours:
            loader.close()
        del loader
        trial.count_again()

    def disturbed(self, trial: Inside, loader: Any, number: int, iterators: list[Any]) -> None:
        """An epoch that is interrupted."""
        iterator, came, most = None, 0, trial.case["most"]
        trial.say("epoch", number)
        while came < most:
            try:
                trial.armed = True
                if iterator is None:
                    seed_all(trial.case["order"] + number)
                    self.enter(number, "start")
                    iterator = iter(loader)
                    self.enter(number, "next")
                if came >= trial.case["batches"] - 1:
                    self.enter(number, "end")
                batch = next(iterator)
                trial.armed = False
                came += 1
                trial.say("batch", digest(batch))
                del batch
            except StopIteration:
                break
            except KeyboardInterrupt:
                trial.armed = False
                trial.say("interrupted")
                if trial.case["then"] != "go on":
                    break
            except Exception as error:
                trial.armed = False
                trial.say_error(error)
                break
            finally:
                trial.armed = False
        then = trial.case["then"]
        try:
            trial.armed = True
            self.enter(number, "end")
            if then == "keep":
                iterators.append(iterator)
            elif then == "close" and trial.ours:
                (loader if iterator is None else iterator).close()
            del iterator
        except KeyboardInterrupt:
            trial.armed = False
            trial.say("interrupted")
        except Exception as error:
            trial.armed = False
            trial.say_error(error)
        finally:
            trial.armed = False

    def enter(self, number: int, phase: str) -> None:
        """An epoch has come to its start, its batches or its end."""

    def outside(self, trial: Outside, case: Case) -> None:
        for number, most in enumerate(case["moments"]):
            trial.until("epoch", times=number + 1)
            trial.pause(most)
            if trial.has_printed("calm") or not trial.interrupt():
                return

    def judge(self, case: Case, outcome: Outcome, expected: Expected) -> list[str]:
        flaws = self.judge_end(outcome)
        if flaws:
            return flaws
        for number, got in enumerate(outcome.epochs()):
            whole = number == self.rounds or (
                case["most"] >= case["batches"] and not outcome.within("interrupted", number)
            )
            if whole:
                flaws += judge_epoch(got, expected[number], number)
            else:
                flaws += self.judge_part(case, got, expected[number], number, outcome.within("interrupted", number))
        return flaws

    def judge_part(self, case: Case, got: list[Any], right: list[int], number: int, interrupts: int) -> list[str]:
        """An epoch that was interrupted, or left."""
        for value in got:
            if isinstance(value, list):
                return [f"error: epoch {number}: {value[0]}: {value[1]}"]
        places = [right.index(value) if value in right else -1 for value in got]
        if -1 in places or places != sorted(set(places)):
            return [f"wrong batch: epoch {number}: places {places}"]
        ended = case["then"] == "go on" and case["most"] >= case["batches"]
        lost = (len(right) if ended else max(places, default=-1) + 1) - len(places)
        return [f"lost: epoch {number}: places {places}, and {interrupts} interrupts"] if lost > interrupts else []


class InterruptsAtLines(Interrupts):
    """The same at one line of the loader's Python code and what it calls; any line is as likely as any other.

    What happens at a line happens whenever the case is run again.
    """

    name = "interrupts-at-lines"
    rounds = 8
    epochs = rounds + 1
    files = (
        *(os.path.dirname(package.__file__ or "") for package in (shmloader, torch.utils.data, multiprocessing)),
        threading.__file__,
    )

    def draw(self, random: random.Random) -> Case:
        case = super().draw(random)
        case["moments"] = []
        case["lines"] = [(random.choice(["start", "next", "end"]), random.random()) for _ in range(self.rounds)]
        return case

    def inside(self, trial: Inside) -> None:
        self.trainer = os.getpid()
        self.lines = dict.fromkeys(("start", "next", "end"), 0)  # that an epoch takes
        self.counted: list[str] = []
        self.left = 0
        self.fired: set[int] = set()  # epochs
        self.case = {**trial.case, "lines": []}
        self.disturbed_quietly(trial)
        self.case = trial.case
        super().inside(trial)

    def disturbed_quietly(self, trial: Inside) -> None:
        """An epoch whose lines are counted."""
        say = self.say = trial.say
        trial.say = lambda *_: None  # type: ignore[method-assign]
        self.disturbed(trial, trial.loader(), 0, [])
        sys.settrace(None)
        gc.collect()
        trial.say = say  # type: ignore[method-assign]

    def enter(self, number: int, phase: str) -> None:
        sys.settrace(None)
        if not self.case["lines"]:
            self.counting = phase
            sys.settrace(self.trace)
        elif self.case["lines"][number][0] == phase and number not in self.fired:
            self.number = number
            self.left = 1 + int(self.case["lines"][number][1] * self.lines[phase])
            sys.settrace(self.trace)

    def trace(self, frame: Any, event: str, argument: Any) -> Any:
        return self.trace_lines if frame.f_code.co_filename.startswith(self.files) else None

    def trace_lines(self, frame: Any, event: str, argument: Any) -> Any:
        if os.getpid() != self.trainer:  # a worker was forked
            sys.settrace(None)
            return None
        if event == "line":
            if not self.case["lines"]:
                self.lines[self.counting] += 1
                return self.trace_lines
            self.left -= 1
            if not self.left:
                sys.settrace(None)
                self.fired.add(self.number)
                self.say("line", f"{frame.f_code.co_filename}:{frame.f_lineno}")
                signal.raise_signal(signal.SIGINT)
        return self.trace_lines


# ------------------------------------------------------------------------------------------- the end of the trainer


class Groups(Scenario):
    """The whole process group gets a signal, as from a terminal; the trainer dies of it, catches it, or exits on it."""

    name = "groups"

    def draw(self, random: random.Random) -> Case:
        case = super().draw(random)
        case["signal"] = int(random.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT]))
        case["then"] = random.choice(["die", "die", "exit", "go on"])
        case["most"] = random.choice([0.02, 0.2])
        case["pause"] = max(case["pause"], 0.001)
        case["batches"] = 24
        return case

    def inside(self, trial: Inside) -> None:
        then, number = trial.case["then"], trial.case["signal"]
        caught = threading.Event()

        def catch(*_: Any) -> None:
            caught.set()
            if then == "exit":
                sys.exit(3)
            if trial.armed:
                trial.armed = False
                raise KeyboardInterrupt

        if then != "die" or number == signal.SIGINT:
            signal.signal(number, signal.default_int_handler if then == "die" else catch)
        loader = trial.loader()
        trial.armed = True
        try:
            trial.epoch(loader, 0)
        except KeyboardInterrupt:
            if then != "go on":
                raise
            trial.say("interrupted")
        trial.armed = False
        while not caught.is_set():  # it dies in here, or exits
            time.sleep(0.01)
        if then == "go on":
            if trial.ours:
                loader.close()
            del loader
            gc.collect()
            trial.epoch(trial.loader(), 1)

    def outside(self, trial: Outside, case: Case) -> None:
        trial.until("epoch")
        trial.pause(case["most"])
        trial.kill(-trial.pid, case["signal"])

    def judge(self, case: Case, outcome: Outcome, expected: Expected) -> list[str]:
        died = (-case["signal"],)
        flaws = self.judge_end(outcome, {"die": died, "exit": (3,), "go on": (0,)}[case["then"]])
        if flaws:
            return flaws
        epochs = outcome.epochs()
        if outcome.of("interrupted") or case["then"] != "go on":
            whole = expected[0][: len(epochs[0])] if epochs else []
            flaws += judge_epoch(epochs[0], whole, 0, LOST) if epochs else []
        if case["then"] == "go on":
            flaws += judge_epoch(epochs[1], expected[1], 1)
        return flaws


class Orphans(Scenario):
    """The trainer is killed by SIGKILL at any moment: no process is left, and no name in /dev/shm."""

    name = "orphans"

    def draw(self, random: random.Random) -> Case:
        case = super().draw(random)
        case["start"] = random.choice(["fork"] * 30 + ["forkserver", "spawn", "spawn"])
        case["most"] = random.choice([0.02, 0.2]) if case["start"] == "fork" else 5
        if random.random() < 0.2:
            case["misdeeds"] = {"17": random.choice(["hang", "hang in C"])}
        return case

    def inside(self, trial: Inside) -> None:
        loader = trial.loader()
        trial.say("now")
        while True:
            for _ in loader:
                pass

    def outside(self, trial: Outside, case: Case) -> None:
        trial.until("now")
        trial.pause(case["most"])
        trial.kill(trial.pid, signal.SIGKILL)

    def judge(self, case: Case, outcome: Outcome, expected: Expected) -> list[str]:
        return self.judge_end(outcome, (-signal.SIGKILL,))


# Ways in which a program ends while it has an iterator.  `loader` is there.  The status that it ends with, and whether
# it ends with a traceback.
EXITS = {
    "the end, mid-epoch": ("it = iter(loader); next(it)", 0, False),
    "the end, kept batches": ("it = iter(loader); held = [next(it), next(it)]", 0, False),
    "the end, a whole epoch": ("held = list(loader)", 0, False),
    "the end, two iterators": ("a, b = iter(loader), iter(other()); next(a); next(b)", 0, False),
    "the end, in a module": ("import json; json.held = iter(loader); next(json.held)", 0, False),
    "the end, in main": ("import __main__; __main__.held = iter(loader); next(__main__.held)", 0, False),
    "the end, in a cycle": ("it = iter(loader); next(it); box = [it]; box.append(box); del it, box", 0, False),
    "the end, a generator": ("def g():\n    for b in loader: yield b\nx = g(); next(x)", 0, False),
    "the end, a generator dropped": ("def g():\n    for b in loader: yield b\nx = g(); next(x); del x", 0, False),
    "the end, started and not used": ("it = iter(loader)", 0, False),
    "sys.exit in the loop": ("for b in loader: sys.exit(3)", 3, False),
    "sys.exit at once": ("it = iter(loader); sys.exit(3)", 3, False),
    "an exception": ("for b in loader: raise ValueError('training')", 1, True),
    "an exception that keeps frames": (
        "try:\n    for b in loader: raise ValueError('x')\nexcept ValueError as e: held = e\nraise held",
        1,
        True,
    ),
    "os._exit": ("for b in loader: os._exit(4)", 4, False),
    "os.abort": ("for b in loader: os.abort()", -signal.SIGABRT, False),
    "SIGTERM": ("for b in loader: os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)", -signal.SIGTERM, False),
    "SIGTERM, handled": (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        "for b in loader: os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)",
        5,
        False,
    ),
    "a daemon thread iterates": (
        "def run():\n    while True:\n        for b in loader: pass\n"
        "threading.Thread(target=run, daemon=True).start(); time.sleep(pause)",
        0,
        False,
    ),
    "a thread has iterated": (
        "t = threading.Thread(target=lambda: list(loader)); t.start(); t.join()",
        0,
        False,
    ),
    "a thread still iterates": (
        "threading.Thread(target=lambda: list(loader)).start(); time.sleep(pause)",
        0,
        False,
    ),
    "a thread leaves it": (
        "made = []\nt = threading.Thread(target=lambda: made.append(iter(loader))); t.start(); t.join(); next(made[0])",
        0,
        False,
    ),
    "sys.exit in a thread": (
        "def run():\n    for b in loader: sys.exit(3)\nt = threading.Thread(target=run); t.start(); t.join()",
        0,
        False,
    ),
    "next in atexit": ("it = iter(loader); next(it); atexit.register(lambda: next(it))", 0, False),
    "an epoch in atexit": ("atexit.register(lambda: list(loader))", 0, False),
    "dropped in atexit": ("it = [iter(loader)]; next(it[0]); atexit.register(it.clear)", 0, False),
    "shut down in atexit": ("it = iter(loader); next(it); atexit.register(it._shutdown_workers)", 0, False),
    "next in __del__": (
        "class D:\n    def __del__(self):\n        try: next(self.it)\n        except BaseException: pass\n"
        "import json; json.held = D(); json.held.it = iter(loader); next(json.held.it)",
        0,
        False,
    ),
    "an epoch in __del__": (
        "class D:\n    def __del__(self):\n        try:\n            for b in self.loader: pass\n"
        "        except BaseException: pass\n"
        "import json; json.held = D(); json.held.loader = loader; next(iter(loader))",
        0,
        False,
    ),
    "a worker killed, then the end": (
        "it = iter(loader); next(it); os.kill(it._workers[0].pid, signal.SIGKILL)",
        0,
        None,
    ),
    "a fork, then the end": (
        "it = iter(loader); next(it)\nif not os.fork(): os._exit(0)\nos.wait()",
        0,
        False,
    ),
    "a fork that loads, then the end": (
        "it = iter(loader); next(it)\nif not os.fork():\n    for b in other(): pass\n    os._exit(0)\nos.wait()",
        0,
        False,
    ),
    "an exec": ("for b in loader: os.execv('/bin/true', ['true'])", 0, False),
    "exceptions in an excepthook": (
        "def hook(*_):\n    for b in other(): pass\n    os._exit(6)\nsys.excepthook = hook\n"
        "for b in loader: raise ValueError",
        6,
        False,
    ),
}


class Exits(Scenario):
    """A program ends in some state: with the status it should have, at once, without a word, and nothing is left."""

    name = "exits"
    share = 1.5

    def draw(self, random: random.Random) -> Case:
        case = super().draw(random)
        case["exit"] = random.choice(list(EXITS))
        case["wait"] = random.choice([0, 0.005, 0.05])
        if random.random() < 0.3:
            case["ours"]["on_worker_death"] = "respawn"
        return case

    def inside(self, trial: Inside) -> None:
        scope = {
            **{module.__name__: module for module in (atexit, gc, os, signal, sys, threading, time)},
            "loader": trial.loader(),
            "other": trial.loader,
            "pause": trial.case["wait"],
        }
        exec(EXITS[trial.case["exit"]][0], scope)

    def judge(self, case: Case, outcome: Outcome, expected: Expected) -> list[str]:
        _, status, traceback = EXITS[case["exit"]]
        flaws = self.judge_end(outcome, (status,))
        if traceback is False and "Traceback" in outcome.err:
            flaws.append("noise: a traceback")
        return flaws


# ----------------------------------------------------------------------------------------------------------- scarcity

NAMES_A_LIMIT = RuntimeError, MemoryError, OSError  # errors that may come in place of a batch


class Scarcity(Scenario):
    """Something runs out: an error that names it, or batches; with enough again, a usual epoch."""

    def scarce(self, trial: Inside) -> Any:
        """Take something away, as a context manager that gives it back; or for good."""
        raise NotImplementedError

    def inside(self, trial: Inside) -> None:
        if trial.case["start"] == "fork":
            trial.count()
        with self.scarce(trial):
            loader = trial.loader()
            trial.epoch(loader, 0)
            if trial.ours:
                loader.close()
            del loader
            gc.collect()
        loader = trial.loader()
        trial.epoch(loader, 1)
        if trial.ours:
            loader.close()
        del loader
        trial.count_again()

    enough = True  # whether the second epoch must be whole

    def judge(self, case: Case, outcome: Outcome, expected: Expected) -> list[str]:
        flaws = self.judge_end(outcome)
        if flaws or outcome.of("not permitted"):
            return flaws
        epochs = outcome.epochs()
        flaws += self.judge_scarce(epochs[0], expected[0], 0)
        return flaws + (judge_epoch if self.enough else self.judge_scarce)(epochs[1], expected[1], 1)

    def judge_scarce(self, got: list[Any], right: list[int], number: int) -> list[str]:
        """Each batch is in its place, or an error is."""
        for at, value in enumerate(got):
            if not isinstance(value, list) and (at >= len(right) or value != right[at]):
                return [f"wrong batch: epoch {number}, at {at}: {_place(value, right)}"]
            if isinstance(value, list) and not issubclass(getattr(builtins, value[0], object), NAMES_A_LIMIT):
                return [f"error: epoch {number}, at {at}: {value[0]}: {value[1]}"]
        if len(got) < len(right) and not (got and isinstance(got[-1], list)):
            return [f"lost: epoch {number} has {len(got)} batches of {len(right)}, and no error at its end"]
        return []


class SmallShm(Scarcity):
    """/dev/shm is small: batches come anyway, unless the ring must lie there; then an error in their place."""

    name = "small-shm"

    def draw(self, random: random.Random) -> Case:
        case = super().draw(random)
        case["size"] = random.choice(["64k", "256k", "1m", "4m"])
        case["floats"] = random.choice([100, 10_000, 50_000])  # up to 1 MB a sample
        case["memory"] = random.choice(["auto", "auto", "posix", "memfd"])
        self.enough = False
        return case

    def scarce(self, trial: Inside) -> Any:
        if not own_shm(trial.case["size"]):
            trial.say("not permitted")
        return contextlib.nullcontext()

    def compare(self, case: Case, ours: Outcome, theirs: Outcome) -> list[str]:
        wrong = [value for got in ours.epochs() for value in got if isinstance(value, list)]
        return [f"error: {wrong[0]}"] if wrong and case["memory"] != "posix" else []


class Limits(Scarcity):
    """A limit of the process is low: descriptors, addresses, file sizes, processes."""

    name = "limits"
    share = 1.5

    def draw(self, random: random.Random) -> Case:
        case = super().draw(random)
        case["limit"] = random.choice(["NOFILE", "AS", "FSIZE", "NPROC", "DATA"])
        case["room"] = {
            "NOFILE": random.randrange(2, 40),
            "AS": random.randrange(1 << 20, 2 << 30),
            "FSIZE": random.choice([0, 1 << 12, 1 << 20, 1 << 24]),
            "NPROC": random.randrange(1, 8),
            "DATA": random.randrange(1 << 20, 200 << 20),
        }[case["limit"]]
        return case

    def judge_end(self, outcome: Outcome, statuses: tuple[int, ...] = (0,)) -> list[str]:
        # multiprocessing makes two pipes for a process.  It keeps the first if there can be no second, and both if the
        # fork fails.
        kept = ["descriptors left: {'pipe': 2}", "descriptors left: {'pipe': 4}"]
        return [flaw for flaw in super().judge_end(outcome, statuses) if flaw not in kept]

    @contextlib.contextmanager
    def scarce(self, trial: Inside) -> Any:
        name = trial.case["limit"]
        limit = getattr(resource, f"RLIMIT_{name}")
        if name == "NPROC":
            if os.getuid():
                trial.say("not permitted")  # others' processes of this user count too
            else:
                os.setresuid(uid := 40_000 + os.getpid() % 20_000, uid, 0)  # and root has no limit
        used = {
            "NOFILE": len(os.listdir("/proc/self/fd")),
            "AS": _memory("VmSize"),
            "DATA": _memory("VmData"),
            "NPROC": 1,
            "FSIZE": 0,
        }[name]
        before = resource.getrlimit(limit)
        resource.setrlimit(limit, (used + trial.case["room"], before[1]))
        try:
            yield
        finally:
            resource.setrlimit(limit, before)
            if name == "NPROC" and not os.getresuid()[2]:
                os.setresuid(0, 0, 0)


def _memory(what: str) -> int:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(what))


# ------------------------------------------------------------------------------------------- threads, forks, collector


class Threads(Scenario):
    """Several threads load at once, each with an iterator of its own, while the collector is busy."""

    name = "threads"

    def draw(self, random: random.Random) -> Case:
        case = super().draw(random)
        case["threads"] = random.choice([2, 3, 4])
        case["one loader"] = not case["persistent"] and random.random() < 0.5
        case["leave"] = [random.choice([0, 3, 1000]) for _ in range(case["threads"])]
        case["batches"] = 8
        case["draws"] = False
        return case

    def inside(self, trial: Inside) -> None:
        trial.count()
        gc.set_threshold(20)
        sys.setswitchinterval(1e-5)
        one = trial.loader() if trial.case["one loader"] else None
        got: list[list[Any]] = [[] for _ in trial.case["leave"]]

        def run(number: int, most: int, loader: Any) -> None:
            loader = trial.loader() if loader is None else loader  # a loader of a stream has no truth
            held: list[Any] = [loader]  # in a cycle, so that the collector ends it, in whatever thread
            held.append(held)
            try:
                for batch in zip(range(most), loader, strict=False):
                    got[number].append(digest(batch[1]))
            except Exception as error:
                got[number].append([type(error).__name__, str(error)[:300]])

        threads = [threading.Thread(target=run, args=(*item, one)) for item in enumerate(trial.case["leave"])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        trial.say("threads", got)
        del threads, one, run
        gc.set_threshold(700)
        gc.collect()
        trial.count_again()

    def judge(self, case: Case, outcome: Outcome, expected: Expected) -> list[str]:
        flaws = self.judge_end(outcome)
        if not flaws:
            for number, (most, got) in enumerate(zip(case["leave"], outcome.of("threads")[0][0], strict=True)):
                flaws += judge_epoch(got, expected[0][:most], number)
        return flaws


def take(iterator: Any, got: list[Any]) -> None:
    """In a thread: all batches that it gets."""
    try:
        for batch in iterator:
            got.append(digest(batch))
    except Exception as error:
        got.append([type(error).__name__, str(error)[:300]])


class OneIterator(Scenario):
    """Several threads take from one iterator: each batch comes to one of them."""

    name = "one-iterator"

    def draw(self, random: random.Random) -> Case:
        case = super().draw(random)
        case["threads"] = random.choice([2, 3])
        case["draws"] = case["stream"] = False
        return case

    def inside(self, trial: Inside) -> None:
        trial.count()
        sys.setswitchinterval(1e-5)
        iterator = iter(trial.loader())
        got: list[Any] = []
        threads = [threading.Thread(target=take, args=(iterator, got)) for _ in range(trial.case["threads"])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        trial.say("all", got)
        del threads, iterator
        trial.count_again()

    def judge(self, case: Case, outcome: Outcome, expected: Expected) -> list[str]:
        flaws = self.judge_end(outcome)
        if flaws:
            return flaws
        got = outcome.of("all")[0][0]
        errors = [value for value in got if isinstance(value, list)]
        if errors:
            return [f"error: {errors[0][0]}: {errors[0][1]}"]
        lost, twice = set(expected[0]) - set(got), len(got) - len(set(got))
        return [f"lost: {len(lost)} of {len(expected[0])}, {twice} came twice"] if lost or twice else []


class Closes(Scenario):
    """One thread iterates and another one ends the iterator: that is an end like any other."""

    name = "closes"

    def draw(self, random: random.Random) -> Case:
        case = super().draw(random)
        case["how"] = random.choice(["loader.close()", "iterator.close()", "iterator._shutdown_workers()"])
        case["most"] = random.choice([0.005, 0.05])
        case["draws"] = False
        return case

    def inside(self, trial: Inside) -> None:
        trial.count()
        for number in range(4):
            loader = trial.loader()
            iterator = iter(loader)
            got: list[Any] = []
            thread = threading.Thread(target=take, args=(iterator, got))
            thread.start()
            time.sleep(trial.random.random() * trial.case["most"])
            if trial.ours:
                eval(trial.case["how"], {"loader": loader, "iterator": iterator})  # otherwise this frame keeps both
            else:
                iterator._shutdown_workers()
            thread.join()
            trial.say("epoch", number)
            for value in got:
                trial.say(*(["error", *value] if isinstance(value, list) else ["batch", value]))
            del iterator, loader, thread
        trial.count_again()

    def judge(self, case: Case, outcome: Outcome, expected: Expected) -> list[str]:
        flaws = self.judge_end(outcome)
        if not flaws:
            for number, got in enumerate(outcome.epochs()):
                flaws += judge_epoch(got, expected[0][: len(got)], number)
        return flaws


class Forks(Scenario):
    """The trainer forks and starts programs while it iterates; its children end as children do."""

    name = "forks"

    def inside(self, trial: Inside) -> None:
        trial.count()
        loader = trial.loader()
        for number in range(2):
            seed_all(trial.case["order"] + number)
            trial.say("epoch", number)
            iterator = iter(loader)
            for batch in iterator:
                trial.say("batch", digest(batch))
                how = trial.random.choice(["", "", "fork", "drop", "spawn"])
                if how == "spawn":
                    os.waitpid(os.posix_spawn("/bin/true", ["true"], os.environ), 0)
                elif how and not (pid := os.fork()):
                    if how == "drop":
                        del iterator, batch
                        gc.collect()
                    os._exit(0)  # not sys.exit(): multiprocessing would terminate the trainer's workers
                elif how:
                    os.waitpid(pid, 0)
            del iterator, batch
        if trial.ours:
            loader.close()
        del loader
        trial.count_again()

    def draw(self, random: random.Random) -> Case:
        return {**super().draw(random), "batches": 8}


# --------------------------------------------------------------------------------------------------- nobody disturbs


class Errors(Scenario):
    """Samples that raise, some of many kinds: each error in its place, with torch's words, and the other batches."""

    name = "errors"
    shared_work = False  # errors name the worker

    def draw(self, random: random.Random) -> Case:
        case = super().draw(random)
        where = random.sample(range(4 * case["batches"]), random.randrange(1, 5))
        case["misdeeds"] = {str(index): random.choice(list(ERRORS)) for index in where}
        return case

    def inside(self, trial: Inside) -> None:
        trial.count()
        loader = trial.loader()
        for number in range(2):
            trial.epoch(loader, number)
        if trial.ours:
            loader.close()
        del loader
        trial.count_again()

    def judge(self, case: Case, outcome: Outcome, expected: Expected) -> list[str]:
        return self.judge_end(outcome)

    def compare(self, case: Case, ours: Outcome, theirs: Outcome) -> list[str]:
        for mine, its in zip(ours.events, theirs.events, strict=False):
            if mine[0] in ("batch", "epoch", "end") or its[0] != "error":
                same = mine == its
            else:  # with its first words; below that it says where
                same = mine[:2] == its[:2] and mine[2].split("\n")[0] == its[2].split("\n")[0]
            if not same:
                return [f"otherwise than torch: {mine} for {its}"]
        return [] if len(ours.events) == len(theirs.events) else ["otherwise than torch: more, or less"]


class Epochs(Errors):
    """Epochs that are left at any place, restarted ones, and whole ones, while batches of former ones are kept."""

    name = "epochs"
    shared_work = True

    def draw(self, random: random.Random) -> Case:
        case = Scenario.draw(self, random)
        case["most"] = [random.choice([0, 1, 5, 1000]) for _ in range(6)]
        return case

    def inside(self, trial: Inside) -> None:
        trial.count()
        loader = trial.loader()
        held: list[tuple[Any, int]] = []
        for number, most in enumerate(trial.case["most"]):
            seed_all(trial.case["order"] + number)
            trial.say("epoch", number)
            for at, batch in enumerate(loader):
                if at == most:
                    break
                value = digest(batch)
                trial.say("batch", value)
                if trial.random.random() < 0.3:
                    held.append((batch, value))
                if held and trial.random.random() < 0.3:
                    held.pop(trial.random.randrange(len(held)))
            trial.say("kept", all(digest(batch) == value for batch, value in held))
        if trial.ours:
            loader.close()
        del loader
        trial.say("kept", all(digest(batch) == value for batch, value in held))
        held.clear()
        del batch
        trial.count_again()

    def judge(self, case: Case, outcome: Outcome, expected: Expected) -> list[str]:
        flaws = self.judge_end(outcome)
        if [False] in outcome.of("kept"):
            flaws.append("wrong batch: one that was kept has changed")
        return flaws


ALL: list[type[Scenario]] = [
    Kills,
    Respawn,
    Ends,
    Stops,
    EndsWhileStopped,
    Timeouts,
    Interrupts,
    InterruptsAtLines,
    Groups,
    Orphans,
    Exits,
    SmallShm,
    Limits,
    Threads,
    OneIterator,
    Closes,
    Forks,
    Errors,
    Epochs,
]
