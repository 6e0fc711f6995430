"""Thinning of the cases of a sweep.

``GCODEC_HYPOTHESIS_PROFILE=long pytest`` runs all cases; the default profile runs some of them, at
equal distances. Essential dimensions, such as codecs, forms and edge cases, are never thinned.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

LONG = os.environ.get("GCODEC_HYPOTHESIS_PROFILE") == "long"


def thinned(cases: Iterable[T], all_values: int) -> list[T]:
    """Return equally spaced cases, including the first; all cases in a long run."""
    return list(cases)[:: 1 if LONG else all_values]
