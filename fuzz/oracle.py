"""Verdicts of the slow oracles of ``tests/reference``: the values of a payload, or its rejection.

The oracles are written from the specification and share no line with gcodec.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
from reference import (
    blockwise,
    contexts,
    dct8,
    ecsq,
    fields,
    halves,
    integers,
    leb128,
    lossless,
    lowrank,
    microscale,
    minifloat,
    minmax,
    mxnet,
    mxnet_sparse,
    powersgd,
    qsgd,
    randomk,
    sign,
    sparseloco,
    ternary,
    topk,
    universal,
)
from reference import frame as frames

from gcodec.codecs.minifloat import codebooks
from gcodec.kernels.quantize.float_format import MiniFloat

DTYPES = {"float32": 1, "float16": 2, "bfloat16": 3, "float64": 4}
MIDDLE = (128, 128, 128)
"""The centroids of a stochastic message of ecsq."""


class Message:
    """A payload with everything that its decoding needs.

    Parameters
    ----------
    codec : Codec
        Codec with every ``auto`` resolved; the oracle uses only its parameters.
    scalars : mapping of str to number
        Scalars of the message.
    data : bytes
        The payload.
    nbits : int
        Length of the payload in bits.
    shape : tuple of int
        Shape of the tensor.
    dtype : str
        Dtype of the tensor; the oracle treats all floating-point dtypes alike.
    """

    def __init__(
        self,
        codec: Any,
        scalars: Mapping[str, Any],
        data: bytes,
        nbits: int,
        shape: tuple[int, ...],
        dtype: str = "float32",
    ) -> None:
        self.codec, self.scalars, self.data, self.nbits = codec, scalars, data, nbits
        self.shape, self.n, self.dtype = shape, math.prod(shape), dtype

    def text(self, expected: int | None = None) -> str:
        """Return the bits; raise ValueError for nonzero fill or a length other than `expected`."""
        if len(self.data) < -(-self.nbits // 8):
            raise universal.Truncated("fewer bytes than bits")
        text = universal.to_text(self.data)
        if "1" in text[self.nbits :] or len(self.data) != -(-self.nbits // 8):
            raise universal.Corrupt("fill that is not zero")
        if expected is not None and self.nbits != expected:
            raise universal.Corrupt("another number of bits")
        return text[: self.nbits]


def decode(message: Message) -> np.ndarray:
    """Return the values as float32, or in their own dtype: integers, booleans, floats of 8 bits.

    Those of ``lossless`` keep the dtype float64, too.

    Raises
    ------
    ValueError
        If the payload is invalid.
    """
    values, dtype = DECODERS[message.codec.name](message), message.dtype
    if dtype in integers.FLOATS8:
        return np.asarray(values, np.uint8).view(getattr(ml_dtypes, dtype))
    is_exact = message.codec.name == "lossless" and dtype == "float64"
    return np.asarray(values, dtype if is_exact or dtype in integers.CODES else "float32")


def _finite(value: float) -> np.float32:
    scale = np.float32(value)
    if not np.isfinite(scale) or scale < 0:
        raise universal.Corrupt(f"the scale {scale}")
    return scale


def _packed(m: Message, width: int, align: int = 1) -> list[int]:
    wanted = align * -(-m.n * width // (8 * align))
    m.text(8 * wanted if align > 1 else m.n * width)
    return fields.unpack(m.data, m.n, width, align=align)


def _raw(m: Message) -> Any:
    if m.dtype in integers.CODES | integers.FLOATS8:
        return integers.read(m.data, m.nbits, m.n, m.dtype)
    kind = m.codec.dtype
    m.text(m.n * (32 if kind == "float32" else 16))
    if kind == "float32":
        return np.frombuffer(m.data, "<f4")
    return halves.widen(np.frombuffer(m.data, "<u2"), kind)


def _qsgd(m: Message) -> Any:
    c = m.codec
    setting = qsgd.Setting(c.s, c.form, c.bucket, c.norm, c.code)
    if len(m.data) != -(-m.nbits // 8):
        raise universal.Truncated("fewer bytes than bits")
    rices = tuple(int(m.scalars[name]) for name in ("rice", "rice_gap") if name in m.scalars)
    return qsgd.decode(setting, m.data, m.nbits, m.n, rices)


def _two_bit(m: Message) -> Any:
    threshold = m.codec.threshold
    if m.codec.server == "yes":
        threshold = mxnet.server_threshold(float(threshold))
    with np.errstate(all="ignore"):
        t = np.float32(threshold)
    if m.codec.form == "sparse":
        sent = mxnet_sparse.read(m.text(), m.scalars["count"], m.n, m.codec.index)
        out = np.zeros(m.n, np.float32)
        for place, negative in sent:
            out[place] = -t if negative else t
        return out
    if m.codec.form == "context":
        bits = universal.Bits(m.text())
        symbols = contexts.read_symbols(bits, m.n, 3)
        if bits.at != m.nbits:
            raise universal.Corrupt("bits after the last symbol")
        return [t * np.float32(contexts.level_of(s)) if s else 0 for s in symbols]
    if 1 in _packed(m, 2, 4):
        raise universal.Corrupt("the code 01")
    return mxnet.decode_two_bit(m.data, m.n, t)


def _one_bit(m: Message) -> Any:
    _packed(m, 1, 4)
    return mxnet.decode_one_bit(m.data, m.n)


def _terngrad(m: Message) -> Any:
    scale, packing = _finite(m.scalars["scale"]), m.codec.packing
    wanted = {
        "chapter": 8 * -(-m.n // 4),
        "terngrad": 8 * (m.n // 4 + 1),
        "base3": 8 * -(-m.n // 5),
    }
    m.text(wanted.get(packing))
    codes = ternary.unpack(m.data, m.n, packing, m.nbits)
    return [scale * np.float32(code) if code else 0 for code in codes]


def _minmax(m: Message) -> Any:
    c = m.codec
    size = minmax.bucket_of(m.n, c.bucket)
    m.text(64 * -(-m.n // size) + c.bits * m.n)
    return minmax.decode(m.data, m.n, c.bits, c.bucket)


def _sign(m: Message) -> Any:
    scale = np.float32(1) if m.codec.scale == "none" else _finite(m.scalars["scale"])
    _packed(m, 1)
    return sign.decode(m.data, m.n, float(scale))


def _minifloat(m: Message) -> Any:
    c = m.codec
    setting = minifloat.Setting(c.format, c.style, c.code, c.block)
    scale = np.float32(m.scalars["scale"])
    coding, form = m.scalars["table"], MiniFloat(c.format, c.style)
    table, book = (coding + 1 if isinstance(coding, int) else 0), None
    if 0 < table <= codebooks.number_of(form):
        book = codebooks.counts(form, table - 1).tolist()
    if len(m.data) != -(-m.nbits // 8):
        raise universal.Truncated("fewer bytes than bits")
    return minifloat.decode(setting, m.data, m.nbits, m.n, scale, table, book)


def _topk(m: Message) -> Any:
    setting = topk.Setting(m.codec.value, m.codec.index, *_share(m))
    return topk.decode(m.data, m.nbits, m.n, setting)


def _randomk(m: Message) -> Any:
    k, ratio = _share(m)
    setting = randomk.Setting(m.codec.value, "unbiased=yes" in str(m.codec), k, ratio)
    return randomk.decode(m.data, m.nbits, m.n, setting, int(m.scalars["seed"]))


def _share(m: Message) -> tuple[int | None, float]:
    k = m.codec.k
    return (None, float(m.codec.ratio)) if k == "ratio" else (int(k), topk.DEFAULT_RATIO)


def _dct8(m: Message) -> Any:
    c = m.codec
    setting = dct8.Setting(tuple(c.chunk), c.k, c.layout, c.values, c.index)
    return dct8.decode(m.text(), setting, m.shape)


def _powersgd(m: Message) -> Any:
    m.text(8 * len(m.data))
    return powersgd.decode(m.data, m.shape, m.codec.rank).reshape(-1)


def _ecsq(m: Message) -> Any:
    step = _finite(m.scalars["step"])
    centroids = [v for name, v in m.scalars.items() if name.startswith("centroid")] or MIDDLE
    sizes = ecsq.taps(m.shape) if m.codec.transform == "dct" else None
    if sizes is None and m.codec.transform == "dct":
        raise universal.Corrupt("the transform of a tensor without taps")
    arguments = m.data, m.nbits, m.n, step, centroids, m.codec.trellis == "yes"
    return ecsq.read(*arguments, sizes=sizes)[1]


def _lowrank(m: Message) -> Any:
    if not m.codec.rank:
        return _ecsq(m)
    if m.codec.transform != "none":
        raise universal.Corrupt("the transform of a tensor with factors")
    arguments = m.codec.rank, _finite(m.scalars["step"]), m.codec.trellis == "yes"
    return lowrank.decode(m.data, m.nbits, m.shape, *arguments)


def _patch(m: Message) -> Any:
    raise universal.Corrupt("a patch is nothing without its base")


def _lossless(m: Message) -> Any:
    if m.dtype in integers.CODES | integers.FLOATS8:
        itemsize = integers.nbytes(m.dtype)
        patterns = lossless.read(m.data, m.nbits, m.n, m.dtype, itemsize, m.codec.mode)
        data = b"".join(pattern.to_bytes(itemsize, "little") for pattern in patterns)
        return integers.read(data, 8 * len(data), m.n, m.dtype)
    itemsize, _ = lossless.FLOATS[m.dtype]
    patterns = lossless.read(m.data, m.nbits, m.n, m.dtype, itemsize, m.codec.mode)
    bits = np.array(patterns, f"u{itemsize}")
    if m.dtype in halves.NARROW:
        return halves.widen(bits, m.dtype)
    return bits.view(m.dtype)


def _microscale(m: Message) -> Any:
    c, scale = m.codec, float(m.scalars["tensor_scale"])
    if len(m.data) != -(-m.nbits // 8):
        raise universal.Truncated("fewer bytes than bits")
    return microscale.decode(c.format, c.code, m.data, m.nbits, m.n, scale)


def _blockwise(m: Message) -> Any:
    c, n = m.codec, m.n
    if len(m.data) != -(-m.nbits // 8):
        raise universal.Truncated("fewer bytes than bits")
    block = c.block or (m.shape[-1] if m.shape else 1)
    if c.kind in blockwise.TABLES:
        block = max(n, 1)
    return blockwise.decode(c.kind, c.code, m.data, m.nbits, n, block, c.nested == "yes")


def _sparseloco(m: Message) -> Any:
    c = m.codec
    setting = sparseloco.Setting(c.k, c.chunk, c.bins, c.index, c.code)
    return sparseloco.decode(m.data, m.nbits, m.shape, setting)


DECODERS: dict[str, Callable[[Message], Any]] = {
    "raw": _raw,
    "qsgd": _qsgd,
    "mxnet-2bit": _two_bit,
    "mxnet-1bit": _one_bit,
    "terngrad": _terngrad,
    "minmax": _minmax,
    "sign": _sign,
    "minifloat": _minifloat,
    "topk": _topk,
    "randomk": _randomk,
    "dct8": _dct8,
    "powersgd": _powersgd,
    "ecsq": _ecsq,
    "lowrank": _lowrank,
    "lossless": _lossless,
    "patch": _patch,
    "microscale": _microscale,
    "blockwise": _blockwise,
    "sparseloco": _sparseloco,
}
ERRORS = (ValueError, struct.error)
"""What oracles raise for payloads that are wrong."""

__all__ = ["DTYPES", "ERRORS", "Message", "decode", "fields", "frames", "leb128"]
