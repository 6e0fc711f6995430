"""lowrank against an oracle that is written from the specification."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from reference import frame as reference_frame
from reference import lowrank as reference

import gcodec
from fuzz import oracle, targets
from fuzz.valid import valid_frames
from gcodec.analysis.dissect import Dissection
from gcodec.codecs.lowrank import message
from gcodec.frame import crc32c

SHAPES = ((9, 14), (30, 7), (4, 5, 6), (6, 5, 3, 3))
SPECS = ("lowrank:nmse=0.3", "lowrank:nmse=0.01", "lowrank:rank=2,step=0.5", "lowrank:bits=2")


def gradient(shape: tuple[int, ...], noise: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    m, k = shape[0], math.prod(shape[1:])
    x = rng.standard_normal((m, 2)) @ rng.standard_normal((2, k))
    return (x + noise * rng.standard_normal((m, k))).astype(np.float32).reshape(shape)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("trellis", ["no", "yes"])
def test_messages_decode_like_the_oracle(spec: str, trellis: str) -> None:
    codec = gcodec.parse(f"{spec},trellis={trellis}")
    for seed, shape in enumerate(SHAPES):
        noise = (0.05, 1.0)[(seed + (trellis == "yes")) % 2]
        frame = gcodec.Frame.from_bytes(gcodec.encode(gradient(shape, noise, seed), codec))
        assert targets.compare(frame)


def test_scales_equal_those_of_the_oracle() -> None:
    exponents = np.arange(message.MOST_EXPONENT + 1)
    for step in (0.0, 1.0, 0.3, 1e-45, 2.0**-126, 3.4e38):
        wide = [reference.scale(np.float32(step), int(e)) for e in exponents]
        assert message.scales(step, exponents).tobytes() == np.float32(wide).tobytes()


def test_damage_has_the_verdict_of_the_oracle() -> None:
    """Each bit flipped in a valid message, and the description ends where decoding fails."""
    rng = random.Random(1)
    for valid in valid_frames(11, 12, ["lowrank"]):
        outline: Any = reference_frame.parse(valid.data)
        codec_id, dtype, nbits = (outline[key] for key in ("codec_id", "dtype", "nbits"))
        parts = outline["params"], outline["scalars"]
        for _ in range(8 if nbits else 0):
            data = bytearray(outline["payload"])
            bit = rng.randrange(min(nbits, rng.choice((64, nbits))))
            data[bit // 8] ^= 0x80 >> bit % 8
            frame = reference_frame.build(
                codec_id, dtype, outline["shape"], *parts, bytes(data), nbits
            )
            accepted = targets.compare(gcodec.Frame.from_bytes(frame))
            dissection = Dissection(frame)
            assert sum(field.nbits for field in dissection) <= 8 * len(frame)
            assert (dissection.error is None) == accepted


@pytest.mark.parametrize(
    ("byte", "value", "name"),
    [
        (0, 0b01010100, "header checksum"),  # rows of two dimensions
        (0, 0b10010010, "dimensions of the rows"),  # 4 in place of 1 or 2
        (0, 0b11001011, "component"),  # fill that is not zero
        (7, 0xFF, "bytes of the right factor"),  # a string of 895 bytes
        (8, 200, "scale of a row of the right factor"),  # an unknown table
        (25, 9, "scale of a row of the left factor"),  # nine lanes
    ],
)
def test_descriptions_end_at_the_first_bad_field(byte: int, value: int, name: str) -> None:
    payload = bytes.fromhex(
        "ca 808080808080 10 06020400003600 44c7e7e10088ee2a02 02020400003560 4462d25a00f2e72000"
    )
    scalars = reference.scalars(np.float32(0.5))
    good = reference_frame.build(14, 1, (4, 4), b"\1", scalars, payload, 8 * len(payload))
    assert gcodec.decode(good)[3].tolist() == [-1, -2, 0, 1]
    head = len(gcodec.Frame.from_bytes(good).header())
    bad = bytearray(good)
    bad[head + byte] = value
    bad[-4:] = crc32c(bytes(bad[head:-4]))
    with pytest.raises(gcodec.FormatError):
        gcodec.decode(bytes(bad))
    dissection = Dissection(bytes(bad))
    fields = list(dissection)
    assert isinstance(dissection.error, gcodec.FormatError)
    assert fields[-1].name == name
    assert dissection.bad == fields[-1].first + fields[-1].nbits


def test_exponents_are_not_allocated_for_too_few_bits() -> None:
    parts = reference.parameters(1 << 16, False), reference.scalars(np.float32(0.5))
    for nbits in (0, 1 << 16):
        data = b"\xff" * (nbits // 8)
        frame = reference_frame.build(14, 1, (9, 14), *parts, data, nbits)
        with pytest.raises(gcodec.Truncated, match=f"^{nbits} bits cannot contain 65536"):
            gcodec.decode(frame)


def test_a_factor_ends_within_the_payload() -> None:
    """One byte more would be read from other memory."""
    valid = gcodec.parse("lowrank:rank=1,step=0.5").encode(gradient((9, 14), 0.1, 0))
    parts = message.Parts.read(valid, (9, 14))
    sizes = parts.right.nbits // 8, parts.left.nbits // 8
    data = bytearray(valid.tobytes())
    at = len(data) - sum(sizes) - 1
    assert data[at] == sizes[0]
    data[at] = wanted = sum(sizes) + 1
    wrong = valid._replace(data=np.frombuffer(bytes(data), np.uint8))
    with pytest.raises(gcodec.Truncated, match=f"^{wanted} bytes wanted, {wanted - 1} left"):
        valid.codec.decode(wrong, (9, 14))


def test_products_are_bounded() -> None:
    frame = gcodec.encode(gradient((20, 30), 0.1, 1), "lowrank:rank=2,step=0.5")
    for decode in (gcodec.decode, gcodec.Frame.from_bytes):
        decode(frame, limits=gcodec.Limits(max_products=1200))  # type: ignore[operator]
        with pytest.raises(gcodec.LimitExceeded, match="max_products=1199"):
            decode(frame, limits=gcodec.Limits(max_products=1199))  # type: ignore[operator]


def test_a_target_in_a_frame_has_no_meaning() -> None:
    plain: Any = reference_frame.parse(gcodec.encode(np.float32([3, -1]), "lowrank:step=1.0"))
    params = b"\0\0" + np.float32(0.5).tobytes()
    parts = plain["shape"], params, plain["scalars"], plain["payload"], plain["nbits"]
    assert gcodec.decode(reference_frame.build(14, 1, *parts)).tolist() == [3, -1]


def test_the_oracle_refuses_what_is_no_message() -> None:
    good = gcodec.Frame.from_bytes(gcodec.encode(gradient((9, 14), 0.1, 0), SPECS[2]))
    message_of = oracle.Message(
        good.codec, good.payload.scalars, good.payload.tobytes(), good.payload.nbits, (9, 13)
    )
    with pytest.raises(oracle.ERRORS):
        oracle.decode(message_of)
