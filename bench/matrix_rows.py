"""Rows of the benchmark for codecs of matrices, with the matrix products that bound them.

The matrices are square, with as many elements as the square root allows. Their singular values
fall exponentially, over noise, and the gradient of the next step is nearly the same. The twin of
an encode is the products that it cannot do without, in float64 as the encoder needs them; that of
a decode is the product of the factors by BLAS. The last row only writes the matrix, with all
threads, which is what the memory allows a decode.
"""

from __future__ import annotations

import math

import numpy as np

from bench.kernel_rows import Row

_RANK, _NOISE = 64, 0.02
# Specs, and how fast the singular values fall: the ranks are about 17 and 32.
_CASES = (("lowrank:nmse=0.02", 0.15), ("lowrank:nmse=0.1", 0.045))


def matrix_rows(n: int) -> list[Row]:
    """Return benchmark rows for a matrix of about n elements."""
    from gcodec.runtime import pool

    side = math.isqrt(n)
    out = np.empty((side, side), np.float32)

    def fill(start: int, stop: int) -> None:
        out.reshape(-1)[start:stop] = 0

    rows = [row for spec, decay in _CASES for row in _codec_rows(spec, decay, side)]
    title = f"{side} x {side}: fill(out) by all threads"
    return [*rows, Row(title, lambda: pool.run(fill, out.size))]


def _codec_rows(spec: str, decay: float, side: int) -> list[Row]:
    """Return the rows of one codec."""
    import gcodec

    before, x = (_matrix(side, decay, seed) for seed in (1, 2))
    codec = gcodec.parse(spec)
    prior, frame = codec.quantize(before), gcodec.encode(x, codec)
    rank = gcodec.Frame.from_bytes(frame).codec.rank
    out, total = np.empty_like(x), np.zeros_like(x)
    wide, thin = x.astype(np.float64), np.ones((side, rank))
    left, right = np.ones((side, rank), np.float32), np.ones((rank, side), np.float32)
    name = f"{spec}, {side} x {side}, rank {rank}"

    def products(count: int) -> None:
        for number in range(count):
            (wide if number % 2 else wide.T) @ thin

    return [
        Row(
            f"{name}: encode, with prior",
            lambda: codec.encode(x, prior=prior),
            lambda: products(3),
        ),
        Row(f"{name}: encode", lambda: gcodec.encode(x, codec), lambda: products(5)),
        Row(
            f"{name}: decode(out=)",
            lambda: gcodec.decode(frame, out=out),
            lambda: np.matmul(left, right, out=total),
        ),
        Row(f"{name}: decode_add", lambda: gcodec.decode_add(frame, total)),
    ]


def _matrix(side: int, decay: float, seed: int) -> np.ndarray:
    """Return a matrix; those of different seeds have the same components, and other noise."""
    shared, own = np.random.default_rng(0), np.random.default_rng(seed)
    rank = min(_RANK, side)
    left, right = shared.standard_normal((side, rank)), shared.standard_normal((rank, side))
    x = (left * np.exp(-decay * np.arange(rank))) @ right
    x += _NOISE * own.standard_normal((side, side))
    return x.astype(np.float32)
