"""`gcodec.choose` and `gcodec encode -c auto:`: guarantees on error, bits and work."""

from __future__ import annotations

import functools
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from command_line import run

import gcodec
from bench import hard_tensors
from gcodec.advisor import choose, rank_trial
from gcodec.arrays.source import inspect
from gcodec.codecs.ecsq import deadzone, quantizer, reconstruction
from gcodec.codecs.lowrank import LowRank
from gcodec.entropy.context import coder
from gcodec.kernels.quantize import scalar_quantize
from gcodec.tensorfiles.dumps import open_dump

EXAMPLE = Path(__file__).parents[2] / "examples" / "resnet8_digits_step0300.safetensors"
LAPLACE = np.float32(1e-3) * np.random.default_rng(0).laplace(size=(64, 128)).astype(np.float32)
SPARSE = np.where(np.arange(1 << 16) % 5000, 0, 0.3).astype(np.float32)
SPARSE[::10000] *= 3


def error_of(x, decoded):
    wide = x.astype(np.float64)
    return ((wide - decoded.astype(np.float64)) ** 2).sum() / ((wide**2).sum() or 1)


@pytest.mark.parametrize("error", [1e-9, 1e-4, 0.01, 0.3, 0.9, 1])
@pytest.mark.parametrize(
    "x",
    [
        *(LAPLACE.reshape(-1)[:n] for n in (0, 1, 16, 300)),
        *(LAPLACE, SPARSE, np.zeros((3, 5), np.float32), np.full(99, 1e-44, np.float32)),
        *(np.full(5000, 0.3, np.float32), np.full(5000, 3e38, np.float32)),
        *(LAPLACE.astype(dtype) for dtype in (np.float16, ml_dtypes.bfloat16, np.float64)),
    ],
    ids=lambda x: f"{x.dtype}-{x.size}",
)
def test_error_target_is_met(x, error):
    codec = gcodec.choose(x, max_nmse=error)
    assert error_of(x, gcodec.decode(gcodec.encode(x, codec))) <= error


@pytest.mark.parametrize("bits", [0.1, 1, 2, 4, 12, 33])
@pytest.mark.parametrize("x", [LAPLACE, SPARSE], ids=["laplace", "sparse"])
def test_bits_target_is_met(x, bits):
    codec = gcodec.choose(x, max_bits=bits)
    assert 8 * len(gcodec.encode(x, codec)) <= bits * x.size


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_bits_of_small_tensors_limit_the_payload(bits):
    x = LAPLACE.reshape(-1)[:16]
    codec = gcodec.choose(x, max_bits=bits)
    assert codec.encode(x).nbits <= bits * x.size
    assert error_of(x, gcodec.decode(gcodec.encode(x, codec))) < 1


@pytest.mark.parametrize("seed", [2, 48, 106])
def test_few_bits_are_not_spent_on_zeros(seed):
    """No search meets the bits, and the step that does may exceed all values twice."""
    x = (np.random.default_rng(seed).normal(size=(55, 39)) ** 7).astype(np.float32)
    payload = gcodec.choose(x, max_bits=0.1).encode(x)
    assert payload.nbits <= 0.1 * x.size
    assert error_of(x, payload.codec.decode(payload, x.shape)) < 0.7


@pytest.mark.parametrize("bits", [1.0, 2.05, 3.5])
@pytest.mark.parametrize("n", [5, 17, 63])
def test_partial_words_count_as_bits(n, bits):
    x = LAPLACE[0, :n]
    codec = gcodec.choose(x, max_bits=bits)
    assert codec.encode(x).nbits <= bits * n


@pytest.mark.parametrize("bits", [0.3, 0.9, 1.2])
@pytest.mark.parametrize("n", [700, 2112])
def test_constant_tensor_meets_bits_target(n, bits):
    """Choose for a constant tensor, whose entropy of 0 no code reaches."""
    x = np.full(n, 0.37, np.float32)
    codec = gcodec.choose(x, max_bits=bits)
    assert codec.encode(x).nbits <= bits * n


TARGETS = [
    *({"max_nmse": error} for error in (0.5, 0.1, 0.02, 0.001)),
    *({"max_bits": bits} for bits in (0.2, 4.0)),
]


class Work:
    """Counter of the passes over values in choices and encodes, weighted by their cost.

    The unit is a pass that quantizes to levels. The costs were measured on matrices of 4 Mi
    values.
    """

    def __init__(self, monkeypatch):
        self.levels = self.products = self.passes = 0
        for name in ("rated_levels", "scaled_levels"):
            self._count(monkeypatch, deadzone, name, lambda x, *_: x.size)
        self._count(monkeypatch, scalar_quantize, "plain_sums", lambda x, *_: x.size / 2)
        self._count(
            monkeypatch, rank_trial, "_product", lambda a, b: a.size * b.shape[1], "products"
        )
        for module, name, cost in (
            (quantizer, "nbits_of", lambda levels: levels.symbols.size),
            (
                coder,
                "write",
                lambda plan, written, *_: 1.5 * len(getattr(written, "array", written)),
            ),
            (reconstruction, "largest", lambda x: x.size / 4),
            (choose, "moments", lambda x: x.size / 2),
            (choose, "_error", lambda codec, levels, *_: levels.symbols.size),
            (np, "count_nonzero", lambda x, *_: np.size(x) / 2),
            (np, "zeros", lambda shape, *_: np.prod(shape)),  # with fresh pages
        ):
            self._count(monkeypatch, module, name, cost, "passes")

    def _count(self, monkeypatch, module, name, cost, kind="levels"):
        function = getattr(module, name)

        def counted(*args, **options):
            setattr(self, kind, getattr(self, kind) + cost(*args))
            return function(*args, **options)

        monkeypatch.setattr(module, name, counted)

    def of(self, call):
        """Return the number of quantized values, and of the multiply-adds in trials."""
        self.levels = self.products = self.passes = 0
        call()
        return self.levels, self.products

    def total(self, call):
        """Return the cost of all passes; 16 multiply-adds cost as much as one level."""
        levels, products = self.of(call)
        return levels + self.passes + products / 16


def work_ratio(work, x, target):
    """Return the ratio of the work of a choice to that of ecsq with the same target."""
    ((key, value),) = target.items()
    spec = f"ecsq:{'nmse' if key == 'max_nmse' else 'bits'}={value}"
    encode = work.total(functools.partial(gcodec.encode, x, spec))
    return work.total(functools.partial(gcodec.choose, x, **target)) / encode


@pytest.mark.parametrize("shape", [(256, 256), (512, 512)], ids=str)
def test_choice_costs_at_most_three_encodes(shape, monkeypatch):
    work = Work(monkeypatch)
    for name, x in hard_tensors.matrices(*shape):
        for target in TARGETS:
            assert work_ratio(work, x, target) <= 3, (name, target)


@pytest.mark.parametrize("bits", [0.1, 0.2, 1.0])
def test_choice_with_two_searches_costs_at_most_three_encodes(bits, monkeypatch):
    rng = np.random.default_rng(0)
    rows, columns = rng.standard_normal((2048, 1)), rng.standard_normal(2048)
    x = rng.standard_normal((2048, 2048), np.float32)
    x *= np.exp(1.5 * rows + columns).astype(np.float32)
    assert work_ratio(Work(monkeypatch), x, {"max_bits": bits}) <= 3


@pytest.mark.parametrize("bits", [0.2, 1.0, 4.0])
def test_choice_with_trial_costs_at_most_three_encodes(bits, monkeypatch):
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal((2048, 48)), rng.standard_normal((48, 2048))
    x = (left.astype(np.float32) @ right.astype(np.float32)) / np.float32(7)
    assert work_ratio(Work(monkeypatch), x, {"max_bits": bits}) <= 3


def test_trial_work_is_an_upper_bound(monkeypatch):
    work = Work(monkeypatch)
    x = np.ones((300, 500), np.float32)
    for rank in (1, 7, 40):
        rows = rank_trial.start_rows(x, rank, 0)
        _, products = work.of(lambda rows=rows: rank_trial.errors_of_ranks(x, rows, 387.3))
        assert products <= rank_trial.trial_work(x.shape, rank) * x.size


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e35])
def test_trial_errors_match_encoder(scale):
    rng = np.random.default_rng(4)
    decay = np.arange(1, 41) ** -0.8
    x = (rng.normal(size=(200, 40)) * decay @ rng.normal(size=(40, 333))).astype(np.float32)
    x = x / np.abs(x).max() * np.float32(scale)
    norm = np.sqrt((x.astype(np.float64) ** 2).sum())
    errors = rank_trial.errors_of_ranks(x, rank_trial.start_rows(x, 50, 7), norm)
    for rank in (1, 5, 20, 40, 50):
        codec = gcodec.parse(f"powersgd:rank={rank}")
        decoded = codec.decode(codec.encode(x, seed=7), x.shape)
        assert errors[rank - 1] == pytest.approx(error_of(x, decoded), abs=2e-6)


@pytest.mark.parametrize("bits", [0.2, 1, 4])
def test_frame_with_seek_table_meets_bits_target(bits):
    rng = np.random.default_rng(0)
    for x in (rng.standard_normal(1 << 19, np.float32), rng.laplace(size=(512, 1024))):
        x = x.astype(np.float32)
        codec = gcodec.choose(x, max_bits=bits)
        frame = gcodec.Frame.from_bytes(gcodec.encode(x, codec))
        assert codec.name == "ecsq" and (bits < 1 or frame.seek is not None)
        assert 0.93 * bits * x.size <= 8 * frame.nbytes <= bits * x.size


@pytest.mark.parametrize("bits", [1.85, 1.9, 1.95])
def test_budget_includes_the_seek_table(bits):
    """The rANS states take nearly 1 % of the payload, more than the search keeps spare."""
    x = np.random.default_rng(0).standard_normal(1 << 19, np.float32)
    budget = choose._Budget.of(inspect(x, "x").read(), bits)
    payload = gcodec.parse(f"ecsq:bits={bits}").encode(x)
    data = gcodec.encode(x, f"ecsq:bits={bits}")
    assert payload.seek is not None and payload.seek.states is not None
    assert budget.excess(payload) == 8 * len(data) - bits * x.size
    assert 8 * len(gcodec.encode(x, gcodec.choose(x, max_bits=bits))) <= bits * x.size


@pytest.mark.parametrize("target", [{"max_bits": 0.05}, {"max_bits": 0}, {"max_nmse": 1}], ids=str)
def test_budget_for_nothing_holds_for_the_largest_float32(target: dict[str, float]) -> None:
    x = np.full(600, np.finfo(np.float32).max, np.float32)
    x[::3] = 1
    payload = gcodec.choose(x, **target).encode(x)
    assert payload.nbits == 0


def test_no_search_if_levels_cannot_use_the_bits(monkeypatch):
    work = Work(monkeypatch)
    x = np.zeros((512, 512), np.float32)
    x[::20] = np.random.default_rng(0).standard_normal((26, 512))
    encode, _ = work.of(lambda: gcodec.encode(x, "ecsq:nmse=1e-10"))
    levels, _ = work.of(lambda: gcodec.choose(x, max_bits=4))
    assert levels <= 1.5 * encode


def test_chosen_codecs():
    assert str(gcodec.choose(LAPLACE, max_nmse=0.04)) == "ecsq:nmse=0.04"
    assert str(gcodec.choose(LAPLACE, max_nmse=0.1)) == "ecsq:trellis=yes,nmse=0.1"
    assert str(gcodec.choose(LAPLACE.reshape(-1)[:2000], max_nmse=0.1)) == "ecsq:nmse=0.1"
    assert str(gcodec.choose(LAPLACE, max_nmse=0)) == "lossless"
    assert str(gcodec.choose(LAPLACE.astype(np.float16), max_nmse=0)) == "lossless"
    assert str(gcodec.choose(SPARSE, max_nmse=0)) == "topk:k=14"
    assert gcodec.choose(LAPLACE[0, :16], max_nmse=0.1).name == "minmax"
    assert gcodec.choose(np.full(5000, 0.3, np.float32), max_nmse=0.1).name == "lossless"
    assert gcodec.choose(np.float32(0.3) * np.sign(LAPLACE), max_nmse=0.1).name == "qsgd"


def low_rank(rank, noise, shape=(256, 300)):
    rng = np.random.default_rng(rank)
    product = rng.normal(size=(shape[0], rank)) @ rng.normal(size=(rank, shape[1]))
    return (product + noise * rng.normal(size=shape)).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("error", [0.001, 0.01, 0.1])
def test_low_rank_is_detected_for_error(error, dtype):
    x = low_rank(3, 0.02).astype(dtype)
    codec = gcodec.choose(x, max_nmse=error)
    assert codec.name == "powersgd"
    frame = gcodec.encode(x, codec)
    assert error_of(x, gcodec.decode(frame)) <= error
    assert len(frame) < len(gcodec.encode(x, f"ecsq:nmse={error}"))


def test_choice_depends_on_the_seed(tmp_path):
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(256, 12)) * 0.7 ** np.arange(12), rng.normal(size=(12, 300))
    x = (left @ right).astype(np.float32)
    codecs = [gcodec.choose(x, max_nmse=0.04, seed=seed) for seed in range(4)]
    assert len(set(map(str, codecs))) > 1
    for seed, codec in enumerate(codecs):
        assert codec.name == "powersgd"
        assert error_of(x, gcodec.decode(gcodec.encode(x, codec, seed=seed))) <= 0.04
    source, target = tmp_path / "x.npy", tmp_path / "x.gcf"
    np.save(source, x)
    run("encode", source, "-c", "auto:nmse=0.04", "--seed", "7", "-o", target)
    assert error_of(x, gcodec.decode(target.read_bytes())) <= 0.04


def test_low_rank_is_detected_for_bits():
    x = low_rank(2, 0.01)
    codec = gcodec.choose(x, max_bits=2)
    assert codec.name == "powersgd"
    frame = gcodec.encode(x, codec)
    assert 8 * len(frame) <= 2 * x.size
    levels = gcodec.encode(x, "ecsq:bits=1.98")
    assert error_of(x, gcodec.decode(frame)) < error_of(x, gcodec.decode(levels))


@pytest.mark.parametrize(
    "x",
    [
        low_rank(256, 0),
        low_rank(3, 0.02).reshape(-1),  # a vector
        np.float32(1e-30) * low_rank(3, 0.02),  # its factors would be subnormal
        np.float32(1e37) * low_rank(3, 0.02),  # its projections might exceed float32
    ],
    ids=["full rank", "vector", "tiny", "huge"],
)
def test_no_factors_for_unsuitable_tensors(x):
    assert gcodec.choose(x, max_nmse=0.05).name == "ecsq"


@pytest.mark.parametrize("largest", [65000, 40000, 10000])
@pytest.mark.parametrize("shape", [(40, 8, 3, 3), (20, 4, 16, 16)])
def test_filter_transform_near_end_of_dtype(shape, largest):
    """Quantization errors of coefficients add up, to values that may exceed the dtype."""
    rng = np.random.default_rng(0)
    x = rng.laplace(size=shape) + 3 * rng.laplace(size=(*shape[:2], 1, 1))
    x = (x / np.abs(x).max() * largest).astype(np.float16)
    for error in (0.3, 0.05):
        decoded = gcodec.decode(gcodec.encode(x, gcodec.choose(x, max_nmse=error)))
        squares = (decoded.astype(float) - x) ** 2
        assert squares.sum() <= error * (x.astype(float) ** 2).sum()


@pytest.mark.parametrize(
    "bounds",
    [
        {},
        {"max_nmse": 0.1, "max_bits": 1},
        *({"max_nmse": e} for e in (-1, np.nan, np.inf, "0.1")),
    ],
    ids=str,
)
def test_invalid_bounds_are_refused(bounds):
    with pytest.raises(gcodec.ParameterError, match="max_nmse"):
        gcodec.choose(LAPLACE, **bounds)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 5, 8, 13, 64, 333, 1024])
def test_no_choice_is_longer_than_raw(n, dtype):
    """Choose for few values, where parameters in a header can outweigh the payload."""
    name = "float32" if dtype is np.float64 else np.dtype(dtype).name
    values = LAPLACE.reshape(-1)[:n]
    for x in (values.astype(dtype), np.zeros(n, dtype), np.sign(values).astype(dtype)):
        raw = len(gcodec.encode(x, f"raw:dtype={name}"))
        for target in ({"max_nmse": e} for e in (1, 0.3, 0.01, 1e-5, 1e-9)):
            assert len(gcodec.encode(x, gcodec.choose(x, **target))) <= raw
        for target in ({"max_bits": b} for b in (0.1, 1, 4, 12, 20, 40)):
            assert len(gcodec.encode(x, gcodec.choose(x, **target))) <= raw


def test_raw_counts_the_rounding_of_float64():
    """Choose for one float64, which the shortest frame, of a float32, would round."""
    x = np.array([1 / 3])
    assert gcodec.choose(x, max_nmse=1e-6).name == "raw"
    for target in (0, 1e-17):
        assert gcodec.choose(x, max_nmse=target).name == "lossless"


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_exact_choice_is_the_shorter_of_raw_and_lossless(dtype):
    random = np.random.default_rng(0)
    octaves = np.exp2(random.integers(-14, 16, 3000)) * random.uniform(1, 2, 3000)
    for x in (LAPLACE.astype(dtype), octaves.astype(dtype), LAPLACE[0, :2].astype(dtype)):
        sizes = {
            spec: len(gcodec.encode(x, spec))
            for spec in (f"raw:dtype={np.dtype(dtype).name}", "lossless")
        }
        chosen = gcodec.choose(x, max_nmse=1e-14)
        assert len(gcodec.encode(x, chosen)) == min(sizes.values())
        np.testing.assert_array_equal(gcodec.decode(gcodec.encode(x, chosen)), x)


@pytest.mark.parametrize("n", [5, 2000])
@pytest.mark.parametrize("scale", [1e-300, 1e-46, 1e-45, 1e-44, 1e-42])
def test_float64_below_the_range_of_float32(n, scale):
    """Values that float32 rounds to 0 or coarsely are lost with every codec but lossless."""
    x = np.random.default_rng(0).standard_normal(n) * scale
    for target in (0, 1e-12, 1e-3, 0.5):
        codec = gcodec.choose(x, max_nmse=target)
        decoded = gcodec.decode(gcodec.encode(x, codec))
        assert np.square((decoded - x) / scale).sum() <= target * np.square(x / scale).sum()
    with pytest.raises(gcodec.ParameterError, match="feedback='no'"):
        gcodec.choose(x, max_nmse=1, feedback="no")


def test_max_err_is_an_alias():
    assert gcodec.choose(LAPLACE, max_err=0.04) == gcodec.choose(LAPLACE, max_nmse=0.04)
    assert choose.Target.parse("auto:err=0.1") == choose.Target.parse("auto:nmse=0.1")
    assert str(choose.Target.parse("auto:err=0.1")) == "auto:nmse=0.1"
    assert str(choose.Target.parse("auto:bits=1.5")) == "auto:bits=1.5"
    with pytest.raises(gcodec.ParameterError, match="exactly one of max_nmse, max_bits"):
        gcodec.choose(LAPLACE, max_err=0.1, max_nmse=0.1)
    with pytest.raises(gcodec.ParameterError, match="no bound: pass exactly one of max_nmse"):
        gcodec.choose(LAPLACE)
    with pytest.raises(gcodec.ParameterError, match="max_err=-1"):
        gcodec.choose(LAPLACE, max_err=-1)


def test_invalid_values_are_refused():
    with pytest.raises(gcodec.ParameterError, match="NaN"):
        gcodec.choose(np.array([1, np.nan], np.float32), max_nmse=0.1)


def test_command_with_auto_codec(tmp_path):
    target = tmp_path / "out.gcf"
    run("encode", EXAMPLE, "-c", "auto:nmse=0.05", "-o", target)
    with open_dump(EXAMPLE) as dump:
        frames = gcodec.iter_frames(target.read_bytes())
        for entry, frame in zip(dump.entries, frames, strict=True):
            assert error_of(np.asarray(dump.load(entry)), frame.decode()) <= 0.05
    for spec in ("auto:", "auto:nmse=x", "auto:rate=1", "auto:nmse=-1", "auto:max_err=1"):
        run("encode", EXAMPLE, "-c", spec, "-o", tmp_path / "no.gcf", code=2)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_factors_are_chosen_for_feedback_only(dtype):
    """Without feedback, training would never receive what the factors lack."""
    random = np.random.default_rng(2)
    left, right = random.standard_normal((128, 40)), random.standard_normal((40, 160))
    x = left * 0.8 ** np.arange(40) @ right + 0.05 * random.standard_normal((128, 160))
    x = x.astype(dtype)
    for target in ({"max_nmse": 0.1}, {"max_bits": 0.8}):
        without = gcodec.choose(x, **target)
        codec = gcodec.choose(x, feedback=True, **target)
        assert (without.name, codec.name) == ("ecsq", "lowrank")
        frame = gcodec.encode(x, codec)
        decoded = gcodec.decode(frame).astype(np.float64)
        error = ((x - decoded) ** 2).sum() / (x.astype(np.float64) ** 2).sum()
        assert error <= target.get("max_nmse", 1) and 8 * len(frame) / x.size <= target.get(
            "max_bits", 32
        )
        plain = gcodec.decode(gcodec.encode(x, without)).astype(np.float64)
        assert len(frame) < 0.5 * len(gcodec.encode(x, without)) or error < 0.5 * (
            ((x - plain) ** 2).sum() / (x.astype(np.float64) ** 2).sum()
        )
    noise = random.standard_normal((100, 100)).astype(dtype)
    assert gcodec.choose(noise, max_nmse=0.1, feedback=True).name == "ecsq"
    assert gcodec.choose(x.reshape(-1), max_nmse=0.1, feedback=True).name == "ecsq"


def test_factors_that_would_not_be_chosen_are_not_encoded(monkeypatch):
    random = np.random.default_rng(0)
    x = random.standard_normal((128, 3)) @ random.standard_normal((3, 96))

    def refuse(*_):
        raise AssertionError("lowrank encodes")

    monkeypatch.setattr(LowRank, "_encode", refuse)
    codec = gcodec.choose(x.astype(np.float32), max_bits=2, feedback=True)
    assert codec.name == "powersgd"
