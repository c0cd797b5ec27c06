"""The templates of one dataset, shared by all loaders over it, at the same time or one after another.
It decides whether a template forks as it is or unpickles the dataset again, and whether another one is needed.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from shmloader.system.signals import held, let_through
from shmloader.system.spawn_arguments import Parcel
from shmloader.template.forked import Popen, TemplateProcess, Threaded
from shmloader.template.template import Refused, Template, why_not


class DatasetTemplates:
    """Forks the workers of the loaders over one dataset.

    It has one template, unless loaders with different functions take turns, or one of them needs the dataset as it was
    when its epoch began.
    """

    def __init__(self) -> None:
        self._templates: list[Template] = []
        self._owner = os.getpid()
        self._lock = threading.RLock()  # two threads may iterate

    @property
    def is_mine(self) -> bool:
        """Whether this process made it, and not the process that this one was forked from."""
        return self._owner == os.getpid()

    def fork(self, worker: TemplateProcess, loader: Any, outlives: bool, timeout: float) -> Popen:
        """Fork a worker, from a process that has unpickled the worker's objects.

        Args:
            worker: The worker.
            loader: The worker's loader; None if it is gone.
            outlives: Whether the worker ignores a signal that is sent to its group.
            timeout: Seconds that unpickling may take; 0: any number.

        Raises:
            Refused: It cannot be forked, and may be spawned.
            RuntimeError: The template ended, or the dataset could not be unpickled there.
            OSError: No descriptor, process or memory is left.
        """
        with self._lock:
            try:
                return self._fork(worker, loader, outlives, timeout)
            except (EOFError, ConnectionError):
                pass  # it was killed a moment ago
            return self._fork(worker, loader, outlives, timeout)

    def _fork(self, worker: TemplateProcess, loader: Any, outlives: bool, timeout: float) -> Popen:
        if why := why_not():
            raise Refused(why)
        with let_through():  # importing torch and unpickling the dataset take long
            template = self._having(worker.parcel, loader, timeout)
        if template.refusal:
            raise Refused(template.refusal)
        try:
            return template.fork(worker, outlives)
        except Threaded:
            raise Refused("threads were started there after the dataset was unpickled") from None

    def _having(self, parcel: Parcel, loader: Any, timeout: float) -> Template:
        """A template that holds the parcel's objects as they are now, or were when it first served the parcel."""
        own_first = sorted(self._templates, key=lambda template: loader not in template.users)
        for found in own_first:
            if found.serves(parcel):
                return found
        for found in own_first:
            if found.holds(parcel):
                self._note(found, loader)
                return found
        found = next((template for template in own_first if template.may_be_given(parcel, loader)), Template())
        self._note(found, loader)
        if found not in self._templates:
            self._templates.append(found)
        found.give(parcel, timeout)
        return found

    def _note(self, used: Template | None, loader: Any) -> None:
        """Record that the loader now uses this template, or none."""
        for template in [*self._templates, *([used] if used else ())]:
            template.users.pop(loader)
            if used is not None and template is used and loader is not None:
                template.users[loader] = True

    def leave(self, loader: Any) -> None:
        """The loader and its iterators were closed: end the templates that no other loader uses."""
        if not self.is_mine:
            return
        with held():  # an interrupt before `try` would leave it locked
            if not self._lock.acquire(blocking=False):
                for template in self._templates:
                    if [user is loader for user, _ in template.users.items()] == [True]:
                        template.kill()  # the thread that has the lock may be waiting for its answer
                self._lock.acquire()
            try:
                self._note(None, loader)
                for template in [one for one in self._templates if not one.users.items()]:
                    self._templates.remove(template)
                    template.end()
            finally:
                self._lock.release()
