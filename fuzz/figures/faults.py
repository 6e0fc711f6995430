"""F9: failures around gcodec: memory, home and cache directories, packages."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import gcodec
from fuzz.figures.figure import Figure
from fuzz.goldens import ROOT

ALLOCATING = ("empty", "zeros", "full", "ones", "arange", "concatenate", "empty_like")
MOST_ALLOCATIONS = 2000  # most allocations of a call
SPECS = (
    *("raw", "qsgd:form=dense", "qsgd:form=sparse", "qsgd:code=huffman", "qsgd:code=rans"),
    *("mxnet-2bit", "mxnet-2bit:form=sparse", "mxnet-1bit", "terngrad", "terngrad:pack=base3"),
    *("minmax", "sign", "minifloat:code=huffman", "minifloat:code=rans", "topk:k=9", "randomk"),
    *("dct8", "ecsq:step=0.5"),
)
PROGRAM = """
import sys
{before}
import numpy as np
import gcodec
x = np.arange(5, dtype=np.float32)
frame = gcodec.encode(x, "sign")
assert gcodec.decode(frame).tolist() == [2.0] * 5
print("fine")
"""


def faults(short: bool) -> Figure:
    """Let each allocation fail, then start processes in incomplete environments."""
    count, failures = 0, []
    for spec in SPECS[::6] if short else SPECS:
        for what, call in _calls(spec).items():
            failing, wrong = _failing(call)
            count += failing
            failures += [f"{spec} {what}: {one}" for one in wrong]
    places = _places(short)
    with tempfile.TemporaryDirectory() as caches:
        for name, (before, environment, expected) in places.items():
            said = _last_line(before, environment, caches)
            if expected not in said:
                failures.append(f"{name}: {said}")
    detail = f"{count} allocations that fail; processes: {', '.join(places)}"
    promise = "a failure around gcodec gives its own error, and leaves no state behind"
    return Figure("F9", promise, count + len(places), "failures", failures, detail)


@contextlib.contextmanager
def failing_at(number: int) -> Iterator[list[int]]:
    """Let the allocation with this number fail; count the allocations."""
    seen = [0]

    def counted(own: Callable[..., Any]) -> Callable[..., Any]:
        def allocate(*args: Any, **kwargs: Any) -> Any:
            seen[0] += 1
            if seen[0] == number:
                raise MemoryError
            return own(*args, **kwargs)

        return allocate

    kept = {name: getattr(np, name) for name in ALLOCATING}
    for name, own in kept.items():
        setattr(np, name, counted(own))
    try:
        yield seen
    finally:
        for name, own in kept.items():
            setattr(np, name, own)


def _calls(spec: str) -> dict[str, Callable[[], Any]]:
    x = np.random.default_rng(0).standard_normal(200).astype(np.float32)
    frame = gcodec.encode(x, spec)
    feedback = gcodec.Feedback(spec)
    feedback.compress("w", x)
    kept = feedback.residual("w").copy()

    def compress() -> bytes:
        compressor = gcodec.Feedback(spec)
        compressor.load_state_dict(feedback.state_dict())
        try:
            return compressor.compress("w", x)
        except MemoryError:
            assert np.array_equal(compressor.residual("w"), kept), (
                "a broken step is in the residual"
            )
            raise

    return {
        "decode": lambda: gcodec.decode(frame).tobytes(),
        "encode": lambda: gcodec.encode(x, spec),
        "compress": compress,
    }


def _failing(call: Callable[[], Any]) -> tuple[int, list[str]]:
    """Repeat a call with each allocation failing in turn; return their number, and the defects."""
    right, wrong = call(), []
    for number in range(1, MOST_ALLOCATIONS):
        try:
            with failing_at(number) as seen:
                call()
        except MemoryError:
            pass
        except Exception as error:
            wrong.append(f"allocation {number}: {error!r}")
        if seen[0] < number:
            break
        if call() != right:
            wrong.append(f"after allocation {number} failed, the result differs")
    return number - 1, wrong


def _places(short: bool) -> dict[str, tuple[str, dict[str, str | None], str]]:
    """Return processes: code that runs first, environment variables, and expected output."""
    nowhere = "/dev/null/nowhere"
    kernels = os.environ.get("GCODEC_CACHE_DIR")
    gone: dict[str, str | None] = {"HOME": None, "XDG_CACHE_HOME": None}
    home = {"HOME": nowhere, "XDG_CACHE_HOME": nowhere, "GCODEC_CACHE_DIR": None}
    blocked = "sys.modules[{!r}] = None"
    known = {"GCODEC_CACHE_DIR": kernels} if kernels else {}
    places: dict[str, tuple[str, dict[str, str | None], str]] = {
        "no cupy, torch, jax": (
            "; ".join(blocked.format(name) for name in ("cupy", "torch", "jax")),
            dict(known),
            "fine",
        ),
        # The preceding process has compiled the kernels.
        "no numba": (blocked.format("numba"), dict(known), "fine"),
        "no numba and no kernels": (
            blocked.format("numba"),
            {"GCODEC_CACHE_DIR": nowhere, "GCODEC_CHECKED": "1"},  # a wheel has no checked kernels
            "ModuleNotFoundError",
        ),
        "no llvmlite": (blocked.format("llvmlite"), dict(known), "ModuleNotFoundError"),
    }
    if not short:  # without a cache, the process compiles kernels
        places |= {
            "a cache directory that cannot be created": (
                "",
                {"GCODEC_CACHE_DIR": nowhere},
                "fine",
            ),
            "a home directory that cannot be created": ("", home, "fine"),
            "no home": ("", {**gone, "GCODEC_CACHE_DIR": None}, "fine"),
        }
    return places


def _last_line(before: str, environment: dict[str, str | None], caches: str) -> str:
    """Run the program, with a directory for caches; return its last line of output."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    variables.setdefault("XDG_CACHE_HOME", caches)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM.format(before=before)],
        env={name: value for name, value in variables.items() if value is not None},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    said = (done.stdout + done.stderr).strip().splitlines()
    return said[-1] if said else f"nothing, exit code {done.returncode}"
