"""Where the benchmark of DDP finds that a hook overtakes plain all-reduce, of given times."""

from __future__ import annotations

import math

import pytest

from bench import ddp

NBYTES, VALUES = 10_000_000, 2_500_000
COMPUTE, HIDDEN, CODING = 30e-3, 5e-3, 20e-3


def links(coding: float = CODING, stack: float = 10e-3) -> ddp.Results:
    """Return steps on several links: a hook with empty messages, and plain all-reduce."""
    results: ddp.Results = {}
    for speed in (None, 8 * 10**9, 4 * 10**9, 2 * 10**9, 10**9, 10**8):
        sending = max(stack, 8 * NBYTES / speed if speed else 0.0)
        results[speed] = {
            "alone": {"seconds": COMPUTE, "processor": COMPUTE},
            "none": {"seconds": COMPUTE + sending - HIDDEN, "bytes": NBYTES},
            "hook": dict.fromkeys(("seconds", "processor"), COMPUTE + coding) | {"bits": 0.0},
            "values": VALUES,
        }
    return results


def test_break_evens_agree_with_the_model() -> None:
    expected = 8 * NBYTES / (CODING + HIDDEN)  # 3.2 Gbit/s, between two of the links
    actual = links()
    assert math.isclose(ddp.hidden(actual), HIDDEN, rel_tol=1e-9)
    assert math.isclose(ddp.measured_break_even(actual, "hook"), expected, rel_tol=1e-9)
    assert math.isclose(ddp.expected_break_even(actual, "hook"), expected, rel_tol=2e-3)


@pytest.mark.parametrize(("coding", "expected"), [(4e-3, math.inf), (2.0, 0.0)])
def test_hooks_may_win_everywhere_or_nowhere(coding: float, expected: float) -> None:
    assert ddp.measured_break_even(links(coding), "hook") == expected


def test_break_even_is_robust_to_noise() -> None:
    actual = links()
    actual[8 * 10**9]["none"]["seconds"] += 12e-3  # now slower than the hook
    quiet = 8 * NBYTES / (CODING + HIDDEN)
    assert 0.9 * quiet < ddp.measured_break_even(actual, "hook") < 1.3 * quiet
