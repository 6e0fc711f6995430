"""How much of its cases a sweep goes through.

``GCODEC_HYPOTHESIS_PROFILE=long pytest`` goes through all; the default through some of them, at
equal distances. What a law depends on is never left out: codecs, forms, edges.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

LONG = os.environ.get("GCODEC_HYPOTHESIS_PROFILE") == "long"


def thinned(cases: Iterable[T], all_values: int) -> list[T]:
    """Return every so manyth case, the first among them; all in a long run."""
    return list(cases)[:: 1 if LONG else all_values]
