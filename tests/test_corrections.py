"""One test per row of docs/corrections.md: the claim of the source, and what gcodec does."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from reference import fields, mxnet

import gcodec
from gcodec.gradients.dumps import open_dump

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "corrections.md"
EXAMPLE = ROOT / "examples" / "resnet8_digits_step0300.safetensors"


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def bits(x: np.ndarray) -> list[int]:
    return x.view(np.uint32).tolist()


def test_every_row_names_a_test_of_its_own() -> None:
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    rows = [row for row in rows if not row.startswith("| source says")]
    names = [re.fullmatch(r"`(test_\w+)`", row.split("|")[-2].strip()) for row in rows]
    assert all(names) and len(names) >= 10
    found = [name[1] for name in names if name]
    here = {name for name in globals() if name.startswith("test_")}
    assert here - {"test_every_row_names_a_test_of_its_own"} == set(found)
    assert len(set(found)) == len(found)


def test_default_threshold_sends_nothing() -> None:
    with open_dump(EXAMPLE) as dump:
        tensors = [dump.load(entry) for entry in dump.entries]
    assert sum(x.size for x in tensors) == 77_754

    def sent(spec: str) -> int:
        return sum(np.count_nonzero(gcodec.decode(gcodec.encode(x, spec))) for x in tensors)

    assert gcodec.parse("mxnet-2bit").threshold == 0.5
    assert sent("mxnet-2bit") == 0
    assert sent("mxnet-2bit:threshold=auto") > 1000
    for x in tensors:
        assert not any(mxnet.TwoBit(0.5, x.size).step(x.reshape(-1)))


def test_six_decimals_lose_the_threshold() -> None:
    x = f32(1, -1)
    third = gcodec.parse({"name": "mxnet-2bit", "threshold": 1 / 3, "server": "yes"})
    exact = gcodec.parse({"name": "mxnet-2bit", "threshold": 1 / 3})
    assert third.decode(third.encode(x), 2).tolist() == f32(0.333333, -0.333333).tolist()
    assert exact.decode(exact.encode(x), 2).tolist() == f32(1 / 3, -1 / 3).tolist()
    assert mxnet.server_threshold(1 / 3) == np.float32(0.333333) != np.float32(1 / 3)
    for threshold in (5e-7, 1e-7, 1e-30):
        # The original: sent, taken out of the residual, decoded as zero.
        worker = mxnet.TwoBit(threshold, 1)
        payload = worker.step(f32(threshold))
        assert payload[0] == 0b11000000 and worker.residual[0] == 0
        server = mxnet.decode_two_bit(payload, 1, mxnet.server_threshold(threshold))
        assert server[0] == 0
        with pytest.raises(gcodec.ParameterError, match="server=yes"):
            gcodec.parse({"name": "mxnet-2bit", "threshold": threshold, "server": "yes"})
        ours = gcodec.parse({"name": "mxnet-2bit", "threshold": threshold})
        assert ours.decode(payload, 1, threshold=threshold)[0] == np.float32(threshold)


def test_nan_is_stuck_in_the_residual() -> None:
    worker = mxnet.TwoBit(0.5, 2)
    ours = gcodec.Feedback("mxnet-2bit", nonfinite="propagate")
    for step in range(5):
        x = f32(np.nan, np.inf) if step == 0 else f32(100, 0)
        payload = worker.step(x)
        assert payload[0] == 0b00110000  # nothing, and +t once more
        frame = ours.compress("w", x)
        assert gcodec.Frame.from_bytes(frame).payload.tobytes() == payload
        assert np.isnan(ours.residual("w")[0]) and np.isposinf(ours.residual("w")[1])

    careful = gcodec.Feedback("mxnet-2bit")
    careful.compress("w", f32(0.25, 0))
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(gcodec.ParameterError, match="NaN or Inf"):
            careful.compress("w", f32(bad, 0))
    assert careful.residual("w").tolist() == [0.25, 0]
    assert gcodec.decode(careful.compress("w", f32(0.25, 0))).tolist() == [0.5, 0]
    zeroing = gcodec.Feedback("mxnet-2bit", nonfinite="zero")
    zeroing.compress("w", f32(np.nan, 0))
    assert gcodec.decode(zeroing.compress("w", f32(100, 0))).tolist() == [0.5, 0]


def test_residual_is_rounded_twice() -> None:
    # The sum: 1e-9 is lost against a residual of 0.4, however often it comes.
    worker = mxnet.TwoBit(0.5, 1)
    ours = gcodec.Feedback("mxnet-2bit")
    for value in [0.4] + [1e-9] * 20:
        worker.step(f32(value))
        ours.compress("w", f32(value))
    assert worker.residual[0] == ours.residual("w")[0] == np.float32(0.4)
    # The difference: 1.2 - 0.1 in float32 is not the difference of the two.
    worker = mxnet.TwoBit(0.1, 1)
    ours = gcodec.Feedback("mxnet-2bit:threshold=0.1")
    worker.step(f32(1.2))
    frame = ours.compress("w", f32(1.2))
    left = ours.residual("w")
    assert bits(left) == bits(worker.residual)
    exact = float(np.float32(1.2)) - float(gcodec.decode(frame)[0])
    assert float(left[0]) != exact and abs(float(left[0]) - exact) < 1e-7
    # And bit for bit over many steps.
    rng = np.random.default_rng(1)
    worker = mxnet.TwoBit(0.1, 100)
    ours = gcodec.Feedback("mxnet-2bit:threshold=0.1")
    for _ in range(20):
        x = rng.normal(0, 0.1, 100).astype(np.float32)
        payload = worker.step(x)
        assert gcodec.Frame.from_bytes(ours.compress("w", x)).payload.tobytes() == payload
        assert bits(ours.residual("w")) == bits(worker.residual)


def test_payload_does_not_tell_its_size() -> None:
    codec = gcodec.parse("mxnet-2bit:threshold=0.25")
    payloads = {n: codec.encode(f32(*[1] * 5 + [0] * (n - 5))).tobytes() for n in range(5, 18)}
    assert len({payloads[n] for n in range(5, 17)}) == 1
    assert len(payloads[16]) == 4 and len(payloads[17]) == 8
    assert codec.encode(f32(0.25)).tobytes() == gcodec.parse("mxnet-2bit").encode(f32(1)).tobytes()
    frame = gcodec.encode(f32(1, 1, 1, 1, 1), codec)
    assert gcodec.decode(frame).tolist() == [0.25] * 5
    bare = gcodec.parse("mxnet-2bit:threshold=auto")
    assert bare.decode(payloads[5], 5, threshold=0.25).tolist() == [0.25] * 5
    with pytest.raises(gcodec.ParameterError, match="threshold"):
        bare.decode(payloads[5], 5)


def test_residual_subtracts_what_the_server_decodes() -> None:
    threshold = 0.0012345678
    level = mxnet.server_threshold(threshold)
    original = mxnet.TwoBit(threshold, 1)
    corrected = mxnet.TwoBit(threshold, 1, level=float(level))
    spec = {"name": "mxnet-2bit", "threshold": threshold, "server": "yes"}
    ours = gcodec.Feedback(spec)
    for step in range(4):
        x = f32(threshold if step == 0 else 0)
        payload = corrected.step(x)
        frame = ours.compress("w", x)
        assert gcodec.Frame.from_bytes(frame).payload.tobytes() == payload
        assert bits(ours.residual("w")) == bits(corrected.residual)
        first = original.step(x)
        assert step > 0 or first == payload
    assert original.residual[0] == 0  # the difference is gone
    assert ours.residual("w")[0] == np.float32(np.float32(threshold) - level) != 0


@pytest.mark.parametrize("payload", ["40000000", "00000001", "00400000"])
def test_damaged_codes_are_refused(payload: str) -> None:
    data = bytes.fromhex(payload)
    assert mxnet.decode_two_bit(data, 5, 0.5).tolist() == [0, 0, 0, 0, 0]
    with pytest.raises(gcodec.Corrupt):
        gcodec.parse("mxnet-2bit").decode(data, 5)


def test_words_have_32_bits() -> None:
    codec = gcodec.parse("mxnet-2bit")
    x = f32(0.5, -0.5, 0.49, -0.7, 1.2)
    codes = mxnet.TwoBit(0.5, 5).codes(x)
    half_words = fields.pack(codes, 2) + b""  # 10 bits, filled up to 16
    assert half_words.hex() == "e2c0"
    assert codec.encode(x).tobytes() == mxnet.TwoBit(0.5, 5).step(x) == half_words + bytes(2)
    with pytest.raises(gcodec.Truncated):
        codec.decode(half_words, 5)


def test_one_bit_ignores_the_scale() -> None:
    for threshold in (0.0, 0.25):
        codec = gcodec.parse({"name": "mxnet-1bit", "threshold": threshold})
        assert codec.decode(codec.encode(f32(0.3, -0.3)), 2).tolist() == [1, -1]
    # Gradients of a millionth: what is sent is a million times larger, and swings.
    worker = mxnet.OneBit(0.0, 1)
    ours = gcodec.Feedback("mxnet-1bit")
    x = f32(1e-6)
    sent = []
    for _ in range(6):
        payload = worker.step(x)
        frame = ours.compress("w", x)
        assert gcodec.Frame.from_bytes(frame).payload.tobytes() == payload
        assert bits(ours.residual("w")) == bits(worker.residual)
        sent.append(float(gcodec.decode(frame)[0]))
        assert abs(float(ours.residual("w")[0])) < 2
    assert sent == [1, -1, 1, -1, 1, -1]
    # Gradients of a thousand: 1 per step is sent, and the residual grows without end.
    large = gcodec.Feedback("mxnet-1bit")
    for _ in range(6):
        assert gcodec.decode(large.compress("w", f32(1000))).tolist() == [1]
    assert large.residual("w").tolist() == [6 * 999]


@pytest.mark.parametrize("n", [32, 64, 96])
def test_no_word_behind_a_full_one(n: int) -> None:
    codec = gcodec.parse("mxnet-1bit")
    x = np.ones(n, np.float32)
    payload = codec.encode(x).tobytes()
    assert payload == mxnet.OneBit(0.0, n).step(x) == b"\xff" * (n // 8)
    with pytest.raises(gcodec.Corrupt):
        codec.decode(payload + bytes(4), n)
