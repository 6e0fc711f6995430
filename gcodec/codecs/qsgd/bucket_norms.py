"""Norms of buckets, as what levels are counted in: found where values are, read on the host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gcodec.arrays.intake import nonfinite_error
from gcodec.errors import ParameterError, Truncated
from gcodec.kernels.bits.coded_mask import CodedMask, silent_buckets
from gcodec.kernels.bits.pack import check_padding
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
    """Quantises a tensor by ranges, and finds norms on the way where that is quicker.

    Attributes
    ----------
    values : (n,) float32 array
    scale : Scale
    coded : CodedMask
        Of both, what belongs to a range is told when that is quantised, if norms are found then.
    seed : int
    finds_norms : bool
    """

    values: np.ndarray
    scale: Scale
    coded: CodedMask
    seed: int
    finds_norms: bool

    @classmethod
    def of(cls, values: np.ndarray, bucket: int, norm: Norm, s: int, seed: int) -> BucketQuantizer:
        """Prepare it for (n,) float32 values; refuse what is not finite, if norms are found now.

        Raises
        ------
        ParameterError
        """
        n, buckets = values.size, -(-values.size // bucket)
        if device_of(values) is None and bucket_levels.has_loop(bucket, norm, s):
            scale = Scale(np.empty(buckets, np.float32), bucket, s)
            coded = CodedMask(n, bucket, np.empty(buckets, np.bool_))
            return cls(values, scale, coded, seed, finds_norms=True)
        scale = Scale(norms(values, bucket, norm), bucket, s)
        _refuse_unfit(scale.norms, s, values)
        return cls(values, scale, live_of(scale, n), seed, finds_norms=False)

    def __call__(self, start: int, stop: int, out: np.ndarray) -> np.ndarray:
        """Write the symbols of a range, which begins where a bucket does, and return them."""
        part, scale = self.values[start:stop], self.scale
        if self.finds_norms:
            bucket_levels.quantize(part, scale, self.seed, start, out)
            here = slice(start // scale.bucket, -(-stop // scale.bucket))
            _refuse_unfit(scale.norms[here], scale.s, self.values)
            assert self.coded.silent is not None
            self.coded.silent[here] = scale.norms[here] == 0
        else:
            levels.quantize(part, scale, self.seed, start, out)
        return out

    def first(self, n: int, out: np.ndarray) -> None:
        """Write the symbols of the first n elements to `out`, on the threads of the pool.

        Also those of the others in the last bucket of these, where norms are found on the way.
        """
        if self.finds_norms:
            n = min(-(-n // self.scale.bucket) * self.scale.bucket, self.values.size)

        def task(start: int, stop: int) -> None:
            self(start, stop, out[start:stop])

        pool.run(task, n, beside=self.values)


def live_of(scale: Scale, n: int) -> CodedMask:
    """Tell which of n elements have a word: those of buckets whose norm is not 0."""
    return CodedMask.of(n, scale.bucket, silent_buckets(scale.norms))


def _refuse_unfit(found: np.ndarray, s: int, values: np.ndarray) -> None:
    """Refuse norms by which levels would not be finite, given all values of the tensor."""

    def check(largest: float) -> None:  # NaN, if there is one
        with np.errstate(over="ignore"):
            decoded = np.float32(s) * np.float32(float(largest) / s)
        if np.isfinite(decoded):
            return
        if all_finite(values):
            raise ParameterError("x: its norm must not pass float32")
        raise nonfinite_error(values)

    there = device_of(found) is not None
    when_known(size_of(max_abs_bits(found)) if there else found.max(initial=0), check)


def read_scale(data: np.ndarray, nbits: int, count: int, bucket: int, s: int) -> Scale:
    """Read the norms of so many buckets, with which a payload of `nbits` bits begins.

    Raises
    ------
    FormatError
    """
    taken = NORM_NBITS * count
    if nbits < taken:
        raise Truncated(f"the payload has {nbits} bits, the norms {taken}")
    check_padding(data, nbits)
    return Scale(read_norms(host(data[: taken // 8])), bucket, s)
