"""Test that device decoders accept and reject the same frames as the host."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable

import numpy as np
import pytest

import gcodec
from fuzz import decoders
from gcodec.runtime.device import Device, host
from gcodec.wire.seek import SeekTable

# Every kind of string that can have a seek table, with a shape and the log2 of its block size.
TABLED = {
    "qsgd:form=dense,bucket=50": ((40, 30), 6),
    "qsgd:form=dense,code=rice": ((40, 30), 6),
    "qsgd:form=sparse,bucket=100": ((1200,), 5),
    "qsgd:bucket=40,code=huffman": ((40, 30), 6),
    "qsgd:bucket=40,code=rans": ((40, 30), 6),
    "minifloat:code=huffman": ((40, 30), 6),
    "minifloat:code=pair": ((40, 30), 5),
    "minifloat:code=planes,format=e4m3": ((40, 30), 6),
    "minifloat:code=rans,format=e4m3,block=32": ((40, 30), 8),
    "terngrad:pack=rans": ((40, 30), 6),
    "topk:ratio=0.5,index=huffman": ((1200,), 5),
    "mxnet-2bit:form=sparse,index=eliasfano": ((1200,), 4),
    "minifloat:format=e5m2,code=context": ((520, 50), 10),
    "ecsq:step=0.02": ((400, 50), 10),
    "ecsq:step=0.02,trellis=yes": ((400, 50), 10),
    "lossless:mode=fast": ((60, 40), 6),
}
NONE = (
    *("raw", "sign", "minmax", "mxnet-2bit", "terngrad", "randomk", "powersgd", "ecsq:step=0.3"),
    *("lossless:mode=small", "lossless:mode=stored"),
)


@functools.cache
def frame_of(spec: str) -> gcodec.Frame:
    """Return a frame, with a seek table where the codec permits one."""
    shape, log2_block = TABLED.get(spec, ((40, 30), None))
    x = np.random.default_rng(4).standard_normal(shape, np.float32)
    x.reshape(-1)[7:90] = 0
    frame = gcodec.Frame.from_bytes(gcodec.encode(x, spec, seed=3))
    return frame if log2_block is None else frame.with_seek(log2_block)


def ways(gpu: Device, data: bytes, frame: gcodec.Frame) -> decoders.Ways:
    """Return all ways to decode a frame on a device."""

    def empty() -> np.ndarray:
        return gpu.to_device(np.full(frame.shape, 7, np.float32))

    def into(out: np.ndarray) -> np.ndarray:
        gcodec.decode(data, out=out)
        return host(out)

    def added() -> np.ndarray:
        acc = gpu.to_device(np.zeros(frame.shape, np.float32))
        gcodec.decode_add(data, acc)
        return host(acc)

    def dequantized() -> np.ndarray:
        payload = frame.payload._replace(data=gpu.to_device(frame.payload.data))
        return host(frame.codec.decode(payload, frame.shape))

    if not frame.codec.on_device or frame.dtype != "float32":
        return {}
    return {
        "decode(like=) on a device": lambda: host(gcodec.decode(data, like=empty())),
        "decode(out=) on a device": lambda: into(empty()),
        "decode_add on a device": added,
        "Codec.decode on a device": dequantized,
    }


def agree(gpu: Device, data: bytes) -> bool:
    """Check the decoders of the device for a frame, with its seek table and without.

    The decoders of the host agree by a law of their own; see test_decoders.py.

    Returns
    -------
    bool
        Whether the decoders accepted the frame.
    """
    try:
        frame = gcodec.Frame.from_bytes(data, limits=decoders.LIMITS)
    except gcodec.FormatError:
        return False
    frames = {data: frame}
    if frame.seek is not None:
        bare = frame.without_seek()
        frames[bare.to_bytes()] = bare
    verdicts = []
    for written, one in frames.items():
        wanted = outcome(lambda w=written: gcodec.decode(w, limits=decoders.LIMITS))
        verdicts.append(wanted is not None)
        for name, decode in ways(gpu, written, one).items():
            actual = outcome(decode)
            assert (actual is None) == (wanted is None), name
            if wanted is not None:
                expected = np.float32(0) + wanted if name.startswith("decode_add") else wanted
                assert decoders.same_bits(actual, expected), name
    return verdicts[0]


def outcome(decode: Callable[[], np.ndarray]) -> np.ndarray | None:
    try:
        return decode()
    except gcodec.FormatError:
        return None


@pytest.mark.parametrize("spec", [*TABLED, *NONE])
def test_mutants(gpu: Device, spec: str) -> None:
    frame, rng = frame_of(spec), random.Random(spec)
    assert agree(gpu, frame.to_bytes())
    payload, table = decoders.CHANGES[0], decoders.CHANGES.index(decoders._move)
    assert payload is decoders._bit
    kinds = [0, 0, 2, 6] if frame.seek is None else [0, 6, *range(table, table + 9)]
    for operations in (bytes([kind, *rng.randbytes(3)]) for kind in kinds):
        data = decoders.changed(frame, operations)
        if data is not None:
            agree(gpu, data)


@pytest.mark.parametrize("spec", TABLED)
def test_wrong_seek_tables_are_refused(gpu: Device, spec: str) -> None:
    frame = frame_of(spec)
    table = frame.seek
    assert table is not None and table.count > 1
    lengths = table.lengths.copy()
    lengths[0] -= np.uint64(8)
    lengths[-1] += np.uint64(8)
    wrong = SeekTable(table.log2_block, lengths, table.advances, table.states)
    data = dataclasses.replace(frame, payload=frame.payload._replace(seek=wrong)).to_bytes()
    read = gcodec.Frame.from_bytes(data)
    for name, decode in ways(gpu, data, read).items():
        with pytest.raises(gcodec.Corrupt):
            print(name, decode())
