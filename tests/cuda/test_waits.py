"""Test how often the host waits for a device in a call, as stated by docs/gpu.md."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import shim
from samples import arbitrary_floats, gradient
from sweeps import LONG
from test_page import PAGE

import gcodec
from gcodec.runtime import device as devices
from gcodec.runtime.device import Device

ROW = re.compile(r"^\| (`.*`) \|" + 4 * r" (\d+) \|" + "$", re.MULTILINE)
WAITS = {
    spec: tuple(map(int, counts))
    for cells, *counts in ROW.findall(PAGE.read_text("utf-8"))
    for spec in re.findall(r"`([^`]+)`", cells)
}


@pytest.fixture
def counting() -> Iterator[shim.ShimDevice]:
    if shim.COMPILER is None:
        pytest.skip("there is no g++")
    with devices.use(shim.ShimDevice()) as result:
        yield result


def sample() -> np.ndarray:
    """Return a matrix with a scale for each row."""
    random = np.random.default_rng(5)
    rows = np.exp(random.standard_normal((96, 1)))
    return (0.1 * rows * random.standard_normal((96, 64))).astype(np.float32)


def waits(device: shim.ShimDevice, call: Callable[[], Any]) -> int:
    before = device.fetched
    call()
    return device.fetched - before


@pytest.mark.parametrize("spec", WAITS)
def test_waits_agree_with_the_page(counting: shim.ShimDevice, spec: str) -> None:
    x = counting.to_device(sample())
    frame, feedback = gcodec.encode(x, spec), gcodec.Feedback(spec)
    feedback.compress("w", x)
    calls = (
        lambda: gcodec.encode(x, spec),
        lambda: feedback.compress("w", x),
        lambda: gcodec.decode(frame, like=x),
        lambda: gcodec.decode_add(frame, x, 0.5),
    )
    assert tuple(waits(counting, call) for call in calls) == WAITS[spec]


@pytest.mark.parametrize(
    ("spec", "kernel", "others"),
    [
        ("ecsq", "rated_levels", 3),  # the last pass writes the levels to pack
        ("ecsq:nmse=0.1", "rated_levels", 3),
        ("ecsq:bits=2", "choose_class_table", 3),
        ("ecsq:rounding=stochastic", "random_squares", 4),
        ("ecsq:rounding=stochastic,bits=1.5", "choose_class_table", 3),
    ],
)
def test_each_pass_of_a_search_waits_once(
    counting: shim.ShimDevice, spec: str, kernel: str, others: int
) -> None:
    """The host also waits for the peak and the mean square, the layout, and the payload.

    If an error target is met again, it also waits for the previous size of the levels.
    """
    x, feedback = counting.to_device(sample()), gcodec.Feedback(spec)
    feedback.compress("w", x)  # may copy tables to the device
    calls = (lambda: gcodec.encode(x, spec), lambda: feedback.compress("w", x))
    for call in calls:
        before = len(counting.launched)
        actual, launched = waits(counting, call), counting.launched[before:]
        again = "choose_matrix" not in launched  # the layout of the preceding step is reused
        assert actual == launched.count(kernel) + others - again + launched.count("count_values")


def test_exact_errors_do_not_add_a_wait(
    counting: shim.ShimDevice,
) -> None:
    """Most values are 0: from the second pass on, the device sums errors before the host asks."""
    few = sample()
    few[np.arange(96) % 24 > 0] = 0
    x = counting.to_device(few)
    gcodec.encode(x, "ecsq:nmse=0.01")  # may copy tables to the device
    before = len(counting.launched)
    frame = waits(counting, lambda: gcodec.encode(x, "ecsq:nmse=0.01"))
    passes = counting.launched[before:].count("add_scaled")
    assert passes > 2
    assert frame == passes + 5
    assert gcodec.encode(x, "ecsq:nmse=0.01") == gcodec.encode(few, "ecsq:nmse=0.01")


@pytest.mark.parametrize("spec", [spec for spec in WAITS if WAITS[spec][0] == 1])
def test_payloads_stay_on_the_device(counting: shim.ShimDevice, spec: str) -> None:
    x, codec = counting.to_device(sample()), gcodec.parse(spec)
    codec.encode(x)  # may copy tables to the device
    results: list[gcodec.Payload] = []
    assert waits(counting, lambda: results.append(codec.encode(x))) <= 1
    (payload,) = results
    assert all(type(value) in (int, float, str) for value in payload.scalars.values())
    assert not payload.codec.unresolved()
    if not payload.codec.symbols_on_host:
        assert counting.owns(payload.data)
    symbols = codec.quantize(x)
    assert payload.tobytes() == codec.pack(symbols).tobytes()


# Of a vector, tiles are runs of 4096 elements, whose transforms differ between device and host.
RUNS = "dct8:layout=tiles"
LATE = [
    spec
    for spec, counts in WAITS.items()
    if counts[1] == 1 and spec != RUNS and not gcodec.parse(spec).keeps_every_bit
]


def test_late_errors_change_nothing(gpu: Device) -> None:
    """All kernels of a step have run when the host learns that the input contained NaN."""
    cases = list(itertools.product(LATE, ("float32", "float16")))
    if not LONG:  # the dtypes take turns
        cases = [case for number, case in enumerate(cases) if number // 2 % 2 == number % 2]
    for spec, dtype in cases:
        check_late_errors(gpu, spec, dtype)


def check_late_errors(gpu: Device, spec: str, dtype: str) -> None:
    fine = np.clip(gradient(300), -9, 9).astype(dtype)
    wrong = np.clip(arbitrary_floats(300), -1e4, 1e4).astype(dtype)
    on_device, here = gcodec.Feedback(spec), gcodec.Feedback(spec)
    for feedback, place in ((on_device, gpu.to_device), (here, np.array)):
        feedback.compress("w", place(fine))
    before = devices.host(on_device.residual("w"))
    messages = []
    for feedback, place in ((on_device, gpu.to_device), (here, np.array)):
        with pytest.raises(gcodec.ParameterError, match="NaN or Inf") as raised:
            feedback.compress("w", place(wrong))
        messages.append(str(raised.value))
    assert messages[0] == messages[1], (spec, dtype)
    assert devices.host(on_device.residual("w")).tobytes() == before.tobytes(), (spec, dtype)
    assert on_device.compress("w", gpu.to_device(fine)) == here.compress("w", fine)
    codec, kept = gcodec.parse(spec), gpu.to_device(before)
    if codec.refuses_nonfinite:
        with pytest.raises(gcodec.ParameterError, match="NaN or Inf"):
            codec.quantize_residual(gpu.to_device(wrong), kept)
        assert gpu.to_host(kept).tobytes() == before.tobytes(), (spec, dtype)


def test_nonfinite_values_become_zeros(gpu: Device) -> None:
    x = np.clip(arbitrary_floats(300), -9, 9)
    on_device, here = (gcodec.Feedback("mxnet-2bit", nonfinite="zero") for _ in range(2))
    for _ in range(2):
        assert on_device.compress("w", gpu.to_device(x)) == here.compress("w", x)
    assert gcodec.encode(gpu.to_device(x), "raw", nonfinite="zero") == gcodec.encode(
        x, "raw", nonfinite="zero"
    )


BUCKET = {"a": (96, 128), "b": (40,), "c": (16, 24)}


def bucket(step: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(step)
    return {name: random.standard_normal(shape, np.float32) for name, shape in BUCKET.items()}


def on_device(device: Device, grads: dict[str, np.ndarray]) -> dict[str, Any]:
    return {name: device.to_device(x) for name, x in grads.items()}


@pytest.mark.parametrize(
    "spec",
    ["sign", "minmax", "qsgd:code=auto", "minifloat", "mxnet-2bit:form=auto", "ecsq:step=0.01"],
)
def test_all_tensors_of_a_bucket_share_a_wait(counting: shim.ShimDevice, spec: str) -> None:
    resident, here, messages = gcodec.Feedback(spec), gcodec.Feedback(spec), list[bytes]()
    for step in range(3):
        grads = on_device(counting, bucket(step))
        shared = waits(counting, lambda g=grads: messages.append(resident.compress_many(g)))
        assert step == 0 or shared == 1  # the first step may copy tables to the device
        assert messages[-1] == here.compress_many(bucket(step), group_below=0)


def test_the_last_wait_of_a_search_is_shared(counting: shim.ShimDevice) -> None:
    resident, here = gcodec.Feedback("ecsq:nmse=0.05"), gcodec.Feedback("ecsq:nmse=0.05")
    for step in range(3):
        each = [
            waits(counting, lambda n=name, x=x: here.compress(n, x))
            for name, x in on_device(counting, bucket(step)).items()
        ]
        grads = on_device(counting, bucket(step))
        shared = waits(counting, lambda g=grads: resident.compress_many(g))
        assert shared <= sum(each) - len(BUCKET) + 1
    states = resident.state_dict(), here.state_dict()
    assert all(np.array_equal(states[0][key], states[1][key]) for key in states[1])


@pytest.mark.parametrize("wrong", BUCKET)
def test_a_late_error_of_a_bucket_changes_nothing(gpu: Device, wrong: str) -> None:
    resident, here = gcodec.Feedback("qsgd"), gcodec.Feedback("qsgd")
    assert resident.compress_many(on_device(gpu, bucket(0))) == here.compress_many(
        bucket(0), group_below=0
    )
    grads = bucket(1)
    grads[wrong].reshape(-1)[-1] = np.nan
    messages = []
    for feedback, own in ((resident, on_device(gpu, grads)), (here, grads)):
        with pytest.raises(gcodec.ParameterError, match="NaN or Inf") as raised:
            feedback.compress_many(own, group_below=0)
        messages.append(str(raised.value))
    assert messages[0] == messages[1]
    assert resident.compress_many(on_device(gpu, bucket(2))) == here.compress_many(
        bucket(2), group_below=0
    )
