"""Test lowrank: targets, the choice between factors and ecsq, determinism, limits, odd inputs."""

from __future__ import annotations

import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from sweeps import thinned

import gcodec
from bench.low_rank import shannon_bound
from gcodec.codecs.lowrank import factorize
from gcodec.codecs.lowrank.allocation import (
    OVERHEAD,
    allocate,
    beside_residual,
    nbits,
    rank_at,
)
from gcodec.codecs.lowrank.encoder import Candidate
from gcodec.codecs.lowrank.factorize import Factorizer, quantized
from gcodec.codecs.lowrank.message import MOST_EXPONENT, MOST_SPLIT, exponents_of, scales
from gcodec.codecs.lowrank.subspace import Matrix, Subspace, gram_of
from gcodec.kernels.numeric import low_rank
from gcodec.kernels.numeric.reduce import fold

DUMPS = sorted((Path(__file__).parents[1] / "data").glob("*.safetensors"))
EXAMPLE = Path(__file__).parents[2] / "examples" / "resnet8_digits_step0300.safetensors"


def matrix_of(
    m: int, k: int, decay: float = 0.5, noise: float = 0.01, seed: int = 0
) -> np.ndarray:
    """Return a matrix whose singular values fall by a factor, plus noise."""
    random = np.random.default_rng(seed)
    rank = min(m, k, 12)
    left, right = random.standard_normal((m, rank)), random.standard_normal((rank, k))
    x = left * decay ** np.arange(rank) @ right + noise * random.standard_normal((m, k))
    return x.astype(np.float32)


def error_of(x: np.ndarray, decoded: np.ndarray) -> float:
    wide = x.astype(np.float64)
    return float(((wide - decoded) ** 2).sum() / (wide**2).sum())


def encoded(x: np.ndarray, spec: str, **options) -> gcodec.Frame:
    return gcodec.Frame.from_bytes(gcodec.encode(x, spec, **options))


@pytest.mark.parametrize("trellis", ["no", "yes"])
@pytest.mark.parametrize("nmse", [0.001, 0.02, 0.1, 0.3, 0.9])
@pytest.mark.parametrize("shape", [(60, 80), (200, 17), (5, 400)])
def test_target_is_met_within_two_percent(
    shape: tuple[int, int], nmse: float, trellis: str
) -> None:
    """Short factors, whose error is a step function of the step, may end further below it."""
    x = matrix_of(*shape)
    frame = encoded(x, f"lowrank:nmse={nmse},trellis={trellis}")
    assert frame.codec.rank > 0 or nmse == 0.9
    error = error_of(x, frame.decode())
    assert error <= nmse
    if frame.codec.rank * sum(shape) > 1000:
        assert error >= 0.97 * nmse


def test_factors_take_far_fewer_bits_than_ecsq() -> None:
    x = matrix_of(192, 256)
    for nmse in (0.02, 0.1, 0.3):
        factors, plain = (len(gcodec.encode(x, f"{name}:nmse={nmse}")) for name in NAMES)
        assert factors < 0.35 * plain


NAMES = ("lowrank", "ecsq")


def tensors() -> list[tuple[str, np.ndarray]]:
    """Return tensors of all kinds: real ones, and some that no factors suit."""
    random = np.random.default_rng(5)
    odd = {
        "noise": random.standard_normal((40, 50)),
        "sparse rows": np.where(
            random.random((300, 1)) < 0.05, random.standard_normal((300, 40)), 0
        ),
        "equal values": np.ones((30, 40)),
        "equal singular values": np.eye(32),
        "one row": random.standard_normal((1, 300)),
        "one column": random.standard_normal((300, 1)),
        "one outlier": np.where(np.arange(900).reshape(30, 30) == 77, 1e6, 1e-3),
        "vector": random.standard_normal(100),
        "three dimensions": matrix_of(6 * 8, 50).reshape(6, 8, 50),
    }
    named = [(name, x.astype(np.float32)) for name, x in odd.items()]
    return [*named, *load_file(EXAMPLE).items()]


@pytest.mark.parametrize(
    ("name", "x"), thinned(tensors(), 2), ids=[name for name, _ in thinned(tensors(), 2)]
)
def test_never_above_ecsq_by_more_than_two_bytes(name: str, x: np.ndarray) -> None:
    for place, nmse in enumerate((0.02, 0.1, 0.3)):
        trellis = ("no", "yes")[(place + len(name)) % 2]  # all pairs occur
        target = f"nmse={nmse},trellis={trellis}"
        frame, plain = (gcodec.encode(x, f"{codec}:{target}") for codec in NAMES)
        assert len(frame) <= len(plain) + 2
        assert error_of(x, gcodec.decode(frame)) <= nmse * (1 + 1e-6)


def test_residual_follows_factors_where_it_pays() -> None:
    """A few strong components over a floor of noise that the target does not forgive."""
    x = matrix_of(64, 600, noise=0.3)
    frame = encoded(x, "lowrank:nmse=0.01")
    symbols = frame.codec.unpack(frame.payload, x.shape)
    assert symbols.rank and symbols.residual is not None
    assert 0.0098 * 0.99 <= error_of(x, frame.decode()) <= 0.01
    assert frame.nbytes < len(gcodec.encode(x, "ecsq:nmse=0.01"))


@pytest.mark.parametrize("noise", [0.01, 0.3, 100.0])
def test_sizes_of_candidates_are_those_of_messages(noise: float) -> None:
    """Factors alone, factors with a residual, and ecsq alone."""
    codec, x = gcodec.parse("lowrank:nmse=0.01"), matrix_of(64, 600, noise=noise)
    symbols: Any = codec.quantize(x)
    kind = (symbols.rank > 0, symbols.residual is not None)
    assert kind == {0.01: (True, False), 0.3: (True, True), 100.0: (False, True)}[noise]
    candidate, payload = Candidate.of_symbols(symbols, "no"), codec.pack(symbols)
    assert candidate.nbits == payload.nbits == 8 * len(payload.tobytes())


@pytest.mark.parametrize("bits", [0.1, 0.5, 2.0, 6.0])
def test_bits_are_met_from_below(bits: float) -> None:
    x = matrix_of(120, 160)
    frame = encoded(x, f"lowrank:bits={bits}")
    assert frame.payload.nbits <= bits * x.size
    plain = gcodec.decode(gcodec.encode(x, f"ecsq:bits={bits}"))
    assert error_of(x, frame.decode()) <= error_of(x, plain)


def test_explicit_rank_and_step() -> None:
    x = matrix_of(50, 70)
    for rank in (1, 3, 8):
        frame = encoded(x, f"lowrank:rank={rank},step=0.4")
        assert frame.codec.rank == min(rank, 6)  # all levels of the others are 0
        best = np.linalg.svd(x.astype(np.float64), compute_uv=False)
        rank = frame.codec.rank
        assert error_of(x, frame.decode()) >= (best[rank:] ** 2).sum() / (best**2).sum() * 0.999
    coarse, fine = (encoded(x, f"lowrank:rank=8,step={step}") for step in (1.0, 0.1))
    assert error_of(x, fine.decode()) < error_of(x, coarse.decode())
    assert encoded(x, "lowrank:step=0.4").codec.rank > 3  # those that pay
    assert encoded(x, "lowrank:rank=0,step=0.4").codec.rank == 0
    assert encoded(x[0], "lowrank:rank=2,step=0.4").codec.rank == 0
    assert encoded(x, "lowrank:rank=60000,step=0.4").codec.rank <= 50 * 70 // 120


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("lowrank:step=0.1,nmse=0.5", "nmse=0.5: must be left out where step is given"),
        ("lowrank:bits=1,nmse=0.5", "nmse=0.5: must be left out where bits is given"),
        ("lowrank:nmse=1.5", "nmse='1.5': must be a number above 0 and below 1"),
        ("lowrank:rank=-1", "rank"),
        ("lowrank:step=inf", "step"),
    ],
)
def test_contradictory_parameters_are_refused(spec: str, message: str) -> None:
    with pytest.raises(gcodec.ParameterError, match=message.split("=")[0]):
        gcodec.parse(spec)


def test_rank_without_step_is_refused() -> None:
    codec = gcodec.parse("lowrank:rank=3")  # it decodes messages whose step the caller knows
    for use in (
        lambda: gcodec.Feedback(codec),
        lambda: gcodec.Policy([{"codec": "lowrank:rank=3"}]),
        lambda: gcodec.encode(matrix_of(20, 30), codec),
        lambda: codec.quantize(matrix_of(20, 30)),
    ):
        with pytest.raises(gcodec.ParameterError, match="step='auto': must be a number where"):
            use()


def test_symbols_with_other_centroids_are_refused() -> None:
    x = matrix_of(60, 50)
    codec = gcodec.parse("lowrank:rank=2,step=0.01")
    symbols = codec.quantize(x)
    for part in ("right", "left"):
        levels = getattr(symbols, part)._replace(centroids=np.array([300, 128, 128]))
        wrong = symbols._replace(**{part: levels})  # type: ignore[attr-defined]
        for call in (codec.pack, lambda symbols: codec.dequantize(symbols, x.shape)):
            with pytest.raises(gcodec.ParameterError, match=r"^symbols\.centroids=.*: must be 3"):
                call(wrong)


@pytest.mark.parametrize(
    "changes",
    [
        *({"split": split} for split in (0, -1, MOST_SPLIT + 1)),
        *({"exponents": np.array(e)} for e in ([20, 21], [5, -1], [MOST_EXPONENT + 1, 9])),
        *({"left": None}, {"right": None}),
    ],
    ids=str,
)
def test_symbols_that_are_no_factors_are_refused(changes: dict[str, object]) -> None:
    codec, x = gcodec.parse("lowrank:rank=2,step=0.3"), matrix_of(12, 10)
    wrong = codec.quantize(x)._replace(**changes)  # type: ignore[attr-defined]
    for call in (codec.pack, lambda symbols: codec.dequantize(symbols, x.shape)):
        with pytest.raises(gcodec.ParameterError, match=r"^symbols: they are no factors of a"):
            call(wrong)


def test_largest_exponents_of_symbols_are_valid() -> None:
    codec, x = gcodec.parse("lowrank:rank=2,step=0.3"), matrix_of(12, 10)
    symbols = codec.quantize(x)._replace(exponents=np.array([MOST_EXPONENT] * 2))  # type: ignore[attr-defined]
    payload = codec.pack(symbols)
    assert payload.codec.unpack(payload, x.shape).exponents.tolist() == [MOST_EXPONENT] * 2
    assert not codec.dequantize(symbols, x.shape).any()


def test_factors_of_zeros_are_refused() -> None:
    """A message of zeros has no string, which decoders refuse beside factors."""
    codec, x = gcodec.parse("lowrank:rank=2,step=0.3"), matrix_of(12, 10)
    symbols = codec.quantize(x)
    for name, size in (("left", 24), ("right", 20), ("residual", 120)):
        zeros = gcodec.parse("ecsq:step=1.0").quantize(np.zeros(size, np.float32))
        wrong = symbols._replace(**{name: zeros})  # type: ignore[attr-defined]
        for call in (codec.pack, lambda symbols: codec.dequantize(symbols, x.shape)):
            with pytest.raises(
                gcodec.ParameterError, match=rf"^symbols\.{name}: must be of values"
            ):
                call(wrong)


def test_infinite_rows_beside_rows_of_zeros_are_refused() -> None:
    """The product of their largest magnitudes is NaN, which must not become a warning."""
    codec, x = gcodec.parse("lowrank:rank=1,step=0.3"), matrix_of(12, 10)
    symbols = codec.quantize(x)
    left = symbols.left._replace(symbols=np.zeros_like(symbols.left.symbols))  # type: ignore[attr-defined]
    payload = codec.pack(symbols._replace(step=3e38, exponents=np.array([0]), left=left))  # type: ignore[attr-defined]
    frame = gcodec.Frame(payload.codec, "float32", x.shape, payload).to_bytes()
    for call in (
        gcodec.decode,
        lambda frame: gcodec.decode_sum([frame]),
        lambda frame: gcodec.decode_range(frame, 0, 5),
    ):
        with pytest.raises(gcodec.Corrupt):
            call(frame)


def test_factors_of_another_matrix_are_refused() -> None:
    codec = gcodec.parse("lowrank:rank=2,step=0.3")
    symbols = codec.quantize(matrix_of(12, 10))
    for shape, n in (((10, 12), 120), ((12, 11), 132), ((120,), 120), ((6, 20), 120)):
        with pytest.raises(gcodec.ParameterError, match=f"^symbols: they do not match {n} "):
            codec.dequantize(symbols, shape)
    lone = symbols._replace(exponents=np.array([20]))  # type: ignore[attr-defined]
    with pytest.raises(gcodec.ParameterError, match=r"^symbols: they do not match 120 elements"):
        codec.dequantize(lone, (12, 10))


def test_payloads_with_other_centroids_are_refused() -> None:
    codec = gcodec.parse("lowrank:nmse=0.02")
    payload = codec.encode(np.linspace(-1, 1, 9, dtype=np.float32))
    assert "centroid1" in payload.scalars, "a message of ecsq alone"
    wrong = payload._replace(scalars=payload.scalars | {"centroid1": 256})
    with pytest.raises(gcodec.ParameterError, match=r"^centroid1=256: must be an integer"):
        codec.decode(wrong, 9)


@pytest.mark.parametrize("shape", [(4, 4), (3, 6), (6, 3), (2, 2), (1, 36)])
def test_factors_with_as_many_values_as_the_matrix_are_refused(shape: tuple[int, int]) -> None:
    payload = gcodec.parse("lowrank:rank=2,step=0.1").encode(matrix_of(6, 6))
    match = f"^factors of rank 2 have no fewer values than {shape[0]} x {shape[1]}"
    with pytest.raises(gcodec.Corrupt, match=match):
        payload.codec.decode(payload, shape)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nonfinite_values_are_refused(value: float) -> None:
    x = matrix_of(20, 30)
    x[3, 4] = value
    for targets in ("rank=2,step=0.1", "nmse=0.02", "bits=1", "step=0.1"):
        with pytest.raises(gcodec.ParameterError, match="the first at flat index 94"):
            gcodec.encode(x, f"lowrank:{targets}")
    residual = np.ones((20, 30), np.float32)
    with pytest.raises(gcodec.ParameterError):
        gcodec.parse("lowrank").quantize_residual(x, residual)
    assert (residual == 1).all()


@pytest.mark.parametrize("scale", [1e-44, 1e-38, 1e-30, 1e-10, 1e10, 1e30, 1e36])
def test_any_magnitude(scale: float) -> None:
    x = (matrix_of(40, 50) * np.float64(scale)).astype(np.float32)
    decoded = gcodec.decode(gcodec.encode(x, "lowrank:nmse=0.1"))
    assert np.isfinite(decoded).all()
    assert error_of(x, decoded) <= 0.1 if scale > 1e-40 else error_of(x, decoded) < 0.4
    if 1e-31 < scale < 1e31:
        assert encoded(x, "lowrank:nmse=0.1").codec.rank > 0


@pytest.mark.parametrize("spec", ["lowrank:bits=0.2", "lowrank:nmse=0.9"])
def test_targets_of_large_values_need_no_infinite_step(spec: str) -> None:
    x = np.random.default_rng(4).uniform(-3e38, 3e38, (256, 256)).astype(np.float32)
    assert error_of(x, encoded(x, spec).decode()) < 1


@pytest.mark.parametrize("shape", [(0,), (0, 5), (3, 0), (), (1,), (1, 1), (2, 2), (4, 1, 1)])
def test_small_and_empty_tensors(shape: tuple[int, ...]) -> None:
    x = np.full(shape, 1.5, np.float32)
    for values in (x, np.zeros(shape, np.float32)):
        for spec in ("lowrank", "lowrank:bits=2", "lowrank:step=0.5", "lowrank:trellis=yes"):
            decoded = gcodec.decode(gcodec.encode(values, spec))
            assert decoded.shape == shape
            if values.size and spec == "lowrank":
                assert np.allclose(decoded, values, rtol=0.4)


@pytest.mark.parametrize("scale", [1.0, 2.0**20, 2.0**40])
def test_target_that_few_components_cannot_meet_at_any_magnitude(scale: float) -> None:
    random = np.random.default_rng(565)
    heavy_tailed = random.normal(size=(32, 32)) * np.exp(8 * random.normal(size=(32, 32)))
    x = (heavy_tailed * scale).astype(np.float32)
    decoded = encoded(x, "lowrank:nmse=0.01").decode()
    assert error_of(x, decoded) <= 0.01


def test_rank_deficient_matrices() -> None:
    """Components that do not exist are neither found nor sent."""
    random = np.random.default_rng(3)
    for rank in (1, 2):
        x = random.standard_normal((50, rank)) @ random.standard_normal((rank, 60))
        frame = encoded(x.astype(np.float32), "lowrank:nmse=0.001")
        assert frame.codec.rank == rank


def test_bytes_depend_on_the_seed_and_not_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    x = matrix_of(1100, 1000, noise=0.1)  # above the size from which threads are used
    frames = []
    for threads in ("1", "2", "3"):
        monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
        frames.append(gcodec.encode(x, "lowrank", seed=4))
        decoded = gcodec.decode(frames[-1])
        total = np.ones_like(x)
        gcodec.decode_add(frames[-1], total, 0.25)
        assert np.array_equal(total, np.float32(1) + np.float32(0.25) * decoded)
    assert frames[0] == frames[1] == frames[2]


def test_search_starts_from_the_preceding_right_factor() -> None:
    """With the prior, no random rows are refined, and the message is as short."""
    codec = gcodec.parse("lowrank:nmse=0.05")
    before, x = (matrix_of(150, 200, seed=1) + matrix_of(150, 200, 1, 0.02, s) for s in (2, 3))
    prior = codec.quantize(before)
    warm, cold = codec.encode(x, prior=prior), codec.encode(x)
    assert warm.nbits <= 1.03 * cold.nbits
    for payload in (warm, cold):
        assert 0.97 * 0.05 <= error_of(x, codec.decode(payload, x.shape)) <= 0.05
    other = codec.quantize(matrix_of(20, 30))  # of another tensor
    assert error_of(x, codec.decode(codec.encode(x, prior=other), x.shape)) <= 0.05


def test_feedback_converges_to_the_sum_of_gradients() -> None:
    feedback = gcodec.Feedback("lowrank:nmse=0.3")
    gradients = [matrix_of(60, 80, 0.7, 0.2, seed) for seed in range(12)]
    total = np.zeros((60, 80))
    for gradient in gradients:
        total += gcodec.decode(feedback.compress("w", gradient))
    wanted = np.sum(gradients, axis=0, dtype=np.float64)
    residual = feedback.residual("w").reshape(60, 80)
    assert np.abs(total + residual - wanted).max() < 1e-3
    assert error_of(wanted.astype(np.float32), total) < 0.15


def test_frames_beyond_the_limit_of_products_are_refused() -> None:
    frame = gcodec.encode(matrix_of(40, 50), "lowrank:rank=3,step=0.5")
    products = 3 * 40 * 50
    assert gcodec.decode(frame, limits=gcodec.Limits(max_products=products)).shape == (40, 50)
    with pytest.raises(gcodec.LimitExceeded, match=f"needs {products} products"):
        gcodec.decode(frame, limits=gcodec.Limits(max_products=products - 1))
    with pytest.raises(gcodec.ParameterError, match="max_products"):
        gcodec.Limits(max_products=0)


@pytest.mark.parametrize("argument", ["out", "like", "acc", "sum", "many"])
def test_work_is_bounded_where_arrays_of_the_caller_bound_the_memory(argument: str) -> None:
    """The header alone states 2^37 products, which take tens of seconds."""
    small = gcodec.Frame.from_bytes(gcodec.encode(matrix_of(40, 50), "lowrank:rank=3,step=0.5"))
    codec = small.codec.replaced(rank=2048)
    payload, shape = small.payload._replace(codec=codec), (1 << 13, 1 << 13)
    data = gcodec.Frame(codec, "float32", shape, payload, "x").to_bytes()
    array = np.empty(shape, np.float32)  # whose pages nothing touches
    calls = {
        "out": lambda: gcodec.decode(data, out=array),
        "like": lambda: gcodec.decode(data, like=array),
        "acc": lambda: gcodec.decode_add(data, array),
        "sum": lambda: gcodec.decode_sum([data], out=array),
        "many": lambda: gcodec.decode_many(data, out={"x": array}),
    }
    with pytest.raises(gcodec.LimitExceeded, match="needs 137438953472 products"):
        calls[argument]()


def test_ranges_and_sums_equal_the_decoded_tensor() -> None:
    for x, spec in (
        (matrix_of(30, 41), "lowrank"),
        (matrix_of(64, 600, noise=0.3), "lowrank:nmse=0.01"),
        (matrix_of(6 * 8, 50).reshape(6, 8, 50), "lowrank"),
        (matrix_of(30, 41).astype(np.float16), "lowrank"),  # sums are those of rounded values
    ):
        frame = gcodec.encode(x, spec)
        whole = gcodec.decode(frame).reshape(-1)
        for start, stop in ((0, 1), (5, 5), (40, 43), (0, x.size), (x.size - 2, x.size)):
            assert np.array_equal(gcodec.decode_range(frame, start, stop), whole[start:stop])
        total = np.zeros(x.shape, np.float32)
        gcodec.decode_add(frame, total)
        assert np.array_equal(total.reshape(-1), whole)


def test_noise_does_not_make_the_search_slow() -> None:
    """Where no factors pay, the search ends after a few random rows."""
    x = np.random.default_rng(7).standard_normal((400, 500)).astype(np.float32)
    for nmse in (0.02, 0.0005):
        factorizer = Factorizer(Matrix(x), "no", 0)
        bits = gcodec.parse(f"ecsq:nmse={nmse}").encode(x).nbits
        assert factorizer.find(nmse * factorizer.matrix.energy, bits) is None
        assert factorizer.subspace.width <= 32


def test_search_ends_early_where_the_preceding_step_had_no_factors() -> None:
    """A strong component is found all the same."""
    noise = np.random.default_rng(7).standard_normal((150, 200)).astype(np.float32)
    for is_doubtful, width in ((True, 16), (False, 32)):
        factorizer = Factorizer(Matrix(noise), "no", 0, is_doubtful=is_doubtful)
        assert factorizer.find(0.1 * factorizer.matrix.energy, np.inf) is None
        assert factorizer.subspace.width == width
    codec, x = gcodec.parse("lowrank:nmse=0.1"), matrix_of(150, 200)
    prior = codec.quantize(noise)
    assert not prior.rank
    assert codec.encode(x, prior=prior).tobytes() == codec.encode(x).tobytes()


def test_search_starts_from_the_steps_of_the_preceding_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One quantization of each factor suffices for a similar matrix; other targets are met too."""
    counts = []

    def counted(rows: np.ndarray, trellis: str) -> object:
        counts.append(rows.shape)
        return quantized(rows, trellis)

    monkeypatch.setattr(factorize, "quantized", counted)
    x = matrix_of(300, 400, 0.8, 0.1)
    codec = gcodec.parse("lowrank:nmse=0.1")
    prior = codec.quantize(x)
    assert len(counts) > 2
    counts.clear()
    payload = codec.encode(1000 * x, prior=prior)
    assert len(counts) == 2
    assert 0.098 <= error_of(1000 * x, payload.codec.decode(payload, x.shape)) <= 0.1
    for nmse in (0.01, 0.5):
        payload = gcodec.parse(f"lowrank:nmse={nmse}").encode(x, prior=prior)
        assert 0.95 * nmse <= error_of(x, payload.codec.decode(payload, x.shape)) <= nmse


def test_inner_products_of_points_are_exact() -> None:
    """Points with the step 1 are multiples of 1/512; large ones take another path."""
    random = np.random.default_rng(1)
    for largest, size in ((1 << 12, 300), (1 << 23, 300), (1 << 24, 3000)):
        integers = random.integers(-largest, largest, (5, size))
        gram = [
            [sum(a * b for a, b in zip(p, q, strict=True)) for q in integers.tolist()]
            for p in integers.tolist()
        ]
        points = (integers / 512).astype(np.float32)
        assert np.array_equal(gram_of(points), np.array(gram, np.float64) / 2**18)


def test_energies_are_the_sums_of_squares_in_a_fixed_order() -> None:
    rows = np.random.default_rng(2).standard_normal((3, 9000))
    wanted = [fold((row * row).copy()) for row in rows]
    assert low_rank.energies(rows).tolist() == wanted


def test_dependent_rows_of_levels_have_no_inverse() -> None:
    """Coarse levels of independent components may be the same."""
    factorizer = Factorizer(Matrix(matrix_of(20, 30)), "no", 0)
    _, points = quantized(np.array([[1.0, 2.0, 0.0], [1.0, 2.0, 0.0]], np.float32), "no")
    assert factorizer._left(None, points) is None


def test_subspace_finds_the_principal_components() -> None:
    x = matrix_of(80, 120, 0.5, 0.0)
    subspace = Subspace(Matrix(x))
    subspace.extend(subspace.at_random(16, seed=1))
    wanted = np.linalg.svd(x.astype(np.float64), compute_uv=False) ** 2
    assert np.allclose(subspace.energies[:8], wanted[:8], rtol=1e-3)
    gram = subspace.components[:8] @ subspace.components[:8].T
    norms = np.sqrt(np.outer(np.diag(gram), np.diag(gram)))
    assert (np.abs(gram / norms - np.eye(8)) < 2**-9).all()


def test_errors_of_factors_are_exact() -> None:
    x = matrix_of(90, 110, 0.7, 0.05)
    factorizer = Factorizer(Matrix(x), "no", 0)
    target = 0.05 * factorizer.matrix.energy
    factors = factorizer.meet(factorizer.find(target, np.inf), target)
    right = scales(factors.step, factors.exponents)[:, np.newaxis] * factors.right_points
    difference = x - factors.left_points.T.astype(np.float64) @ right
    assert factors.error == pytest.approx((difference**2).sum(), rel=1e-5)


def test_exponents_and_scales() -> None:
    norms = np.array([1e9, 1000.0, 300.0, 299.0, 1.0, 0.5])
    exponents = exponents_of(norms)
    assert exponents.tolist() == [120, 40, 33, 33, 0, 0]
    assert np.allclose(scales(0.5, exponents), 0.5 * 2.0 ** (-exponents / 4), rtol=1e-6)
    assert scales(1.0, np.array([2047, 600]))[0] == 0


def test_allocation_is_the_reverse_water_filling() -> None:
    energies, sizes = 1.3 ** -np.arange(60.0), (100, 200)
    whole = energies.sum()
    for target in (0.3, 0.01, 1e-4):
        allocation = allocate(energies, whole, sizes, target * whole)
        assert 0.8 * target <= allocation.error / whole <= target
        coded = energies[: allocation.rank]
        assert (coded > max(sizes) * allocation.distortion).all()
        bound = shannon_bound(energies, sizes, target * whole)
        assert 0 < bound < nbits(allocation, energies, sizes)


def pays(energy: float, distortion: float, sizes: tuple[float, float]) -> bool:
    """Return whether a component saves more error than its bits would save elsewhere."""
    if energy <= max(sizes) * distortion:  # a factor would take no bits
        return False
    nbits = sum(size / 2 * math.log2(energy / (size * distortion)) for size in sizes)
    saved = energy - sum(sizes) * distortion
    return saved > nbits * 2 * math.log(2) * distortion


@pytest.mark.parametrize("sizes", [(100.0, 200.0), (7.0, 5000.0), (31.5, 30.0), (1.0, 1.0)])
def test_components_are_coded_where_they_pay(sizes: tuple[float, float]) -> None:
    energies = 1.07 ** -np.arange(300.0)
    for distortion in (1e-3, 3e-5, 1e-7):
        ranks = [rank for rank, e in enumerate(energies) if not pays(e, distortion, sizes)]
        assert rank_at(distortion, energies, sizes) == min(ranks, default=300)
    allocation = allocate(energies, 1.2 * energies.sum(), sizes, 0.5 * energies.sum())
    assert allocation.rank == rank_at(allocation.distortion, energies, sizes) > 0
    lost = 1.2 * energies.sum() - energies[: allocation.rank].sum()
    error = lost + allocation.rank * sum(sizes) * allocation.distortion
    assert allocation.error == pytest.approx(error, rel=1e-12)
    coarser = allocation.distortion * (1 + 1e-6)  # which the target does not allow
    rank = rank_at(coarser, energies, sizes)
    missing = 1.2 * energies.sum() - energies[:rank].sum()
    assert allocation.error <= 0.5 * energies.sum() < missing + rank * sum(sizes) * coarser
    rates = [
        max(math.log2(energy / (size * allocation.distortion)) / 2, 0) + OVERHEAD
        for energy in energies[: allocation.rank]
        for size in sizes
    ]
    expected = sum(rate * size for rate, size in zip(rates, sizes * allocation.rank, strict=True))
    assert nbits(allocation, energies, sizes) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("sizes", [(100.0, 200.0), (7.0, 5000.0)])
@pytest.mark.parametrize("target", [0.3, 0.01])
def test_components_beside_a_residual_save_its_bits(
    sizes: tuple[float, float], target: float
) -> None:
    """The variance of a value of the residual takes the place of the distortion."""
    energies, n = 1.3 ** -np.arange(60.0), math.prod(sizes)
    whole = energies.sum() + 0.5
    target *= whole
    allocation = beside_residual(energies, whole, sizes, target)
    variances = [(whole - energies[:rank].sum() + target) / n for rank in range(61)]
    wanted = [rank for rank, e in enumerate(energies) if not pays(e, variances[rank + 1], sizes)]
    assert 0 < allocation.rank == wanted[0] < 60
    assert allocation.distortion == pytest.approx(variances[allocation.rank], rel=1e-12)
    assert allocation.error == target


def test_diagonalization_is_orthogonal() -> None:
    random = np.random.default_rng(0)
    rows = random.standard_normal((20, 60)) * 2.0 ** -np.arange(20)[:, np.newaxis]
    gram = rows @ rows.T
    rotation = low_rank.diagonalize(gram)
    assert np.allclose(rotation @ rotation.T, np.eye(20), atol=1e-12)
    rotated = rotation @ gram @ rotation.T
    scale = np.sqrt(np.outer(np.diag(rotated), np.diag(rotated)))
    assert (np.abs(rotated / scale - np.eye(20)) < 2**-9).all()
    assert (np.diff(np.diag(rotated)) <= 0).all()


def test_encoding_frees_the_basis_of_a_known_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCODEC_NUM_THREADS", "1")
    rank, sizes = 32, (1 << 14, 256)
    x, spec = np.random.default_rng(0).standard_normal(sizes, dtype=np.float32), "lowrank:rank=32"
    gcodec.encode(x, f"{spec},step=1")  # compiles the kernels
    tracemalloc.start()
    gcodec.encode(x, f"{spec},step=1")
    assert tracemalloc.get_traced_memory()[1] <= 5.5 * 8 * rank * sizes[0]
    tracemalloc.stop()
