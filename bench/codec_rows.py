"""Rows of the benchmark for the public calls of codecs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bench.kernel_rows import CACHED, Row


class Moved(NamedTuple):
    """Bytes that error feedback must read and write for each value, besides the payload."""

    read: int
    written: int


# The gradient and the residual are read, and the new residual is written.
_ONE_PASS = Moved(8, 4)
# A codec whose scale depends on all values also writes the sum, and reads it again.
_TWO_PASSES = Moved(12, 8)
# Or it reads the gradient and the residual twice.
_READ_TWICE = Moved(16, 4)
# One that corrects its scales by the codes makes two passes; it also writes and reads the codes,
# and reads the errors twice more.
_THREE_PASSES = Moved(22, 9)


class Goals(NamedTuple):
    """Speed goals for the calls of a codec, relative to memcpy, and what error feedback moves."""

    payload: float | None = None
    residual: float | None = None
    decode: float | None = None
    add: float | None = None
    moved: Moved = _ONE_PASS


_STEPS = 4  # after which a codec sends about as much in each step
_GOALS = {
    "mxnet-2bit": Goals(residual=1.1, decode=1.8, add=1.8),
    "mxnet-2bit:threshold=3,form=auto": Goals(),
    "mxnet-1bit": Goals(),
    "sign": Goals(payload=1.6, moved=_READ_TWICE),
    "sign:scale=none": Goals(payload=1.8),
    "minmax": Goals(payload=0.9, moved=_TWO_PASSES),
    "minmax:bits=4,bucket=512": Goals(),
    "minmax:rounding=stochastic": Goals(moved=_TWO_PASSES),
    "terngrad": Goals(payload=0.42, moved=_TWO_PASSES),
    "terngrad:pack=terngrad": Goals(moved=_TWO_PASSES),
    "terngrad:pack=base3": Goals(moved=_TWO_PASSES),
    "qsgd:form=dense": Goals(payload=0.33, decode=0.95, moved=_TWO_PASSES),
    "qsgd:form=dense,bucket=512": Goals(payload=0.33, decode=0.73),
    "qsgd:form=sparse": Goals(payload=0.42, moved=_TWO_PASSES),
    "qsgd:bucket=512": Goals(),
    "qsgd:bucket=512,code=rice": Goals(),
    "qsgd:s=127,form=dense,bucket=512": Goals(),
    "qsgd:s=4096,form=dense": Goals(moved=_TWO_PASSES),
    "qsgd:bucket=512,code=rans": Goals(),
    "terngrad:pack=rans": Goals(moved=_TWO_PASSES),
    "dct8": Goals(),
    "dct8:layout=tiles": Goals(),
    "minifloat": Goals(moved=_TWO_PASSES),
    "minifloat:code=none": Goals(moved=_TWO_PASSES),
    "microscale": Goals(),
    "microscale:format=mxfp4": Goals(),
    "microscale:format=nvfp4": Goals(moved=_TWO_PASSES),
    "microscale:format=nvfp4,rounding=stochastic": Goals(moved=_TWO_PASSES),
    "microscale:format=mxfp4,code=rans": Goals(),
    "blockwise": Goals(),
    "blockwise:kind=dynamic8,block=4096": Goals(),
    "blockwise:kind=fp8,block=4096": Goals(),
    "blockwise:kind=uniform8": Goals(moved=_THREE_PASSES),
    "minifloat:scale=0.5,code=pair,table=3": Goals(decode=0.95),
    "minifloat:format=e4m3,code=huffman": Goals(moved=_TWO_PASSES),
    "ecsq:step=1": Goals(payload=0.09, decode=0.15),
    "ecsq:nmse=0.02": Goals(moved=_TWO_PASSES),
    "sparseloco:k=2": Goals(),  # of the 64 elements of a tile of a vector
    "topk": Goals(),
    "topk:ratio=0.1,value=int8": Goals(),
    "randomk": Goals(),
    "randomk:value=int8": Goals(),
}
SPECS = tuple(_GOALS)


def codec_rows(x: np.ndarray) -> list[Row]:
    """Return benchmark rows for (n,) float32 elements."""
    import gcodec

    # Plain NumPy buffers, as users have them, with every page touched.
    residual, acc, other = (np.ones(x.size, np.float32) for _ in range(3))
    raw = gcodec.encode(x, "raw")
    table = [
        row
        for spec, goals in _GOALS.items()
        for row in _calls(spec, goals, x, residual, acc, other)
    ]
    return [
        *table,
        Row("raw: encode", lambda: gcodec.encode(x, "raw")),
        Row("raw: decode(out=)", lambda: gcodec.decode(raw, out=acc)),
    ]


def half_rows(x: np.ndarray) -> list[Row]:
    """Return benchmark rows for error feedback of (n,) elements of 16 bits."""
    import gcodec

    def rows(spec: str) -> list[Row]:
        codec, feedback = gcodec.parse(spec), gcodec.Feedback(spec)
        for _ in range(_STEPS):
            feedback.compress("x", x)

        def encode() -> bytes:
            return gcodec.encode(x, codec)

        compress = Row(
            f"{spec}: Feedback.compress", lambda: feedback.compress("x", x), base=encode
        )
        return [Row(f"{spec}: encode", encode), compress]

    return [row for spec in SPECS for row in rows(spec)]


def _calls(
    spec: str,
    goals: Goals,
    x: np.ndarray,
    residual: np.ndarray,
    acc: np.ndarray,
    other: np.ndarray,
) -> list[Row]:
    """Return the rows for the public calls of a codec; `other` is the output of stream twins."""
    import gcodec
    from bench import twins

    codec = gcodec.parse(spec)
    frame = gcodec.encode(x, codec)
    data = codec.encode(x).data
    width = 8 * data.size // x.size
    out = np.empty(data.size, np.uint8)
    feedback = gcodec.Feedback(codec)
    feedback_of_part, part = gcodec.Feedback(codec), x[:CACHED]
    frame_of_part, parts = gcodec.encode(part, codec), x.size // CACHED
    for _ in range(_STEPS):
        feedback.compress("x", x)
        feedback_of_part.compress("part", part)
    corrected = x + feedback.residual("x")
    packed = width in (1, 2)  # widths that the stream twins support

    def encode() -> bytes:
        return gcodec.encode(x, codec)

    def encode_corrected() -> bytes:
        return gcodec.encode(corrected, codec)

    def compress_parts() -> None:
        for _ in range(parts):
            feedback_of_part.compress("part", part)

    def add_parts() -> None:
        for _ in range(parts):
            gcodec.decode_add(frame_of_part, acc[:CACHED])

    def decode() -> np.ndarray:
        return gcodec.decode(frame, out=acc)

    return [
        Row(
            f"{spec}: quantize_residual",
            lambda: codec.quantize_residual(x, residual),
            (lambda: twins.quantize_residual(x, other, out, width)) if packed else None,
            goals.residual,
            encode_corrected,
        ),
        Row(
            f"{spec}: payload",
            lambda: codec.encode(x),
            twins.stream(x.size, 32, width) if width else None,
            goals.payload,
        ),
        Row(f"{spec}: encode", encode),
        Row(
            f"{spec}: Feedback.compress",
            lambda: feedback.compress("x", x),
            twins.stream(x.size, 8 * goals.moved.read, 8 * goals.moved.written + width),
            base=encode_corrected,
            cached=compress_parts,
        ),
        Row(
            f"{spec}: decode(out=)",
            decode,
            (lambda: twins.dequantize(data, other, width)) if packed else None,
            goals.decode,
        ),
        Row(
            f"{spec}: decode_add",
            lambda: gcodec.decode_add(frame, acc),
            lambda: twins.add(data, other),
            goals.add,
            decode,
            add_parts,
        ),
        Row(f"{spec}: decode", lambda: gcodec.decode(frame), base=decode),
    ]
