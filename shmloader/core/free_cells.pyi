"""Types of the extension built from cython_ext/ring/free_cells.pyx, where each is explained."""

from typing import final

from shmloader.core.ring import Ring

@final
class Cells:
    def __init__(self, ring: Ring) -> None: ...
