"""The codec patch: exact differences of every dtype, wrong bases, damage, and sizes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import patch as reference
from tensor_pairs import (
    DTYPES,
    FLOATS,
    changed,
    damaged,
    pairs,
    patterns,
    repaired,
    small_pair,
    weights,
)

import gcodec
from gcodec.codecs.patch import digest
from gcodec.codecs.patch.message import ALL, CHANGES, STORED, UNCHANGED, Message
from gcodec.patch.files import shortest_frame


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_new_tensors_come_back_bit_for_bit(dtype: np.dtype[Any]) -> None:
    for name, old, new in pairs(dtype):
        frame = gcodec.encode_patch(new, base=old)
        decoded = gcodec.apply_patch(frame, old)
        assert decoded.dtype == new.dtype and decoded.shape == new.shape, name
        assert (patterns(decoded) == patterns(new)).all(), name
        out = np.empty_like(old)
        assert gcodec.apply_patch(frame, old, out=out) is out
        assert (patterns(out) == patterns(new)).all(), name
        in_place = old.copy()
        assert gcodec.apply_patch(frame, in_place, out=in_place) is in_place
        assert (patterns(in_place) == patterns(new)).all(), name
        payload = gcodec.Frame.from_bytes(frame).payload
        assert payload.nbits <= 8 * (17 + new.nbytes)
        assert len(frame) <= gcodec.parse("patch").max_encoded_nbytes(new.size, dtype=str(dtype))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_the_oracle_reads_all_messages(dtype: np.dtype[Any]) -> None:
    for name, old, new in pairs(dtype):
        old, new = old.reshape(-1)[:400], new.reshape(-1)[:400]
        payload = gcodec.Frame.from_bytes(gcodec.encode_patch(new, base=old)).payload
        data, bits = payload.tobytes(), patterns(old).tolist()
        read = reference.read(data, payload.nbits, bits, dtype.itemsize, dtype.name)
        assert read == patterns(new).tolist(), name


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("n", [1, 63, 64, 65, 4032, 4095, 4096, 4097, 8256])
def test_words_and_chunks_that_are_whole_or_not(dtype: np.dtype[Any], n: int) -> None:
    """Kernels look at 64 elements at once, and at chunks of 4,096."""
    old = weights(dtype, n)
    for share in (0.02, 0.5, 1.0):
        new = changed(old, share, 3)
        frame = gcodec.encode_patch(new, base=old)
        assert (patterns(gcodec.apply_patch(frame, old)) == patterns(new)).all()
    payload = gcodec.Frame.from_bytes(frame).payload
    bits, data = patterns(old).tolist(), payload.tobytes()
    read = reference.read(data, payload.nbits, bits, dtype.itemsize, dtype.name)
    assert read == patterns(new).tolist()


def test_booleans() -> None:
    rng = np.random.default_rng(0)
    old, new = rng.random((2, 900)) < [[0.5], [0.2]]
    frame = gcodec.encode_patch(new, base=old)
    assert (gcodec.apply_patch(frame, old) == new).all()
    assert (gcodec.apply_patch(frame, old, out=old) == new).all()


@given(
    st.sampled_from(sorted(DTYPES)),
    st.binary(max_size=400),
    st.binary(max_size=400),
    st.booleans(),
)
def test_any_two_tensors(name: str, old: bytes, new: bytes, is_near: bool) -> None:
    dtype = DTYPES[name]
    n = min(len(old), len(new)) // dtype.itemsize
    a, b = (np.frombuffer(data, dtype, n).copy() for data in (old, new))
    if is_near:
        b = np.where(patterns(a) % 5 > 0, patterns(a), patterns(b)).view(dtype)
    frame = gcodec.encode_patch(b, base=a)
    assert (patterns(gcodec.apply_patch(frame, a, out=a)) == patterns(b)).all()


def test_every_pattern_of_16_bits_becomes_every_other() -> None:
    old = np.arange(1 << 16, dtype=np.uint16)
    for step in (1, 0x8000, 0xFFFF, 0x3F80):
        for dtype in (FLOATS["bfloat16"], FLOATS["float16"], np.dtype(np.int16)):
            new = (old + np.uint16(step)).view(dtype)
            frame = gcodec.encode_patch(new, base=old.view(dtype))
            decoded = gcodec.apply_patch(frame, old.view(dtype))
            assert (patterns(decoded) == patterns(new)).all()


# --- forms and sizes ----------------------------------------------------------------------------


def form_of(frame: bytes, old: np.ndarray) -> Message:
    payload = gcodec.Frame.from_bytes(frame).payload
    return Message.open(payload, old.size, old.dtype.name)


def test_forms() -> None:
    old = weights(FLOATS["bfloat16"])
    same = gcodec.encode_patch(old, base=old)
    assert form_of(same, old).form == UNCHANGED and len(same) < 45
    near = gcodec.encode_patch(changed(old, 0.01, 1), base=old)
    assert form_of(near, old).form == CHANGES
    noise = np.random.default_rng(1).integers(0, 1 << 16, old.size, np.uint16).view(old.dtype)
    stored = gcodec.encode_patch(noise, base=old)
    assert form_of(stored, old).form == STORED
    payload = gcodec.Frame.from_bytes(stored).payload
    assert payload.nbits == payload.codec.max_payload_nbits(old.size)  # the longest of all forms


@pytest.mark.parametrize(
    ("rate", "changes", "most"), [(1e-7, 0.0048, 8.2), (3.5e-7, 0.0139, 7), (1e-6, 0.0339, 6.2)]
)
def test_bits_of_each_changed_weight(rate: float, changes: float, most: float) -> None:
    """Steps of one size, as of Adam, on normal weights."""
    rng = np.random.default_rng(0)
    exact = (0.02 * rng.standard_normal(1 << 20)).astype(np.float32)
    step = np.clip(2 * rng.standard_normal(exact.size), -1, 1).astype(np.float32)
    old, new = (x.astype(ml_dtypes.bfloat16) for x in (exact, exact + np.float32(rate) * step))
    count = np.count_nonzero(patterns(old) != patterns(new))
    assert count == pytest.approx(changes * old.size, rel=0.05)
    assert 8 * len(gcodec.encode_patch(new, base=old)) < most * count


def test_dense_changes_take_few_bits() -> None:
    rng = np.random.default_rng(0)
    old = (0.02 * rng.standard_normal(1 << 18)).astype(np.float32)
    new = old + np.float32(1e-5) * rng.standard_normal(old.size).astype(np.float32)
    frame, whole = gcodec.encode_patch(new, base=old), gcodec.encode(new, "lossless")
    assert len(frame) < 0.7 * len(whole)


def test_shorter_of_positions_and_values_of_all_elements() -> None:
    """From half of the elements on, a class may state all values, and no positions."""
    rng = np.random.default_rng(0)
    old = np.full(4000, 1000, np.int32)
    half, dense = old.copy(), old.copy()
    half[:2000] += 1
    dense += (rng.integers(1, 8, 4000) * (rng.random(4000) < 0.9)).astype(np.int32)
    for new, states_all, most in ((half, False, 220), (dense, True, 1850)):
        frame = gcodec.encode_patch(new, base=old)
        head = form_of(frame, old).head
        assert head is not None
        assert [each.method == ALL for each in head.classes] == [states_all]
        assert len(frame) < most


# --- arguments ----------------------------------------------------------------------------------


def test_another_base_is_refused_before_anything_is_written() -> None:
    old = weights(FLOATS["bfloat16"])
    new = changed(old, 0.02, 2)
    frame = gcodec.encode_patch(new, base=old)
    other = old.copy()
    patterns(other)[-1] ^= 1
    kept = other.copy()
    with pytest.raises(gcodec.ParameterError, match=r"^base has the digest [0-9a-f]{32}: must be"):
        gcodec.apply_patch(frame, other, out=other)
    assert (patterns(other) == patterns(kept)).all()
    with pytest.raises(gcodec.ParameterError, match=r"^base\.dtype='float16': must be bfloat16"):
        gcodec.apply_patch(frame, old.astype(np.float16))
    with pytest.raises(gcodec.ParameterError, match=r"^base\.shape="):
        gcodec.apply_patch(frame, old[:-1])
    with pytest.raises(gcodec.ParameterError, match=r"^base\.shape="):
        gcodec.encode_patch(new, base=old.reshape(2, -1))
    with pytest.raises(gcodec.ParameterError, match=r"^base\.dtype="):
        gcodec.encode_patch(new, base=old.view(np.uint16))
    with pytest.raises(gcodec.ParameterError, match=r"^out\.shape="):
        gcodec.apply_patch(frame, old, out=np.empty(3, old.dtype))
    with pytest.raises(gcodec.ParameterError, match=r"^frame\.codec="):
        gcodec.apply_patch(gcodec.encode(old, "raw"), old)


def test_other_functions_name_those_of_patches() -> None:
    x = np.ones(5, np.float32)
    frame = gcodec.encode_patch(x + 1, base=x)
    with pytest.raises(gcodec.ParameterError, match=r"gcodec\.encode_patch"):
        gcodec.encode(x, "patch")
    with pytest.raises(gcodec.Unsupported, match=r"gcodec\.apply_patch"):
        gcodec.decode(frame)
    with pytest.raises(gcodec.Unsupported, match=r"gcodec\.apply_patch"):
        gcodec.decode(frame, out=x)
    with pytest.raises(gcodec.Unsupported, match=r"gcodec\.apply_patch"):
        gcodec.decode_add(frame, x)
    with pytest.raises(gcodec.Unsupported, match=r"gcodec\.apply_patch"):
        gcodec.decode_range(frame, 0, 2)
    assert (x == 1).all()
    assert "patch" not in gcodec.codecs() and str(gcodec.parse("patch")) == "patch"
    assert gcodec.parse("patch").needs_base
    assert gcodec.Frame.from_bytes(frame).with_seek().seek is None


def test_encoders_refuse_the_codec_when_they_are_made() -> None:
    x = np.ones(3, np.float32)
    for make in (
        lambda: gcodec.Feedback("patch"),
        lambda: gcodec.Policy([{"codec": "patch"}]),
        lambda: gcodec.inspect({"x": x}, codecs="patch"),
        lambda: gcodec.encode(x, "patch"),
        lambda: gcodec.parse("patch").quantize(x),
        lambda: gcodec.warmup("patch"),
    ):
        with pytest.raises(gcodec.ParameterError, match=r"use gcodec\.encode_patch"):
            make()


def test_names_keys_and_frames() -> None:
    old = np.arange(9, dtype=np.int32)
    frame = gcodec.encode_patch(old + 1, base=old, name="w", key=b"k")
    with pytest.raises(gcodec.FormatError):
        gcodec.apply_patch(frame, old)
    read = gcodec.Frame.from_bytes(frame, key=b"k")
    assert read.name == "w" and read.to_bytes() == frame
    assert (gcodec.apply_patch(read, old) == old + 1).all()
    with pytest.raises(gcodec.LimitExceeded):
        gcodec.apply_patch(frame, old, key=b"k", limits=gcodec.Limits(max_elements=3))
    invalid: list[dict[str, Any]] = [{"key": key} for key in (b"", b"x" * 65, 5)]
    for arguments in (*invalid, {"name": 3}, {"name": "\ud800"}):
        with pytest.raises(gcodec.ParameterError, match=f"^{next(iter(arguments))}(=| is )"):
            gcodec.encode_patch(old + 1, base=old, **arguments)


def test_base_bounds_the_memory_instead_of_default_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = np.zeros(5, np.float32), np.ones(5, np.float32)
    frame = gcodec.encode_patch(new, old)
    monkeypatch.setattr("gcodec.limits.DEFAULT_LIMITS", gcodec.Limits(max_elements=3))
    with pytest.raises(gcodec.LimitExceeded):
        gcodec.Frame.from_bytes(frame)
    assert np.array_equal(gcodec.apply_patch(frame, old), new)


@pytest.mark.parametrize(("share", "codec"), [(0, "patch"), (0.4, "patch"), (1, "lossless")])
def test_shortest_frame(share: float, codec: str) -> None:
    """A patch, unless it is longer than a frame without a base."""
    base = np.random.default_rng(0).standard_normal(2000, np.float32)
    new = base.copy()
    new[: int(share * new.size)] = 0
    frame = shortest_frame(new, base, "w")
    assert gcodec.Frame.from_bytes(frame).codec.name == codec
    whole = gcodec.encode(new, "lossless", name="w")
    assert len(frame) == min(len(whole), len(gcodec.encode_patch(new, base, name="w")))


def test_strided_and_overlapping_arrays() -> None:
    memory = np.arange(40, dtype=np.float32)
    old = memory[::2]
    new = old + np.float32(0.5)
    frame = gcodec.encode_patch(new, base=old)
    out = np.zeros(40, np.float32)[1::2]
    gcodec.apply_patch(frame, old, out=out)
    assert (out == new).all()
    gcodec.apply_patch(frame, old, out=memory[1:21])  # which shares memory with the base
    assert (memory[1:21] == new).all()
    old = np.random.default_rng(0).standard_normal(300_000, np.float32)  # copied in parts
    for count in (2, 4000):
        new = old.copy()
        new[:count] *= np.float32(1.01)
        frame = gcodec.encode_patch(new, old)
        for shift in (-7, -1, 0, 1, 7):
            memory = np.zeros(old.size + 14, np.float32)
            memory[7:-7] = old
            out = memory[7 + shift : 7 + shift + old.size]
            gcodec.apply_patch(frame, memory[7:-7], out=out)
            assert np.array_equal(out, new)
    big = np.arange(6, dtype=">f4")
    frame = gcodec.encode_patch(big + 1, base=big)
    assert (gcodec.apply_patch(frame, big) == big + 1).all()


def test_torch() -> None:
    torch = pytest.importorskip("torch")
    old = torch.linspace(-1, 1, 5000, dtype=torch.bfloat16)
    new = old + 0.001
    frame = gcodec.encode_patch(new, base=old)
    assert torch.equal(gcodec.apply_patch(frame, old), new)
    assert gcodec.apply_patch(frame, old, out=old) is old
    assert torch.equal(old, new)


def test_buffers_without_a_dtype() -> None:
    old, new = np.arange(6, dtype=np.float32), np.arange(6, dtype=np.float32)[::-1]
    frame = gcodec.encode_patch(new, memoryview(old))
    assert np.array_equal(gcodec.apply_patch(frame, memoryview(old)), new)
    eight = old.astype(ml_dtypes.float8_e4m3fnuz)
    with pytest.raises(gcodec.ParameterError, match=r"base\.dtype='memoryview': must be float8"):
        gcodec.encode_patch(eight, memoryview(old))
    with pytest.raises(gcodec.ParameterError, match=r"^out\.dtype='float8_e4m3fnuz': must be"):
        gcodec.apply_patch(frame, memoryview(old), out=eight)


def test_lists_beside_floats_of_8_bits_are_refused() -> None:
    x = np.zeros(2, ml_dtypes.float8_e4m3fnuz)
    frame = gcodec.encode_patch(x, base=x)
    with pytest.raises(TypeError, match="base is of type list"):
        gcodec.encode_patch(x, base=[0.0, 0.0])
    with pytest.raises(TypeError, match="new is of type list"):
        gcodec.encode_patch([0.0, 0.0], base=x)
    with pytest.raises(TypeError, match="out"):
        gcodec.apply_patch(frame, x, out=[0, 0])  # type: ignore[call-overload,unused-ignore]


@pytest.mark.parametrize("name", ["float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_floats_of_8_bits_that_frames_lack(name: str) -> None:
    rng = np.random.default_rng(0)
    dtype = np.dtype(getattr(ml_dtypes, name))
    old = rng.standard_normal((50, 60)).astype(dtype)
    new = changed(old, 0.02, 1)
    frame = gcodec.encode_patch(new, base=old)
    assert gcodec.Frame.from_bytes(frame).dtype == "uint8" and len(frame) < 200
    decoded = gcodec.apply_patch(frame, old)
    assert decoded.dtype == dtype and decoded.tobytes() == new.tobytes()
    strided = np.zeros((50, 120), dtype)[:, ::2]
    assert gcodec.apply_patch(frame, old, out=strided) is strided
    assert strided.tobytes() == new.tobytes()
    with pytest.raises(gcodec.ParameterError, match=rf"^out\.dtype='uint8': must be {name}"):
        gcodec.apply_patch(frame, old, out=np.zeros((50, 60), np.uint8))
    with pytest.raises(gcodec.ParameterError, match=r"^base\.dtype='uint8'"):
        gcodec.encode_patch(new, base=old.view(np.uint8))
    torch = pytest.importorskip("torch")
    kind = getattr(torch, name)
    a, b = (torch.from_numpy(x.view(np.uint8).copy()).view(kind) for x in (old, new))
    assert gcodec.encode_patch(b, base=a) == frame
    result = gcodec.apply_patch(frame, a)
    assert result.dtype is kind and torch.equal(result.view(torch.uint8), b.view(torch.uint8))
    assert gcodec.apply_patch(frame, a, out=a) is a
    assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def test_threads_write_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    old = rng.standard_normal(3 << 20).astype(ml_dtypes.bfloat16)
    new = changed(old, 0.01, 2)
    frames = []
    for count in ("1", "3"):
        monkeypatch.setenv("GCODEC_NUM_THREADS", count)
        frames.append(gcodec.encode_patch(new, base=old))
        assert (patterns(gcodec.apply_patch(frames[-1], old)) == patterns(new)).all()
    assert frames[0] == frames[1]


@pytest.mark.parametrize("threads", ["1", "3"])
def test_digests_are_those_of_the_oracle(threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several whole leaves are digested together; one or two, and a part of one, alone."""
    monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
    leaf = digest.LEAF_NBYTES
    data = np.random.default_rng(0).integers(0, 256, 19 * leaf, np.uint8)
    for n in (0, 1, leaf, leaf + 1, 3 * leaf, 7 * leaf + 8, 8 * leaf, 11 * leaf - 1, 19 * leaf):
        assert digest.digest_of(data[:n]) == reference.digest(data[:n].tobytes())


def test_leaves_that_are_digested_together_begin_anywhere() -> None:
    """The bytes of a mapped file need not be aligned."""
    leaf = digest.LEAF_NBYTES
    data = np.random.default_rng(1).integers(0, 256, 4 * leaf + 5, np.uint8)[5:]
    assert digest.digest_of(data) == reference.digest(data.tobytes())


@pytest.mark.parametrize("threads", ["1", "3"])
def test_digests_can_copy(threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All leaves are copied: those that are digested together, others, and the last one."""
    monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
    half = digest.LEAF_NBYTES // 2
    data = np.random.default_rng(2).integers(0, 1 << 16, 19 * half + 3, np.uint16)[1:]
    for n in (0, 1, half, 3 * half, 7 * half + 1, 19 * half + 2):
        copy = np.zeros(n, np.uint16)
        assert digest.digest_of(data[:n], copy) == digest.digest_of(data[:n])
        assert (copy == data[:n]).all()


# --- damage -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bfloat16", "float32", "int8", "bool"])
def test_damaged_messages_are_refused_or_valid(name: str) -> None:
    """Each bit is flipped and each byte cut; then gcodec and the oracle agree."""
    old, new = small_pair(name)
    frame = gcodec.encode_patch(new, base=old)
    cases = list(damaged(gcodec.Frame.from_bytes(frame).payload.tobytes(), 128))  # not the digest
    refused = 0
    for data in cases:
        out = old.copy()
        try:
            expected = reference.read(
                data, 8 * len(data), patterns(old).tolist(), old.itemsize, name
            )
        except ValueError:
            expected = None
        try:
            gcodec.apply_patch(repaired(frame, data), out, out=out)
        except gcodec.FormatError:
            refused += 1
            assert expected is None
            assert (patterns(out) == patterns(old)).all()
        else:
            assert expected == patterns(out).tolist()
    assert refused > len(cases) // 3


def test_forged_heads() -> None:
    """Sizes that no base has, and counts that exceed the bits, are refused quickly."""
    old = weights(FLOATS["bfloat16"], 50)
    frame = gcodec.encode_patch(changed(old, 0.5, 2), base=old)
    start = reference.digest(patterns(old).tobytes()) + bytes([CHANGES])
    size = bytes([50])
    forged = {
        "no classes": b"\0",
        "seven classes": bytes([7, 1, 2, 3, 4, 5, 6]) + 7 * b"\0\0",
        "equal bounds": bytes([3, 9, 9]) + size + b"\0" + 2 * b"\0\0",
        "a bound of 0": bytes([2, 0]) + size + b"\0" + b"\0\0",
        "too many elements": b"\x01" + b"\xff\xff\xff\xff\x7f\x00",
        "another number": b"\x01" + bytes([49, 0]),
        "unknown method": b"\x01" + size + b"\x07",
        "unknown kind": b"\x01" + size + b"\x06\x03",
        "one symbol of 0": b"\x01" + size + b"\x06\x00\x00\x00",
        "a symbol of 0 with positions": b"\x01" + size + bytes([3, 0, 0, 0, 1, 50]) + 7 * b"\xff",
        "symbols that fall": b"\x01" + size + bytes([6, 1, 3, 2, 0]),
        "symbols of more bits": b"\x01" + size + bytes([6, 0, 200, 0]),
        "more changes than elements": b"\x01" + size + bytes([4, 0, 1, 0, 51, 0]),
        "no changes": b"\x01" + size + bytes([4, 0, 1, 0, 0, 0]),
        "raw bits for none": b"\x01" + size + bytes([6, 0, 1, 8, 0]),
        "no raw bits": b"\x01" + size + bytes([6, 0, 9, 0]),
        "a class of no elements": bytes([2, 255]) + size + b"\0" + bytes([0, 6, 0, 1, 0]),
    }
    for name, head in forged.items():
        out = old.copy()
        with pytest.raises(gcodec.FormatError):
            gcodec.apply_patch(repaired(frame, start + head), out, out=out)
        assert (patterns(out) == patterns(old)).all(), name


def test_classes_of_another_base_are_refused() -> None:
    """The digest is right, but the sizes of the classes are not those of the base."""
    old = weights(FLOATS["bfloat16"], 50)
    frame = gcodec.encode_patch(changed(old, 0.5, 2), base=old)
    start = reference.digest(patterns(old).tobytes()) + bytes([CHANGES])
    head = bytes([2, 255]) + bytes([20, 0]) + bytes([30, 0])
    with pytest.raises(gcodec.Corrupt, match=r"class 0 has 20 elements, in the base 50"):
        gcodec.apply_patch(repaired(frame, start + head), old)


@pytest.mark.parametrize("method", range(1, 7))
@pytest.mark.parametrize("kind", range(3))
def test_messages_of_other_encoders(method: int, kind: int) -> None:
    """Every index code and every code of values, with classes that gcodec would not select."""
    rng = np.random.default_rng(method)
    old = weights(FLOATS["bfloat16"], 300)
    # A single symbol needs equal differences.
    new = changed(old, 1 if method == 6 and kind == 0 else 0.1, 1 if kind == 0 else 60)
    if kind == 0:
        up = np.where(patterns(old) >> 15, -1, 1).astype(np.int64)
        moves = (patterns(old) != patterns(new)) * up
        new = (patterns(old) + moves).astype(np.uint16).view(old.dtype)
    bounds = sorted(rng.choice(np.arange(120, 131), 2, replace=False).tolist())
    bits, own = patterns(new).tolist(), patterns(old).tolist()
    counts = [0] * 3
    for a, b in zip(own, bits, strict=True):
        counts[reference.class_of(a, bounds, "bfloat16")] += a != b
    assert all(counts)
    classes = [reference.Class(method, kind)] * 3
    data = reference.write(bits, own, 2, "bfloat16", bounds, classes)
    frame = repaired(gcodec.encode_patch(new, base=old), data)
    assert (patterns(gcodec.apply_patch(frame, old)) == patterns(new)).all()
    dissected = gcodec.Frame.from_bytes(frame.to_bytes())
    assert dissected.payload.tobytes() == data
