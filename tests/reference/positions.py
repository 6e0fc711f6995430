"""Positions of sent elements, in all five codes, as strings of 0 and 1.

Source: ``docs/wire-format.md``, positions and seek tables. Positions are increasing lists from 0.
The free *choice* of a writer is the Rice parameters or the table of a string.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from . import tabled
from .seek import Table, lengths_of
from .universal import Bits, Corrupt, Truncated, fixed, rice, unary

CODES = ("rice", "eliasfano", "bitmap", "rans", "huffman")
LARGEST_RICE = 61
RICE_BLOCK = 32  # positions with one parameter
WHOLE = 128  # blocks from one parameter that is sent whole to the next
LEAST_LOG2_RICE = 12  # of the blocks of a seek table

Positions = list[int]


def gaps(positions: Sequence[int]) -> list[int]:
    """Return the number of elements between each position and its predecessor, or the start."""
    return [b - a - 1 for a, b in itertools.pairwise([-1, *positions])]


# --- rice ---------------------------------------------------------------------------------------


def shortest_rice(part: Sequence[int]) -> list[int]:
    """Return the parameters that minimize the words of some gaps."""
    sizes = [sum((g >> r) + 1 + r for g in part) for r in range(LARGEST_RICE + 1)]
    return [r for r, size in enumerate(sizes) if size == min(sizes)]


def rice_parameters(positions: Sequence[int]) -> list[int]:
    """Return for each block the least parameter that minimizes its words."""
    actual = gaps(positions)
    starts = range(0, len(actual), RICE_BLOCK)
    return [shortest_rice(actual[at : at + RICE_BLOCK])[0] for at in starts]


def _step(d: int) -> str:
    """Return the word of the difference of two parameters."""
    return unary(2 * d - 1 if d > 0 else -2 * d)


def rice_words(positions: Sequence[int], parameters: Sequence[int]) -> list[str]:
    """Return the bits of each position, including those of a preceding parameter."""
    words = []
    for i, g in enumerate(gaps(positions)):
        block = i // RICE_BLOCK
        r = parameters[block]
        head = ""
        if i % RICE_BLOCK == 0:
            head = fixed(r, 6) if block % WHOLE == 0 else _step(r - parameters[block - 1])
        words.append(head + rice(g, r))
    return words


def _read_rice(bits: Bits, k: int, n: int) -> Positions:
    positions: Positions = []
    r, last = 0, -1
    for i in range(k):
        block = i // RICE_BLOCK
        if i % RICE_BLOCK == 0:
            if block % WHOLE == 0:
                r = bits.number(6)
            else:
                zeros = bits.zeros()
                r += (zeros + 1) // 2 if zeros % 2 else -(zeros // 2)
            if not 0 <= r <= LARGEST_RICE:
                raise Corrupt(f"the parameter {r}")
        quotient = bits.zeros()
        last += 1 + quotient * 2**r + bits.number(r)
        if last >= n:
            raise Corrupt(f"the position {last} of {n}")
        positions.append(last)
    return positions


# --- eliasfano ----------------------------------------------------------------------------------


def low_width(k: int, n: int) -> int:
    """Return the number of low bits that are stored verbatim for each of k positions."""
    w = 0
    while k * 2 ** (w + 1) <= n:
        w += 1
    return w


def _upper_words(positions: Sequence[int], w: int) -> list[str]:
    uppers = [p >> w for p in positions]
    return [unary(b - a) for a, b in itertools.pairwise([0, *uppers])]


def _read_eliasfano(bits: Bits, k: int, n: int) -> Positions:
    w = low_width(k, n)
    if k * (w + 1) > len(bits.text) - bits.at:
        raise Truncated("fewer bits than the positions have at least")
    lows = [bits.number(w) for _ in range(k)]
    positions: Positions = []
    upper, last = 0, -1
    for low in lows:
        upper += bits.zeros()
        p = upper * 2**w + low
        if p <= last or p >= n:
            raise Corrupt(f"the position {p} of {n} behind {last}")
        positions.append(p)
        last = p
    return positions


# --- bitmap -------------------------------------------------------------------------------------


def _read_bitmap(bits: Bits, k: int, n: int) -> Positions:
    if n > len(bits.text) - bits.at:
        raise Truncated("fewer bits than elements")
    actual = [i for i, bit in enumerate(bits.take(n)) if bit == "1"]
    if len(actual) != k:
        raise Corrupt(f"{len(actual)} ones for {k} positions")
    return actual


# --- rans, huffman ------------------------------------------------------------------------------


def class_of(v: int) -> tuple[int, int]:
    """Return the class of a distance, and the number of its bits after the string."""
    if v < 4:
        return v - 1, 0
    b = v.bit_length() - 3
    return 4 * b + 3 + (v >> b) % 4, b


def distance_of(c: int, low: str) -> int:
    """Return the distance with a class and these low bits."""
    if c < 3:
        return c + 1
    b, m = divmod(c - 3, 4)
    assert len(low) == b
    return (4 + m << b) + int(low or "0", 2)


def nbits_of(c: int) -> int:
    """Return the number of bits after the string for each distance of a class."""
    return 0 if c < 3 else (c - 3) // 4


def classes(positions: Sequence[int]) -> list[int]:
    """Return the class of each distance."""
    return [class_of(g + 1)[0] for g in gaps(positions)]


def class_count(n: int) -> int:
    """Return the size of the alphabet."""
    return class_of(n)[0] + 1


def _tails(positions: Sequence[int]) -> str:
    tails = ""
    for g in gaps(positions):
        _, b = class_of(g + 1)
        tails += fixed((g + 1) % 2**b, b)
    return tails


def _read_classes(code: str, bits: Bits, k: int, n: int) -> Positions:
    decoded, _ = tabled.read(code, bits, k, class_count(n))
    last, positions = -1, []
    for c in decoded:
        last += distance_of(c, bits.take(nbits_of(c)))
        if last >= n:
            raise Corrupt(f"the position {last} of {n}")
        positions.append(last)
    return positions


# --- all ----------------------------------------------------------------------------------------


def choice_of(code: str, positions: Sequence[int], n: int) -> list[int]:
    """Return a choice: Rice parameters, the lengths that gcodec makes, or valid frequencies."""
    if code == "rice":
        return rice_parameters(positions)
    if code in tabled.KINDS and positions:
        return tabled.model_of(code, classes(positions), class_count(n))
    return []


def write(
    code: str, positions: Sequence[int], n: int, choice: Sequence[int] | None = None, at: int = 0
) -> str:
    """Return the string of positions.

    Parameters
    ----------
    choice
        Rice parameters, lengths or frequencies; by default those of `choice_of`.
    at
        Number of payload bits before the string.
    """
    k = len(positions)
    if k == 0:
        return ""
    chosen = choice_of(code, positions, n) if choice is None else choice
    if code == "rice":
        return "".join(rice_words(positions, chosen))
    if code == "eliasfano":
        w = low_width(k, n)
        lows = "".join(fixed(p % 2**w, w) for p in positions)
        return lows + "".join(_upper_words(positions, w))
    if code == "bitmap":
        sent = set(positions)
        return "".join("1" if i in sent else "0" for i in range(n))
    if code == "rans":
        head = tabled.rans.table(chosen)
        head += "0" * (-(at + len(head)) % 8)
        string = tabled.write(code, classes(positions), chosen, sent=False)
        return head + string + _tails(positions)
    assert code == "huffman"
    return tabled.write(code, classes(positions), chosen) + _tails(positions)


def read(code: str, bits: Bits, k: int, n: int) -> Positions:
    """Read k positions from the position of ``bits`` to the end of the bits.

    Raises
    ------
    Truncated, Corrupt
        If both kinds of defects occur, either error.
    """
    if k > n:
        raise Corrupt(f"{k} positions of {n}")
    results: Positions = []
    if k:
        if code == "rice":
            results = _read_rice(bits, k, n)
        elif code == "eliasfano":
            results = _read_eliasfano(bits, k, n)
        elif code == "bitmap":
            results = _read_bitmap(bits, k, n)
        else:
            assert code in tabled.KINDS
            results = _read_classes(code, bits, k, n)
    if bits.at != len(bits.text):
        raise Corrupt("bits after the last position")
    return results


def seek_table(
    code: str, positions: Sequence[int], n: int, choice: Sequence[int], log2_block: int
) -> Table:
    """Return the seek table of a string with at least one position, written with this choice."""
    if code == "rans":
        return tabled.seek_table(code, classes(positions), choice, log2_block)
    if code == "rice":
        assert log2_block >= LEAST_LOG2_RICE
        words = rice_words(positions, choice)
    elif code == "eliasfano":
        words = _upper_words(positions, low_width(len(positions), n))
    else:
        assert code == "huffman"
        of = tabled.huffman.words(choice)
        words = [of[c] for c in classes(positions)]
    ends = [*positions[(1 << log2_block) - 1 :: 1 << log2_block]]
    if len(positions) % (1 << log2_block):
        ends.append(positions[-1])
    advances = [b - a for a, b in itertools.pairwise([-1, *ends])]
    return Table(log2_block, lengths_of(words, log2_block), advances)
