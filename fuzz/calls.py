"""Calls of kernels by decoders: record them, or redirect them to another function."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import gcodec
from fuzz.goldens import Golden, goldens
from gcodec.runtime.jit import Kernel


class Call(NamedTuple):
    """A call of a kernel during the decoding of a frame.

    Attributes
    ----------
    codec : str
        Name of the codec.
    kernel : Kernel
        The kernel.
    args : tuple
        Arguments before the call; arrays are copies.
    hostile : int
        Index of the argument that contains the payload or a part of it.
    """

    codec: str
    kernel: Kernel
    args: tuple[Any, ...]
    hostile: int


@contextlib.contextmanager
def redirected(call: Callable[[Kernel, tuple[Any, ...]], Any]) -> Iterator[None]:
    """Redirect the calls of all kernels to ``call(kernel, args)`` within a context."""
    own = Kernel.__call__
    Kernel.__call__ = lambda self, *args: call(self, args)  # type: ignore[method-assign]
    try:
        yield
    finally:
        Kernel.__call__ = own  # type: ignore[method-assign]


def recorded(golden: Golden) -> list[Call]:
    """Decode a frame; return the calls of kernels that received bytes of its payload."""
    data = np.frombuffer(golden.data, np.uint8)
    first = data.ctypes.data
    calls: list[Call] = []

    def call(kernel: Kernel, args: tuple[Any, ...]) -> Any:
        for i, value in enumerate(args):
            if isinstance(value, np.ndarray) and value.size:
                inside = first <= value.ctypes.data < first + data.size
                if inside and kernel.types[i].startswith("in "):
                    copies = (a.copy() if isinstance(a, np.ndarray) else a for a in args)
                    calls.append(Call(golden.codec, kernel, tuple(copies), i))
        return kernel.run(*args)

    with redirected(call):
        gcodec.decode(data.data, key=golden.key)
    return calls


def nbytes_of(call: Call) -> int:
    """Return the size in bytes of the payload argument of a call."""
    return int(call.args[call.hostile].nbytes)


def hostile_calls() -> list[Call]:
    """Return one call for each pair of a codec and a kernel that reads its payload."""
    calls: dict[tuple[str, str], Call] = {}
    for golden in goldens():
        for call in recorded(golden):
            pair = golden.codec, call.kernel.name
            if pair not in calls or nbytes_of(call) > nbytes_of(calls[pair]):
                calls[pair] = call
    return list(calls.values())


def by_codec() -> dict[str, list[Call]]:
    """Return the calls of `hostile_calls`, grouped by codec."""
    groups: dict[str, list[Call]] = {}
    for call in hostile_calls():
        groups.setdefault(call.codec, []).append(call)
    return groups
