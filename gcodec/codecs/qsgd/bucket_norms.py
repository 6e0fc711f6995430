"""Norms of buckets: computed while quantizing, and checked while reading."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gcodec.arrays.nonfinite import check_corrected, nonfinite_error
from gcodec.errors import ParameterError, Truncated
from gcodec.kernels.bits.coded_mask import CodedMask, zero_norm_buckets
from gcodec.kernels.bits.pack import check_padding
from gcodec.kernels.numeric.arithmetic import ResidualUpdate, ValueStatistics
from gcodec.kernels.numeric.norms import Norm, norms, read_norms
from gcodec.kernels.numeric.reduce import all_finite, max_abs_bits
from gcodec.kernels.numeric.scalar_rules import size_of
from gcodec.kernels.quantize import bucket_levels, levels
from gcodec.kernels.quantize.levels import Scale
from gcodec.runtime import pool
from gcodec.runtime.deferred import when_known
from gcodec.runtime.device import device_of, host

NORM_NBITS = 32


@dataclass(frozen=True)
class BucketQuantizer:
    """Quantizes a tensor range by range, and computes norms in the same pass where that is faster.

    Attributes
    ----------
    values : (n,) float32 array
    scale : Scale
        Norms of the buckets. If `fuses_norms`, those of a range are valid once it is quantized.
    coded : CodedMask
        Which elements have a codeword; valid like `scale`.
    seed : int
        Seed of the stochastic rounding.
    fuses_norms : bool
        Whether the quantizer computes the norms in the same pass.
    update : ResidualUpdate, optional
        Residual that is added to the values; only if `fuses_norms`. The new one is the sum minus
        its decoded value.
    """

    values: np.ndarray
    scale: Scale
    coded: CodedMask
    seed: int
    fuses_norms: bool
    update: ResidualUpdate | None = None

    @classmethod
    def of(
        cls,
        values: np.ndarray,
        bucket: int,
        norm: Norm,
        s: int,
        seed: int,
        statistics: ValueStatistics | None = None,
        update: ResidualUpdate | None = None,
    ) -> BucketQuantizer:
        """Prepare to quantize (n,) float32 values; `statistics` is what is known about them.

        `update` requires values on the host, and `bucket_levels.has_loop`.

        Raises
        ------
        ParameterError
            For NaN, Inf and norms beyond float32, unless `fuses_norms` postpones the check.
        """
        n, buckets = values.size, -(-values.size // bucket)
        if device_of(values) is None and bucket_levels.has_loop(bucket, norm, s):
            scale = Scale(np.empty(buckets, np.float32), bucket, s)
            coded = CodedMask(n, bucket, np.empty(buckets, np.bool_))
            return cls(values, scale, coded, seed, fuses_norms=True, update=update)
        own_norms = _known_norm(bucket, norm, n, statistics)
        if own_norms is None:
            own_norms = norms(values, bucket, norm)
        scale = Scale(own_norms, bucket, s)
        _check_norms(scale.norms, s, values)
        return cls(values, scale, coded_mask_of(scale, n), seed, fuses_norms=False)

    def __call__(
        self,
        start: int,
        stop: int,
        out: np.ndarray,
        leaves_errors: bool = False,
        rounded_to: int = 0,
    ) -> np.ndarray:
        """Write and return the symbols of a range, which must begin at a bucket.

        For `leaves_errors` and `rounded_to`, see `levels.quantize`; not if `fuses_norms`.
        """
        part, scale = self.values[start:stop], self.scale
        if self.fuses_norms:
            assert not leaves_errors
            update = self.update and self.update.part(start, stop)
            bucket_levels.quantize(part, scale, self.seed, start, out, update)
            buckets = slice(start // scale.bucket, -(-stop // scale.bucket))
            if update is None:  # otherwise `write_first` checks the norms of all buckets
                _check_norms(scale.norms[buckets], scale.s, self.values)
            assert self.coded.uncoded is not None
            self.coded.uncoded[buckets] = scale.norms[buckets] == 0
        else:
            levels.quantize(part, scale, self.seed, start, out, leaves_errors, rounded_to)
        return out

    def write_first(
        self, n: int, out: np.ndarray, leaves_errors: bool = False, rounded_to: int = 0
    ) -> None:
        """Write the symbols of the first n elements to `out`, on the threads of the pool.

        If `fuses_norms`, n is rounded up to whole buckets. For the rest, see `__call__`.
        """
        unit = self.scale.bucket if self.fuses_norms else 1
        n = min(-(-n // unit) * unit, self.values.size)

        def task(start: int, stop: int) -> None:
            self(start, stop, out[start:stop], leaves_errors, rounded_to)

        pool.run(task, n, unit, self.values)
        if self.update is not None:
            _check_norms(self.scale.norms, self.scale.s, self.values, self.update)


def _known_norm(
    bucket: int, norm: Norm, n: int, statistics: ValueStatistics | None
) -> np.ndarray | None:
    """Return the norm of n elements in one bucket, or None if the statistics do not tell it."""
    if bucket < n or statistics is None or statistics.moments is None:
        return None
    if norm == "max":
        return np.array([statistics.moments.largest], np.uint32).view(np.float32)
    with np.errstate(over="ignore"):
        return np.full(1, np.sqrt(statistics.moments.squares), np.float32)


def coded_mask_of(scale: Scale, n: int) -> CodedMask:
    """Return the mask of n elements: those in buckets with a nonzero norm have a codeword."""
    return CodedMask.of(n, scale.bucket, zero_norm_buckets(scale.norms))


def _check_norms(
    bucket_norms: np.ndarray, s: int, values: np.ndarray, update: ResidualUpdate | None = None
) -> None:
    """Refuse norms, of values or of a sum, with which decoded values could exceed float32."""

    def check(largest: float) -> None:  # NaN if a value is NaN
        with np.errstate(over="ignore"):
            decoded = np.float32(s) * np.float32(float(largest) / s)
        if np.isfinite(decoded):
            return
        if update is not None:
            check_corrected(values, update.former, update.decay)
        if all_finite(values):
            raise ParameterError("x: its norm must not exceed float32")
        raise nonfinite_error(values)

    if device_of(bucket_norms) is None:
        check(bucket_norms.max(initial=0))
    else:
        when_known(size_of(max_abs_bits(bucket_norms)), check)


def read_scale(data: np.ndarray, nbits: int, count: int, bucket: int, s: int) -> Scale:
    """Read the norms of `count` buckets from the front of a payload of `nbits` bits.

    Raises
    ------
    FormatError
    """
    taken = NORM_NBITS * count
    if nbits < taken:
        raise Truncated(f"the payload has {nbits} bits, but the norms take {taken}")
    check_padding(data, nbits)
    return Scale(read_norms(host(data[: taken // 8])), bucket, s)
