"""The root search of rate control: `search` meets a target with few evaluations."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from gcodec.codecs.ecsq.root_finding import search

BOUNDS = -100.0, 100.0
WINDOW = -0.015, 0.0


def recorded(excess: Callable[[float], float]) -> tuple[Callable[[float], float], list[float]]:
    """Return a function that records its arguments, and the list of these arguments."""
    evaluated: list[float] = []

    def recording(at: float) -> float:
        evaluated.append(at)
        return excess(at)

    return recording, evaluated


@pytest.mark.parametrize("slope", [0.3, 1.0, 2.2, 4.0])
@pytest.mark.parametrize("first", [-60.0, -3.0, -0.1, 0.0, 0.2, 5.0, 80.0])
def test_linear_function_converges_fast(slope: float, first: float) -> None:
    excess, evaluated = recorded(lambda at: slope * (at - 0.7))
    met = search(excess, first, 1.0, WINDOW, BOUNDS, 1e-3)
    assert met is not None
    assert -0.015 <= met.excess <= 0
    assert len(evaluated) <= 8


@pytest.mark.parametrize("first", [-20.0, -4.0, 3.0, 30.0])
@pytest.mark.parametrize("sign", [1, -1])
def test_curved_function_converges(first: float, sign: int) -> None:
    """The function is flat far below its root, and steep far above it; or the other way round."""
    excess, evaluated = recorded(lambda at: sign * (math.exp(sign * at / 5) - 1.5))
    met = search(excess, sign * first, 1.0, WINDOW, (-40.0, 40.0), 1e-3)
    assert met is not None
    assert -0.015 <= met.excess <= 0
    assert len(evaluated) <= 20


@pytest.mark.parametrize("jump", [-3.0, 0.4, 7.1])
def test_search_ends_just_below_a_jump(jump: float) -> None:
    excess, evaluated = recorded(lambda u: -1.0 if u < jump else 1.0)
    met = search(excess, 0.0, 1.0, WINDOW, BOUNDS, 2**-10)
    assert met is not None
    assert jump - 2**-10 <= met.at < jump
    assert met.excess == -1
    assert len(evaluated) <= 40


def test_constant_function_terminates() -> None:
    excess, evaluated = recorded(lambda _: 1.0)
    assert search(excess, 3.0, 1.0, WINDOW, BOUNDS, 1e-3) is None
    assert evaluated[-1] == BOUNDS[0]
    excess, evaluated = recorded(lambda _: -1.0)
    met = search(excess, 3.0, 1.0, WINDOW, BOUNDS, 1e-3)
    assert met is not None
    assert (met.at, met.excess) == (BOUNDS[1], -1)


def test_known_excess_is_not_evaluated_again() -> None:
    excess, evaluated = recorded(lambda at: at)
    met = search(excess, -0.01, 1.0, WINDOW, BOUNDS, 1e-3, first_excess=-0.01)
    assert met is not None
    assert met.at == -0.01
    assert evaluated == []
    met = search(excess, 1.0, 1.0, WINDOW, BOUNDS, 1e-3, first_excess=1.0)
    assert met is not None
    assert 1.0 not in evaluated


def test_noisy_function_converges() -> None:
    """Where the excess is not monotonic, `search` still returns a point in the window."""
    excess, _ = recorded(lambda at: at - 2 + 0.3 * math.sin(40 * at))
    met = search(excess, -5.0, 1.0, WINDOW, BOUNDS, 2**-12)
    assert met is not None
    assert -0.015 <= met.excess <= 0
