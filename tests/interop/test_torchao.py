"""torchao's tensors: recorded ones, frames of them, and damaged ones."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from reference import microscale as reference

import gcodec
from gcodec import Corrupt, LimitExceeded, Limits, ParameterError, Truncated
from gcodec.interop import torchao

PATH = Path(__file__).parents[1] / "golden" / "upstream" / "torchao-0.18-microscale.txt"
MX = ("mxfp8e4m3", "mxfp8e5m2", "mxfp6e2m3", "mxfp6e3m2", "mxfp4")
RULES = ("floor", "rceil", "ceil", "even")
SPECS: list[tuple[str, dict[str, Any]]] = [(f, {"scale": rule}) for f in MX for rule in RULES]
SPECS += [("nvfp4", {}), ("nvfp4", {"tensor_scale": 0.01})]


class Recorded(NamedTuple):
    """A tensor, its format and rule, or scale of the tensor, and what torchao makes of it."""

    matrix: str
    x: np.ndarray
    format: str
    rule: str
    arrays: dict[str, np.ndarray]


def recorded() -> Iterator[Recorded]:
    """Read the vectors."""
    x, matrix, fmt, rule = np.empty(0), "", "", ""
    arrays: dict[str, np.ndarray] = {}
    key, digits, shape = "", "", (0, 0)

    def finish() -> None:
        nonlocal x
        if key == "x":
            x = np.frombuffer(bytes.fromhex(digits), ">u4").astype("<u4").view(np.float32)
            x = x.reshape(shape)
        elif key == "decoded":
            values = np.frombuffer(bytes.fromhex(digits), ">u4").astype("<u4")
            arrays[key] = values.view(np.float32).reshape(shape)
        elif key:
            arrays[key] = np.frombuffer(bytes.fromhex(digits), np.uint8).reshape(shape[0], -1)

    for line in PATH.read_text("ascii").splitlines():
        if line.startswith("#"):
            continue
        if line.startswith(" "):
            digits += line.strip()
            continue
        finish()
        key, *words = line.split()
        digits = words[0]
        if key in ("format", "matrix") and arrays:
            yield Recorded(matrix, x, fmt, rule, arrays)
            arrays = {}
        if key == "matrix":
            matrix, shape = words[0], (int(words[1]), int(words[2]))
        if key == "format":
            fmt, rule = words
        if key in ("format", "matrix"):
            key = ""
    finish()
    yield Recorded(matrix, x, fmt, rule, arrays)


RECORDED = list(recorded())


def arguments(one: Recorded) -> dict[str, Any]:
    if one.format != "nvfp4":
        return {"scale": one.rule}
    return {} if one.rule == "None" else {"tensor_scale": float(one.rule)}


def name_of(one: Recorded) -> str:
    return f"{one.matrix}-{one.format}-{one.rule}"


def test_vectors_are_complete() -> None:
    assert len(RECORDED) == 2 * (len(MX) * len(RULES) + 4)


@pytest.mark.parametrize("one", RECORDED, ids=name_of)
def test_recorded(one: Recorded) -> None:
    options = arguments(one)
    arrays = torchao.encode(one.x, one.format, **options)
    assert (arrays["scale"] == one.arrays["scale"]).all()
    assert (arrays["data"] == one.arrays["data"]).all()
    assert arrays.keys() - {"scale", "data"} == options.keys() & {"tensor_scale"}
    decoded = torchao.decode(arrays, one.format)
    assert decoded.shape == one.x.shape
    if "decoded" in one.arrays:
        assert np.array_equal(decoded, one.arrays["decoded"], equal_nan=True)
        signs = np.signbit(decoded) == np.signbit(one.arrays["decoded"])
        assert (signs | np.isnan(decoded)).all()


@pytest.mark.parametrize("one", RECORDED, ids=name_of)
def test_codec_writes_recorded_bytes(one: Recorded) -> None:
    options = arguments(one)
    if one.format == "nvfp4":
        options = {"tensor_scale": options.get("tensor_scale", 1.0)}
    codec = gcodec.parse({"name": "microscale", "format": one.format, **options})
    payload = codec.encode(one.x)
    expected = one.arrays["scale"].tobytes() + one.arrays["data"].tobytes()
    assert payload.tobytes() == expected
    for code in ("huffman", "rans", "context"):
        coded = codec.replaced(code=code).encode(one.x)
        assert coded.codec.unpack(coded, one.x.shape).data.tobytes() == expected


@pytest.mark.parametrize(("format", "options"), SPECS)
def test_oracle(format: str, options: dict[str, Any]) -> None:
    x = (np.random.default_rng(4).standard_normal((3, 64)) * 0.02).astype(np.float32)
    scale = options.get("tensor_scale", 1.0)
    scales, codes = reference.quantize(format, options.get("scale", "floor"), x.reshape(-1), scale)
    arrays = torchao.encode(x, format, **options)
    assert arrays["scale"].reshape(-1).tolist() == scales
    assert arrays["data"].reshape(-1).tolist() == reference.data_of(format, codes)


@pytest.mark.parametrize(
    ("format", "exponent"),
    [("mxfp8e4m3", 118), ("mxfp8e5m2", 111), ("mxfp6e3m2", 122), ("mxfp6e2m3", 124)]
    + [("mxfp4", 124)],
)
@pytest.mark.parametrize(("rule", "factor"), [("floor", 0.5), ("rceil", 0)])
def test_blocks_with_the_scale_0(format: str, exponent: int, rule: str, factor: float) -> None:
    for value, expected in ((2.0**-exponent, 1), (2.0 ** (-exponent - 1), factor)):
        x = np.full((1, 32), value, np.float32)
        arrays = torchao.encode(x, format, rule)
        assert (arrays["scale"] > 0).all() == (expected == 1)
        assert (torchao.decode(arrays, format) == expected * x).all()


def test_shapes_and_dtypes() -> None:
    for format in (*MX, "nvfp4"):
        block = 16 if format == "nvfp4" else 32
        for shape in ((64,), (3, 32), (2, 1, 96), (0, 32), (2, 0)):
            x = np.ones(shape, ml_dtypes.bfloat16)
            arrays = torchao.encode(x, format)
            width = shape[-1] // 2 if format.endswith("fp4") else shape[-1]
            assert arrays["data"].shape == (*shape[:-1], width)
            assert arrays["scale"].shape == (*shape[:-1], shape[-1] // block)
            assert arrays["data"].dtype == arrays["scale"].dtype == np.uint8
            assert torchao.decode(arrays, format).shape == shape


def test_decode_takes_dtypes_of_ml_dtypes() -> None:
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)
    arrays = torchao.encode(x, "mxfp8e5m2")
    typed = {
        "scale": arrays["scale"].view(ml_dtypes.float8_e8m0fnu),
        "data": arrays["data"].view(ml_dtypes.float8_e5m2),
    }
    assert (torchao.decode(typed, "mxfp8e5m2") == torchao.decode(arrays, "mxfp8e5m2")).all()
    with pytest.raises(Corrupt, match="float8_e5m2"):
        torchao.decode(typed, "mxfp8e4m3")
    scales = torchao.encode(x, "nvfp4")
    scales["scale"] = scales["scale"].view(ml_dtypes.float8_e4m3fn)
    assert torchao.decode(scales, "nvfp4").shape == (2, 32)


def test_decode_takes_tensors_with_the_dtypes_of_torchao() -> None:
    torch = pytest.importorskip("torch", "2.7")
    arrays = torchao.encode(np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32))
    tensors = {
        "scale": torch.from_numpy(arrays["scale"]).view(torch.float8_e8m0fnu),
        "data": torch.from_numpy(arrays["data"]).view(torch.float8_e4m3fn),
    }
    assert (torchao.decode(tensors) == torchao.decode(arrays)).all()
    assert torchao.to_frame(tensors).to_bytes() == torchao.to_frame(arrays).to_bytes()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_decode_to_other_dtypes(dtype: str) -> None:
    x = np.linspace(-3, 3, 64, dtype=np.float32)
    arrays = torchao.encode(x, "nvfp4", tensor_scale=0.003)
    decoded = torchao.decode(arrays, "nvfp4", dtype=dtype)
    assert decoded.dtype.name == dtype
    assert (decoded == torchao.decode(arrays, "nvfp4").astype(decoded.dtype)).all()


@pytest.mark.parametrize(("format", "options"), SPECS)
def test_frames(format: str, options: dict[str, Any]) -> None:
    x = np.random.default_rng(5).standard_normal((2, 3, 32)).astype(np.float32)
    arrays = torchao.encode(x, format, **options)
    rule = options.get("scale", "floor")
    frame = torchao.to_frame(arrays, format, rule, name="w")
    assert frame.name == "w" and frame.shape == x.shape and frame.codec.scale == rule
    data = frame.to_bytes()
    assert gcodec.decode(data).tobytes() == torchao.decode(arrays, format).tobytes()
    for again in (torchao.from_frame(frame), torchao.from_frame(data)):
        assert again.keys() == arrays.keys()
        assert all((again[key] == arrays[key]).all() for key in arrays)
    spec = f"microscale:format={format},scale={rule}"
    if format == "nvfp4":
        spec += f",tensor_scale={options.get('tensor_scale', 1)}"
    assert gcodec.encode(x, spec, name="w") == data
    coded = gcodec.encode(x, f"{spec},code=huffman")
    assert all((torchao.from_frame(coded)[key] == arrays[key]).all() for key in arrays)


def test_scale_of_the_tensor() -> None:
    x = np.array([[0.5, -3, *[0] * 14]], np.float32)
    scale = torchao.tensor_scale_of(x)
    assert np.float32(scale) == np.float32(3) / np.float32(2688)
    arrays = torchao.encode(x, "nvfp4", tensor_scale=scale)
    assert arrays["tensor_scale"].shape == () and arrays["tensor_scale"].dtype == np.float32
    frame = gcodec.encode(x, "microscale:format=nvfp4")
    assert all((torchao.from_frame(frame)[key] == arrays[key]).all() for key in arrays)
    for wrong in (np.zeros(16), np.full(16, np.nan)):
        with pytest.raises(ParameterError):
            torchao.tensor_scale_of(wrong.astype(np.float32))


def test_arguments() -> None:
    x = np.ones((2, 32), np.float32)
    with pytest.raises(ParameterError, match="mxint8"):
        torchao.encode(x, "mxint8")
    with pytest.raises(ParameterError, match="scale"):
        torchao.encode(x, scale="round")
    with pytest.raises(ParameterError, match="scale"):
        torchao.encode(x, "nvfp4", "even")
    with pytest.raises(ParameterError, match="tensor_scale"):
        torchao.encode(x, "mxfp4", tensor_scale=0.5)
    for wrong in (0.0, -1.0, np.nan, np.inf, 1e-40):
        with pytest.raises(ParameterError, match="tensor_scale"):
            torchao.encode(x, "nvfp4", tensor_scale=wrong)
    for shape in ((), (31,), (2, 33), (32, 1)):
        with pytest.raises(ParameterError, match=r"x\.shape"):
            torchao.encode(np.ones(shape, np.float32))
    with pytest.raises(TypeError, match="float64"):
        torchao.encode(x.astype(np.float64))
    with pytest.raises(ParameterError, match="dtype"):
        torchao.decode(torchao.encode(x), dtype="int8")
    with pytest.raises(ParameterError, match=r"frame\.shape"):
        torchao.from_frame(gcodec.encode(np.ones((2, 33), np.float32), "microscale"))
    with pytest.raises(ParameterError, match=r"frame\.codec"):
        torchao.from_frame(gcodec.encode(x, "microscale:format=mxint8"))
    with pytest.raises(ParameterError, match=r"frame\.codec"):
        torchao.from_frame(gcodec.encode(x, "raw"))


def test_damaged_arrays() -> None:
    x = np.ones((2, 32), np.float32)
    arrays, pairs = torchao.encode(x, "mxfp6e2m3"), torchao.encode(x, "nvfp4", tensor_scale=0.5)
    bad_code, bad_scale = arrays["data"].copy(), pairs["scale"].copy()
    bad_code[1, 3], bad_scale[0, 1] = 0x40, 0x80
    no_scale = {"data": arrays["data"]}
    wrong: list[tuple[str, Any, type[Exception]]] = [
        ("mxfp6e2m3", no_scale, Truncated),
        ("mxfp6e2m3", {"scale": arrays["scale"]}, Truncated),
        ("mxfp6e2m3", {**arrays, "scale": arrays["scale"][:1]}, Truncated),
        ("mxfp6e2m3", {**arrays, "scale": arrays["scale"].reshape(-1)}, Corrupt),
        ("mxfp6e2m3", {**arrays, "scale": np.ones((2, 2), np.uint8)}, Corrupt),
        ("mxfp6e2m3", {**arrays, "data": arrays["data"][:, :31]}, Corrupt),
        ("mxfp6e2m3", {**arrays, "data": np.uint8(3)}, Corrupt),
        ("mxfp6e2m3", {**arrays, "data": arrays["data"].astype(np.int16)}, Corrupt),
        ("mxfp6e2m3", {**arrays, "data": bad_code}, Corrupt),
        ("mxfp6e2m3", {**arrays, "tensor_scale": pairs["tensor_scale"]}, Corrupt),
        ("mxfp6e2m3", {**arrays, "other": arrays["data"]}, Corrupt),
        ("nvfp4", {**pairs, "scale": bad_scale}, Corrupt),
        ("nvfp4", {**pairs, "tensor_scale": np.float32(np.nan)}, Corrupt),
        ("nvfp4", {**pairs, "tensor_scale": np.float32(-1)}, Corrupt),
        ("nvfp4", {**pairs, "tensor_scale": np.float64(1)}, Corrupt),
        ("nvfp4", {**pairs, "tensor_scale": np.ones(2, np.float32)}, Corrupt),
        ("nvfp4", arrays, Truncated),
        ("mxfp4", [1, 2], TypeError),
    ]
    for format, damaged, error in wrong:
        for read in (torchao.decode, torchao.to_frame):
            with pytest.raises(error):
                read(damaged, format)
    with pytest.raises(LimitExceeded):
        torchao.decode(arrays, "mxfp6e2m3", limits=Limits(max_elements=63))


def test_random_arrays_decode_like_the_oracle() -> None:
    """Any bytes that are accepted decode to their values, NaN and infinity included."""
    rng = np.random.default_rng(6)
    for format in (*MX, "nvfp4"):
        block = 16 if format == "nvfp4" else 32
        width = reference.FORMATS[format].width
        scales = rng.integers(0, 128 if format == "nvfp4" else 256, (4, 64 // block), np.uint8)
        codes = rng.integers(0, 1 << width, (4, 64), np.uint8)
        data = np.array(reference.data_of(format, codes.reshape(-1).tolist()), np.uint8)
        decoded = torchao.decode({"scale": scales, "data": data.reshape(4, -1)}, format)
        flat = scales.reshape(-1).tolist(), codes.reshape(-1).tolist()
        expected = reference.values(format, *flat).reshape(4, 64)
        assert np.array_equal(decoded, expected, equal_nan=True)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the vectors have NaN of x86-64")
def test_torch_agrees_if_torchao_is_installed() -> None:
    mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    import torch
    from torchao.prototype.mx_formats.config import ScaleCalculationMode

    x = np.random.default_rng(7).standard_normal((8, 64)).astype(np.float32)
    for mode in ScaleCalculationMode:
        scale, data = mx.to_mx(torch.from_numpy(x), torch.float8_e4m3fn, 32, mode)
        arrays = torchao.encode(x, "mxfp8e4m3", mode.value)
        assert (arrays["scale"] == scale.view(torch.uint8).numpy()).all()
        assert (arrays["data"] == data.view(torch.uint8).numpy()).all()
