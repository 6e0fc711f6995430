"""Types of parameters.

A kind validates the values of one type, and converts them to text and bytes. Numbers with a
fraction are binary32 on the wire. In Python, such a number is the float with the shortest decimal
of that binary32, so ``parse("mxnet-2bit:threshold=0.1").threshold == 0.1``, and encoder and
decoder still use the same binary32 number.
"""

from __future__ import annotations

import math
import numbers
import struct
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

import numpy as np

from gcodec.errors import Corrupt, ParameterError, Unsupported, suggestion
from gcodec.runtime.deferred import binary32 as binary32
from gcodec.wire.primitives import Reader, leb128


class Kind(Protocol):
    """A type of parameter."""

    nbytes: int  # maximum on the wire
    unsent: tuple[str, ...]  # words, such as "auto", for values that each message determines

    @property
    def allowed(self) -> str:
        """Description of the allowed values."""

    def check(self, name: str, value: object) -> Any:
        """Return the canonical form of `value`, or raise `ParameterError`."""

    def parse(self, name: str, text: str) -> Any:
        """Return the value of a text in a spec, or raise `ParameterError`."""

    def text(self, value: Any) -> str:
        """Return the text of a value in a spec."""

    def write(self, value: Any) -> bytes:
        """Return the bytes of a value."""

    def read(self, reader: Reader) -> Any:
        """Read a value."""


class Choice:
    """One of a few words; on the wire, its index as an append-only u8.

    Parameters
    ----------
    *sent : str
        Words with an index on the wire.
    unsent : tuple of str
        Words, such as ``"auto"``, for values that each message determines.
    """

    nbytes = 1

    def __init__(self, *sent: str, unsent: tuple[str, ...] = ()) -> None:
        self.sent = sent
        self.unsent = unsent
        self.words = (*sent, *unsent)
        self.allowed = "one of " + ", ".join(self.words)

    def check(self, name: str, value: object) -> str:
        """Return `value` if it is one of the words, or raise `ParameterError`."""
        if not isinstance(value, str) or value not in self.words:
            raise ParameterError.of(name, value, self.allowed + suggestion(value, self.words))
        return value

    parse = check

    def text(self, value: str) -> str:
        """Return the word."""
        return value

    def write(self, value: str) -> bytes:
        """Return the index of the word."""
        return bytes([self.sent.index(value)])

    def read(self, reader: Reader) -> str:
        """Read the index of a word."""
        index = reader.byte()
        if index >= len(self.sent):
            raise Unsupported(f"choice {index}, known are 0 to {len(self.sent) - 1}")
        return self.sent[index]


class Integer:
    """An integer, LEB128 on the wire. The numbers from 0 on denote the words, if there are any.

    Parameters
    ----------
    low, high : int
        Minimum and maximum, from 0 to 2**64 - 1.
    sent : tuple of str
        Words with a number on the wire, below the numbers of the integers.
    unsent : tuple of str
        Words, such as ``"auto"``, for values that each message determines.
    asked : int, optional
        Minimum in a spec, if it is larger than the minimum in messages; default: `low`.
    """

    def __init__(
        self,
        low: int,
        high: int,
        sent: tuple[str, ...] = (),
        unsent: tuple[str, ...] = (),
        asked: int | None = None,
    ) -> None:
        self.low, self.high = low, high
        self.asked = low if asked is None else asked
        self.sent = sent
        self.unsent = unsent
        self.words = (*unsent, *sent)
        self.allowed = " or ".join((*self.words, f"an integer from {self.asked} to {high}"))
        self.nbytes = len(leb128(high + len(sent)))

    def check(self, name: str, value: object) -> int | str:
        """Return an integer of the range or one of the words, or raise `ParameterError`."""
        if isinstance(value, str) and value in self.words:
            return value
        return check_integer(name, value, self.low, self.high, self.allowed)

    def check_asked(self, name: str, value: int | str) -> None:
        """Raise `ParameterError` for an integer that is allowed in messages, but not in specs."""
        if isinstance(value, int) and value < self.asked:
            raise ParameterError.of(name, value, self.allowed)

    def parse(self, name: str, text: str) -> int | str:
        """Return the integer of a Python literal, or the word."""
        if text in self.words:
            return text
        try:
            number = int(text, 0)
        except ValueError:
            raise ParameterError.of(name, text, self.allowed) from None
        return self.check(name, number)

    def text(self, value: int | str) -> str:
        """Return the decimal digits, or the word."""
        return str(value)

    def write(self, value: int | str) -> bytes:
        """Return the LEB128 bytes."""
        if isinstance(value, str):
            return leb128(self.sent.index(value))
        return leb128(value + len(self.sent))

    def read(self, reader: Reader) -> int | str:
        """Read an integer of the range, or a word."""
        number = reader.leb128()
        if number < len(self.sent):
            return self.sent[number]
        value = number - len(self.sent)
        if not self.low <= value <= self.high:
            raise Corrupt(f"{value} must be an integer from {self.low} to {self.high}")
        return value


class Float32:
    """A number, binary32 on the wire.

    Parameters
    ----------
    allowed : str
        Description of the allowed numbers.
    test : callable
        Returns whether a number is allowed; called before and after rounding to binary32.
    words : tuple of str
        Words, such as ``"auto"``, for numbers that each message determines.
    unset : float, optional
        Further number, which a codec has where the parameter is unset; a spec leaves it out.
    """

    nbytes = 4
    _layout = "<f"

    def __init__(
        self,
        allowed: str,
        test: Callable[[float], bool],
        words: tuple[str, ...] = (),
        unset: float | None = None,
    ) -> None:
        self.allowed = " or ".join((allowed, *words))
        self.test = test if unset is None else lambda number: number == unset or test(number)
        self.unset = unset
        self.words = self.unsent = words

    def check(self, name: str, value: object) -> float | str:
        """Return the canonical number or the word, or raise `ParameterError`."""
        if isinstance(value, str):
            if value in self.words:
                return value
        else:
            number = check_number(name, value, self.allowed)
            rounded = self._rounded(number)
            if self.test(number) and self.test(rounded):
                return self.unset if rounded == self.unset else rounded  # not −0
        raise ParameterError.of(name, value, self.allowed)

    def check_asked(self, name: str, value: float | str) -> None:
        """Raise `ParameterError` for the number that stands for an unset parameter."""
        if self.unset is not None and value == self.unset:
            raise ParameterError.of(name, value, self.allowed)

    def parse(self, name: str, text: str) -> float | str:
        """Return the number of a Python literal, or the word."""
        if text in self.words:
            return text
        try:
            number = float(text)
        except ValueError:
            raise ParameterError.of(name, text, self.allowed) from None
        return self.check(name, number)

    def text(self, value: float | str) -> str:
        """Return the shortest decimal of the number, or the word."""
        return value if isinstance(value, str) else repr(value)

    def write(self, value: float) -> bytes:
        """Return the bytes of the number."""
        return struct.pack(self._layout, value)

    def read(self, reader: Reader) -> float:
        """Read the bytes of a number."""
        value = self._rounded(struct.unpack(self._layout, reader.take(self.nbytes))[0])
        if not self.test(value):
            raise Corrupt(f"{value!r} must be {self.allowed}")
        return value

    def _rounded(self, value: float) -> float:
        return binary32(value)


class Float64(Float32):
    """A number, binary64 on the wire; see `Float32`."""

    nbytes = 8
    _layout = "<d"

    def _rounded(self, value: float) -> float:
        return value


class Sizes:
    """A few sizes, such as ``64x64`` in specs; on the wire, their number as u8 and LEB128 numbers.

    Parameters
    ----------
    most : int
        Maximum number of sizes.
    largest : int
        Maximum of each size.
    product : int
        Maximum of the product of all sizes.
    """

    unsent: tuple[str, ...] = ()

    def __init__(self, most: int, largest: int, product: int) -> None:
        self.most, self.largest, self.product = most, largest, product
        self.nbytes = 1 + most * len(leb128(largest))
        self.allowed = (
            f"1 to {most} sizes such as 64x64, each from 1 to {largest}, of at most {product} "
            "elements"
        )

    def check(self, name: str, value: object) -> tuple[int, ...]:
        """Return the sizes of a tuple, a list, an integer or a text, or raise `ParameterError`."""
        if isinstance(value, str):
            return self.parse(name, value)
        items = value if isinstance(value, (tuple, list)) else (value,)
        sizes = tuple(check_integer(name, size, 1, self.largest, self.allowed) for size in items)
        if not 1 <= len(sizes) <= self.most or math.prod(sizes) > self.product:
            raise ParameterError.of(name, value, self.allowed)
        return sizes

    def parse(self, name: str, text: str) -> tuple[int, ...]:
        """Return the sizes of a text such as ``64x64``."""
        parts = text.split("x")
        if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
            raise ParameterError.of(name, text, self.allowed)
        return self.check(name, tuple(map(int, parts)))

    def text(self, value: tuple[int, ...]) -> str:
        """Return the sizes, joined by the letter x."""
        return "x".join(map(str, value))

    def write(self, value: tuple[int, ...]) -> bytes:
        """Return the number of sizes, and the LEB128 bytes of each."""
        return bytes([len(value)]) + b"".join(map(leb128, value))

    def read(self, reader: Reader) -> tuple[int, ...]:
        """Read the number of sizes, and each size."""
        count = reader.byte()
        if not 1 <= count <= self.most:
            raise Corrupt(f"{count} sizes, must be {self.allowed}")
        sizes = tuple(reader.leb128() for _ in range(count))
        if not all(1 <= size <= self.largest for size in sizes) or math.prod(sizes) > self.product:
            raise Corrupt(f"{self.text(sizes)} must be {self.allowed}")
        return sizes


def check_integer(name: str, value: Any, low: int, high: int, allowed: str) -> int:
    """Return an integer from `low` to `high` as an int, or raise `ParameterError`."""
    integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not integer or not low <= value <= high:
        raise ParameterError.of(name, value, allowed)
    return int(value)


def check_choice(name: str, value: object, choices: Collection[object]) -> None:
    """Raise `ParameterError` unless a value is one of the choices, words or integers."""
    if not isinstance(value, (str, int, np.integer)) or value not in choices:
        raise ParameterError.of(name, value, f"one of {', '.join(map(str, choices))}")


def check_type(name: str, value: object, cls: type) -> None:
    """Raise `ParameterError` unless a value is an instance of a class."""
    if not isinstance(value, cls):
        raise ParameterError.of(name, value, f"a {cls.__name__}")


def check_mapping(name: str, value: object) -> None:
    """Raise `ParameterError` unless a value is a mapping."""
    if not isinstance(value, Mapping):
        raise ParameterError.of(name, value, "a mapping of names to arrays")


def check_flag(name: str, value: object) -> bool:
    """Return a bool, or raise `ParameterError`; a text such as "no" would count as true."""
    if not isinstance(value, bool):
        raise ParameterError.of(name, value, "True or False")
    return value


def check_number(name: str, value: object, allowed: str = "a number") -> float:
    """Return a real number as a float, or raise `ParameterError`."""
    if type(value) is float:  # the usual case
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ParameterError.of(name, value, allowed)
    try:
        return float(value)
    except OverflowError:
        raise ParameterError.of(name, value, allowed) from None


def check_float32(name: str, value: object) -> float:
    """Return a real number that is finite as float32, as a float, or raise `ParameterError`."""
    allowed = "a number, finite as float32"
    number = check_number(name, value, allowed)
    if not math.isfinite(binary32(number)):
        raise ParameterError.of(name, value, allowed)
    return number


def check_positive(
    name: str, value: object, allowed: str = "a number above 0", *, finite: bool = False
) -> float:
    """Return a number above 0, if need be a finite one, as a float, or raise `ParameterError`."""
    most = sys.float_info.max if finite else math.inf
    return check_between(name, value, math.nextafter(0, 1), most, allowed)


def check_between(name: str, value: object, low: float, high: float, allowed: str) -> float:
    """Return a real number from `low` to `high` as a float, or raise `ParameterError`."""
    number = check_number(name, value, allowed)
    if not low <= number <= high:  # NaN fails as well
        raise ParameterError.of(name, value, allowed)
    return number
