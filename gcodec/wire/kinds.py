"""Kinds of value that a parameter can have.

A kind knows one type of value: how it is checked, written as text and as bytes. Numbers with a
fraction are binary32 on the wire and kept as the Python float of their shortest decimal, so that
``parse("mxnet-2bit:threshold=0.1").threshold == 0.1`` and both sides still mean the same binary32.
"""

from __future__ import annotations

import math
import numbers
import struct
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from gcodec.errors import Corrupt, ParameterError, Unsupported
from gcodec.runtime.deferred import binary32 as binary32
from gcodec.wire.primitives import Reader, leb128


class Kind(Protocol):
    """A type of parameter."""

    nbytes: int  # most bytes on the wire
    unsent: tuple[str, ...]  # words that stand for what the message will say, never on the wire

    @property
    def allowed(self) -> str:
        """What values there are, in words."""

    def check(self, name: str, value: object) -> Any:
        """Return the canonical form of `value`, or raise `ParameterError`."""

    def parse(self, name: str, text: str) -> Any:
        """Return the value that `text` spells in a spec."""

    def text(self, value: Any) -> str:
        """Spell `value` as in a spec."""

    def write(self, value: Any) -> bytes:
        """Return the bytes of `value`."""

    def read(self, reader: Reader) -> Any:
        """Read a value."""


class Choice:
    """One of a few words; an append-only u8 on the wire, the place of the word.

    Parameters
    ----------
    *sent : str
        Words with a place on the wire.
    unsent : tuple of str
        Words that stand for what the message will say, such as ``"auto"``.
    """

    nbytes = 1

    def __init__(self, *sent: str, unsent: tuple[str, ...] = ()) -> None:
        self.sent = sent
        self.unsent = unsent
        self.words = (*sent, *unsent)

    @property
    def allowed(self) -> str:
        """The words."""
        return "one of " + ", ".join(self.words)

    def check(self, name: str, value: object) -> str:
        """Return `value` if it is one of the words."""
        if not isinstance(value, str) or value not in self.words:
            raise ParameterError.of(name, value, self.allowed)
        return value

    parse = check

    def text(self, value: str) -> str:
        """Return the word."""
        return value

    def write(self, value: str) -> bytes:
        """Return the place of the word."""
        return bytes([self.sent.index(value)])

    def read(self, reader: Reader) -> str:
        """Read the place of a word."""
        place = reader.uint(1)
        if place >= len(self.sent):
            raise Unsupported(f"choice {place}, known are 0 to {len(self.sent) - 1}")
        return self.sent[place]


class Integer:
    """An integer, LEB128 on the wire; where words may be sent, it is counted from behind them.

    Parameters
    ----------
    low, high : int
        The least and the largest; from 0 to 2**64 - 1.
    sent : tuple of str
        Words with a place on the wire, below those of the integers.
    unsent : tuple of str
        Words that stand for what the message will say, such as ``"auto"``.
    asked : int, optional
        The least that a spec may ask for, where messages can state less; default: `low`.
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
        self.nbytes = len(leb128(high + len(sent)))

    @property
    def allowed(self) -> str:
        """The words and the range."""
        return " or ".join((*self.words, f"an integer from {self.low} to {self.high}"))

    def check(self, name: str, value: object) -> int | str:
        """Return `value` if it is an integer of the range, or one of the words."""
        if isinstance(value, str) and value in self.words:
            return value
        return check_integer(name, value, self.low, self.high, self.allowed)

    def check_asked(self, name: str, value: int | str) -> None:
        """Raise `ParameterError` for an integer that messages can state, but no spec asks for."""
        if isinstance(value, int) and value < self.asked:
            allowed = f"an integer from {self.asked} to {self.high}"
            raise ParameterError.of(name, value, " or ".join((*self.words, allowed)))

    def parse(self, name: str, text: str) -> int | str:
        """Return the integer that a Python literal spells, or the word."""
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
        place = reader.leb128()
        if place < len(self.sent):
            return self.sent[place]
        value = place - len(self.sent)
        if not self.low <= value <= self.high:
            raise Corrupt(f"{value} must be {self.allowed}")
        return value


class Float32:
    """A number, binary32 on the wire.

    Parameters
    ----------
    allowed : str
        What values there are, in words.
    test : callable
        Whether a number is one of them, asked before and after rounding to binary32.
    words : tuple of str
        Words that stand for a number which the message will carry, such as ``"auto"``.
    """

    nbytes = 4
    _layout = "<f"

    def __init__(
        self, allowed: str, test: Callable[[float], bool], words: tuple[str, ...] = ()
    ) -> None:
        self.allowed = " or ".join((allowed, *words))
        self.test = test
        self.words = self.unsent = words

    def check(self, name: str, value: object) -> float | str:
        """Return the canonical number, or the word."""
        if isinstance(value, str):
            if value in self.words:
                return value
        else:
            number = check_number(name, value, self.allowed)
            rounded = self._rounded(number)
            if self.test(number) and self.test(rounded):
                return rounded
        raise ParameterError.of(name, value, self.allowed)

    def parse(self, name: str, text: str) -> float | str:
        """Return the number that a Python literal spells, or the word."""
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
    """A few sizes, ``64x64`` in specs; on the wire a byte that counts them, and LEB128 each.

    Parameters
    ----------
    most : int
        How many there are at most.
    largest : int
        Of one.
    product : int
        The largest of all of them.
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
        """Return the sizes, given as a tuple, a list, one integer, or text."""
        if isinstance(value, str):
            return self.parse(name, value)
        sizes = value if isinstance(value, (tuple, list)) else (value,)
        found = tuple(check_integer(name, size, 1, self.largest, self.allowed) for size in sizes)
        if not 1 <= len(found) <= self.most or math.prod(found) > self.product:
            raise ParameterError.of(name, value, self.allowed)
        return found

    def parse(self, name: str, text: str) -> tuple[int, ...]:
        """Return the sizes between the letters x."""
        parts = text.split("x")
        if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
            raise ParameterError.of(name, text, self.allowed)
        return self.check(name, tuple(map(int, parts)))

    def text(self, value: tuple[int, ...]) -> str:
        """Return the sizes with the letter x between them."""
        return "x".join(map(str, value))

    def write(self, value: tuple[int, ...]) -> bytes:
        """Return the number of sizes, and the LEB128 bytes of each."""
        return bytes([len(value)]) + b"".join(map(leb128, value))

    def read(self, reader: Reader) -> tuple[int, ...]:
        """Read how many sizes there are, and each."""
        count = reader.uint(1)
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


def check_number(name: str, value: object, allowed: str = "a number") -> float:
    """Return a real number as a float, or raise `ParameterError`."""
    if type(value) is float:  # as most are
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ParameterError.of(name, value, allowed)
    try:
        return float(value)
    except OverflowError:
        raise ParameterError.of(name, value, allowed) from None


def check_between(name: str, value: object, low: float, high: float, allowed: str) -> float:
    """Return a real number from `low` to `high` as a float, or raise `ParameterError`."""
    number = check_number(name, value, allowed)
    if not low <= number <= high:  # NaN fails as well
        raise ParameterError.of(name, value, allowed)
    return number
