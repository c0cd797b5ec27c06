"""What is drawn for a group does not depend on how fast its ranks read, and their generators follow the first one's."""

from __future__ import annotations

import pytest
from ranks import in_ranks

FORMS = {
    "usual": "{}",
    "workers that persist": "{'persistent_workers': True}",
    "stolen": "{'schedule': 'steal'}",
    "chunks": "{'chunk_size': 2, 'persistent_workers': True}",
    "next epoch early": "{'persistent_workers': True, 'prefetch_epochs': True}",
    "next epoch early, stolen": "{'persistent_workers': True, 'prefetch_epochs': True, 'schedule': 'steal'}",
}
LONG = ("workers that persist", "chunks", "next epoch early, stolen")
BOTH = """
def both(main, own, samples=64, **options):
    # What main gives with a loader of the group, and with one alone, both from the same seeds.
    found = []
    for readers in (dist.group.WORLD, None):
        torch.manual_seed(5)
        generator = torch.Generator().manual_seed(3) if own else None
        given = {"batch_size": 4, "num_workers": 2, "shuffle": True, "multiprocessing_context": "fork"} | options
        dataset = data.Subset(Tens(), range(samples))
        with shmloader.DataLoader(dataset, generator=generator, readers=readers, **given) as loader:
            got = main(loader, readers is not None)
        found.append((got, torch.get_rng_state().tolist(), generator and generator.get_state().tolist()))
    return found
"""
forms = pytest.mark.parametrize(
    "form", [pytest.param(form, marks=[pytest.mark.long] * (form in LONG)) for form in FORMS]
)


@forms
@pytest.mark.parametrize("own", [False, True], ids=["global generator", "own generator"])
def test_at_the_end_of_each_epoch_all_generators_are_where_a_lone_loaders_are(form: str, own: bool) -> None:
    text = f"""
OPTIONS, OWN = {FORMS[form]}, {own}
{BOTH}
def main(rank):
    def epochs(loader, shared):
        got = []
        for _ in range(3):
            got.append([k.tolist() for _, k in loader])
            got.append(torch.get_rng_state().tolist())
            got.append(OWN and loader.generator.get_state().tolist())
        return got
    return both(epochs, OWN, **OPTIONS)
"""
    (shared, alone), (other, its_alone) = in_ranks(text)
    assert alone == its_alone
    assert shared == alone and other == alone


@pytest.mark.parametrize("samples", [4, 17, 64])
@pytest.mark.parametrize("slow", [0, 1])
@pytest.mark.parametrize("form", ["usual", "next epoch early"])
def test_iter_and_a_state_between_epochs_have_the_first_ranks_generator(form: str, slow: int, samples: int) -> None:
    """A short epoch is drawn to its end while the one before it is read, and more than one may lie in the ring."""
    text = f"""
OPTIONS = {FORMS[form]}
{BOTH}
def main(rank):
    def states(loader, shared):
        got = []
        for _ in range(3):
            batches = iter(loader)
            got.append(loader.generator.get_state().tolist())
            while True:
                time.sleep(0.01 if rank == {slow} and shared else 0)
                if next(batches, None) is None:
                    break
            got.append(loader.generator.get_state().tolist())
            got.append(loader.state_dict())
        return got
    return both(states, True, {samples}, **OPTIONS)
"""
    (shared, alone), (other, _) = in_ranks(text)
    assert shared == alone
    assert other == alone


@pytest.mark.parametrize("own", [False, True], ids=["global generator", "own generator"])
@pytest.mark.parametrize("form", ["next epoch early", "next epoch early, stolen"])
def test_a_slow_rank_does_not_change_when_the_next_epoch_is_drawn(form: str, own: bool) -> None:
    """The user draws from the same generator between two batches.  Epochs are left early, and not left."""
    text = f"""
OPTIONS, OWN = {FORMS[form]}, {own}
{BOTH}
def main(rank):
    def epochs(loader, shared):
        got = []
        for most in (13, 20, 14, 3, 20, 20):
            got.append([])
            for number, (_, k) in enumerate(loader, 1):
                got[-1].append(k.tolist())
                torch.rand((), generator=loader.generator)
                time.sleep(0.005 if rank and shared else 0)
                if number == most:
                    break
        return got
    return both(epochs, OWN, **OPTIONS)
"""
    (shared, alone), (other, _) = in_ranks(text)
    assert shared == alone
    assert other[0] == alone[0]


@pytest.mark.parametrize("slow", [0, 1])
@pytest.mark.parametrize("own", [False, True], ids=["global generator", "own generator"])
def test_after_close_all_ranks_draw_what_the_first_one_drew_early_and_dropped(own: bool, slow: int) -> None:
    """Epochs are left early when the next one is drawn already, and when it is not, and at their end."""
    text = f"""
OWN = {own}
{BOTH}
def main(rank):
    def epochs(loader, shared):
        got = []
        for most in (15, 3, 20, 14, 20):
            got.append([])
            for number, (_, k) in enumerate(loader, 1):
                got[-1].append(k.tolist())
                time.sleep(0.005 if rank == {slow} and shared else 0)
                if number == most:
                    break
            if shared:
                dist.barrier()
            if most != 3:
                loader.close()
        return got
    return both(epochs, OWN, persistent_workers=True, prefetch_epochs=True)
"""
    (shared, alone), (other, _) = in_ranks(text)
    assert shared == alone
    assert other == alone


def test_a_slow_rank_does_not_change_how_far_stealing_draws() -> None:
    text = f"""
{BOTH}
def main(rank):
    def two_epochs(loader, shared):
        batches = iter(loader)
        for _ in range(0 if rank and shared else 3):
            next(batches)
        if shared:
            dist.barrier()
        del batches
        return [k.tolist() for _, k in loader]
    return both(two_epochs, True, schedule="steal")
"""
    (shared, alone), (other, _) = in_ranks(text)
    assert shared == alone
    assert other[0] == alone[0]
