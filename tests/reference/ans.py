"""rANS: frequency tables, strings, and the states within strings.

Source: ``docs/wire-format.md``, rANS, seek tables and context strings. Symbols are indices into an
alphabet. A *model* is a list of frequencies. Strings with a single model have 32 lanes; strings
with a model for each symbol have the given number of lanes.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterator, Sequence

from .universal import Bits, Corrupt, fixed, to_text

LANES = 32
BLOCK = 1 << 18
FIRST = 1 << 16  # the least state, and that with which a writer begins
LEAST_LOG2, LARGEST_LOG2 = 12, 15

Model = Sequence[int]


def number(f: int) -> str:
    """Return the code of a frequency: its number of bits, then its bits after the leading one."""
    b = f.bit_length()
    return fixed(b, 4) + (fixed(f - (1 << (b - 1)), b - 1) if b else "")


def read_number(bits: Bits) -> int:
    """Read a frequency written by `number`."""
    b = bits.number(4)
    return (1 << (b - 1)) + bits.number(b - 1) if b else 0


def table(frequencies: Model) -> str:
    """Return the bits of a frequency table."""
    log2 = sum(frequencies).bit_length() - 1
    assert sum(frequencies) == 1 << log2 and LEAST_LOG2 <= log2 <= LARGEST_LOG2
    return fixed(log2, 4) + "".join(number(f) for f in frequencies)


def read_table(bits: Bits, size: int) -> list[int]:
    """Read a frequency table."""
    log2 = bits.number(4)
    if not LEAST_LOG2 <= log2 <= LARGEST_LOG2:
        raise Corrupt(f"frequencies of 2^{log2}")
    decoded = [read_number(bits) for _ in range(size)]
    if sum(decoded) != 1 << log2:
        raise Corrupt("frequencies of another sum")
    return decoded


class _Sums:
    """A model with P, and the sum of the frequencies before each symbol."""

    def __init__(self, frequencies: Model) -> None:
        self.each = frequencies
        self.starts = list(itertools.accumulate(frequencies, initial=0))
        self.log2 = self.starts[-1].bit_length() - 1

    def symbol(self, r: int) -> int:
        """Return the last symbol whose sum is at most r, the only one with a frequency above 0."""
        return bisect.bisect_right(self.starts, r) - 1


def _sums(models: Sequence[Model]) -> list[_Sums]:
    """Return the sums of the model of each symbol, computed once per model."""
    results: dict[int, _Sums] = {}
    for model in models:
        if id(model) not in results:
            results[id(model)] = _Sums(model)
    return [results[id(model)] for model in models]


def _encode_block(symbols: Sequence[int], models: Sequence[_Sums], lanes: int) -> bytes:
    states = [FIRST] * lanes
    backwards = []
    for i in reversed(range(len(symbols))):
        model = models[i]
        f, c = model.each[symbols[i]], model.starts[symbols[i]]
        x = states[i % lanes]
        if x >= f * 2 ** (32 - model.log2):
            backwards.append(x % 2**16)
            x //= 2**16
        states[i % lanes] = 2**model.log2 * (x // f) + x % f + c
    head = b"".join(x.to_bytes(4, "little") for x in states)
    return head + b"".join(word.to_bytes(2, "little") for word in reversed(backwards))


def encode_each(symbols: Sequence[int], models: Sequence[Model], lanes: int) -> bytes:
    """Return a string with a model for each symbol."""
    assert len(symbols) == len(models)
    sums, starts = _sums(models), range(0, len(symbols), BLOCK)
    return b"".join(
        _encode_block(symbols[at : at + BLOCK], sums[at : at + BLOCK], lanes) for at in starts
    )


def encode(symbols: Sequence[int], frequencies: Model) -> bytes:
    """Return a string with a single model."""
    return encode_each(symbols, [frequencies] * len(symbols), LANES)


def _integer(bits: Bits, nbytes: int) -> int:
    return int.from_bytes(bits.number(8 * nbytes).to_bytes(nbytes, "big"), "little")


def _walk(bits: Bits, models: Sequence[Model], lanes: int) -> Iterator[tuple[int, int, list[int]]]:
    """Read symbol by symbol; yield each with the following bit position and the states."""
    sums = _sums(models)
    return _walk_by(bits, len(sums), sums.__getitem__, lanes)


def _walk_by(
    bits: Bits, count: int, model_at: Callable[[int], _Sums], lanes: int
) -> Iterator[tuple[int, int, list[int]]]:
    """Read symbol by symbol, with models that depend on the preceding symbols."""
    states = [FIRST] * lanes
    for i in range(count):
        model = model_at(i)
        if i % BLOCK == 0:
            states = [_integer(bits, 4) for _ in range(lanes)]
            if min(states) < FIRST:
                raise Corrupt("a state that is too small")
        x = states[i % lanes]  # blocks are a multiple of the lanes
        r = x % 2**model.log2
        symbol = model.symbol(r)
        x = model.each[symbol] * (x // 2**model.log2) + r - model.starts[symbol]
        if x < FIRST:
            x = 2**16 * x + _integer(bits, 2)
        states[i % lanes] = x
        if (i + 1 == count or (i + 1) % BLOCK == 0) and states != [FIRST] * lanes:
            raise Corrupt("another state after the last symbol")
        yield symbol, bits.at, states


def read_each(bits: Bits, models: Sequence[Model], lanes: int) -> list[int]:
    """Read the symbols of a string with a model for each symbol."""
    return [symbol for symbol, _, _ in _walk(bits, models, lanes)]


def read_path(
    bits: Bits, count: int, model_at: Callable[[int], Model], lanes: int
) -> Iterator[int]:
    """Read symbols whose models depend on the preceding symbols."""
    results: dict[int, _Sums] = {}

    def sums_at(i: int) -> _Sums:
        model = model_at(i)
        return results.setdefault(id(model), _Sums(model))

    for symbol, _, _ in _walk_by(bits, count, sums_at, lanes):
        yield symbol


def read(bits: Bits, count: int, frequencies: Model) -> list[int]:
    """Read the symbols of a string with a single model."""
    return read_each(bits, [frequencies] * count, LANES)


def blocks_each(
    symbols: Sequence[int], models: Sequence[Model], log2_block: int
) -> tuple[list[int], list[list[int]]]:
    """Return bits of each block of a seek table, and states of the blocks within a rANS block."""
    bits = Bits(to_text(encode_each(symbols, models, LANES)))
    lengths: list[int] = []
    states = []
    start = 0
    for i, (_, end, now) in enumerate(_walk(bits, models, LANES)):
        last = i + 1 == len(symbols)
        if last or (i + 1) % (1 << log2_block) == 0:
            lengths.append(end - start)
            start = end
            if not last and (i + 1) % BLOCK:
                states.append(list(now))
    return lengths, states


def blocks(
    symbols: Sequence[int], frequencies: Model, log2_block: int
) -> tuple[list[int], list[list[int]]]:
    """Return the results of `blocks_each` for a string with a single model."""
    return blocks_each(symbols, [frequencies] * len(symbols), log2_block)


def frequencies_of(counts: Sequence[int], log2: int = LEAST_LOG2) -> list[int]:
    """Return frequencies proportional to counts. (The specification leaves them to the writer.)"""
    total = sum(counts)
    actual = [max(1, count * 2**log2 // total) if count else 0 for count in counts]
    actual[actual.index(max(actual))] += 2**log2 - sum(actual)
    return actual
