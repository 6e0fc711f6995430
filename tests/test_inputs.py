"""What can be encoded, what is refused with advice, and the arrays of other libraries."""

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

X = np.array([[0.5, -0.5, 0.0, 3.0], [1.25, -0.0, -8.0, 2.0**-10]], np.float32)


def frame_of(x: Any, spec: str = "raw", **kwargs: Any) -> bytes:
    return gcodec.encode(x, spec, **kwargs)


# --- layouts ------------------------------------------------------------------------------------


class Exporter:
    """An object that knows DLPack and nothing else."""

    def __init__(self, x: np.ndarray) -> None:
        self.x = x

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.x.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return self.x.__dlpack_device__()


def layouts(x: np.ndarray, tmp_path: Path) -> dict[str, Any]:
    """Return the same array in all the ways that one can lie in memory."""
    itemsize = x.dtype.itemsize
    wide = np.zeros((x.shape[0], 3 * x.shape[1]), x.dtype)
    wide[:, ::3] = x
    mirrored = x[::-1, ::-1].copy()[::-1, ::-1]
    frozen = x.copy()
    frozen.flags.writeable = False
    shifted = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape)
    on_disk = np.memmap(tmp_path / f"x{itemsize}", x.dtype, "w+", shape=x.shape)
    on_disk[...] = x
    found = {
        "fortran": np.asfortranarray(x),
        "strided": wide[:, ::3],
        "negative strides": mirrored,
        "transposed": x.T.copy().T,
        "read-only": frozen,
        "misaligned": shifted,
        "memmap": on_disk,
        "subclass": x.view(np.matrix) if x.dtype.kind == "f" else x,
        "big-endian": x.astype(x.dtype.newbyteorder(">")) if x.dtype.kind == "f" else x,
    }
    if x.dtype.kind == "f":
        found["buffer"] = memoryview(x)
        found["dlpack"] = Exporter(x)
    return found


@pytest.mark.parametrize("dtype", gs.DTYPES)
@pytest.mark.parametrize("spec", ["raw", "mxnet-2bit", "mxnet-1bit"])
def test_layouts(dtype: str, spec: str, tmp_path: Path) -> None:
    x = X.astype(gs.DTYPES[dtype])
    expected = frame_of(x, spec)
    for layout, given in layouts(x, tmp_path).items():
        assert frame_of(given, spec) == expected, layout


def test_shapes_without_a_second_element() -> None:
    for x in (np.float32(0.75), np.array(0.75, np.float32), np.full((1, 1), 0.75, np.float32)):
        decoded = gcodec.decode(frame_of(x))
        assert decoded.shape == x.shape
        assert decoded == np.float32(0.75)
    for shape in ((0,), (3, 0), (0, 0, 7)):
        for dtype in gs.DTYPES.values():
            x = np.empty(shape, dtype)
            for codec in gs.FEW:
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


def test_dlpack_that_fails_is_a_type_error() -> None:
    class Broken(Exporter):
        def __dlpack__(self, **kwargs: Any) -> Any:
            raise BufferError("not exportable")

    with pytest.raises(TypeError, match="DLPack"):
        frame_of(Broken(X))


def test_the_input_is_never_written_to() -> None:
    for codec in gs.FEW:
        x = X.copy()
        x.flags.writeable = False
        payload = codec.encode(x)
        frame_of(x, codec)
        codec.quantize_residual(x, np.zeros(x.shape, np.float32))
        assert x.tobytes() == X.tobytes()
        assert not np.shares_memory(payload.data, x)


def test_results_outlive_what_they_came_from() -> None:
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


@pytest.mark.parametrize(
    "x",
    [
        *(np.zeros(3, kind) for kind in ("i1", "u1", "i4", "i8", "?", "c8", "c16", "O", "M8[s]")),
        np.array(["a"]),
        np.zeros(3, [("a", "f4")]),
        np.zeros(3, np.longdouble),
        np.zeros(3, ml_dtypes.float8_e4m3fn),
        memoryview(b"\0\0\0\0"),
        array.array("i", [1, 2]),
    ],
    ids=lambda x: str(getattr(x, "dtype", type(x).__name__)),
)
def test_dtypes_that_are_not_taken(x: Any) -> None:
    if getattr(x, "dtype", None) == np.float64:
        pytest.skip("long double is double here")
    with pytest.raises(TypeError, match=r"float32.*astype"):
        frame_of(x)
    with pytest.raises(TypeError, match="dtype"):
        gcodec.parse("raw").quantize(x)
    with pytest.raises(TypeError, match="grad has dtype"):
        gcodec.Feedback("raw").compress("w", x)


@pytest.mark.parametrize(
    "x",
    [[1.0, 2.0], (1.0,), 1.5, None, "text", b"bytes", bytearray(4), {}, object(), [[1], [2, 3]]],
)
def test_what_is_no_array(x: Any) -> None:
    with pytest.raises(TypeError, match=r"^x is a .*: must be an array"):
        frame_of(x)


def test_masked_arrays() -> None:
    with pytest.raises(TypeError, match="filled"):
        frame_of(np.ma.masked_less(X, 0))


def test_device_arrays_are_not_copied_silently() -> None:
    class Device:
        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            return {}

    with pytest.raises(TypeError, match="CUDA"):
        frame_of(Device())


@pytest.mark.skipif(int(np.__version__.split(".")[0]) < 2, reason="NumPy 1 has 32 dimensions")
def test_too_many_dimensions() -> None:
    assert gcodec.decode(frame_of(np.ones((1,) * 32, np.float32))).ndim == 32
    with pytest.raises(ParameterError, match="ndim"):
        frame_of(np.ones((1,) * 33, np.float32))


@pytest.mark.parametrize("seed", [-1, 2**64, 1.0, "1", None, True, np.float32(1)])
def test_seeds(seed: Any) -> None:
    for call in (
        lambda: frame_of(X, seed=seed),
        lambda: gcodec.parse("raw").quantize(X, seed=seed),
        lambda: gcodec.parse("raw").quantize_residual(X, np.zeros_like(X), seed=seed),
        lambda: gcodec.Feedback("raw", seed=seed),
    ):
        with pytest.raises(ParameterError, match="seed"):
            call()


def test_seeds_of_numpy() -> None:
    assert frame_of(X, seed=np.uint64(7)) == frame_of(X, seed=np.int8(7)) == frame_of(X, seed=7)


@pytest.mark.parametrize("policy", ["ignore", "", None, 0])
def test_policies(policy: Any) -> None:
    with pytest.raises(ParameterError, match="nonfinite"):
        frame_of(X, nonfinite=policy)


@pytest.mark.parametrize("shape", [(-1,), (2.0,), ("2",), (2, -3)])
def test_shapes_to_decode_to(shape: Any) -> None:
    with pytest.raises(ParameterError, match="shape"):
        gcodec.parse("raw").decode(b"", shape)


# --- values that are not ordinary ---------------------------------------------------------------


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


@pytest.mark.parametrize("value", [1e39, -1e300, np.finfo(np.float64).max])
def test_float64_beyond_float32(value: float) -> None:
    x = np.array([1.0, value])
    with pytest.raises(ParameterError, match="flat index 1"):
        frame_of(x)
    assert gcodec.decode(frame_of(x, nonfinite="zero")).tolist() == [1.0, 0.0]
    assert gcodec.decode(frame_of(x, nonfinite="propagate"))[1] == np.copysign(np.inf, value)


def test_float64_below_float32() -> None:
    x = np.array([1e-300, -1e-300, 1e-45, 5e-324])
    decoded = gcodec.decode(frame_of(x))
    assert decoded.tolist() == x.astype(np.float32).astype(np.float64).tolist()
    assert np.signbit(decoded).tolist() == [False, True, False, False]


def test_signalling_nan_of_float64_is_quiet() -> None:
    x = np.array([0x7FF0000000000001, 0xFFF4000000000000], np.uint64).view(np.float64)
    assert np.isnan(gcodec.decode(frame_of(x, nonfinite="propagate"))).all()
    with pytest.raises(ParameterError, match="NaN"):
        frame_of(x)
    assert gcodec.decode(frame_of(x, nonfinite="zero")).tolist() == [0, 0]


def test_signalling_nan_of_float32_in_another_dtype() -> None:
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
def test_automatic_threshold_takes_any_scale(server: str, scale: float) -> None:
    x = (np.linspace(-1, 1, 101) * scale).astype(np.float32)
    spec = f"mxnet-2bit:threshold=auto,server={server}"
    decoded = gcodec.decode(frame_of(x, spec))
    assert np.isfinite(decoded).all()


# --- torch --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


TORCH_DTYPES = ["float32", "float16", "bfloat16", "float64"]


def to_numpy(tensor: Any, torch: Any) -> np.ndarray:
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


@pytest.mark.parametrize("dtype", TORCH_DTYPES)
@pytest.mark.parametrize("spec", ["raw", "mxnet-2bit", "mxnet-1bit", "raw:dtype=bfloat16"])
def test_torch(torch: Any, dtype: str, spec: str) -> None:
    t = torch.from_numpy(X).to(getattr(torch, dtype))
    expected = frame_of(X.astype(gs.DTYPES[dtype]), spec)
    assert frame_of(t, spec) == expected
    assert frame_of(t.clone().requires_grad_(), spec) == expected
    assert frame_of(t.t().contiguous().t(), spec) == expected
    assert frame_of(t.repeat_interleave(2, 1)[:, ::2], spec) == expected
    assert frame_of(torch.nn.Parameter(t), spec) == expected

    decoded = gcodec.decode(expected)
    assert isinstance(decoded, np.ndarray)
    like = gcodec.decode(expected, like=t)
    assert (like.dtype, like.shape, like.device) == (t.dtype, t.shape, t.device)
    assert not like.requires_grad
    assert gs.same_bits(to_numpy(like, torch), decoded)
    out = torch.zeros_like(t)
    assert gcodec.decode(expected, out=out) is out
    assert gs.same_bits(to_numpy(out, torch), decoded)
    spread = torch.zeros(2, 8, dtype=t.dtype)
    gcodec.decode(expected, out=spread[:, ::2])
    assert torch.equal(spread[:, ::2], out)
    assert not spread[:, 1::2].any()
    acc = torch.ones(X.shape)
    gcodec.decode_add(expected, acc, 0.5)
    assert torch.equal(acc, 1 + 0.5 * out.to(torch.float32))
    grown = torch.ones(4, 2).t()
    gcodec.decode_add(expected, grown, 0.5)
    assert torch.equal(grown, acc)


@pytest.mark.parametrize("dtype", TORCH_DTYPES)
@pytest.mark.parametrize("other", TORCH_DTYPES)
def test_torch_like_another_dtype(torch: Any, dtype: str, other: str) -> None:
    x = torch.from_numpy(X).to(getattr(torch, dtype))
    decoded = gcodec.decode(frame_of(x), like=x.to(getattr(torch, other)))
    assert decoded.dtype is getattr(torch, other)
    assert torch.equal(decoded, x.to(torch.float32).to(getattr(torch, other)))


def test_torch_sizes(torch: Any) -> None:
    for shape in ((), (0,), (0, 3), (1,), (1, 1, 1)):
        for dtype in TORCH_DTYPES:
            t = torch.full(shape, 0.5, dtype=getattr(torch, dtype))
            decoded = gcodec.decode(frame_of(t), like=t)
            assert torch.equal(decoded, t)
            out = torch.zeros_like(t)
            gcodec.decode(frame_of(t), out=out)
            assert torch.equal(out, t)


def test_torch_refusals(torch: Any) -> None:
    for dtype in (torch.int32, torch.bool, torch.complex64, torch.uint8):
        with pytest.raises(TypeError, match="dtype"):
            frame_of(torch.zeros(3, dtype=dtype))
    with pytest.raises(TypeError, match="meta"):
        frame_of(torch.zeros(3, device="meta"))
    with pytest.raises(TypeError, match="dense"):
        frame_of(torch.eye(3).to_sparse())
    with pytest.raises(TypeError, match="dense"):
        frame_of(torch.zeros(3, dtype=torch.complex64).conj().imag)
    frame = frame_of(X)
    with pytest.raises(ParameterError, match=r"like\.shape"):
        gcodec.decode(frame, like=torch.zeros(8))
    with pytest.raises(ParameterError, match=r"like\.dtype"):
        gcodec.decode(frame, like=torch.zeros(2, 4, dtype=torch.int32))
    with pytest.raises(ParameterError, match=r"out\.dtype"):
        gcodec.decode(frame, out=torch.zeros(2, 4, dtype=torch.bfloat16))
    with pytest.raises(ParameterError, match=r"acc\.dtype"):
        gcodec.decode_add(frame, torch.zeros(2, 4, dtype=torch.float64))


def test_torch_results_are_independent(torch: Any) -> None:
    t = torch.from_numpy(X)
    frame = bytearray(frame_of(t))
    decoded = gcodec.decode(frame, like=t)
    frame[:] = bytes(len(frame))
    decoded += 1
    assert torch.equal(decoded, torch.from_numpy(X + 1))


def test_torch_feedback(torch: Any) -> None:
    with_torch, with_numpy = (gcodec.Feedback("mxnet-2bit:threshold=1") for _ in range(2))
    for step in range(4):
        g = torch.full((3, 5), 0.3 + step, requires_grad=True)
        frame = with_torch.compress("w", g)
        assert frame == with_numpy.compress("w", g.detach().numpy())
    residual = torch.zeros(3, 5)
    array = np.zeros((3, 5), np.float32)
    codec = gcodec.parse("mxnet-1bit")
    codec.quantize_residual(g, residual)
    codec.quantize_residual(g, array)
    assert np.array_equal(residual.numpy(), array)


# --- JAX ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_jax(dtype: str) -> None:
    jax = pytest.importorskip("jax")
    x = jax.numpy.asarray(X, dtype)
    host = X.astype(gs.DTYPES[dtype])
    for spec in ("raw", "mxnet-2bit", "mxnet-1bit"):
        frame = frame_of(x, spec)
        assert frame == frame_of(host, spec)
        decoded = gcodec.decode(frame, like=x)
        assert isinstance(decoded, jax.Array)
        assert (decoded.dtype, decoded.shape) == (x.dtype, x.shape)
        assert gs.same_bits(np.asarray(decoded), gcodec.decode(frame))
        with pytest.raises(ParameterError, match="read-only"):
            gcodec.decode(frame, out=x)
    with pytest.raises(TypeError, match="dtype"):
        frame_of(jax.numpy.arange(3))


def test_frameworks_are_not_imported(tmp_path: Path) -> None:
    import subprocess

    code = (
        "import sys, numpy, gcodec\n"
        "frame = gcodec.encode(numpy.ones(3, numpy.float32), 'raw')\n"
        "gcodec.decode(frame, like=numpy.ones(3))\n"
        "assert not {'torch', 'jax', 'tensorflow', 'cupy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


@pytest.mark.parametrize("decay", ["1", None, True, 1j, np.nan, -np.inf, 1e300, 10**400])
@pytest.mark.parametrize("spec", ["raw", "mxnet-2bit", "mxnet-1bit"])
def test_decays_that_are_no_finite_number(spec: str, decay: object) -> None:
    residual = np.ones(3, np.float32)
    with pytest.raises(gcodec.ParameterError, match=r"decay=.*finite as float32"):
        gcodec.parse(spec).quantize_residual(np.ones(3, np.float32), residual, decay=decay)
    assert (residual == 1).all()


@pytest.mark.parametrize("scale", ["1", None, True, 1j, np.complex64(1), 10**400])
def test_scales_that_are_no_number(scale: object) -> None:
    acc = np.ones(3, np.float32)
    frame = gcodec.encode(np.ones(3, np.float32), "raw")
    with pytest.raises(gcodec.ParameterError, match=r"scale=.*a number"):
        gcodec.decode_add(frame, acc, scale)
    assert (acc == 1).all()
