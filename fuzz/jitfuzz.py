"""Mutate payloads, decode them and check canaries in one compiled loop.

A call of a decode kernel is recorded from a real decoder (`calls`). A compiled loop, itself a
kernel, restores the arrays that the kernel writes, mutates the payload, calls the kernel, and
checks the canaries on both sides of each output array. In the checked build, the loop also fails
at an access out of bounds. A mutant depends only on seed and number.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from fuzz.calls import Call
from gcodec.runtime.jit import Kernel, grouped, inline, kernel

CANARY = 0xA5
MARGIN = 64  # canary elements on each side of an array
GOLDEN = 0x9E3779B97F4A7C15


class Finding(NamedTuple):
    """A mutant that broke something.

    Attributes
    ----------
    kernel, what : str
        Name of the kernel, and the failure.
    payload : bytes
        The bytes that the kernel read.
    """

    kernel: str
    what: str
    payload: bytes


@inline
def _mixed(x):
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@kernel("out uint8[], in uint8[], uint64")
def _mutate(data, source, number):
    for i in range(data.size):
        data[i] = source[i]
    state = _mixed(number)
    for _ in range(1 + np.int64(state & np.uint64(3)) * np.int64(state >> np.uint64(61))):
        state = _mixed(state + np.uint64(GOLDEN))
        at = np.int64((state >> np.uint64(32)) % np.uint64(data.size))
        mutation = state & np.uint64(7)
        if mutation < 4:
            data[at] ^= np.uint8(1 << np.int64((state >> np.uint64(3)) & np.uint64(7)))
        elif mutation == 4:
            data[at] = np.uint8(0)
        elif mutation == 5:
            data[at] = np.uint8(255)
        elif mutation == 6:
            data[at] = np.uint8((state >> np.uint64(3)) & np.uint64(255))
        else:
            other = np.int64((state >> np.uint64(16)) % np.uint64(data.size))
            data[at] = source[other]


@functools.cache
def _loop(fuzzed: Kernel) -> Kernel:
    """Make the loop that calls a kernel on mutants; it returns 1 if a canary differs, else 0."""
    words = fuzzed.types
    written = [i for i, word in enumerate(words) if word.startswith("out ")]
    groups = grouped(fuzzed.signature, [f"a{i}" for i in range(len(words))])
    args = ", ".join(
        f"({', '.join(each)})" if isinstance(each, tuple) else each for each in groups
    )
    # An array that the kernel writes is a part of a block.
    passed = [f"block{i}, fresh{i}" if i in written else f"a{i}" for i in range(len(words))]
    lines = [
        f"def loop(seed, start, count, source, data, current, {', '.join(passed)}):",
        *(f"    a{i} = block{i}[MARGIN : block{i}.size - MARGIN]" for i in written),
        "    for number in range(start, start + count):",
        "        current[0] = number",
        "        mutate(data, source, seed + np.uint64(number))",
        *(
            f"        for k in range(fresh{i}.size):\n            a{i}[k] = fresh{i}[k]"
            for i in written
        ),
        f"        fuzzed({args})",
    ]
    names = {"__name__": __name__, "np": np, "MARGIN": MARGIN, "mutate": _mutate, "fuzzed": fuzzed}
    for i in written:
        lines += [
            f"        behind{i} = block{i}.size - MARGIN",
            "        for k in range(MARGIN):",
            f"            if block{i}[k] != fill{i} or block{i}[behind{i} + k] != fill{i}:",
            "                return np.int64(1)",
        ]
        names[f"fill{i}"] = _canary(words[i])
    lines += ["    return np.int64(0)"]
    namespace: dict[str, Any] = {}
    exec("\n".join(lines), names, namespace)
    own = "uint64, int64, int64, in uint8[], out uint8[], out int64[]"
    kinds = [
        f"{word}, in {_dtype_of(word)}[]" if i in written else word for i, word in enumerate(words)
    ]
    signature = ", ".join((own, *kinds))
    return kernel(signature, variant=fuzzed.name)(namespace["loop"])


def _dtype_of(word: str) -> np.dtype[Any]:
    """Return the dtype of an array for its type in a signature."""
    return np.dtype(word.rpartition(" ")[2].removesuffix("[]"))


def _canary(word: str) -> Any:
    """Return the value of a canary in an array; it is no NaN, so it differs from all others."""
    dtype = _dtype_of(word)
    (value,) = np.frombuffer(bytes([CANARY]) * dtype.itemsize, dtype)
    return value


class Fuzzed:
    """A recorded call of a kernel, ready for repetition on mutants.

    Parameters
    ----------
    call : Call
        The recorded call.
    """

    def __init__(self, call: Call) -> None:
        self.call = call
        words = call.kernel.types
        self._loop = _loop(call.kernel)
        self._progress = np.zeros(1, np.int64)
        payload = call.args[call.hostile]
        self.source = payload.view(np.uint8).copy()
        # Kernels may require alignment to more than a byte.
        self._data = np.zeros_like(payload).view(np.uint8)
        args: list[Any] = []
        self._sides: list[np.ndarray] = []
        for i, (value, word) in enumerate(zip(call.args, words, strict=True)):
            if i == call.hostile:
                value = self._data.view(payload.dtype)
            if word.startswith("out "):
                block = np.empty(value.size + 2 * MARGIN, value.dtype)
                self._sides += [side.view(np.uint8) for side in (block[:MARGIN], block[-MARGIN:])]
                args += [block, value.copy()]
            else:
                args.append(value)
        self._arguments = tuple(args)

    def mutant(self, seed: int, number: int) -> bytes:
        """Return the bytes of a mutant."""
        data = np.empty_like(self.source)
        _mutate(data, self.source, (seed + number) % 2**64)
        return data.tobytes()

    def run(self, seed: int, start: int, count: int) -> Finding | None:
        """Call the kernel on `count` mutants, beginning with number `start`."""
        for side in self._sides:
            side[:] = CANARY
        own = seed, start, count, self.source, self._data, self._progress
        try:
            if not self._loop(*own, *self._arguments):
                return None
            what = "a canary was overwritten"
        except (IndexError, RuntimeError):
            what = "index out of bounds"
        at = int(self._progress[0])
        return Finding(self.call.kernel.name, f"{what}, mutant {at}", self.mutant(seed, at))


def fuzz(calls: Iterable[Call], mutants: int, seed: int = 0) -> tuple[int, list[Finding]]:
    """Run mutants in equal shares on all calls; return their number, and the findings."""
    ready = [Fuzzed(call) for call in calls]
    share, done, findings = -(-mutants // max(len(ready), 1)), 0, []
    for one in ready:
        finding = one.run(seed, 0, share)
        done += share
        if finding is not None:
            findings.append(finding)
    return done, findings
