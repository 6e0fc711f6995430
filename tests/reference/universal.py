"""The seven universal codes, as strings of 0 and 1.

Source: ``docs/wire-format.md``, universal codes. A reader takes bits from the front. Bits that end
within a word are `Truncated` if the word of any number below 2**64 begins with them, otherwise
`Corrupt`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

LARGEST = 2**64 - 1


class Truncated(ValueError):
    """The bits end too early."""


class Corrupt(ValueError):
    """The bits contradict themselves or the specification."""


class Bits:
    """A position in a string of 0 and 1 that cannot pass the end."""

    def __init__(self, text: str, at: int = 0) -> None:
        self.text = text
        self.at = at

    def take(self, count: int) -> str:
        """Return the next ``count`` bits."""
        if count > len(self.text) - self.at:
            raise Truncated(f"{count} bits wanted at bit {self.at} of {len(self.text)}")
        piece = self.text[self.at : self.at + count]
        self.at += count
        return piece

    def number(self, count: int) -> int:
        """Return the next ``count`` bits as an integer, most significant bit first."""
        at = self.at
        if 0 < count <= len(self.text) - at:
            self.at += count
            return int(self.text[at : at + count], 2)
        return int(self.take(count) or "0", 2)

    def zeros(self) -> int:
        """Return the number of zeros before the next one, and pass that one too."""
        one = self.text.find("1", self.at)
        if one < 0:
            raise Truncated(f"no one from bit {self.at} of {len(self.text)} on")
        count = one - self.at
        self.at = one + 1
        return count

    def fill(self) -> None:
        """Pass the zeros up to a whole byte."""
        if "1" in self.take(-self.at % 8):
            raise Corrupt("fill that is not zero")


def fixed(n: int, width: int) -> str:
    """Return n in ``width`` bits."""
    assert 0 <= n < 1 << width
    return bin(1 << width | n)[3:]


def binary(n: int) -> str:
    """Return n without leading zeros."""
    return format(n, "b")


def zigzag(k: int) -> int:
    """Return 0 for 0, 2k − 1 for −k, 2k for +k."""
    return 2 * k if k >= 0 else -2 * k - 1


def unzigzag(z: int) -> int:
    """Return the number of `zigzag`."""
    return z // 2 if z % 2 == 0 else -(z // 2) - 1


# --- writers ------------------------------------------------------------------------------------


def unary(n: int) -> str:
    """Return n zeros, then a one."""
    return "0" * n + "1"


def gamma(n: int) -> str:
    """Return zeros, one fewer than n has bits; then n."""
    return "0" * (len(binary(n)) - 1) + binary(n)


def delta(n: int) -> str:
    """Return the number of bits of n in gamma; then n without its first bit."""
    return gamma(len(binary(n))) + binary(n)[1:]


def omega(n: int) -> str:
    """Return n, preceded by its number of bits less one, and so on, and followed by a zero."""
    word = "0"
    while n > 1:
        word = binary(n) + word
        n = len(binary(n)) - 1
    return word


def rice(n: int, k: int) -> str:
    """Return n div 2**k in unary; then the k low bits of n."""
    return unary(n >> k) + fixed(n & (1 << k) - 1, k)


def golomb(n: int, b: int) -> str:
    """Return n div b in unary; then n mod b in truncated binary."""
    width = (b - 1).bit_length()  # of b remainders: the least with 2**width >= b
    spare = (1 << width) - b  # so many of them take one bit less
    rest = n % b
    low = fixed(rest, width - 1) if rest < spare else fixed(rest + spare, width)
    return unary(n // b) + low


def expgolomb(n: int, k: int) -> str:
    """Return (n div 2**k) + 1 in gamma; then the k low bits of n."""
    return gamma((n >> k) + 1) + fixed(n & (1 << k) - 1, k)


# --- readers ------------------------------------------------------------------------------------


def _within(n: int) -> int:
    if n > LARGEST:
        raise Corrupt("a word of 2**64 or above")
    return n


def read_unary(bits: Bits) -> int:
    """Read a word of `unary`."""
    return bits.zeros()


def read_gamma(bits: Bits, most: int = 64) -> int:
    """Read a word of `gamma` for a number of at most ``most`` bits."""
    more = bits.zeros()
    if more >= most:
        raise Corrupt(f"a number of {more + 1} bits")
    return 1 << more | bits.number(more)


def read_delta(bits: Bits) -> int:
    """Read a word of `delta`."""
    width = read_gamma(bits, 7)
    if width > 64:
        raise Corrupt(f"a number of {width} bits")
    return 1 << (width - 1) | bits.number(width - 1)


def read_omega(bits: Bits) -> int:
    """Read a word of `omega`."""
    n = 1
    while bits.take(1) == "1":
        if n >= 64:
            raise Corrupt(f"a group of {n + 1} bits")
        n = 1 << n | bits.number(n)
    return n


def read_rice(bits: Bits, k: int) -> int:
    """Read a word of `rice`."""
    quotient = bits.zeros()
    return _within(quotient << k | bits.number(k))


def read_golomb(bits: Bits, b: int) -> int:
    """Read a word of `golomb`."""
    quotient = bits.zeros()
    width = (b - 1).bit_length()
    spare = (1 << width) - b
    rest = bits.number(width - 1) if width else 0
    if width and rest >= spare:
        rest = 2 * rest + bits.number(1) - spare
    return _within(quotient * b + rest)


def read_expgolomb(bits: Bits, k: int) -> int:
    """Read a word of `expgolomb`."""
    quotient = read_gamma(bits, 65) - 1
    return _within(quotient << k | bits.number(k))


def whole(read: Callable[[Bits], int], bits: Bits) -> int:
    """Read one word; distinguish a truncated word from bits that begin no word.

    Of all continuations of truncated bits, zeros give the smallest number; if the bits contain no
    one yet, a one must come first.
    """
    start = bits.at
    try:
        return read(bits)
    except Truncated as error:
        unfinished = error
    for rest in ("", "1"):
        try:
            read(Bits(bits.text[start:] + rest + "0" * 200))
        except ValueError:
            continue
        raise unfinished
    raise Corrupt("the bits begin no word")


# --- by name ------------------------------------------------------------------------------------

Writer = Callable[[int], str]
Reader = Callable[[Bits], int]

PLAIN: dict[str, tuple[Writer, Reader, int]] = {
    "unary": (unary, read_unary, 0),
    "gamma": (gamma, read_gamma, 1),
    "delta": (delta, read_delta, 1),
    "omega": (omega, read_omega, 1),
}


def parse(spec: str) -> tuple[Writer, Reader, int]:
    """Return writer, reader and smallest number of a code such as ``omega`` or ``rice:k=3``."""
    name, _, setting = spec.partition(":")
    if name in PLAIN:
        assert not setting
        return PLAIN[name]
    value = int(setting.partition("=")[2]) if setting else None
    if name == "rice":
        k = value or 0
        return lambda n: rice(n, k), lambda bits: read_rice(bits, k), 0
    if name == "golomb":
        b = 1 if value is None else value
        return lambda n: golomb(n, b), lambda bits: read_golomb(bits, b), 0
    assert name == "expgolomb"
    k = value or 0
    return lambda n: expgolomb(n, k), lambda bits: read_expgolomb(bits, k), 0


def encode(spec: str, values: Iterable[int]) -> str:
    """Return the concatenated words of ``values``."""
    write, _, _ = parse(spec)
    return "".join(write(value) for value in values)


def decode(spec: str, text: str, count: int) -> tuple[list[int], int]:
    """Return ``count`` values, and the following bit position."""
    _, read, _ = parse(spec)
    bits = Bits(text)
    return [whole(read, bits) for _ in range(count)], bits.at


def to_bytes(text: str) -> bytes:
    """Return a string of 0 and 1 as bytes, padded with zeros."""
    text += "0" * (-len(text) % 8)
    return int(text or "0", 2).to_bytes(len(text) // 8, "big")


def to_text(data: bytes) -> str:
    """Return bytes as a string of 0 and 1."""
    return bin(int.from_bytes(b"\1" + data, "big"))[3:]


def payload_bits(data: bytes, nbits: int) -> Bits:
    """Return the bits of a payload, whose last byte zeros fill."""
    if len(data) < (nbits + 7) // 8:
        raise Truncated("fewer bytes than bits")
    text = to_text(data)
    if "1" in text[nbits:] or len(data) != (nbits + 7) // 8:
        raise Corrupt("fill that is not zero")
    return Bits(text[:nbits])
