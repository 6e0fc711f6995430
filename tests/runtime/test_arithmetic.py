"""Tests of threads whose processor or NumPy treats roundings and subnormals in another way."""

from __future__ import annotations

import ctypes
import itertools
import platform
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import strategies as gs

import gcodec
from gcodec.codec import Codec
from gcodec.interop import byteps, hivemind, mxnet, torchao
from gcodec.runtime import arithmetic, pool

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"),
    reason="the layout of C's fenv_t is known for Linux alone",
)

# By machine: where fenv_t has the control register, and for each mode the bits that it sets.
_REGISTERS = {
    "x86_64": (28, {"flushing": 0x8040, "upward": 0x4000, "toward zero": 0x6000}),
    "aarch64": (0, {"flushing": 1 << 24, "upward": 1 << 22, "toward zero": 3 << 22}),
}
MODES = ("flushing", "upward", "toward zero")
TOTAL = np.full((24, 16), 3e-39, np.float32)


@contextmanager
def computing(mode: str) -> Iterator[None]:
    """Let this thread flush subnormal numbers to zero, or round in a direction."""
    place, bits = _REGISTERS[platform.machine()]
    library = ctypes.PyDLL("libm.so.6")
    own = ctypes.create_string_buffer(64)
    library.fegetenv(own)
    other = ctypes.create_string_buffer(own.raw, 64)
    ctypes.c_uint32.from_buffer(other, place).value |= bits[mode]
    library.fesetenv(other)
    try:
        yield
    finally:
        library.fesetenv(own)


def outcome(codec: Codec, x: np.ndarray) -> dict[str, Any]:
    """Return what the calls of a codec make of a tensor: bytes, bit patterns, or errors."""
    results: dict[str, Any] = {}

    def record(name: str, call: Any) -> None:
        try:
            result = call()
        except gcodec.ParameterError as error:
            result = str(error)
        results[name] = result.tobytes() if isinstance(result, np.ndarray) else result

    total, feedback = TOTAL.copy(), gcodec.Feedback(codec)
    record("frame", lambda: gcodec.encode(x, codec, seed=3))
    if isinstance(results["frame"], bytes):
        frame = results["frame"]
        record("decoded", lambda: gcodec.decode(frame))
        record("sum", lambda: gcodec.decode_add(frame, total, 0.75) or total)
        record("range", lambda: gcodec.decode_range(frame, 5, 90))
        record("again", lambda: gcodec.Frame.from_bytes(frame).to_bytes())
    record("message", lambda: gcodec.encode_many({"a": x, "b": x[:2]}, codec, seed=5))
    for step in range(3):
        record(f"step {step}", lambda: feedback.compress("a", x))
    record("residual", lambda: feedback.residual("a"))
    return results


@pytest.mark.parametrize("codec", gs.FEW, ids=str)
def test_bytes_and_values_do_not_depend_on_it(codec: Codec) -> None:
    rng = np.random.default_rng(8)
    for scale in (1e-39, 1.0):
        x = (rng.standard_normal((24, 16)) * scale).astype(np.float32)
        expected = outcome(codec, x)
        for mode in MODES:
            with computing(mode):
                own = outcome(codec, x)
            assert own == expected, mode


def _of_many_magnitudes() -> list[np.ndarray]:
    """Return tensors whose values, squares or quotients are not normal in their dtype."""
    rng = np.random.default_rng(9)
    tensors = [rng.standard_normal((24, 16)) * scale for scale in (1e-42, 1e-39, 1e37, 2e-40)]
    wide = rng.standard_normal((24, 16)) * 10.0 ** rng.integers(-44, 37, (24, 16))
    rows, columns = 10.0 ** rng.uniform(-20, 0, 64), 10.0 ** rng.uniform(-46, 18, 80)
    outer = np.outer(rng.standard_normal(64) * rows, columns)
    small = rng.standard_normal((24, 16)) * 1e-6
    uneven = np.exp(3 * rng.standard_normal((24, 1))) * rng.standard_normal((24, 16))
    return [
        *(x.astype(np.float32) for x in (wide, *tensors, outer)),
        *(x.astype(np.float16) for x in (small, uneven)),
        wide,
    ]


with np.errstate(all="ignore"):
    TENSORS = _of_many_magnitudes()


@pytest.mark.parametrize("codec", dict.fromkeys([*gs.CODECS, *gs.FEW]), ids=str)
def test_the_settings_of_numpy_for_errors_do_not_matter(codec: Codec) -> None:
    tensors = TENSORS if codec in gs.FEW else TENSORS[:4]
    with np.errstate(all="ignore"):
        expected = [outcome(codec, x) for x in tensors]
    with np.errstate(all="raise"):
        assert [outcome(codec, x) for x in tensors] == expected


def test_the_settings_for_errors_do_not_matter_to_choices_and_inspections() -> None:
    bounds = ({"max_nmse": 1e-4}, {"max_nmse": 0.1}, {"max_bits": 3})

    def results() -> list[str]:
        wanted = [str(gcodec.inspect({"a": x}, codecs=("minmax", "lowrank"))) for x in TENSORS]
        for x, bound in itertools.product(TENSORS, bounds):
            wanted.append(str(gcodec.choose(x, **bound, feedback=x.dtype == np.float32)))
        return wanted

    with np.errstate(all="ignore"):
        expected = results()
    with np.errstate(all="raise"):
        assert results() == expected


@pytest.mark.parametrize("codec", gs.FEW, ids=str)
def test_the_settings_of_numpy_for_printing_do_not_matter(codec: Codec) -> None:
    x = np.random.default_rng(8).standard_normal((24, 16)).astype(np.float32)
    expected = outcome(codec, x)
    with np.printoptions(precision=3, floatmode="fixed", legacy="1.13"):
        assert outcome(codec, x) == expected


def test_the_settings_for_printing_do_not_matter_to_specs() -> None:
    with np.printoptions(legacy="1.13"):
        codec = gcodec.parse("mxnet-2bit:threshold=0.12345679")
        assert str(codec) == "mxnet-2bit:threshold=0.12345679"


def test_it_stays_the_callers() -> None:
    codec = gcodec.parse("minmax")
    for mode in MODES:
        with computing(mode):
            gcodec.decode(gcodec.encode(np.ones(9, np.float32), codec))
            with pytest.raises(gcodec.FormatError):
                gcodec.decode(b"GCF")
            assert not arithmetic.is_standard()
    assert arithmetic.is_standard()


def test_threads_of_the_pool_do_not_inherit_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCODEC_NUM_THREADS", "2")
    monkeypatch.setattr(pool, "_threads", [])
    both = threading.Barrier(2)

    def task(start: int, stop: int) -> bool:
        both.wait(60)  # so that each thread takes one of the tasks
        return arithmetic.is_standard()

    with computing("flushing"):
        assert sorted(pool.run_each(task, 2)) == [False, True]


def test_messages_of_other_systems_do_not_depend_on_it() -> None:
    x = (np.random.default_rng(9).standard_normal(64) * 1e-38).astype(np.float32)

    def messages() -> list[Any]:
        scaled = torchao.encode(x, "mxfp8e4m3")
        return [
            mxnet.encode(x, threshold=2e-38),
            byteps.encode(x, "onebit", scaling=True),
            hivemind.decode(hivemind.encode(x, "UNIFORM_8BIT")).tobytes(),
            [scaled[name].tobytes() for name in sorted(scaled)],
            torchao.decode(scaled, "mxfp8e4m3").tobytes(),
        ]

    expected = messages()
    for mode in MODES:
        with computing(mode):
            assert messages() == expected, mode
