"""Encode and decode with a codec, and compare with what it promises."""

from __future__ import annotations

import numpy as np

import gcodec
from gcodec.codec import Codec
from gcodec.errors import GcodecError
from gcodec.frame import Frame

SIZE = 4099
SEEDS = 12
_HEAVY_TAILED = 8.0  # of the ratio of two sums over SIZE elements, of which few may be most


def gradient() -> np.ndarray:
    """Make (SIZE,) float32 values of a Laplace distribution, a few zeros among them."""
    random = np.random.default_rng(7)
    x: np.ndarray = random.laplace(scale=1e-3, size=SIZE).astype(np.float32)
    x[random.integers(0, SIZE, 40)] = 0
    return x


def failures(codec: Codec, x: np.ndarray) -> list[str]:
    """Encode and decode values, and tell what a codec did not keep of its promises.

    Frames must be those of the same call before, no longer than foretold, and come back whole from
    bytes; with and without a seek table they must decode to the same finite values, also where
    these are added up. Errors must be as `Codec.contraction` and `Codec.variance` say, and where
    it is unbiased, the mean over seeds must come nearer to the values than each.

    Parameters
    ----------
    codec : Codec
    x : (n,) float32 array
        Finite, and not all zero.

    Returns
    -------
    list of str
        Empty if all is well.
    """
    try:
        return [*_of_frames(codec, x), *_of_laws(codec, x)]
    except (GcodecError, ArithmeticError, ValueError, IndexError, TypeError) as error:
        return [f"{type(error).__name__}: {error}"]


def _of_frames(codec: Codec, x: np.ndarray) -> list[str]:
    found = []
    data = gcodec.encode(x, codec, seed=1, name="self-test")
    if data != gcodec.encode(x, codec, seed=1, name="self-test"):
        found.append("two calls give two frames")
    if len(data) > codec.max_encoded_nbytes(x.size, "self-test"):
        found.append("the frame is longer than max_encoded_nbytes")
    frame = Frame.from_bytes(data)
    if frame.to_bytes() != data:
        found.append("the frame that was read has other bytes")
    decoded = frame.decode()
    if not np.isfinite(decoded).all():
        found.append("decoded values are not finite")
    if codec.seek_blocks is not None or frame.seek is not None:
        both = (frame.with_seek(), frame.without_seek())
        if any(other.decode().tobytes() != decoded.tobytes() for other in both):
            found.append("a seek table changes the values")
    total = np.zeros(x.size, np.float32)
    gcodec.decode_add(data, total)
    if not np.array_equal(total, decoded):
        found.append("decode_add differs from decode")
    return found


def _of_laws(codec: Codec, x: np.ndarray) -> list[str]:
    found = []
    wide = x.astype(np.float64)
    signal = float(wide @ wide)
    mean, errors = np.zeros(x.size), []
    for seed in range(SEEDS):
        decoded = gcodec.decode(gcodec.encode(x, codec, seed=seed)).astype(np.float64)
        mean += decoded / SEEDS
        errors.append(float(((wide - decoded) ** 2).sum()) / signal)
    delta, omega = codec.contraction(x.size), codec.variance(x.size)
    if delta is not None and max(errors) > (1 - delta) * (1 + 1e-5) + 1e-12:
        found.append(f"an error of {max(errors):.4g}, above 1 - contraction = {1 - delta:.4g}")
    average = sum(errors) / SEEDS
    # The law is about the mean over all seeds, of which these are few.
    if omega is not None and average > omega * (1 + 4 / SEEDS**0.5) + 1e-12:
        found.append(f"a mean error of {average:.4g}, above variance = {omega:.4g}")
    if codec.unbiased:
        left = float(((wide - mean) ** 2).sum()) / signal
        if left > _HEAVY_TAILED * average / SEEDS + 1e-9:
            found.append(
                f"biased: the mean over {SEEDS} seeds is {left:.4g} off, each {average:.4g}"
            )
    return found
