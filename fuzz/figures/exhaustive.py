"""F2: decode all short payloads, and all values of each golden byte, like the oracles."""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

import gcodec
from fuzz.figures.figure import Figure
from fuzz.goldens import of_codecs
from fuzz.promises import BrokenPromiseError
from fuzz.targets import MOST_COMPARED, compare
from gcodec.payload import Payload

ONE = struct.pack(">f", 1)
BITS = 16  # bits of the longest strings after a head
ALL = 12  # bits of the strings that are tried completely
# Sampling of longer strings and, in the short form, of strings of more than 8 bits.
STRIDE, FEW = 29, 8009


class Case(NamedTuple):
    """A codec, the head before the enumerated bits, numbers of elements, and scalars."""

    spec: str
    head: bytes
    sizes: tuple[int, ...]
    scalars: dict[str, float]


CASES = (
    Case("raw", b"\0\0", (0, 1, 2), {}),
    Case("raw:dtype=float16", b"", (0, 1, 2), {}),
    Case("raw:dtype=bfloat16", b"", (0, 1, 2), {}),
    Case("qsgd:s=3,form=dense", ONE, (1, 2, 4), {}),
    Case("qsgd:s=3,form=sparse", ONE, (1, 2, 9), {}),
    Case("qsgd:s=300,form=dense,code=rice", ONE, (1, 2, 3), {"rice": 2}),
    Case("qsgd:s=3,form=sparse,code=rice", ONE, (1, 2, 9), {"rice": 0, "rice_gap": 1}),
    Case("qsgd:s=5,form=dense,code=packed", ONE, (1, 2, 4), {}),
    Case("qsgd:s=1,form=dense,code=huffman", ONE, (1, 2, 3), {}),
    Case("mxnet-2bit", b"\xbe\x2c", (1, 9, 14, 16), {"threshold": 0.5}),
    Case("mxnet-1bit", b"\xbe\x2c", (1, 25, 32), {}),
    Case("mxnet-2bit:form=sparse", b"", (3, 9, 40), {"threshold": 0.5, "count": 2}),
    Case("mxnet-2bit:form=sparse,index=eliasfano", b"", (9, 40), {"threshold": 0.5, "count": 3}),
    Case("mxnet-2bit:form=sparse,index=bitmap", b"", (9, 14), {"threshold": 0.5, "count": 2}),
    Case("mxnet-2bit:form=sparse,index=huffman", b"", (2, 3), {"threshold": 0.5, "count": 2}),
    Case("terngrad", b"", (0, 1, 5, 8), {"scale": 1.5}),
    Case("terngrad:pack=terngrad", b"", (0, 1, 4, 7), {"scale": 1.5}),
    Case("terngrad:pack=base3", b"", (0, 1, 6, 10), {"scale": 1.5}),
    Case("minmax:bits=1", ONE[:2] + bytes(2) + ONE, (1, 8, 11), {}),
    Case("minmax:bits=3", bytes(4) + ONE, (1, 4, 5), {}),
    Case("minmax", struct.pack(">f", -1) + ONE[:2], (1, 2), {}),
    Case("sign", b"", (0, 1, 9, 16), {"scale": 2.0}),
    Case("minifloat:style=ieee,code=none", b"", (1, 3, 4), {"scale": 0.5, "table": "empirical"}),
    Case("minifloat:code=huffman,table=2", b"", (1, 2, 5), {"scale": 0.5, "table": 2}),
    Case("minifloat:code=pair,table=2", b"", (1, 2, 5), {"scale": 0.5, "table": 2}),
    Case("minifloat:format=e4m3,code=planes,table=2", b"", (1, 2), {"scale": 0.5, "table": 2}),
    Case("minifloat:format=e1m1,code=huffman", b"", (1, 2), {"scale": 0.5, "table": "empirical"}),
    Case("minifloat:code=none,block=2", b"", (1, 2, 3), {"scale": 0.5, "table": "empirical"}),
    Case("microscale", b"\x7f", (1, 2), {"tensor_scale": 1.0}),
    Case("microscale:format=mxfp6e2m3", b"", (1,), {"tensor_scale": 1.0}),
    Case("microscale:format=nvfp4", b"", (1, 2, 3), {"tensor_scale": 0.5}),
    Case(
        "microscale:format=mxfp4,code=huffman", b"\0\x7f\1\1\x11", (1, 2, 5), {"tensor_scale": 1.0}
    ),
    Case("blockwise", bytes(2) + b"\x80\x3f", (1, 2, 3), {}),
    Case("blockwise:kind=fp8", bytes(2), (1,), {}),
    Case("blockwise:kind=meanstd16", bytes(4) + b"\0\0\x80\x3f", (1,), {}),
    Case("blockwise:kind=meanstd16", bytes(6), (1,), {}),
    Case("blockwise:kind=fp4,code=huffman", bytes(2) + b"\x80\x3f\1\1", (1, 2, 5), {}),
    Case("sparseloco:k=2,chunk=2,bins=2,code=none,index=rice", 4 * ONE, (2, 4), {}),
    Case("sparseloco:k=1,chunk=8,bins=3,code=none,index=eliasfano", 5 * ONE, (1, 5), {}),
    Case("topk:k=1,index=rice", ONE, (1, 9, 500), {}),
    Case("topk:k=2,index=eliasfano", ONE + ONE, (2, 9, 50), {}),
    Case("topk:k=2,index=bitmap", ONE + ONE, (2, 9, 16), {}),
    Case("topk:k=3,index=rice,value=sign", ONE, (4, 9), {}),
    Case("topk:k=1,index=eliasfano,value=float16", b"", (1, 2, 20), {}),
    Case("randomk:k=9,value=sign", ONE, (9, 12), {"seed": 3}),
    Case("randomk:k=1,value=float16", b"", (1, 8), {"seed": 3}),
    Case("dct8:chunk=2,k=2,index=fixed", struct.pack(">H", 0x7F00), (1, 2), {}),
    Case("dct8:chunk=2,k=1,values=float32,index=fixed", bytes(2), (1, 2), {}),
    Case("dct8:chunk=8,k=1,index=rice", struct.pack(">H", 0x7F00), (3, 8), {}),
)


def exhaustive(short: bool) -> Figure:
    """Compare all strings of up to 16 bits after a head, and all values of golden bytes."""
    count = values = 0
    failures: list[str] = []
    for case, n, string in _payloads(short):
        frame = frame_of(case, n, string)
        count += 1
        try:
            values += bool(compare(frame))
        except BrokenPromiseError as error:
            failures.append(f"{case.spec} n={n} {string:b}: {error}")
    few = count
    for golden in of_codecs(1 if short else 4):
        if golden.key is not None:
            continue
        frame = gcodec.Frame.from_bytes(golden.data).without_seek()
        if frame.size > MOST_COMPARED:
            continue
        for changed in _changed(frame.payload, 193 if short else 1):
            count += 1
            other = gcodec.Frame(frame.codec, frame.dtype, frame.shape, changed)
            try:
                values += bool(compare(other))
            except BrokenPromiseError as error:
                failures.append(f"{golden.name} {changed.tobytes().hex()}: {error}")
    detail = (
        f"{few} payloads of up to {BITS} bits behind a head, in {len(CASES)} settings"
        f"{'' if short else f', all of up to {ALL} bits'}; "
        f"{count - few} of golden ones with one other byte; {values} have values"
    )
    promise = "payloads read as the oracles read them, value or error"
    return Figure("F2", promise, count, "payloads", failures, detail)


def _payloads(short: bool) -> Iterator[tuple[Case, int, int]]:
    """Yield each setting, number of elements, and bits after the head with a leading one."""
    for case in CASES:
        for string in range(1, 2 << BITS):
            step = (19 if string < 256 else FEW) if short else 1 if string < 2 << ALL else STRIDE
            if string % step == 1 % step:
                for n in case.sizes:
                    yield case, n, string


@functools.cache
def _codec(spec: str) -> Any:
    return gcodec.parse(spec)


def frame_of(case: Case, n: int, string: int) -> gcodec.Frame:
    """Return a frame of a setting's head and the bits of a number after its leading one."""
    codec = _codec(case.spec).of_message(case.scalars)
    nbits = string.bit_length() - 1
    body = (string - (1 << nbits) << -nbits % 8).to_bytes(-(-nbits // 8), "big")
    data = np.frombuffer(case.head + body, np.uint8)
    payload = Payload(codec, dict(case.scalars), data, 8 * len(case.head) + nbits)
    return gcodec.Frame(codec, "float32", (n,), payload)


def _changed(payload: Payload, step: int) -> Iterator[Payload]:
    """Yield the payload with one byte changed, for all bytes and all or some values."""
    for at in range(0, 256 * payload.data.size, step):
        data = payload.data.copy()
        data[at // 256] = at % 256
        yield payload._replace(data=data)
