"""Test that all ways to decode a frame agree on its values or reject it; see fuzz.decoders."""

from __future__ import annotations

import dataclasses
import functools
import random

import numpy as np
import pytest
import strategies as gs
from sweeps import LONG, in_turn

import gcodec
from fuzz import decoders
from fuzz.promises import BrokenPromiseError
from gcodec.codec import Codec
from gcodec.training import Communicator, Simulator, all_gather_mean
from gcodec.wire.seek import SeekTable

# Every kind of string that can have a seek table, with a shape and the log2 of its block size.
TABLED = {
    "qsgd:form=dense": ((40, 30), 6),
    "qsgd:form=dense,s=300": ((40, 30), 4),
    "qsgd:form=dense,bucket=50,code=rice": ((40, 30), 6),
    "qsgd:form=sparse": ((1200,), 5),
    "qsgd:form=sparse,bucket=100,s=300,code=rice": ((1200,), 3),
    "qsgd:bucket=40,code=huffman": ((40, 30), 6),
    "qsgd:bucket=40,code=rans": ((40, 30), 6),
    "qsgd:s=127,bucket=40,norm=max,code=context": ((400, 64), 9),
    "minifloat:code=huffman": ((40, 30), 6),
    "minifloat:code=pair": ((40, 30), 5),
    "minifloat:code=planes,format=e4m3": ((40, 30), 6),
    "minifloat:code=rans,format=e4m3,block=32": ((40, 30), 8),
    "minifloat:format=e5m2,code=context": ((520, 50), 9),
    "terngrad:pack=rans": ((90, 50), 6),
    "terngrad:pack=context": ((1100, 100), 13),
    "topk:ratio=0.5,index=eliasfano": ((1200,), 5),
    "topk:ratio=0.5,index=huffman": ((1200,), 5),
    "topk:ratio=0.5,index=rans": ((1200,), 6),
    "topk:ratio=0.5,index=rice": ((9000,), 12),
    "mxnet-2bit:form=sparse,index=eliasfano": ((1200,), 4),
    "mxnet-2bit:form=sparse,index=huffman": ((1200,), 4),
    "mxnet-2bit:form=context": ((850, 100), 13),
    "ecsq:step=0.02": ((400, 50), 9),
    "ecsq:step=0.02,rounding=stochastic": ((400, 50), 9),
    "ecsq:step=0.02,trellis=yes": ((400, 50), 9),
    "ecsq:step=0.02,transform=dct": ((16, 150, 3, 3), 9),
    "ecsq:nmse=0.1": ((700, 100), 16),
    "ecsq:nmse=0.02,trellis=yes": ((700, 100), 16),
}
EACH = 40 if LONG else 1  # mutants of each kind


@functools.cache
def frame_of(spec: str) -> gcodec.Frame:
    """Return a frame with a seek table."""
    shape, log2_block = TABLED[spec]
    x = np.random.default_rng(4).standard_normal(shape, np.float32)
    x.reshape(-1)[7:90] = 0
    frame = gcodec.Frame.from_bytes(gcodec.encode(x, spec, seed=3)).with_seek(log2_block)
    assert frame.seek is not None
    return frame


def moved(frame: gcodec.Frame, one: int = 0) -> gcodec.Frame:
    """Return the frame with a seek table that moves a byte from one block to the last."""
    table = frame.seek
    assert table is not None
    lengths = table.lengths.copy()
    lengths[one] -= np.uint64(8)
    lengths[-1] += np.uint64(8)
    wrong = SeekTable(table.log2_block, lengths, table.advances, table.states)
    return dataclasses.replace(frame, payload=frame.payload._replace(seek=wrong))


# --- the law ------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", TABLED)
def test_mutants_of_frames_with_tables(spec: str) -> None:
    frame, rng = frame_of(spec), random.Random(spec)
    assert decoders.agree(frame.to_bytes())
    accepted = 0
    for kind in range(len(decoders.CHANGES)):
        for _ in range(EACH if LONG or frame.size < 30_000 else 1):
            operations = bytes([kind, *rng.randbytes(3)])
            data = decoders.changed(frame, operations)
            accepted += data is not None and decoders.agree(data)
    assert accepted  # for example, the frame without its table


@pytest.mark.parametrize(
    ("codec", "shape"), in_turn(gs.FEW, [(40, 30), (300,), (4, 2, 3, 3)]), ids=str
)
def test_mutants_of_every_codec(codec: Codec, shape: tuple[int, ...]) -> None:
    rng = random.Random(str(codec))
    frame = decoders.honest(codec, shape, "float32", rng.randrange(16))
    if frame is None:
        return
    assert decoders.agree(frame.to_bytes())
    for _ in range(EACH):
        operations = rng.randbytes(decoders.OPERATION * rng.choice((1, 1, 2)))
        if (data := decoders.changed(frame, operations)) is not None:
            decoders.agree(data)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("spec", ["qsgd:form=sparse", "ecsq:step=0.1", "topk", "terngrad"])
def test_mutants_of_other_dtypes(spec: str, dtype: str) -> None:
    rng = random.Random(spec)
    frame = decoders.honest(gcodec.parse(spec), (90, 50), dtype, 7)
    assert frame is not None
    for _ in range(4 * EACH):
        if (data := decoders.changed(frame, rng.randbytes(decoders.OPERATION))) is not None:
            decoders.agree(data)


def test_law_detects_a_differing_decoder() -> None:
    frame = frame_of("qsgd:form=dense")
    with pytest.raises(BrokenPromiseError, match="decode accepts, mine refuses"):
        decoders.agree(frame.to_bytes(), more=lambda data, frame: {"mine": refuse})
    with pytest.raises(BrokenPromiseError, match="decode refuses, mine accepts"):
        decoders.agree(
            moved(frame).to_bytes(), more=lambda data, frame: {"mine": lambda: np.zeros(1)}
        )
    with pytest.raises(BrokenPromiseError, match="mine returns the values of decode"):
        decoders.agree(
            frame.to_bytes(),
            more=lambda data, frame: {"mine": lambda: np.zeros(frame.shape, np.float32)},
        )


def refuse() -> np.ndarray:
    raise gcodec.Corrupt("on principle")


# --- required tables ----------------------------------------------------------------------------


@pytest.mark.parametrize("spec", TABLED)
def test_every_decoder_refuses_wrong_tables(spec: str) -> None:
    frame = frame_of(spec)
    assert frame.seek is not None
    if frame.seek.count < 2:
        pytest.skip("one block, whose length is that of the string")
    wrong = moved(frame)
    data, symbols = wrong.to_bytes(), frame.codec.unpack(frame.payload, frame.shape)
    assert symbols is not None
    calls = [
        *(lambda: gcodec.decode(data), lambda: gcodec.decode_range(data, 0, frame.size)),
        lambda: gcodec.decode_add(data, np.zeros(frame.shape, np.float32)),
        lambda: wrong.codec.unpack(wrong.payload, wrong.shape),
        *(lambda: wrong.codec.decode(wrong.payload, wrong.shape), wrong.decode),
    ]
    for call in calls:
        with pytest.raises(gcodec.Corrupt):
            call()


@pytest.mark.parametrize("log2_block", range(5, 19))
def test_tables_of_a_trellis_with_blocks_of_any_size(log2_block: int) -> None:
    frame = frame_of("ecsq:nmse=0.02,trellis=yes").with_seek(log2_block)
    assert frame.seek is not None
    assert decoders.agree(frame.to_bytes())
    if frame.seek.count > 1:
        assert not decoders.agree(moved(frame, 1 % (frame.seek.count - 1)).to_bytes())


@pytest.mark.parametrize(
    "spec",
    [
        *("ecsq:step=0.1", "ecsq:step=0.1,trellis=yes", "qsgd:bucket=40,code=rans"),
        *(
            "qsgd:bucket=40,code=context",
            "topk:threshold=1,index=rans",
            "topk:threshold=1,index=rice",
        ),
        *("qsgd:form=sparse", "mxnet-2bit:form=sparse,index=eliasfano"),
    ],
)
def test_tables_of_empty_strings_are_refused(spec: str) -> None:
    codec = gcodec.parse(spec)
    frame = gcodec.Frame.from_bytes(gcodec.encode(np.zeros(1200, np.float32), codec))
    nbits, blocks = frame.payload.nbits, frame.codec.seek_blocks
    states = np.full((1, 32), 1 << 16, np.uint32) if blocks == "states" else None
    advances = np.ones(1, np.uint64) if blocks == "values" else None
    for length in {0, nbits}:
        table = SeekTable(16, np.array([length], np.uint64), advances, states)
        wrong = dataclasses.replace(frame, payload=frame.payload._replace(seek=table))
        assert not decoders.agree(wrong.to_bytes())


def test_tables_of_zero_norm_buckets() -> None:
    x = np.zeros(1200, np.float32)
    for spec in ("qsgd:form=dense,bucket=40", "qsgd:bucket=40,code=huffman"):
        frame = gcodec.Frame.from_bytes(gcodec.encode(x, spec))
        for lengths in ([0, 0, 0], [0, 8, 0], [0, 0, frame.payload.nbits]):
            table = SeekTable(9, np.array(lengths, np.uint64))
            result = dataclasses.replace(frame, payload=frame.payload._replace(seek=table))
            assert decoders.agree(result.to_bytes()) == (not any(lengths))


# --- averages -----------------------------------------------------------------------------------


def test_averages_refuse_a_wrong_table() -> None:
    frame = frame_of("ecsq:nmse=0.1")

    def mean_of(one: gcodec.Frame) -> np.ndarray:
        def worker(communicator: Communicator) -> np.ndarray:
            return all_gather_mean(communicator, [one.to_bytes()])[0]

        return Simulator(1).run(worker)[0]

    assert gs.same_bits(mean_of(frame), frame.decode())
    with pytest.raises(gcodec.Corrupt):
        mean_of(moved(frame))


def test_averages_of_buckets_refuse_a_wrong_table() -> None:
    pytest.importorskip("torch")
    from gcodec.torch.messages import BucketCoder, Key, Part

    frame = frame_of("ecsq:nmse=0.1")
    codec = gcodec.parse("ecsq:nmse=0.1")
    for one, accepted in ((frame, True), (moved(frame), False)):
        message = b"\1" + dataclasses.replace(one, name="w").to_bytes()
        parts = [Part("w", np.ones(frame.shape, np.float32), codec)]
        if accepted:
            BucketCoder(None, 0, 0, Key(None)).average(parts, [message, message])
            assert gs.same_bits(parts[0].values, frame.decode())
            continue
        with pytest.raises(gcodec.Corrupt, match="rank 0"):
            BucketCoder(None, 0, 0, Key(None)).average(parts, [message, message])


# --- sparse decoding ----------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e-36, 1, 1e30])
@pytest.mark.parametrize("n", [0, 1, 50, 5000, 70_000])
@pytest.mark.parametrize(
    "spec", ["qsgd:form=sparse", "qsgd:form=sparse,s=16777216,bucket=100,code=rice"]
)
def test_levels_of_few_elements(spec: str, n: int, scale: float) -> None:
    x = (np.random.default_rng(n).standard_normal(n) * scale).astype(np.float32)
    x[n // 5 : n // 2] = 0
    frame = gcodec.Frame.from_bytes(gcodec.encode(x, spec))
    for one in (frame, frame.without_seek(), frame.with_seek(3)):
        places, values = one.decode_sparse()
        scattered = np.zeros(n, np.float32)
        scattered[places] = values
        assert gs.same_bits(scattered, one.decode() + np.float32(0))
        assert (np.diff(places) > 0).all()
        symbols = frame.codec.unpack(frame.payload, frame.shape)
        assert places.size == values.size == np.count_nonzero(symbols.levels)


def test_sparse_decoding_refuses_dense_frames() -> None:
    for spec in ("ecsq:step=0.02", "qsgd:form=dense", "minifloat:code=huffman"):
        frame = frame_of(spec)
        for one in (frame, moved(frame)):
            with pytest.raises(gcodec.ParameterError, match="sends all elements"):
                gcodec.decode_sparse(one.to_bytes())


# --- parts --------------------------------------------------------------------------------------


def test_every_range_checks_the_header_parts() -> None:
    """Decoding any range reads the head of the string and the sum of the table."""
    frame = frame_of("ecsq:nmse=0.1")
    table = frame.seek
    assert table is not None
    lengths = table.lengths.copy()
    lengths[0] += np.uint64(8)
    longer = SeekTable(table.log2_block, lengths, None, table.states)
    head = frame.payload.data.copy()
    head[1] = 5  # number of interleaved states
    for fields in ({"seek": longer}, {"data": head}):
        wrong = dataclasses.replace(frame, payload=frame.payload._replace(**fields))
        for start, stop in ((0, 1), (frame.size - 1, frame.size)):
            with pytest.raises(gcodec.FormatError):
                wrong.decode_range(start, stop)
