"""Static codebooks: their invariants, their digests, and agreement with their script."""

from __future__ import annotations

import hashlib
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

from gcodec.codecs.minifloat import codebooks
from gcodec.errors import Corrupt
from gcodec.kernels.quantize.float_format import FORMATS, STYLES, MiniFloat
from tools import gennorm_tables

ROOT = Path(__file__).parents[2]
MINIFLOAT = ROOT / "gcodec" / "codecs" / "minifloat"
ALL_FORMATS = [MiniFloat(name, style) for name in FORMATS for style in STYLES]
# Digests of the counts of the first 12 codebooks of each format and style. A codebook never
# changes once it has a number; new ones follow.
DIGESTS = {
    ("e2m1", "full"): "5d9e548d94ef",
    ("e2m1", "ieee"): "9f064a463f9b",
    ("e2m1", "fn"): "36fa3c72b273",
    ("e1m1", "full"): "2a376c08508f",
    ("e1m1", "ieee"): "57bb2c8b8981",
    ("e1m1", "fn"): "c5274bf05763",
    ("e1m2", "full"): "bb9e39238d5b",
    ("e1m2", "ieee"): "26a49d080b97",
    ("e1m2", "fn"): "59560aaaff03",
    ("e3m0", "full"): "f40a5442e390",
    ("e3m0", "ieee"): "968911fee9ec",
    ("e3m0", "fn"): "968911fee9ec",
    ("e2m2", "full"): "af97137311c8",
    ("e2m2", "ieee"): "1c8233cf1aaf",
    ("e2m2", "fn"): "da20cdb58254",
    ("e3m2", "full"): "5bc41cd6fe6c",
    ("e3m2", "ieee"): "fa4689f22be2",
    ("e3m2", "fn"): "eba91d2090f7",
    ("e4m3", "full"): "a7f14399a14d",
    ("e4m3", "ieee"): "bfc388856912",
    ("e4m3", "fn"): "74b97de0890f",
    ("e5m2", "full"): "8c0bcb0cbda3",
    ("e5m2", "ieee"): "4bd99d9371fd",
    ("e5m2", "fn"): "1fc8ee4e603c",
}


@pytest.mark.parametrize("fmt", ALL_FORMATS, ids="-".join)
def test_counts(fmt):
    for number in range(codebooks.number_of(fmt)):
        counts = codebooks.counts(fmt, number)
        half = 1 << fmt.width - 1
        assert counts.dtype == np.int64 and counts.shape == (2 * half,)
        assert counts.sum() == codebooks.TOTAL
        assert (counts[: fmt.top + 1] >= 1).all()
        assert (counts[1:half] == counts[half + 1 :]).all()
        assert not counts[fmt.top + 1 : half + 1].any()


@pytest.mark.parametrize("fmt", ALL_FORMATS, ids="-".join)
def test_codebook_numbers_never_change(fmt):
    digest = hashlib.sha256()
    for number in range(len(gennorm_tables.CODEBOOKS[fmt.format])):
        digest.update(codebooks.counts(fmt, number).astype("<i8").tobytes())
        if number == 11:
            assert digest.hexdigest()[:12] == DIGESTS[fmt.format, fmt.style]


def test_an_unknown_number_is_corrupt():
    fmt = MiniFloat("e2m1")
    for number in (-1, codebooks.number_of(fmt), 1 << 40):
        with pytest.raises(Corrupt, match=f"codebook {number} of e2m1 full"):
            codebooks.counts(fmt, number)


def test_codebooks_are_read_only():
    with pytest.raises(ValueError, match="read-only"):
        codebooks.counts(MiniFloat("e2m1"), 0)[0] = 7


@pytest.mark.parametrize("number", [0, 3, 6, 11])
@pytest.mark.parametrize("fmt", [("e2m1", "full"), ("e2m1", "ieee"), ("e3m2", "fn")])
def test_counts_are_those_of_the_distribution(number, fmt):
    fmt = MiniFloat(*fmt)
    beta, offset = gennorm_tables.CODEBOOKS[fmt.format][number]
    committed = (MINIFLOAT / "gennorm_tables.txt").read_text().splitlines()
    (line,) = (row for row in committed if row.startswith(f"scales {fmt.format} {fmt.style} "))
    log2_scale = (
        np.interp(-1 / beta, -1 / gennorm_tables.betas(), np.array(line.split()[3:], float))
        + offset
    )
    # A sample of the distribution by inversion: x = α·P⁻¹(1/β, u)^(1/β).
    from scipy.special import gammaincinv

    u = (np.arange(100_000) + 0.5) / 100_000
    x = np.exp(gennorm_tables.log_alpha(beta)) * gammaincinv(1 / beta, u) ** (1 / beta)
    levels = fmt.magnitudes().astype(float) * 2.0**log2_scale
    codes = np.abs(x[:, None] - levels).argmin(axis=1)
    shares = np.bincount(codes, minlength=levels.size) / x.size
    counts = codebooks.counts(fmt, number)
    probabilities = (
        counts[: levels.size] * np.where(np.arange(levels.size) > 0, 2, 1) / codebooks.TOTAL
    )
    assert np.abs(probabilities - shares).max() < 3e-4 + 2 * levels.size / codebooks.TOTAL
    assert np.abs(
        gennorm_tables.counts(fmt, beta, float(log2_scale)) * 2 - counts[: levels.size]
    ).max() <= 2 or (counts[0] == 2 * gennorm_tables.counts(fmt, beta, float(log2_scale))[0])


def test_the_specification_names_the_file():
    page = (ROOT / "docs" / "wire-format.md").read_text("utf-8")
    checksum = google_crc32c.value((MINIFLOAT / "codebooks.txt").read_bytes())
    assert f"with the CRC-32C {checksum:#010x}" in page
