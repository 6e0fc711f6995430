"""Test the codec ``qsgd`` on a device: frames and decoded values of the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from samples import arbitrary_floats, gradient, same
from strings import agree, outcome

import gcodec
from gcodec.runtime.device import Device

SPECS = (
    "qsgd",
    "qsgd:form=dense",
    "qsgd:form=sparse,bucket=512",
    "qsgd:s=1,norm=max",
    "qsgd:s=127,bucket=100,code=rice",
    "qsgd:s=4,code=rice,form=sparse",
    "qsgd:s=100000,code=rice,norm=max",
    "qsgd:s=3,code=rice,form=dense,bucket=64",
    "qsgd:s=2,bucket=512,norm=max",
    "qsgd:s=1000,bucket=512",
    "qsgd:s=100000,form=dense,norm=max",
    "qsgd:code=packed,bucket=64",
    "qsgd:code=huffman,bucket=512",
    "qsgd:code=rans",
    "qsgd:code=rans,bucket=512",
)


def sample(n: int) -> np.ndarray:
    """Return values with zero-norm and tiny-norm buckets, all norms finite."""
    x = np.clip(gradient(n), -1e9, 1e9)
    x[600:1700] = 0
    x[3000:3600] *= np.float32(1e-38)
    return x


@pytest.mark.parametrize("spec", SPECS)
def test_frames(gpu: Device, spec: str) -> None:
    for n in (0, 1, 5001):
        x = sample(n)
        on_device = gpu.to_device(x)
        frame = gcodec.encode(on_device, spec, seed=5)
        assert frame == gcodec.encode(x, spec, seed=5), n
        decoded = gcodec.decode(frame, like=on_device)
        assert gpu.owns(decoded)
        assert same(gpu.to_host(decoded), gcodec.decode(frame)), n


@pytest.mark.parametrize("spec", ["qsgd:bucket=512", "qsgd:form=sparse", "qsgd:code=rans"])
def test_seek_tables(gpu: Device, spec: str) -> None:
    x = np.random.default_rng(2).standard_normal(70_000).astype(np.float32).reshape(700, 100)
    on_device = gpu.to_device(x)
    frame = gcodec.encode(on_device, spec, seed=1)
    assert frame == gcodec.encode(x, spec, seed=1)
    read = gcodec.Frame.from_bytes(frame)
    for one in (read if read.seek else read.with_seek(10), read.without_seek()):
        wanted = gcodec.decode(one.to_bytes())
        assert same(gpu.to_host(gcodec.decode(one.to_bytes(), like=on_device)), wanted)


@pytest.mark.parametrize("spec", ["qsgd:bucket=512", "qsgd:form=sparse,code=rice"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_adding(gpu: Device, spec: str, dtype: str) -> None:
    x = np.clip(sample(5000), -1e4, 1e4).astype(dtype)
    frame = gcodec.encode(gpu.to_device(x), spec, seed=3)
    assert frame == gcodec.encode(x, spec, seed=3)
    start = gradient(5000, 1)
    acc, wanted = gpu.to_device(start), start.copy()
    gcodec.decode_add(frame, acc, 0.25)
    gcodec.decode_add(frame, wanted, 0.25)
    assert same(gpu.to_host(acc), wanted)


@pytest.mark.parametrize("spec", ["qsgd:bucket=512", "qsgd:s=3"])
def test_feedback(gpu: Device, spec: str) -> None:
    on_device, here = gcodec.Feedback(spec, seed=1), gcodec.Feedback(spec, seed=1)
    for step in range(3):
        x = np.clip(gradient(3000, step), -1e9, 1e9)
        assert on_device.compress("w", gpu.to_device(x)) == here.compress("w", x)
        assert same(gpu.to_host(on_device.residual("w")), here.residual("w"))


def test_symbols(gpu: Device) -> None:
    x = sample(5000)
    for codec in (gcodec.parse("qsgd:bucket=512"), gcodec.parse("qsgd:form=sparse")):
        symbols = codec.quantize(gpu.to_device(x), seed=2)
        payload = codec.pack(symbols)
        assert gpu.owns(payload.data)
        assert payload.tobytes() == codec.pack(codec.quantize(x, seed=2)).tobytes()
        again = codec.unpack(payload, x.shape)
        assert same(gpu.to_host(again.levels), gpu.to_host(symbols.levels))
        wrong = symbols._replace(levels=gpu.to_device(np.full(5000, 32, np.uint8)))
        with pytest.raises(gcodec.ParameterError, match="at most 15"):
            codec.pack(wrong)


def test_symbols_in_zero_norm_buckets(gpu: Device) -> None:
    """A nonzero level in a zero-norm bucket, in a form that could represent it."""
    codec = gcodec.parse("qsgd:form=sparse,bucket=100")
    x = np.ones(1000, np.float32)
    payload = codec.encode(x)
    wrong = payload.data.copy()
    wrong[:4] = 0
    on_device = payload._replace(data=gpu.to_device(wrong))
    for action in (codec.decode, codec.unpack):
        with pytest.raises(gcodec.Corrupt, match="norm is 0"):
            action(on_device, 1000)


def test_refused(gpu: Device) -> None:
    with pytest.raises(gcodec.ParameterError, match="NaN or Inf"):
        gcodec.encode(gpu.to_device(arbitrary_floats(100)), "qsgd")
    large = np.full(100, 3e38, np.float32)
    with pytest.raises(gcodec.ParameterError, match="float32"):
        gcodec.encode(gpu.to_device(large), "qsgd")


def test_fetches(gpu: Device) -> None:
    """The host waits only once, although it does not know which form is shorter."""
    fetched = getattr(gpu, "fetched", None)
    if fetched is None:
        pytest.skip("only the shim counts")
    x = gpu.to_device(np.clip(gradient(5000), -1e9, 1e9))
    for spec in ("qsgd", "qsgd:s=1000,code=rice", "qsgd:s=1000,bucket=64"):
        before = gpu.fetched  # type: ignore[attr-defined]
        gcodec.parse(spec).encode(x)
        assert gpu.fetched - before == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("share", [1.0, 0.2, 0.0])
def test_shorter_form_is_selected(gpu: Device, share: float) -> None:
    x = np.random.default_rng(1).standard_normal(70_000).astype(np.float32)
    x[int(share * x.size) :] = 0
    for spec in ("qsgd:s=1000,norm=max", "qsgd:s=1000,norm=max,code=rice"):
        on_device = gcodec.parse(spec).encode(gpu.to_device(x), seed=1)
        here = gcodec.parse(spec).encode(x, seed=1)
        assert on_device.codec == here.codec
        assert (on_device.scalars, on_device.nbits) == (here.scalars, here.nbits)
        assert gpu.owns(on_device.data)
        assert on_device.tobytes() == here.tobytes()
        frame = gcodec.encode(gpu.to_device(x), spec, seed=1)  # with a table of blocks
        assert frame == gcodec.encode(x, spec, seed=1)


@pytest.mark.parametrize("code", ["omega", "rice", "packed", "huffman", "rans"])
@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_damage(gpu: Device, code: str, form: str) -> None:
    """Flipped or missing bits give the values or the error of the host."""
    if form == "sparse" and code not in ("omega", "rice"):
        pytest.skip("there is no such form")
    codec = gcodec.parse(f"qsgd:form={form},code={code},bucket=64")
    payload = codec.encode(sample(300), seed=1)
    random = np.random.default_rng(5)
    for flip in [*random.integers(0, payload.nbits, 16).tolist(), None]:
        data, nbits = payload.data.copy(), payload.nbits
        if flip is None:
            data, nbits = data[:-3], nbits - 24
        else:
            data[flip // 8] ^= np.uint8(0x80 >> flip % 8)
        here = payload._replace(data=data, nbits=nbits)
        on_device = payload._replace(data=gpu.to_device(data), nbits=nbits)
        wanted = outcome(lambda p=here: codec.decode(p, 300))
        decoded = outcome(lambda p=on_device: gpu.to_host(codec.decode(p, 300)))
        assert agree(decoded, wanted), flip
