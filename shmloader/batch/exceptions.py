"""An exception that another process raised: how its class travels, and what this process raises in its place.

torch's ExceptionWrapper has the class and the text of the exception, with its traceback.  `reraise()` calls the class
with that text.  Not every class can be called so.  Then torch often raises a RuntimeError with the text, but in some
cases the text is lost:

    the class has a `message`, as an ExceptionGroup has   the error is the TypeError of a wrong call
    the constructor or `__str__` ignores its argument     the exception does not show the text
    this process cannot import the class                  the wrapper cannot be unpickled

Here the text is never lost.  Where torch's exception shows the text, it is raised as it is.
"""

from __future__ import annotations

import pickle
from typing import Any, NoReturn

from shmloader.private.of_torch import ExceptionWrapper


class _Class:
    """The class of an exception, which is pickled as its name if another process may not be able to import it."""

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            pickled = pickle.dumps(self._kind)
        except Exception:  # a class in a function
            pickled = b""
        return _class_or_name, (pickled, self._kind.__name__)


def _class_or_name(pickled: bytes, name: str) -> type | str:
    try:
        return pickle.loads(pickled)  # type: ignore[no-any-return]
    except Exception:
        return name


def caught(where: str) -> Any:
    """The exception that is being handled, as it is sent to another process: torch's ExceptionWrapper.

    Args:
        where: The process that met it, in torch's words.
    """
    wrapped = ExceptionWrapper(where=where)
    wrapped.exc_type = _Class(wrapped.exc_type)
    return wrapped


def raise_again(wrapped: Any) -> NoReturn:
    """Raise the exception that another process has sent: torch's, or a RuntimeError if its class cannot be made again.

    An exception that does not show the text of the original one has that text as its cause.

    Args:
        wrapped: An ExceptionWrapper.
    """
    kind = wrapped.exc_type
    if isinstance(kind, str):
        raise _of_text(wrapped, kind)
    try:
        wrapped.reraise()
    except Exception as error:
        # Without torch's frame, which refers to the exception: in that cycle, the user's last batch would stay lent
        # until the collector runs.
        error.__traceback__ = None
        if _shows(error, wrapped.exc_msg):
            raise error
        if type(error) is kind:
            raise error from _of_text(wrapped, kind.__name__)
    raise _of_text(wrapped, kind.__name__)


def _of_text(wrapped: Any, name: str) -> RuntimeError:
    return RuntimeError(f"Caught {name} {wrapped.where}.\nOriginal {wrapped.exc_msg}")  # torch's words


def _shows(error: BaseException, text: str) -> bool:
    try:
        shown = str(error)
    except Exception:
        return False
    return text in shown or repr(text)[1:-1] in shown  # a KeyError shows the repr() of its text
