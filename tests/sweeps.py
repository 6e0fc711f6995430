"""Thinning of the cases of a sweep.

``GCODEC_HYPOTHESIS_PROFILE=long pytest`` runs all cases; the default profile runs some of them, at
equal distances. Essential dimensions, such as codecs, forms and edge cases, are never thinned.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from typing import TypeVar

from hypothesis import settings

T = TypeVar("T")
U = TypeVar("U")

LONG = os.environ.get("GCODEC_HYPOTHESIS_PROFILE") == "long"


def thinned(cases: Iterable[T], all_values: int) -> list[T]:
    """Return equally spaced cases, including the first; all cases in a long run."""
    return list(cases)[:: 1 if LONG else all_values]


def in_turn(cases: Iterable[T], others: Sequence[U]) -> list[tuple[T, U]]:
    """Return each case with the next one of the others; with each of them in a long run."""
    if LONG:
        return list(itertools.product(cases, others))
    return list(zip(cases, itertools.cycle(others)))


def examples(number: int, in_long_run: int = 1000) -> settings:
    """Return settings of Hypothesis with a number of examples, and another one in a long run."""
    return settings(max_examples=in_long_run if LONG else number)
