"""The command line: `python -m shmloader --help`, or `shmloader --help`."""

from __future__ import annotations

import sys

from shmloader.commands.line import main

if __name__ == "__main__":
    sys.exit(main())
