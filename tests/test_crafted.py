"""Test handmade inputs for guards of kernels: expected outcomes, and no access out of bounds.

The inputs must detect the removal of a guard: `tools/guard_mutation.py` removes each guard, and
these tests remove a few.
"""

from __future__ import annotations

import functools
import os
import warnings

import pytest

import gcodec
from fuzz import guard, hostile, targets
from fuzz.crafted import Crafted, crafted
from fuzz.crafted_tables import wrong_tables
from fuzz.goldens import ROOT
from tools import guard_mutation

posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@functools.cache
def inputs() -> list[Crafted]:
    """Return all handmade inputs, which need kernels: importing this module must not."""
    return list(crafted())


def error_of(crafted_input: Crafted) -> str | None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        actual = hostile.outcome(
            hostile.Input("crafted", crafted_input.data, None, crafted_input.read)
        )
    return actual if isinstance(actual, str) else None


def test_outcomes_of_crafted_inputs() -> None:
    names = {crafted_input.name for crafted_input in inputs()}
    assert len(names) == len(inputs()) > 500
    for crafted_input in inputs():
        assert error_of(crafted_input) == crafted_input.error, crafted_input.name


def test_oracles_agree() -> None:
    frames = [crafted_input for crafted_input in inputs() if crafted_input.read is gcodec.decode]
    assert {crafted_input.error for crafted_input in frames} == {None, "Corrupt", "Truncated"}
    for crafted_input in frames:
        targets.run("differential", crafted_input.data)


@posix
@pytest.mark.parametrize("at_end", [True, False])
def test_crafted_inputs_between_guard_pages(at_end: bool) -> None:
    calls, actual = guard.replay(error_of, inputs(), at_end)
    assert not actual
    assert calls > len(inputs())


@posix
def test_removed_guards_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_mutation, "LONGEST", 1)  # seconds, because one loop would never end
    paths = sorted((ROOT / "fuzz" / "golden-errors").glob("*eliasfano*.gcf"))
    chosen = [hostile.Input("error", path.read_bytes()) for path in paths]
    chosen += [
        hostile.Input("crafted", crafted_input.data, None, crafted_input.read)
        for crafted_input in inputs()
        if crafted_input.name.startswith(("above 2^", "a one behind"))
    ]
    reported = list(guard_mutation.measured(chosen, "elias_fano"))
    assert len(reported) >= 5
    assert [actual.condition for actual, noticed in reported if not noticed] == []
    # A single input does not detect the removal of all guards.
    reported = list(guard_mutation.measured(chosen[-1:], "elias_fano"))
    assert {noticed for _, noticed in reported} == {False, True}


@posix
@pytest.mark.parametrize("module", ["scale_lists", "low_rank_head", "package_merge", "tile_order"])
def test_removed_guards_of_tables_are_noticed(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard_mutation, "LONGEST", 2)
    names = {name for name, *_ in wrong_tables()}
    chosen = [
        hostile.Input("crafted", one.data, None, one.read)
        for one in inputs()
        if one.name in names or one.name.startswith("scales:")
    ]
    reported = list(guard_mutation.measured(chosen, module))
    assert reported and [actual.condition for actual, noticed in reported if not noticed] == []
