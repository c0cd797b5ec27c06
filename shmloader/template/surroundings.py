"""The variables, folders of modules and folder of the trainer, which its template and its workers have too.

A spawned worker is given them before it imports the user's modules and unpickles the dataset, and both may change them.
In a template that has happened when a worker is forked.  So the worker changes only what the trainer has changed since.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NamedTuple

ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}  # numpy's OpenBLAS, which starts a thread for each core, is to start none

_entered: Surroundings | None = None  # those that the template had when it began to unpickle the dataset


class Surroundings(NamedTuple):
    """What of the trainer a process of it is to have.

    Args:
        environment: Variables.
        path: Folders of modules.
        folder: The one that it is in; None where that was removed.
    """

    environment: dict[str, str]
    path: list[str]
    folder: str | None

    def enter(self) -> None:
        """In a template: have these, before the dataset is unpickled."""
        global _entered
        _entered = self
        os.environ.clear()
        os.environ.update(self.environment | ONE_THREAD)
        sys.path[:] = self.path
        self._go_to_folder()

    def follow(self) -> None:
        """In a worker that the template has forked: have what is another one in the trainer now."""
        before = _entered or Surroundings({}, [], None)
        was = before.environment | ONE_THREAD
        for name in was.keys() | self.environment.keys():
            if was.get(name) == self.environment.get(name):
                continue
            if name in self.environment:
                os.environ[name] = self.environment[name]
            else:
                os.environ.pop(name, None)
        if self.path != before.path:
            sys.path[:] = self.path
        if self.folder != before.folder:
            self._go_to_folder()

    def _go_to_folder(self) -> None:
        if self.folder is not None:
            with contextlib.suppress(OSError):  # it was removed a moment ago, as under spawn
                os.chdir(self.folder)
