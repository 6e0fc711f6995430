"""`gcodec.choose` and `gcodec encode -c auto:`: what is promised of error and bits."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

import gcodec
from gcodec.cli.main import cli
from gcodec.gradients.dumps import open_dump

EXAMPLE = Path(__file__).parents[1] / "examples" / "resnet8_digits_step0300.safetensors"
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
def test_the_error_is_met(x, error):
    codec = gcodec.choose(x, max_err=error)
    assert error_of(x, gcodec.decode(gcodec.encode(x, codec))) <= error


@pytest.mark.parametrize("bits", [0.1, 1, 2, 4, 12, 33])
@pytest.mark.parametrize("x", [LAPLACE, SPARSE], ids=["laplace", "sparse"])
def test_the_bits_are_met(x, bits):
    codec = gcodec.choose(x, max_bits=bits)
    assert 8 * len(gcodec.encode(x, codec)) <= bits * x.size


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_small_tensors_are_held_to_the_payload(bits):
    x = LAPLACE.reshape(-1)[:16]
    codec = gcodec.choose(x, max_bits=bits)
    assert codec.encode(x).nbits <= bits * x.size
    assert error_of(x, gcodec.decode(gcodec.encode(x, codec))) < 1


@pytest.mark.parametrize("bits", [1.0, 2.05, 3.5])
@pytest.mark.parametrize("n", [1, 5, 17, 63])
def test_words_that_are_not_full_take_bits_too(n, bits):
    x = LAPLACE[0, :n]
    codec = gcodec.choose(x, max_bits=bits)
    assert codec.encode(x).nbits <= bits * n


@pytest.mark.parametrize("bits", [0.3, 0.9, 1.2])
@pytest.mark.parametrize("n", [700, 2112])
def test_one_value_takes_bits_too(n, bits):
    """An entropy of 0 is not that of a code."""
    x = np.full(n, 0.37, np.float32)
    codec = gcodec.choose(x, max_bits=bits)
    assert codec.encode(x).nbits <= bits * n


def test_what_is_chosen():
    assert str(gcodec.choose(LAPLACE, max_err=0.04)) == "ecsq:nmse=0.04"
    assert str(gcodec.choose(LAPLACE, max_err=0.1)) == "ecsq:trellis=yes,nmse=0.1"
    assert str(gcodec.choose(LAPLACE.reshape(-1)[:2000], max_err=0.1)) == "ecsq:nmse=0.1"
    assert str(gcodec.choose(LAPLACE, max_err=0)) == "raw"
    assert str(gcodec.choose(LAPLACE.astype(np.float16), max_err=0)) == "raw:dtype=float16"
    assert str(gcodec.choose(SPARSE, max_err=0)) == "topk:k=14"
    assert gcodec.choose(LAPLACE[0, :16], max_err=0.1).name == "minmax"
    assert gcodec.choose(np.full(5000, 0.3, np.float32), max_err=0.1).name == "qsgd"


def low_rank(rank, noise, shape=(256, 300)):
    rng = np.random.default_rng(rank)
    made = rng.normal(size=(shape[0], rank)) @ rng.normal(size=(rank, shape[1]))
    return (made + noise * rng.normal(size=shape)).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("error", [0.001, 0.01, 0.1])
def test_low_rank_is_found(error, dtype):
    x = low_rank(3, 0.02).astype(dtype)
    codec = gcodec.choose(x, max_err=error)
    assert codec.name == "powersgd"
    frame = gcodec.encode(x, codec)
    assert error_of(x, gcodec.decode(frame)) <= error
    assert len(frame) < len(gcodec.encode(x, f"ecsq:nmse={error}"))


def test_the_seed_that_is_told_is_what_counts(tmp_path):
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(256, 12)) * 0.7 ** np.arange(12), rng.normal(size=(12, 300))
    x = (left @ right).astype(np.float32)
    codecs = [gcodec.choose(x, max_err=0.04, seed=seed) for seed in range(4)]
    assert len(set(map(str, codecs))) > 1
    for seed, codec in enumerate(codecs):
        assert codec.name == "powersgd"
        assert error_of(x, gcodec.decode(gcodec.encode(x, codec, seed=seed))) <= 0.04
    source, target = tmp_path / "x.npy", tmp_path / "x.gcf"
    np.save(source, x)
    arguments = ["encode", str(source), "-c", "auto:err=0.04", "--seed", "7", "-o", str(target)]
    assert CliRunner().invoke(cli, arguments).exit_code == 0
    assert error_of(x, gcodec.decode(target.read_bytes())) <= 0.04


def test_low_rank_is_found_for_bits():
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
        np.float32(1e-30) * low_rank(3, 0.02),  # whose factors would lose bits
        np.float32(1e37) * low_rank(3, 0.02),  # whose projections might pass float32
    ],
    ids=["full rank", "vector", "tiny", "huge"],
)
def test_no_factors_where_they_are_no_good(x):
    assert gcodec.choose(x, max_err=0.05).name == "ecsq"


@pytest.mark.parametrize("largest", [65000, 40000, 10000])
@pytest.mark.parametrize("shape", [(40, 8, 3, 3), (20, 4, 16, 16)])
def test_taps_near_the_end_of_their_dtype(shape, largest):
    """What coefficients leave over adds up, to values that the dtype does not have."""
    rng = np.random.default_rng(0)
    x = rng.laplace(size=shape) + 3 * rng.laplace(size=(*shape[:2], 1, 1))
    x = (x / np.abs(x).max() * largest).astype(np.float16)
    for error in (0.3, 0.05):
        found = gcodec.decode(gcodec.encode(x, gcodec.choose(x, max_err=error)))
        off = (found.astype(float) - x) ** 2
        assert off.sum() <= error * (x.astype(float) ** 2).sum()


@pytest.mark.parametrize(
    "given",
    [{}, {"max_err": 0.1, "max_bits": 1}, *({"max_err": e} for e in (-1, np.nan, np.inf, "0.1"))],
    ids=str,
)
def test_bounds_are_refused(given):
    with pytest.raises(gcodec.ParameterError, match="max_err"):
        gcodec.choose(LAPLACE, **given)


def test_values_are_refused():
    with pytest.raises(gcodec.ParameterError, match="NaN"):
        gcodec.choose(np.array([1, np.nan], np.float32), max_err=0.1)
    with pytest.raises(gcodec.ParameterError, match=r"max_err=0\.0: must be at least"):
        gcodec.choose(np.array([1, 1 / 3]), max_err=0)


def test_the_command(tmp_path):
    target = tmp_path / "out.gcf"
    arguments = ["encode", str(EXAMPLE), "-c", "auto:err=0.05", "-o", str(target)]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    with open_dump(EXAMPLE) as dump:
        frames = gcodec.iter_frames(target.read_bytes())
        for entry, frame in zip(dump.entries, frames, strict=True):
            assert error_of(np.asarray(dump.load(entry)), frame.decode()) <= 0.05
    for spec in ("auto:", "auto:err=x", "auto:rate=1", "auto:err=-1"):
        arguments = ["encode", str(EXAMPLE), "-c", spec, "-o", str(tmp_path / "no.gcf")]
        assert CliRunner().invoke(cli, arguments).exit_code == 2, spec
