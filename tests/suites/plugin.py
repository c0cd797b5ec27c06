"""A pytest plugin: writes down what became of each test, each warning, and each loader with workers.

The runner gives it what to do by the environment.  SUITE_RECORD: the file to which it appends, one JSON object a line,
so that lines of forked processes and of one that crashes are there too.  SUITE_PATCH: whether loaders are ours.
SUITE_CLASSES: subclasses of torch's loader to cover as well.  SUITE_WORKERS: workers for loaders that have none.

Nothing of torch's that a loader of ours looks at is replaced in a patched run.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import json
import os
import re
import sys
import weakref
from typing import Any

import torch.utils.data

_PATCH, _WORKERS = os.environ["SUITE_PATCH"] == "1", int(os.environ["SUITE_WORKERS"])
_numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_count = itertools.count()
_operators: list[Any] = []  # a library's operators go with it


def _record(**what: Any) -> None:
    with open(os.environ["SUITE_RECORD"], "a") as file:
        file.write(json.dumps(what) + "\n")


def _record_loader(loader: Any, why: str | None) -> None:
    """Record that a loader begins an epoch: on the ring, or not, and why."""
    if getattr(loader, "num_workers", 0):
        number = _numbers.setdefault(loader, next(_count))
        _record(loader=f"{os.getpid()}-{number}", why=why)


def _declare_operators() -> None:
    """PyPI's torchvision does not load beside a torch for the CPU.  Two operators have to be declared."""
    try:
        import torchvision  # noqa: F401
    except ImportError:
        pass
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        _operators.append(torch.library.Library("torchvision", "FRAGMENT"))
        for name in "nms", "qnms":
            _operators[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def _count_torchs_loaders() -> None:
    kind: Any = torch.utils.data.dataloader._MultiProcessingDataLoaderIter
    init = kind.__init__

    @functools.wraps(init)
    def counted(self: Any, loader: Any) -> None:
        _record_loader(loader, None)
        init(self, loader)

    kind.__init__ = counted


def _patch() -> None:
    import shmloader
    from shmloader import iterators
    from shmloader.checks import read_elsewhere, requirements

    rides, warn_or_refuse = iterators.rides, requirements.warn_or_refuse

    def counted(loader: Any) -> bool:
        _record_loader(loader, None)
        return rides(loader)

    def explained(loader: Any, why: str) -> None:
        _record_loader(loader, why)
        warn_or_refuse(loader, why)

    iterators.rides, requirements.warn_or_refuse = counted, explained
    classes = [name.rpartition(".") for name in os.environ["SUITE_CLASSES"].split()]
    shmloader.patch_torch(classes=[getattr(importlib.import_module(module), name) for module, _, name in classes])
    read_elsewhere.listen(lambda loader: _record_loader(loader, f"the patch does not reach {_name(type(loader))}"))


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _force_workers() -> None:
    """Give loaders without workers some.  This wraps the patch's own wrapper, so ours see the number, too."""
    kind: Any = torch.utils.data.DataLoader
    init, place = kind.__init__, 5  # `num_workers` among the arguments, after self

    @functools.wraps(init)
    def forced(self: Any, *args: Any, **kwargs: Any) -> None:
        if len(args) > place:
            args = (*args[:place], args[place] or _WORKERS, *args[place + 1 :])
        else:
            kwargs["num_workers"] = kwargs.get("num_workers") or _WORKERS
        init(self, *args, **kwargs)

    kind.__init__ = forced


def pytest_runtest_logreport(report: Any) -> None:
    if report.failed or report.when == "call" or report.skipped:
        text = str(report.longrepr).splitlines()[-1] if report.failed else ""
        _record(test=report.nodeid, outcome=report.outcome, why=text, seconds=report.duration)


def pytest_collectreport(report: Any) -> None:
    if report.failed:
        _record(test=report.nodeid, outcome="failed", why=str(report.longrepr).splitlines()[-1])


def pytest_warning_recorded(warning_message: Any, nodeid: str) -> None:
    text = re.sub(r"0x[0-9a-f]+|\d+", "N", str(warning_message.message).strip().partition("\n")[0])
    _record(warning=f"{warning_message.category.__name__}: {text}", test=nodeid)


# When pytest imports this, it has imported none of the suite's conftest.py, which may import much.
_declare_operators()
_patch() if _PATCH else _count_torchs_loaders()
if _WORKERS:
    _force_workers()
