"""The trainer's environment variables, module folders and current folder, which its template and its workers get.

A spawned worker gets them before it imports the user's modules and unpickles the dataset, and both may change them.  In
a template both have happened when a worker is forked.  So the worker only applies what the trainer has changed since.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NamedTuple

ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}  # numpy's OpenBLAS starts a thread for each core, and here it must not

_entered: Surroundings | None = None  # the template's when it began to unpickle the dataset


class Surroundings(NamedTuple):
    """The surroundings of the trainer that its processes get.

    Args:
        environment: Variables.
        path: Folders of modules.
        folder: The current folder; None if it was removed.
    """

    environment: dict[str, str]
    path: list[str]
    folder: str | None

    def enter(self) -> None:
        """In a template: take these over, before the dataset is unpickled."""
        global _entered
        _entered = self
        os.environ.clear()
        os.environ.update(self.environment | ONE_THREAD)
        sys.path[:] = self.path
        self._go_to_folder()

    def follow(self) -> None:
        """In a worker that the template forked: take over what has changed in the trainer."""
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
