"""microscale: small floats or integers with a shared scale in each block, as in MX and NVFP4.

Elements are taken in blocks of 32, or of 16 for ``nvfp4``, in the order of the flat tensor; the
last block may be shorter. So the blocks lie along the last dimension if its size is a multiple of
a block's, as torchao requires.

In an MX format, the scale of a block is X = 2^(s − 127), and the payload contains the byte s. Let
a be the largest magnitude of the block, m the largest element, and e the exponent of m: 8 for
``mxfp8e4m3``, 15 for ``mxfp8e5m2``, 2 for ``mxfp6e2m3``, 4 for ``mxfp6e3m2``, 2 for ``mxfp4`` and
0 for ``mxint8``. With ``scale=floor``, the exponent of X is floor(log2 a) − e. ``ceil`` takes the
ceiling, ``even`` first rounds a to as many bits as the mantissa of an element has, and ``rceil``
is the ceiling of log2(a/m). Elements are x/X, rounded to nearest with ties to even, and limited to
±m; −0 remains. In NVFP4, the scale of a block is the ``e4m3`` number next to a/(6·t), from 2^-6 to
448, where t is a float32 for the tensor, and elements are ``e2m1``.

With ``code=none``, the payload has the bytes that torchao's tensors have: all scales, then all
elements, two 4-bit elements in a byte, the first in the low half. A 6-bit element takes a byte.
Other codes write the same bytes with fewer bits. x̂ is the product of element and scale, rounded
once.

NaN and Inf have the bytes of torchao, too: a block with NaN is NaN, and in other blocks Inf is the
largest element at the largest scale, whose product is Inf again in most formats.

Sources: OCP Microscaling Formats (MX) Specification 1.0; pytorch/ao 0.18,
``torchao/prototype/mx_formats`` (BSD-3-Clause), for scales, rounding and layout.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from gcodec.arrays.nonfinite import check_top
from gcodec.codec import Codec, register
from gcodec.codecs.microscale import describe
from gcodec.codecs.microscale import payload as payload_coding
from gcodec.codecs.microscale.payload import CODES, plain_nbits
from gcodec.entropy.coder import CodedString
from gcodec.entropy.ranged import CodedBytes
from gcodec.errors import ParameterError
from gcodec.fields.walker import FieldSpan, FieldWalker
from gcodec.kernels.bits.pack import check_length
from gcodec.kernels.numeric.arithmetic import ResidualUpdate, ValueStatistics
from gcodec.kernels.numeric.convert import rounding
from gcodec.kernels.numeric.reduce import INFINITY_BITS, max_abs_bits
from gcodec.kernels.quantize import microscale
from gcodec.kernels.quantize.block_format import (
    FORMATS,
    LEAST_TENSOR_SCALE,
    MOST_TENSOR_SCALE,
    RULES,
    BlockFormat,
)
from gcodec.kernels.quantize.microscale import Quantization
from gcodec.payload import Payload, Selection
from gcodec.runtime.deferred import Deferred, as_float32, prefetch
from gcodec.runtime.device import beside, device_of, host
from gcodec.runtime.lanes import BLOCK
from gcodec.runtime.memory import Drainable, empty_beside
from gcodec.wire.kinds import Choice, Float32
from gcodec.wire.params import Param, param
from gcodec.wire.seek import Blocks

_M = TypeVar("_M", bound="Microscale")


class MicroscaleSymbols(NamedTuple):
    """Scales and elements of a tensor, as in the payload.

    Attributes
    ----------
    data : uint8 array
        The payload with ``code=none``: scales, then elements, in one array to avoid a copy.
    n : int
        Number of elements.
    tensor_scale : float
        Scale of the tensor; 1 except for ``nvfp4``.
    shape : tuple of int, optional
        Shape of the tensor; None for a vector.
    """

    data: np.ndarray
    n: int
    tensor_scale: float = 1.0
    shape: tuple[int, ...] | None = None


@register(id=17, name="microscale")
class Microscale(Codec):
    """Blocks with shared scales: MX formats, NVFP4.

    Parameters
    ----------
    format : {"mxfp8e4m3", "mxfp8e5m2", "mxfp6e2m3", "mxfp6e3m2", "mxfp4", "mxint8", "nvfp4"}
        Format of elements and scales.
    scale : {"floor", "rceil", "ceil", "even"}
        Rule for the scales of an MX format, under torchao's names. ``"floor"`` is that of the
        specification; only ``"rceil"`` and ``"ceil"`` never limit an element.
    code : {"none", "huffman", "rans", "context", "auto"}
        Code of the bytes: as they are; Huffman words; rANS; or rANS with a context, the scales of
        row and column. ``"auto"`` is the shortest.
    rounding : {"nearest", "stochastic"}
        Rounding of elements to the nearest, or stochastically to one of the two neighbors.
    tensor_scale : float or "auto"
        Scale of the tensor, for ``nvfp4``: a number from 2^-120 to 1e35. ``"auto"`` is the
        largest magnitude over 448·6, and 1 is what torchao does without such a scale.
    """

    symbols_type = MicroscaleSymbols
    symbols_dtypes: ClassVar = {"data": ("uint8",)}
    has_cuda_kernels = True
    keeps_nonfinite = True
    takes_up_to = 2.0**127
    fused_dtypes = ("float32", "float64")
    leaves_rounded = True
    decoded_factor = 4.0
    reads_segments = True
    uses_shape = True
    peers: ClassVar = {
        "mxfp8": "microscale",
        "mxfp8-e4m3": "microscale",
        "mxfp8-e5m2": "microscale:format=mxfp8e5m2",
        "mxfp6": "microscale:format=mxfp6e2m3",
        "mxfp6-e2m3": "microscale:format=mxfp6e2m3",
        "mxfp6-e3m2": "microscale:format=mxfp6e3m2",
        "mxfp4": "microscale:format=mxfp4",
        "mxint8": "microscale:format=mxint8",
        "nvfp4": "microscale:format=nvfp4",
        "nvfp4-single-level": "microscale:format=nvfp4,tensor_scale=1.0",
    }

    format: str = param(Choice(*FORMATS), "mxfp8e4m3", "format of elements and scales")
    scale: str = param(Choice(*RULES), "floor", "rule for the scales of an MX format")
    code: str = param(
        Choice(*CODES, unsent=("auto",)), "none", "code of the bytes; auto: the shortest"
    )
    rounding: str = param(
        Choice("nearest", "stochastic"),
        "nearest",
        "rounding of elements, to the nearest, or stochastically",
    )
    tensor_scale: float | str = param(
        Float32(
            "a number from 2^-120 to 1e35",
            lambda t: LEAST_TENSOR_SCALE <= t <= MOST_TENSOR_SCALE,
            words=("auto",),
        ),
        "auto",
        "scale of the tensor, for nvfp4; auto: the largest |x| over 2688",
        in_message=True,
        left_out=1.0,
    )

    def check(self) -> None:
        """Raise `ParameterError` for incompatible parameters; set those that are ignored."""
        if self._format.is_two_level:
            if self.scale != "floor":
                raise ParameterError.of("scale", self.scale, "left out for nvfp4")
            return
        if self.tensor_scale not in ("auto", 1.0):
            allowed = f"left out for {self.format}, which has scales of blocks only"
            raise ParameterError.of("tensor_scale", self.tensor_scale, allowed)
        object.__setattr__(self, "tensor_scale", 1.0)

    def _is_set(self, declared: Param) -> bool:
        is_ignored = declared.name == "tensor_scale" and not self._format.is_two_level
        return not is_ignored and super()._is_set(declared)

    @property
    def _format(self) -> BlockFormat:
        return BlockFormat.of(self.format)

    @property
    def unbiased(self) -> bool:
        """True where rounding is stochastic and no element is limited.

        This holds down to magnitudes of 2^-100; the scales of smaller ones leave the format.
        """
        never_limits = self.scale in ("rceil", "ceil") and not self._format.is_two_level
        return self.rounding == "stochastic" and never_limits

    def variance(self, n: int) -> float | None:
        """Return 1 for rounding to nearest: no element of x̂ is farther from x than 0 is."""
        return 1.0 if self.rounding == "nearest" else None

    def max_payload_nbits(self, n: int) -> int:
        """Return the bits of scales and elements, or an upper bound for an entropy code."""
        return payload_coding.longest_nbits(n, self._format, self.code)

    @property
    def seek_blocks(self) -> Blocks | None:
        """The unit of blocks: bytes of elements, or states of rANS; None for ``code=none``."""
        if self.code == "none":
            return None
        return "elements" if self.code == "huffman" else "states"

    def seek_count(self, n: int) -> int:
        """Return the number of coded bytes of elements, or of symbols."""
        return n if self.code == "context" else self._format.data_nbytes(n)

    @property
    def symbols_on_host(self) -> bool:  # type: ignore[override]
        """Whether the host codes the bytes: with an entropy code."""
        return self.code != "none"

    # --- quantize

    def _quantize(
        self, values: np.ndarray, seed: int, prior: MicroscaleSymbols | None
    ) -> MicroscaleSymbols:
        return self._quantized(values, self._scale_of(values), seed)[0]

    def _quantize_with_statistics(
        self,
        values: np.ndarray,
        statistics: ValueStatistics,
        seed: int,
        prior: MicroscaleSymbols | None,
    ) -> MicroscaleSymbols:
        return self._quantized(values, self._scale_of(values, statistics.top_bits), seed)[0]

    def _quantize_in_place(
        self, values: np.ndarray, statistics: ValueStatistics, dtype: str, seed: int
    ) -> MicroscaleSymbols:
        scale = self._scale_of(values, statistics.top_bits)
        rounded_to = rounding(dtype)
        return self._quantized(values, scale, seed, leaves_errors=True, rounded_to=rounded_to)[0]

    def _quantize_sum(
        self, x: np.ndarray, update: ResidualUpdate, seed: int
    ) -> tuple[MicroscaleSymbols, int] | None:
        if isinstance(self.tensor_scale, str):
            return None  # the scale needs the largest magnitude of the sum
        return self._quantized(x, self.tensor_scale, seed, update)

    def _quantized(
        self,
        values: np.ndarray,
        tensor_scale: Any,
        seed: int,
        update: ResidualUpdate | None = None,
        leaves_errors: bool = False,
        rounded_to: int = 0,
    ) -> tuple[MicroscaleSymbols, int]:
        """Quantize values, or their sum with a residual; also return the largest magnitude.

        For `leaves_errors` and `rounded_to`, see `microscale.quantize`.
        """
        n, fmt = values.size, self._format
        data = empty_beside(fmt.blocks(n) + fmt.data_nbytes(n), np.uint8, values)
        modes = update, leaves_errors, rounded_to
        top = self._put(values, tensor_scale, seed, data, *modes)
        if (check := self._check_of(values)) is not None:
            check(top)
        return MicroscaleSymbols(data, n, tensor_scale, self._bound_shape(n)), top

    def _put(
        self,
        values: np.ndarray,
        tensor_scale: Any,
        seed: int,
        data: np.ndarray,
        update: ResidualUpdate | None = None,
        leaves_errors: bool = False,
        rounded_to: int = 0,
    ) -> Any:
        """Write the bytes of scales and elements; see `_quantized`."""
        fmt, count = self._format, self._format.blocks(values.size)
        quantization = Quantization(fmt, self.scale, as_float32(tensor_scale))
        key = seed if self.rounding == "stochastic" else None
        modes = update, leaves_errors, rounded_to
        return microscale.quantize(values, quantization, key, data[:count], data[count:], *modes)

    def _try(self, values: np.ndarray, seed: int) -> tuple[np.ndarray, MicroscaleSymbols]:
        if max_abs_bits(values) >= INFINITY_BITS:
            return super()._try(values, seed)
        tensor_scale = self._scale_of(values)
        quantization = Quantization(self._format, self.scale, np.float32(tensor_scale))
        key = seed if self.rounding == "stochastic" else None
        data, decoded = microscale.rounded(values, quantization, key)
        n = values.size
        return decoded, MicroscaleSymbols(data, n, tensor_scale, self._bound_shape(n))

    def _scale_of(self, values: np.ndarray, top_bits: int | Deferred | None = None) -> Any:
        """Return the scale of a tensor, a number or a `Deferred`: the parameter, or by its rule.

        `top_bits` is the bit pattern of the largest magnitude, if the caller knows it.
        """
        if not isinstance(self.tensor_scale, str):
            return self.tensor_scale
        top: Any = max_abs_bits(values) if top_bits is None else top_bits
        check_top(top, values)  # with an infinite scale, every block would be NaN
        return microscale.tensor_scale_of(top)

    # --- dequantize

    def _dequantize_into(
        self, symbols: MicroscaleSymbols, dtype: str, out: np.ndarray, add: np.float32 | None
    ) -> None:
        n, fmt = out.size, self._format
        count = fmt.blocks(n)
        fits = symbols.n == n and symbols.data.size == count + fmt.data_nbytes(n)
        self._require(fits, n, symbols.shape)
        data = beside(symbols.data, out)
        microscale.dequantize(data[:count], data[count:], fmt, symbols.tensor_scale, out, add)

    def _slice_unit(self, n: int) -> int:
        return BLOCK

    def _slice(self, symbols: MicroscaleSymbols, start: int, stop: int) -> MicroscaleSymbols:
        fmt, data, first = self._format, symbols.data, self._format.blocks(symbols.n)
        scales = data[start // fmt.block : fmt.blocks(stop)]
        elements = data[first + start // fmt.per_byte : first + fmt.data_nbytes(stop)]
        joined = np.concatenate((scales, elements))
        return MicroscaleSymbols(joined, stop - start, symbols.tensor_scale)

    # --- pack

    def _encode(
        self, values: np.ndarray, seed: int, prior: MicroscaleSymbols | None
    ) -> Selection[Payload]:
        symbols = self._quantize(values, seed, prior)
        data, n, tensor_scale, _ = symbols
        if device_of(values) is not None:
            return self._pack(symbols)

        def refill(nbytes: int) -> None:
            self._put(values, tensor_scale, seed, data)

        # Only the coder reads the elements, so it may release their memory.
        return self._pack(symbols, Drainable(data[self._format.blocks(n) :], refill))

    def _pack(
        self, symbols: MicroscaleSymbols, held: Drainable | None = None
    ) -> Selection[Payload]:
        """Return the payload of symbols, whose elements are released if a `Drainable` has them."""
        data, n, _, shape = symbols
        self._require(8 * data.size == plain_nbits(n, self._format), n, shape)
        if self.symbols_on_host:
            prefetch(symbols.tensor_scale)
            data = host(data)
        strings = payload_coding.write(
            data, n, self._format, self.code, shape or (n,), held, sized=self._is_sizing
        )
        return strings.map(functools.partial(self._message, symbols))

    def _message(self, symbols: MicroscaleSymbols, written_code: CodedBytes) -> Payload:
        code, written = written_code
        scale: object = symbols.tensor_scale
        codec = self.replaced(code=code)
        if type(scale) is not Deferred:  # otherwise it is set together with the payload
            codec = codec.replaced(tensor_scale=scale)
            scale = codec.tensor_scale
        return Payload(codec, {"tensor_scale": scale}, *written)

    def _unpack(self, payload: Payload, n: int) -> MicroscaleSymbols:
        fmt, data = self._format, payload.data
        if self.code == "none":
            check_length(payload.nbits, plain_nbits(n, fmt))
            count = fmt.blocks(n)
            payload_coding.check_scales(data[:count], fmt, 0)
            payload_coding.check_elements(data[count:], n, fmt, count)
        else:
            data = payload_coding.read(payload, n, fmt, self.code)
        return MicroscaleSymbols(data, n, self._tensor_scale, self._bound_shape(n))

    @property
    def _tensor_scale(self) -> float:
        assert not isinstance(self.tensor_scale, str)  # of a message
        return self.tensor_scale

    def _string(self, payload: Payload, n: int) -> CodedString | None:
        if self.code == "none":
            return None
        return payload_coding.open_parts(payload, n, self._format, self.code)[1]

    def _describe(self, payload: Payload, n: int, walk: FieldWalker) -> Iterator[FieldSpan]:
        yield from describe.fields(walk, payload, n, self._format, self.code, self._tensor_scale)
