"""Inputs of all kinds for decoders, few enough for slow engines."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import gcodec
from fuzz import run
from fuzz.crafted import crafted
from fuzz.figures.exhaustive import CASES, frame_of
from fuzz.goldens import ROOT, goldens
from fuzz.promises import LIMITS
from fuzz.repair import repair
from fuzz.valid import valid_frames

LARGEST = 30_000  # most elements of a frame for slow decoding
# Codecs with several blocks that are read at once, and log2 of the block size.
BLOCKS = (
    *(("qsgd:form=dense", 6), ("qsgd:form=dense,s=300", 6), ("qsgd:form=sparse", 5)),
    *(("qsgd:form=sparse,code=rice,s=100", 5), ("qsgd:form=dense,code=rice", 6)),
    *(("qsgd:form=sparse,bucket=100", 4), ("qsgd:code=huffman,bucket=90", 6)),
    *(("qsgd:code=rans,s=2", 7), ("minifloat:code=huffman", 6), ("minifloat:code=pair", 5)),
    *(("minifloat:code=planes,format=e4m3", 6), ("minifloat:code=rans,format=e4m3", 8)),
    *(("terngrad:pack=rans", 6), ("topk:ratio=0.5,index=eliasfano", 5)),
    *(("topk:ratio=0.5,index=huffman", 5), ("topk:ratio=0.5,index=rans", 6)),
    *(("mxnet-2bit:form=sparse,index=eliasfano", 4), ("mxnet-2bit:form=sparse", 12)),
    *(("topk:ratio=1,index=rice", 12), ("ecsq:step=0.5", 8)),
)


class Input(NamedTuple):
    """A hostile input for a decoder.

    Attributes
    ----------
    kind : str
        ``golden``, ``error``, ``crafted``, ``valid``, ``short``, ``table``, ``blocks`` or
        ``mutant``.
    data : bytes
        The frame.
    key : bytes or None
        Key of its tag.
    read : callable
        Reader ``(data, key=None) -> array``, or to a tuple of arrays.
    """

    kind: str
    data: bytes
    key: bytes | None = None
    read: Callable[..., Any] = gcodec.decode


def outcome(one: Input) -> list[bytes] | str:
    """Read an input; return the bytes of its values, or the kind of its error."""
    try:
        value = one.read(one.data, key=one.key)
    except gcodec.GcodecError as error:
        return type(error).__name__
    parts = value if isinstance(value, tuple) else (value,)
    return [np.asarray(part).tobytes() for part in parts]


def inputs(seed: int, mutants: int) -> list[Input]:
    """Return golden frames and errors, valid frames, short payloads, and mutants."""
    rng = random.Random(seed)
    collected = [Input("golden", golden.data, golden.key) for golden in goldens()]
    errors = sorted((ROOT / "fuzz" / "golden-errors").glob("*.gcf"))
    reads = gcodec.decode, gcodec.decode_sparse
    collected += [
        Input("error", path.read_bytes(), None, read) for path in errors for read in reads
    ]
    collected += [Input("crafted", one.data, None, one.read) for one in crafted()]
    collected += [Input("valid", one.data) for one in valid_frames(seed, 20)]
    for case in 25 * CASES:
        for n in case.sizes:
            string = rng.randrange(1 << rng.randrange(18), 1 << 18)
            collected.append(Input("short", frame_of(case, n, string).to_bytes()))
    tabled = [one.data for one in collected if one.kind == "valid" and one.data[4] & 2]
    collected += [Input("table", _table_mutant(data, rng)) for data in 4 * tabled]
    collected += list(_with_blocks(rng))
    seeds = [golden.data for golden in goldens() if golden.key is None]
    seeds += [one.data for one in collected if one.kind == "valid"]
    mutated = (_payload_mutant(rng.choice(seeds), rng) for _ in range(mutants // 2))
    collected += [Input("mutant", data) for data in mutated]
    repaired = map(repair, run.mutants(seeds, rng))
    collected += [Input("mutant", data) for data in itertools.islice(repaired, mutants // 2)]
    return [one for one in collected if _small(one)]


def _payload_mutant(data: bytes, rng: random.Random) -> bytes:
    """Flip bits of the payload of a frame, or cut it; of the header, only the size changes."""
    frame = gcodec.Frame.from_bytes(data)
    payload, nbits = bytearray(frame.payload.tobytes()), frame.payload.nbits
    if not payload:
        return data
    if rng.random() < 0.3:
        nbits = rng.randrange(nbits + 1)
        del payload[-(-nbits // 8) :]
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        if payload:
            payload[rng.randrange(len(payload))] ^= 1 << rng.randrange(8)
    if payload and nbits % 8:
        payload[-1] &= 0xFF << 8 - nbits % 8 & 0xFF

    changed = frame.payload._replace(data=np.frombuffer(bytes(payload), np.uint8), nbits=nbits)
    if nbits != frame.payload.nbits or rng.random() < 0.5:
        changed = changed._replace(seek=None)
    mutated: bytes = gcodec.Frame(
        frame.codec, frame.dtype, frame.shape, changed, frame.name
    ).to_bytes()
    return mutated


def _with_blocks(rng: random.Random) -> Iterator[Input]:
    """Yield frames with many blocks, and mutants of their seek tables and payloads."""
    for spec, log2_block in BLOCKS:
        n = 7 << log2_block if log2_block > 10 else 1200
        x = np.random.default_rng(5).standard_normal(n).astype(np.float32)
        x[7:90] = 0
        frame = gcodec.Frame.from_bytes(gcodec.encode(x, spec)).with_seek(log2_block)
        data = frame.to_bytes()
        yield Input("blocks", data)
        few = 6 if log2_block < 10 else 2
        for _ in range(few if frame.seek else 0):
            yield Input("blocks", _table_mutant(data, rng))
            yield Input("blocks", _payload_mutant(data, rng))
        # Damage one codeword between intact ones.
        body = len(data) - frame.payload.data.size - 4
        for _ in range(2 * few):
            at = body + rng.randrange(frame.payload.data.size - 12)
            part = rng.choice((b"\xff" * 12, bytes(12), rng.randbytes(4)))
            yield Input("blocks", repair(data[:at] + part + data[at + len(part) :]))


def _table_mutant(data: bytes, rng: random.Random) -> bytes:
    """Move bits from one block of a seek table to another, or change a byte of the table."""
    frame = gcodec.Frame.from_bytes(data)
    assert frame.seek is not None
    header = bytearray(frame.header()[:-4])
    end = len(header)
    start = end - len(frame.seek.to_bytes())
    one, other = rng.randrange(start + 2, end), rng.randrange(start + 2, end)
    header[one] = (header[one] + 1) % 256
    if rng.random() < 0.8:
        header[other] = (header[other] - 1) % 256
    return repair(bytes(header) + bytes(4) + data[end + 4 :])


def _small(one: Input) -> bool:
    """Test whether decoding is quick, or rejected before it begins."""
    if one.kind == "crafted":
        return True
    try:
        return gcodec.Frame.from_bytes(one.data, limits=LIMITS, key=one.key).size <= LARGEST
    except gcodec.FormatError:
        return one.kind == "error"
