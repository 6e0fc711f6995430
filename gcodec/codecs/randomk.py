"""randomk: k elements at positions drawn from a seed, which the message stores in their place.

Draw w is the position u_w·n / 2^64 rounded down; u_w consists of the words 2w (lower half) and
2w + 1 of Philox stream 1 under the seed. If 2k ≤ n, the first k distinct draws are sent; otherwise
all elements except the first n − k distinct draws. Elements that are not sent decode to 0.

The payload is one bit string, most significant bit first. It contains the values in the order of
their positions, in the format `value` (`gcodec.entropy.values`). Bits per sent element: 32, 16,
8 + 1/8, or 1.

With ``unbiased=yes`` the decoder multiplies all values by f32(n/k), so that E x̂ = x. Use it only
without error feedback: feedback would return the excess of the values, which are n/k times too
large, as the next error, and that error would grow without bound.

NaN and Inf are refused, also in elements that are not sent. So are values that exceed float32
when they are multiplied by n/k.

Example: x = (1, −2, 3, −4), k=2 with seed 7 sends elements 0 and 3:
``3f 80 00 00 c0 80 00 00``.

Sources: Konečný et al., "Federated Learning: Strategies for Improving Communication Efficiency",
2016 (random masks by their seed); Stich et al., "Sparsified SGD with Memory", NeurIPS 2018.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from gcodec.arrays.nonfinite import check_finite, check_top
from gcodec.arrays.source import Tensor
from gcodec.codec import register
from gcodec.codec.sparse import SparseCodec
from gcodec.entropy import positions as position_coding
from gcodec.entropy import values as value_coding
from gcodec.entropy.values import SparseValues
from gcodec.errors import Corrupt, ParameterError, Unsupported
from gcodec.fields.values import values as values_in
from gcodec.fields.walker import FieldSpan, FieldWalker
from gcodec.kernels.bits.pack import check_length, check_padding
from gcodec.kernels.numeric import convert, scatter, undo_log
from gcodec.kernels.numeric.arithmetic import ResidualUpdate, corrected
from gcodec.kernels.numeric.draw import draw, draw_parts
from gcodec.kernels.numeric.reduce import all_finite
from gcodec.payload import Payload
from gcodec.runtime.device import device_of, host
from gcodec.wire.kinds import Choice, Integer
from gcodec.wire.params import Field, param

_SEED = Field("seed", Integer(0, 2**64 - 1), "seed of the drawn positions")


class RandomKSymbols(NamedTuple):
    """The sent values of a tensor, and the seed of their positions.

    Attributes
    ----------
    n : int
        Number of elements of the tensor.
    seed : int
        Seed from which the positions are drawn.
    values : SparseValues
        Sent values, in the order of their positions.
    """

    n: int
    seed: int
    values: SparseValues


@register(id=10, name="randomk")
class RandomK(SparseCodec):
    """Random k elements, drawn from a seed.

    Parameters
    ----------
    value : {"float32", "float16", "bfloat16", "int8", "sign"}
        Format of a sent value: a float; a byte, with a step for each 256 values; or a sign, with
        the mean magnitude of all sent values.
    unbiased : {"no", "yes"}
        Whether decoded values are multiplied by n/k.
    k : int or "ratio"
        Number of sent elements. A spec must ask for at least 1; a message may state 0.
    ratio : float
        Share of the elements that is sent, above 0 and up to 1; at least one element is sent.
    """

    symbols_type = RandomKSymbols
    refuses_nonfinite = True
    has_cuda_kernels = True
    reads_segments = True
    symbols_on_host = True

    value: str = param(Choice(*value_coding.VALUES), "float32", "format of a sent value")
    unbiased_: str = param(
        Choice("no", "yes"), "no", "whether decoded values are multiplied by n/k", name="unbiased"
    )
    k: int | str = param(position_coding.COUNT, "ratio", "sent elements; ratio: that share of all")
    ratio: float = param(
        position_coding.SHARE, position_coding.RATIO, "share of elements that is sent"
    )

    def check(self) -> None:
        """Raise `ParameterError` if both k and ratio are given."""
        if self.ratio != position_coding.RATIO and self.k != "ratio":
            raise ParameterError.of("ratio", self.ratio, "left out where k is given")

    def scalar_fields(self) -> tuple[Field, ...]:
        """Return the seed."""
        return (_SEED,)

    @property
    def takes_up_to(self) -> float:  # type: ignore[override]
        """Infinity, or 0 if n/k times a value may exceed float32."""
        return math.inf if self.unbiased_ == "no" else 0.0

    @property
    def unbiased(self) -> bool:
        """Whether the decoder multiplies values by n/k, and the encoder does not round them."""
        return self.unbiased_ == "yes" and self.value == "float32" and self.k != 0

    def variance(self, n: int) -> float | None:
        """Return n/k − 1 if unbiased, 1 − k/n if values are not multiplied, None if rounded."""
        if self.value != "float32":
            return None
        k, n = self._sent(n), max(n, 1)
        return n / k - 1 if self.unbiased and k else 1 - k / n

    def max_payload_nbits(self, n: int) -> int:
        """Return the bits of the values that are sent for n elements."""
        return value_coding.nbits(self._sent(n), self.value)

    def _sent(self, n: int) -> int:
        return position_coding.sent(n, self.k, self.ratio)

    # --- quantize

    def _quantize(
        self, values: np.ndarray, seed: int, prior: RandomKSymbols | None
    ) -> RandomKSymbols:
        check_finite(values)
        n = values.size
        if device_of(values) is not None:
            return self._rounded(host(scatter.take(values, self._drawn(n, seed, values))), n, seed)
        parts = draw_parts(n, self._sent(n), seed)
        sent, end = np.empty(self._sent(n), np.float32), 0
        for positions in parts:
            sent[end : end + positions.size] = scatter.take(values, positions)
            end += positions.size
        return self._rounded(sent, n, seed)

    def _encode(self, values: np.ndarray, seed: int, prior: RandomKSymbols | None) -> Payload:
        return self._pack(self._quantize(values, seed, prior), is_own=True)

    def _rounded(self, values: np.ndarray, n: int, seed: int) -> RandomKSymbols:
        """Quantize the (k,) values that are sent for n elements."""
        quantized = value_coding.quantize(values, self.value)
        if not all_finite(self._values(quantized, n)):
            raise ParameterError("x: n/k times a value exceeds float32")
        return RandomKSymbols(n, seed, quantized)

    def _quantize_residual(
        self, tensor: Tensor, update: ResidualUpdate, seed: int, prior: RandomKSymbols | None
    ) -> RandomKSymbols:
        x, out = tensor.values, update.new_residual
        if not update.is_in_place:
            check_top(self._correct(x, update).top_bits, x)
            return self._subtract_sent(tensor, out, self._drawn(x.size, seed, out), seed)
        positions = self._drawn(x.size, seed, out)  # first, because the sums fill the caches
        top_bits, log = undo_log.replace_by_sum(x, out, update.decay)
        try:
            check_top(top_bits, x)
            return self._subtract_sent(tensor, out, positions, seed)
        except BaseException:
            log.restore(x, out)
            raise

    def _drawn(self, n: int, seed: int, beside: np.ndarray) -> np.ndarray:
        """Return the positions of the elements that are sent, of n, in the memory of an array."""
        return draw(n, self._sent(n), seed, beside)

    def _subtract_sent(
        self, tensor: Tensor, sums: np.ndarray, positions: np.ndarray, seed: int
    ) -> RandomKSymbols:
        """Quantize the sums at positions, and subtract the decoded values.

        Only the sent elements are quantized, so an error leaves the sums unchanged.
        """
        n, minus = sums.size, np.float32(-1)
        values = host(scatter.take(sums, positions))
        symbols = self._rounded(values, n, seed)
        decoded = convert.round_to(self._values(symbols.values, n), tensor.dtype)
        if not all_finite(corrected(values, decoded, minus)):
            raise ParameterError(f"x: its residual exceeds the range of {self} or {tensor.dtype}")
        scatter.add(sums, positions, decoded, minus)
        return symbols

    # --- dequantize

    def _elements(
        self, symbols: RandomKSymbols, n: int, beside: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        self._require(symbols.n == n, n)
        values = self._values(symbols.values, n)
        return draw(n, values.size, symbols.seed, beside), values

    def _values(self, quantized: SparseValues, n: int) -> np.ndarray:
        """Return the decoded values for n elements, infinite where they exceed float32."""
        return self._scaled(value_coding.dequantize(quantized, self.value, self._sent(n)), n)

    def _scaled(self, values: np.ndarray, n: int) -> np.ndarray:
        """Multiply the values that are sent for n elements by n/k if the decoder does so."""
        k = self._sent(n)
        if self.unbiased_ == "no" or k in (0, n):
            return values
        with np.errstate(over="ignore", under="ignore"):
            return values * np.float32(n / k)

    # --- pack

    def _check_symbols(self, symbols: RandomKSymbols) -> None:
        n, _, values = symbols
        self._require(value_coding.fits(values, self.value, self._sent(n)), n)

    def _pack(self, symbols: RandomKSymbols, is_own: bool = False) -> Payload:
        """Return the message of symbols, which it may destroy if nobody else uses them."""
        k = self._sent(symbols.n)
        packed = value_coding.packed(symbols.values, self.value, k, is_own=is_own)
        return Payload(self, {"seed": symbols.seed}, *packed)

    def _unpack(self, payload: Payload, n: int) -> RandomKSymbols:
        _check_size(n)
        nbits = self.max_payload_nbits(n)
        check_length(payload.nbits, nbits)
        check_padding(payload.data, nbits)
        quantized = value_coding.read(payload.data, self._sent(n), self.value)
        if not all_finite(self._values(quantized, n)):
            raise Corrupt("n/k times a value exceeds float32")
        return RandomKSymbols(n, payload.scalars["seed"], quantized)

    def _describe(self, payload: Payload, n: int, walk: FieldWalker) -> Iterator[FieldSpan]:
        _check_size(n)
        k = self._sent(n)
        walk.require(value_coding.nbits(k, self.value))
        positions = draw(n, k, payload.scalars["seed"])

        for piece in values_in(walk, k, self.value, partial(self._scaled, n=n)):
            element = None
            if piece.decoded and piece.number is not None:
                element = int(positions[piece.number])
            yield piece._replace(element=element)
        walk.finish()


def _check_size(n: int) -> None:
    if n > position_coding.MOST:
        raise Unsupported(f"n={n}: positions exist for at most {position_coding.MOST} elements")
