"""Trials measure what `gcodec.encode` and `gcodec.decode` do, and omit only what cannot win."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from strategies import DTYPES, settings_of
from sweeps import LONG, in_turn, thinned

import gcodec
from gcodec.analysis import stats
from gcodec.analysis.bounds import least_bits, least_error
from gcodec.analysis.candidates import Budget, all_settings, probe, shortlist, try_all
from gcodec.analysis.samples import Sample
from gcodec.analysis.trials import Trial, attempt, joint_rms
from gcodec.wire.seek import MIN_ELEMENTS

RNG = np.random.default_rng(8)
SCALES = np.exp2(RNG.integers(-3, 4, (48, 1))).astype(np.float32)
TENSORS = {
    "matrix": SCALES * RNG.laplace(size=(48, 90)).astype(np.float32),
    "vector": RNG.standard_normal(65).astype(np.float32),
    "filters": RNG.standard_normal((6, 5, 3, 3)).cumsum(axis=3).astype(np.float32),
    "sparse": (RNG.random(3000) < 0.02) * RNG.standard_normal(3000).astype(np.float32),
    "few levels": RNG.integers(-1, 2, 700).astype(np.float32),
    "constant": np.full((4, 8), -0.3, np.float32),
    "zeros": np.zeros((3, 7), np.float32),
    "one": np.array([2.5], np.float32),
    "none": np.zeros((0, 4), np.float32),
}
BUDGETS = Budget(max_nmse=0.01), Budget(max_nmse=0.3), Budget(max_bits=4), Budget(0.05, 3)


def sample_of(values: np.ndarray) -> Sample:
    return Sample("name", values.size, values, seed=5)


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        *(("terngrad", 0.1), ("mxnet-2bit", 0.1), ("sign", 0.2), ("topk:k=1", 0.1)),
        *(("topk:threshold=1", 0), ("raw", 0)),
    ],
)
def test_least_errors_by_hand(spec: str, error: float) -> None:
    values = np.array([3, -1], np.float32)
    assert least_error(gcodec.parse(spec), values) == pytest.approx(error, abs=2e-5)
    for size in (0, 2):
        assert least_error(gcodec.parse(spec), np.zeros(size, np.float32)) == 0


def check(values: np.ndarray, codec: gcodec.Codec) -> None:
    """Check that a trial has the size and the error of the frame, within their lower bounds."""
    trial = attempt(sample_of(values), codec)
    try:
        frame = gcodec.encode(values, codec, seed=5, name="name")
    except gcodec.ParameterError as error:
        assert trial == str(error)
        return
    assert isinstance(trial, Trial)
    decoded = gcodec.decode(frame)
    expected = len(frame), stats.rms_error(values), stats.rms_error(values, decoded)
    assert (trial.nbytes, trial.rms, trial.rms_error) == expected, codec
    with np.errstate(over="ignore"):
        flat = values.astype(np.float32).reshape(-1)
    assert least_error(codec, flat) <= trial.error
    assert not values.size or least_bits(codec, values.size) <= trial.bits


@pytest.mark.parametrize("name", sorted(gcodec.codecs()))
def test_trials_measure_frames(name):
    """Trials of all settings of a codec, most of which write no payload."""
    settings = settings_of(gcodec.codecs()[name])
    for codec, values in in_turn(settings, [TENSORS["matrix"], TENSORS["few levels"]]):
        check(values, codec)


def test_trials_of_candidates_measure_frames():
    """Each setting meets three of the kinds of tensors, and all of them in a long run."""
    for turn in range(len(TENSORS) if LONG else 3):
        kinds = sorted(TENSORS)[turn:] + sorted(TENSORS)[:turn]
        for codec, kind in zip(all_settings(BUDGETS[0]), itertools.cycle(kinds)):
            check(TENSORS[kind], codec)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_trials_in_each_dtype(dtype):
    """Trials of tensors whose decoded values are rounded, or pass the range of their dtype."""
    specs = "raw", "sign", "minmax:bits=3", "qsgd:code=auto", "minifloat", "ecsq", "topk"
    for spec in (*specs, "lossless"):
        for factor in (1 / 3, 100, 1e-7):  # a float64 has more bits than a float32
            values = TENSORS["matrix"].astype(np.float64) * factor
            check(values.astype(DTYPES[dtype]), gcodec.parse(spec))
    if dtype == "float64":
        for spec in ("raw", "lossless"):
            check(np.array([1.0, 1e300]), gcodec.parse(spec))


@pytest.mark.parametrize(
    "spec",
    [
        *("qsgd:code=auto", "qsgd:s=1000,code=auto", "minifloat"),
        *("microscale:code=huffman", "blockwise:code=huffman", "blockwise:code=rans"),
    ],
)
def test_trials_count_seek_tables(spec):
    values = RNG.standard_normal(2 * MIN_ELEMENTS).astype(np.float32)
    check(values, gcodec.parse(spec))


PROBED = itertools.product(["matrix", "vector", "sparse", "few levels", "zeros"], BUDGETS)


@pytest.mark.parametrize(("kind", "budget"), thinned(PROBED, 5), ids=str)
def test_probes_omit_only_codecs_that_are_not_shortlisted(kind, budget):
    sample, codecs = sample_of(TENSORS[kind]), all_settings(budget)
    trials = [attempt(sample, codec) for codec in codecs]
    complete = [trial for trial in trials if isinstance(trial, Trial)]
    probed = probe(sample, codecs, budget)
    assert probed == [trial for trial in complete if trial in probed]
    assert shortlist([probed], budget) == shortlist([complete], budget)
    assert len(probed) < len(complete) or budget.max_nmse is None or kind == "zeros"


def test_joint_rms_is_that_of_all_values():
    parts = [(3, 2.0), (5, 0.5), (0, 0.0)]
    assert joint_rms(parts) == pytest.approx(np.sqrt((3 * 4 + 5 * 0.25) / 8), rel=1e-15)
    assert joint_rms([(40, 1e308), (10, 1e308)]) == pytest.approx(1e308, rel=1e-15)
    assert joint_rms([(7, 0.1)]) == 0.1 and joint_rms([]) == 0


def test_all_settings_are_tried_where_no_candidate_is_within_the_budget() -> None:
    sample = sample_of(TENSORS["vector"])
    candidates = [gcodec.parse(spec) for spec in ("raw", "minmax")]
    trials = try_all(sample, candidates, Budget(max_bits=6))
    assert {"sign", "topk"} <= {str(trial.codec) for trial in trials if trial.bits <= 6}
    assert [trial.codec for trial in trials if trial.bits > 6] == candidates
    for budget in (Budget(max_bits=14), Budget(max_bits=3)):  # minmax is; no header is
        assert [trial.codec for trial in try_all(sample, candidates, budget)] == candidates


def test_bits_that_are_known_before_a_trial_contain_the_header() -> None:
    bits: list[float] = []
    for codec in all_settings():
        attempt(sample_of(TENSORS["one"]), codec, lambda error, least: bits.append(least))
    header = 8 * (len(gcodec.encode(TENSORS["one"], "raw", name="name")) - 4)
    assert len(bits) > 200 and min(bits) == header
