"""F7: memory and time that a hostile megabyte can cost."""

from __future__ import annotations

import contextlib
import random
import time
import tracemalloc
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

import gcodec
from fuzz import run
from fuzz.figures.figure import Figure
from fuzz.goldens import ROOT, of_codecs
from fuzz.promises import LIMITS
from fuzz.repair import repair
from fuzz.valid import valid_frames
from gcodec.wire.primitives import ITEMSIZE

MEMORY = 64 << 20  # bytes in addition to the tensor, as float32 and as returned
START, PER = 0.05, 20e-9  # seconds, and seconds per element and per eight bytes
TERM = 1e-9  # transform: seconds per element and point of its chunk, thrice that if it is narrow
NARROW = 16  # points of the last side of a chunk
PRODUCT = 5e-10  # factors: seconds per product
LARGEST = 1 << 20  # bytes of an input
SPECS = (
    *("raw", "qsgd:form=dense", "qsgd:form=sparse", "qsgd:code=huffman", "qsgd:code=rans"),
    *("qsgd:s=16777216,form=dense", "qsgd:code=rice,form=dense", "qsgd:bucket=1,form=dense"),
    *("qsgd:code=packed,form=dense", "qsgd:code=context,form=dense", "sign", "mxnet-1bit"),
    *("mxnet-2bit", "mxnet-2bit:form=sparse", "terngrad", "terngrad:pack=terngrad"),
    *("terngrad:pack=base3", "terngrad:pack=rans", "terngrad:pack=context", "minmax"),
    *("minmax:bits=1,bucket=1", "minmax:bits=3,bucket=100", "minifloat:code=huffman"),
    *("minifloat:code=pair", "minifloat:code=planes", "minifloat:code=rans"),
    *("minifloat:code=none,block=1", "minifloat:code=context", "topk:ratio=0.1,index=rice"),
    *("microscale", "microscale:format=nvfp4", "microscale:format=mxfp4,code=huffman"),
    *("microscale:code=rans", "microscale:format=mxint8,code=context", "sparseloco"),
    *("sparseloco:bins=256,k=4096,chunk=64,index=bitmap", "sparseloco:chunk=2,k=2,index=rans"),
    *("blockwise", "blockwise:kind=dynamic8,nested=yes,block=1,code=rans"),
    *("blockwise:kind=fp8,block=0", "blockwise:kind=uniform8,code=huffman"),
    *("blockwise:kind=meanstd16", "blockwise:kind=meanstd16,block=0"),
    *("topk:ratio=0.1,index=eliasfano", "topk:ratio=0.1,index=bitmap"),
    *("topk:ratio=0.1,index=rans", "topk:ratio=0.1,index=huffman", "topk:k=3,value=int8"),
    *("randomk", "randomk:value=sign,ratio=0.5", "dct8", "dct8:chunk=1,k=1", "dct8:index=rice"),
    *("dct8:chunk=1,k=1,values=float32", "dct8:chunk=4096,k=4096,values=affine8"),
    "dct8:chunk=4096x2,k=8192",
    *("ecsq", "ecsq:nmse=0.3", "ecsq:trellis=yes", "powersgd:rank=64"),
    "lowrank:rank=200,step=30",
)


class Cost(NamedTuple):
    """Cost of decoding: bytes in addition to the tensor, and share of the permitted seconds."""

    memory: int
    time: float


def bounds(short: bool, seed: int = 0) -> Figure:
    """Decode hostile inputs of up to a megabyte, and measure memory and time."""
    inputs = _inputs(short, random.Random(seed))
    count, failures = 0, []
    most, longest = Cost(0, 0.0), Cost(0, 0.0)
    where = slowest = ""
    for name, data in inputs:
        count += 1
        cost = cost_of(data)
        if cost.memory > most.memory:
            most, where = cost, name
        if cost.time > longest.time:
            longest, slowest = cost, name
        if cost.memory > MEMORY:
            failures.append(f"{name}: {cost.memory >> 20} MiB beyond the tensor")
        if cost.time > 1 and not short:  # the tests do not judge time
            failures.append(f"{name}: {cost.time:.1f} times the seconds that are allowed")
    detail = (
        f"at most {most.memory / 2**20:.1f} MiB beyond the tensor ({where}); "
        f"{100 * longest.time:.0f} % of the seconds allowed ({slowest})"
    )
    promise = "no megabyte takes 64 MiB beyond the tensor, or 50 ms + 20 ns for an element"
    return Figure("F7", promise, count, "inputs", failures, detail)


def cost_of(data: bytes) -> Cost:
    """Decode an input a few times; return the cost."""
    n = itemsize = terms = products = 0
    with contextlib.suppress(gcodec.FormatError):
        frame = gcodec.Frame.from_bytes(data)
        n, itemsize = frame.size, ITEMSIZE[frame.dtype]
        if frame.codec.name == "dct8":
            chunk = frame.codec.chunk
            terms = n * sum(chunk) * (3 if chunk[-1] < NARROW else 1)
        products = frame.codec.products(n)
    tensor = n * 4 + (n * itemsize if itemsize != 4 else 0)
    _try_decode(data)  # compiles kernels, makes tables
    tracemalloc.start()
    try:
        _try_decode(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    allowed = START + PER * (n + 8 * len(data)) + TERM * terms + PRODUCT * products
    seconds = min(_try_decode(data) for _ in range(2))
    return Cost(max(peak - tensor, 0), seconds / allowed)


def _try_decode(data: bytes) -> float:
    began = time.perf_counter()
    with contextlib.suppress(gcodec.FormatError):
        gcodec.decode(data)
    return time.perf_counter() - began


def _inputs(short: bool, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Yield rejected, valid and large frames, and frames damaged under correct checksums."""
    for path in sorted((ROOT / "fuzz" / "golden-errors").glob("*.gcf")):
        yield path.name, path.read_bytes()
    for golden in of_codecs(1 if short else 6):
        yield golden.name, golden.data
    for number, one in enumerate(valid_frames(3, 1 if short else 10)):
        yield f"{one.codec} {number}", one.data
    seeds = run.corpus("repaired")
    for number, data in enumerate(run.mutants(seeds, rng)):
        if number == (50 if short else 1000):
            break
        yield f"mutant {number}", repair(data)
    if short:
        return
    for spec in SPECS:
        data = _large(spec)
        yield spec, data
        for kind in range(6):
            yield f"{spec} mutant {kind}", _mutant(data, kind, rng)
    yield from _claims()


def _large(spec: str) -> bytes:
    """Encode as many values as fit in a megabyte."""
    n = 1 << 21
    while True:
        x = np.random.default_rng(1).standard_normal(n, np.float32)
        x[: n // 2 : 3] *= 100
        if "rank" in spec:
            x = x.reshape(1024, -1)
        frame = gcodec.encode(x, spec, name="w")
        if len(frame) <= LARGEST:
            return frame
        n = min(n // 2, int(0.95 * n * LARGEST / len(frame)))


def _mutant(data: bytes, kind: int, rng: random.Random) -> bytes:
    frame = gcodec.Frame.from_bytes(data)
    payload = bytearray(frame.payload.tobytes())
    half = len(payload) // 2
    if kind == 0:
        payload[half:] = bytes(len(payload) - half)
    elif kind == 1:
        payload[half:] = b"\xff" * (len(payload) - half)
    elif kind == 2:
        payload[half:] = rng.randbytes(len(payload) - half)
    elif kind == 3:
        payload[:] = bytes(len(payload))
    elif kind == 4:
        payload[:] = b"\xff" * len(payload)
    else:
        for _ in range(100):
            payload[rng.randrange(len(payload))] ^= 1 << rng.randrange(8)
    header = data[: len(data) - len(payload) - 4]
    return repair(header + payload + b"1234")


def _claims() -> Iterator[tuple[str, bytes]]:
    """Yield short frames that claim tensors as large as the default limits permit, or larger."""
    few = LIMITS.max_elements
    for spec in SPECS:
        x = np.zeros(few, np.float32)
        x[5] = 1
        data = bytearray(gcodec.encode(x, spec))
        frame = gcodec.Frame.from_bytes(bytes(data)).without_seek()
        for n in (1 << 24, (1 << 28) + 1, 1 << 62):
            larger = gcodec.Frame(frame.codec, frame.dtype, (n,), frame.payload)
            yield f"{spec} that claims {n} elements", larger.to_bytes()
