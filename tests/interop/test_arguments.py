"""Arguments of all peers: words, numbers, flags, limits, shapes, mappings, layouts of arrays."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gcodec
from gcodec import Corrupt, ParameterError
from gcodec.interop import (
    bitsandbytes,
    byteps,
    caffe2,
    deepspeed,
    demo,
    grail,
    hivemind,
    mxnet,
    nemo_rl,
    panthalia,
    psyche,
    templar,
    torchao,
    torchft,
    trl,
)

X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)
BASE = {"w": X.astype(ml_dtypes.bfloat16)}
PUSH = mxnet.encode(X)
DEEPSPEED = deepspeed.encode(X, groups=2)
HIVEMIND = hivemind.encode(X)
ONEBIT = byteps.encode(X, "onebit")


def masked(array: np.ndarray) -> Any:
    return np.ma.masked_array(array, mask=np.zeros(array.shape, np.bool_))


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: mxnet.decode(PUSH, X.shape, server="no"), "server"),  # type: ignore[arg-type]
        (lambda: byteps.encode(X, "onebit", scaling="no"), "scaling"),  # type: ignore[arg-type]
        (lambda: byteps.encode(X, "onebit", partition=0), "partition"),  # type: ignore[arg-type]
        (lambda: byteps.encode(X, "topk", k=2, normalize="l1"), "normalize"),  # type: ignore[arg-type]
        (lambda: byteps.encode(X, "topk", k=2, seed=0), "seed"),
        (lambda: byteps.decode(ONEBIT, "onebit", X.shape, partition="log"), "partition"),  # type: ignore[arg-type]
        (lambda: bitsandbytes.encode(X, nested="no"), "nested"),  # type: ignore[arg-type]
        (lambda: hivemind.encode(X, requires_grad=2), "requires_grad"),  # type: ignore[arg-type]
        (lambda: mxnet.encode(X, type=np.array([1, 2])), "type"),  # type: ignore[arg-type]
        (lambda: caffe2.encode(X, bits=8.0), "bits"),  # type: ignore[arg-type]
        (lambda: deepspeed.encode(X, bits=8.0, groups=2), "bits"),  # type: ignore[arg-type]
        (lambda: deepspeed.decode(DEEPSPEED, bits=[8]), "bits"),  # type: ignore[arg-type]
        (lambda: deepspeed.encode(X, groups=2, partitions=2), "partitions"),  # type: ignore[arg-type]
        (lambda: deepspeed.encode(X, groups=2, partitions=(1, 2, 1)), "partitions"),  # type: ignore[arg-type]
        (lambda: deepspeed.decode(DEEPSPEED, limits=9), "limits"),  # type: ignore[arg-type]
        (lambda: hivemind.decode(HIVEMIND, limits=9), "limits"),  # type: ignore[arg-type]
        (lambda: bitsandbytes.encode(X, blocksize=64.0), "blocksize"),  # type: ignore[arg-type]
        (lambda: bitsandbytes.encode(X, blocksize=96), "blocksize"),
        (lambda: mxnet.decode(PUSH, True), "shape"),
        (lambda: mxnet.decode(PUSH, None), "shape"),
        (lambda: mxnet.decode(PUSH, np.array(64)), "shape"),
    ],
)
def test_wrong_values_are_named(call: Callable[[], Any], name: str) -> None:
    with pytest.raises(ParameterError, match=rf"^{name}=.*must be"):
        call()


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: deepspeed.decode(None), "message"),  # type: ignore[arg-type]
        (lambda: bitsandbytes.decode(3, shape=4), "message"),  # type: ignore[arg-type]
        (lambda: templar.decode(None, 4), "message"),  # type: ignore[arg-type]
        (lambda: demo.decode(b"x"), "message"),  # type: ignore[arg-type]
        (lambda: panthalia.to_safetensors(None), "message"),  # type: ignore[arg-type]
        (lambda: panthalia.decode("text"), "message"),
        (lambda: torchao.decode([]), "arrays"),  # type: ignore[arg-type]
        (lambda: trl.encode([], BASE), "new"),  # type: ignore[arg-type]
        (lambda: grail.encode([], BASE), "new"),  # type: ignore[arg-type]
        (lambda: nemo_rl.encode(BASE, 3), "base"),  # type: ignore[arg-type]
        (lambda: trl.decode(3, BASE), "update"),  # type: ignore[arg-type]
        (lambda: trl.from_frame("no file", BASE), "data"),  # type: ignore[arg-type]
        (lambda: grail.decode(3, BASE), "update"),  # type: ignore[arg-type]
        (lambda: hivemind.decode(3), "message"),
        (lambda: torchft.decode(3, 4), "message"),
        (lambda: psyche.decode(3), "data"),  # type: ignore[arg-type]
    ],
)
def test_wrong_types_are_named(call: Callable[[], Any], name: str) -> None:
    with pytest.raises(TypeError, match=rf"^{name} is of type .*must be"):
        call()


def test_masked_arrays_are_refused() -> None:
    """A mask is not part of a message, so it would be lost."""
    message = deepspeed.encode(X, groups=2)
    calls: list[Callable[[], object]] = [
        lambda: mxnet.encode(masked(X)),
        lambda: mxnet.decode(masked(np.frombuffer(PUSH, np.uint8)), X.shape),
        *(partial(deepspeed.decode, message | {name: masked(a)}) for name, a in message.items()),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="is a masked array: fill it first"):
            call()


def test_lists_that_are_no_arrays_are_refused() -> None:
    ragged: Any = [[1], [2, 3]]
    with pytest.raises(Corrupt, match="scales is no array"):
        deepspeed.decode(DEEPSPEED | {"scales": ragged})
    with pytest.raises(Corrupt, match="freq_idxs is no array"):
        panthalia.decode(panthalia.encode(X, 8, 4) | {"freq_idxs": ragged})
    with pytest.raises(Corrupt, match=r"w\.idx is no array"):
        trl.decode({"w.val": BASE["w"], "w.idx": ragged}, BASE)
    with pytest.raises(Corrupt):
        panthalia.decode(panthalia.encode(X, 8, 4) | {"orig_shape": np.array([0, 2**62])})


def test_tensors_of_messages_may_require_gradients() -> None:
    torch = pytest.importorskip("torch")
    scales = torch.from_numpy(DEEPSPEED["scales"]).requires_grad_()
    decoded = deepspeed.decode(DEEPSPEED | {"scales": scales})
    np.testing.assert_array_equal(decoded, deepspeed.decode(DEEPSPEED))
    message = torch.from_numpy(torchft.encode(X))
    np.testing.assert_array_equal(
        torchft.decode(message, X.shape), torchft.decode(message.numpy(), X.shape)
    )


def test_the_layout_of_the_arrays_of_a_message_does_not_matter() -> None:
    messages: list[tuple[Any, Callable[[Any], np.ndarray]]] = [
        (deepspeed.encode(X, groups=2), deepspeed.decode),
        (panthalia.encode(X, 8, 4), panthalia.decode),
        (demo.encode(X, 4, 8), demo.decode),
        (templar.encode(X, 4, 8), lambda m: templar.decode(m, X.shape, chunk=8)),
        (torchao.encode(X, "mxfp4"), lambda m: torchao.decode(m, "mxfp4")),
        (trl.encode({"w": -BASE["w"]}, BASE), lambda m: trl.decode(m, BASE)["w"]),
    ]
    for nested in (False, True):
        message = bitsandbytes.encode(X, nested=nested, blocksize=32)
        messages.append((message, lambda m: bitsandbytes.decode(m, shape=X.shape, blocksize=32)))
    for message, decode in messages:
        expected = decode(message)
        parts = {k: part for k, part in message.items() if isinstance(part, np.ndarray)}
        strided = {k: np.repeat(p, 2, -1)[..., ::2] if p.ndim else p for k, p in parts.items()}
        for others in (strided, {k: np.asarray(p, order="F") for k, p in parts.items()}):
            np.testing.assert_array_equal(decode({**message, **others}), expected)


@pytest.mark.parametrize(
    "decode",
    [
        lambda **options: deepspeed.decode(DEEPSPEED, **options),
        lambda **options: torchft.decode(torchft.encode(X), X.shape, **options),
        lambda **options: bitsandbytes.decode(bitsandbytes.encode(X), shape=X.shape, **options),
        lambda **options: torchao.decode(torchao.encode(X), **options),
        lambda **options: demo.decode(demo.encode(X, 4, 8), **options),
        lambda **options: psyche.decode(psyche.encode(X, 4, 8), **options),
    ],
)
def test_limits_bound_the_dtype_of_the_result(decode: Callable[..., np.ndarray]) -> None:
    limits = gcodec.Limits(max_bytes=6 * X.size)
    for dtype in ("float16", "float32"):
        assert decode(dtype=dtype, limits=limits).dtype == dtype
    with pytest.raises(gcodec.LimitExceeded, match=f"needs {8 * X.size} bytes"):
        decode(dtype="float64", limits=limits)


@pytest.mark.parametrize("compression", hivemind.COMPRESSIONS)
def test_limits_bound_the_dtype_of_a_message(compression: Any) -> None:
    message = hivemind.encode(X.astype(np.float64), compression)
    with pytest.raises(gcodec.LimitExceeded, match=f"needs {8 * X.size} bytes"):
        hivemind.decode(message, limits=gcodec.Limits(max_bytes=6 * X.size))


ENCODERS: dict[str, Callable[[Any], Any]] = {
    "mxnet": mxnet.encode,
    "byteps": lambda x: byteps.encode(x, "dithering", k=4, seed=1),
    "caffe2": caffe2.encode,
    "deepspeed": lambda x: deepspeed.encode(x, groups=2),
    "bitsandbytes": bitsandbytes.encode,
    "templar": templar.encode,
    "psyche": psyche.encode,
    "demo": demo.encode,
    "panthalia": panthalia.encode,
    "torchft": torchft.encode,
    "torchao": torchao.encode,
}
ENCODERS |= {name: lambda x, name=name: hivemind.encode(x, name) for name in hivemind.COMPRESSIONS}


def content(message: Any) -> object:
    """Return a message as bytes, or as a tree of bytes."""
    if isinstance(message, dict):
        return {name: content(part) for name, part in message.items()}
    if isinstance(message, tuple):
        return [content(part) for part in message]
    return message.tobytes() if isinstance(message, np.ndarray) else message


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("peer", ENCODERS)
def test_the_layout_of_an_array_does_not_matter(peer: str, dtype: str) -> None:
    x = X.astype(dtype)
    layouts: list[Any] = [np.asfortranarray(x), np.repeat(x, 2, axis=1)[:, ::2]]
    layouts += [x[::-1, ::-1].copy()[::-1, ::-1], x.astype(x.dtype.newbyteorder())]
    if importlib.util.find_spec("torch"):
        torch = importlib.import_module("torch")
        layouts.append(torch.from_numpy(x.copy()).requires_grad_())
    try:
        expected = content(ENCODERS[peer](x))
    except TypeError as error:
        assert "takes" in str(error)
        return
    for layout in layouts:
        assert content(ENCODERS[peer](layout)) == expected
