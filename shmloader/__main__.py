"""`python -m shmloader`: commands/line.py has the subcommands, and calls the one that was named.

commands/top/rings.py finds the rings that exist.  No command removes stale shared memory, because there is none: a
ring's memory has no name.
"""

from __future__ import annotations

import sys

from shmloader.commands.line import main

if __name__ == "__main__":
    sys.exit(main())
