"""Test statements of docs/gpu.md that no other test checks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shim
from samples import gradient, same
from stand_in import StandIn
from test_page import PAGE, ROW
from test_waits import WAITS, counting, sample, waits

import gcodec

__all__ = ["counting"]
PACKAGE = Path(gcodec.__file__).parent
# Codecs with context codes: the host makes the bits before the symbols.
BY_CLASS = {"minifloat", "minifloat:block=32", "qsgd:code=auto", "mxnet-2bit:form=auto"}
needs_compiler = pytest.mark.skipif(shim.COMPILER is None, reason="there is no g++")


def modules(*names: str) -> Iterator[tuple[str, ast.Module]]:
    """Yield those modules whose text contains one of the names."""
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text("utf-8")
        if any(name in text for name in names):
            yield str(path.relative_to(PACKAGE)), ast.parse(text)


def test_few_modules_touch_cupy() -> None:
    names, touching = {"cupy", "cupy_module", "Staging"}, set()
    for name, tree in modules(*names):
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                actual = {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                actual = {str(node.module).split(".")[0], *(alias.name for alias in node.names)}
            elif isinstance(node, ast.Name):
                actual = {node.id}
            else:
                continue
            if actual & names:
                touching.add(name)
    assert touching == {"runtime/device.py", "runtime/staging.py"}


def test_only_deferred_waits() -> None:
    """`deferred.fetch` calls `Device.fetch`, which alone waits for a stream, except for JAX."""
    fetching, waiting = set(), set()
    for name, tree in modules("synchronize", "fetch"):
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if node.func.attr == "synchronize":
                waiting.add(name)
            owner = node.func.value
            # `e.fetch` in the kernels is a prefetch and does not concern the device.
            if node.func.attr == "fetch" and isinstance(owner, ast.Name):
                fetching.add(name if owner.id not in ("e", "self", "deferred") else None)
    for_jax = {"arrays/source.py", "runtime/device.py"}
    assert fetching - {None} == {"runtime/deferred.py"}
    assert waiting - {"torch/ddp.py", *for_jax} == {"runtime/staging.py"}


def test_waits_of_all_codecs_are_listed() -> None:
    rows = ROW.findall(PAGE.read_text("utf-8"))
    coded = {spec for _, cell in rows for spec in re.findall(r"`([^`]+)`", cell)}
    searching = {spec for spec in coded if spec.startswith("ecsq") and "step" not in spec}
    searching.add("lowrank")  # whose factors are searched for, too
    assert coded - searching == set(WAITS)


@pytest.mark.parametrize(
    ("spec", "narrow", "near"),
    [("dct8", 0, 2), ("topk", 1, 0), ("sign", 0, 0), ("minmax", 0, 0), ("powersgd", 0, 0)],
)
def test_feedback_waits_longer_where_a_range_might_be_exceeded(
    counting: shim.ShimDevice, spec: str, narrow: int, near: int
) -> None:
    def count(x: np.ndarray) -> int:
        on_device, feedback = counting.to_device(x), gcodec.Feedback(spec, decay=0.0)
        feedback.compress("w", on_device)
        return waits(counting, lambda: feedback.compress("w", on_device)) - WAITS[spec][1]

    large = sample() / np.abs(sample()).max() * np.float32(1e38)
    inputs = sample(), sample().astype(np.float16), large
    assert [count(x) for x in inputs] == [0, narrow, near]


@needs_compiler
def test_out_of_memory_leaves_the_residual_unchanged(
    cupy: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_device, here = gcodec.Feedback("sign"), gcodec.Feedback("sign")
    x = gradient(1000)
    on_device.compress("w", cupy.asarray(x))
    here.compress("w", x)
    real, left = cupy.empty, [0]

    def empty(*args: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise MemoryError("Out of memory allocating 4000 bytes")
        return real(*args)

    monkeypatch.setattr(cupy, "empty", empty)
    for allowed in range(20):  # for each array allocation of a call in turn
        left[0] = allowed
        try:
            frame = on_device.compress("w", cupy.asarray(x))
        except MemoryError:
            assert same(cupy.asnumpy(on_device.residual("w")), here.residual("w"))
        else:
            break
    assert 0 < allowed < 19
    assert frame == here.compress("w", x)


@pytest.mark.parametrize(
    "spec",
    [
        spec
        for spec in WAITS
        if not gcodec.parse(spec).symbols_on_host
        and spec not in BY_CLASS
        and "context" not in spec
        and not spec.startswith(("ecsq", "lossless:mode=fast", "lossless:mode=small"))
        and spec != "lossless"
    ],
)
def test_few_bytes_of_a_payload_reach_the_host(
    counting: shim.ShimDevice, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, codec = counting.to_device(sample()), gcodec.parse(spec)
    codec.encode(x)  # may copy tables to the device
    fetched = [0]
    real = shim.ShimDevice.fetch

    def fetch(device: shim.ShimDevice, arrays: Sequence[Any]) -> list[np.ndarray]:
        actual = real(device, arrays)
        fetched[0] += sum(array.nbytes for array in actual)
        return actual

    monkeypatch.setattr(shim.ShimDevice, "fetch", fetch)
    payload = codec.encode(x)
    assert fetched[0] < payload.data.nbytes / 4 + 512, fetched
