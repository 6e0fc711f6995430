"""blockwise: blocks with a float32 scale, and codes of 4 to 16 bits that stand for numbers.

Elements are taken in blocks in the order of the flat tensor; the last block may be shorter. Each
block has a scale S, and each element the code c of a number v(c) of a table; x̂ = v(c)·S. The kinds
are those that other systems send:

- ``nf4``, ``fp4``, ``dynamic8``: S is the largest magnitude of the block, and the table has
  numbers from −1 to 1. With ``nested=yes`` the scales, less their mean, are sent as codes of
  ``dynamic8`` in blocks of their own. As in bitsandbytes.
- ``int4``, ``int8``: v(c) are the integers from −8 to 7 or from −128 to 127, and S is the largest
  magnitude over 8 or 128. As qgZ and qwZ of ZeRO++.
- ``fp8``: v(c) are the numbers of OCP's E4M3, x̂ = v(c)/S, and S is 448 over the largest magnitude.
  As torchft, with ``block=0`` for rows.
- ``meanstd16``: c is a float16 itself, and x̂ = c·S + M. M is the mean of the block, and S its
  standard deviation, at least 2^-23. As in hivemind, with ``block=0`` for rows.
- ``uniform8``, ``quantile8``: one table for the tensor, which the message contains. Codes are the
  numbers of 256 equal ranges over six standard deviations, or of 256 equally frequent ranges, and
  v(c) is the mean of the elements in the range. As in hivemind.

With ``code=none``, the payload contains the scales or the table as little-endian float32, means
before deviations, then the codes, two codes of 4 bits in a byte, the first in the high half, and
float16 as little-endian. Other codes write the bytes of 4-bit and 8-bit codes in fewer bits. NaN,
Inf and magnitudes above 2^126 are refused.

Sources: bitsandbytes 0.50.2 (MIT), hivemind 1.1.12 (MIT), DeepSpeed 0.19.8 (Apache-2.0) and
torchft 0.2.0 (BSD-3-Clause), for scales, tables and rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import numpy as np

from gcodec.arrays.nonfinite import check_finite
from gcodec.codec import Codec, register
from gcodec.codecs.blockwise import describe, quantizer
from gcodec.codecs.blockwise import payload as payload_coding
from gcodec.codecs.blockwise.layout import ABSMAX, KINDS, TABLE_SENT, Layout, Scales
from gcodec.codecs.blockwise.payload import CODES, check_codes, longest_nbits
from gcodec.entropy.coder import CodedString, into
from gcodec.entropy.ranged import CodedBytes
from gcodec.errors import ParameterError
from gcodec.fields.walker import FieldSpan, FieldWalker
from gcodec.kernels.bits.pack import check_length
from gcodec.kernels.numeric import arithmetic
from gcodec.kernels.numeric.arithmetic import ResidualUpdate, ValueStatistics
from gcodec.kernels.quantize import blockwise, standard_scores
from gcodec.payload import Payload, Selection
from gcodec.runtime.device import beside, device_of, host
from gcodec.runtime.lanes import BLOCK
from gcodec.runtime.memory import Drainable, empty_beside
from gcodec.wire.kinds import Choice, Integer
from gcodec.wire.params import param
from gcodec.wire.seek import Blocks

_BLOCK = 64


class BlockwiseSymbols(NamedTuple):
    """Scales and codes of a tensor, as in the payload.

    Attributes
    ----------
    data : uint8 array
        The payload with ``code=none``: scales or table, then codes. Codes alone if `scales` is
        not None.
    n : int
        Number of elements.
    block : int
        Number of elements of a block.
    scales : Scales, optional
        Table and scales of the blocks, as `data` has them; None if nobody has read them.
    """

    data: np.ndarray
    n: int
    block: int
    scales: Scales | None = None


@register(id=18, name="blockwise")
class Blockwise(Codec):
    """Tables of numbers, with a scale for each block.

    Parameters
    ----------
    kind : {"nf4", "fp4", "dynamic8", "int8", "int4", "fp8", "uniform8", "quantile8", "meanstd16"}
        Rule for scales, table and codes.
    block : int
        Elements of a block, an even number where a code has 4 bits. 0 stands for a row, the last
        dimension, where a code has 8 or 16 bits. Left out for ``uniform8`` and ``quantile8``,
        which have one table for the tensor.
    nested : {"no", "yes"}
        Whether the scales of ``nf4``, ``fp4`` or ``dynamic8`` are quantized, too.
    code : {"none", "huffman", "rans", "auto"}
        Code of the codes' bytes: as they are, as always with ``meanstd16``; Huffman words; rANS.
        ``"auto"`` is the shortest, with an estimate for rANS that errs by some bytes.
    """

    symbols_type = BlockwiseSymbols
    symbols_dtypes: ClassVar = {"data": ("uint8",)}
    refuses_nonfinite = True
    has_cuda_kernels = True
    takes_up_to = quantizer.LARGEST
    fused_dtypes = ("float32", "float64")
    leaves_rounded = True
    decoded_factor = 4.0
    reads_segments = True
    uses_shape = True
    peers: ClassVar = {
        "nf4": "blockwise",
        "nf4-double-quant": "blockwise:nested=yes",
        "fp4": "blockwise:kind=fp4",
        "bitsandbytes-8bit": "blockwise:kind=dynamic8,block=4096",
        "hivemind-blockwise-8bit": "blockwise:kind=dynamic8,block=4096",
        "hivemind-uniform-8bit": "blockwise:kind=uniform8",
        "hivemind-quantile-8bit": "blockwise:kind=quantile8",
        "hivemind-meanstd-16bit": "blockwise:kind=meanstd16,block=0",
        "zeropp-qgz": "blockwise:kind=int4,block=2048",
        "zeropp-qwz": "blockwise:kind=int8,block=8192",
        "torchft-fp8": "blockwise:kind=fp8,block=0",
    }

    kind: str = param(Choice(*KINDS), "nf4", "rule for scales, table and codes")
    block: int = param(Integer(0, 2**32 - 1), _BLOCK, "elements of a block; 0: a row")
    nested: str = param(Choice("no", "yes"), "no", "whether scales are quantized, too")
    code: str = param(
        Choice(*CODES, unsent=("auto",)), "none", "code of the codes' bytes; auto: the shortest"
    )

    def check(self) -> None:
        """Raise `ParameterError` for incompatible parameters; set those that are ignored."""
        if self.nested == "yes" and self.kind not in ABSMAX:
            raise ParameterError.of("nested", self.nested, f"no for {self.kind}")
        if self.code in CODES[1:] and self._layout(1).width > 8:
            raise ParameterError.of("code", self.code, f"none for {self.kind}")
        if self.kind in TABLE_SENT:
            if self.block != _BLOCK:
                allowed = f"left out for {self.kind}, which has one table"
                raise ParameterError.of("block", self.block, allowed)
        elif self._layout(1).width == 4 and (self.block % 2 or not self.block):
            raise ParameterError.of("block", self.block, f"even and not 0 for {self.kind}")

    def _layout(self, n: int) -> Layout:
        """Return the parts of a payload of n elements of the bound shape."""
        block = self.block
        if self.kind in TABLE_SENT:
            block = n
        elif not block:
            shape = self._bound_shape(n)
            block = shape[-1] if shape else 1
        return Layout(self.kind, self.nested == "yes", n, max(block, 1))

    def variance(self, n: int) -> float | None:
        """Return 1 where tables have 0: no element of x̂ is farther from x than 0 is."""
        return None if self.kind in (*TABLE_SENT, "meanstd16") else 1.0

    def max_payload_nbits(self, n: int) -> int:
        """Return the bits of scales and codes, or an upper bound for an entropy code.

        A row of unknown length has one element.
        """
        layout = self._layout(n)
        if not self.block and self._shape is None:
            layout = layout._replace(block=1)
        return longest_nbits(layout, self.code)

    @property
    def seek_blocks(self) -> Blocks | None:
        """The unit of blocks: bytes of codes, or states of rANS; None for ``code=none``."""
        return {"none": None, "huffman": "elements", "rans": "states"}.get(self.code)

    def seek_count(self, n: int) -> int:
        """Return the number of bytes of codes."""
        return self._layout(n).codes_nbytes

    @property
    def on_device(self) -> bool:
        """Whether an array on a CUDA device is coded there: for kinds with a fixed table."""
        return self.kind not in (*TABLE_SENT, "meanstd16")

    @property
    def symbols_on_host(self) -> bool:  # type: ignore[override]
        """Whether the host codes the codes' bytes: with an entropy code."""
        return self.code != "none"

    # --- quantize

    def _quantize(
        self, values: np.ndarray, seed: int, prior: BlockwiseSymbols | None
    ) -> BlockwiseSymbols:
        return self._quantized(values)[0]

    def _quantize_sum(
        self, x: np.ndarray, update: ResidualUpdate, seed: int
    ) -> tuple[BlockwiseSymbols, int] | None:
        if not quantizer.accepts_update(self._layout(x.size)):
            return None
        symbols, top = self._quantized(x, update)
        return symbols, int(np.float32(top).view(np.uint32))

    def _add_residual(self, x: np.ndarray, update: ResidualUpdate) -> ValueStatistics:
        is_uniform = self.kind == "uniform8"
        add = arithmetic.add_residual_with_moments if is_uniform else arithmetic.add_residual
        return add(x, update)

    def _quantize_with_statistics(
        self,
        values: np.ndarray,
        statistics: ValueStatistics,
        seed: int,
        prior: BlockwiseSymbols | None,
    ) -> BlockwiseSymbols:
        return self._quantized(values, statistics=statistics)[0]

    def _quantized(
        self,
        values: np.ndarray,
        update: ResidualUpdate | None = None,
        statistics: ValueStatistics | None = None,
    ) -> tuple[BlockwiseSymbols, float]:
        """Quantize values, or their sum with a residual, whose largest magnitude is returned."""
        layout = self._layout(values.size)
        data = empty_beside(layout.nbytes, np.uint8, values)
        moments = statistics and statistics.moments
        top = quantizer.quantize(values, layout, data, update=update, known=moments)
        return BlockwiseSymbols(data, layout.n, layout.block), top

    def _try(self, values: np.ndarray, seed: int) -> tuple[np.ndarray, BlockwiseSymbols]:
        layout = self._layout(values.size)
        if layout.has_means:
            return super()._try(values, seed)
        check_finite(values)
        data, decoded = np.empty(layout.nbytes, np.uint8), np.empty_like(values)
        quantizer.quantize(values, layout, data, quantizer.NUMPY)
        codes = data[layout.front_nbytes :]
        table, scales, _ = layout.scales(data[: layout.front_nbytes], blockwise.look_up)
        blockwise.look_up(codes, layout.block, scales, table, layout.is_multiplier, decoded)
        return decoded, BlockwiseSymbols(data, layout.n, layout.block)

    # --- dequantize

    def _dequantize_into(
        self, symbols: BlockwiseSymbols, dtype: str, out: np.ndarray, add: np.float32 | None
    ) -> None:
        layout = self._checked_layout(symbols, out.size)
        symbols = self._sliceable(symbols._replace(data=beside(symbols.data, out)))
        assert symbols.scales is not None
        (values, scales, means), block = symbols.scales, layout.block
        if means is not None:
            standard_scores.dequantize(symbols.data, block, means, scales, out, add)
            return
        blockwise.dequantize(symbols.data, block, scales, values, layout.is_multiplier, out, add)

    def _checked_layout(self, symbols: BlockwiseSymbols, n: int) -> Layout:
        least = n if self.kind in TABLE_SENT else 1  # elements that share a scale
        self._require(symbols.block >= max(least, 1), n)
        layout = Layout(self.kind, self.nested == "yes", n, symbols.block)
        nbytes = layout.codes_nbytes if symbols.scales else layout.nbytes
        self._require(symbols.n == n and symbols.data.size == nbytes, n)
        return layout

    def _sliceable(self, symbols: BlockwiseSymbols) -> BlockwiseSymbols:
        if symbols.scales is not None:
            return symbols
        layout = self._checked_layout(symbols, symbols.n)
        front = symbols.data[: layout.front_nbytes]
        codes = symbols.data[layout.front_nbytes :]
        if device_of(front) is None or layout.nested:
            scales = layout.scales(host(front))
        else:  # `_unpack` has checked the scales of a message
            scales = Scales(layout.table().values, front.view(np.float32))
        return symbols._replace(data=codes, scales=scales)

    def _slice_unit(self, n: int) -> int:
        block = self._layout(n).block
        return math.lcm(block if block < n else 1, BLOCK)

    def _slice(self, symbols: BlockwiseSymbols, start: int, stop: int) -> BlockwiseSymbols:
        symbols = self._sliceable(symbols)
        assert symbols.scales is not None
        block, width = symbols.block, self._layout(symbols.n).width
        values, scales, means = symbols.scales
        blocks = slice(start // block, -(-stop // block))
        own = Scales(values, scales[blocks], None if means is None else means[blocks])
        codes = symbols.data[start * width // 8 : -(-stop * width // 8)]
        return BlockwiseSymbols(codes, stop - start, block, own)

    # --- pack

    def _encode(
        self, values: np.ndarray, seed: int, prior: BlockwiseSymbols | None
    ) -> Selection[Payload]:
        symbols = self._quantize(values, seed, prior)
        if device_of(values) is not None:
            return self._pack(symbols)
        # No one else uses the codes.
        return self._pack(symbols, Drainable(symbols.data[self._layout(symbols.n).front_nbytes :]))

    def _pack(
        self, symbols: BlockwiseSymbols, held: Drainable | None = None
    ) -> Selection[Payload]:
        """Return the payload of symbols, whose codes are released if a `Drainable` has them."""
        layout = self._checked_layout(symbols, symbols.n)
        data = host(symbols.data) if self.symbols_on_host else symbols.data
        written = payload_coding.write(data, layout, self.code, held, sized=self._is_sizing)
        return written.map(self._message)

    def _message(self, written_code: CodedBytes) -> Payload:
        code, written = written_code
        return Payload(self.replaced(code=code), {}, *written)

    def _unpack(self, payload: Payload, n: int) -> BlockwiseSymbols:
        layout, data, string = self._layout(n), payload.data, self._string(payload, n)
        size = layout.front_nbytes
        if string is None:
            check_length(payload.nbits, 8 * layout.nbytes)
            layout.scales(host(data[:size]))
        else:
            data = np.empty(layout.nbytes, np.uint8)
            data[:size] = payload.data[:size]
            string.read(into(data[size:]))
        check_codes(data[size:], layout, is_coded=string is not None)
        return BlockwiseSymbols(data, n, layout.block)

    def _string(self, payload: Payload, n: int) -> CodedString | None:
        if self.code == "none":
            return None
        return payload_coding.open_string(payload, self._layout(n), self.code)

    def _describe(self, payload: Payload, n: int, walk: FieldWalker) -> Iterator[FieldSpan]:
        yield from describe.fields(walk, self._layout(n), self.code)
