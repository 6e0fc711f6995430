"""The encoder's choice between factors, factors with a residual, and ecsq alone.

Factors take the fewest bits where a few components contain nearly all of the energy. Where they
contain much of it, they serve as a prediction, and ecsq codes the residual. Elsewhere ecsq codes
the tensor alone. Its size is estimated from a sample of rows; where the estimate does not decide,
ecsq writes the message, and the shorter one counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gcodec.codec import Codec, Symbols
from gcodec.codecs.lowrank import message
from gcodec.codecs.lowrank.factorize import LEAST_NBITS, Factorizer, Factors, PriorFactors
from gcodec.codecs.lowrank.message import LowRankSymbols, Parts, Product, ecsq, matrix_sizes
from gcodec.codecs.lowrank.subspace import Matrix
from gcodec.kernels.numeric import arithmetic
from gcodec.kernels.numeric.reduce import Moments, sum_squares
from gcodec.payload import Payload
from gcodec.runtime.deferred import resolved
from gcodec.runtime.device import host
from gcodec.runtime.memory import empty_beside
from gcodec.wire.kinds import binary32

_LEAST_SIZE = 4  # rows and columns of a matrix that is worth factors
_SPLITS = 2  # ways to read a tensor as a matrix that are tried
_LEAST_HEAD_NBITS = 240  # of a message with factors, with the tables of both
_LEAST_NMSE = 1e-6  # below which the rounding of products matters
_SAMPLE = 1 << 15  # values by which the size of a message of ecsq is estimated
_SAMPLE_AGAIN = 1 << 14  # where the preceding step had factors, which probably are the best again
_SURELY_SHORT = 0.6  # of the estimate, so that factors are shorter without doubt
_MAYBE_LONG = 0.4  # of the estimate, from which on a residual may pay
_TINY, _LARGE = -60, 60  # octaves of the norm between which no product leaves float32
_LEAST_SCALE = 2.0**-126  # normal float32 numbers keep their precision
_RATE_SLOPE = 0.75  # approximate octaves of the bits for each octave of the error
_RATE_TRIALS = 8
_RATE_TOLERANCE = 0.98  # of a target for bits
_MOST_SHARE = 0.98  # of the energy of a residual that may remain, so that coding it pays
_MOST_STEP = float(np.finfo(np.float32).max)
_FINEST = 2.0**-20  # nmse from which on a search for bits uses ecsq alone


class Candidate(NamedTuple):
    """A message of a tensor, with its symbols.

    Attributes
    ----------
    symbols : LowRankSymbols
    parts : Parts or None
        The message of factors; None if there are none.
    plain : Payload or None
        The message of ecsq, without factors.
    nbits : int
        Size in bits.
    """

    symbols: LowRankSymbols
    parts: Parts | None
    plain: Payload | None
    nbits: int

    @classmethod
    def of_plain(cls, levels: Symbols, payload: Payload) -> Candidate:
        """Return the candidate of ecsq alone."""
        symbols = LowRankSymbols(0, 0.0, np.empty(0, np.int64), None, None, levels)
        return cls(symbols, None, payload, payload.nbits)

    @classmethod
    def of_symbols(cls, symbols: LowRankSymbols, trellis: str) -> Candidate:
        """Write the message of symbols."""
        whole = None
        if symbols.residual is not None:
            whole = ecsq(trellis=trellis)._pack(symbols.residual).resolved()
            symbols = symbols._replace(residual=resolved(symbols.residual))
        if not symbols.rank:
            assert whole is not None
            return cls.of_plain(symbols.residual, whole)
        inner = message.factor_codec(trellis, (symbols.rank, 1))
        right, left = (inner._pack(part).resolved() for part in (symbols.right, symbols.left))
        parts = Parts(symbols.split, symbols.exponents, right, left, whole)
        return cls(symbols, parts, None, parts.nbits)


class Encoder:
    """The search for the shortest message of one tensor.

    Parameters
    ----------
    values : (n,) float32 array
        Finite values.
    statistics : Moments
        Statistics of the values.
    shape : tuple of int
    trellis, transform : str
        Parameters of ecsq.
    seed : int
        Seed of the random rows.
    prior : LowRankSymbols or None
        Symbols of the preceding step.
    keeps_levels : bool
        Whether the symbols of a message without factors contain its levels. Otherwise their memory
        is released while the message is written.
    """

    def __init__(
        self,
        values: np.ndarray,
        statistics: Moments,
        shape: tuple[int, ...],
        trellis: str,
        transform: str,
        seed: int,
        prior: LowRankSymbols | None,
        *,
        keeps_levels: bool,
    ) -> None:
        self._values, self._shape, self._trellis = values, shape, trellis
        self._transform, self._seed, self._keeps_levels = transform, seed, keeps_levels
        self._prior = prior if prior is not None and prior.fits(shape) else None
        self._statistics, self._energy = statistics, statistics.squares
        self._lift, self._lifted = 1.0, values
        self._factorizers: dict[int, Factorizer] = {}

    def at_step(self, step: float, rank: int | None) -> Candidate:
        """Return factors with a step, or ecsq with this step where there are none.

        `rank` is the number of components; None selects those that pay.
        """
        for split in self._splits()[:1] if rank != 0 and step else ():
            factorizer = self._factorizer(split)
            symbols = self._symbols(split, factorizer.at_step(step * self._lift, rank))
            if symbols is not None:
                return Candidate.of_symbols(symbols, self._trellis)
        return self._plain(step=step)

    def at_bits(self, target: float) -> Candidate:
        """Return the message with the least error whose payload has at most `target` bits a value.

        The search varies the error. If factors never fit, ecsq alone searches for a step.
        """
        if not self._splits():
            return self._plain(bits=target)
        n, best = self._values.size, None
        low, high, octave = -math.inf, math.inf, math.log2(0.1)
        for _ in range(_RATE_TRIALS):
            octave = min(max(octave, math.log2(_FINEST)), -(2.0**-6))
            candidate = self.at_error(2.0**octave, is_last=False)
            nbits = candidate.nbits / n
            if nbits <= target:
                high = octave
                if best is None or candidate.nbits > best.nbits:
                    best = candidate
                if nbits >= _RATE_TOLERANCE * target or octave <= math.log2(_FINEST):
                    break
            else:
                low = octave
            octave += (
                math.log2(max(nbits, 2.0**-20) / (target * (1 + _RATE_TOLERANCE) / 2))
                / _RATE_SLOPE
            )
            if not low < octave < high:
                octave = (low + high) / 2
        if best is None or best.plain is not None:
            return self._plain(bits=target)
        return best

    def at_error(self, nmse: float, *, is_last: bool = True) -> Candidate:
        """Return the shortest message whose error is at most `nmse`.

        If it is the last one to be searched, memory for another one is released.
        """
        splits = self._splits() if nmse > _LEAST_NMSE else []
        if not splits:
            return self._plain(nmse=nmse)
        plain = self._plain(nmse=nmse) if self._values.size <= _SAMPLE else None
        expected = self._expected_nbits(nmse) if plain is None else plain.nbits
        if plain is not None and expected <= self._least_nbits(splits):
            return plain
        most_nbits = self._ecsq().max_payload_nbits(self._values.size)
        factored = (each for split in splits for each in self._with_factors(split, nmse, expected))
        fitting = (candidate for candidate in factored if candidate.nbits <= most_nbits)
        best = min(fitting, key=lambda candidate: candidate.nbits, default=None)
        if is_last:
            self._factorizers.clear()
        if plain is None and (best is None or best.nbits > _SURELY_SHORT * expected):
            plain = self._plain(nmse=nmse)
        if best is None or (plain is not None and plain.nbits <= best.nbits):
            assert plain is not None
            return plain
        return best

    def _with_factors(self, split: int, nmse: float, expected: float) -> Iterator[Candidate]:
        """Yield the messages with factors that may be the shortest."""
        factorizer, nbits = self._factorizer(split), math.inf
        target = nmse * factorizer.matrix.energy
        allocation = factorizer.find(target, expected)
        if allocation is not None:
            symbols = self._symbols(split, factorizer.meet(allocation, target))
            if symbols is not None:
                candidate = Candidate.of_symbols(symbols, self._trellis)
                nbits = candidate.nbits
                yield candidate
        if nbits < _MAYBE_LONG * expected:
            return
        factors = factorizer.with_residual(target, expected, nbits)
        symbols = self._symbols(split, factors)
        if factors is None or symbols is None:
            return
        residual = self._residual(factors, symbols)
        lacking = float(sum_squares(residual))
        share = nmse * self._energy / lacking if lacking else math.inf
        if 0 < share < _MOST_SHARE:
            before = self._prior.residual if self._prior and self._prior.rank else None
            codec = self._ecsq(nmse=binary32(share), transform=self._transform)
            levels = codec._quantize(residual, self._seed, before)
            yield Candidate.of_symbols(symbols._replace(residual=levels), self._trellis)

    def _splits(self) -> list[int]:
        """Return the numbers of leading dimensions that may form the rows, the best first.

        A tensor is read as the preceding step read it, if there is a preceding step.
        """
        n = self._values.size
        if not n or not self._energy:
            return []
        if self._prior is not None and self._prior.rank:
            return [self._prior.split]
        splits = []
        for split in range(1, len(self._shape)):
            sizes = matrix_sizes(self._shape, split)
            if min(sizes) >= _LEAST_SIZE:
                splits.append((sum(sizes), split))
        return [split for _, split in sorted(splits)[:_SPLITS]]

    def _least_nbits(self, splits: list[int]) -> float:
        """Return a lower bound of the bits of a message with factors."""
        sizes = min(sum(matrix_sizes(self._shape, split)) for split in splits)
        return _LEAST_HEAD_NBITS + LEAST_NBITS * sizes

    def _factorizer(self, split: int) -> Factorizer:
        """Return the factorizer of the tensor, read as a matrix."""
        if split not in self._factorizers:
            m, k = matrix_sizes(self._shape, split)
            values = self._lifted_values()
            statistics = self._statistics if values is self._values else None
            matrix = Matrix(values.reshape(m, k), statistics)
            factors, prior = None, self._prior
            if prior is not None and prior.rank:
                points = prior.points(self._shape, self._trellis)
                factors = PriorFactors.of(*points, prior.exponents)
            self._factorizers[split] = Factorizer(
                matrix, self._trellis, self._seed, factors, is_doubtful=prior is not None
            )
        return self._factorizers[split]

    def _lifted_values(self) -> np.ndarray:
        """Return the values times a power of two with which no product leaves float32."""
        if self._lifted is self._values:
            octave = math.frexp(math.sqrt(self._energy))[1]
            if not _TINY < octave < _LARGE:
                self._lift = 2.0**-octave
                with np.errstate(under="ignore"):
                    self._lifted = (host(self._values) * np.float64(self._lift)).astype(np.float32)
        return self._lifted

    def _symbols(self, split: int, factors: Factors | None) -> LowRankSymbols | None:
        """Return the symbols of factors, or None if they do not decode to finite values."""
        if factors is None:
            return None
        with np.errstate(over="ignore"):
            step = float(np.float32(factors.step / self._lift))
        symbols = LowRankSymbols(
            split, binary32(step), factors.exponents, factors.right, factors.left, None
        )
        if not (message.scales(step, factors.exponents) >= _LEAST_SCALE).all():
            return None
        points = factors.left_points, factors.right_points.copy()
        return symbols if Product.of(*points, step, factors.exponents).is_finite else None

    def _residual(self, factors: Factors, symbols: LowRankSymbols) -> np.ndarray:
        """Return what the factors lack, as (n,) float32."""
        residual = empty_beside(self._values.size, np.float32, self._values)
        points = factors.left_points, factors.right_points.copy()
        Product.of(*points, symbols.step, symbols.exponents).put(residual)
        return arithmetic.corrected(self._values, residual, np.float32(-1))

    def _ecsq(self, **target: float | str) -> Codec:
        return ecsq(trellis=self._trellis, **target)._with_shape(self._shape)

    def _plain(self, **target: float) -> Candidate:
        """Return the message of ecsq alone."""
        before = self._prior.residual if self._prior and not self._prior.rank else None
        codec = self._ecsq(transform=self._transform, **target)
        if not self._keeps_levels:
            return Candidate.of_plain(
                None, codec._encode(self._values, self._seed, before).resolved()
            )
        levels = codec._quantize(self._values, self._seed, before)
        payload = codec._pack(levels).resolved()
        return Candidate.of_plain(resolved(levels), payload)

    def _expected_nbits(self, nmse: float) -> float:
        """Return the approximate bits of ecsq alone, from a sample of rows."""
        n, width = self._values.size, math.prod(self._shape[1:])
        rows = self._values.reshape(n // width, width)
        has_factors = self._prior is not None and self._prior.rank > 0
        stride = max(n // (_SAMPLE_AGAIN if has_factors else _SAMPLE), 1)
        sample = host(rows[: max(len(rows) // stride, 1) * stride : stride])
        flat = np.ascontiguousarray(sample).reshape(-1)
        step = binary32(min(math.sqrt(12 * nmse * self._energy / n) * (1 + nmse), _MOST_STEP))
        if not step:
            return 0.0
        codec = ecsq(trellis=self._trellis, step=step)._with_shape((len(sample), *self._shape[1:]))
        payload = codec._encode(flat, self._seed, None).resolved()
        return float(payload.nbits) * n / flat.size
