"""Types of the extension built from cython_ext/ring/fill.pyx, where each is explained."""

from typing import final

@final
class Fill:
    def __buffer__(self, flags: int, /) -> memoryview: ...
