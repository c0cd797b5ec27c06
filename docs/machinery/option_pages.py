"""`{options}`: every option of shmloader.DataLoader that torch's loader does not have.

The meaning comes from the docstring, the type and the default from the signature, and the error from a wrong value that
is tried while the page is built.  This file has only the unit, an example and the wrong value.  An option that is
missing here fails the build.
"""

from __future__ import annotations

import inspect
import re
from typing import Any, NamedTuple

import torch
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from torch.utils.data import TensorDataset

import shmloader


class About(NamedTuple):
    unit: str
    example: str  # of a call, which is made when the page is built
    wrong: str
    setup: str = ""  # what the example needs before it


ABOUT = {
    "spare_slots": About("batches", "DataLoader(dataset, num_workers=2, spare_slots=3)", "spare_slots=-1"),
    "max_ring_bytes": About(
        "bytes", "DataLoader(dataset, num_workers=2, max_ring_bytes=1 << 30)", "max_ring_bytes=0.5"
    ),
    "on_worker_death": About(
        "one of these words", 'DataLoader(dataset, num_workers=2, on_worker_death="respawn")', 'on_worker_death="retry"'
    ),
    "workers_outlive_signals": About(
        "yes or no", "DataLoader(dataset, num_workers=2, workers_outlive_signals=False)", "workers_outlive_signals=0"
    ),
    "schedule": About("one of these words", 'DataLoader(dataset, num_workers=2, schedule="steal")', 'schedule="fifo"'),
    "chunk_size": About(
        "samples", "DataLoader(dataset, batch_size=8, num_workers=2, chunk_size=4)", "chunk_size=0, num_workers=2"
    ),
    "group_by": About(
        "a function, or 'place'",
        "DataLoader(dataset, batch_size=4, num_workers=2, group_by=lambda index: index // 100)",
        'group_by="shard", num_workers=2',
    ),
    "look_ahead": About("batches", "DataLoader(dataset, num_workers=2, look_ahead=2)", "look_ahead=3, num_workers=2"),
    "far_workers": About(
        "",
        "far = shmloader.ray.Workers(num=4)\nDataLoader(dataset, num_workers=2, far_workers=far)",
        "far_workers=32",
        "import shmloader.ray\n\n",
    ),
    "device": About("", 'DataLoader(dataset, num_workers=2, device="cpu")', 'device="gpu"'),
    "on_device": About(
        "",
        'DataLoader(dataset, num_workers=2, device="cpu", on_device=halve)',
        "on_device=abs",
        "def halve(batch):\n    return [part / 2 for part in batch]\n\n",
    ),
    "sample_seeds": About("yes or no", "DataLoader(dataset, num_workers=2, sample_seeds=True)", "sample_seeds=1"),
    "prefetch_epochs": About(
        "yes or no",
        "DataLoader(dataset, num_workers=2, persistent_workers=True, prefetch_epochs=True)",
        "prefetch_epochs=True, num_workers=2",
    ),
    "on_bad_sample": About(
        "one of these words", 'DataLoader(dataset, num_workers=2, on_bad_sample="skip:0.05")', 'on_bad_sample="skip:-1"'
    ),
}


def options() -> dict[str, inspect.Parameter]:
    """The parameters that torch's loader does not have."""
    theirs = inspect.signature(torch.utils.data.DataLoader.__init__).parameters
    ours = inspect.signature(shmloader.DataLoader.__init__).parameters
    return {
        name: parameter
        for name, parameter in ours.items()
        if name not in theirs and parameter.kind.name != "VAR_KEYWORD"
    }


def meanings() -> dict[str, str]:
    """The docstring's text on each argument, as one paragraph."""
    docstring = inspect.cleandoc(shmloader.DataLoader.__doc__ or "")
    arguments = docstring.partition("\nArgs:\n")[2].partition("\nRaises:\n")[0]
    found = re.findall(r"^ {4}(\w+): (.+?)(?=^ {4}\S|\Z)", arguments, re.MULTILINE | re.DOTALL)
    return {name: " ".join(text.split()) for name, text in found}


def raised_by(wrong: str) -> str:
    names = {"DataLoader": shmloader.DataLoader, "dataset": TensorDataset(torch.arange(8.0))}
    try:
        eval(f"DataLoader(dataset, {wrong})", names)
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError(
        f"DataLoader(dataset, {wrong}) raises nothing. docs/machinery/option_pages.py expects an error."
    )


def text() -> str:
    """The whole page, in Markdown."""
    mean, parts = meanings(), []
    for name, parameter in options().items():
        about = ABOUT[name]
        exec(
            about.setup + about.example,
            {"DataLoader": shmloader.DataLoader, "dataset": TensorDataset(torch.arange(8.0))},
        )
        kind = str(parameter.annotation).replace("Callable[[Any], Any]", "function of a batch")
        facts = [f"`{kind}`", f"default `{parameter.default!r}`", about.unit]
        meaning = re.sub(r"docs/([\w-]+)\.md", r"[\1](\1.md)", mean[name])
        parts += [f"## `{name}`", ", ".join(filter(None, facts)) + ".", meaning]
        parts += [f"```python\n{about.setup}{about.example}\n```"]
        if about.wrong:
            parts += [f"`{about.wrong}` is an error:", f"```text\n{raised_by(about.wrong)}\n```"]
    return "\n\n".join(parts)


class Options(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes(text(), allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("options", Options)
    return {"parallel_read_safe": True}
