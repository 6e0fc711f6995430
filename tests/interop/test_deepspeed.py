"""DeepSpeed's groups: a model of its kernels, frames, and damaged messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gcodec
from gcodec import Corrupt, LimitExceeded, Limits, ParameterError, Truncated
from gcodec.interop import deepspeed

F = np.float32


def model(
    x: np.ndarray, bits: int, groups: int, nodes: int, devices: int
) -> tuple[list[int], list[Any]]:
    """Quantize one element after the other, as `_chunk` and `swizzled_quant_kernel` do."""
    flat, size = x.astype(np.float16).reshape(-1), x.size // groups
    each = groups // (nodes * devices)  # groups of a partition
    data, scales = [0] * (x.size * bits // 8), [F(0)] * groups
    for group in range(groups):
        part = flat[group * size : (group + 1) * size].astype(F)
        top = max(abs(value) for value in part)
        scale = F(1) if top == 0 else F(1 << bits) / (F(2) * top)
        partition, place = divmod(group, each)
        to = (partition % devices * nodes + partition // devices) * each + place
        scales[to] = F(1) / scale
        half = 1 << bits - 1
        numbers = [min(max(round(float(v * scale)), -half), half - 1) for v in part]
        at = to * size * bits // 8
        if bits == 8:
            data[at : at + size] = numbers
            continue
        for k in range(0, size, 2):
            data[at + k // 2] = (numbers[k] & 15) << 4 | numbers[k + 1] & 15
    return [value & 255 for value in data], scales


@given(st.data())
def test_messages_equal_those_of_the_model(data: st.DataObject) -> None:
    bits = data.draw(st.sampled_from([4, 8]))
    nodes, devices = data.draw(st.sampled_from([(1, 1), (2, 2), (2, 3), (3, 1), (1, 4)]))
    groups = nodes * devices * data.draw(st.integers(1, 3))
    size = data.draw(st.sampled_from([2, 8, 34]))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x = (rng.normal(size=(groups, size)) * np.exp2(rng.integers(-8, 3))).astype(F)
    x[0] = 0
    x[-1] = rng.integers(-8, 9, size) / 16  # ties
    is_swizzled = (nodes, devices) != (1, 1)
    partitions = (nodes, devices) if is_swizzled else None
    message = deepspeed.encode(x, bits=bits, groups=groups, partitions=partitions)
    codes, scales = model(x, bits, groups, nodes, devices)
    assert message["quantized"].reshape(-1).view(np.uint8).tolist() == codes
    assert message["scales"].shape == (groups, 1)
    assert message["scales"].reshape(-1).tolist() == scales
    decoded = deepspeed.decode(message, bits=bits, partitions=partitions)
    assert decoded.dtype == np.float16
    assert decoded.shape == ((x.size,) if is_swizzled else x.shape)
    error = np.abs(decoded.reshape(x.shape).astype(F) - x)
    bound = 1 / (1 << bits - 1) + 2e-3  # float16 adds to the error
    assert (error <= np.abs(x).max(axis=1, keepdims=True) * bound).all()
    frame = deepspeed.to_frame(message, bits=bits, partitions=partitions)
    plain = deepspeed.decode(message, bits=bits, partitions=partitions, dtype="float32")
    assert frame.decode().tobytes() == plain.tobytes()
    again = deepspeed.from_frame(frame.to_bytes(), partitions=partitions)
    assert all(again[name].tobytes() == message[name].tobytes() for name in message)


def test_coded_frames_become_messages() -> None:
    x = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float16).astype(F)
    for bits, kind in ((8, "int8"), (4, "int4")):
        frame = gcodec.encode(x, f"blockwise:kind={kind},block=256,code=huffman")
        message = deepspeed.encode(x, bits=bits, groups=16)
        other = deepspeed.from_frame(frame)
        assert all((message[name] == other[name]).all() for name in message)
    for spec in ("blockwise", "blockwise:kind=int8,block=100", "blockwise:kind=int8,block=0"):
        with pytest.raises(ParameterError):
            deepspeed.from_frame(gcodec.encode(x, spec))


@pytest.mark.parametrize(
    ("x", "arguments", "match"),
    [
        (np.ones(4, F), {"bits": 3, "groups": 1}, "bits"),
        (np.ones(6, F), {"groups": 2}, "groups"),
        (np.ones(6, F), {"groups": 0}, "groups"),
        (np.ones((2, 3), F), {"bits": 4, "groups": 1}, "even last"),
        (np.ones(8, F), {"groups": 2, "partitions": (2, 2)}, "partitions"),
        (np.full(4, np.nan, F), {"groups": 1}, "NaN or Inf"),
        (np.full(4, 1e6, F), {"groups": 1}, "^x: must not exceed float16"),
        (np.ones(0, F), {"groups": 1}, "groups"),
    ],
)
def test_wrong_arguments_are_refused(x: Any, arguments: Any, match: str) -> None:
    with pytest.raises(ParameterError, match=match):
        deepspeed.encode(x, **arguments)


def test_damaged_messages_are_refused() -> None:
    x = np.ones((4, 8), F)
    message = deepspeed.encode(x, groups=4)
    codes, scales = message["quantized"], message["scales"]
    for damaged, error in (
        ({"quantized": codes}, Truncated),
        ({"scales": scales}, Truncated),
        ({"quantized": codes, "scales": scales[:3]}, Corrupt),
        ({"quantized": codes, "scales": scales[:0]}, Truncated),
        ({"quantized": codes.view(np.uint8), "scales": scales}, Corrupt),
        ({"quantized": codes[0, 0], "scales": scales}, Corrupt),
        ({"quantized": codes, "scales": scales * F(np.inf)}, Corrupt),
    ):
        for function in (deepspeed.decode, deepspeed.to_frame):
            with pytest.raises(error):
                function(damaged)
    for partitions, kind in (((3, 2), Corrupt), ((2,), ParameterError), ((0, 2), ParameterError)):
        with pytest.raises(kind, match="partitions"):
            deepspeed.decode(message, partitions=partitions)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="bits"):
        deepspeed.decode(message, bits=5)
    with pytest.raises(ParameterError, match="dtype"):
        deepspeed.decode(message, dtype="int8")
    with pytest.raises(LimitExceeded):
        deepspeed.decode(message, limits=Limits(max_elements=3))
