"""A process that a rank has forked reads nothing: it is no rank of the group."""

from __future__ import annotations

import pytest
from ranks import in_ranks

MAIN = """
def main(rank):
    shared = loader_of(**OPTIONS)
    before = len(list(shared))
    ours, childs = os.pipe()
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        try:
            outcome = f"{len(list(shared))} batches"
        except RuntimeError as error:
            outcome = str(error)
        os.write(childs, outcome.encode())
        os._exit(0)
    os.close(childs)
    status = os.waitpid(pid, 0)[1]
    outcome = os.read(ours, 1000).decode().replace(str(os.getpid()), "PID")
    return before, status, outcome, len(list(shared))
"""
SAID = (
    "this process was forked from a rank of the group that readers= names (pid PID), and is no rank itself. Iterate "
    "over the loader in that rank, or make a DataLoader without readers= in this process."
)


@pytest.mark.parametrize("persistent", [False, True])
def test_it_gets_an_error_with_the_remedy(persistent: bool) -> None:
    text = f"OPTIONS = {{'persistent_workers': {persistent}}}\n{MAIN}"
    assert in_ranks(text) == [(16, 0, SAID, 16)] * 2
