"""Test handmade inputs for guards of kernels: expected outcomes, and no access out of bounds.

The inputs must detect the removal of a guard: `tools/guard_mutation.py` removes each guard, and
these tests remove a few.
"""

from __future__ import annotations

import os
import warnings

import pytest

import gcodec
from fuzz import guard, hostile, targets
from fuzz.crafted import Crafted, crafted
from fuzz.goldens import ROOT
from tools import guard_mutation

posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
INPUTS = list(crafted())


def found_in(one: Crafted) -> str | None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        actual = hostile.outcome(hostile.Input("crafted", one.data, None, one.read))
    return actual if isinstance(actual, str) else None


def test_outcomes_of_crafted_inputs() -> None:
    assert len({one.name for one in INPUTS}) == len(INPUTS) > 500
    for one in INPUTS:
        assert found_in(one) == one.error, one.name


def test_oracles_agree() -> None:
    frames = [one for one in INPUTS if one.read is gcodec.decode]
    assert {one.error for one in frames} == {None, "Corrupt", "Truncated"}
    for one in frames:
        targets.run("differential", one.data)


@posix
@pytest.mark.parametrize("at_end", [True, False])
def test_crafted_inputs_between_guard_pages(at_end: bool) -> None:
    calls, actual = guard.replay(found_in, INPUTS, at_end)
    assert not actual
    assert calls > len(INPUTS)


@posix
def test_removed_guards_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_mutation, "LONGEST", 1)  # seconds, because one loop would never end
    paths = sorted((ROOT / "fuzz" / "golden-errors").glob("*eliasfano*.gcf"))
    inputs = [hostile.Input("error", path.read_bytes()) for path in paths]
    inputs += [
        hostile.Input("crafted", one.data, None, one.read)
        for one in INPUTS
        if one.name.startswith(("above 2^", "a one behind"))
    ]
    reported = list(guard_mutation.measured(inputs, "elias_fano"))
    assert len(reported) >= 5
    assert [actual.condition for actual, noticed in reported if not noticed] == []
    # A single input does not detect the removal of all guards.
    reported = list(guard_mutation.measured(inputs[-1:], "elias_fano"))
    assert {noticed for _, noticed in reported} == {False, True}
