"""The sparse form of mxnet-2bit: against an oracle, and on bytes that no encoder writes."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
from bit_texts import bytes_of, text_of
from hypothesis import given
from hypothesis import strategies as st
from outcomes import agree, outcome
from reference import crc32c, leb128, positions, seek, universal
from reference import frame as reference_frame
from reference import mxnet_sparse as reference
from reference.positions import CODES
from sweeps import LONG, examples

import gcodec
from gcodec.codecs.mxnet import two_bit
from gcodec.kernels.bits import sent_codes
from gcodec.payload import Payload

MXNET_2BIT = 3
SPARSE = {index: gcodec.parse(f"mxnet-2bit:form=sparse,index={index}") for index in CODES}
SHORTEST = gcodec.parse("mxnet-2bit:form=sparse,index=auto")
AUTO = gcodec.parse("mxnet-2bit:form=auto,index=auto")
DENSE = gcodec.parse("mxnet-2bit")
CONTEXT = gcodec.parse("mxnet-2bit:form=context")


def sent_of(x: np.ndarray) -> reference.Sent:
    """Return the positions of sent elements, and whether each is negative."""
    return [(int(i), bool(x[i] < 0)) for i in np.flatnonzero(np.abs(x) >= 0.5)]


def gradient(n: int, density: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.where(rng.random(n) < density, rng.choice([-1.0, 1.0], n), 0.1).astype(np.float32)


@outcome
def gcodec_outcome(text: str, count: int, n: int, index: str) -> Any:
    """Return the positions and signs that gcodec decodes, or the type of its error."""
    data = bytes_of(text)
    scalars = {"threshold": 0.5, "count": count}
    decoded = SPARSE[index].decode(Payload(SPARSE[index], scalars, data, len(text)), n)
    return sent_of(decoded)


@outcome
def oracle_outcome(text: str, count: int, n: int, index: str) -> Any:
    """Return the positions and signs that the oracle decodes, or the matching type of error."""
    return reference.read(text, count, n, index)


@pytest.mark.parametrize("density", [0.0, 1e-4, 0.02, 0.4, 1.0])
def test_positions_are_computed_as_they_are_listed(density: float) -> None:
    """Ranges begin and end inside of parts of 2^18 codes, and between them."""
    codes = DENSE.quantize(gradient(600_011, density, 1)).codes
    listed, _ = sent_codes.sent(codes)
    computed, k = sent_codes.SentPositions(codes), listed.size
    assert computed.size == k
    assert np.array_equal(computed[:], listed)
    borders = np.searchsorted(listed, [1 << 18, 2 << 18]).tolist()
    for start, stop in itertools.combinations(sorted({0, k // 3, *borders, k // 2 + 1, k}), 2):
        assert np.array_equal(computed[start:stop], listed[start:stop])
    for at in (0, -1, *borders) if k else ():
        assert int(computed[at % k]) == listed[at % k]


@pytest.mark.parametrize("index", [*CODES, "auto"])
@pytest.mark.parametrize("density", [0.0, 1e-3, 0.05, 0.5])
def test_the_shortest_form_is_the_same_with_computed_positions(
    density: float, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, codec = gradient(300_001, density, 2), gcodec.parse(f"mxnet-2bit:form=auto,index={index}")
    expected = gcodec.encode(x, codec)
    forms = [gcodec.parse(f"mxnet-2bit:form={form}") for form in ("dense", "context")]
    shortest = min(codec.encode(x).nbits for codec in (*forms, SPARSE.get(index, SHORTEST)))
    assert gcodec.Frame.from_bytes(expected).payload.nbits == shortest
    monkeypatch.setattr(two_bit, "_FEW", 0)
    assert gcodec.encode(x, codec) == expected


SIZES = (0, 1, 2, 15, 16, 17, 31, 32, 33, 64, 100, 1000, 3000)
DENSITIES = (0.0, 0.0005, 0.01, 0.1, 0.3, 0.5, 0.9, 1.0)


@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("n", SIZES)
def test_bytes_agree_with_the_oracle(n: int, density: float) -> None:
    """Bytes agree, except for free frequencies, and free Rice parameters of several blocks."""
    x = gradient(n, density, seed=n)
    sent = sent_of(x)
    places = [place for place, _ in sent]
    expected_values = DENSE.decode(DENSE.encode(x), n)
    for index, codec in SPARSE.items():
        if index == "rans" and n > 1000:
            continue
        payload = codec.encode(x)
        assert payload.codec == codec
        assert payload.scalars == {"threshold": 0.5, "count": len(sent)}
        expected = reference.write(sent, n, index)
        if index == "rice":
            assert payload.nbits <= len(expected)
            if len(sent) <= positions.RICE_BLOCK:
                parameters = positions.shortest_rice(positions.gaps(places))
                texts = [reference.write(sent, n, index, [r]) for r in parameters]
                assert payload.tobytes() in map(universal.to_bytes, texts)
        elif index != "rans":
            assert payload.nbits == len(expected)
            assert payload.tobytes() == universal.to_bytes(expected)
        text = text_of(payload.tobytes(), payload.nbits)
        assert oracle_outcome(text, len(sent), n, index) == sent
        assert np.array_equal(codec.decode(payload, n), expected_values)
        assert gcodec_outcome(expected, len(sent), n, index) == sent


@pytest.mark.parametrize("gap", [0, 1, 55, 56, 57, 111, 112, 113, 5000, 100_000])
def test_long_gaps(gap: int) -> None:
    """A gap much longer than the others becomes a long run of zeros."""
    n = gap + 400
    x = np.zeros(n, np.float32)
    x[:200] = 1
    x[200 + gap :] = -1
    sent = sent_of(x)
    for index, codec in SPARSE.items():
        payload = codec.encode(x)
        assert np.array_equal(codec.decode(payload, n), x * np.float32(0.5))
        text = text_of(payload.tobytes(), payload.nbits)
        assert oracle_outcome(text, 400, n, index) == sent


@pytest.mark.parametrize("density", DENSITIES)
def test_auto_takes_the_shortest(density: float) -> None:
    for n in SIZES:
        x = gradient(n, density, seed=n)
        dense, auto = DENSE.encode(x), AUTO.encode(x)
        sparse_payloads = [codec.encode(x) for codec in SPARSE.values()]
        sparse = min(sparse_payloads, key=lambda payload: payload.nbits)
        candidates = [dense, sparse, CONTEXT.encode(x)]
        shortest = min(candidates, key=lambda payload: payload.nbits)
        for result, wanted in ((auto, shortest), (SHORTEST.encode(x), sparse)):
            assert result.codec == wanted.codec
            assert (result.nbits, result.tobytes(), result.scalars) == (
                wanted.nbits,
                wanted.tobytes(),
                wanted.scalars,
            )


def test_frames_of_auto_contain_the_resolved_form() -> None:
    cases = (5008, 0.01, ",form=sparse"), (5008, 1.0, ",form=context"), (16, 1.0, "")
    for n, density, form in cases:
        x = gradient(n, density, 1)
        frame = gcodec.encode(x, "mxnet-2bit:form=auto,server=yes")
        read = gcodec.Frame.from_bytes(frame)
        assert str(read.codec) == "mxnet-2bit:server=yes" + form
        assert np.array_equal(gcodec.decode(frame), gcodec.decode(gcodec.encode(x, DENSE)))


@pytest.mark.parametrize("index", CODES)
def test_frames(index: str) -> None:
    """The header omits the default index, and `decode_sparse` returns the sent elements alone."""
    x = gradient(900, 0.03, 4).reshape(30, 30)
    sent = sent_of(x.reshape(-1))
    frame = gcodec.Frame.from_bytes(gcodec.encode(x, SPARSE[index]))
    params = b"\0\1" + bytes([CODES.index(index)] * (index != "rice"))
    scalars = b"\0\0\0\x3f" + leb128.encode(len(sent))
    payload = frame.payload
    wanted = reference_frame.build(
        MXNET_2BIT, 1, (30, 30), params, scalars, payload.tobytes(), payload.nbits
    )
    assert frame.to_bytes() == wanted
    places, values = gcodec.decode_sparse(wanted)
    assert places.tolist() == [place for place, _ in sent]
    assert values.tolist() == [-0.5 if negative else 0.5 for _, negative in sent]


def test_feedback_agrees_with_the_dense_form() -> None:
    dense, sparse = gcodec.Feedback(DENSE), gcodec.Feedback(AUTO)
    rng = np.random.default_rng(3)
    for _ in range(5):
        x = (rng.standard_normal((30, 41)) * 0.3).astype(np.float32)
        a, b = dense.compress("w", x), sparse.compress("w", x)
        assert np.array_equal(gcodec.decode(a), gcodec.decode(b))
        assert np.array_equal(dense.residual("w"), sparse.residual("w"))


@pytest.mark.parametrize("index", CODES)
def test_bare_bytes_need_a_length(index: str) -> None:
    codec = SPARSE[index]
    payload = codec.encode(gradient(100, 0.1, 5))
    decoded = codec.decode(payload.tobytes(), 100, nbits=payload.nbits, **payload.scalars)
    assert np.array_equal(decoded, codec.decode(payload, 100))
    with pytest.raises(gcodec.ParameterError, match="nbits"):
        codec.decode(payload.tobytes(), 100, **payload.scalars)
    with pytest.raises(gcodec.ParameterError, match="count"):
        codec.decode(payload.tobytes(), 100, nbits=payload.nbits)
    with pytest.raises(gcodec.ParameterError, match="form"):
        AUTO.decode(payload.tobytes(), 100, nbits=payload.nbits, **payload.scalars)
    with pytest.raises(gcodec.ParameterError, match="index"):
        SHORTEST.decode(payload.tobytes(), 100, nbits=payload.nbits, **payload.scalars)


SHORT_COUNTS = {  # Pairs of count and n.
    "rice": ((0, 2), (1, 1), (1, 40), (2, 4)),
    "eliasfano": ((0, 2), (1, 9), (2, 4), (4, 9)),
    "bitmap": ((0, 2), (1, 4), (2, 6), (3, 2)),
    "rans": ((0, 2), (3, 2)),
    "huffman": ((1, 1), (2, 1), (2, 2)),
}


@pytest.mark.parametrize("index", CODES)
def test_every_short_payload(index: str) -> None:
    """Both agree on all bit strings of up to 8 bits."""
    for (count, n), nbits in itertools.product(SHORT_COUNTS[index], range(10 if LONG else 9)):
        for number in range(1 << nbits):
            text = universal.fixed(number, nbits)
            wanted = oracle_outcome(text, count, n, index)
            assert agree(gcodec_outcome(text, count, n, index), wanted), (count, n, text)


@given(st.data(), st.sampled_from(CODES), st.integers(0, 10**6))
@examples(100)
def test_damaged_payloads(data: st.DataObject, index: str, seed: int) -> None:
    n = data.draw(st.sampled_from([1, 16, 40, 300]))
    rng = random.Random(seed)
    sent = [(i, rng.random() < 0.5) for i in range(n) if rng.random() < rng.choice([0.02, 0.8])]
    count, text = len(sent), reference.write(sent, n, index)
    for _ in range(rng.randrange(4)):
        if text:
            at = rng.choice(
                [rng.randrange(len(text)), min(count + rng.randrange(40), len(text) - 1)]
            )
            text = text[:at] + str(1 - int(text[at])) + text[at + 1 :]
    text = text[: len(text) - data.draw(st.sampled_from([0, 0, 0, 1, 9]))]
    text += data.draw(st.sampled_from(["", "", "0", "1", "0" * 70]))
    count += data.draw(st.sampled_from([0, 0, 1, 5, -1]))
    count = max(count, 0)
    assert agree(gcodec_outcome(text, count, n, index), oracle_outcome(text, count, n, index)), (
        count,
        n,
        text,
    )


@pytest.mark.parametrize("index", CODES)
@pytest.mark.parametrize(
    ("count", "n"), [(2**62, 5), (2**62 - 1, 2**40), (1, 2**40), (5, 2**33), (3, 7), (9, 2**62)]
)
def test_absurd_scalars_cost_nothing(count: int, n: int, index: str) -> None:
    scalars = {"threshold": 0.5, "count": count}
    payload = Payload(SPARSE[index], scalars, np.zeros(2, np.uint8), 16)
    with pytest.raises(gcodec.FormatError):
        SPARSE[index]._decode_sparse(payload, n)


def test_auto_never_reaches_the_wire() -> None:
    for codes, name in ((b"\0\3", "form"), (b"\0\1\5", "index")):
        frame = bytearray(gcodec.encode(np.ones(40, np.float32), SPARSE["huffman"]))
        at = frame.index(b"\3\0\1\4")  # The parameters are three bytes: server, form, index.
        frame[at + 1 : at + 1 + len(codes)] = codes
        # After the scalars (length, threshold, count) and the number of payload bits.
        end = at + 4 + 1 + 4 + 1 + 2
        frame[end : end + 4] = crc32c.crc32c(bytes(frame[:end])).to_bytes(4, "little")
        with pytest.raises(gcodec.Unsupported, match=name):
            gcodec.decode(bytes(frame))


@pytest.mark.parametrize("index", ["eliasfano", "rans", "huffman"])
def test_seek_tables(index: str) -> None:
    """The seek table is that of the positions; both refuse a changed length, advance or state."""
    n, rng = 900, random.Random(index)
    sent = [(i, rng.random() < 0.5) for i in sorted(rng.sample(range(n), 150))]
    places = [place for place, _ in sent]
    choice = positions.choice_of(index, places, n)
    text = reference.write(sent, n, index, choice)
    log2_block = 5 if index == "rans" else 4
    table = positions.seek_table(index, places, n, choice, log2_block)

    def built(table: seek.Table | None) -> bytes:
        params, scalars = bytes([0, 1, CODES.index(index)]), b"\0\0\0\x3f\x96\1"
        section = None if table is None else seek.section(table)
        data = universal.to_bytes(text)
        return reference_frame.build(
            MXNET_2BIT, 1, (n,), params, scalars, data, len(text), seek=section
        )

    plain = gcodec.Frame.from_bytes(built(None))
    assert plain.with_seek(log2_block).to_bytes() == built(table)
    assert sent_of(gcodec.decode(built(table))) == sent
    assert gcodec.decode_sparse(built(table))[0].tolist() == places
    a, b, *remaining = table.lengths
    wrong = [table._replace(lengths=[a + 1, b, *remaining])]
    wrong.append(table._replace(lengths=[a + 1, b - 1, *remaining]))
    if table.advances is not None:
        a, b, *remaining = table.advances
        wrong.append(table._replace(advances=[a + 1, b - 1, *remaining]))
    for i, lane in itertools.product(range(len(table.states or [])), (0, 9, 31)):
        states = [list(lanes) for lanes in table.states or []]
        states[i][lane] ^= 2
        wrong.append(table._replace(states=states))
    for bad in wrong:
        with pytest.raises(gcodec.Corrupt):
            gcodec.decode(built(bad))
