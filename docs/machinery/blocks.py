"""Runs the code of the documentation: the blocks of a page, one after the other, are one program.

    python docs/machinery/blocks.py                   # all pages, and the README
    python docs/machinery/blocks.py docs/resume.md    # these

A page is run in a process and an empty folder of its own, by whatever Python and shmloader this is started with: also
in an environment that has nothing else.  Two comments in a page, which readers do not see, say more:

    <!-- before: ... -->     code that runs at this place: the data that the text takes for granted
    <!-- needs: NAMES -->    the next block runs only where these modules can be imported, or there is such a device
                             ("cuda"); elsewhere it is compiled, and no more
    <!-- compiled only: WHY -->   the next block never runs
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
LONGEST = 120  # seconds a page
NEVER = "something that is nowhere"

PARTS = re.compile(
    r"^<!-- before:\n(?P<before>.*?)^-->"
    r"|^<!-- needs: (?P<needs>.+?) -->"
    r"|^<!-- (?P<compiled>compiled only): .+? -->"
    r"|^(?P<indent> *)```python\n(?P<code>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    line: int  # of the page, where its first line stands
    code: str
    needs: tuple[str, ...]


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    needs: tuple[str, ...] = ()
    for part in PARTS.finditer(text):
        if part["needs"] or part["compiled"]:
            needs = (NEVER,) if part["compiled"] else tuple(part["needs"].split())
            continue
        group = "before" if part["before"] is not None else "code"
        yield Block(text.count("\n", 0, part.start(group)) + 1, textwrap.dedent(part[group]), needs)
        needs = ()


@functools.cache
def is_here(need: str) -> bool:
    if need == NEVER:
        return False
    # In a process of its own: torchvision beside a torch of another build, say, is there and raises; and who has asked
    # for a GPU cannot fork a page that uses it.
    asked = "import torch; assert torch.cuda.is_available()" if need == "cuda" else f"import {need}"
    return subprocess.run([sys.executable, "-c", asked], capture_output=True).returncode == 0


def run(page: Path) -> None:
    """Run a page in this process, as its main program."""
    multiprocessing.set_start_method("fork")  # Python 3.14's own, a fork server, could not import a page
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    for block in blocks(page):
        # lines that stand where they stand in the page, so that a traceback says where
        compiled = compile("\n" * (block.line - 1) + block.code, str(page), "exec")
        if all(map(is_here, block.needs)):
            exec(compiled, main.__dict__)


def run_apart(page: Path) -> str:
    """Run a page in a process of its own; what it said if it failed, else nothing."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as output:
        child = os.fork()
        if not child:
            status = 1
            try:
                os.setsid()
                os.chdir(folder)
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                signal.alarm(LONGEST)
                run(page)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        text = output.read().decode(errors="replace")
    return text + f"\n(status {status})" if status else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, help="all without")
    pages = parser.parse_args().pages or [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    import shmloader  # once for all pages, because importing torch takes longer than most of them

    print(f"with {shmloader.__file__}", flush=True)
    failed, ran, compiled = 0, 0, 0
    for page in pages:
        found = list(blocks(page.resolve()))
        if not found:
            continue
        runs = [all(map(is_here, block.needs)) for block in found]
        ran, compiled = ran + sum(runs), compiled + len(runs) - sum(runs)
        text = run_apart(page.resolve())
        failed += bool(text)
        print(f"{'FAILED' if text else 'ran'}  {page.name}: {sum(runs)} of {len(found)} blocks run", flush=True)
        if text:
            print(textwrap.indent(text, "    "), flush=True)
    print(f"{ran} blocks ran, {compiled} were compiled only; {failed} pages failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
