"""randomk: k elements, drawn from a seed that travels with them in place of their positions.

Positions: draw w is u_w·n / 2^64 rounded down, where u_w has the words 2w (lower half) and 2w + 1
of Philox stream 1 under the seed. The first k different draws are sent; or, where 2k > n, all but
the first n − k different draws. All others decode to 0.

Payload, most significant bit first: the values in the order of their positions, as `value` says;
see `values`. Bits per sent element: 32, 16, 8 + 1/8, or 1.

With ``unbiased=yes`` the decoder multiplies all values by f32(n/k), so that E x̂ = x. That is for
use without error feedback: under it, what is sent n/k times too large is what comes back as the
next error, and grows without bound.

NaN and Inf are refused, sent or not, as is what n/k would take beyond float32.

Example: x = (1, −2, 3, −4), k=2 with seed 7 sends elements 0 and 3:
``3f 80 00 00 c0 80 00 00``.

Sources: Konečný et al., "Federated Learning: Strategies for Improving Communication Efficiency",
2016 (random masks by their seed); Stich et al., "Sparsified SGD with Memory", NeurIPS 2018.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from gcodec.arrays.nonfinite import check_corrected, check_finite, check_top
from gcodec.arrays.source import Tensor
from gcodec.codec import Codec, register
from gcodec.entropy import positions as position_coding
from gcodec.entropy import values as value_coding
from gcodec.entropy.values import SparseValues
from gcodec.errors import Corrupt, ParameterError, Unsupported
from gcodec.inspect.values import values as values_in
from gcodec.inspect.walker import FieldSpan, FieldWalker
from gcodec.kernels.bits.pack import check_length, check_padding
from gcodec.kernels.numeric import arithmetic, convert, scatter
from gcodec.kernels.numeric.draw import draw
from gcodec.kernels.numeric.reduce import all_finite
from gcodec.payload import Payload
from gcodec.runtime.device import hosted
from gcodec.wire.kinds import Choice, Integer
from gcodec.wire.params import Field, param

_SEED = Field("seed", Integer(0, 2**64 - 1), "what the positions are drawn from")


class RandomKSymbols(NamedTuple):
    """Values that are sent, and what tells their positions.

    Attributes
    ----------
    n : int
        Elements of the tensor.
    seed : int
    values : SparseValues
        In the order of their positions.
    """

    n: int
    seed: int
    values: SparseValues


@register(id=10, name="randomk")
class RandomK(Codec):
    """k elements, drawn from a seed.

    Parameters
    ----------
    value : {"float32", "float16", "bfloat16", "int8", "sign"}
        What each is sent as: a float; a byte with a step for each 256; a sign, with the mean
        magnitude of all.
    unbiased : {"no", "yes"}
        Whether decoded values are multiplied by n/k.
    k : int or "ratio"
        How many are sent. A spec must ask for at least 1; a message may state 0.
    ratio : float
        Share of the elements that is sent, above 0, up to 1; one is at least.
    """

    refuses_nonfinite = True
    has_cuda_kernels = True
    reads_segments = True
    symbols_on_host = True

    value: str = param(Choice(*value_coding.VALUES), "float32", "what a value is sent as")
    unbiased_: str = param(
        Choice("no", "yes"), "no", "whether decoded values are multiplied by n/k", name="unbiased"
    )
    k: int | str = param(position_coding.COUNT, "ratio", "elements that are sent; ratio: by that")
    ratio: float = param(position_coding.SHARE, position_coding.RATIO, "share that is sent")

    def check(self) -> None:
        """Refuse a ratio beside k."""
        if self.ratio != position_coding.RATIO and self.k != "ratio":
            raise ParameterError.of("ratio", self.ratio, "left out where k is given")

    def scalar_fields(self) -> tuple[Field, ...]:
        """Return the seed."""
        return (_SEED,)

    @property
    def takes_up_to(self) -> float:  # type: ignore[override]
        """Infinite but where n/k times a value may pass float32."""
        return math.inf if self.unbiased_ == "no" else 0.0

    @property
    def unbiased(self) -> bool:
        """True where values are multiplied by n/k, and not rounded before."""
        return self.unbiased_ == "yes" and self.value == "float32" and self.k != 0

    def variance(self, n: int) -> float | None:
        """Return n/k − 1 where unbiased, 1 − k/n where nothing is multiplied; None if rounded."""
        if self.value != "float32":
            return None
        k, n = self._sent(n), max(n, 1)
        return n / k - 1 if self.unbiased and k else 1 - k / n

    def max_payload_nbits(self, n: int) -> int:
        """Return the bits of the values that are sent of n."""
        return value_coding.nbits(self._sent(n), self.value)

    def _sent(self, n: int) -> int:
        return position_coding.sent(n, self.k, self.ratio)

    def _factor(self, n: int) -> np.float32:
        """Return what decoded values are multiplied by."""
        k = self._sent(n)
        return np.float32(n / k if self.unbiased_ == "yes" and k else 1)

    # --- quantise

    def _quantize(self, values: np.ndarray, seed: int, prior: Any) -> RandomKSymbols:
        check_finite(values)
        positions = draw(values.size, self._sent(values.size), seed, values)
        return self._rounded(scatter.take_to_host(values, positions), values.size, seed)

    def _rounded(self, values: np.ndarray, n: int, seed: int) -> RandomKSymbols:
        """Quantise (k,) values that are sent of n."""
        found = value_coding.quantize(values, self.value)
        if not all_finite(self._values(found, n)):
            raise ParameterError("x: n/k times a value must not pass float32")
        return RandomKSymbols(n, seed, found)

    def _quantize_residual(
        self,
        tensor: Tensor,
        residual: np.ndarray,
        decay: np.float32,
        seed: int,
        prior: Any,
        out: np.ndarray,
    ) -> RandomKSymbols:
        # Only what is sent is quantised, and changes once `out` holds u.
        if out is residual:
            check_corrected(tensor.values, residual, decay)
        else:
            check_top(arithmetic.correct(tensor.values, residual, decay, out), tensor.values)
        n = residual.size
        positions = draw(n, self._sent(n), seed, residual)
        x, error = hosted(*(scatter.take(each, positions) for each in (tensor.values, residual)))
        values = arithmetic.corrected(x, error, decay)
        symbols = self._rounded(values, n, seed)
        decoded = convert.round_to(self._values(symbols.values, n), tensor.dtype)
        minus = np.float32(-1)
        if not all_finite(arithmetic.corrected(values, decoded, minus)):
            raise ParameterError(f"x: must not pass the range of {self} or {tensor.dtype}")
        if out is residual:
            arithmetic.correct(tensor.values, residual, decay, out)
        scatter.add(out, positions, decoded, minus)
        return symbols

    # --- dequantise

    def _dequantize(self, symbols: RandomKSymbols, out: np.ndarray) -> None:
        scatter.put(out, *self._elements(symbols, out.size, out))

    def _dequantize_add(
        self, symbols: RandomKSymbols, dtype: str, scale: np.float32, out: np.ndarray
    ) -> None:
        positions, values = self._elements(symbols, out.size, out)
        scatter.add(out, positions, convert.round_to(values, dtype), scale)

    def _decode_sparse(self, payload: Payload, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the (k,) int64 positions, rising, and the (k,) float32 values of a message."""
        return self._elements(self._unpack(payload, n), n)

    def _elements(
        self, symbols: RandomKSymbols, n: int, beside: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        self._require(symbols.n == n, n)
        values = self._values(symbols.values, n)
        return draw(n, values.size, symbols.seed, beside), values

    def _values(self, found: SparseValues, n: int) -> np.ndarray:
        """Return the decoded values that are sent of n, infinite where they pass float32."""
        values = value_coding.dequantize(found, self.value, self._sent(n))
        factor = self._factor(n)
        if factor == 1:
            return values
        with np.errstate(over="ignore"):
            return values * factor

    # --- pack

    def _pack(self, symbols: RandomKSymbols) -> Payload:
        k = self._sent(symbols.n)
        packed = value_coding.packed(symbols.values, self.value, k)
        return Payload(self, {"seed": symbols.seed}, *packed)

    def _unpack(self, payload: Payload, n: int) -> RandomKSymbols:
        if n > position_coding.MOST:
            raise Unsupported(f"positions among more than {position_coding.MOST} elements")
        nbits = self.max_payload_nbits(n)
        check_length(payload.nbits, nbits)
        check_padding(payload.data, nbits)
        found = value_coding.read(payload.data, self._sent(n), self.value)
        if not all_finite(self._values(found, n)):
            raise Corrupt("n/k times a value passes float32")
        return RandomKSymbols(n, payload.scalars["seed"], found)

    def _describe(self, payload: Payload, n: int, walk: FieldWalker) -> Iterator[FieldSpan]:
        if n > position_coding.MOST:
            raise Unsupported(f"positions among more than {position_coding.MOST} elements")
        k, factor = self._sent(n), self._factor(n)
        walk.need(value_coding.nbits(k, self.value))
        places = draw(n, k, payload.scalars["seed"])

        def scaled(values: np.ndarray) -> np.ndarray:
            with np.errstate(over="ignore"):
                return values * factor

        for piece in values_in(walk, k, self.value, scaled):
            element = None
            if piece.told.decoded and piece.number is not None:
                element = int(places[piece.number])
            yield piece._replace(told=piece.told._replace(element=element))
        walk.finish()
