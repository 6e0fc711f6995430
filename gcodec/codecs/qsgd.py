"""qsgd: levels of the norm, at random and unbiased, in Elias omega words.

A bucket's norm N is sent, and for each element the level k of |v|·s/N, rounded at random to one of
the integers beside it, and the sign: for all elements (``form=dense``), or for those that are not
0, each with how far it lies behind the last (``sparse``). Buckets of norm 0 have no words.

Payload: norms as binary32, big-endian; then one bit string, most significant bit first. omega,
dense: sign, omega(k + 1). omega, sparse: omega(gap), sign, omega(k). rice, dense: rice(z) with z =
0, 2k − 1 for −k and 2k for k. rice, sparse: rice(gap − 1), sign, rice(k − 1). packed: z in as many
bits as 2s has. A sign of 1 is −; that of a level 0 is 0. Gaps count from 1, across buckets; the
sparse form ends where the payload's bits end.

Arithmetic: see `kernels.levels`; the norm is rounded to float32 first, and both sides use that.
NaN and Inf are refused, as is a norm beyond float32.

Example: v = (3, 0, −4, 0), s = 4, N = 5, levels 2, 0, −3, 0 are ``40a00000 6340`` dense and
``40a00000 24e0`` sparse.

Source: Alistarh et al., "QSGD: Communication-efficient SGD via gradient quantization and
encoding", NIPS 2017, section 3.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gcodec.arrays import empty_like_shape, nonfinite_error
from gcodec.codec import Codec
from gcodec.errors import Corrupt, ParameterError, Truncated
from gcodec.kernels import dense_string, level_codes, levels, pool, sparse_string
from gcodec.kernels.levels import Scale
from gcodec.kernels.memory import aligned_empty
from gcodec.kernels.norms import norms, read_norms, write_norms
from gcodec.kernels.pack import check_padding
from gcodec.kernels.reduce import all_finite
from gcodec.kernels.unit_place import place, place_values
from gcodec.kinds import Choice, Integer
from gcodec.params import Field, param
from gcodec.payload import Payload
from gcodec.registry import register
from gcodec.seek import LOG2_BLOCK, MIN_ELEMENTS, Blocks, SeekTable, worthwhile

_NORM_NBITS = 32
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
    """

    norms: np.ndarray
    levels: np.ndarray


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
    code : {"omega", "rice", "packed", "auto"}
        Elias omega as in the paper, Rice codes of the best parameter, fixed width; ``"auto"``:
        whichever is shortest.
    """

    refuses_nonfinite = True
    takes_all_finite = False  # a norm may pass float32

    s: int = param(Integer(1, 2**24), 15, "level of the norm")
    form: str = param(
        Choice("dense", "sparse", unsent=("auto",)), "auto", "what has a word: all, or all but 0"
    )
    bucket: int = param(Integer(0, 2**62), 0, "elements that share a norm; 0: all")
    norm: str = param(Choice("l2", "max"), "l2", "Euclidean, or the largest magnitude")
    code: str = param(
        Choice("omega", "rice", "packed", unsent=("auto",)), "omega", "what levels are coded in"
    )

    def check(self) -> None:
        """Refuse a form that a code does not have."""
        if self.form == "sparse" and self.code == "packed":
            raise ParameterError.of("form", self.form, "dense with code=packed")

    def scalar_fields(self) -> tuple[Field, ...]:
        """Return the parameters of the Rice codes."""
        rice = (_RICE,) if self.form == "dense" else (_RICE, _RICE_GAP)
        return () if self.code in ("omega", "packed") else rice

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
        longest = level_codes.longest_nbits(self.form, self.code, self.s)
        return _NORM_NBITS * self._buckets(n) + n * longest

    @property
    def seek_blocks(self) -> Blocks | None:
        """Elements where the form is dense, sent values where it is sparse."""
        blocks: Blocks = "values" if self.form == "sparse" else "elements"
        return None if self.code == "packed" else blocks

    # --- quantise

    def _bucket(self, n: int) -> int:
        return min(self.bucket, n) or max(n, 1)

    def _buckets(self, n: int) -> int:
        return -(-n // self._bucket(n))

    def _scale_of(self, values: np.ndarray) -> Scale:
        """Find the norms of all buckets; refuse what is not finite."""
        found = norms(values, self._bucket(values.size), self.norm)  # type: ignore[arg-type]
        largest = found.max(initial=0)  # NaN, if there is one
        with np.errstate(over="ignore"):
            decoded = np.float32(self.s) * np.float32(float(largest) / self.s)
        if np.isfinite(decoded):
            return Scale(found, self._bucket(values.size), self.s)
        if all_finite(values):
            raise ParameterError("x: its norm must not pass float32")
        raise nonfinite_error(values)

    def _quantize(self, values: np.ndarray, seed: int, prior: QSGDSymbols | None) -> QSGDSymbols:
        scale = self._scale_of(values)
        out = aligned_empty(values.size, levels.symbol_dtype(self.s))

        def task(start: int, stop: int) -> None:
            levels.quantize(values[start:stop], scale, seed, start, out[start:stop])

        pool.run(task, values.size)
        return QSGDSymbols(scale.norms, out)

    def _encode(self, values: np.ndarray, seed: int, prior: QSGDSymbols | None) -> Payload:
        if self.form != "dense" or self.code not in ("omega", "packed"):
            return super()._encode(values, seed, prior)
        # No symbol need be kept: each range is quantised where it is written.
        scale = self._scale_of(values)

        def symbols_of(start: int, stop: int, out: np.ndarray) -> np.ndarray:
            levels.quantize(values[start:stop], scale, seed, start, out)
            return out

        return self._dense(scale, symbols_of, values.size, {})

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

        pool.run(task, out.size, 32)

    def _checked_scale(self, symbols: QSGDSymbols, n: int) -> Scale:
        self._require(symbols.levels.size == n and symbols.norms.size == self._buckets(n), n)
        levels.check_dtype(symbols.levels, self.s)
        return Scale(symbols.norms, self._bucket(n), self.s)

    def _decode(self, payload: Payload, n: int, out: np.ndarray | None = None) -> np.ndarray:
        # No symbol need be kept: each range is dequantised where it is read.
        scale = self._read_scale(payload, n)
        values = empty_like_shape(n) if out is None else out
        if self.form == "sparse":
            values[:] = 0
            self._read_sparse(payload, scale, partial(place_values, scale=scale, out=values))
            return values
        stream, dtype = levels.streams(values), levels.symbol_dtype(self.s)

        def take(at: int, small: np.ndarray, wide: np.ndarray) -> None:
            symbols = dense_string.widened(small, wide, dtype)
            levels.dequantize(symbols, scale, at, values[at : at + small.size], stream=stream)

        self._read_dense(payload, scale, n, take)
        return values

    # --- pack

    def _pack(self, symbols: QSGDSymbols) -> Payload:
        parts = symbols.levels
        scale = self._checked_scale(symbols, parts.size)
        levels.check(parts, self.s)
        words = _live(scale, parts.size).words
        form, code, scalars, _ = level_codes.plan(parts, self.s, words, self.form, self.code)
        codec = self.replaced(form=form, code=code)
        if form == "dense":
            return codec._dense(scale, lambda i, j, room: parts[i:j], parts.size, scalars)
        unit = level_codes.unit_code(code, self.s, scalars)
        made = sparse_string.write(unit, parts, 1 << LOG2_BLOCK, 4 * scale.norms.size)
        return codec._payload(scale, scalars, parts.size, *made)

    def _dense(self, scale: Scale, symbols_of: Any, n: int, scalars: dict[str, Any]) -> Payload:
        """Write the payload of a dense form."""
        code = level_codes.word_code(self.code, self.s, scalars)
        where = _live(scale, n), 1 << LOG2_BLOCK, 4 * scale.norms.size
        made = dense_string.write(code, symbols_of, levels.symbol_dtype(self.s), *where)
        return self._payload(scale, scalars, n, *made)

    def _payload(
        self,
        scale: Scale,
        scalars: dict[str, Any],
        n: int,
        data: np.ndarray,
        nbits: int,
        *sums: np.ndarray,
    ) -> Payload:
        write_norms(scale.norms, data)
        if n < MIN_ELEMENTS or self.seek_blocks is None:
            return Payload(self, scalars, data, nbits)
        table = SeekTable.of(LOG2_BLOCK, *sums)
        return Payload(self, scalars, data, nbits, table if worthwhile(table, n, nbits) else None)

    # --- unpack

    def _unpack(self, payload: Payload, n: int) -> QSGDSymbols:
        scale, dtype = self._read_scale(payload, n), levels.symbol_dtype(self.s)
        if self.form == "sparse":
            out = np.zeros(n, dtype)
            self._read_sparse(payload, scale, partial(place, out=out))
            _live(scale, n).refuse_silent(out)
            return QSGDSymbols(scale.norms, out)
        out = aligned_empty(n, dtype)

        def take(at: int, small: np.ndarray, wide: np.ndarray) -> None:
            out[at : at + small.size] = dense_string.widened(small, wide, dtype)

        self._read_dense(payload, scale, n, take)
        return QSGDSymbols(scale.norms, out)

    def _read_scale(self, payload: Payload, n: int) -> Scale:
        """Read the norms of all buckets; check what can be told without reading the string."""
        nbits = _NORM_NBITS * self._buckets(n)
        if payload.nbits < nbits:
            raise Truncated(f"the payload has {payload.nbits} bits, the norms {nbits}")
        check_padding(payload.data, payload.nbits)
        scale = Scale(read_norms(payload.data[: nbits // 8]), self._bucket(n), self.s)
        if self.form == "dense":
            code = level_codes.word_code(self.code, self.s, payload.scalars)
            dense_string.refuse_short(code, _live(scale, n), payload.nbits - nbits)
        return scale

    def _read_dense(
        self,
        payload: Payload,
        scale: Scale,
        n: int,
        take: Any,
        log2_block: int = LOG2_BLOCK,
        bits_follow: bool = False,
    ) -> np.ndarray:
        """Read the string of a dense form; return where its blocks begin and the last ends."""
        first, table, known = _NORM_NBITS * scale.norms.size, payload.seek, None
        if table is not None:
            table.must_cover(payload.nbits - first)
            log2_block, known = table.log2_block, table.offsets
        code = level_codes.word_code(self.code, self.s, payload.scalars)
        where = first, payload.nbits, _live(scale, n), 1 << log2_block
        offsets = dense_string.read(code, payload.data, *where, known, take)
        left = payload.nbits - first - int(offsets[-1])
        if left and not bits_follow:
            raise Corrupt(f"the payload has {left} bits behind its last word")
        return offsets

    def _bare_nbits(self, n: int, data: np.ndarray, scalars: dict[str, Any]) -> int:
        if self.form == "sparse":
            raise ParameterError("nbits: the bytes of form=sparse do not tell it; give nbits=…")
        payload = Payload(self, scalars, data, 8 * data.size)
        scale = self._read_scale(payload, n)
        offsets = self._read_dense(payload, scale, n, _ignore, bits_follow=True)
        return _NORM_NBITS * scale.norms.size + int(offsets[-1])

    def _read_sparse(
        self,
        payload: Payload,
        scale: Scale,
        put: sparse_string.Place,
        log2_block: int = LOG2_BLOCK,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Read the string of a sparse form; return where its blocks begin and the last ends."""
        first, table, known = _NORM_NBITS * scale.norms.size, payload.seek, None
        if table is not None and table.positions is not None:
            table.must_cover(payload.nbits - first)
            log2_block, known = table.log2_block, (table.offsets, table.positions)
        code = level_codes.unit_code(self.code, self.s, payload.scalars)
        where = first, payload.nbits, 1 << log2_block
        return sparse_string.read(code, payload.data, *where, known, put)

    def _index(self, payload: Payload, n: int, log2_block: int) -> SeekTable:
        payload = payload._replace(seek=None)
        scale = self._read_scale(payload, n)
        if self.form == "sparse":
            out = np.zeros(n, levels.symbol_dtype(self.s))
            sums = self._read_sparse(payload, scale, partial(place, out=out), log2_block)
            return SeekTable.of(log2_block, *sums)
        offsets = self._read_dense(payload, scale, n, _ignore, log2_block)
        return SeekTable.of(log2_block, offsets)


def _live(scale: Scale, n: int) -> dense_string.Live:
    return dense_string.Live.of(n, scale.bucket, scale.norms == 0)


def _ignore(at: int, small: np.ndarray, wide: np.ndarray) -> None:
    """Take symbols of which only the ends of their words are wanted."""
