"""Samples the Python stacks of workers, to find where they spend their time: SHMLOADER_DETAIL=1.
Decides when it samples (every few milliseconds, of one batch in several), and for which line a sample counts.

NOTE [ Stack samples ]

    1. While a worker makes one batch in EVERY (16), a thread in it samples the main thread's stack each PERIOD; during
       other batches it sleeps.  So nothing is done for each sample of the dataset, and hardly anything for each batch.
    2. The thread needs the GIL.  During a C call that holds the GIL, it has to wait.  Then the sample counts once for
       each period that has passed meanwhile.  Otherwise a second in C would count as little as an instant in Python.
       By default, a thread that wants the GIL waits up to 5 ms for the other one to release it, and most samples would
       fall on lines that release it by themselves, such as those that read files.  So the wait is SWITCH.
    3. faulthandler could sample at any moment, from C.  But it reads frames that the interpreter is about to change.
       On Python 3.11 to 3.13, in code that makes generators, one sample in 20 to 200 ended its worker with a
       segmentation fault.  A signal would interrupt the user's system calls.
    4. A sample counts for the line of the user's own code that was running, and for the function that this line had
       called.  Each worker writes its counts into a sheet: memory without a name, which the trainer reads when the user
       asks for a report.  A worker that replaces a dead one continues its counts.  The trainer may read while a worker
       writes, so a checksum covers the counts.
"""

from __future__ import annotations

import collections
import json
import os
import random
import re
import struct
import sys
import sysconfig
import threading
import time
import zlib
from types import FrameType

from shmloader.system.anonymous_files import AnonymousFile, set_size

EVERY = 16  # batches
PERIOD = 10_000_000  # nanoseconds; a sample takes some microseconds, about 35 if libraries are 100 calls deep
SWITCH = 50e-6  # seconds
ROOM = 1 << 16  # bytes of a sheet for each worker
MOST = 200  # places that a worker keeps, those with the largest counts

_HEADER = struct.Struct("<III")  # checksum, bytes that follow, stacks in all
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_IMAGES = _PACKAGE + "images" + os.sep  # counts as the dataset's code, though it is ours

Place = tuple[str, str, int]  # function, file, line
Counts = collections.Counter[Place]


class SampleSheet(AnonymousFile):
    """Memory in which each worker of a ring counts its samples.

    Args:
        workers: How many there are.
    """

    def __init__(self, workers: int) -> None:
        super().__init__("shmloader_samples")
        self.workers = workers
        set_size(self._fd, workers * ROOM)

    def write(self, worker: int, counts: Counts, samples: int) -> None:
        """In the worker: write its counts, and the number of samples."""
        most = MOST
        while len(text := json.dumps([[*place, count] for place, count in counts.most_common(most)]).encode()) > (
            ROOM - _HEADER.size
        ):
            most //= 2  # paths are long
        os.pwrite(self._fd, _HEADER.pack(zlib.crc32(text), len(text), samples) + text, worker * ROOM)

    def read(self, worker: int) -> tuple[Counts, int]:
        """The counts of a worker, and its number of samples."""
        for _ in range(3):  # the worker may be writing
            read = os.pread(self._fd, ROOM, worker * ROOM)
            if len(read) < ROOM:  # another thread has closed the sheet, and the descriptor may be another file's
                break
            checksum, size, samples = _HEADER.unpack(read[: _HEADER.size])
            text = read[_HEADER.size :][:size]
            if size and zlib.crc32(text) == checksum:
                return Counts(
                    {(function, file, line): count for function, file, line, count in json.loads(text)}
                ), samples
        return Counts(), 0

    def total(self) -> tuple[Counts, int]:
        """The counts and the number of samples of all workers together."""
        found = [self.read(worker) for worker in range(self.workers)]
        return sum((counts for counts, _ in found), Counts()), sum(samples for _, samples in found)

    @property
    def closed(self) -> bool:
        return self._fd < 0


class Sampler(threading.Thread):
    """In a worker: samples the stack of the thread that makes this, while that makes one batch of EVERY.

    Args:
        sheet: Takes the counts.
        worker: Its number.
    """

    def __init__(self, sheet: SampleSheet, worker: int) -> None:
        super().__init__(name="shmloader_samples", daemon=True)
        self._sheet = sheet
        self._worker = worker
        self._process = os.getpid()
        self._sampled = threading.get_ident()
        self._counts, self._samples = sheet.read(worker)
        self._counting = threading.Lock()
        self._is_due = threading.Event()
        self._batches = 0
        self._random = random.Random(worker)  # not the global one, which is the user's
        sys.setswitchinterval(SWITCH)
        self.start()

    def begin(self) -> None:
        """A batch is claimed."""
        self._batches += 1
        if self._batches % EVERY == 1:
            self._is_due.set()

    def run(self) -> None:
        """Sample, from a random time after the batch is claimed, so that short work is seen as well."""
        while self._is_due.wait():
            delay = self._random.randrange(1, PERIOD)
            last = time.monotonic_ns() + delay - PERIOD
            while self._is_due.is_set():
                time.sleep(delay / 1e9)
                now = time.monotonic_ns()
                self._count(sys._current_frames().get(self._sampled), (now - last) // PERIOD)
                last += (now - last) // PERIOD * PERIOD
                delay = last + PERIOD - now

    def _count(self, frame: FrameType | None, times: int) -> None:
        with self._counting:
            if self._is_due.is_set():  # otherwise the frame is no longer one of a batch
                self._counts[user_line_of(frame)] += times
                self._samples += times

    def end(self) -> None:
        """The batch is published.  A child that the dataset forks leaves the sheet to its parent."""
        if self._is_due.is_set() and self._process == os.getpid():
            with self._counting:
                self._is_due.clear()
                self._sheet.write(self._worker, self._counts, self._samples)


def user_line_of(frame: FrameType | None) -> Place:
    """The place for which a stack counts: the function that the user's line has called, and that line.

    If none of the code is the user's (with a dataset of torchvision's for example), it is the innermost call.  Frames
    below the user's line are not read, because there may be very many.
    """
    innermost: FrameType | None = None
    called: FrameType | None = None
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_PACKAGE) and not file.startswith(_IMAGES):
            break
        if not _is_of_a_library(file):
            return frame.f_code.co_name if called is None else _full_name(called), file, _line_of(frame)
        innermost, called = innermost or frame, frame
        frame = frame.f_back
    if innermost is None:
        return "shmloader, writing into the slot", "", 0
    return _full_name(innermost), innermost.f_code.co_filename, _line_of(innermost)


def _line_of(frame: FrameType) -> int:
    return frame.f_lineno or frame.f_code.co_firstlineno


_LIBRARIES = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def _is_of_a_library(file: str) -> bool:
    return file.startswith((*_LIBRARIES, _IMAGES, "<frozen")) or "site-packages" in file or "dist-packages" in file


def _full_name(frame: FrameType) -> str:
    """A library's function, with its module: PIL.Image.convert."""
    function, file = frame.f_code.co_name, frame.f_code.co_filename
    inside = re.split(r"(?:site|dist)-packages/|/lib/python[\d.]+/", file)[-1]
    if file.startswith(_PACKAGE):
        inside = "shmloader/" + file.removeprefix(_PACKAGE)
    module = inside.removesuffix(".py").removesuffix("/__init__").strip("/").replace("/", ".")
    return f"{module}.{function}" if not inside.startswith("<") else function
