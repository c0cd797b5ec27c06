"""Notes beside the pick: why the search ended, and what was not measured."""

from __future__ import annotations

from shmloader.commands.tuning.memory import Memory
from shmloader.commands.tuning.search import IDLE, Search
from shmloader.commands.tuning.setting import Row, Setting
from shmloader.ring.growth import in_units

ROUGH = 20  # batches: fewer give a rough figure
UNSTEADY = 0.15  # spread of one setting's measurements


def notes_of(
    search: Search, pick: Row, memory: Memory, budget: int, cores: int, most_workers: int, is_stream: bool
) -> list[str]:
    """Sentences, the most important first.

    Args:
        search: The search, which has ended.
        pick: Its pick.
        memory: The memory that it measured.
        budget: Bytes that settings might take.
        cores: The cores of each rank.
        most_workers: The limit on workers.
        is_stream: Whether the dataset is an IterableDataset.
    """
    lines = []
    if pick.memory_bytes > budget:
        lines.append(
            f"the pick takes {in_units(pick.memory_bytes)}, more than the budget of {in_units(budget)}: the workers' "
            "memory grew while they were measured, and no setting takes less"
        )
    if is_stream and pick.setting.num_workers > 1:
        lines.append(
            "the stream must give each worker its own part, by get_worker_info(); otherwise every worker reads all "
            "samples, and they repeat"
        )
    if pick.input_wait < IDLE:
        lines.append("the consumer takes the time, so no loader makes this quicker")
    if pick.setting.num_workers >= most_workers > 1:
        lines.append(f"the limit of {most_workers} workers (most_workers) was reached, and more may help")
    if search.too_heavy:
        least = min(map(search.weigh, search.too_heavy))
        lines.append(
            f"{len(search.too_heavy)} settings were not measured, because they need more memory than the budget of "
            f"{in_units(budget)}. {_named(search.too_heavy[0])}, for example, needs {in_units(least)}, in slots of "
            f"{in_units(memory.slot_bytes)} and workers of {in_units(memory.worker_bytes)}"
        )
    if search.untried:
        lines.append(f"there was no time for {', '.join(map(_named, search.untried))}. Give tune more seconds")
    if pick.batches < ROUGH:
        lines.append(f"only {pick.batches} batches of the pick came. Give tune more seconds for a reliable figure")
    if pick.spread > UNSTEADY:
        lines.append(
            f"measurements of the pick differ by {pick.spread:.0%}: something else ran, or samples differ much"
        )
    if pick.setting.num_workers > cores:
        lines.append(
            f"that is more workers than cores ({cores} for each rank). It pays if samples wait for a disk, a network "
            "or a lock, and if that can serve so many at once"
        )
    if memory.ranks > 1:
        lines.append(
            f"memory is counted for {memory.ranks} ranks, each with {cores} of the cores; what the others do to disk, "
            "network and memory bandwidth was not measured, unless they were running"
        )
    if pick.setting.schedule == "steal" or pick.setting.chunk_size is not None:
        lines.append("batches come in the same order; but samples that draw random numbers draw others than in torch")
    return lines


def _named(setting: Setting) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in setting.options().items())
