"""Inputs: supported layouts, refusals with advice, special values, and targets for results."""

from __future__ import annotations

import array
import ctypes
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import strategies as gs

import gcodec
from gcodec import ParameterError
from gcodec.arrays import source
from gcodec.arrays.source import inspect

X = np.array([[0.5, -0.5, 0.0, 3.0], [1.25, -0.0, -8.0, 2.0**-10]], np.float32)


def frame_of(x: Any, spec: str = "raw", **kwargs: Any) -> bytes:
    return gcodec.encode(x, spec, **kwargs)


# --- layouts ------------------------------------------------------------------------------------


class Exporter:
    """An object that implements DLPack only."""

    def __init__(self, x: np.ndarray) -> None:
        self.x = x

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.x.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return self.x.__dlpack_device__()


class OldExporter:
    """An object with the DLPack of before versioning, reduced to the necessary call."""

    def __init__(self, x: np.ndarray) -> None:
        self.x = x

    def __dlpack__(self, stream: None = None) -> Any:
        return self.x.__dlpack__(stream=stream)


class OnDevice(Exporter):
    """An object whose DLPack device is not where its memory lies."""

    def __init__(self, x: np.ndarray, kind: int) -> None:
        super().__init__(x)
        self.kind = kind

    def __dlpack_device__(self) -> Any:
        return self.kind, 0


class Convertible:
    """An object that implements ``__array__`` only."""

    def __init__(self, x: Any) -> None:
        self.x = x
        self.dtype = getattr(x, "dtype", None)
        self.shape = getattr(x, "shape", None)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        if isinstance(self.x, Exception):
            raise self.x
        return self.x


def layouts(x: np.ndarray, tmp_path: Path) -> dict[str, Any]:
    """Return the same array in every memory layout."""
    itemsize = x.dtype.itemsize
    wide = np.zeros((x.shape[0], 3 * x.shape[1]), x.dtype)
    wide[:, ::3] = x
    mirrored = x[::-1, ::-1].copy()[::-1, ::-1]
    frozen = x.copy()
    frozen.flags.writeable = False
    shifted = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape)
    on_disk = np.memmap(tmp_path / f"x{itemsize}", x.dtype, "w+", shape=x.shape)
    on_disk[...] = x
    arrays = {
        "fortran": np.asfortranarray(x),
        "strided": wide[:, ::3],
        "negative strides": mirrored,
        "transposed": x.T.copy().T,
        "read-only": frozen,
        "misaligned": shifted,
        "memmap": on_disk,
        "subclass": x.view(np.matrix) if x.dtype.kind == "f" else x,
        "big-endian": x.astype(x.dtype.newbyteorder(">")) if x.dtype.kind == "f" else x,
        "__array__": Convertible(x),
    }
    if x.dtype.kind == "f":
        arrays["buffer"] = memoryview(x)
        arrays["dlpack"] = Exporter(x)
        arrays["old dlpack"] = OldExporter(x)
        arrays["big-endian buffer"] = memoryview(x.astype(x.dtype.newbyteorder(">")))
    return arrays


@pytest.mark.parametrize("dtype", gs.DTYPES)
@pytest.mark.parametrize("spec", ["raw", "mxnet-2bit", "mxnet-1bit"])
def test_layouts_give_the_same_frame(dtype: str, spec: str, tmp_path: Path) -> None:
    x = X.astype(gs.DTYPES[dtype])
    expected = frame_of(x, spec)
    for layout, reordered in layouts(x, tmp_path).items():
        assert frame_of(reordered, spec) == expected, layout


def test_shapes_without_a_second_element() -> None:
    for x in (np.float32(0.75), np.array(0.75, np.float32), np.full((1, 1), 0.75, np.float32)):
        decoded = gcodec.decode(frame_of(x))
        assert decoded.shape == x.shape
        assert decoded == np.float32(0.75)
    shapes = (0,), (3, 0), (0, 0, 7)
    for i, dtype in enumerate(gs.DTYPES.values()):
        for j, codec in enumerate(gs.FEW):
            shape = shapes[(i + j) % 3]  # each dtype and each codec meets each shape
            x = np.empty(shape, dtype)
            decoded = gcodec.decode(frame_of(x, codec))
            assert (decoded.shape, decoded.dtype) == (shape, dtype)
            gcodec.decode_add(frame_of(x, codec), np.zeros(shape, np.float32))


def test_broadcast_arrays() -> None:
    x = np.broadcast_to(np.float32(0.5), (50, 3))
    assert gcodec.decode(frame_of(x)).tolist() == [[0.5] * 3] * 50
    assert frame_of(x, "mxnet-2bit") == frame_of(x.copy(), "mxnet-2bit")


def test_buffers() -> None:
    values = [0.5, -1.0, 3.0]
    assert gcodec.decode(frame_of(array.array("f", values))).tolist() == values
    doubles = gcodec.decode(frame_of(array.array("d", values)))
    assert (doubles.dtype, doubles.tolist()) == (np.float64, values)
    assert gcodec.decode(frame_of((ctypes.c_float * 3)(*values))).tolist() == values


def test_contiguous_float32_is_not_copied() -> None:
    shapes = (X, X.reshape(-1), X[1:], X[:0], X.T.copy().T.T, np.full((), 2, np.float32))
    for x in (*shapes, memoryview(X), Exporter(X), array.array("f", [1, 2]), Convertible(X)):
        values = inspect(x, "x").read().values
        memory = np.asarray(getattr(x, "x", x))
        assert values.size == 0 or np.shares_memory(values, memory)
    assert not np.shares_memory(inspect(X.T, "x").read().values, X)


def test_encode_and_compress_inspect_the_array_once(monkeypatch: pytest.MonkeyPatch) -> None:
    inspected: list[Any] = []

    def library_of(x: Any) -> None:
        inspected.append(x)

    monkeypatch.setattr(source, "library_of", library_of)
    x = memoryview(X)
    for call in (
        lambda: gcodec.encode(x, "minmax", nonfinite="zero"),
        lambda: gcodec.parse("sign").quantize(x),
        lambda: gcodec.Feedback("mxnet-1bit").compress("w", x),
    ):
        inspected.clear()
        call()
        assert inspected == [x]


def test_failing_dlpack_is_a_type_error() -> None:
    class Broken(Exporter):
        def __dlpack__(self, **kwargs: Any) -> Any:
            raise BufferError("not exportable")

    class Both(Broken, Convertible):
        pass

    with pytest.raises(TypeError, match=r"^x cannot be read through DLPack: not exportable"):
        frame_of(Broken(X))
    assert frame_of(Both(X)) == frame_of(X)


@pytest.mark.parametrize("device", [BufferError("no device"), None, (1,), ("cpu", 0)])
def test_exporters_without_a_device_are_refused(device: Any) -> None:
    class Lost(Exporter):
        def __dlpack_device__(self) -> Any:
            if isinstance(device, Exception):
                raise device
            return device

    for call, name in (
        (lambda: frame_of(Lost(X)), "x"),
        (lambda: gcodec.decode(frame_of(X), like=Lost(X)), "like"),
        (lambda: gcodec.decode(frame_of(X), out=Lost(X)), "out"),
    ):
        with pytest.raises(TypeError, match=f"^{name} cannot be read: "):
            call()


@pytest.mark.parametrize("kind", [7, 8, 10, 14])
def test_dlpack_on_a_device(kind: int) -> None:
    with pytest.raises(TypeError, match=rf"^x is on device 0 of DLPack's kind {kind}: copy it"):
        frame_of(OnDevice(X, kind))
    with pytest.raises(TypeError, match=r"^out is on device"):
        gcodec.decode(frame_of(X), out=OnDevice(X, kind))


def test_objects_whose_conversion_fails() -> None:
    for error in (TypeError("no\nmore"), ValueError("no"), RuntimeError("no")):
        with pytest.raises(TypeError, match=r"^x cannot be read: no$"):
            frame_of(Convertible(error))
    with pytest.raises(TypeError, match=r"^x cannot be read"):
        frame_of(Convertible([1.0]))  # __array__ must return an array
    released = memoryview(X)
    released.release()
    with pytest.raises(TypeError, match=r"^x cannot be read: .*released"):
        frame_of(released)


def test_input_is_never_written_to() -> None:
    for codec in gs.FEW:
        x = X.copy()
        x.flags.writeable = False
        payload = codec.encode(x)
        frame_of(x, codec)
        codec.quantize_residual(x, np.zeros(x.shape, np.float32))
        assert x.tobytes() == X.tobytes()
        assert not np.shares_memory(payload.data, x)


def test_results_outlive_their_inputs() -> None:
    for codec in gs.FEW:
        x = X.copy()
        symbols = codec.quantize(x)
        before = codec.pack(symbols).tobytes()
        frame = bytearray(frame_of(x, codec))
        decoded = gcodec.decode(frame)
        kept = decoded.copy()
        x[...] = 99
        frame[:] = bytes(len(frame))
        assert codec.pack(symbols).tobytes() == before
        assert np.array_equal(decoded, kept)


# --- refusals -----------------------------------------------------------------------------------


NUMBERS = [
    *(np.ones(3, kind) for kind in ("i1", "u1", "i4", ">i8", "?", "O")),
    np.int64(1),
    np.ones(3, np.longdouble),
    np.ones(3, ml_dtypes.float8_e4m3fn),
    np.ones(3, ml_dtypes.int4),
    memoryview(b"\1\1\1\1"),
    array.array("i", [1, 1]),
    Convertible(np.ones(3, int)),
]
NO_NUMBERS = [
    *(np.zeros(3, kind) for kind in ("c8", "c16", "M8[s]", "m8[s]", "S1", "V4")),
    np.array(["a"]),
    np.zeros(3, [("a", "f4")]),
]


def dtype_id(x: Any) -> str:
    return str(getattr(x, "dtype", type(x).__name__))


@pytest.mark.parametrize("x", NUMBERS, ids=dtype_id)
def test_unsupported_numbers_get_working_advice(x: Any) -> None:
    if getattr(x, "dtype", None) == np.float64:
        pytest.skip("long double is double here")
    with pytest.raises(TypeError, match=r"^x has dtype .*float32.* as in ") as raised:
        gcodec.encode(x, "sign")
    advice, _, lossless = str(raised.value).partition("as in ")[2].partition(", or keep ")
    converted = eval(advice, {"x": x, "numpy": np})
    assert (gcodec.decode(frame_of(converted)) == 1).all()
    assert bool(lossless) == ("float8" in dtype_id(x))
    if lossless:
        frame = eval(lossless.partition("bits by ")[2], {"x": x, "numpy": np, "gcodec": gcodec})
        assert gcodec.decode(frame).tobytes() == x.tobytes()


@pytest.mark.parametrize("x", NUMBERS + NO_NUMBERS, ids=dtype_id)
def test_unsupported_dtypes(x: Any) -> None:
    if getattr(x, "dtype", None) == np.float64:
        pytest.skip("long double is double here")
    with pytest.raises(TypeError, match=r"^x has dtype"):
        gcodec.parse("sign").quantize(x)
    with pytest.raises(TypeError, match=r"^x has dtype"):
        gcodec.parse("raw").quantize_residual(x, np.zeros(3, np.float32))
    with pytest.raises(TypeError, match=r"^grad has dtype"):
        gcodec.Feedback("raw").compress("w", x)


@pytest.mark.parametrize("x", NO_NUMBERS, ids=dtype_id)
def test_no_advice_for_dtypes_that_cannot_be_converted(x: Any) -> None:
    with pytest.raises(TypeError, match=r"^x has dtype .* gcodec takes float32") as raised:
        frame_of(x)
    assert "as in" not in str(raised.value)
    assert ("imaginary" in str(raised.value)) == (x.dtype.kind == "c")
    assert ("its fields one by one" in str(raised.value)) == (x.dtype.names is not None)
    _, _, lossless = str(raised.value).partition("keep its exact bits by ")
    assert bool(lossless) == (x.dtype.kind in "mM")
    if lossless:
        frame = eval(lossless, {"x": x, "numpy": np, "gcodec": gcodec})
        assert gcodec.decode(frame).tobytes() == x.tobytes()


@pytest.mark.parametrize(
    "x",
    [
        [1.0, 2.0],
        (1.0,),
        1.5,
        None,
        "text",
        b"bytes",
        bytearray(4),
        {},
        object(),
        [[1], [2, 3]],
        np.ndarray,
    ],
)
def test_objects_that_are_no_arrays(x: Any) -> None:
    with pytest.raises(TypeError, match=r"^x is of type .*: must be an array"):
        frame_of(x)


def test_integer_columns_with_missing_values() -> None:
    class Column:
        """What pandas and polars make of integers and a missing value."""

        dtype = "Int64"

        def __array__(self, *_: object, **__: object) -> np.ndarray:
            return np.array([2.0**53, np.nan])

    with pytest.raises(
        TypeError, match=r"^x has dtype Int64 and missing values: fill them first$"
    ):
        gcodec.encode(Column(), "lossless")


def test_data_frames_whose_integers_are_rounded() -> None:
    class DataFrame:
        """What pandas and polars make of columns of integers and of floats."""

        dtypes = ("Int64", "Float64")

        def __init__(self, integer: float) -> None:
            self.array = np.array([[integer, 2.0**60], [np.nan, 0.5]])

        def __array__(self, *_: object, **__: object) -> np.ndarray:
            return self.array

    for integer in (3.0, 1 - 2.0**53):
        x = DataFrame(integer)
        assert gcodec.decode(gcodec.encode(x, "lossless")).tobytes() == x.array.tobytes()
    for integer in (2.0**53, -(2.0**62)):
        with pytest.raises(
            TypeError, match=r"^x becomes an array of float64, which rounds some of its integers: "
        ):
            gcodec.encode(DataFrame(integer), "lossless")


def test_masked_arrays() -> None:
    with pytest.raises(TypeError, match="filled"):
        frame_of(np.ma.masked_less(X, 0))
    out = np.ma.masked_less(X.copy(), 0)
    with pytest.raises(TypeError, match=r"^out is a masked array: .*, out\.data$"):
        gcodec.decode(frame_of(X), out=out)  # what filled() returns would be lost
    gcodec.decode(frame_of(-X), out=out.data)
    assert np.array_equal(out.data, -X)
    data = np.ma.masked_less(np.frombuffer(frame_of(X), np.uint8), 0)
    with pytest.raises(TypeError, match="masked array"):
        gcodec.decode(data)
    with pytest.raises(TypeError, match="masked array"):
        gcodec.encode(X, "raw", out=np.ma.masked_less(np.zeros(200, np.uint8), 0))


@pytest.mark.parametrize("protocol", ["interface", "dlpack"])
def test_device_arrays_are_not_copied_silently(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)  # as if CuPy were not installed

    class Device:
        dtype, shape = X.dtype, X.shape

        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            return {}

    for call in (
        frame_of,
        lambda like: gcodec.decode(frame_of(X), like=like),
        lambda out: gcodec.decode(frame_of(X), out=out),
    ):
        with pytest.raises(ImportError, match=r"need CuPy: .*gcodec\[cuda12\]"):
            call(OnDevice(X, 2) if protocol == "dlpack" else Device())


def test_objects_that_answer_to_every_attribute_name() -> None:
    class Yes:
        def __getattr__(self, name: str) -> Yes:
            return self

    with pytest.raises(TypeError, match=r"^x is of type Yes: must be an array"):
        frame_of(Yes())


@pytest.mark.skipif(int(np.__version__.split(".")[0]) < 2, reason="NumPy 1 has 32 dimensions")
def test_too_many_dimensions() -> None:
    assert gcodec.decode(frame_of(np.ones((1,) * 32, np.float32))).ndim == 32
    with pytest.raises(ParameterError, match="ndim"):
        frame_of(np.ones((1,) * 33, np.float32))


@pytest.mark.parametrize("seed", [-1, 2**64, 1.0, "1", None, True, np.float32(1)])
def test_invalid_seeds(seed: Any) -> None:
    for call in (
        lambda: frame_of(X, seed=seed),
        lambda: gcodec.parse("raw").quantize(X, seed=seed),
        lambda: gcodec.parse("raw").quantize_residual(X, np.zeros_like(X), seed=seed),
        lambda: gcodec.Feedback("raw", seed=seed),
    ):
        with pytest.raises(ParameterError, match="seed"):
            call()


def test_numpy_seeds() -> None:
    assert frame_of(X, seed=np.uint64(7)) == frame_of(X, seed=np.int8(7)) == frame_of(X, seed=7)


@pytest.mark.parametrize("policy", ["ignore", "", None, 0])
def test_invalid_nonfinite_policies(policy: Any) -> None:
    with pytest.raises(ParameterError, match="nonfinite"):
        frame_of(X, nonfinite=policy)


@pytest.mark.parametrize("shape", [(-1,), (2.0,), ("2",), (2, -3)])
def test_invalid_shapes(shape: Any) -> None:
    with pytest.raises(ParameterError, match="shape"):
        gcodec.parse("raw").decode(b"", shape)


# --- special values -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", gs.DTYPES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nonfinite(dtype: str, value: float) -> None:
    x = np.zeros(300, gs.DTYPES[dtype])
    x[[17, 170]] = value
    with pytest.raises(ParameterError, match="2 NaN or Inf, the first at flat index 17"):
        frame_of(x)
    zeroed = np.zeros(300, gs.DTYPES[dtype])
    for spec in ("raw", "mxnet-2bit", "mxnet-1bit"):
        assert frame_of(x, spec, nonfinite="zero") == frame_of(zeroed, spec)
    assert np.isnan(x[17]) or np.isinf(x[17])
    kept = gcodec.decode(frame_of(x, nonfinite="propagate"))
    assert gs.same_bits(kept, x)
    two_bit = gcodec.decode(frame_of(x, "mxnet-2bit", nonfinite="propagate"))
    assert float(two_bit[17]) == (0 if np.isnan(value) else np.copysign(0.5, value))
    one_bit = gcodec.decode(frame_of(x, "mxnet-1bit", nonfinite="propagate"))
    assert float(one_bit[17]) == (1 if value > 0 else -1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("spec", ["blockwise:kind=nf4", "blockwise:kind=fp8"])
def test_nonfinite_in_parts(dtype: str, spec: str) -> None:
    """Codecs that convert a tensor part by part read NaN and infinity as 0 in each part."""
    x = np.linspace(-1, 1, 300).astype(gs.DTYPES[dtype])
    zeroed = x.copy()
    x[[17, 170, 299]], zeroed[[17, 170, 299]] = [np.nan, np.inf, -np.inf], 0
    assert frame_of(x, spec, nonfinite="zero") == frame_of(zeroed, spec)


@pytest.mark.parametrize("dtype", gs.DTYPES)
@pytest.mark.parametrize("spec", ["raw", "lossless", "lossless:mode=fast", "sign"])
def test_nonfinite_values_stay_in_the_input(dtype: str, spec: str) -> None:
    x = np.array(100 * [1, np.nan, np.inf, -2]).astype(gs.DTYPES[dtype])
    before = x.tobytes()
    frame = frame_of(x, spec, nonfinite="zero")
    assert x.tobytes() == before
    kept = np.array(100 * [1, 0, 0, -2]).astype(gs.DTYPES[dtype])
    assert np.array_equal(gcodec.decode(frame), gcodec.decode(frame_of(kept, spec)))


@pytest.mark.parametrize("dtype", gs.DTYPES)
@pytest.mark.parametrize("spec", ["raw", "minmax", "sign"])
def test_nonfinite_values_are_refused_before_out_is_written_to(dtype: str, spec: str) -> None:
    x, out = np.array([1, np.nan, 2]).astype(gs.DTYPES[dtype]), bytearray(200)
    with pytest.raises(ParameterError, match="x holds 1 NaN or Inf, the first at flat index 1"):
        gcodec.encode(x, spec, out=out)
    assert not any(out)


@pytest.mark.parametrize("value", [1e39, -1e300, np.finfo(np.float64).max])
def test_float64_beyond_float32(value: float) -> None:
    x = np.array([1.0, value])
    with pytest.raises(ParameterError, match="flat index 1: must be finite as float32"):
        frame_of(x)
    assert gcodec.decode(frame_of(x, nonfinite="zero")).tolist() == [1.0, 0.0]
    assert gcodec.decode(frame_of(x, nonfinite="propagate"))[1] == np.copysign(np.inf, value)


def test_float64_below_float32() -> None:
    x = np.array([1e-300, -1e-300, 1e-45, 5e-324])
    decoded = gcodec.decode(frame_of(x))
    assert decoded.tolist() == x.astype(np.float32).astype(np.float64).tolist()
    assert np.signbit(decoded).tolist() == [False, True, False, False]


def test_signaling_nan_of_float64_becomes_quiet() -> None:
    x = np.array([0x7FF0000000000001, 0xFFF4000000000000], np.uint64).view(np.float64)
    assert np.isnan(gcodec.decode(frame_of(x, nonfinite="propagate"))).all()
    with pytest.raises(ParameterError, match="NaN"):
        frame_of(x)
    assert gcodec.decode(frame_of(x, nonfinite="zero")).tolist() == [0, 0]


def test_signaling_nan_of_float32_in_another_dtype() -> None:
    x = np.array([0x7F800001, 0xFFBFFFFF], np.uint32).view(np.float32)
    frame = frame_of(x, nonfinite="propagate")
    assert gcodec.decode(frame).tobytes() == x.tobytes()
    for dtype in gs.DTYPES.values():
        decoded = gcodec.decode(frame, like=np.empty(2, dtype))
        with np.errstate(invalid="ignore"):
            assert np.isnan(decoded).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_16_bit_pattern_survives(dtype: str) -> None:
    patterns = np.arange(1 << 16, dtype=np.uint16)
    x = patterns.view(gs.DTYPES[dtype])
    for spec in ("raw", f"raw:dtype={dtype}"):
        frame = frame_of(x, spec, nonfinite="propagate")
        assert np.array_equal(gcodec.decode(frame).view(np.uint16), patterns)


def test_zeros_and_subnormals() -> None:
    x = np.array([0.0, -0.0, 1e-45, -1e-45, 1.1e-38, 2.0**-126], np.float32)
    assert gcodec.decode(frame_of(x)).tobytes() == x.tobytes()
    smallest = gcodec.decode(frame_of(x, "mxnet-2bit:threshold=1.1754944e-38"))
    assert smallest.tolist() == [0, 0, 0, 0, 0, 2.0**-126]
    assert gcodec.decode(frame_of(x, "mxnet-1bit")).tolist() == [-1, -1, 1, -1, 1, 1]


@pytest.mark.parametrize("server", ["no", "yes"])
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-8, 1.0, 1e30])
def test_automatic_threshold_accepts_any_scale(server: str, scale: float) -> None:
    x = (np.linspace(-1, 1, 101) * scale).astype(np.float32)
    spec = f"mxnet-2bit:threshold=auto,server={server}"
    decoded = gcodec.decode(frame_of(x, spec))
    assert np.isfinite(decoded).all()


# --- like, out and acc --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", gs.DTYPES)
def test_like_takes_dtype_and_byte_order(dtype: str, tmp_path: Path) -> None:
    frame = frame_of(X)
    for layout, like in layouts(np.zeros(X.shape, gs.DTYPES[dtype]), tmp_path).items():
        if not hasattr(like, "dtype"):
            with pytest.raises(TypeError, match=r"^like is of type .*: must be an array"):
                gcodec.decode(frame, like=like)
            continue
        decoded = gcodec.decode(frame, like=like)
        assert (type(decoded), decoded.dtype) == (np.ndarray, like.dtype), layout
        assert np.array_equal(decoded, X.astype(gs.DTYPES[dtype]))
        assert decoded.flags.writeable


@pytest.mark.parametrize("dtype", gs.DTYPES)
def test_like_a_scalar(dtype: str) -> None:
    scalar = gs.DTYPES[dtype].type(0.75)
    array_0d = np.asarray(scalar)
    frame = frame_of(scalar)
    assert frame == frame_of(array_0d)
    assert type(gcodec.decode(frame, like=scalar)) is type(scalar)
    assert gcodec.decode(frame, like=scalar) == scalar
    decoded = gcodec.decode(frame, like=array_0d)
    assert (type(decoded), decoded.shape, decoded.dtype) == (np.ndarray, (), array_0d.dtype)


def with_array(**attributes: object) -> object:
    """Return an object that NumPy converts, with other attributes of an array."""
    return type("WithArray", (), {"__array__": lambda self: X, **attributes})()


@pytest.mark.parametrize(
    "like",
    [
        *([1.0], 1.5, "x", object(), array.array("f", [1]), np.float32),
        with_array(dtype=X.dtype),
        with_array(dtype="float32", shape=X.shape),
    ],
    ids=lambda like: type(like).__name__,
)
def test_like_that_is_no_array(like: Any) -> None:
    with pytest.raises(TypeError, match=r"^like is of type .*: must be an array"):
        gcodec.decode(frame_of(X), like=like)


def test_decode_into_buffers(tmp_path: Path) -> None:
    flat = X.reshape(-1)
    frame = frame_of(flat)
    for target in (
        array.array("f", bytes(4 * flat.size)),
        memoryview(bytearray(4 * flat.size)).cast("f"),
        (ctypes.c_float * flat.size)(),
        np.memmap(tmp_path / "out", np.float32, "w+", shape=flat.shape),
        np.zeros(3 * flat.size, np.float32)[::-3],
        np.frombuffer(bytearray(1 + 4 * flat.size), np.uint8)[1:].view(np.float32),
    ):
        assert gcodec.decode(frame, out=target) is target
        assert np.array_equal(np.asarray(target), flat)
        gcodec.decode_add(frame, target, 2)
        assert np.array_equal(np.asarray(target), 3 * flat)


def test_invalid_targets() -> None:
    frame = frame_of(X)
    frozen = np.zeros_like(X)
    frozen.flags.writeable = False
    one = np.zeros((2, 1), np.float32)
    broadcast = np.lib.stride_tricks.as_strided(one, X.shape, (4, 0))
    windows = np.lib.stride_tricks.as_strided(np.zeros(5, np.float32), X.shape, (4, 4))
    cases: list[tuple[Any, type[Exception], str]] = [
        (frozen, ParameterError, "is read-only"),
        (memoryview(bytes(32)).cast("f", (2, 4)), ParameterError, "is read-only"),
        (broadcast, ParameterError, "is broadcast"),
        (windows, ParameterError, "overlaps itself"),
        (X.astype(">f4"), ParameterError, r"\.dtype='>f4': must be float32"),
        (X.astype(np.float64), ParameterError, r"\.dtype='float64': must be float32"),
        (X.reshape(-1), ParameterError, r"\.shape=\(8,\): must be \(2, 4\)"),
        (np.float32(0), ParameterError, "is a scalar"),
        (np.ma.masked_less(X, 0), TypeError, "is a masked array"),
        (Convertible(np.zeros_like(X)), TypeError, "is of type Convertible: must be an array to"),
        ([[0.0] * 4] * 2, TypeError, "is of type list: must be an array to write"),
    ]
    for target, error, message in cases:
        with pytest.raises(error, match=f"^out ?{message}"):
            gcodec.decode(frame, out=target)
        with pytest.raises(error, match=f"^acc ?{message}"):
            gcodec.decode_add(frame, target)
    assert not one.any()
    assert not frozen.any()


def test_encode_into_buffers() -> None:
    frame = frame_of(X)
    block = bytearray(300)
    for target in (
        bytearray(200),
        memoryview(block)[99:],
        array.array("d", bytes(200)),
        np.zeros(200, np.uint8),
        np.zeros((10, 20), np.int8)[3:],
        np.zeros(200, ">f8"),
        np.zeros(200, [("O", "f4")]),
    ):
        used = gcodec.encode(X, "raw", out=target)
        assert memoryview(target).tobytes()[:used] == frame
    assert not any(block[:99])
    cases: list[tuple[Any, type[Exception], str]] = [
        (bytes(200), ParameterError, "out is read-only"),
        (bytearray(5), ParameterError, "out: has 5 bytes, must have at least"),
        (np.zeros(400, np.uint8)[::2], TypeError, "out: .*contiguous"),
        (np.zeros(400, ml_dtypes.bfloat16), TypeError, "out: "),
        ([0] * 200, TypeError, "out: .*bytes-like"),
        (np.zeros(400, object), TypeError, "out contains Python objects"),  # else a crash
        (np.zeros(400, "O,f4"), TypeError, "out contains Python objects"),
    ]
    for target, error, message in cases:
        with pytest.raises(error, match=message):
            gcodec.encode(X, "raw", out=target)


@pytest.mark.parametrize("n", [1000, (1 << 21) + 5])
def test_encode_into_the_memory_of_the_tensor(n: int) -> None:
    block = np.zeros(4 * n + 100, np.uint8)
    x = block[: 4 * n].view(np.float32)
    x[:] = np.random.default_rng(0).standard_normal(n)
    frame = gcodec.encode(x, "raw")
    used = gcodec.encode(x, "raw", out=block)
    assert bytes(block[:used]) == frame


@pytest.mark.parametrize("n", [1000, (1 << 21) + 5])
@pytest.mark.parametrize("spec", ["raw", "sign", "minmax", "qsgd", "topk:ratio=0.5", "lossless"])
def test_decode_into_the_memory_of_the_frame(spec: str, n: int) -> None:
    frame = gcodec.encode(np.random.default_rng(0).standard_normal(n, np.float32), spec)

    def placed() -> tuple[memoryview, np.ndarray]:
        """Return the frame in a block, and an array that begins a bit before it."""
        block = bytearray(4 * n + 100 + len(frame))
        block[64 : 64 + len(frame)] = frame
        out = np.frombuffer(block, np.float32, n)
        return memoryview(block)[64 : 64 + len(frame)], out

    own, out = placed()
    assert np.array_equal(gcodec.decode(own, out=out), gcodec.decode(frame))
    own, out = placed()
    expected = gcodec.decode_sum([frame, frame, frame])
    assert np.array_equal(gcodec.decode_sum([frame, own, own], out=out), expected)
    own, acc = placed()
    total = acc.copy()
    gcodec.decode_add(frame, total)
    gcodec.decode_add(own, acc)
    assert acc.tobytes() == total.tobytes()


# --- decay and scale ----------------------------------------------------------------------------


@pytest.mark.parametrize("decay", ["1", None, True, 1j, np.nan, -np.inf, 1e300, 10**400])
@pytest.mark.parametrize("spec", ["raw", "mxnet-2bit", "mxnet-1bit"])
def test_invalid_decays(spec: str, decay: object) -> None:
    residual = np.ones(3, np.float32)
    with pytest.raises(gcodec.ParameterError, match=r"decay=.*finite as float32"):
        gcodec.parse(spec).quantize_residual(np.ones(3, np.float32), residual, decay=decay)
    assert (residual == 1).all()


@pytest.mark.parametrize("scale", ["1", None, True, 1j, np.complex64(1), 10**400])
def test_invalid_scales(scale: object) -> None:
    acc = np.ones(3, np.float32)
    frame = gcodec.encode(np.ones(3, np.float32), "raw")
    with pytest.raises(gcodec.ParameterError, match=r"scale=.*a number"):
        gcodec.decode_add(frame, acc, scale)
    assert (acc == 1).all()
