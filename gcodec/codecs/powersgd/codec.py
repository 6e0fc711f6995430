"""powersgd: a matrix as the product of two thin matrices.

A tensor of two or more dimensions is read as a matrix M with its first dimension m as rows and all
others, k, as columns. The message contains P with r rows of m values and Q with r rows of k
values, and M̂ = PᵀQ: value (i, t) is the sum over j of P[j, i]·Q[j, t], from j = 0 on, with each
product and each sum rounded to float32. Where factors have no fewer values than M, as for vectors,
the message contains the values of M. Bits per element: 32·r·(m + k)/(m·k).

Payload: P, row after row, then Q, as little-endian float32; or the values, as in raw. NaN and Inf
are refused.

One step of the power method computes the factors: P is Q₀·Mᵀ, orthonormalized, and Q is P·M, so M̂
is the projection of M onto the rows of P. Q₀ is the Q of the preceding step, or random; with
feedback, each step therefore continues from the preceding one. Arithmetic: see
`gcodec.kernels.numeric.low_rank`.

Workers that average factors instead of gradients use `gcodec.training.PowerSGD`.

Source: Vogels et al., "PowerSGD: practical low-rank gradient compression for distributed
optimization", NeurIPS 2019.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np

from gcodec.arrays.nonfinite import check_finite
from gcodec.codec import Codec, register
from gcodec.errors import Corrupt, ParameterError
from gcodec.fields.walker import FieldSpan, FieldValue, FieldWalker, describe_each
from gcodec.kernels.bits.pack import check_length
from gcodec.kernels.numeric import low_rank
from gcodec.kernels.numeric.convert import whole
from gcodec.kernels.numeric.products import product_range, put_product
from gcodec.kernels.numeric.reduce import all_finite
from gcodec.payload import Payload
from gcodec.runtime.deferred import when_known
from gcodec.runtime.device import beside, device_of
from gcodec.runtime.memory import empty_beside
from gcodec.runtime.reuse import result_beside
from gcodec.wire.kinds import Integer
from gcodec.wire.params import param

_MOST_RANK = 1 << 16


class PowerSGDSymbols(NamedTuple):
    """Bit patterns of factors, or of the values.

    Attributes
    ----------
    rank : int
        Number of rows of each factor; 0 if the values themselves are sent.
    bits : (r·m + r·k,) or (n,) uint32 array
        Bits of P, row after row, then of Q; or of the values.
    """

    rank: int
    bits: np.ndarray


@register(id=12, name="powersgd")
class PowerSGD(Codec):
    """A matrix as the product of two thin matrices.

    Parameters
    ----------
    rank : int
        Number of rows of each factor, from 1 to 65536.
    """

    symbols_type = PowerSGDSymbols
    symbols_dtypes: ClassVar = {"bits": ("uint32",)}
    refuses_nonfinite = True
    has_cuda_kernels = True
    symbols_on_host = True
    reads_segments = True
    takes_up_to = 0.0  # the norm of a column may pass float32
    uses_prior = True
    uses_shape = True
    peers: ClassVar = {"powersgd": "powersgd"}

    rank: int = param(Integer(1, _MOST_RANK), 4, "rows of each factor")

    def max_payload_nbits(self, n: int) -> int:
        """Return the bits of the values, which factors never exceed."""
        return 32 * n

    def products(self, n: int) -> int:
        """Return the rank times the number of elements, where factors are sent."""
        return 0 if self._sizes(n) is None else self.rank * n

    def _quantize(
        self, values: np.ndarray, seed: int, prior: PowerSGDSymbols | None
    ) -> PowerSGDSymbols:
        sizes, values = self._sizes(values.size), whole(values)
        if sizes is None:
            check_finite(values)
            bits = empty_beside(values.size, np.uint32, values)
            bits[:] = values.view(np.uint32)  # symbols outlive the caller's array
            return PowerSGDSymbols(0, bits)
        top = check_finite(values)
        q, count = None, self.rank * sum(sizes)
        if prior is not None and (prior.rank, prior.bits.size) == (self.rank, count):
            q = self._factors(_beside(prior, values), sizes)[1]
        matrix = values.reshape(sizes)
        factors = low_rank.step(matrix, self.rank, seed, low_rank.STREAM, q, top)
        symbols = PowerSGDSymbols(self.rank, factors.view(np.uint32))
        when_known(low_rank.passes_float32(*self._factors(symbols, sizes)), _check_range)
        return symbols

    def _encode(self, values: np.ndarray, seed: int, prior: PowerSGDSymbols | None) -> Payload:
        if device_of(values) is not None or self._sizes(values.size) is not None:
            return self._pack(self._quantize(values, seed, prior))
        check_finite(values)
        # The values of a float32 tensor are not copied.
        return self._pack(PowerSGDSymbols(0, whole(values).view(np.uint32)))

    def _dequantize(self, symbols: PowerSGDSymbols, out: np.ndarray) -> None:
        sizes, symbols = self._checked_sizes(symbols, out.size), _beside(symbols, out)
        if sizes is None:
            out.view(np.uint32)[:] = symbols.bits
        else:
            put_product(*self._factors(symbols, sizes), out)

    def _checked_sizes(self, symbols: PowerSGDSymbols, n: int) -> tuple[int, int] | None:
        sizes = self._sizes(n)
        rank, count = (0, n) if sizes is None else (self.rank, self.rank * sum(sizes))
        self._require(symbols.rank == rank and symbols.bits.size == count, n, self._bound_shape(n))
        return sizes

    def _sizes(self, n: int) -> tuple[int, int] | None:
        """Return m and k, or None where the values themselves are sent."""
        return low_rank.matrix_shape(self._bound_shape(n), self.rank)

    def _factors(
        self, symbols: PowerSGDSymbols, sizes: tuple[int, int]
    ) -> tuple[np.ndarray, np.ndarray]:
        m, k = sizes
        values = symbols.bits.view(np.float32)
        p, q = values[: m * self.rank], values[m * self.rank :]
        return p.reshape(self.rank, m), q.reshape(self.rank, k)

    def _pack(self, symbols: PowerSGDSymbols) -> Payload:
        return Payload(self, {}, symbols.bits.view(np.uint8), 32 * symbols.bits.size)

    def _unpack(self, payload: Payload, n: int) -> PowerSGDSymbols:
        sizes = self._sizes(n)
        check_length(payload.nbits, 32 * (n if sizes is None else self.rank * sum(sizes)))
        # The payload may lie at any address in a frame; kernels need alignment.
        bits = np.require(payload.data.view(np.uint32), requirements="A")
        values = bits.view(np.float32)
        _refuse_nonfinite(values)
        symbols = PowerSGDSymbols(0 if sizes is None else self.rank, bits)
        if sizes is not None and low_rank.passes_float32(*self._factors(symbols, sizes)):
            raise Corrupt("a value passes float32")
        return symbols

    def _decode(self, payload: Payload, n: int, out: np.ndarray | None = None) -> np.ndarray:
        if self._sizes(n) is not None or device_of(payload.data, out) is not None:
            return super()._decode(payload, n, out)
        check_length(payload.nbits, 32 * n)
        values = result_beside(n, np.float32, None) if out is None else out
        values.view(np.uint32)[:] = payload.data.view(np.uint32)
        _refuse_nonfinite(values)
        return values

    def _decode_range(self, payload: Payload, n: int, start: int, stop: int) -> np.ndarray:
        sizes, symbols = self._sizes(n), self._unpack(payload, n)
        if sizes is None:
            return symbols.bits[start:stop].view(np.float32).copy()
        return product_range(*self._factors(symbols, sizes), start, stop)

    def _describe(self, payload: Payload, n: int, walk: FieldWalker) -> Iterator[FieldSpan]:
        sizes = self._sizes(n)
        if sizes is None:
            yield from self._described(walk, payload, n, "value", n)
        else:
            yield from self._described(walk, payload, n, "left factor", self.rank * sizes[0])
            yield from self._described(walk, payload, n, "right factor", self.rank * sizes[1])
        walk.finish()

    def _described(
        self, walk: FieldWalker, payload: Payload, n: int, name: str, count: int
    ) -> Iterator[FieldSpan]:
        def describe_number(value: float, element: int) -> FieldValue:
            if name != "value":  # a value of a factor affects many elements
                return FieldValue(value)
            return FieldValue(value, element=element, decoded=(value,))

        describe = describe_each(describe_number, "float32")
        check = partial(self._unpack, payload, n)
        yield from walk.checked("value", name, 32, count, describe, check, little=True)


def _beside(symbols: PowerSGDSymbols, array: np.ndarray) -> PowerSGDSymbols:
    """Return symbols in the memory, of host or device, in which an array lies."""
    return symbols._replace(bits=beside(symbols.bits, array))


def _refuse_nonfinite(values: np.ndarray) -> None:
    """Raise `Corrupt` for NaN and Inf."""
    if not all_finite(values):
        at = int(np.argmin(np.isfinite(values)))
        raise Corrupt("a number is not finite", 4 * at)


def _check_range(passes: bool) -> None:
    if passes:
        raise ParameterError("x: must not exceed float32 when it is decoded")
