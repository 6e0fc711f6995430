"""qsgd: levels of the norm, rounded stochastically and unbiased, in one of several codes.

The payload contains the norm N of each bucket. For each element it contains the level k, which is
|v|·s/N rounded stochastically to one of the two neighboring integers, and the sign.
``form=dense`` has a codeword for each element. ``form=sparse`` has one for each element whose
level is not 0, with the gap, which is the distance to the preceding such element. Elements of
buckets with norm 0 have no codewords.

The payload contains the norms as binary32, big-endian, then one bit string, most significant bit
first. A sign of 1 is negative, and the sign of level 0 is 0. Gaps count from 1 and cross buckets.
The sparse form ends with the bits of the payload. The codes:

- ``omega``: dense: sign, omega(k + 1). Sparse: omega(gap), sign, omega(k).
- ``rice``: dense: rice(z), with z = 2k − 1 for −k and 2k for k. Sparse: rice(gap − 1), sign,
  rice(k − 1).
- ``packed``: dense only: z in as many bits as 2s has.
- ``huffman``, ``rans``: dense only: a table, then the symbols 2k for k and 2k + 1 for −k.
- ``context``: dense only: the string of `gcodec.entropy.context.coder` of the symbols of all
  elements, 0 in buckets of norm 0. If all norms are 0, there is no string.

`gcodec.kernels.quantize.levels` defines the arithmetic: the norm is first rounded to float32, and
both sides use that number. NaN, Inf and norms beyond float32 are refused.

Example: v = (3, 0, −4, 0), s = 4, N = 5, with levels 2, 0, −3, 0, is ``40a00000 6340`` dense and
``40a00000 24e0`` sparse.

Source: Alistarh et al., "QSGD: Communication-efficient SGD via gradient quantization and
encoding", NIPS 2017, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np

from gcodec.codec import Codec, register
from gcodec.codecs.qsgd import payload as payload_coding
from gcodec.codecs.qsgd.bucket_norms import NORM_NBITS, BucketQuantizer, coded_mask_of, read_scale
from gcodec.codecs.qsgd.describe import level_fields
from gcodec.codecs.qsgd.payload import BYTE_CODES, DenseString, Plan, PlannedString
from gcodec.entropy.coder import BitSpan, RunLevelString, ignore, into
from gcodec.errors import ParameterError
from gcodec.fields.walker import FieldSpan, FieldValue, FieldWalker, describe_each
from gcodec.kernels.bits.coded_mask import refuse_nonzero
from gcodec.kernels.bits.computed_symbols import (
    NarrowSymbols,
    have_short_string,
    is_few,
)
from gcodec.kernels.numeric import arithmetic
from gcodec.kernels.numeric.arithmetic import ResidualUpdate, ValueStatistics
from gcodec.kernels.numeric.convert import rounding
from gcodec.kernels.numeric.norms import Norm, read_norms, write_norms
from gcodec.kernels.prefix import level_codes
from gcodec.kernels.prefix.run_level_place import place, place_values
from gcodec.kernels.quantize import levels
from gcodec.kernels.quantize.bucket_levels import has_loop
from gcodec.kernels.quantize.levels import Scale
from gcodec.payload import Payload, Selection, array_of
from gcodec.runtime import pool
from gcodec.runtime.device import device_of, host
from gcodec.runtime.memory import Drainable, clear, drainable, empty_beside
from gcodec.runtime.reuse import result_beside
from gcodec.wire.kinds import Choice, Integer
from gcodec.wire.params import Field, Scalars, param
from gcodec.wire.seek import Blocks, SeekTable

_SAMPLE = 1 << 16  # elements whose levels show how many bits most take
_RICE = Field("rice", Integer(0, level_codes.MOST_RICE), "Rice parameter of the levels")
_RICE_GAP = Field("rice_gap", Integer(0, level_codes.MOST_RICE), "Rice parameter of the gaps")


class QSGDSymbols(NamedTuple):
    """The norms and levels of a tensor.

    Attributes
    ----------
    norms : (buckets,) float32 array
    levels : (n,) uint8, uint16 or uint32 array
        Twice the level, plus 1 if the value is negative and the level is not 0. The dtype is
        uint8 for s up to 127, and uint16 for s up to 32767.
    shape : tuple of int, optional
        Shape of the tensor; None for a vector.
    """

    norms: np.ndarray
    levels: np.ndarray
    shape: tuple[int, ...] | None = None


@register(id=2, name="qsgd")
class QSGD(Codec):
    """Stochastic levels of the norm, unbiased.

    Parameters
    ----------
    s : int
        Level of a value as large as the norm, and so the largest level.
    form : {"auto", "dense", "sparse"}
        Whether all elements have a codeword, or only those that are not 0. ``"auto"`` is the
        shorter form.
    bucket : int
        Number of elements that share a norm; 0 for one norm for the tensor.
    norm : {"l2", "max"}
        Euclidean norm, or the largest magnitude.
    code : {"omega", "rice", "packed", "huffman", "rans", "context", "auto"}
        Code of the levels: Elias omega as in the paper; Rice codes with the best parameter; fixed
        width; and, for s up to 127, Huffman codewords or rANS with the frequencies of the levels,
        or rANS with a context, the scales of row and column. ``"auto"`` is the shortest code.
    """

    symbols_type = QSGDSymbols
    symbols_dtypes: ClassVar = {"norms": ("float32",), "levels": ("uint8", "uint16", "uint32")}
    refuses_nonfinite = True
    reads_segments = True
    has_cuda_kernels = True
    fused_dtypes = ("float32", "float64")
    leaves_rounded = True
    decoded_factor = 2.0**32
    uses_shape = True
    takes_up_to = 2.0**64  # norms of larger values may exceed float32
    peers: ClassVar = {"qsgd": "qsgd"}

    s: int = param(Integer(1, 2**24), 15, "level of a value as large as the norm")
    form: str = param(
        Choice("dense", "sparse", unsent=("auto",)),
        "auto",
        "codewords for all elements, or for nonzero ones",
    )
    bucket: int = param(Integer(0, 2**62), 0, "elements that share a norm; 0: all elements")
    norm: str = param(Choice("l2", "max"), "l2", "Euclidean norm, or the largest magnitude")
    code: str = param(
        Choice(*payload_coding.CODES, unsent=("auto",)),
        "omega",
        "code of levels; auto: the shortest",
    )

    def check(self) -> None:
        """Raise `ParameterError` if the code has no such form or cannot code levels up to s."""
        if self.form == "sparse" and self.code in ("packed", *BYTE_CODES):
            raise ParameterError.of("form", self.form, f"dense with code={self.code}")
        if self.code in BYTE_CODES and self.s > payload_coding.LARGEST_BYTE_LEVEL:
            allowed = f"at most {payload_coding.LARGEST_BYTE_LEVEL} with code={self.code}"
            raise ParameterError.of("s", self.s, allowed)

    def scalar_fields(self) -> tuple[Field, ...]:
        """Return the fields of the parameters of Rice codes."""
        rice = (_RICE,) if self.form == "dense" else (_RICE, _RICE_GAP)
        return rice if self.code in ("rice", "auto") else ()

    @property
    def unbiased(self) -> bool:
        """True: rounding is stochastic."""
        return True

    def variance(self, n: int) -> float:
        """Return min(d/4s², √d/s) for buckets of d elements (Lemma 3.1, with p(1 − p) ≤ 1/4)."""
        d = min(self._bucket(n), max(n, 1))
        return min(d / (4 * self.s * self.s), math.sqrt(d) / self.s)

    def max_payload_nbits(self, n: int) -> int:
        """Return the bits of the norms and an upper bound of the bits of the levels."""
        longest = payload_coding.longest_nbits(n, self.form, self.code, self.s)
        return NORM_NBITS * self._buckets(n) + longest

    @property
    def seek_blocks(self) -> Blocks | None:
        """The unit of blocks: elements, sent values or states of rANS; None for fixed width."""
        blocks: Blocks = "values" if self.form == "sparse" else "elements"
        by_code: dict[str, Blocks | None]
        by_code = {"packed": None, "rans": "states", "context": "states"}
        return by_code.get(self.code, blocks)

    # --- quantize

    def _bucket(self, n: int) -> int:
        return min(self.bucket, n) or max(n, 1)

    def _buckets(self, n: int) -> int:
        return -(-n // self._bucket(n))

    def _quantizer(
        self,
        values: np.ndarray,
        seed: int,
        statistics: ValueStatistics | None = None,
        update: ResidualUpdate | None = None,
    ) -> BucketQuantizer:
        norm, bucket = cast(Norm, self.norm), self._bucket(values.size)
        return BucketQuantizer.of(values, bucket, norm, self.s, seed, statistics, update)

    def _add_residual(self, x: np.ndarray, update: ResidualUpdate) -> ValueStatistics:
        is_one = self._bucket(x.size) >= x.size
        add = arithmetic.add_residual_with_moments if is_one else arithmetic.add_residual
        return add(x, update)

    def _quantize(self, values: np.ndarray, seed: int, prior: QSGDSymbols | None) -> QSGDSymbols:
        return self._quantized(values, self._quantizer(values, seed))

    def _quantize_in_place(
        self, values: np.ndarray, statistics: ValueStatistics, dtype: str, seed: int
    ) -> QSGDSymbols | None:
        if self._fuses_norms(values.size):  # so the kernel does not quantize in place
            return None
        quantizer = self._quantizer(values, seed, statistics)
        return self._quantized(values, quantizer, leaves_errors=True, rounded_to=rounding(dtype))

    def _fuses_norms(self, n: int) -> bool:
        return n > 0 and has_loop(self._bucket(n), cast(Norm, self.norm), self.s)

    def _quantize_sum(
        self, x: np.ndarray, update: ResidualUpdate, seed: int
    ) -> tuple[QSGDSymbols, int] | None:
        if not self._fuses_norms(x.size):
            return None
        symbols = self._quantized(x, self._quantizer(x, seed, update=update))
        # No magnitude exceeds twice the norm, even though the norm is rounded.
        with np.errstate(over="ignore"):
            most = np.float32(2) * symbols.norms.max(initial=0)
        return symbols, int(most.view(np.uint32))

    def _quantized(
        self,
        values: np.ndarray,
        quantizer: BucketQuantizer,
        *,
        leaves_errors: bool = False,
        rounded_to: int = 0,
    ) -> QSGDSymbols:
        """Quantize values; for `leaves_errors` and `rounded_to`, see `levels.quantize`."""
        out = empty_beside(values.size, levels.symbol_dtype(self.s), values)
        quantizer.write_first(values.size, out, leaves_errors, rounded_to)
        return QSGDSymbols(quantizer.scale.norms, out, self._bound_shape(values.size))

    def _encode(
        self, values: np.ndarray, seed: int, prior: QSGDSymbols | None
    ) -> Payload | Selection[Payload]:
        quantizer = self._quantizer(values, seed)
        if self.form != "dense" or self.code not in ("omega", "packed") or device_of(values):
            narrow: Any = None if device_of(values) else self._narrow_levels(quantizer)
            if narrow is not None:
                shape = self._bound_shape(values.size)
                return self._pack(QSGDSymbols(quantizer.scale.norms, narrow, shape))
            symbols = self._quantized(values, quantizer)
            # Only the coder reads the levels, so it may release their memory.
            held = drainable(symbols.levels, lambda n: quantizer.write_first(n, symbols.levels))
            return self._pack(symbols, held)
        # Each range is quantized where it is written, so no array of symbols is needed.
        plan, lead = Plan("dense", self.code, {}), 4 * quantizer.scale.norms.size
        string = payload_coding.write_plan(plan, self.s, quantizer, quantizer.coded, lead)
        return self._message(quantizer.scale, Selection([string]))

    def _narrow_levels(self, quantizer: BucketQuantizer) -> NarrowSymbols | None:
        """Return the levels in few bits each if there are many, and few take more bits.

        The coders of bytes read arrays faster.
        """
        n, dtype = quantizer.values.size, levels.symbol_dtype(self.s)
        if is_few(n) or (dtype.itemsize == 1 and self.code in (*BYTE_CODES, "auto")):
            return None
        unit = quantizer.scale.bucket if quantizer.fuses_norms else 1
        sample = np.empty(min(max(_SAMPLE // unit, 1) * unit, n), dtype)
        width = NarrowSymbols.width_of(quantizer(0, sample.size, sample))
        if width is None or (dtype.itemsize == 1 and not have_short_string(sample)):
            return None
        narrow = NarrowSymbols(quantizer, n, dtype, width, unit, quantizer.values)
        return narrow if narrow.is_complete else None

    # --- dequantize

    def _dequantize_into(
        self, symbols: QSGDSymbols, dtype: str, out: np.ndarray, add: np.float32 | None
    ) -> None:
        scale = self._checked_scale(symbols, out.size)
        stream = add is None and levels.can_stream(out)

        def task(start: int, stop: int) -> None:
            part = symbols.levels[start:stop]
            levels.dequantize(part, scale, start, out[start:stop], add, stream=stream)

        pool.run(task, out.size, 32, out)

    def _checked_scale(self, symbols: QSGDSymbols, n: int) -> Scale:
        fits = symbols.levels.size == n and symbols.norms.size == self._buckets(n)
        self._require(fits, n, symbols.shape)
        levels.check_dtype(symbols.levels, self.s)
        return Scale(symbols.norms, self._bucket(n), self.s)

    def _decode(self, payload: Payload, n: int, out: np.ndarray | None = None) -> np.ndarray:
        # Each range is dequantized where it is read, so no array of symbols is needed.
        scale = self._read_scale(payload, n)
        if self.form == "sparse":
            values = result_beside(n, np.float32, payload.data) if out is None else out
            clear(values)
            place_scaled = partial(place_values, scale=scale, out=values)
            self._sparse_string(payload, scale).read(place_scaled)
            return values
        string = self._dense_string(payload, scale, n)
        values = result_beside(n, np.float32, payload.data) if out is None else out
        if string.read_scaled(scale, values):
            return values
        stream = levels.can_stream(values)

        def take(at: int, symbols: np.ndarray) -> None:
            levels.dequantize(symbols, scale, at, values[at : at + symbols.size], stream=stream)

        string.read(take, room=values.view(np.uint8)[:n])
        return values

    @property
    def _is_sparse(self) -> bool:
        return self.form == "sparse"

    def _decode_sparse(self, payload: Payload, n: int) -> tuple[np.ndarray, np.ndarray]:
        if not self._is_sparse:
            return super()._decode_sparse(payload, n)
        payload = payload._replace(data=host(payload.data))
        scale = self._read_scale(payload, n)
        return payload_coding.sparse_elements(self._sparse_string(payload, scale), n, scale)

    # --- pack

    def _check_symbols(self, symbols: QSGDSymbols) -> None:
        levels.check_dtype(symbols.levels, self.s)
        levels.check(symbols.levels, self.s)

    def _pack(self, symbols: QSGDSymbols, held: Drainable | None = None) -> Selection[Payload]:
        """Return the payload of symbols, whose levels are released if a `Drainable` has them."""
        n, shape = symbols.levels.size, symbols.shape
        scale = self._checked_scale(symbols, n)
        coded, lead = coded_mask_of(scale, n), 4 * symbols.norms.size
        coded_symbols, sized = symbols.levels if held is None else held, self._is_sizing
        strings = payload_coding.write(
            coded_symbols, self.s, coded, self.form, self.code, shape or (n,), lead, sized=sized
        )
        return self._message(scale, strings)

    def _message(self, scale: Scale, strings: Selection[PlannedString]) -> Selection[Payload]:
        """Return the payload of the selected string, which the norms precede."""
        with_norms: list[object] = []  # strings may share their data

        def message(planned: PlannedString) -> Payload:
            plan, string = planned
            if not any(string.data is data for data in with_norms):
                write_norms(scale.norms, array_of(string.data))
                with_norms.append(string.data)
            codec = self.replaced(form=plan.form, code=plan.code)
            return Payload(codec, dict(plan.scalars), *string)

        return strings.map(message)

    # --- unpack

    def _unpack(self, payload: Payload, n: int) -> QSGDSymbols:
        scale, dtype = self._read_scale(payload, n), levels.symbol_dtype(self.s)
        if self.form == "sparse":
            out = empty_beside(n, dtype, payload.data)
            clear(out)
            self._sparse_string(payload, scale).read(partial(place, out=out))
            refuse_nonzero(out, coded_mask_of(scale, n))
            return QSGDSymbols(scale.norms, out, self._bound_shape(n))
        string = self._dense_string(payload, scale, n)
        out = empty_beside(n, dtype, payload.data)
        string.read(into(out))
        return QSGDSymbols(scale.norms, out, self._bound_shape(n))

    def _read_scale(self, payload: Payload, n: int) -> Scale:
        """Read the norms of all buckets."""
        return read_scale(payload.data, payload.nbits, self._buckets(n), self._bucket(n), self.s)

    def _plan(self, payload: Payload) -> Plan:
        return Plan(self.form, self.code, payload.scalars)

    def _span(self, payload: Payload, scale: Scale) -> BitSpan:
        first = NORM_NBITS * scale.norms.size
        return BitSpan(payload.data, first, payload.nbits, payload.seek)

    def _dense_string(self, payload: Payload, scale: Scale, n: int) -> DenseString:
        span, coded = self._span(payload, scale), coded_mask_of(scale, n)
        return DenseString.open(self._plan(payload), self.s, span, coded)

    def _sparse_string(self, payload: Payload, scale: Scale) -> RunLevelString:
        code = level_codes.run_level_code(self.code, self.s, payload.scalars)
        return RunLevelString(self._span(payload, scale), code)

    def _bare_nbits(self, n: int, data: np.ndarray, scalars: Scalars) -> int | None:
        if self.form == "sparse":
            return None
        payload = Payload(self, scalars, data, 8 * data.size)
        string = self._dense_string(payload, self._read_scale(payload, n), n)
        return string.read(ignore, bits_follow=True)

    def _index(self, payload: Payload, n: int, log2_block: int) -> SeekTable:
        scale = self._read_scale(payload, n)
        if self.form == "dense":
            return self._dense_string(payload, scale, n).blocks(log2_block)
        out = np.zeros(n, levels.symbol_dtype(self.s))
        string = self._sparse_string(payload, scale)
        return string.blocks(partial(place, out=out), log2_block)

    def _describe(self, payload: Payload, n: int, walk: FieldWalker) -> Iterator[FieldSpan]:
        def describe(norm: float, bucket: int) -> FieldValue:
            return FieldValue(norm, f"bucket {bucket}" + ("" if norm else ", not coded"))

        def read() -> np.ndarray:
            return read_norms(payload.data[: NORM_NBITS // 8 * count])

        count, describe_norms = self._buckets(n), describe_each(describe, "float32")
        norms = yield from walk.checked("norm", "norm", NORM_NBITS, count, describe_norms, read)
        scale = Scale(norms, self._bucket(n), self.s)
        yield from level_fields(walk, self._plan(payload), scale, coded_mask_of(scale, n))
