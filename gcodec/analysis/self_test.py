"""Check a codec's promises: reproducible frames, bounded sizes and bounded errors."""

from __future__ import annotations

import numpy as np

import gcodec
from gcodec.codec import Codec
from gcodec.errors import GcodecError
from gcodec.frame import Frame

SIZE = 4099
SEEDS = 12
_BIAS_MARGIN = 8.0  # factor for a ratio of heavy-tailed sums over SIZE elements


def gradient() -> np.ndarray:
    """Draw (SIZE,) float32 values of a Laplace distribution, with a few zeros among them."""
    random = np.random.default_rng(7)
    x: np.ndarray = random.laplace(scale=1e-3, size=SIZE).astype(np.float32)
    x[random.integers(0, SIZE, 40)] = 0
    return x


def failures(codec: Codec, x: np.ndarray) -> list[str]:
    """Encode and decode values, and list the promises that the codec breaks.

    Two calls must return the same frame. It must not exceed the announced size, and survive a
    round trip through bytes. With and without a seek table it must decode to the same finite
    values, also when these are added to an array. Errors must obey `Codec.contraction` and
    `Codec.variance`. The mean over seeds of an unbiased codec must be nearer to the values than
    each decoded tensor.

    Parameters
    ----------
    codec : Codec
        Codec to check.
    x : (n,) float32 array
        Finite values, not all zero.

    Returns
    -------
    list of str
        Empty if the codec keeps all promises.
    """
    try:
        return [*_frame_failures(codec, x), *_law_failures(codec, x)]
    except (GcodecError, ArithmeticError, ValueError, IndexError, TypeError) as error:
        return [f"{type(error).__name__}: {error}"]


def _frame_failures(codec: Codec, x: np.ndarray) -> list[str]:
    messages = []
    data = gcodec.encode(x, codec, seed=1, name="self-test")
    if data != gcodec.encode(x, codec, seed=1, name="self-test"):
        messages.append("two calls return different frames")
    if len(data) > codec.max_encoded_nbytes(x.size, "self-test"):
        messages.append("the frame is longer than max_encoded_nbytes")
    frame = Frame.from_bytes(data)
    if frame.to_bytes() != data:
        messages.append("reading and writing the frame changes its bytes")
    decoded = frame.decode()
    if not np.isfinite(decoded).all():
        messages.append("decoded values are not finite")
    if codec.seek_blocks is not None or frame.seek is not None:
        both = (frame.with_seek(), frame.without_seek())
        if any(other.decode().tobytes() != decoded.tobytes() for other in both):
            messages.append("a seek table changes the values")
    total = np.zeros(x.size, np.float32)
    gcodec.decode_add(data, total)
    if not np.array_equal(total, decoded):
        messages.append("decode_add differs from decode")
    return messages


def _law_failures(codec: Codec, x: np.ndarray) -> list[str]:
    messages = []
    wide = x.astype(np.float64)
    signal = float(wide @ wide)
    mean, errors = np.zeros(x.size), []
    for seed in range(SEEDS):
        decoded = gcodec.decode(gcodec.encode(x, codec, seed=seed)).astype(np.float64)
        mean += decoded / SEEDS
        errors.append(float(((wide - decoded) ** 2).sum()) / signal)
    delta, omega = codec.contraction(x.size), codec.variance(x.size)
    if delta is not None and max(errors) > (1 - delta) * (1 + 1e-5) + 1e-12:
        messages.append(f"the error {max(errors):.4g} exceeds 1 - contraction = {1 - delta:.4g}")
    average = sum(errors) / SEEDS
    # The law bounds the mean over all seeds; these are few.
    if omega is not None and average > omega * (1 + 4 / SEEDS**0.5) + 1e-12:
        messages.append(f"the mean error {average:.4g} exceeds variance = {omega:.4g}")
    if codec.unbiased:
        bias = float(((wide - mean) ** 2).sum()) / signal
        if bias > _BIAS_MARGIN * average / SEEDS + 1e-9:
            messages.append(
                f"biased: the mean over {SEEDS} seeds has the error {bias:.4g}, each seed "
                f"{average:.4g}"
            )
    return messages
