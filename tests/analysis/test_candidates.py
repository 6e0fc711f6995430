"""Candidates come from the registry, and the selected one meets its budget."""

from __future__ import annotations

import random

import numpy as np
import pytest

import gcodec
from gcodec.analysis import candidates
from gcodec.analysis.candidates import Budget, all_settings, pareto, probe, settings, shortlist
from gcodec.analysis.groups import pattern_of
from gcodec.analysis.samples import Sample
from gcodec.analysis.trials import Trial


def trial(spec: str, bits: float, error: float) -> Trial:
    return Trial(gcodec.parse(spec), 0, bits, 1.0, error**0.5)


@pytest.mark.parametrize("name", sorted(gcodec.codecs()))
def test_settings_of_a_codec_are_distinct(name):
    actual = settings(gcodec.codecs()[name])
    specs = [str(codec) for codec in actual]
    assert specs and len(set(specs)) == len(specs) <= 40
    assert all(codec.name == name and gcodec.parse(str(codec)).name == name for codec in actual)


def test_settings_span_the_declared_parameters():
    specs = {str(codec) for codec in all_settings()}
    assert {f"minmax:bits={bits}" for bits in range(1, 8)} | {"minmax", "raw"} <= specs
    assert {"qsgd:s=60,bucket=256,code=auto", "topk:ratio=0.16", "dct8:k=8"} <= specs
    assert "minifloat:format=e4m3,block=256" in specs
    named = {spec.partition(":")[0] for spec in specs}
    assert named == {name for name, cls in gcodec.codecs().items() if not cls.needs_feedback}
    assert "lowrank" not in named


def test_budgets():
    by_error, by_bits = Budget(max_nmse=0.01), Budget(max_bits=4)
    trials = [
        trial("raw", 32, 0),
        trial("minmax", 8, 1e-4),
        trial("minmax:bits=4", 4, 0.02),
        trial("minmax:bits=5", 5, 0.009),
        trial("sign", 1, 0.4),
    ]

    def best(budget):
        allowed = [t for t in trials if budget.allows(t.bits, t.error)]
        return str(min(allowed, key=lambda t: budget.cost(t.bits, t.error)).codec)

    assert best(by_error) == "minmax:bits=5"
    assert best(by_bits) == "minmax:bits=4"
    assert not any(Budget(0.01, 4).allows(t.bits, t.error) for t in trials)
    assert best(Budget(0.5, 4)) == "sign"
    shortlisted = {str(codec) for codec in shortlist([trials], by_error)}
    assert shortlisted == {"minmax:bits=5", "minmax", "raw", "minmax:bits=4"}
    assert (str(by_error), str(Budget(0.1, 2))) == ("nmse ≤ 0.01", "nmse ≤ 0.1, bits/v ≤ 2")


def test_raw_is_always_tried():
    """Shortlist for a large probe on which raw is far from the budget, and not lossless."""
    trials = [trial("minmax:bits=4", 4, 0.001), trial("topk", 1, 0), trial("raw", 32, 1e-9)]
    shortlisted = {str(codec) for codec in shortlist([trials], Budget(max_bits=2))}
    assert "raw" in shortlisted


def test_probe_leaves_out_only_what_cannot_be_shortlisted(monkeypatch):
    rng, budget, left_out = random.Random(5), Budget(max_nmse=2**-6), 0
    squares = [2.0**-10, 2.0**-8, 2.0**-6, 2.0**-4, 2.0**-2]  # within the budget, near it, beyond
    bounds = {}  # factor of the error, and difference of the bits, that are known in advance

    def attempt(sample, codec, is_wanted):
        factor, fewer = bounds[str(codec)]
        actual = trials[str(codec)]
        return actual if is_wanted(factor * actual.error, actual.bits - fewer) else "unwanted"

    monkeypatch.setattr(candidates, "attempt", attempt)
    sample = Sample("w", 4, np.ones(4, np.float32), 0)
    for _ in range(500):
        errors = [rng.choice(squares) for _ in range(rng.randrange(1, 13))]
        listed = [trial(f"topk:k={k}", rng.randrange(1, 9), e) for k, e in enumerate(errors, 1)]
        listed.insert(rng.randrange(len(listed)), trial("raw", 32, rng.choice([1e-9, 0.5])))
        trials = {str(t.codec): t for t in listed}
        bounds = {spec: (rng.choice([1, 0.5, 0.1]), rng.randrange(2)) for spec in trials}
        probed = probe(sample, [t.codec for t in listed], budget)
        assert shortlist([probed], budget) == shortlist([listed], budget)
        left_out += len(listed) - len(probed)
    assert left_out > 500


def test_pareto_front():
    points = [(1, 0.5), (2, 0.5), (2, 0.1), (3, 0.2), (0.5, 0.9), (1, 0.6), (4, 0.05)]
    assert pareto(points) == [4, 0, 2, 6]
    assert pareto([]) == []


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("blk.0.attn.q", "blk.*.attn.q"),
        ("layers.3.experts.17.w1", "layers.*.experts.*.w1"),
        ("block/12/kernel", "block/*/kernel"),
        ("7", "*"),
        ("layer2.conv1.weight", "layer2.conv1.weight"),
        ("ln_1.bias", "ln_1.bias"),
        ("a.1b.2", "a.1b.*"),
    ],
)
def test_name_patterns_of_repeated_blocks(name, pattern):
    assert pattern_of(name) == pattern
