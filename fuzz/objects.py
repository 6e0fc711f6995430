"""The target that decodes damaged objects of other systems, and the mutator of objects."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

import gcodec
from bench.interop_rows import CALLS, Call
from fuzz.promises import promise

DTYPES = [
    np.dtype(each)
    for each in (
        *(np.float32, np.float16, np.float64, np.complex64, np.bool_, ">f4", ">i8", object, "U3"),
        *(np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64),
        *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn),
    )
]
FLOATS = (0.0, -0.0, 1.0, -1.0, float("nan"), float("inf"), -float("inf"), 1e-45, 3e38, 1e300)
INTEGERS = (0, 1, -1, 2, 7, 8, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, -(2**31), 2**63 - 1, 10**30)
TEXTS = ("", "w", "float32", "int8", "bfloat16", "\ud800", "x" * 300)
OTHERS: tuple[Any, ...] = (None, 3, 0.5, "x", b"x", [], {})
Path = tuple[Any, ...]
_IMPOSSIBLE = ValueError, TypeError, IndexError, OverflowError, Warning  # changes of an array


def interop(data: bytes) -> None:
    """Decode a damaged message of another system.

    The first byte selects the system; the others are the seed of the damage to a message of it.
    """
    if not data:
        return
    call = CALLS[data[0] % len(CALLS)]
    message, inputs = _valid(data[0] % len(CALLS))
    damaged = mutant(message, random.Random(data[1:]))
    refusals: tuple[type[Exception], ...] = (gcodec.FormatError,)
    if call.sent == "weights":  # patches name tensors of the caller's base, which may lack them
        refusals = (gcodec.FormatError, gcodec.ParameterError)
    if _type_of(damaged) != _type_of(message):
        refusals = (gcodec.FormatError, gcodec.ParameterError, TypeError)
    with contextlib.suppress(*refusals):
        decoded = call.decode(damaged, inputs)
        promise(
            isinstance(decoded, (np.ndarray, dict)), "decode returns an array, or some by name"
        )


def _type_of(message: Any) -> tuple[Any, ...]:
    return type(message), getattr(message, "dtype", None)


@functools.cache
def _valid(number: int) -> tuple[Any, tuple[Any, ...]]:
    """Return a message of a system, and what was encoded."""
    call: Call = CALLS[number]
    x = np.random.default_rng(number).standard_normal((16, 64), dtype=np.float32)
    inputs = call.inputs(x.reshape(-1) if call.sent in ("flat", "part") else x)
    message = call.encode(inputs)
    call.decode(message, inputs)
    return message, inputs


def mutant(message: Any, rng: random.Random) -> Any:
    """Return a message of bytes, arrays, numbers, texts and containers with a few changes."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        path = rng.choice(list(_paths(message)))
        message = _put(message, path, _changed(_part(message, path), rng))
    return message


def _paths(message: Any, path: Path = ()) -> Iterator[Path]:
    yield path
    if isinstance(message, dict):
        for key, value in message.items():
            yield from _paths(value, (*path, key))
    elif isinstance(message, (list, tuple)):
        for index, value in enumerate(message):
            yield from _paths(value, (*path, index))


def _part(message: Any, path: Path) -> Any:
    for key in path:
        message = message[key]
    return message


def _put(message: Any, path: Path, value: Any) -> Any:
    """Return a message with another part; the message itself remains."""
    if not path:
        return value
    key, *rest = path
    changed = _put(message[key], tuple(rest), value)
    if isinstance(message, dict):
        return {**message, key: changed}
    items = [*message[:key], changed, *message[key + 1 :]]
    if hasattr(message, "_fields"):
        return type(message)(*items)
    return type(message)(items)


def _changed(part: Any, rng: random.Random) -> Any:
    if rng.random() < 0.1:
        return rng.choice(OTHERS)
    if isinstance(part, (bytes, bytearray)):
        return _changed_bytes(part, rng)
    if isinstance(part, np.ndarray):
        with contextlib.suppress(*_IMPOSSIBLE), np.errstate(all="ignore"):
            return _changed_array(part, rng).copy()
        return part
    if isinstance(part, dict) and part:
        return _changed_mapping(part, rng)
    if isinstance(part, (list, tuple)) and part and not hasattr(part, "_fields"):
        items = list(part)
        items[rng.randrange(len(items))] = rng.choice(items)
        return type(part)(rng.choice((items, items[:-1], items * 2)))
    if isinstance(part, int):
        return rng.choice((*INTEGERS, part + 1, part - 1, 2 * part, float(part), str(part)))
    return rng.choice(FLOATS if isinstance(part, float) else TEXTS)


def _changed_bytes(part: bytes | bytearray, rng: random.Random) -> bytes:
    data, at = bytearray(part), rng.randrange(len(part) + 1)
    width = rng.choice((1, 2, 4, 8))
    match rng.randrange(3):
        case 0 if at < len(part):
            data[at] ^= 1 << rng.randrange(8)
        case 1:
            del data[at : at + rng.choice((1, 4, len(part)))]
        case _:
            number = rng.choice(INTEGERS) % (1 << 8 * width)
            data[at : at + width] = number.to_bytes(width, "little")
    return bytes(data)


def _changed_array(part: np.ndarray, rng: random.Random) -> np.ndarray:
    match rng.randrange(7):
        case 0:
            return part.astype(rng.choice(DTYPES))
        case 1:
            return part.reshape(rng.choice(((-1,), (1, *part.shape), (-1, 2))))
        case 2:
            return part[..., : rng.choice((0, -1))]
        case 3:
            return np.concatenate([part.reshape(-1), part.reshape(-1)[: rng.randrange(5)]])
        case 4:
            return part[..., ::-1]
        case _:
            changed = part.copy()
            numbers = INTEGERS if part.dtype.kind in "iu" else FLOATS
            for _ in range(rng.choice((1, 1, 3))):
                at, number = rng.randrange(part.size), np.array([rng.choice(numbers)])
                changed.reshape(-1)[at : at + 1] = number.astype(part.dtype)
            return changed


def _changed_mapping(part: dict[Any, Any], rng: random.Random) -> dict[Any, Any]:
    changed, keys = dict(part), list(part)
    first, second = rng.choice(keys), rng.choice(keys)
    match rng.randrange(3):
        case 0:
            del changed[first]
        case 1:
            changed[rng.choice(("", "x", 0, None))] = changed[first]
        case _:
            changed[first], changed[second] = changed[second], changed[first]
    return changed
