"""lowrank: a matrix as the product of two factors, both coded by ecsq.

Gradients of matrices have few dominant components. A matrix M of shape (m, k) is approximated by
the sum of r products of a column and a row, and the values of all columns and rows are quantized
with about the same step. Large components thus get many bits per value, small ones few, and most
none at all: reverse water-filling over the singular values of M.

With left factor L of shape (r, m), right factor R of shape (r, k) and exponents e, value (i, t)
decodes to the sum over j of L[j, i]·f32(f32(step·2^(-e[j]/4))·R[j, t]), from j = 0 on, with each
product and each sum rounded to float32. L and R are messages of ecsq with the step 1. A residual
may follow: a message of ecsq for all values, which are added to the sums. The rows of M are the
first dimensions of the tensor, as many as the message states.

The rank 0 stands for a message of ecsq alone. The encoder selects it where factors would not be
shorter, as for vectors, so lowrank takes at most two bytes more than ecsq at the same error.

With the rank 0, the payload is a payload of ecsq; `gcodec.codecs.lowrank.message` defines the
payload of other ranks. The encoder refuses NaN and Inf.

The factors omit the same directions at every step, so training suffers without error feedback.

Source: gcodec's own; docs/lowrank.md explains why it works. Low-rank gradients: Vogels et al.,
"PowerSGD", NeurIPS 2019; reverse water-filling: A. Kolmogorov, "On the Shannon theory of
information transmission in the case of continuous signals", IRE Trans. Information Theory 2, 1956.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

import numpy as np

from gcodec.arrays.nonfinite import check_top
from gcodec.codec import Codec, register
from gcodec.codecs.lowrank import describe, message
from gcodec.codecs.lowrank.encoder import Candidate, Encoder
from gcodec.codecs.lowrank.message import LowRankSymbols, Parts, Product, ecsq
from gcodec.entropy.coder import no_blocks
from gcodec.errors import Corrupt, ParameterError
from gcodec.fields.walker import FieldSpan, FieldWalker
from gcodec.kernels.numeric import arithmetic, low_rank
from gcodec.kernels.numeric.convert import whole
from gcodec.kernels.numeric.products import product_range
from gcodec.kernels.numeric.reduce import all_finite, moments
from gcodec.payload import Payload
from gcodec.runtime.deferred import resolved
from gcodec.runtime.device import beside
from gcodec.runtime.memory import empty_beside
from gcodec.runtime.reuse import result_beside
from gcodec.wire import targets
from gcodec.wire.kinds import Integer
from gcodec.wire.params import Field, Scalars, param
from gcodec.wire.seek import Blocks, SeekTable

_NMSE = 0.1
_MOST_RANK = 1 << 16
_SAFE = 2.0**102  # products below this do not carry a finite residual beyond float32


@register(id=14, name="lowrank")
class LowRank(Codec):
    """Low-rank factors of matrices, coded by ecsq.

    Meant for error feedback: what the factors lack is lost without it.

    Parameters
    ----------
    rank : int or "auto"
        Number of components, for a `step` that is given, too; 0 codes the tensor by ecsq alone.
        Components whose levels are all 0 are left out. ``"auto"`` selects the components that pay.
    trellis : {"no", "yes"}
        Whether ecsq uses a trellis: fewer bits, slower to encode.
    step : float or "auto"
        Distance of the levels of both factors, in units of the tensor.
    nmse : float
        Target for the normalized error ‖x − x̂‖²/‖x‖², between 0 and 1. The encoder ends within 2 %
        below the target; with a trellis, or factors of a few hundred values, sometimes further.
    bits : float
        Target for the bits of the payload per value, instead of an error. 0.0 stands for none; a
        spec leaves it out.
    transform : {"auto", "none", "dct"}
        Transform of convolution filters where the tensor is coded by ecsq alone.
    """

    symbols_type = LowRankSymbols
    symbols_dtypes: ClassVar = {"exponents": ("int64",)}
    refuses_nonfinite = True
    has_cuda_kernels = True
    reads_segments = True
    takes_up_to = 0.0  # a point may exceed float32
    uses_shape = True
    uses_prior = True
    needs_feedback = True

    rank: int | str = param(
        Integer(0, _MOST_RANK, unsent=("auto",)), "auto", "number of components; 0: ecsq alone"
    )
    trellis: str = targets.trellis()
    step: float | str = targets.step()
    nmse: float = targets.nmse(_NMSE)
    bits: float = targets.bits()
    transform: str = targets.transform(
        "transform of convolution filters, where ecsq codes the tensor alone"
    )

    def check(self) -> None:
        """Refuse contradictory targets."""
        targets.check_targets(self.step, self.nmse, _NMSE, self.bits)

    def scalar_fields(self) -> tuple[Field, ...]:
        """Return the fields of the centroids of a message of ecsq alone."""
        return targets.CENTROIDS if self.rank in (0, "auto") else ()

    def of_message(self, values: Scalars) -> LowRank:
        """Return the codec of a message: with its step and transform, and without targets."""
        return targets.of_message(self, values, nmse=_NMSE, bits=0.0)

    def max_payload_nbits(self, n: int) -> int:
        """Return the bits of a payload of ecsq, those of a second string, and those of a head."""
        codec = ecsq()
        return codec.max_payload_nbits(n) + codec.max_payload_nbits(1) + message.head_nbits(n)

    @property
    def seek_blocks(self) -> Blocks:
        """Blocks with the rANS states of the residual, or of a message of ecsq alone."""
        return "states"

    def products(self, n: int) -> int:
        """Return the rank times the number of elements."""
        return 0 if self.rank == "auto" else int(self.rank) * n

    # --- quantize

    def _check_encodes(self) -> None:
        if self.rank != "auto" and self.step == "auto":
            raise ParameterError.of("step", self.step, "a number where rank is given")

    def _quantize(
        self, values: np.ndarray, seed: int, prior: LowRankSymbols | None
    ) -> LowRankSymbols:
        return self._best(values, seed, prior, keeps_levels=True).symbols

    def _encode(self, values: np.ndarray, seed: int, prior: LowRankSymbols | None) -> Payload:
        return self._payload(self._best(values, seed, prior, keeps_levels=False))

    def _best(
        self, values: np.ndarray, seed: int, prior: LowRankSymbols | None, *, keeps_levels: bool
    ) -> Candidate:
        """Return the shortest message that meets the target; see `Encoder`."""
        self._check_encodes()
        statistics = resolved(moments(values))
        check_top(statistics.largest, values)
        shape = self._bound_shape(values.size)
        if len(shape) > 1:  # factors are products of the whole matrix
            values = whole(values)
        inner = self.trellis, self.transform
        encoder = Encoder(
            values, statistics, shape, *inner, seed, prior, keeps_levels=keeps_levels
        )
        rank = None if self.rank == "auto" else int(self.rank)
        if isinstance(self.step, float):
            return encoder.at_step(self.step, rank)
        return encoder.at_bits(self.bits) if self.bits else encoder.at_error(self.nmse)

    def _dequantize(self, symbols: LowRankSymbols, out: np.ndarray) -> None:
        if not symbols.rank:
            self._ecsq(out.size)._dequantize(symbols.residual, out)
            return
        self._product(symbols, out.size).put(out)
        if symbols.residual is not None:
            decoded = empty_beside(out.size, np.float32, out)
            self._ecsq(out.size)._dequantize(symbols.residual, decoded)
            arithmetic.add_scaled(decoded, np.float32(1), out)

    def _dequantize_add(
        self, symbols: LowRankSymbols, dtype: str, scale: np.float32, out: np.ndarray
    ) -> None:
        if symbols.rank and symbols.residual is None and dtype == "float32":
            self._product(symbols, out.size).add(scale, out)
        else:
            super()._dequantize_add(symbols, dtype, scale, out)

    def _product(self, symbols: LowRankSymbols, n: int) -> Product:
        """Return the product of factors; raise `ParameterError` if they do not match n values."""
        shape = self._bound_shape(n)
        self._require(symbols.fits(shape), n, shape)
        return Product.of_symbols(symbols, shape, self.trellis)

    def _ecsq(self, n: int, **parameters: str | float) -> Codec:
        """Return the codec of a residual, or of a tensor without factors."""
        return ecsq(trellis=self.trellis, **parameters)._with_shape(self._bound_shape(n))

    # --- pack

    def _check_symbols(self, symbols: LowRankSymbols) -> None:
        exponents, factors = symbols.exponents, (symbols.left, symbols.right)
        needed = factors if symbols.rank else (symbols.residual,)
        is_valid = all(part is not None for part in needed)
        if symbols.rank:
            is_valid = is_valid and 0 < symbols.split <= message.MOST_SPLIT
            falls = np.diff(exponents, prepend=message.MOST_EXPONENT) <= 0
            is_valid = is_valid and bool(falls.all() and exponents[-1] >= 0)
        if not is_valid:
            raise ParameterError("symbols: they are no factors of a tensor")
        codec = ecsq(trellis=self.trellis)
        for name in ("left", "right", "residual"):
            part = getattr(symbols, name)
            if part is not None:
                codec._check_type(f"symbols.{name}", part)
                codec._check_symbols(part)
                if symbols.rank and part.scales is None:  # ecsq writes no string for zeros
                    raise ParameterError(f"symbols.{name}: must be of values that are not all 0")

    def _pack(self, symbols: LowRankSymbols) -> Payload:
        return self._payload(Candidate.of_symbols(symbols, self.trellis))

    def _payload(self, candidate: Candidate) -> Payload:
        plain, parts = candidate.plain, candidate.parts
        if parts is None:
            assert plain is not None
            step, transform = (plain.scalars[name] for name in ("step", "transform"))
            return plain._replace(codec=self._of_message(0, step, transform))
        step = candidate.symbols.step
        seek = None if parts.residual is None else parts.residual.seek
        codec = self._of_message(candidate.symbols.rank, step, "none")
        return Payload(codec, {"step": step, "transform": "none"}, *parts.write(), seek)

    def _of_message(self, rank: int, step: float, transform: str) -> LowRank:
        return self.replaced(nmse=_NMSE, bits=0.0, rank=rank, step=step, transform=transform)

    # --- unpack

    def _unpack(self, payload: Payload, n: int) -> LowRankSymbols:
        if not self.rank:
            plain = self._plain(payload, n)
            return Candidate.of_plain(plain.codec._unpack(plain, n), plain).symbols
        parts = Parts.read(payload, self._bound_shape(n))
        right, left, residual = (
            None if part is None else part.codec._unpack(part, size)
            for part, size in zip(parts.messages, parts.counts(n), strict=True)
        )
        symbols = LowRankSymbols(
            parts.split, float(self.step), parts.exponents, right, left, residual
        )
        if not self._check_range(self._product(symbols, n), residual is None):
            values = empty_beside(n, np.float32, payload.data)
            self._dequantize(symbols, values)
            _check_sums(values)
        return symbols

    def _plain(self, payload: Payload, n: int) -> Payload:
        """Return the message of ecsq that a message without factors is."""
        return payload._replace(codec=self._ecsq(n, step=self.step, transform=self.transform))

    def _check_range(self, product: Product, is_all: bool) -> bool:
        """Refuse products that exceed float32; return whether sums with a residual are finite."""
        bound = len(product.left) * float(self.step) * message.MOST_POINT**2
        if bound < _SAFE:  # nearly always
            return True
        if not product.is_finite:
            raise Corrupt("a value exceeds float32")
        return is_all or low_rank.most(*product) < _SAFE

    def _read_adder(
        self, payload: Payload, n: int, dtype: str
    ) -> Callable[[np.float32, np.ndarray], None]:
        if self.rank and dtype == "float32":
            parts = Parts.read(payload, self._bound_shape(n))
            if parts.residual is None:  # the symbols need not be stored
                product = parts.product(float(self.step))
                self._check_range(product, is_all=True)
                return product.add
        return super()._read_adder(payload, n, dtype)

    def _decode(self, payload: Payload, n: int, out: np.ndarray | None = None) -> np.ndarray:
        if not self.rank:
            plain = self._plain(payload, n)
            return plain.codec._decode(plain, n, out)
        parts = Parts.read(payload, self._bound_shape(n))
        product = parts.product(float(self.step))
        is_safe = self._check_range(product, parts.residual is None)
        values = result_beside(n, np.float32, payload.data) if out is None else out
        product.put(values)
        if parts.residual is not None:
            decoded = parts.residual.codec._decode(parts.residual, n)
            arithmetic.add_scaled(beside(decoded, values), np.float32(1), values)
            if not is_safe:
                _check_sums(values)
        return values

    def _decode_range(self, payload: Payload, n: int, start: int, stop: int) -> np.ndarray:
        if not self.rank:
            plain = self._plain(payload, n)
            return plain.codec._decode_range(plain, n, start, stop)
        parts = Parts.read(payload, self._bound_shape(n))
        product = parts.product(float(self.step))
        is_safe = self._check_range(product, parts.residual is None)
        values = product_range(*product, start, stop)
        if parts.residual is not None:
            decoded = parts.residual.codec._decode_range(parts.residual, n, start, stop)
            arithmetic.add_scaled(decoded, np.float32(1), values)
            if not is_safe:
                _check_sums(values)
        return values

    def _describe(self, payload: Payload, n: int, walk: FieldWalker) -> Iterator[FieldSpan]:
        if not self.rank:
            plain = self._plain(payload, n)
            yield from plain.codec._describe(plain, n, walk)
        else:
            yield from describe.fields(payload, self._bound_shape(n), walk)

    def _bare_nbits(self, n: int, data: np.ndarray, scalars: Scalars) -> int:
        return 8 * data.size

    def _index(self, payload: Payload, n: int, log2_block: int) -> SeekTable:
        shape = self._bound_shape(n)
        whole = Parts.read(payload, shape).residual if self.rank else self._plain(payload, n)
        return no_blocks(log2_block) if whole is None else whole.codec._index(whole, n, log2_block)


def _check_sums(values: np.ndarray) -> None:
    """Refuse sums of products and a residual that exceed float32."""
    if not all_finite(values):
        raise Corrupt("a value exceeds float32")
