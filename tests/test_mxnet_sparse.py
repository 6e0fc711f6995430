"""The sparse form of mxnet-2bit: against an oracle, and on bytes that no writer makes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import crc32c
from reference import mxnet_sparse as reference

import gcodec
from gcodec.payload import Payload

SPARSE = gcodec.parse("mxnet-2bit:form=sparse")
AUTO = gcodec.parse("mxnet-2bit:form=auto")
DENSE = gcodec.parse("mxnet-2bit")


def sent_of(x: np.ndarray) -> reference.Sent:
    return [(int(i), bool(x[i] < 0)) for i in np.flatnonzero(np.abs(x) >= 0.5)]


def packed(bits: str) -> bytes:
    return int(bits.ljust(-(-len(bits) // 8) * 8, "0") or "0", 2).to_bytes(
        -(-len(bits) // 8), "big"
    )


def gradient(n: int, density: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.where(rng.random(n) < density, rng.choice([-1.0, 1.0], n), 0.1).astype(np.float32)


SIZES = (0, 1, 2, 15, 16, 17, 31, 32, 33, 64, 100, 1000, 20_000)
DENSITIES = (0.0, 0.0005, 0.01, 0.1, 0.3, 0.5, 0.9, 1.0)


@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("n", SIZES)
def test_bytes_are_those_of_the_oracle(n: int, density: float) -> None:
    x = gradient(n, density, seed=n)
    sent = sent_of(x)
    payload = SPARSE.encode(x)
    rice = reference.best_rice(sent)
    expected = reference.write(sent, rice)
    assert payload.codec == SPARSE
    assert payload.scalars == {"threshold": 0.5, "count": len(sent), "rice": rice}
    assert (payload.nbits, payload.tobytes()) == (len(expected), packed(expected))
    assert payload.nbits <= 2 * n
    assert np.array_equal(SPARSE.decode(payload, n), DENSE.decode(DENSE.encode(x), n))
    assert reference.read(expected, len(sent), rice, n) == sent


@pytest.mark.parametrize("gap", [0, 1, 55, 56, 57, 111, 112, 113, 5000, 100_000])
def test_long_gaps(gap: int) -> None:
    """A gap much longer than the others is a long run of zeros."""
    n = gap + 400
    x = np.zeros(n, np.float32)
    x[:200] = 1
    x[200 + gap :] = -1
    payload = SPARSE.encode(x)
    sent = sent_of(x)
    assert payload.tobytes() == packed(reference.write(sent, payload.scalars["rice"]))
    assert payload.scalars["rice"] == reference.best_rice(sent)
    assert np.array_equal(SPARSE.decode(payload, n), x * np.float32(0.5))


@pytest.mark.parametrize("density", DENSITIES)
def test_auto_takes_the_shorter(density: float) -> None:
    for n in SIZES:
        x = gradient(n, density, seed=n)
        dense, sparse, auto = (codec.encode(x) for codec in (DENSE, SPARSE, AUTO))
        shorter = sparse if sparse.nbits < dense.nbits else dense
        assert auto.codec == shorter.codec
        assert (auto.nbits, auto.tobytes(), auto.scalars) == (
            shorter.nbits,
            shorter.tobytes(),
            shorter.scalars,
        )


def test_frames_of_auto_say_what_they_are() -> None:
    rare, dense = gradient(5008, 0.01, 1), gradient(5008, 1.0, 1)  # whole words, so a tie
    for x, form in ((rare, "sparse"), (dense, "dense")):
        frame = gcodec.encode(x, "mxnet-2bit:form=auto,server=yes")
        read = gcodec.Frame.from_bytes(frame)
        assert str(read.codec) == "mxnet-2bit:server=yes" + (",form=sparse" * (form == "sparse"))
        assert np.array_equal(gcodec.decode(frame), gcodec.decode(gcodec.encode(x, DENSE)))


def test_feedback_is_that_of_the_dense_form() -> None:
    dense, sparse = gcodec.Feedback(DENSE), gcodec.Feedback(AUTO)
    rng = np.random.default_rng(3)
    for _ in range(5):
        x = (rng.standard_normal((30, 41)) * 0.3).astype(np.float32)
        a, b = dense.compress("w", x), sparse.compress("w", x)
        assert np.array_equal(gcodec.decode(a), gcodec.decode(b))
        assert np.array_equal(dense.residual("w"), sparse.residual("w"))


def test_bare_bytes_need_their_length() -> None:
    payload = SPARSE.encode(gradient(100, 0.1, 5))
    decoded = SPARSE.decode(payload.tobytes(), 100, nbits=payload.nbits, **payload.scalars)
    assert np.array_equal(decoded, SPARSE.decode(payload, 100))
    with pytest.raises(gcodec.ParameterError, match="nbits"):
        SPARSE.decode(payload.tobytes(), 100, **payload.scalars)
    with pytest.raises(gcodec.ParameterError, match="count"):
        SPARSE.decode(payload.tobytes(), 100, nbits=payload.nbits, rice=3)
    with pytest.raises(gcodec.ParameterError, match="form"):
        AUTO.decode(payload.tobytes(), 100, nbits=payload.nbits, **payload.scalars)


def decodes(bits: str, count: int, rice: int, n: int) -> reference.Sent | None:
    """What gcodec reads, or None."""
    scalars = {"threshold": 0.5, "count": count, "rice": rice}
    data = np.frombuffer(packed(bits), np.uint8)
    try:
        found = SPARSE.decode(Payload(SPARSE, scalars, data, len(bits)), n)
    except gcodec.FormatError:
        return None
    return sent_of(found)


@pytest.mark.parametrize("nbits", range(9))
def test_every_short_payload(nbits: int) -> None:
    """All bit strings up to 8 bits: read as the oracle does, or refused as it refuses."""
    for digits in itertools.product("01", repeat=nbits):
        bits = "".join(digits)
        for count, rice, n in itertools.product(range(5), range(3), (0, 1, 2, 4, 9)):
            assert decodes(bits, count, rice, n) == reference.read(bits, count, rice, n)


@given(st.data())
@settings(max_examples=300)
def test_damaged_payloads(data: st.DataObject) -> None:
    n = data.draw(st.sampled_from([1, 16, 40, 300]))
    x = gradient(n, data.draw(st.sampled_from([0.02, 0.3, 0.8])), data.draw(st.integers(0, 99)))
    payload = SPARSE.encode(x)
    count, rice = payload.scalars["count"], payload.scalars["rice"]
    bits = reference.write(sent_of(x), rice)
    for _ in range(data.draw(st.integers(1, 3))):
        if bits:
            at = data.draw(st.integers(0, len(bits) - 1))
            bits = bits[:at] + str(1 - int(bits[at])) + bits[at + 1 :]
    bits = bits[: data.draw(st.sampled_from([len(bits), max(len(bits) - 1, 0)]))]
    count += data.draw(st.sampled_from([0, 0, 1, 5]))
    rice += data.draw(st.sampled_from([0, 0, 1, 47 - rice]))
    assert decodes(bits, count, rice, n) == reference.read(bits, count, rice, n)


@pytest.mark.parametrize(
    ("count", "rice", "n"), [(2**62 - 1, 0, 5), (1, 47, 2**40), (1, 0, 2**33), (3, 47, 7)]
)
def test_absurd_scalars_cost_nothing(count: int, rice: int, n: int) -> None:
    scalars = {"threshold": 0.5, "count": count, "rice": rice}
    payload = Payload(SPARSE, scalars, np.zeros(2, np.uint8), 16)
    with pytest.raises(gcodec.FormatError):
        SPARSE.unpack(payload, n)


def test_the_unresolved_form_is_never_on_the_wire() -> None:
    frame = bytearray(gcodec.encode(gradient(50, 0.1, 2), SPARSE))
    at = frame.index(bytes([2, 0, 1]))  # parameters: two bytes, server=no, form=sparse
    frame[at + 2] = 2
    end = at + 3 + 1 + 4 + 1 + 1 + 1  # scalars: length, threshold, count, rice; payload bits
    frame[end : end + 4] = crc32c.crc32c(bytes(frame[:end])).to_bytes(4, "little")
    with pytest.raises(gcodec.Unsupported, match="form"):
        gcodec.decode(bytes(frame))
