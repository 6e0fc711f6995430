"""qsgd: levels of the norm, at random and unbiased, in Elias omega words.

A bucket's norm N is sent, and for each element the level k of |v|·s/N, rounded at random to one of
the integers beside it, and the sign: for all elements (``form=dense``), or for those that are not
0, each with how far it lies behind the last (``sparse``). Buckets of norm 0 have no words.

Payload: norms as binary32, big-endian; then one bit string, most significant bit first. omega,
dense: sign, omega(k + 1). omega, sparse: omega(gap), sign, omega(k). rice, dense: rice(z) with z =
0, 2k − 1 for −k and 2k for k. rice, sparse: rice(gap − 1), sign, rice(k − 1). packed: z in as many
bits as 2s has. A sign of 1 is −; that of a level 0 is 0. Gaps count from 1, across buckets; the
sparse form ends where the payload's bits end. huffman and rans: a table, then the symbols 2k for k
and 2k + 1 for −k. context: the string of `gcodec.entropy.context.coder`, of these symbols of all
elements, 0 in buckets of norm 0; nothing where all norms are 0.

Arithmetic: see `kernels.levels`; the norm is rounded to float32 first, and both sides use that.
NaN and Inf are refused, as is a norm beyond float32.

Example: v = (3, 0, −4, 0), s = 4, N = 5, levels 2, 0, −3, 0 are ``40a00000 6340`` dense and
``40a00000 24e0`` sparse.

Source: Alistarh et al., "QSGD: Communication-efficient SGD via gradient quantization and
encoding", NIPS 2017, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from gcodec.codec import Codec, register
from gcodec.codecs.qsgd import coding_choice
from gcodec.codecs.qsgd import payload as payload_coding
from gcodec.codecs.qsgd.bucket_norms import NORM_NBITS, BucketQuantizer, coded_mask_of, read_scale
from gcodec.codecs.qsgd.coding_choice import MOST_OF_BYTES, Plan
from gcodec.codecs.qsgd.describe import dense, sparse
from gcodec.codecs.qsgd.payload import DenseString, PlannedString
from gcodec.entropy.coder import BitSpan, RunLevelString, ignore, into
from gcodec.errors import ParameterError
from gcodec.inspect.walker import FieldSpan, FieldValue, FieldWalker, numbers
from gcodec.kernels.bits.coded_mask import refuse_nonzero
from gcodec.kernels.numeric.norms import Norm, read_norms, write_norms
from gcodec.kernels.prefix import level_codes
from gcodec.kernels.prefix.run_level_place import place, place_values
from gcodec.kernels.quantize import levels
from gcodec.kernels.quantize.levels import Scale
from gcodec.payload import Payload, Selection, array_of
from gcodec.runtime import pool
from gcodec.runtime.device import device_of, host
from gcodec.runtime.memory import Drainable, clear, contents, drainable, empty_beside
from gcodec.wire.kinds import Choice, Integer
from gcodec.wire.params import Field, param
from gcodec.wire.seek import Blocks, SeekTable

_RICE = Field("rice", Integer(0, level_codes.MOST_RICE), "Rice parameter of the levels")
_RICE_GAP = Field("rice_gap", Integer(0, level_codes.MOST_RICE), "Rice parameter of the gaps")


class QSGDSymbols(NamedTuple):
    """Norms and levels.

    Attributes
    ----------
    norms : (buckets,) float32 array
    levels : (n,) uint8, uint16 or uint32 array
        Twice the level, plus 1 where the value is negative and the level not 0. Of uint8 for s up
        to 127, of uint16 up to 32767.
    shape : tuple of int, optional
        Of the tensor; None for a vector.
    """

    norms: np.ndarray
    levels: np.ndarray
    shape: tuple[int, ...] | None = None


@register(id=2, name="qsgd")
class QSGD(Codec):
    """Levels of the norm at random, unbiased, in universal codes.

    Parameters
    ----------
    s : int
        Level of the norm.
    form : {"auto", "dense", "sparse"}
        A word for each element, or for those that are not 0; ``"auto"``: whichever is shorter.
    bucket : int
        Elements that share a norm; 0: all.
    norm : {"l2", "max"}
        Euclidean norm, or the largest magnitude.
    code : {"omega", "rice", "packed", "huffman", "rans", "context", "auto"}
        Elias omega as in the paper, Rice codes of the best parameter, fixed width; for s up to 127
        Huffman words or rANS of the levels' own frequencies, or rANS by what the scales of row and
        column lead to expect; ``"auto"``: whichever is shortest.
    """

    refuses_nonfinite = True
    has_cuda_kernels = True
    uses_shape = True
    takes_up_to = 2.0**64  # beyond, a norm may pass float32

    s: int = param(Integer(1, 2**24), 15, "level of the norm")
    form: str = param(
        Choice("dense", "sparse", unsent=("auto",)), "auto", "what has a word: all, or all but 0"
    )
    bucket: int = param(Integer(0, 2**62), 0, "elements that share a norm; 0: all")
    norm: str = param(Choice("l2", "max"), "l2", "Euclidean, or the largest magnitude")
    code: str = param(
        Choice(*coding_choice.CODES, unsent=("auto",)), "omega", "what levels are coded in"
    )

    def check(self) -> None:
        """Refuse a form or levels that a code does not have."""
        if self.form == "sparse" and self.code in ("packed", *coding_choice.OF_BYTES):
            raise ParameterError.of("form", self.form, f"dense with code={self.code}")
        if self.code in coding_choice.OF_BYTES and self.s > MOST_OF_BYTES:
            allowed = f"at most {MOST_OF_BYTES} with code={self.code}"
            raise ParameterError.of("s", self.s, allowed)

    def scalar_fields(self) -> tuple[Field, ...]:
        """Return the parameters of the Rice codes."""
        rice = (_RICE,) if self.form == "dense" else (_RICE, _RICE_GAP)
        return rice if self.code in ("rice", "auto") else ()

    @property
    def unbiased(self) -> bool:
        """True."""
        return True

    def variance(self, n: int) -> float:
        """Return min(d/4s², √d/s) for d elements in a bucket (Lemma 3.1, with p(1 − p) ≤ 1/4)."""
        d = min(self._bucket(n), max(n, 1))
        return min(d / (4 * self.s * self.s), math.sqrt(d) / self.s)

    def max_payload_nbits(self, n: int) -> int:
        """Return the bits of the norms and of as many of the longest words."""
        longest = coding_choice.longest_nbits(n, self.form, self.code, self.s)
        return NORM_NBITS * self._buckets(n) + longest

    @property
    def seek_blocks(self) -> Blocks | None:
        """Elements where the form is dense, sent values where it is sparse."""
        blocks: Blocks = "values" if self.form == "sparse" else "elements"
        special: dict[str, Blocks | None]
        special = {"packed": None, "rans": "states", "context": "states"}
        return special.get(self.code, blocks)

    # --- quantise

    def _bucket(self, n: int) -> int:
        return min(self.bucket, n) or max(n, 1)

    def _buckets(self, n: int) -> int:
        return -(-n // self._bucket(n))

    def _quantizer(self, values: np.ndarray, seed: int) -> BucketQuantizer:
        norm = cast(Norm, self.norm)
        return BucketQuantizer.of(values, self._bucket(values.size), norm, self.s, seed)

    def _quantize(self, values: np.ndarray, seed: int, prior: QSGDSymbols | None) -> QSGDSymbols:
        quantize = self._quantizer(values, seed)
        out = empty_beside(values.size, levels.symbol_dtype(self.s), values)
        quantize.first(values.size, out)
        return QSGDSymbols(quantize.scale.norms, out, self._bound_shape(values.size))

    def _encode(
        self, values: np.ndarray, seed: int, prior: QSGDSymbols | None
    ) -> Payload | Selection[Payload]:
        quantize = self._quantizer(values, seed)
        if self.form != "dense" or self.code not in ("omega", "packed") or device_of(values):
            out = empty_beside(values.size, levels.symbol_dtype(self.s), values)
            quantize.first(values.size, out)
            given = drainable(out, lambda n: quantize.first(n, out))  # nobody else reads them
            return self._packed(quantize.scale.norms, given, self._bound_shape(values.size))
        # No symbol need be kept: each range is quantised where it is written.
        plan, lead = Plan("dense", self.code, {}), 4 * quantize.scale.norms.size
        string = payload_coding.write_plan(plan, self.s, quantize, quantize.coded, lead)
        return self._message(quantize.scale, Selection([string]))

    # --- dequantise

    def _dequantize(self, symbols: QSGDSymbols, out: np.ndarray) -> None:
        self._dequantize_into(symbols, out, None)

    def _dequantize_add(
        self, symbols: QSGDSymbols, dtype: str, scale: np.float32, out: np.ndarray
    ) -> None:
        if dtype in ("float16", "bfloat16"):
            super()._dequantize_add(symbols, dtype, scale, out)
        else:
            self._dequantize_into(symbols, out, scale)

    def _dequantize_into(
        self, symbols: QSGDSymbols, out: np.ndarray, add: np.float32 | None
    ) -> None:
        scale, stream = (
            self._checked_scale(symbols, out.size),
            add is None and levels.streams(out),
        )

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
        # No symbol need be kept: each range is dequantised where it is read.
        scale = self._read_scale(payload, n)
        if self.form == "sparse":
            values = empty_beside(n, np.float32, payload.data) if out is None else out
            clear(values)
            place_scaled = partial(place_values, scale=scale, out=values)
            self._sparse_string(payload, scale).read(place_scaled)
            return values
        string = self._dense_string(payload, scale, n)
        values = empty_beside(n, np.float32, payload.data) if out is None else out
        if string.read_scaled(scale, values):
            return values
        stream = levels.streams(values)

        def take(at: int, symbols: np.ndarray) -> None:
            levels.dequantize(symbols, scale, at, values[at : at + symbols.size], stream=stream)

        string.read(take, room=values.view(np.uint8)[:n])
        return values

    def _decode_sparse(self, payload: Payload, n: int) -> tuple[np.ndarray, np.ndarray]:
        if self.form != "sparse":
            return super()._decode_sparse(payload, n)
        payload = payload._replace(data=host(payload.data))
        scale = self._read_scale(payload, n)
        return payload_coding.sparse_elements(self._sparse_string(payload, scale), n, scale)

    # --- pack

    def _pack(self, symbols: QSGDSymbols) -> Payload | Selection[Payload]:
        levels.check_dtype(symbols.levels, self.s)
        levels.check(symbols.levels, self.s)
        return self._packed(*symbols)

    def _packed(
        self, norms: np.ndarray, parts: np.ndarray | Drainable, shape: tuple[int, ...] | None
    ) -> Payload | Selection[Payload]:
        """Return the message of norms and levels; these are released if they are a `Drainable`."""
        n = contents(parts).size
        scale = self._checked_scale(QSGDSymbols(norms, contents(parts), shape), n)
        strings = payload_coding.write(
            parts,
            self.s,
            coded_mask_of(scale, n),
            self.form,
            self.code,
            shape or (n,),
            4 * norms.size,
        )
        return self._message(scale, strings)

    def _message(self, scale: Scale, strings: Selection[PlannedString]) -> Selection[Payload]:
        """Return the message of the selected string, with the norms before it."""
        written: list[Any] = []  # strings may share their data

        def message(planned: PlannedString) -> Payload:
            plan, string = planned
            if not any(string.data is data for data in written):
                write_norms(scale.norms, array_of(string.data))
                written.append(string.data)
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

    def _span(self, payload: Payload, scale: Scale) -> BitSpan:
        first = NORM_NBITS * scale.norms.size
        return BitSpan(payload.data, first, payload.nbits, payload.seek)

    def _dense_string(self, payload: Payload, scale: Scale, n: int) -> DenseString:
        plan = Plan(self.form, self.code, payload.scalars)
        return DenseString.open(plan, self.s, self._span(payload, scale), coded_mask_of(scale, n))

    def _sparse_string(self, payload: Payload, scale: Scale) -> RunLevelString:
        code = level_codes.run_level_code(self.code, self.s, payload.scalars)
        return RunLevelString(self._span(payload, scale), code)

    def _bare_nbits(self, n: int, data: np.ndarray, scalars: dict[str, Any]) -> int:
        if self.form == "sparse":
            raise ParameterError("nbits: the bytes of form=sparse do not tell it; give nbits=…")
        payload = Payload(self, scalars, data, 8 * data.size)
        string = self._dense_string(payload, self._read_scale(payload, n), n)
        return string.read(ignore, bits_follow=True)

    def _index(self, payload: Payload, n: int, log2_block: int) -> SeekTable:
        scale = self._read_scale(payload, n)
        if self.form == "dense":
            return self._dense_string(payload, scale, n).blocks(log2_block)
        out = np.zeros(n, levels.symbol_dtype(self.s))
        string = self._sparse_string(payload, scale)
        return string.read(partial(place, out=out), log2_block)

    def _describe(self, payload: Payload, n: int, walk: FieldWalker) -> Iterator[FieldSpan]:
        def tell(at: int, bits: np.ndarray) -> Iterator[FieldValue]:
            for bucket, norm in enumerate(numbers(bits).tolist(), at):
                yield FieldValue(
                    norm, f"of bucket {bucket}" + ("" if norm else ", which is silent")
                )

        count = self._buckets(n)
        found = yield from walk.checked(
            *("norm", "norm", NORM_NBITS, count, tell),
            lambda: read_norms(payload.data[: NORM_NBITS // 8 * count]),
        )
        scale, describe = Scale(found, self._bucket(n), self.s), dense
        if self.form == "sparse":
            describe = sparse
        yield from describe(
            walk, self.code, self.s, payload.scalars, scale, coded_mask_of(scale, n)
        )
