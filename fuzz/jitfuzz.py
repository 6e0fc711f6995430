"""Mutate payloads, decode them and check canaries in one compiled loop.

A call of a decode kernel is recorded from a real decoder (`calls`). A compiled loop restores the
arrays that the kernel writes, mutates the payload, calls the machine code of the kernel by its
address, and checks the canaries on both sides of each output array. In the checked build, the
kernel also reports an access out of bounds. A mutant depends only on seed and number.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from fuzz.calls import Call, argument_types
from gcodec.runtime.jit import Kernel

CANARY = 0xA5
MARGIN = 64  # canary elements on each side of an array
NOTHING = -2  # status of a kernel that returns None
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


def address(kernel: Kernel) -> int:
    """Return the address of the machine code of a kernel."""
    (compiled,) = kernel.built.overloads.values()
    return int(compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name))


@functools.cache
def _call_at() -> Any:
    """Make the intrinsic ``call_at(address, (arguments))``, which returns a status."""
    from llvmlite import ir
    from numba.core import cgutils, types
    from numba.core.callconv import excinfo_t
    from numba.extending import intrinsic

    @intrinsic
    def call_at(typing_context: Any, where: Any, args: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            convention, kinds = context.call_conv, tuple(args)
            kind = convention.get_function_type(types.none, kinds)
            function = builder.inttoptr(values[0], kind.as_pointer())
            # This allocation is large enough for any result.
            room = cgutils.alloca_once(builder, ir.ArrayType(ir.IntType(64), 8))
            returned = builder.bitcast(room, kind.args[0])
            error = cgutils.alloca_once(builder, ir.PointerType(excinfo_t))
            unpacked = cgutils.unpack_tuple(builder, values[1])
            flat = list(convention._get_arg_packer(kinds).as_arguments(builder, unpacked))
            return builder.call(function, [returned, error, *flat])

        return types.int32(where, args), generate

    return call_at


@functools.cache
def _mutate() -> Any:
    import numba

    @numba.njit("uint64(uint64)", inline="always")
    def mixed(x):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))

    @numba.njit("void(uint8[::1], uint8[::1], uint64)", nogil=True)
    def mutate(data, source, number):
        for i in range(data.size):
            data[i] = source[i]
        state = mixed(number)
        for _ in range(1 + np.int64(state & np.uint64(3)) * np.int64(state >> np.uint64(61))):
            state = mixed(state + np.uint64(GOLDEN))
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

    return mutate


@functools.cache
def _loop(signature: str, hostile: int) -> Any:
    """Compile the loop for kernels of one signature; kernels of equal signature share it."""
    import numba
    from numba.core import types

    from gcodec.runtime.jit import _numba_type

    words = signature.split(", ")
    written = [i for i, word in enumerate(words) if word.startswith("out ")]
    blocks = ", ".join(f"block{i}, fresh{i}" for i in written)
    args = ", ".join(f"a{i}" for i in range(len(words)))
    more = f", {blocks}" if written else ""
    lines = [
        f"def loop(address, seed, start, count, source, data, current, {args}{more}):",
        "    for number in range(start, start + count):",
        "        current[0] = number",
        "        mutate(data, source, seed + np.uint64(number))",
        *(
            f"        for k in range(fresh{i}.size):\n            a{i}[k] = fresh{i}[k]"
            for i in written
        ),
        f"        status = call_at(address, ({args},))",
        "        if status != 0 and status != NOTHING:",
        "            return 1",
    ]
    for i in written:
        lines += [
            f"        behind{i} = block{i}.size - MARGIN",
            "        for k in range(MARGIN):",
            f"            if block{i}[k] != fill{i} or block{i}[behind{i} + k] != fill{i}:",
            "                return 2",
        ]
    lines += ["    return 0"]
    # Compare canaries as unsigned integers, so that NaN does not occur.
    kinds = [_numba_type(word) for word in words]
    names = {"np": np, "mutate": _mutate(), "call_at": _call_at(), "MARGIN": MARGIN}
    names["NOTHING"] = NOTHING
    extra = []
    for i in written:
        nbytes = kinds[i].dtype.bitwidth // 8
        unsigned = np.dtype(f"u{nbytes}")
        names[f"fill{i}"] = unsigned.type(int.from_bytes(bytes([CANARY]) * nbytes, "little"))
        element = getattr(types, f"uint{8 * nbytes}")
        extra += [types.Array(element, 1, "C"), types.Array(kinds[i].dtype, 1, "C", readonly=True)]
    namespace: dict[str, Any] = {}
    exec("\n".join(lines), names, namespace)
    number, octets = types.uint64, types.Array(types.uint8, 1, "C")
    own = (types.uint64, number, types.int64, types.int64, octets, octets)
    signature_of = types.int64(*own, types.Array(types.int64, 1, "C"), *kinds, *extra)
    return numba.njit(signature_of, nogil=True)(namespace["loop"])


class Fuzzed:
    """A recorded call of a kernel, ready for repetition on mutants.

    Parameters
    ----------
    call : Call
        The recorded call.
    """

    def __init__(self, call: Call) -> None:
        self.call = call
        words = argument_types(call.kernel)
        self._loop = _loop(call.kernel.signature, call.hostile)
        self._where = np.uint64(address(call.kernel))
        self._progress = np.zeros(1, np.int64)
        payload = call.args[call.hostile]
        self.source = payload.view(np.uint8).copy()
        # Kernels may require alignment to more than a byte.
        self._data = np.zeros_like(payload).view(np.uint8)
        args, blocks = [], []
        self._sides: list[np.ndarray] = []
        for i, (value, word) in enumerate(zip(call.args, words, strict=True)):
            if i == call.hostile:
                value = self._data.view(payload.dtype)
            if word.startswith("out "):
                unsigned = f"u{value.itemsize}"
                block = np.empty(value.size + 2 * MARGIN, unsigned)
                self._sides += [side.view(np.uint8) for side in (block[:MARGIN], block[-MARGIN:])]
                fresh = value.copy()
                value = block[MARGIN : MARGIN + value.size].view(value.dtype)
                blocks += [block, _frozen(fresh)]
            elif isinstance(value, np.ndarray):
                value = _frozen(value)
            args.append(value)
        self._arguments = (*args, *blocks)

    def mutant(self, seed: int, number: int) -> bytes:
        """Return the bytes of a mutant."""
        data = np.empty_like(self.source)
        _mutate()(data, self.source, np.uint64((seed + number) % 2**64))
        return data.tobytes()

    def run(self, seed: int, start: int, count: int) -> Finding | None:
        """Call the kernel on `count` mutants, beginning with number `start`."""
        for side in self._sides:
            side[:] = CANARY
        own = np.uint64(seed), start, count, self.source, self._data, self._progress
        status = self._loop(self._where, *own, *self._arguments)
        if not status:
            return None
        what = "index out of bounds" if status == 1 else "a canary was overwritten"
        at = int(self._progress[0])
        return Finding(self.call.kernel.name, f"{what}, mutant {at}", self.mutant(seed, at))


def _frozen(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view


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
