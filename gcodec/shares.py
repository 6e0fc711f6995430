"""How many elements of a tensor are sent, where that is only some: a number, or a share."""

from __future__ import annotations

from gcodec.kinds import Float64, Integer

MOST = 2**62  # elements among which positions can be told
RATIO = 0.01  # the default

COUNT = Integer(0, MOST, sent=("ratio",), asked=1)  # a message may send nothing
SHARE = Float64("a number above 0, up to 1", lambda ratio: 0 < ratio <= 1)


def sent(n: int, k: int | str, ratio: float) -> int:
    """Return how many of n elements are sent: k of them, or with "ratio" that share, and one."""
    return min(n, k if isinstance(k, int) else max(1, round(ratio * n)))
