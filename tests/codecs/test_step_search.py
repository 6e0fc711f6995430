"""The search of a number with which something is met."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from gcodec.codecs.ecsq.root_finding import search

BOUNDS = -100.0, 100.0
WINDOW = -0.015, 0.0


def counted(off: Callable[[float], float]) -> tuple[Callable[[float], float], list[float]]:
    """Return a function that notes what it is asked for."""
    asked: list[float] = []

    def noted(at: float) -> float:
        asked.append(at)
        return off(at)

    return noted, asked


@pytest.mark.parametrize("slope", [0.3, 1.0, 2.2, 4.0])
@pytest.mark.parametrize("first", [-60.0, -3.0, -0.1, 0.0, 0.2, 5.0, 80.0])
def test_linear_function_converges_fast(slope: float, first: float) -> None:
    of, asked = counted(lambda at: slope * (at - 0.7))
    met = search(of, first, 1.0, WINDOW, BOUNDS, 1e-3)
    assert met is not None
    assert -0.015 <= met.excess <= 0
    assert len(asked) <= 8


@pytest.mark.parametrize("first", [-20.0, -4.0, 3.0, 30.0])
def test_curved_function_converges(first: float) -> None:
    """Flat far below, steep far above."""
    of, asked = counted(lambda at: math.exp(at / 5) - 1.5)
    met = search(of, first, 1.0, WINDOW, (-40.0, 40.0), 1e-3)
    assert met is not None
    assert -0.015 <= met.excess <= 0
    assert len(asked) <= 20


@pytest.mark.parametrize("at", [-3.0, 0.4, 7.1])
def test_search_ends_just_below_a_jump(at: float) -> None:
    of, asked = counted(lambda u: -1.0 if u < at else 1.0)
    met = search(of, 0.0, 1.0, WINDOW, BOUNDS, 2**-10)
    assert met is not None
    assert at - 2**-10 <= met.at < at
    assert met.excess == -1
    assert len(asked) <= 40


def test_constant_function_terminates() -> None:
    of, asked = counted(lambda _: 1.0)
    assert search(of, 3.0, 1.0, WINDOW, BOUNDS, 1e-3) is None
    assert asked[-1] == BOUNDS[0]
    of, asked = counted(lambda _: -1.0)
    met = search(of, 3.0, 1.0, WINDOW, BOUNDS, 1e-3)
    assert met is not None
    assert (met.at, met.excess) == (BOUNDS[1], -1)


def test_known_excess_is_not_evaluated_again() -> None:
    of, asked = counted(lambda at: at)
    met = search(of, -0.01, 1.0, WINDOW, BOUNDS, 1e-3, first_excess=-0.01)
    assert met is not None
    assert met.at == -0.01
    assert asked == []
    met = search(of, 1.0, 1.0, WINDOW, BOUNDS, 1e-3, first_excess=1.0)
    assert met is not None
    assert 1.0 not in asked


def test_noisy_function_converges() -> None:
    """Where off(u) falls in places, what is found is still low enough."""
    of, _ = counted(lambda at: at - 2 + 0.3 * math.sin(40 * at))
    met = search(of, -5.0, 1.0, WINDOW, BOUNDS, 2**-12)
    assert met is not None
    assert -0.015 <= met.excess <= 0
