"""Streams that raise: a resumed run goes on behind each batch and each error, and loses no sample."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from own_streams import LosesOne, Raises, RaisesInGenerator, loader
from resuming import through_json

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:the (dataset|sampler|loaded state) "),
]


def saved(made: Any) -> dict[str, Any]:
    return through_json(made.state_dict())  # type: ignore[no-any-return]


def outcome(batches: Any) -> Any:
    try:
        return next(batches).tolist()
    except StopIteration:
        return None
    except OSError as error:
        return type(error).__name__


def outcomes(batches: Any) -> list[Any]:
    return list(itertools.takewhile(lambda one: one is not None, (outcome(batches) for _ in range(30))))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("kind", "at", "batch_size"),
    [
        *((Raises, (4,), 3), (RaisesInGenerator, (4,), 3)),
        pytest.param(Raises, (0, 4, 9), 3, marks=pytest.mark.long),
        pytest.param(RaisesInGenerator, (0, 4, 9), 1, marks=pytest.mark.long),
    ],
)
def test_a_stream_that_raised_goes_on_behind_each_batch(
    workers: int, batch_size: int, kind: Any, at: tuple[int, ...]
) -> None:
    expected, states = [], []
    with loader(kind(at), workers, batch_size=batch_size) as one:
        batches = iter(one)
        while (came := outcome(batches)) is not None:
            expected.append(came)
            states.append(saved(one))
    assert "OSError" in expected
    for behind, state in enumerate(states, 1):
        with loader(kind(at), workers, batch_size=batch_size) as other:
            other.load_state_dict(state)
            batches = iter(other)
            got = [outcome(batches)]
            again = saved(other)  # a second time in this epoch
            got += outcomes(batches) if got[0] is not None else []
        assert [one for one in got if one is not None] == expected[behind:]
        if got[0] is not None:
            with loader(kind(at), workers, batch_size=batch_size) as third:
                third.load_state_dict(again)
                assert outcomes(iter(third)) == expected[behind + 1 :]


@pytest.mark.parametrize("workers", [0, 1])
def test_with_a_device_an_error_is_in_the_state_at_once(workers: int) -> None:
    with loader(Raises((4,)), workers, device="cpu", on_device=lambda batch: batch) as made:
        batches = iter(made)
        assert [outcome(batches) for _ in range(2)] == [[0, 1, 2], "OSError"]
        state = saved(made)
    assert (state["batches"], state["streams"][0][0]["samples"], state["streams"][0][0]["errors"]) == (2, 4, [4])


@pytest.mark.filterwarnings("ignore:the stream ")
@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_that_does_not_come_again_costs_no_sample(workers: int) -> None:
    with loader(Raises((4,)), workers) as one:
        batches = iter(one)
        assert [outcome(batches) for _ in range(2)] == [[0, 1, 2], "OSError"]
        state = saved(one)
    assert [(stream["samples"], stream["errors"]) for stream in state["streams"][0]] == [(4, [4])]
    with loader(Raises((4,), times=0), workers) as other:
        other.load_state_dict(state)
        assert outcomes(iter(other))[:2] == [[4, 5, 6], [7, 8, 9]]


@pytest.mark.parametrize(("kind", "third", "rest"), [(Raises, [4, 5, 6], [7, 8, 9]), (LosesOne, [5, 6, 7], [7, 8, 9])])
def test_an_error_before_the_place_that_does_not_come_again_is_a_warning(
    kind: type[Raises], third: list[int], rest: list[int]
) -> None:
    """With LosesOne sample 7 comes twice, and nobody can know."""
    with loader(kind((4,)), 0) as one:
        batches = iter(one)
        assert [outcome(batches) for _ in range(3)] == [[0, 1, 2], "OSError", third]
        state = saved(one)
    with loader(kind((4,), times=0), 0) as other:
        other.load_state_dict(state)
        with pytest.warns(RuntimeWarning, match=f"stream {kind.__name__} raised after 4 samples .* twice: 1") as came:
            assert outcomes(iter(other))[0] == rest
    code = kind.__iter__.__code__
    assert [(one.filename, one.lineno) for one in came] == [(code.co_filename, code.co_firstlineno)]


def test_a_new_error_is_raised_each_time_and_the_place_stays() -> None:
    with loader(Raises(()), 1) as one:
        batches = iter(one)
        next(batches), next(batches)
        state = saved(one)
    with loader(Raises((4,)), 1) as other:
        other.load_state_dict(state)
        batches = iter(other)
        assert [outcome(batches) for _ in range(3)] == ["OSError"] * 3
        again = saved(other)
    assert again["streams"][0][0]["samples"] == 6
    with loader(Raises(()), 1) as third:
        third.load_state_dict(again)
        assert outcomes(iter(third))[0] == [6, 7, 8]
