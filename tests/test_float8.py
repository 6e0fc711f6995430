"""Floats of 8 bits: `raw`, `lossless` and patches keep them; all other codecs refuse them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import strategies as gs
from command_line import json_of, run
from hypothesis import given
from hypothesis import strategies as st
from reference import frame as reference_frame
from reference import integers
from reference import lossless as reference_lossless

import gcodec
from gcodec import ParameterError, Unsupported
from gcodec.tensorfiles.dumps import open_dump, write_dump
from gcodec.wire import primitives

DTYPES = {name: np.dtype(getattr(ml_dtypes, name)) for name in integers.FLOATS8}
EXACT = ("raw", "lossless", "lossless:mode=fast", "lossless:mode=small")
EVERY_PATTERN = np.arange(256).astype(np.uint8)


def weights(dtype: np.dtype[Any], shape: tuple[int, ...] = (60, 50)) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def test_dtype_codes_equal_the_reference() -> None:
    assert {name: primitives.DTYPE_CODES[name] for name in DTYPES} == integers.FLOATS8
    assert tuple(DTYPES) == primitives.FLOATS8
    assert all(primitives.ITEMSIZE[name] == 1 for name in DTYPES)


@pytest.mark.parametrize("spec", EXACT)
@pytest.mark.parametrize("name", DTYPES)
def test_all_bit_patterns_come_back(name: str, spec: str) -> None:
    x = np.tile(EVERY_PATTERN, 40).view(DTYPES[name]).reshape(80, 128)
    frame = gcodec.encode(x, spec, nonfinite="propagate")
    assert reference_frame.parse(frame)["dtype"] == integers.FLOATS8[name]
    out, like = np.empty_like(x), np.zeros_like(x)
    assert gcodec.decode(frame, out=out) is out
    for back in (gcodec.decode(frame), out, gcodec.decode(frame, like=like)):
        assert same_bits(back, x)
    assert same_bits(gcodec.decode_range(frame, 1000, 1300), x.reshape(-1)[1000:1300])
    codec = gcodec.parse(spec)
    assert len(frame) <= codec.max_encoded_nbytes(x.size, dtype=name)
    payload = codec.encode(x)
    assert same_bits(payload.codec.decode(payload, x.shape), x)
    assert same_bits(payload.codec.dequantize(codec.quantize(x), x.shape), x)


@given(st.data())
def test_frames_round_trip(data: st.DataObject) -> None:
    dtype = DTYPES[data.draw(st.sampled_from(list(DTYPES)))]
    flat = data.draw(gs.integers()).view(np.uint8).view(dtype)
    x = flat.reshape(data.draw(gs.shapes(flat.size)))
    spec = data.draw(st.sampled_from(EXACT))
    frame = gcodec.encode(x, spec, name=data.draw(gs.names()), nonfinite="propagate")
    assert same_bits(gcodec.decode(frame), x)


@pytest.mark.parametrize("name", DTYPES)
def test_the_oracle_reads_lossless_messages(name: str) -> None:
    x = np.abs(weights(DTYPES[name], (500,)))
    for spec in ("lossless:mode=fast", "lossless:mode=small"):
        payload = gcodec.parse(spec).encode(x)
        assert payload.nbits < 8 * x.size
        arguments = x.size, name, 1, payload.codec.mode  # type: ignore[attr-defined]
        read = reference_lossless.read(payload.tobytes(), payload.nbits, *arguments)
        assert read == x.view(np.uint8).tolist()


@pytest.mark.parametrize("mode", ["fast", "small"])
@pytest.mark.parametrize("name", DTYPES)
def test_lossless_uses_the_scales_of_rows(name: str, mode: str) -> None:
    """Bytes whose rows have other scales are shorter relative to them than as integers."""
    rng = np.random.default_rng(2)
    octaves = rng.integers(-5, 5, (256, 1)).astype(np.float64)
    x = (rng.standard_normal((256, 512)) * np.exp2(octaves)).astype(DTYPES[name])
    frame = gcodec.encode(x, f"lossless:mode={mode}")
    assert len(frame) < 0.93 * len(gcodec.encode(x.view(np.uint8), f"lossless:mode={mode}"))
    assert same_bits(gcodec.decode(frame), x)
    assert same_bits(gcodec.decode_range(frame, 70_001, 70_100), x.reshape(-1)[70_001:70_100])
    payload = gcodec.Frame.from_bytes(frame).payload
    arguments = x.size, name, 1, payload.codec.mode  # type: ignore[attr-defined]
    read = reference_lossless.read(payload.tobytes(), payload.nbits, *arguments)
    assert read == x.view(np.uint8).reshape(-1).tolist()


@pytest.mark.parametrize("name", DTYPES)
def test_memory_of_any_layout(name: str) -> None:
    x = weights(DTYPES[name])
    for spec in EXACT:
        frame = gcodec.encode(x, spec)
        assert gcodec.encode(np.asfortranarray(x), spec) == frame
        assert gcodec.encode(np.repeat(x, 2, 1)[:, ::2], spec) == frame
        wide = np.zeros((60, 100), x.dtype)
        gcodec.decode(frame, out=wide[:, ::2])
        assert wide[:, ::2].tobytes() == x.tobytes() and not wide[:, 1::2].view(np.uint8).any()
        scalar = gcodec.decode(gcodec.encode(x[0, 0], spec), like=x[0, 0])
        assert scalar == x[0, 0] and type(scalar) is type(x[0, 0])


@pytest.mark.parametrize("name", DTYPES)
def test_policies_for_nan_and_inf(name: str) -> None:
    x = EVERY_PATTERN.view(DTYPES[name])
    is_finite = np.isfinite(x.astype(np.float32))
    first = int(np.argmin(is_finite))
    count = 2 if name == "float8_e4m3fn" else 8
    refusal = f"^x holds {count} NaN or Inf, .* index {first}: must be finite; with nonfinite"
    with pytest.raises(ParameterError, match=refusal):
        gcodec.encode(x, "raw")
    assert same_bits(gcodec.decode(gcodec.encode(x, "lossless")), x)
    for spec in EXACT:
        zeroed = gcodec.decode(gcodec.encode(x, spec, nonfinite="zero"))
        expected = np.where(is_finite, EVERY_PATTERN, 0)
        assert zeroed.view(np.uint8).tolist() == expected.tolist()
    assert np.array_equal(x.view(np.uint8), EVERY_PATTERN)


@pytest.mark.parametrize("spec", ["sign", "qsgd", "ecsq", "topk", "minmax", "raw:dtype=float16"])
def test_other_codecs_refuse_them(spec: str) -> None:
    x = weights(DTYPES["float8_e4m3fn"], (3, 5))
    message = r"x\.astype\(numpy\.float32\), or keep its exact bits by gcodec\.encode\(x, 'lossl"
    error = ParameterError if spec.startswith("raw") else TypeError
    with pytest.raises(error, match="float8_e4m3fn" if spec.startswith("raw") else message):
        gcodec.encode(x, spec)
    with pytest.raises((TypeError, ParameterError), match="float8_e4m3fn"):
        gcodec.Feedback(spec).compress("w", x)
    if not spec.startswith("raw"):
        codec = gcodec.parse(spec)
        data = reference_frame.build(codec.id, 14, (3,), b"", b"", b"", 0)
        with pytest.raises(Unsupported, match="dtype 14, float8_e4m3fn, is not known"):
            gcodec.decode(data)


def test_they_are_neither_added_nor_converted() -> None:
    x = weights(DTYPES["float8_e5m2"], (3, 5))
    frame = gcodec.encode(x, "lossless")
    acc = np.zeros((3, 5), np.float32)
    for add in (gcodec.decode_add, lambda frame, acc: gcodec.decode_sum([frame], out=acc)):
        with pytest.raises(ParameterError, match=r"frame\.dtype='float8_e5m2': must be one of fl"):
            add(frame, acc)
    assert not acc.any()
    for other in (np.float32, np.uint8, ml_dtypes.float8_e4m3fn):
        for key in ("like", "out"):
            with pytest.raises(ParameterError, match=rf"^{key}\.dtype=.*: must be float8_e5m2"):
                gcodec.decode(frame, **{key: np.zeros((3, 5), other)})


@pytest.mark.parametrize("name", DTYPES)
def test_patches_have_classes(name: str) -> None:
    old = weights(DTYPES[name], (300, 400))
    new, rng = old.copy(), np.random.default_rng(1)
    is_small = np.abs(old.astype(np.float32)) < 0.1
    new.view(np.uint8)[is_small & (rng.random(old.shape) < 0.3)] += 1
    frame = gcodec.encode_patch(new, base=old)
    assert reference_frame.parse(frame)["dtype"] == integers.FLOATS8[name]
    assert same_bits(gcodec.apply_patch(frame, old), new)
    # Bytes without classes hide which elements are small.
    assert len(frame) < 0.8 * len(gcodec.encode_patch(new.view(np.uint8), base=old.view(np.uint8)))
    with pytest.raises(ParameterError, match=rf"^base\.dtype='uint8': must be {name}"):
        gcodec.apply_patch(frame, old.view(np.uint8))
    with pytest.raises(ParameterError, match=rf"^out\.dtype='uint8': must be {name}"):
        gcodec.apply_patch(frame, old, out=np.zeros(old.shape, np.uint8))


@pytest.mark.parametrize("library", ["torch", "jax"])
@pytest.mark.parametrize("name", DTYPES)
def test_arrays_of_libraries(library: str, name: str) -> None:
    x = weights(DTYPES[name])
    if library == "torch":
        torch = pytest.importorskip("torch")
        own = torch.from_numpy(x.view(np.uint8).copy()).view(getattr(torch, name))
    else:
        own = pytest.importorskip("jax").numpy.asarray(x)
    for spec in EXACT:
        frame = gcodec.encode(own, spec)
        assert frame == gcodec.encode(x, spec)
        back = gcodec.decode(frame, like=own)
        assert type(back) is type(own) and back.dtype == own.dtype
        assert gcodec.encode(back, spec) == frame
    new = x.copy()
    new.view(np.uint8)[::7, ::5] ^= 1
    patch = gcodec.encode_patch(new, base=x)
    applied = gcodec.apply_patch(patch, own)
    assert applied.dtype == own.dtype
    assert gcodec.encode(applied, "raw") == gcodec.encode(new, "raw")
    if library == "torch":
        assert gcodec.decode(gcodec.encode(new, "lossless"), out=own) is own
        assert gcodec.encode(own, "raw") == gcodec.encode(new, "raw")


def test_jax_adapter() -> None:
    jax = pytest.importorskip("jax")
    import gcodec.jax

    x = jax.numpy.asarray(np.tile(EVERY_PATTERN, 3).view(DTYPES["float8_e5m2"]))
    back = gcodec.jax.decode(gcodec.jax.encode(x, "lossless"))
    assert back.dtype == x.dtype
    assert np.asarray(back).tobytes() == np.asarray(x).tobytes()


def test_files_and_policies(tmp_path: Path) -> None:
    tree = {
        **{name: weights(dtype) for name, dtype in DTYPES.items()},
        "w": np.ones((4, 4), np.float32),
        "step": np.arange(300),
    }
    path = tmp_path / "tree.gcf"
    for spec, kept in (("lossless", "lossless"), ("sign", "raw"), ("raw:dtype=float16", "raw")):
        gcodec.save_file(tree, path, spec)
        loaded = gcodec.load_file(path)
        codecs = {f.name: f.codec.name for f in gcodec.iter_frames(path.read_bytes()) if f.name}
        for name in (*DTYPES, "step"):
            assert same_bits(loaded[name], tree[name])
            assert codecs[f"{name}"] == kept
    policy = gcodec.Policy({"float8*": "lossless:mode=fast", "*": "sign"})
    for name, dtype in DTYPES.items():
        for kind in (dtype, name, f"torch.{name}"):
            assert str(policy.codec(name, (3,), kind)) == "lossless:mode=fast"
            assert str(policy.codec("w", (3,), kind)) == "raw"
    assert str(gcodec.Policy({"x": "sign"}).codec("y", (3,), "float8_e5m2")) == "raw"


def test_dumps_and_commands(tmp_path: Path) -> None:
    old = {name: weights(dtype) for name, dtype in DTYPES.items()}
    old["empty"] = np.empty((0, 3), DTYPES["float8_e5m2"])
    new = {name: x.copy() for name, x in old.items()}
    new["float8_e4m3fn"].view(np.uint8)[::9] ^= 1
    a, b = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    coded, step = tmp_path / "a.gcf", tmp_path / "step.gcf"
    write_dump(a, old.items())
    write_dump(b, new.items())
    with open_dump(a) as dump:
        for entry in dump.entries:
            assert same_bits(dump.load(entry), old[entry.name])
    run("encode", a, "-c", "lossless", "-o", coded)
    frames = {f.name: f.dtype for f in gcodec.iter_frames(coded.read_bytes())}
    assert {name: frames[name] for name in DTYPES} == {name: name for name in DTYPES}
    run("decode", coded, "-o", tmp_path / "back.safetensors")
    assert (tmp_path / "back.safetensors").read_bytes() == a.read_bytes()
    run("diff", a, b, "-o", step)
    run("apply", step, a, "-o", tmp_path / "new.safetensors")
    assert (tmp_path / "new.safetensors").read_bytes() == b.read_bytes()
    run("compare", a, coded, "--max-nmse", "0")
    run("compare", a, b, "--max-nmse", "0", code=1)
    document = json_of("encode", a, "-c", "sign", "-o", tmp_path / "sign.gcf")
    assert sorted(document["files"][0]["integers"]) == sorted(old)
    with pytest.raises(ParameterError, match=r"one that the format stores; use \.safetensors"):
        write_dump(tmp_path / "a.npz", old.items())


def test_a_file_that_shrinks_while_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_dump(path, [("w", weights(DTYPES["float8_e4m3fn"]))])
    with open_dump(path) as dump:
        path.write_bytes(path.read_bytes()[:-5])
        with pytest.raises(gcodec.Truncated, match="the file changed while it was read"):
            dump.load(dump.entries[0])


def test_torch_checkpoints(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "m.pt"
    x = weights(DTYPES["float8_e4m3fn"])
    own = torch.from_numpy(x.view(np.uint8).copy()).view(torch.float8_e4m3fn)
    torch.save({"w": own, "part": own[5:9, ::2]}, path)
    with open_dump(path) as dump:
        loaded = {entry.name: dump.load(entry) for entry in dump.entries}
    assert same_bits(loaded["w"], x)
    assert same_bits(np.ascontiguousarray(loaded["part"]), np.ascontiguousarray(x[5:9, ::2]))


def test_numcodecs_keep_them() -> None:
    pytest.importorskip("numcodecs")
    from gcodec.numcodecs import GradientCodec

    for dtype in DTYPES.values():
        x = weights(dtype)
        for_chunks = GradientCodec("lossless")
        assert np.asarray(for_chunks.decode(for_chunks.encode(x))).tobytes() == x.tobytes()
    with pytest.raises(TypeError, match="float8_e5m2"):
        GradientCodec("sign").encode(x)
