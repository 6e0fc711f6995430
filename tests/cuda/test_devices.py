"""Test detection and use of devices: CuPy through a stand-in, twins, streams, and clear errors."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import pkgutil
import subprocess
import sys
import types
from typing import Any, NamedTuple

import numpy as np
import pytest
import shim
from samples import gradient, same
from shim import ShimArray, ShimDevice
from stand_in import StandIn

import gcodec
import gcodec.kernels
from gcodec.frame import Frame, FrameSum
from gcodec.runtime import device as devices

needs_compiler = pytest.mark.skipif(shim.COMPILER is None, reason="there is no g++")


@needs_compiler
def test_cupy(cupy: StandIn) -> None:
    x = gradient(1000)
    on_device = cupy.asarray(x)
    frame = gcodec.encode(on_device, "sign")
    assert frame == gcodec.encode(x, "sign")
    decoded = gcodec.decode(frame, like=on_device)
    assert isinstance(decoded, cupy.ndarray)
    assert same(cupy.asnumpy(decoded), gcodec.decode(frame))
    for code, options, backend in cupy.compiled:
        # The headers are inlined, because CuPy does not track changes of headers.
        assert code.startswith("// ")
        assert "--fmad=false" in options
        assert backend == "nvrtc"
    count = len(cupy.compiled)
    gcodec.encode(on_device, "sign")
    assert len(cupy.compiled) == count  # each file is compiled only once
    assert not cupy.entered


@needs_compiler
@pytest.mark.parametrize("spec", ["topk:ratio=0.1", "qsgd", "dct8", "lossless", "minifloat"])
def test_the_device_of_an_array_is_made_current(spec: str, cupy: StandIn) -> None:
    """The stand-in refuses all other work, as CuPy may run it on the wrong device."""
    x = gradient(2000)
    on_device, codec, feedback = cupy.asarray(x), gcodec.parse(spec), gcodec.Feedback(spec)
    payload, expected = codec.encode(on_device), codec.encode(x)
    assert payload.tobytes() == expected.tobytes()
    assert same(devices.host(codec.decode(payload, x.size)), codec.decode(expected, x.size))
    symbols = codec.unpack(payload, x.size)
    assert codec.pack(symbols).tobytes() == payload.tobytes()
    frames = [feedback.compress("x", on_device) for _ in range(2)]
    assert same(devices.host(gcodec.decode(frames[1], like=on_device)), gcodec.decode(frames[1]))
    feedback.load_state_dict(feedback.state_dict())
    assert not cupy.entered


@needs_compiler
def test_arrays_without_dimensions(cupy: StandIn) -> None:
    x = np.array(-2.5, np.float32)
    on_device = cupy.asarray(x)
    frame = gcodec.encode(on_device, "raw")
    assert frame == gcodec.encode(x, "raw")
    decoded = gcodec.decode(frame, like=on_device)
    assert decoded.shape == ()
    assert same(devices.host(decoded), x)


@needs_compiler
def test_old_devices_are_refused(cupy: StandIn) -> None:
    on_device = cupy.asarray(gradient(10))
    cupy.cuda.Device.compute_capability = "70"
    with pytest.raises(RuntimeError, match=r"compute capability 7\.0: gcodec needs 7\.5"):
        gcodec.encode(on_device, "sign")
    cupy.cuda.Device.compute_capability = "90"
    cupy.broken = True
    with pytest.raises(
        RuntimeError, match=r"signs\.cu cannot be compiled for CUDA device 0 by NVRTC 12\.9; "
    ):
        gcodec.encode(on_device, "sign")


def test_nvrtc_is_missing(cupy: StandIn) -> None:
    def version() -> Any:
        raise RuntimeError('Failure finding "libnvrtc.so.13"')

    cupy.cuda.nvrtc.getVersion = version
    with pytest.raises(RuntimeError) as raised:
        gcodec.encode(cupy.asarray(gradient(10)), "sign")
    assert str(raised.value) == (
        "CuPy does not find NVRTC, the CUDA library that compiles the kernels of gcodec. The "
        "extras of gcodec bring it: pip install 'gcodec[cuda12]' or 'gcodec[cuda13]', after the "
        "CUDA version of the driver. A CUDA toolkit on the library path has it too. CuPy reports: "
        'Failure finding "libnvrtc.so.13"'
    )


def test_no_driver(cupy: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    on_device = cupy.asarray(gradient(10))

    def none(number: int) -> Any:
        raise RuntimeError("cudaErrorInsufficientDriver")

    monkeypatch.setattr(cupy.cuda, "Device", none)
    with pytest.raises(RuntimeError, match="CUDA device 0 cannot be used: cudaErrorInsuff"):
        gcodec.encode(on_device, "sign")


def test_out_of_memory(cupy: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    on_device = cupy.asarray(gradient(10))
    feedback = gcodec.Feedback("sign")

    def out(*_: Any) -> Any:
        raise MemoryError("Out of memory allocating 40 bytes")

    monkeypatch.setattr(cupy, "empty", out)
    with pytest.raises(MemoryError, match="Out of memory"):
        gcodec.encode(on_device, "sign")
    with pytest.raises(MemoryError, match="Out of memory"):
        feedback.compress("w", on_device)


def test_import_touches_no_device() -> None:
    code = "import sys, gcodec, numpy; gcodec.encode(numpy.ones(3, 'f'), 'sign'); "
    code += "sys.exit(any(name.split('.')[0] in ('cupy', 'torch') or name.endswith('_cuda')"
    code += " for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- twins ---------------------------------------------------------------------------------------

MODULES = [
    importlib.import_module(module.name)
    for module in pkgutil.walk_packages(gcodec.__path__, "gcodec.")
    if module.name.split(".")[1] in ("kernels", "runtime")
]
SHELLS = {
    (name, shell): shell.twin
    for module in MODULES
    for name, shell in vars(module).items()
    if callable(shell) and getattr(shell, "twin", None) and shell.__module__ == module.__name__
}


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: f"{shell[1].twin}.{shell[0]}")
def test_twins_have_the_same_arguments(shell: tuple[str, Any]) -> None:
    name, function = shell
    twin = getattr(importlib.import_module(function.twin), name)
    here, on_device = (inspect.signature(f).parameters.values() for f in (function, twin))
    assert [(p.name, p.kind, p.default) for p in here] == [
        (p.name, p.kind, p.default) for p in on_device
    ]


def test_sources_lie_beside_their_twins() -> None:
    alone = {
        name for name, path in devices.sources().items() if not path.with_suffix(".py").exists()
    }
    # Functions without a CUDA twin: NumPy runs them on the host, or they do nothing there.
    assert alone <= {
        *("scan", "dct_forward", "leading"),
        *("frequencies", "table_choice", "table_front", "scale_search", "context_plan"),
        "level_forms",
    }
    assert len({name for _, name in shim.kernels()}) == len(shim.kernels())


def test_dispatch_without_twin_is_refused() -> None:
    @devices.dispatched("signs")
    def absent(x: np.ndarray) -> np.ndarray:
        return x

    @devices.dispatched("nowhere")
    def lost(x: np.ndarray) -> np.ndarray:
        return x

    x = np.zeros(3, np.float32)
    assert absent(x) is x
    with devices.use(ShimDevice()) as on_device:
        for shell in (absent, lost):
            with pytest.raises(TypeError, match="copy them to the host first"):
                shell(on_device.to_device(x))


def test_codecs_without_twins_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's codec without CUDA twins refuses arrays on a device."""
    x, spec = gradient(64).reshape(8, 8).clip(-9, 9), "sign"
    codec = gcodec.parse(spec)
    monkeypatch.setattr(type(codec), "has_cuda_kernels", False)
    with devices.use(ShimDevice()) as device:
        device_result = device.to_device(x)
        for call in (
            lambda: gcodec.encode(device_result, spec),
            lambda: codec.quantize(device_result),
            lambda: codec.quantize_residual(device_result, device.zeros(64, np.float32)),
            lambda: gcodec.Feedback(spec).compress("w", device_result),
            lambda: gcodec.decode(gcodec.encode(x, spec), like=device_result),
            lambda: gcodec.decode(gcodec.encode(x, spec), out=device_result),
            lambda: gcodec.decode_add(gcodec.encode(x, spec), device_result),
        ):
            with pytest.raises(TypeError, match="takes no arrays on a CUDA device yet"):
                call()


# --- input and output ----------------------------------------------------------------------------


@needs_compiler
def test_arguments() -> None:
    x = gradient(12).reshape(3, 4)
    with devices.use(ShimDevice()) as device:
        device_result = device.to_device(x)
        codec = gcodec.parse("sign")
        with pytest.raises(TypeError, match="x has dtype int32: gcodec takes"):
            gcodec.encode(device.zeros(3, np.int32), "sign")
        with pytest.raises(gcodec.ParameterError, match=r"out\.dtype"):
            gcodec.decode(gcodec.encode(x, "sign"), out=device.zeros(12, np.float64))
        with pytest.raises(gcodec.ParameterError, match=r"out\.shape"):
            gcodec.decode(gcodec.encode(x, "sign"), out=device.zeros(12, np.float32))
        with pytest.raises(gcodec.ParameterError, match="strided"):
            gcodec.decode_add(gcodec.encode(x[:, ::2], "sign"), device_result[:, ::2])
        with pytest.raises(gcodec.ParameterError, match="different devices"):
            codec.quantize_residual(device_result, np.zeros(12, np.float32))
        with pytest.raises(gcodec.ParameterError, match="shares memory"):
            codec.quantize_residual(device_result, device_result.reshape(-1))
        strided = device_result[:, ::2]
        assert gcodec.encode(strided, "sign") == gcodec.encode(x[:, ::2], "sign")
        frame = gcodec.encode(x, "sign")
        for dtype in ("float16", "float64"):
            like = device.to_device(x.astype(dtype))
            decoded = device.to_host(gcodec.decode(frame, like=like))
            assert same(decoded, gcodec.decode(frame, like=x.astype(dtype)))
            narrow = gcodec.encode(x.astype(dtype), "sign")
            out = device.zeros(12, dtype).reshape(3, 4)
            assert gcodec.decode(narrow, out=out) is out
            assert same(device.to_host(out), gcodec.decode(narrow))


@needs_compiler
def test_residuals_move() -> None:
    """A state that was saved on the host continues on the device, and vice versa."""
    with devices.use(ShimDevice()) as device:
        known, other = gcodec.Feedback("sign"), gcodec.Feedback("sign")
        steps = [gradient(100, k) for k in range(4)]
        for k, x in enumerate(steps):
            device_result = k in (1, 2)
            frame = known.compress("w", device.to_device(x) if device_result else x)
            assert frame == other.compress("w", x)
            assert device.owns(known.residual("w")) == device_result
            memory = known.memory("w")
            known.compress("w", x)
            known.restore("w", memory)
            restored = gcodec.Feedback("sign")
            restored.load_state_dict(known.state_dict())
            assert same(restored.residual("w"), other.residual("w"))


class CudaTensors(NamedTuple):
    """Tensors of torch that seem to lie on a CUDA device; their memory is on the host.

    Attributes
    ----------
    torch : module
    kind : type
        Class of the tensors.
    streams : list of int
        Streams on which gcodec has worked.
    """

    torch: Any
    kind: type
    streams: list[int]


@pytest.fixture
def cuda_tensors(cupy: StandIn, monkeypatch: pytest.MonkeyPatch) -> CudaTensors:
    torch = pytest.importorskip("torch")

    class OnCuda(torch.Tensor):  # type: ignore[misc]
        device = property(lambda x: torch.device("cuda", 0))

    def dlpack(array: ShimArray, **_: Any) -> Any:
        return array.array.__dlpack__()

    monkeypatch.setattr(ShimArray, "__dlpack__", dlpack, raising=False)
    monkeypatch.setattr(ShimArray, "__dlpack_device__", lambda _: (1, 0), raising=False)
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda _: types.SimpleNamespace(cuda_stream=77)
    )
    used: list[int] = []
    real = cupy.cuda.Stream.from_external

    def from_external(stream: Any) -> contextlib.AbstractContextManager[None]:
        used.append(stream.__cuda_stream__()[1])
        actual: contextlib.AbstractContextManager[None] = real(stream)
        return actual

    monkeypatch.setattr(cupy.cuda.Stream, "from_external", from_external)
    monkeypatch.setattr(cupy, "from_dlpack", lambda x: cupy.asarray(torch.Tensor.numpy(x)))
    return CudaTensors(torch, OnCuda, used)


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_torch(dtype: str, cuda_tensors: CudaTensors) -> None:
    torch, kind, used = cuda_tensors
    x = torch.from_numpy(gradient(60).clip(-9, 9)).reshape(6, 10).to(getattr(torch, dtype))
    device_result = x.as_subclass(kind)
    frame = gcodec.encode(device_result, "sign")
    assert frame == gcodec.encode(x, "sign")
    assert set(used) == {77}
    used.clear()
    decoded = gcodec.decode(frame, like=device_result)
    assert decoded.dtype == x.dtype
    assert torch.equal(decoded, gcodec.decode(frame, like=x))
    assert set(used) == {77}


@needs_compiler
def test_streams_wait_for_each_other(
    cuda_tensors: CudaTensors, cupy: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What CuPy has begun is done before torch's stream goes on, and the other way round."""
    torch, kind, _ = cuda_tensors
    x = torch.from_numpy(gradient(60)).as_subclass(kind)
    own, real = [], cupy.cuda.Stream.from_external

    def from_external(stream: Any) -> Any:
        own.append(real(stream))
        return own[-1]

    monkeypatch.setattr(cupy.cuda.Stream, "from_external", from_external)
    gcodec.parse("mxnet-1bit").encode(x)
    assert own
    assert all(stream.awaited == [0] for stream in own)
    assert cupy.stream.awaited == [77] * len(own)
    cupy.stream.awaited.clear()
    own.clear()
    with pytest.raises(gcodec.ParameterError):
        gcodec.encode(x * np.nan, "sign")
    assert cupy.stream.awaited == [77] * len(own)
    own.clear()
    monkeypatch.setattr(cupy.stream, "ptr", 77)
    gcodec.encode(x, "sign")
    assert not own  # CuPy works on this stream anyway
    monkeypatch.setattr(cupy.stream, "ptr", 0)
    cupy.stream.awaited.clear()
    with devices.cuda_device(0).on_stream(77):  # as in the thread of the DDP hook
        gcodec.encode(x, "sign")
    assert not any(stream.awaited for stream in (cupy.stream, *own))


@needs_compiler
@pytest.mark.parametrize(
    "dtype",
    [
        "float32",
        "float16",
        "bfloat16",
        "float64",
        "float8_e4m3fn",
        "int64",
        "int16",
        "uint8",
        "bool",
    ],
)
def test_patches_of_torch(dtype: str, cuda_tensors: CudaTensors) -> None:
    torch, kind, used = cuda_tensors
    old, new = (
        torch.from_numpy(np.arange(60) % modulus).reshape(6, 10).to(getattr(torch, dtype))
        for modulus in (5, 7)
    )
    frame = gcodec.encode_patch(new, base=old)
    assert gcodec.encode_patch(new.as_subclass(kind), base=old.as_subclass(kind)) == frame
    assert set(used) == {77}
    used.clear()
    patched = gcodec.apply_patch(frame, old.as_subclass(kind))
    assert (patched.dtype, patched.shape) == (new.dtype, new.shape)
    assert torch.equal(patched.view(torch.uint8), new.view(torch.uint8))
    assert set(used) == {77}


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_jax(dtype: str, cupy: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    jax = pytest.importorskip("jax")
    x = jax.numpy.asarray(gradient(60).clip(-9, 9)).reshape(6, 10).astype(dtype)
    wanted, back = gcodec.encode(x, "sign"), gcodec.decode(gcodec.encode(x, "sign"), like=x)
    monkeypatch.setattr(
        ShimArray, "__dlpack__", lambda array, **_: array.array.__dlpack__(), raising=False
    )
    monkeypatch.setattr(ShimArray, "__dlpack_device__", lambda _: (1, 0), raising=False)
    # Mimic a CUDA array: its memory is that of the host array.
    monkeypatch.setattr(cupy, "from_dlpack", lambda x: cupy.asarray(np.asarray(x)))
    monkeypatch.setattr(type(x), "__dlpack_device__", lambda _: (2, 0))
    assert gcodec.encode(x, "sign") == wanted
    assert cupy.device.launched
    before = cupy.stream.synchronized
    gcodec.parse("mxnet-1bit").encode(x)  # no kernel is left that reads x, which JAX may reuse
    assert cupy.stream.synchronized == before + 1
    decoded = gcodec.decode(wanted, like=x)
    assert isinstance(decoded, jax.Array)
    assert decoded.dtype == x.dtype
    assert np.array_equal(np.asarray(decoded), np.asarray(back))
    old, new = np.asarray(x), np.asarray(2 * x)
    patch = gcodec.encode_patch(new, base=old)
    assert gcodec.encode_patch(2 * x, base=x) == patch
    patched = gcodec.apply_patch(patch, x)
    assert isinstance(patched, jax.Array)
    assert patched.dtype == x.dtype
    assert np.array_equal(np.asarray(patched), new)


@needs_compiler
def test_read_only_arrays_are_refused(cupy: StandIn) -> None:
    class ReadOnly:
        shape, dtype = (3,), np.dtype(np.float32)
        __cuda_array_interface__ = property(lambda _: {"data": (0, True)})

        def __array__(self, *_: Any, **__: Any) -> np.ndarray:
            return np.zeros(3, np.float32)

    frame = gcodec.encode(np.ones(3, np.float32), "sign")
    with pytest.raises(gcodec.ParameterError, match=r"^out is read-only: must be writable$"):
        gcodec.decode(frame, out=ReadOnly())
    with pytest.raises(gcodec.ParameterError, match=r"^acc is read-only: must be writable$"):
        gcodec.decode_add(frame, ReadOnly())


def test_sums_take_values_of_the_host(gpu: Any) -> None:
    """A rank without a device sends frames that several tensors share."""
    x, more = gradient(100), gradient(100, 1)
    frame = Frame.of(gcodec.encode(x, "sign"))
    sums = []
    for place in (np.array, gpu.to_device):
        out = place(np.zeros(100, np.float32))
        total = FrameSum(out, (100,))
        total.add(frame, 0.5)
        total.add_values(more)
        total.finish()
        sums.append(devices.host(out))
    assert same(*sums)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "int64", "uint64", "bool"])
def test_integers_round_trip_on_a_device(gpu: Any, dtype: str) -> None:
    """The host codes them: the frame is the same, and the result is on the device of `like`."""
    x = (np.arange(-6, 6) % 5).astype(dtype).reshape(3, 4)
    device_result = gpu.to_device(x)
    frame = gcodec.encode(device_result, "raw")
    assert frame == gcodec.encode(x, "raw")
    back = gcodec.decode(frame, like=device_result)
    assert gpu.owns(back) and back.dtype == x.dtype and back.shape == x.shape
    assert np.array_equal(gpu.to_host(back), x)
    out = gpu.to_device(np.zeros_like(x))
    assert gcodec.decode(frame, out=out) is out
    assert np.array_equal(gpu.to_host(out), x)
    with pytest.raises(TypeError, match=rf"^x has dtype {dtype}: .*'raw'"):
        gcodec.encode(device_result, "sign")
