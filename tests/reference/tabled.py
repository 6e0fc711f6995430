"""Strings of the two codes that have a table: Huffman words, and rANS.

Source: ``docs/wire-format.md``, Huffman words and rANS. Symbols are places in an alphabet. A
*model* is what the table says of each: lengths or frequencies.
"""

from __future__ import annotations

from collections.abc import Sequence

from . import ans as rans
from . import canonical as huffman
from .seek import Table, lengths_of
from .universal import Bits, Truncated, to_text

KINDS = ("huffman", "rans")


def model_of(kind: str, places: Sequence[int], size: int) -> list[int]:
    """Return the model that gcodec makes for a string; an empty one without symbols."""
    counts = [0] * size
    for place in places:
        counts[place] += 1
    if not places:
        return []
    return rans.frequencies_of(counts) if kind == "rans" else huffman.lengths_of(counts)


def write(kind: str, places: Sequence[int], model: Sequence[int], sent: bool = True) -> str:
    """Return a string, after its table if the table is sent; the string begins at a whole byte."""
    if not places:
        return ""
    if kind == "rans":
        table = rans.table(model) if sent else ""
        return table + "0" * (-len(table) % 8) + to_text(rans.encode(places, model))
    words = huffman.words(model)
    return (huffman.table(model) if sent else "") + "".join(words[place] for place in places)


def read(
    kind: str, bits: Bits, count: int, size: int, agreed: Sequence[int] | None = None
) -> tuple[list[int], list[int]]:
    """Return the symbols of a string, and its model: the agreed model, or the transmitted one.

    The caller handles the bits after the last symbol.
    """
    if not count:
        return [], []
    if kind == "rans":
        model = rans.read_table(bits, size) if agreed is None else list(agreed)
        bits.fill()
        return rans.read(bits, count, model), model
    model = huffman.read_table(bits, size) if agreed is None else list(agreed)
    if len(bits.text) - bits.at < count * min(length for length in model if length):
        raise Truncated("fewer bits than the shortest words take")
    words = huffman.words(model)
    return [huffman.read_word(bits, words) for _ in range(count)], model


def seek_table(kind: str, places: Sequence[int], model: Sequence[int], log2_block: int) -> Table:
    """Return the seek table of a string whose blocks count symbols."""
    if kind == "rans":
        lengths, states = rans.blocks(places, model, log2_block)
        return Table(log2_block, lengths, None, states)
    words = huffman.words(model)
    return Table(log2_block, lengths_of([words[place] for place in places], log2_block), None)
