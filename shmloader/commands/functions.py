"""Functions that are named on a command line: MODULE:FUNCTION."""

from __future__ import annotations

import os
import pkgutil
import sys
from typing import Any


def function_of(name: str) -> Any:
    """The function that "module:function" names; the module may be in the working directory.

    Raises:
        ValueError: The name has no colon, or names something that cannot be called.
        ImportError, AttributeError: There is no such module or function.
    """
    if not all(name.partition(":")):
        raise ValueError(f"{name!r} names no function. Write MODULE:FUNCTION, such as train:make_dataset.")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())  # a console script has its own folder there
    if not callable(found := pkgutil.resolve_name(name)):
        raise ValueError(f"{name!r} cannot be called. It is {found!r}. Name a function that returns what is wanted.")
    return found
