"""rANS of 32 lanes: tables of frequencies, strings, and the states within them.

Source: ``docs/wire-format.md``, rANS and seek tables. Symbols are places in an alphabet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .universal import Bits, Corrupt, fixed, to_text

LANES = 32
BLOCK = 1 << 18
FIRST = 1 << 16  # the least state, and that with which a writer begins
LEAST_LOG2, LARGEST_LOG2 = 12, 15


def table(frequencies: Sequence[int]) -> str:
    """Return a table of frequencies as it is sent."""
    log2 = sum(frequencies).bit_length() - 1
    assert sum(frequencies) == 1 << log2 and LEAST_LOG2 <= log2 <= LARGEST_LOG2
    text = fixed(log2, 4)
    for f in frequencies:
        b = f.bit_length()
        text += fixed(b, 4)
        if b:
            text += fixed(f - (1 << (b - 1)), b - 1)
    return text


def read_table(bits: Bits, size: int) -> list[int]:
    """Read a table of frequencies."""
    log2 = bits.number(4)
    if not LEAST_LOG2 <= log2 <= LARGEST_LOG2:
        raise Corrupt(f"frequencies of 2^{log2}")
    found = []
    for _ in range(size):
        b = bits.number(4)
        found.append((1 << (b - 1)) + bits.number(b - 1) if b else 0)
    if sum(found) != 1 << log2:
        raise Corrupt("frequencies of another sum")
    return found


def _sums(frequencies: Sequence[int]) -> tuple[int, list[int]]:
    """Return P, and the sum of the frequencies before each symbol."""
    starts = [sum(frequencies[:i]) for i in range(len(frequencies))]
    return sum(frequencies).bit_length() - 1, starts


def _encode_block(symbols: Sequence[int], frequencies: Sequence[int]) -> bytes:
    log2, starts = _sums(frequencies)
    states = [FIRST] * LANES
    backwards = []
    for i in reversed(range(len(symbols))):
        f, c = frequencies[symbols[i]], starts[symbols[i]]
        x = states[i % LANES]
        if x >= f * 2 ** (32 - log2):
            backwards.append(x % 2**16)
            x //= 2**16
        states[i % LANES] = 2**log2 * (x // f) + x % f + c
    head = b"".join(x.to_bytes(4, "little") for x in states)
    return head + b"".join(word.to_bytes(2, "little") for word in reversed(backwards))


def encode(symbols: Sequence[int], frequencies: Sequence[int]) -> bytes:
    """Return a string."""
    starts = range(0, len(symbols), BLOCK)
    return b"".join(_encode_block(symbols[at : at + BLOCK], frequencies) for at in starts)


def _integer(bits: Bits, nbytes: int) -> int:
    return int.from_bytes(bytes(bits.number(8) for _ in range(nbytes)), "little")


def _walk(
    bits: Bits, count: int, frequencies: Sequence[int]
) -> Iterator[tuple[int, int, list[int]]]:
    """Read symbol by symbol; with each, the bit behind what it took and the states."""
    log2, starts = _sums(frequencies)
    slots = [symbol for symbol, f in enumerate(frequencies) for _ in range(f)]
    states: list[int] = []
    for i in range(count):
        if i % BLOCK == 0:
            states = [_integer(bits, 4) for _ in range(LANES)]
            if min(states) < FIRST:
                raise Corrupt("a state that is too small")
        x = states[i % LANES]  # blocks are a multiple of the lanes
        r = x % 2**log2
        symbol = slots[r]
        x = frequencies[symbol] * (x // 2**log2) + r - starts[symbol]
        if x < FIRST:
            x = 2**16 * x + _integer(bits, 2)
        states[i % LANES] = x
        if (i + 1 == count or (i + 1) % BLOCK == 0) and states != [FIRST] * LANES:
            raise Corrupt("another state behind the last symbol")
        yield symbol, bits.at, states


def read(bits: Bits, count: int, frequencies: Sequence[int]) -> list[int]:
    """Read the symbols of a string."""
    return [symbol for symbol, _, _ in _walk(bits, count, frequencies)]


def blocks(
    symbols: Sequence[int], frequencies: Sequence[int], log2_block: int
) -> tuple[list[int], list[list[int]]]:
    """Return bits of each block of a seek table, and states of those within a block of rANS."""
    bits = Bits(to_text(encode(symbols, frequencies)))
    lengths: list[int] = []
    states = []
    start = 0
    for i, (_, end, now) in enumerate(_walk(bits, len(symbols), frequencies)):
        last = i + 1 == len(symbols)
        if last or (i + 1) % (1 << log2_block) == 0:
            lengths.append(end - start)
            start = end
            if not last and (i + 1) % BLOCK:
                states.append(list(now))
    return lengths, states


def frequencies_of(counts: Sequence[int], log2: int = LEAST_LOG2) -> list[int]:
    """Return frequencies of about these shares. (The text leaves them to the writer.)"""
    total = sum(counts)
    found = [max(1, count * 2**log2 // total) if count else 0 for count in counts]
    found[found.index(max(found))] += 2**log2 - sum(found)
    return found
