"""The protocol of coded strings: each coder reads its own strings and checks its seek table."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gcodec import Corrupt, Truncated
from gcodec.entropy import huffman, tabled
from gcodec.entropy.coder import (
    BitSpan,
    CodedString,
    EmptyString,
    WordString,
    Written,
    ignore,
    into,
    seek_of_blocks,
)
from gcodec.entropy.context import symbol_coder
from gcodec.entropy.tabled import Table
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.numeric.byte_counts import byte_counts
from gcodec.kernels.prefix import dense_string, level_codes
from gcodec.wire.seek import SeekTable

N, LARGEST = 70_000, 9
ALPHABET = np.arange(LARGEST + 1, dtype=np.uint8)
ALL_CODED = CodedMask.all(N)
OMEGA_CODE = level_codes.word_code("omega", LARGEST // 2, {})
Open = Callable[[BitSpan], CodedString]


def symbols() -> np.ndarray:
    levels = np.rint(np.random.default_rng(0).laplace(0, 0.8, N)).clip(-4, 4).astype(np.int64)
    return (2 * np.abs(levels) + (levels < 0)).astype(np.uint8)


def written_and_opener(kind: str) -> tuple[Written, Open]:
    """Return a coded string of the symbols, and the function that opens it."""
    x = symbols()
    if kind == "words":
        data, nbits, offsets = dense_string.write(OMEGA_CODE, x, x.dtype, ALL_CODED, 4096, 0)
        written = Written(data, nbits, seek_of_blocks(N, nbits, offsets))
        return written, lambda span: WordString(span, OMEGA_CODE, ALL_CODED)
    if kind == "context":
        written = symbol_coder.write(x, (70, 1000), BitString())
        return written, lambda span: symbol_coder.open(span, N, LARGEST)
    table = Table.own(kind, byte_counts(x), ALPHABET)  # type: ignore[arg-type]
    written = tabled.write(table, x, ALL_CODED, BitString(), N)
    return written, lambda span: tabled.open(table.kind, span, ALPHABET, ALL_CODED)


def span_of(written: Written, seek: SeekTable | None, extra_bytes: int = 0) -> BitSpan:
    data = np.append(written.data, np.zeros(extra_bytes, np.uint8))
    return BitSpan(data, 0, written.nbits + 8 * extra_bytes, seek)


@pytest.mark.parametrize("kind", ["words", "huffman", "rans", "context"])
def test_every_coder_reads_what_it_wrote(kind: str) -> None:
    written, open_string = written_and_opener(kind)
    scanned_seek = open_string(span_of(written, None)).blocks(13)
    for seek in (None, written.seek, scanned_seek):
        out = np.empty(N, np.uint8)
        assert open_string(span_of(written, seek)).read(into(out)) == written.nbits
        np.testing.assert_array_equal(out, symbols())
    extended = open_string(span_of(written, None, extra_bytes=40))
    assert extended.read(ignore, bits_follow=True) == written.nbits
    with pytest.raises(Corrupt, match="after its last codeword"):
        extended.read(ignore)
    with pytest.raises(Corrupt, match="after its last codeword"):
        extended.read_range(N - 1, N, ignore)


@pytest.mark.parametrize("kind", ["words", "huffman", "rans", "context"])
def test_every_coder_checks_its_seek_table(kind: str) -> None:
    written, open_string = written_and_opener(kind)
    table = open_string(span_of(written, None)).blocks(13)
    with pytest.raises(Corrupt, match="the seek table has"):
        open_string(span_of(written, table, extra_bytes=1)).read(ignore)
    offsets = table.offsets.copy()
    offsets[1] += 16
    wrong = SeekTable.of(13, offsets, None, table.states)
    with pytest.raises(Corrupt):
        open_string(span_of(written, wrong)).read(ignore)


@pytest.mark.parametrize("kind", ["words", "huffman", "rans", "context"])
def test_short_strings_are_refused_when_opened_or_read(kind: str) -> None:
    written, open_string = written_and_opener(kind)
    for nbits in (0, 96, written.nbits // 2, written.nbits - 8):
        with pytest.raises((Corrupt, Truncated)):
            open_string(BitSpan(written.data[: nbits // 8], 0, nbits)).read(ignore)


def test_strings_of_no_symbols_have_no_bits_and_no_blocks() -> None:
    nothing = BitSpan(np.empty(0, np.uint8), 0, 0)
    no_elements = CodedMask.all(0)
    for string in (
        symbol_coder.open(nothing, 0, LARGEST),
        tabled.open("rans", nothing, ALPHABET, no_elements),
        tabled.open("huffman", nothing, ALPHABET, no_elements),
    ):
        assert isinstance(string, EmptyString)
        assert string.read(ignore) == 0 and not string.blocks(12).offsets.any()
    table = SeekTable.of(12, np.array([0, 5]))
    for string in (EmptyString(nothing._replace(seek=table)), EmptyString(nothing, True)):
        with_bits = string._replace(span=string.span._replace(data=np.zeros(1, np.uint8), end=5))
        with pytest.raises(Corrupt, match="code nothing"):
            with_bits.read(ignore)
        assert with_bits._replace(span=nothing).read(ignore, bits_follow=True) == 0
    with pytest.raises(Corrupt, match="the payload none"):
        EmptyString(nothing._replace(seek=table)).read(ignore)
    with pytest.raises(Corrupt, match="the string 0"):
        EmptyString(nothing._replace(seek=table), has_blocks=True).read(ignore)


def test_elements_without_codewords_may_have_empty_blocks() -> None:
    """Blocks of codewords count all elements; those of rANS count symbols."""
    elements = CodedMask.of(9000, 9000, np.array([True]))
    span = BitSpan(np.empty(0, np.uint8), 0, 0, SeekTable.of(12, np.zeros(4, np.int64)))
    assert tabled.open("huffman", span, ALPHABET, elements).read(ignore) == 0
    with pytest.raises(Corrupt, match="the seek table has 3 blocks, the payload none"):
        tabled.open("rans", span, ALPHABET, elements).read(ignore)


def test_first_of_equally_short_tables_is_selected() -> None:
    counts = np.bincount([0, 1] * huffman.LENGTH_NBITS, minlength=256)
    own = Table.own("huffman", counts, ALPHABET[:2])
    static = np.full((3, 256), 15, np.uint8)
    static[1:, :2] = 2  # twice the bits of own codewords, as many as those and their lengths
    table, nbits = tabled.best_table(counts, own, "huffman", ALPHABET[:2], lambda: static)
    assert table is own and nbits == own.nbits(counts) == (static[1] @ counts)
    table, nbits = tabled.best_table(counts, None, "huffman", ALPHABET[:2], lambda: static)
    assert table.which == 2 and nbits == own.nbits(counts)


def test_spans_end_on_zeros_up_to_a_byte() -> None:
    span = BitSpan(np.array([0b1010_0000, 0xFF], np.uint8), 3, 16)
    assert span.aligned("table and string").first == 8
    assert span.after(8).aligned("table and string").first == 8
    with pytest.raises(Corrupt, match="bits between table and string are not zero"):
        span.after(2).aligned("table and string")
