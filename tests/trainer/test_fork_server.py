"""What the fork server imports before it forks workers."""

from __future__ import annotations

import pytest
from scripts import run_script

DATASET = """
    import os, pathlib

    class Parents:
        '''Whether the process that forked this worker has torch.'''
        def __len__(self): return 2
        def __getitem__(self, i):
            return "libtorch" in pathlib.Path(f"/proc/{os.getppid()}/maps").read_text()
"""
LOADED = """
        import shmloader
        loader = shmloader.DataLoader(Parents(), batch_size=None, num_workers=2, multiprocessing_context="forkserver")
        print(list(loader), flush=True)
"""


@pytest.mark.parametrize(
    ("before", "has_torch"),
    [
        ("pass", True),
        ("multiprocessing.set_forkserver_preload(['json'])", False),
        pytest.param("multiprocessing.set_forkserver_preload([])", False, marks=pytest.mark.long),
        pytest.param("forkserver.ensure_running()", False, marks=pytest.mark.long),
    ],
    ids=["nothing", "a module of the user's", "nothing at all", "a server that runs"],
)
def test_the_fork_server_imports_torch_where_the_user_has_named_nothing(before: str, has_torch: bool) -> None:
    ran = run_script(f"""{DATASET}
    if __name__ == "__main__":
        import multiprocessing
        from multiprocessing import forkserver
        {before}
        {LOADED}
    """)
    assert (ran.status, ran.out.strip()) == (0, f"[{has_torch}, {has_torch}]"), ran.err


def test_other_processes_of_the_fork_server_draw_other_numbers() -> None:
    """NumPy before 2.0 brings numpy.random with each import of torch, so the server has it."""
    ran = run_script("""
    import os, random
    import numpy.random
    import shmloader.worker.preloaded

    for _ in range(2):
        if os.fork() == 0:
            print(numpy.random.random(), random.random(), flush=True)
            os._exit(0)
        os.wait()
    """)
    assert ran.status == 0 and len(set(ran.out.split())) == 4, ran.out + ran.err
