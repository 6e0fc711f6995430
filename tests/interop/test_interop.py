"""Messages of other systems: recorded ones, those of simple models, and hostile ones."""

from __future__ import annotations

import array
import platform
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import byteps as byteps_model
from reference import fused_rows as rows_model
from reference import mxnet as mxnet_model

import gcodec
from gcodec import Corrupt, FormatError, LimitExceeded, Limits, ParameterError, Truncated
from gcodec.arrays.frameworks import JAX, TORCH
from gcodec.arrays.source import Source
from gcodec.interop import (
    bitsandbytes,
    byteps,
    caffe2,
    deepspeed,
    demo,
    hivemind,
    mxnet,
    objects,
    panthalia,
    psyche,
    templar,
    torchft,
)

UPSTREAM = Path(__file__).parents[1] / "golden" / "upstream"
F = np.float32
FORMATS = [(8, "float32"), (8, "float16"), (4, "float16"), (2, "float16")]
AVX2 = platform.machine() in ("x86_64", "AMD64")


def recorded(name: str) -> Iterator[tuple[str, str]]:
    """Read the keys and values of a file of recorded messages; indented lines continue a value."""
    key, value = "", ""
    for line in (UPSTREAM / name).read_text("utf-8").splitlines():
        if line.startswith("#"):
            continue
        if line.startswith(" "):
            value += line.replace(" ", "")
            continue
        if key:
            yield key, value
        words = line.split()
        number = 2 if words[0] in ("2", "4", "8") else 1
        key, value = " ".join(words[:number]), "".join(words[number:])
        if key not in ("x", "message", "decoded", "2 bits", "4 bits", "8 bits"):
            value = " ".join(words[number:])
    yield key, value


def patterns(text: str) -> np.ndarray:
    return np.frombuffer(bytes.fromhex(text), ">u4").astype(np.uint32).view(F)


def normal(*shape: int, seed: int = 0, size: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * size).astype(F)


def assert_same_bits(actual: np.ndarray, expected: np.ndarray) -> None:
    assert actual.dtype == expected.dtype == F
    np.testing.assert_array_equal(actual.view(np.uint32), expected.view(np.uint32))


# --- the package ---------------------------------------------------------------------------------


def test_interop_is_imported_lazily() -> None:
    code = (
        "import gcodec, sys\n"
        "gcodec.interop\n"
        "heavy = {'numpy', 'gcodec.interop.mxnet'} & set(sys.modules)\n"
        "print(sorted(heavy), callable(gcodec.interop.mxnet.encode))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[] True\n"


def test_modules_have_the_same_functions() -> None:
    assert set(gcodec.interop.__all__) <= set(dir(gcodec.interop))
    for name in gcodec.interop.__all__:
        module = getattr(gcodec.interop, name)
        assert callable(module.encode) and callable(module.decode)
        assert hasattr(module, "to_frame") == hasattr(module, "from_frame")
        assert hasattr(module, "to_frame") or "no ``to_frame``" in module.__doc__
    with pytest.raises(AttributeError, match="horovod"):
        gcodec.interop.horovod  # noqa: B018


def test_dct8_exports_panthalia_functions() -> None:
    from gcodec.codecs import dct8

    assert dct8.to_panthalia is panthalia.encode
    assert dct8.from_panthalia is panthalia.decode
    assert dct8.to_safetensors is panthalia.to_safetensors
    assert {"to_panthalia", "from_panthalia", "to_safetensors", "DCT8"} <= set(dir(dct8))
    with pytest.raises(AttributeError, match="to_demo"):
        dct8.to_demo  # noqa: B018


ENCODERS: dict[str, Callable[[Any], Any]] = {
    "bitsandbytes": bitsandbytes.encode,
    "mxnet": mxnet.encode,
    "byteps": lambda x: byteps.encode(x, "onebit"),
    "caffe2": caffe2.encode,
    "deepspeed": lambda x: deepspeed.encode(x, groups=1),
    "demo": demo.encode,
    "hivemind": hivemind.encode,
    "panthalia": panthalia.encode,
    "psyche": psyche.encode,
    "torchft": torchft.encode,
    "templar": templar.encode,
}


@pytest.mark.parametrize("peer", ENCODERS)
def test_arrays_on_a_device_are_refused(peer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for library, advice in (
        (None, r"cupy\.asnumpy\(x\)"),
        (TORCH, r"x\.cpu\(\)"),
        (JAX, r"jax\.device_get\(x\)"),
    ):
        device: Any = "a device"
        source = Source(None, "x", library, device=device)
        monkeypatch.setattr(objects, "inspect", lambda x, name, source=source: source)
        message = rf"^x lies on a device, but .* needs it on the host: .* as in {advice}$"
        with pytest.raises(TypeError, match=message):
            ENCODERS[peer](normal(4, 4))


@pytest.mark.parametrize("peer", ["mxnet", "byteps", "caffe2"])
def test_unsupported_dtypes_are_refused(peer: str) -> None:
    with pytest.raises(TypeError, match=r"has dtype float64.*convert it first"):
        ENCODERS[peer](normal(4, 4).astype(np.float64))


# --- MXNet ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 33, 100])
def test_mxnet_steps_with_residual(n: int) -> None:
    residuals = np.zeros(n, F), np.zeros(n, F)
    models = mxnet_model.TwoBit(0.7, n), mxnet_model.OneBit(0.1, n)
    for step in range(4):
        x = normal(n, seed=step)
        x[::7], x[3::11] = np.nan, -np.inf
        message = mxnet.encode(x, threshold=0.7, residual=residuals[0])
        assert message == models[0].step(x)
        decoded = mxnet.decode(message, n, threshold=0.7)
        assert_same_bits(decoded, mxnet_model.decode_two_bit(message, n, 0.7))
        message = mxnet.encode(x, type="1bit", threshold=0.1, residual=residuals[1])
        assert message == models[1].step(x)
        decoded = mxnet.decode(message, (n,), type="1bit")
        assert_same_bits(decoded, mxnet_model.decode_one_bit(message, n))
    for residual, model in zip(residuals, models, strict=True):
        np.testing.assert_array_equal(residual, model.residual)


def test_mxnet_captured_message() -> None:
    x = np.zeros(21, F)
    x[:5] = 0.5, -0.5, 0.49, -0.7, 1.2
    x[12:17] = -1
    data = bytes.fromhex("e2c000aa 80000000")
    assert mxnet.encode(x) == data
    assert mxnet.decode(data, (3, 7)).tolist()[0][:5] == [0.5, -0.5, 0, -0.5, 0.5]


def test_mxnet_server_parses_six_decimals() -> None:
    t = 0.0012345678
    data = mxnet.encode(np.array([1, -1, 0], F), threshold=t)
    assert mxnet.decode(data, 3, threshold=t).tolist() == [F(t), -F(t), 0]
    parsed = mxnet_model.server_threshold(t)
    assert mxnet.decode(data, 3, threshold=t, server=True).tolist() == [parsed, -parsed, 0]
    with pytest.raises(ParameterError, match="threshold"):
        mxnet.decode(data, 3, threshold=1e-7, server=True)


@pytest.mark.parametrize("kind", ["2bit", "1bit"])
def test_mxnet_frames(kind: Any) -> None:
    x = normal(5, 7)
    data = mxnet.encode(x, type=kind, threshold=0.25)
    frame = mxnet.to_frame(data, x.shape, type=kind, threshold=0.25, name="w")
    assert frame.name == "w"
    assert mxnet.from_frame(frame) == mxnet.from_frame(frame.to_bytes()) == data
    decoded = mxnet.decode(data, x.shape, type=kind, threshold=0.25)
    assert_same_bits(gcodec.decode(frame.to_bytes()), decoded)
    assert frame.to_bytes() == gcodec.encode(x, f"mxnet-{kind}:threshold=0.25", name="w")


@pytest.mark.parametrize("form", ["dense", "sparse", "context", "auto"])
def test_mxnet_frames_of_every_form(form: str) -> None:
    x = normal(40, 50)
    frame = gcodec.encode(x, f"mxnet-2bit:threshold=2.5,form={form}")
    assert mxnet.from_frame(frame) == mxnet.encode(x, threshold=2.5)


def test_mxnet_invalid_arguments() -> None:
    x, data = normal(16), bytes(4)
    for call in (
        lambda: mxnet.encode(x, type="3bit"),  # type: ignore[arg-type]
        lambda: mxnet.encode(x, threshold=0),
        lambda: mxnet.encode(x, threshold="auto"),  # type: ignore[arg-type]
        lambda: mxnet.encode(x, type="1bit", threshold="auto"),  # type: ignore[arg-type]
        lambda: mxnet.encode(x, residual=np.zeros(3, F)),
        lambda: mxnet.decode(data, -1),
        lambda: mxnet.decode(data, None),
        lambda: mxnet.decode(data, (1,) * 40),
        lambda: mxnet.decode(data, (0, 2**62)),
        lambda: mxnet.from_frame(gcodec.encode(x, "sign")),
        lambda: mxnet.from_frame(gcodec.encode(x.astype(np.float64), "mxnet-2bit")),
        lambda: mxnet.decode(data, 16, limits=3),  # type: ignore[arg-type]
    ):
        with pytest.raises(ParameterError):
            call()
    with pytest.raises(TypeError, match="bytes-like"):
        mxnet.decode([0, 0, 0, 0], 16)


def test_mxnet_damaged_messages() -> None:
    data = mxnet.encode(normal(18))
    for size in range(len(data)):
        with pytest.raises(Truncated):
            mxnet.decode(data[:size], 18)
    for call in (mxnet.decode, mxnet.to_frame):
        with pytest.raises(Corrupt):
            call(data + b"\0", 18)
        with pytest.raises(Corrupt):  # code 01
            call(b"\x40" + bytes(7), 18)
        with pytest.raises(Corrupt):  # padding
            call(bytes(7) + b"\3", 18)
        with pytest.raises(Corrupt):
            call(bytes(3) + b"\1", 18, type="1bit")
        with pytest.raises(LimitExceeded):
            call(b"", 1 << 40)
        with pytest.raises(LimitExceeded):
            call(data, 18, limits=Limits(max_elements=17))
    with pytest.raises(FormatError):
        mxnet.from_frame(gcodec.encode(normal(9), "mxnet-2bit")[:-1])


# --- BytePS --------------------------------------------------------------------------------------


def byteps_messages() -> list[tuple[np.ndarray, str, dict[str, Any], list[bytes]]]:
    """Return recordings of the original: tensor, compressor, parameters, messages in order."""
    recordings: list[tuple[np.ndarray, str, dict[str, Any], list[bytes]]] = []
    x = np.empty(0, F)
    for key, value in recorded("byteps-f5df52f.txt"):
        if key == "x":
            x = patterns(value)
        elif key == "message":
            recordings[-1][3].append(bytes.fromhex(value))
        else:
            numbers = {word.split("=")[0]: int(word.split("=")[1]) for word in value.split()}
            arguments: dict[str, Any] = dict(numbers)
            if key == "onebit":
                arguments["scaling"] = bool(numbers["scaling"])
            if key == "dithering":
                arguments["partition"] = ("linear", "natural")[numbers["partition"]]
                arguments["normalize"] = ("max", "l2")[numbers["normalize"]]
            recordings.append((x, key, arguments, []))
    return recordings


def decoding(arguments: dict[str, Any]) -> dict[str, Any]:
    return {key: arguments[key] for key in ("k", "partition") if key in arguments}


def test_byteps_recorded_messages() -> None:
    messages = byteps_messages()
    assert {name for _, name, _, _ in messages} == {"onebit", "topk", "randomk", "dithering"}
    assert len(messages) > 60
    for x, name, arguments, expected in messages:
        options = dict(arguments)
        if "seed" in options:
            options["seed"] = byteps.XorShift128Plus(options["seed"])
        for message in expected:
            assert byteps.encode(x, name, **options) == message, (name, arguments)  # type: ignore[arg-type]
        if "seed" in arguments:
            assert byteps.encode(x, name, **arguments) == expected[0]  # type: ignore[arg-type]


def test_byteps_model_agrees_with_recorded_messages() -> None:
    for x, name, arguments, expected in byteps_messages():
        generator = byteps_model.Generator(arguments.get("seed", 1))
        for message in expected:
            if name == "onebit":
                encoded = byteps_model.onebit(x, arguments["scaling"])
            elif name == "topk":
                encoded = byteps_model.topk(x, arguments["k"])
            elif name == "randomk":
                encoded = byteps_model.randomk(x, arguments["k"], generator)
            else:
                kinds = arguments["partition"], arguments["normalize"]
                encoded = byteps_model.dithering(x, arguments["k"], generator, *kinds)
            assert encoded == message, (name, arguments)


def byteps_decoded(x: np.ndarray, name: str, arguments: dict[str, Any], data: bytes) -> np.ndarray:
    if name == "onebit":
        return byteps_model.decode_onebit(data, x.size)
    if name == "dithering":
        natural = arguments["partition"] == "natural"
        return byteps_model.decode_dithering(data, x.size, arguments["k"], natural)
    return byteps_model.decode_pairs(data, x.size)


def test_byteps_decodes_recorded_messages() -> None:
    for x, name, arguments, expected in byteps_messages():
        for message in expected:
            decoded = byteps.decode(message, name, x.shape, **decoding(arguments))  # type: ignore[arg-type]
            assert_same_bits(decoded, byteps_decoded(x, name, arguments, message))


@pytest.mark.parametrize("n", [1, 31, 32, 33, 1000])
@pytest.mark.parametrize("size", [1.0, 1e-22, 1e-44, 1e18])
def test_byteps_onebit_and_dithering(n: int, size: float) -> None:
    x = normal(n, seed=n, size=size)
    x[:: n // 3 + 1] = -0.0
    for scaling in (False, True):
        assert byteps.encode(x, "onebit", scaling=scaling) == byteps_model.onebit(x, scaling)
    generator, model = byteps.XorShift128Plus(2**32 - 1), byteps_model.Generator(2**32 - 1)
    for partition in ("linear", "natural"):
        for normalize in ("max", "l2"):
            for k in (1, 2, 5, 31 if partition == "natural" else 2**24):
                kinds: Any = {"partition": partition, "normalize": normalize}
                message = byteps.encode(x, "dithering", k=k, seed=generator, **kinds)
                expected = byteps_model.dithering(x, k, model, **kinds)
                assert message == expected, (kinds, k)
                decoded = byteps.decode(message, "dithering", n, k=k, partition=kinds["partition"])
                expected_values = byteps_model.decode_dithering(
                    message, n, k, partition == "natural"
                )
                assert_same_bits(decoded, expected_values)
    assert generator.state.tolist() == model.state


@pytest.mark.parametrize("n", [2, 3, 17, 400])
def test_byteps_pairs(n: int) -> None:
    x = np.round(normal(n, seed=n), 1)  # many equal magnitudes
    generator, model = byteps.XorShift128Plus(5), byteps_model.Generator(5)
    for k in {1, n // 3 or 1, n // 2}:
        message = byteps.encode(x, "topk", k=k)
        assert message == byteps_model.topk(x, k)
        decoded = byteps.decode(message, "topk", n, k=k)
        assert_same_bits(decoded, byteps_model.decode_pairs(message, n))
        assert np.sort(np.abs(decoded))[-k:].tolist() == np.sort(np.abs(x))[-k:].tolist()
        message = byteps.encode(x, "randomk", k=k, seed=generator)
        assert message == byteps_model.randomk(x, k, model)
        decoded = byteps.decode(message, "randomk", n)
        assert_same_bits(decoded, byteps_model.decode_pairs(message, n))


def test_byteps_fraction_counts_aligned_elements() -> None:
    for n, share, pairs in ((33, 0.25, 16), (64, 0.25, 16), (100, 1e-6, 1), (1000, 0.3, 307)):
        assert len(byteps.encode(normal(n), "topk", k=share)) == 8 * pairs
    with pytest.raises(ParameterError, match=r"k=0.5"):
        byteps.encode(normal(33), "topk", k=0.5)  # 32 of 33 are more than half


def test_byteps_long_dithering_message() -> None:
    x = np.full(5000, 1, F)  # each element takes 1 + 1 + 33 bits
    data = byteps.encode(x, "dithering", k=2**24, seed=1)
    assert byteps_model.dithering(x, 2**24, byteps_model.Generator(1)) == data
    assert len(data) > 4 * x.size + 8


def test_byteps_frames() -> None:
    x = normal(7, 9)
    for scaling in (False, True):
        data = byteps.encode(x, "onebit", scaling=scaling)
        frame = byteps.to_frame(data, "onebit", x.shape, name="w")
        assert (frame.codec.name, frame.name) == ("sign", "w")
        assert byteps.from_frame(frame) == byteps.from_frame(frame.to_bytes()) == data
        assert_same_bits(gcodec.decode(frame.to_bytes()), byteps.decode(data, "onebit", x.shape))
    data = byteps.encode(x, "topk", k=9)
    frame = byteps.to_frame(data, "topk", x.shape)
    again = byteps.from_frame(frame)
    pairs = [sorted(one[at : at + 8] for at in range(0, 72, 8)) for one in (data, again)]
    assert pairs[0] == pairs[1]
    assert byteps.from_frame(byteps.to_frame(again, "topk", x.shape)) == again
    assert_same_bits(gcodec.decode(frame.to_bytes()), byteps.decode(data, "topk", x.shape))


@pytest.mark.parametrize(
    "spec", ["sign:scale=none", "sign:scale=l2", "topk:ratio=0.1,value=int8", "topk:threshold=1"]
)
def test_byteps_messages_from_other_frames(spec: str) -> None:
    x = normal(50, 60)
    frame = gcodec.encode(x, spec)
    name: Any = "onebit" if spec.startswith("sign") else "topk"
    decoded = byteps.decode(byteps.from_frame(frame), name, x.shape)
    assert_same_bits(decoded, gcodec.decode(frame))


def test_byteps_invalid_arguments() -> None:
    x = normal(32)
    nan = x.copy()
    nan[5] = np.nan
    large = np.full(4, 1e30, F)
    encode: Any = byteps.encode
    decode: Any = byteps.decode
    for call in (
        lambda: encode(x, "fp16"),
        lambda: encode(np.empty(0, F), "onebit"),
        *(
            lambda name=name, options=options: encode(nan, name, **options)
            for name, options in (
                *(("onebit", {}), ("topk", {"k": 4})),
                *(("randomk", {"k": 4, "seed": 1}), ("dithering", {"k": 4, "seed": 1})),
            )
        ),
        *(
            lambda k=k, name=name, seed=seed: encode(x, name, k=k, seed=seed)
            for k in (None, 0, 17, -1, np.nan, "2", True)
            for name, seed in (("topk", None), ("randomk", 1))
        ),
        *(
            lambda k=k, p=p: encode(x, "dithering", k=k, seed=1, partition=p)
            for k, p in (
                *((None, "linear"), (0, "linear"), (2**24 + 1, "linear"), (0.5, "linear")),
                *((32, "natural"), (4, "octal")),
            )
        ),
        lambda: encode(x, "dithering", k=4, seed=1, normalize="l1"),
        lambda: encode(x, "dithering", k=4),
        lambda: encode(x, "randomk", k=4, seed=0),
        lambda: encode(x, "randomk", k=4, seed=2**32),
        lambda: encode(large, "dithering", k=4, seed=1, normalize="l2"),
        lambda: encode(large * F(1e8), "dithering", k=4, seed=1),
        lambda: decode(bytes(8), "fp16", 32),
        lambda: decode(bytes(8), "onebit", 0),
        lambda: decode(bytes(8), "dithering", 32),
        lambda: byteps.to_frame(bytes(8), "randomk", 32),  # type: ignore[arg-type]
        lambda: byteps.from_frame(gcodec.encode(x, "raw")),
        lambda: byteps.from_frame(gcodec.encode(x, "topk:ratio=0.9")),
        lambda: byteps.from_frame(gcodec.encode(np.empty(0, F), "sign")),
    ):
        with pytest.raises(ParameterError):
            call()


@pytest.mark.parametrize(
    ("compressor", "options", "name"),
    [
        ("onebit", {"k": 4}, "k"),
        ("onebit", {"seed": 1}, "seed"),
        ("topk", {"k": 4, "seed": byteps.XorShift128Plus(1)}, "seed"),
        ("topk", {"k": 4, "scaling": True}, "scaling"),
        ("randomk", {"k": 4, "seed": 1, "partition": "natural"}, "partition"),
        ("randomk", {"k": 4, "seed": 1, "normalize": "l2"}, "normalize"),
        ("dithering", {"k": 4, "seed": 1, "scaling": True}, "scaling"),
    ],
)
def test_byteps_refuses_parameters_of_other_compressors(
    compressor: Any, options: dict[str, Any], name: str
) -> None:
    x = normal(32)
    own = {key: value for key, value in options.items() if key != name}
    assert byteps.encode(x, compressor, **own)
    refusal = rf"^{name}=.*: must be left out, because {compressor} has no {name}$"
    with pytest.raises(ParameterError, match=refusal):
        byteps.encode(x, compressor, **options)


@pytest.mark.parametrize(
    ("compressor", "name", "value"), [("onebit", "k", 4), ("topk", "partition", "natural")]
)
def test_byteps_decoder_refuses_parameters_of_other_compressors(
    compressor: Any, name: str, value: Any
) -> None:
    with pytest.raises(ParameterError, match=f"because {compressor} has no {name}$"):
        byteps.decode(bytes(8), compressor, 32, **{name: value})


def test_byteps_refused_message_keeps_generator_state() -> None:
    generator = byteps.XorShift128Plus(3)
    for bad in (np.array([np.inf, 1], F), np.full(2, 3e38, F)):
        with pytest.raises(ParameterError):
            byteps.encode(bad, "dithering", k=4, seed=generator)
    assert generator.state.tolist() == [3, 3]


def words(*numbers: float) -> bytes:
    return b"".join(
        np.float32(n).tobytes() if isinstance(n, float) else np.uint32(n).tobytes()
        for n in numbers
    )


def test_byteps_tail_of_onebit_is_ignored() -> None:
    data = words(0x50000000 | 0x0FFFFFFF, 2.5)
    assert byteps.decode(data, "onebit", 4).tolist() == [2.5, -2.5, 2.5, -2.5]
    assert byteps.from_frame(byteps.to_frame(data, "onebit", 4)) == words(0x50000000, 2.5)


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("onebit", words(0), Truncated),
        ("onebit", words(0, 0, 1.0), Corrupt),
        ("onebit", words(0, float("nan")), Corrupt),
        ("onebit", words(0, float("inf")), Corrupt),
        ("onebit", words(0, -1.0), Corrupt),
        ("onebit", words(0, -0.0), Corrupt),
        ("topk", b"", Truncated),
        ("topk", words(0), Truncated),
        ("topk", words(32, 1.0), Corrupt),
        ("topk", words(2**32 - 1, 1.0), Corrupt),
        ("topk", words(1, float("nan")), Corrupt),
        ("topk", words(1, 1.0, 1, 1.0), Corrupt),
        ("topk", words(*(word for i in range(17) for word in (i, 1.0))), Corrupt),
        ("randomk", words(1, 1.0, 1, 2.0), Corrupt),
        ("randomk", words(1, 0.0, 1, -0.0), Corrupt),
        ("randomk", words(1, float("-inf")), Corrupt),
        ("dithering", words(0), Truncated),
        ("dithering", words(0, 1.0)[:-1], Truncated),
        ("dithering", words(1, 1.0), Truncated),
        ("dithering", words(0, 0, 1.0), Corrupt),
        ("dithering", words(0, float("nan")), Corrupt),
        ("dithering", words(0, -1.0), Corrupt),
        ("dithering", words(0b101 << 29, 1, 1.0), Truncated),  # a gap without a level
        ("dithering", words(0b101 << 29, 2, 1.0), Truncated),
        ("dithering", words(0b1010 << 28 | 1, 3, 1.0), Corrupt),  # padding
        ("dithering", words(0x00000001, 32, 1.0), Corrupt),  # 31 zeros
        ("dithering", words(0, 32, 1.0), Truncated),
        ("dithering", words(0x00FFFFFF, 0, 64, 1.0), Corrupt),  # lengths of 9 bits
        ("dithering", words(0x02FFFFFF, 0, 64, 1.0), Corrupt),
        ("dithering", words(0b0011000001_0_1 << 20, 12, 1.0), Corrupt),  # a gap of 33
        ("dithering", words(0b1_0_0101 << 26, 6, 3e38), Corrupt),  # a level of 3
    ],
)
def test_byteps_damaged_messages(name: Any, data: bytes, kind: type[FormatError]) -> None:
    with pytest.raises(kind):
        byteps.decode(data, name, 32, k=4 if name == "dithering" else None)


def test_byteps_checks_pair_count_and_powers_of_two() -> None:
    data = byteps.encode(normal(32), "topk", k=4)
    with pytest.raises(Truncated):
        byteps.decode(data, "topk", 32, k=5)
    with pytest.raises(Corrupt):
        byteps.decode(data, "topk", 32, k=3)
    three = words(0b1_0_0101 << 26, 6, 1.0)
    assert byteps.decode(three, "dithering", 32, k=3)[0] == 1
    with pytest.raises(Corrupt, match="power of two"):
        byteps.decode(three, "dithering", 32, k=3, partition="natural")
    with pytest.raises(LimitExceeded):
        byteps.decode(words(0, 1.0), "dithering", 2**32 - 1, k=3)


# --- Caffe2 --------------------------------------------------------------------------------------


def test_caffe2_recorded_rows() -> None:
    shape, x, bits, rows = (0, 0), np.empty(0, F), 0, np.empty(0, np.uint8)
    count = 0
    for key, value in recorded("torch-2.13-fused-rows.txt"):
        if key == "shape":
            shape = tuple(map(int, value.split()))  # type: ignore[assignment]
        elif key == "x":
            x = patterns(value).reshape(shape)
        elif key == "decoded":
            assert_same_bits(caffe2.decode(rows, bits=bits), patterns(value).reshape(shape))
            count += 1
        else:
            bits = int(key.split()[0])
            rows = np.frombuffer(bytes.fromhex(value), np.uint8).reshape(shape[0], -1)
            np.testing.assert_array_equal(caffe2.encode(x, bits=bits), rows)
    assert count > 20


def matrices(columns: int) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(columns)
    zeros = np.array([0, -0.0, 1, -0.0, 2.5], F)
    for size in (1, 1e-3, 1e-8, 1e-12, 1e-40, 30):
        yield normal(5, columns, seed=columns, size=size)
        yield normal(3, columns, seed=columns, size=size) + F(size)
        yield np.full((2, columns), 1000.3 * size, F)
    for _ in range(4):
        yield rng.choice(zeros, (6, columns))
        yield -rng.choice(zeros, (6, columns))
        yield rng.choice(zeros[:2], (6, columns))


@pytest.mark.parametrize("columns", [1, 2, 3, 4, 7, 8, 9, 13, 31, 32, 36, 65])
@pytest.mark.parametrize(("bits", "dtype"), FORMATS)
def test_caffe2_rows_match_model(columns: int, bits: int, dtype: Any) -> None:
    half = dtype == "float16"
    for x in matrices(columns):
        rows = caffe2.encode(x, bits=bits, scale_dtype=dtype)
        assert rows.tobytes() == rows_model.encode(x, bits, half), x
        decoded = caffe2.decode(rows, bits=bits, scale_dtype=dtype, columns=columns)
        assert_same_bits(decoded, rows_model.decode(rows.tobytes(), columns, bits, half))
        same = caffe2.decode(rows.tobytes(), bits=bits, scale_dtype=dtype, columns=columns)
        assert_same_bits(same, decoded)


def halfway_row() -> np.ndarray:
    """Return 9 columns that decode to 1 + 2^-24 + 2^-54, which is a tie after float64 rounding."""
    row = np.empty((1, 9 + 8), np.uint8)
    row[0, :9] = 205
    row[0, 9:] = np.frombuffer(words(5237765 * 2.0**-54, 1.0), np.uint8)  # 205·5237765 = 2^30 + 1
    return row


def test_caffe2_rounds_a_decoded_value_once() -> None:
    row = halfway_row()
    decoded = caffe2.decode(row)
    assert decoded.tolist() == [[np.nextafter(F(1), F(2))] * 9]
    assert_same_bits(decoded, rows_model.decode(row.tobytes(), 9, 8, False))
    halves = np.concatenate([row[:, :9], np.array([[0, 0x3C, 1, 0]], np.uint8)], axis=1)
    expected = rows_model.decode(halves.tobytes(), 9, 8, True)
    assert_same_bits(caffe2.decode(halves, scale_dtype="float16"), expected)


@pytest.mark.skipif(not AVX2, reason="PyTorch has other kernels elsewhere")
@pytest.mark.parametrize("bits", [8, 4, 2])
def test_caffe2_rows_match_torch(bits: int) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if "AVX2" not in torch.backends.cpu.get_cpu_capability().replace("AVX512", "AVX2"):
        pytest.skip("PyTorch has other kernels here")
    name = {8: "byte", 4: "4bit", 2: "2bit"}[bits]
    pack = getattr(torch.ops.quantized, f"embedding_bag_{name}_prepack")
    unpack = getattr(torch.ops.quantized, f"embedding_bag_{name}_unpack")
    for columns in (1, 4, 8, 12, 20, 32, 36, 64, 100, 128):
        if columns * bits % 8:
            continue
        x = np.concatenate(list(matrices(columns)))
        rows = pack(torch.from_numpy(x))
        np.testing.assert_array_equal(caffe2.encode(x, bits=bits), rows.numpy())
        assert_same_bits(caffe2.decode(rows, bits=bits), unpack(rows).numpy())
    if bits == 8:
        rows = torch.from_numpy(halfway_row())
        columns = 8 if torch.__version__ >= (2, 15) else 9  # 8 fill a register; see caffe2.py
        decoded, expected = caffe2.decode(rows), unpack(rows).numpy()
        assert_same_bits(decoded[:, :columns], expected[:, :columns])


def test_caffe2_many_rows_on_several_threads() -> None:
    x = normal(6000, 200)
    for bits, dtype in FORMATS:
        rows = caffe2.encode(x, bits=bits, scale_dtype=dtype)  # type: ignore[arg-type]
        part = caffe2.encode(x[-10:], bits=bits, scale_dtype=dtype)  # type: ignore[arg-type]
        np.testing.assert_array_equal(rows[-10:], part)
        decoded = caffe2.decode(rows, bits=bits, scale_dtype=dtype)  # type: ignore[arg-type]
        expected = caffe2.decode(part, bits=bits, scale_dtype=dtype)  # type: ignore[arg-type]
        assert_same_bits(decoded[-10:], expected)


def test_caffe2_shapes_and_dtypes() -> None:
    x = normal(2, 3, 8)
    rows = caffe2.encode(x)
    assert rows.shape == (2, 3, 16)
    assert caffe2.decode(rows).shape == x.shape
    assert caffe2.encode(x[0, 0]).shape == (16,)
    assert caffe2.encode(np.empty((0, 4), F), bits=2).shape == (0, 5)
    assert caffe2.decode(np.empty((0, 5), np.uint8), bits=2).shape == (0, 4)
    half = x.astype(np.float16)
    np.testing.assert_array_equal(caffe2.encode(half), caffe2.encode(half.astype(F)))
    assert_same_bits(caffe2.decode(np.asfortranarray(rows)), caffe2.decode(rows))
    data = rows.tobytes()
    for same in (bytearray(data), memoryview(data), array.array("B", data)):
        decoded = caffe2.decode(same, columns=8)
        assert_same_bits(decoded.reshape(x.shape), caffe2.decode(rows))


def test_caffe2_invalid_arguments() -> None:
    x, rows = normal(2, 8), np.zeros((2, 16), np.uint8)
    nan = x.copy()
    nan[1, 3] = np.nan
    encode: Any = caffe2.encode
    decode: Any = caffe2.decode
    for call in (
        *(lambda bits=bits: encode(x, bits=bits) for bits in (1, 3, 16, "8", True, None, [8])),
        lambda: encode(x, bits=4, scale_dtype="float32"),
        lambda: encode(x, scale_dtype="bfloat16"),
        lambda: encode(F(1)),
        lambda: encode(np.empty((3, 0), F)),
        lambda: encode(nan),
        lambda: encode(np.array([3e38, -3e38], F)),
        lambda: encode(np.array([1e5, 2e5], F), bits=4),
        lambda: encode(np.array([0, 1e6], F), bits=2),
        lambda: decode(rows, columns=0),
        lambda: decode(rows.tobytes()),
        lambda: decode(rows, bits=5),
    ):
        with pytest.raises(ParameterError):
            call()
    with pytest.raises(TypeError, match=r"^rows is of type list: must be bytes-like"):
        decode([1, 2, 3])


@pytest.mark.parametrize(("bits", "dtype"), FORMATS)
def test_caffe2_damaged_rows(bits: int, dtype: Any) -> None:
    kind: dict[str, Any] = {"bits": bits, "scale_dtype": dtype}
    x = normal(3, 9)
    rows = caffe2.encode(x, **kind)
    width, size = rows.shape[1], 4 if dtype == "float32" else 2
    number: type[np.floating[Any]] = F if dtype == "float32" else np.float16

    def changed(offset: int, value: float) -> np.ndarray:
        damaged = rows.copy()
        damaged[1, width + offset : width + offset + size or None] = np.frombuffer(
            number(value).tobytes(), np.uint8
        )
        return damaged

    for wrong in (np.nan, np.inf, -np.inf, -1.0 if dtype == "float32" else 0.0):
        with pytest.raises(Corrupt, match="row 1"):
            caffe2.decode(changed(-2 * size, wrong), **kind, columns=9)
    for wrong in (np.nan, np.inf):
        with pytest.raises(Corrupt, match="row 1"):
            caffe2.decode(changed(-size, wrong), **kind, columns=9)
    if bits < 8:
        padded = rows.copy()
        padded[1, -2 * size - 1] |= 0x80
        with pytest.raises(Corrupt, match="padding"):
            caffe2.decode(padded, **kind, columns=9)
        assert caffe2.decode(padded, **kind).shape == (3, 8 // bits * (width - 4))
    for columns in (1, 30):
        with pytest.raises(FormatError):
            caffe2.decode(rows, **kind, columns=columns)
    for other in (rows.view(np.int8), rows.astype(F), np.array(3, np.uint8)):
        with pytest.raises(Corrupt, match="uint8"):
            caffe2.decode(other, **kind)
    with pytest.raises(Truncated):
        caffe2.decode(rows[:, : 2 * size], **kind)
    with pytest.raises(Truncated):
        caffe2.decode(rows.tobytes()[:-1], **kind, columns=9)
    with pytest.raises(LimitExceeded):
        caffe2.decode(rows, **kind, limits=Limits(max_elements=20))


def test_caffe2_value_exceeds_float32() -> None:
    row = np.zeros((1, 4 + 8), np.uint8)
    row[0, :4] = 1, 2, 3, 2
    row[0, 4:] = np.frombuffer(words(1e38, 0.0), np.uint8)
    assert caffe2.decode(row).max() == F(1e38) * F(3)
    row[0, 3] = 4
    with pytest.raises(Corrupt, match="beyond float32"):
        caffe2.decode(row)


# --- any bytes -----------------------------------------------------------------------------------


def decodes_or_refuses(decode: Callable[[], np.ndarray], n: int) -> None:
    try:
        decoded = decode()
    except FormatError:
        return
    assert decoded.dtype == F and decoded.size == n
    assert np.isfinite(decoded).all()


@given(st.binary(max_size=80), st.integers(1, 70), st.sampled_from(["2bit", "1bit"]))
def test_mxnet_any_bytes(data: bytes, n: int, kind: Any) -> None:
    decodes_or_refuses(lambda: mxnet.decode(data, n, type=kind), n)


@given(
    st.binary(max_size=80),
    st.integers(1, 70),
    st.sampled_from(["onebit", "topk", "randomk", "dithering"]),
    st.sampled_from(["linear", "natural"]),
    st.booleans(),
)
def test_byteps_any_bytes(data: bytes, n: int, name: Any, partition: Any, whole: bool) -> None:
    if whole and name == "dithering":  # make the length consistent
        data = data[: len(data) // 4 * 4]
        data += words(8 * len(data), 1.0)
    options = {"k": 5, "partition": partition} if name == "dithering" else {}
    decodes_or_refuses(lambda: byteps.decode(data, name, n, **options), n)


@given(st.binary(max_size=80), st.integers(1, 20), st.sampled_from(FORMATS))
def test_caffe2_any_bytes(data: bytes, columns: int, kind: tuple[int, Any]) -> None:
    bits, dtype = kind
    rows = len(data) // (-(-columns * bits // 8) + (8 if dtype == "float32" else 4))
    decodes_or_refuses(
        lambda: caffe2.decode(data, bits=bits, scale_dtype=dtype, columns=columns), rows * columns
    )


@given(st.data())
def test_byteps_mutants(data: st.DataObject) -> None:
    x, name, arguments, expected = data.draw(st.sampled_from(byteps_messages()))
    message = bytearray(expected[0])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, 8 * len(message) - 1))
        message[at // 8] ^= 1 << at % 8
    damaged = bytes(message[: data.draw(st.integers(len(message) - 4, len(message)))])
    options: dict[str, Any] = decoding(arguments)
    decodes_or_refuses(lambda: byteps.decode(damaged, name, x.size, **options), x.size)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("decode", "data"),
    [
        (lambda data, n: byteps.decode(data, "dithering", n, k=4), words(0, 1.0)),
        (lambda data, n: byteps.decode(data, "topk", n), words(0, 1.0)),
        (lambda data, n: byteps.decode(data, "randomk", n), words(5, 1.0, 5, 1.0)),
    ],
)
def test_decoder_memory_is_proportional_to_tensor(
    decode: Callable[[bytes, int], np.ndarray], data: bytes
) -> None:
    decode(data, 64)  # compiles the kernels
    n = 1 << 20
    tracemalloc.start()
    try:
        assert decode(data, n).size == n
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 6 * n
    with pytest.raises(LimitExceeded):
        decode(data, 1 << 31)
