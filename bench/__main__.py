"""The command line: `python -m bench --help`."""

from __future__ import annotations

import importlib.util
import signal
import sys

EXTRAS = ("matplotlib", "rich", "simpy")


def main(arguments: list[str] | None = None) -> int:
    """Answer a question, or several; returns 0, or 1 if a measurement failed, or 130 after Ctrl-C."""
    if missing := [name for name in EXTRAS if importlib.util.find_spec(name) is None]:
        print(f"python -m bench needs {' and '.join(missing)}: pip install 'shmloader[bench]'", file=sys.stderr)
        return 2
    from bench import commands

    return commands.run(commands.parser().parse_args(arguments))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that child.py kills what it started
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
