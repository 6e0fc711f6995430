"""Run kernels as plain Python, which checks every index and permits measuring coverage.

Switching off Numba's compiler would not suffice: Python's integers do not wrap, NumPy's narrow
integers wrap too early, and a negative index counts from the end of an array. This module gives
numbers the semantics of the compiled code: uint64 wraps, and narrower integers are widened when
read and truncated when stored. An index out of bounds, a negative index and a shift by 64 or more
bits are errors.

Vector code that is only an optimization (`look_ahead` and `read_groups`) does nothing here,
because the scalar loops after it do all the work. A kernel with other vector code runs compiled.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from gcodec.runtime.jit import Intrinsic, Kernel, _Lazy, grouped

ALL = (1 << 64) - 1
HURRYING = ("look_ahead", "read_groups")


class OutOfBoundsError(IndexError):
    """An index with which compiled code would have accessed memory out of bounds."""


class NotPlainError(Exception):
    """A kernel contains vector code without a scalar equivalent."""


class U64(int):
    """A uint64 with wrapping arithmetic."""


def _wrapping(name: str) -> None:
    own = getattr(int, name)

    def operation(self: U64, other: Any = None) -> Any:
        if isinstance(other, (float, np.floating)):
            return NotImplemented
        amount = self if name in ("__rlshift__", "__rrshift__") else other
        if "shift" in name and not 0 <= int(amount) < 64:
            raise OutOfBoundsError(f"a shift by {int(amount)}")
        return U64((own(int(self)) if other is None else own(int(self), int(other))) & ALL)

    setattr(U64, name, operation)


for _name in ("add", "sub", "mul", "and", "or", "xor", "lshift", "rshift", "floordiv", "mod"):
    _wrapping(f"__{_name}__")
    _wrapping(f"__r{_name}__")
for _name in ("neg", "invert"):
    _wrapping(f"__{_name}__")


class Numbers:
    """The part of NumPy that kernels use: truncating conversions."""

    float32, float64, sqrt, floor, isfinite = (
        np.float32,
        np.float64,
        np.sqrt,
        np.floor,
        np.isfinite,
    )

    uint8 = staticmethod(lambda x: int(x) & 0xFF)
    uint16 = staticmethod(lambda x: int(x) & 0xFFFF)
    uint32 = staticmethod(lambda x: int(x) & 0xFFFFFFFF)
    uint64 = staticmethod(lambda x: U64(int(x) & ALL))
    int8 = staticmethod(lambda x: (int(x) & 0xFF ^ 1 << 7) - (1 << 7))
    int16 = staticmethod(lambda x: (int(x) & 0xFFFF ^ 1 << 15) - (1 << 15))
    int32 = staticmethod(lambda x: (int(x) & 0xFFFFFFFF ^ 1 << 31) - (1 << 31))
    int64 = staticmethod(lambda x: (int(x) & ALL ^ 1 << 63) - (1 << 63))

    def __getattr__(self, name: str) -> Any:
        raise NotPlainError(f"np.{name}")


class Checked:
    """A 1-d array that rejects negative indices and indices beyond its end."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.size = array, array.size
        self._kind = array.dtype.kind

    def __len__(self) -> int:
        return self.size

    def _at(self, index: Any) -> int:
        at = int(index)
        if not 0 <= at < self.size:
            raise OutOfBoundsError(f"index {at} of {self.size} elements")
        return at

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Checked(self.array[self._part(index)])
        value = self.array[self._at(index)]
        if self._kind == "f":
            return value
        return U64(value) if self.array.dtype == np.uint64 else int(value)

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, slice):
            part = self._part(index)
            self.array[part] = value.array if isinstance(value, Checked) else self._cut(value)
        else:
            self.array[self._at(index)] = self._cut(value)

    def view(self, kind: Callable[[Any], Any]) -> Checked:
        """Return a view of the same bytes with another dtype."""
        names = ("uint8", "uint16", "uint32", "uint64", "int32", "int64", "float32")
        (name,) = (name for name in names if getattr(Numbers, name) is kind)
        return Checked(self.array.view(name))

    def _part(self, index: slice) -> slice:
        """Return a slice, clipped to the array as in compiled code."""
        if index.step is not None or any(end is not None and end < 0 for end in _ends(index)):
            raise OutOfBoundsError(f"slice {index}")
        start, stop = (None if end is None else int(end) for end in _ends(index))
        return slice(start, stop)

    def _cut(self, value: Any) -> Any:
        if self._kind == "f":
            return value
        bits = 8 * self.array.itemsize
        value = int(value) & ((1 << bits) - 1)
        return value - (1 << bits) if self._kind == "i" and value >> (bits - 1) else value


def _ends(index: slice) -> tuple[Any, Any]:
    return index.start, index.stop


def _word(data: Checked, at: Any) -> int:
    """Return one byte of an eight-byte word, all of which must be in bounds."""
    data._at(at)
    data._at(int(at) + 7)
    return int(at)


def _load_word(data: Checked, at: Any) -> U64:
    at = _word(data, at)
    return U64(int.from_bytes(data.array[at : at + 8].tobytes(), "little"))


def _store_word(data: Checked, at: Any, word: Any) -> None:
    at = _word(data, at)
    data.array[at : at + 8] = np.frombuffer((int(word) & ALL).to_bytes(8, "little"), np.uint8)


def _leading_zeros(word: Any) -> U64:
    return U64(64 - int(word).bit_length())


def _trailing_zeros(word: Any) -> U64:
    return U64((int(word) & -int(word)).bit_length() - 1 if word else 64)


def _put(out: Checked, at: Any, acc: Any, have: Any, bits: Any, nbits: Any) -> Any:
    have += nbits
    acc |= U64(int(bits) << ((-int(have)) & 63) & ALL)
    return _put_behind(out, at, acc, have)


def _put_high(out: Checked, at: Any, acc: Any, have: Any, bits: Any, nbits: Any) -> Any:
    return _put_behind(out, at, acc | bits >> have, have + nbits)


def _put_behind(out: Checked, at: Any, acc: Any, have: Any) -> Any:
    _store_word(out, at, _swapped(acc))
    whole = int(have) & 56
    return U64(int(acc) << whole & ALL), U64(int(have) & 7), int(at) + (int(have) >> 3)


def _swapped(word: Any) -> U64:
    return U64(int.from_bytes((int(word) & ALL).to_bytes(8, "little"), "big"))


INTRINSICS: dict[str, Callable[..., Any]] = {
    "load_word": _load_word,
    "store_word": _store_word,
    "swapped": _swapped,
    "leading_zeros": _leading_zeros,
    "trailing_zeros": _trailing_zeros,
    "count_ones": lambda word: U64(bin(int(word)).count("1")),
    "high_product": lambda a, b: U64(int(a) * int(b) >> 64),
    "float_bits": lambda value: int(np.float32(value).view(np.uint32)),
    "bits_float": lambda bits: np.uint32(int(bits)).view(np.float32),
    "put": _put,
    "put_high": _put_high,
    **{name: lambda *args: None for name in HURRYING},
}


def _plain_value(value: Any) -> Any:
    if isinstance(value, _Lazy):
        return plain(value)
    if value is np:
        return Numbers()
    if isinstance(value, np.uint64):
        return U64(value)
    if isinstance(value, np.integer):
        return int(value)
    return Checked(value) if isinstance(value, np.ndarray) else value


REPLACED: dict[types.CodeType, types.CodeType] = {}
"""Code that is to run instead of other code; after a change `plain` must forget what it made."""


@functools.cache
def plain(lazy: _Lazy) -> Callable[..., Any]:
    """Return a kernel, or a function that kernels call, as a Python function.

    Raises
    ------
    NotPlainError
        If the kernel contains vector code without a scalar equivalent.
    """
    function = lazy.function
    if isinstance(lazy, Intrinsic):
        if function.__name__ not in INTRINSICS:
            raise NotPlainError(function.__name__)
        return INTRINSICS[function.__name__]
    assert isinstance(function, types.FunctionType)
    code = REPLACED.get(function.__code__, function.__code__)
    names = dict(function.__globals__)
    for name in function.__code__.co_names:
        if name in names:
            names[name] = _plain_value(names[name])
    own = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    values = (_plain_value(own[name].cell_contents) for name in code.co_freevars)
    cells = tuple(types.CellType(value) for value in values)
    return types.FunctionType(code, names, function.__name__, None, cells)


def codes_of(lazy: _Lazy) -> set[types.CodeType]:
    """Return the code objects of a function and of all its callees that run as plain Python."""
    if isinstance(lazy, Intrinsic):
        return set()
    function = lazy.function
    assert isinstance(function, types.FunctionType)
    names = (function.__globals__.get(name) for name in function.__code__.co_names)
    cells = (cell.cell_contents for cell in function.__closure__ or ())
    codes = {function.__code__}
    for value in (*names, *cells):
        if isinstance(value, _Lazy):
            codes |= codes_of(value)
    return codes


def supported(kernel: Kernel) -> bool:
    """Return whether a kernel can run as plain Python."""
    try:
        plain(kernel)
    except NotPlainError:
        return False
    return True


def call(kernel: Kernel, args: tuple[Any, ...]) -> Any:
    """Run a kernel as plain Python if possible, otherwise as compiled code."""
    if not supported(kernel):
        return kernel.run(*args)
    copies = []
    for value, word in zip(args, kernel.types, strict=True):
        if isinstance(value, np.ndarray):
            copies.append(Checked(value))
        elif word.startswith("float"):
            copies.append(np.float32(value) if word == "float32" else np.float64(value))
        else:
            copies.append(U64(value) if word == "uint64" else int(value))
    with np.errstate(all="ignore"):
        return plain(kernel)(*grouped(kernel.signature, copies))
