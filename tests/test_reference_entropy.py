"""The oracles of minifloats, of Huffman codes and of rANS against worked examples."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from reference import ans, canonical, minifloat, qsgd, seek, tabled, ternary, universal
from reference.minifloat import Setting
from reference.universal import Bits, Corrupt, Truncated

# The 32 initial states, which are the whole string of symbols that take no bits.
INITIAL_STATES = bytes.fromhex("00000100") * 32


def payload_of_text(*parts: str) -> tuple[bytes, int]:
    """Return the bytes of these bits, and their number."""
    bits = "".join(parts).replace(" ", "").replace("|", "")
    return universal.to_bytes(bits), len(bits)


# --- Huffman codewords ---------------------------------------------------------------------------


def test_words_are_canonical() -> None:
    assert canonical.words([2, 1, 0, 3, 3]) == ["10", "0", "", "110", "111"]
    assert canonical.words([0, 1]) == ["", "0"]
    deepest = ["1" * 11 + "0", "1" * 12, *("1" * k + "0" for k in range(10, -1, -1))]
    assert canonical.words([12, 12, *range(11, 0, -1)]) == deepest


@pytest.mark.parametrize(
    ("counts", "lengths"),
    [
        ([], []),
        ([0, 0], [0, 0]),
        ([0, 7, 0], [0, 1, 0]),
        ([5, 9], [1, 1]),
        ([1, 1, 1], [2, 2, 1]),  # Of equal counts, the last has the shortest codeword.
        ([2, 1, 1], [1, 2, 2]),
        ([3, 3, 2, 2], [2, 2, 2, 2]),
        ([1, 1, 2, 4, 0, 8], [4, 4, 3, 2, 0, 1]),
        ([1, 1, 2, 2], [2, 2, 2, 2]),  # The algorithm takes a coin of 2 before a package of 2.
    ],
)
def test_lengths(counts: list[int], lengths: list[int]) -> None:
    assert canonical.lengths_of(counts) == lengths


def test_lengths_are_limited() -> None:
    fibonacci = [1, 1]
    while len(fibonacci) < 20:
        fibonacci.append(sum(fibonacci[-2:]))
    lengths = canonical.lengths_of(fibonacci)
    assert max(lengths) == 12
    assert sum(Fraction(1, 2**length) for length in lengths) == 1
    assert lengths == sorted(lengths, reverse=True)
    few = fibonacci[:13]
    assert canonical.lengths_of(few) == [12, 12, *range(11, 0, -1)]


@pytest.mark.parametrize(
    ("table", "error"),
    [
        ("0001 0001 0001", Corrupt),
        ("0001 0010 0000", Corrupt),
        ("0010 0000 0000", Corrupt),
        ("0000 0000 0000", Corrupt),
        ("1101 0001 0000", Corrupt),
        ("0001 0001 000", Truncated),
    ],
)
def test_tables_of_lengths_refuse(table: str, error: type[ValueError]) -> None:
    bits = Bits(table.replace(" ", ""))
    with pytest.raises(error):
        canonical.read_table(bits, 3)


def test_single_codeword() -> None:
    words = canonical.words(canonical.read_table(Bits("000000010000"), 3))
    assert canonical.read_word(Bits("0"), words) == 1
    with pytest.raises(Corrupt):
        canonical.read_word(Bits("1"), words)
    with pytest.raises(Truncated):
        canonical.read_word(Bits(""), words)


# --- rANS ---------------------------------------------------------------------------------------


def test_table_of_frequencies() -> None:
    table = ans.table([0, 1, 4095])
    assert table == "1100" + "0000" + "0001" + "1100" + "1" * 11
    assert ans.read_table(Bits(table), 3) == [0, 1, 4095]
    for wrong, error in (
        ("1011" + table[4:], Corrupt),
        ("1101" + table[4:], Corrupt),
        (table[:-1], Truncated),
        (table[:-1] + "0", Corrupt),
    ):
        with pytest.raises(error):
            ans.read_table(Bits(wrong), 3)


def test_strings_by_hand() -> None:
    assert ans.encode([0] * 9999, [4096]) == INITIAL_STATES  # A certain symbol takes no bits.
    # Symbols of probability one half: x = 2·(x div f·f) and so on; 17 bits until a word is
    # written.
    half = [2048, 2048]
    one = ans.encode([1], half)
    assert one == (65536 // 2048 * 4096 + 2048).to_bytes(4, "little") + INITIAL_STATES[4:]
    assert ans.encode([0, 1], half)[4:8] == one[:4]
    assert ans.encode([0] * 32 + [1], half)[:4] == (4096 * ((131072 + 2048) // 2048)).to_bytes(
        4, "little"
    )
    # The largest state that codes f = 1 without a word is below 2^20.
    rare = [1, 4095]
    two_rare = ans.encode([0, *[1] * 31, 0], rare)
    x = 65536 * 4096  # After the symbol that the decoder reads last.
    assert two_rare[:4] == ((x >> 16) * 4096).to_bytes(4, "little")
    assert two_rare[128:] == (x % 65536).to_bytes(2, "little")


def test_strings_refuse() -> None:
    half = [2048, 2048]
    data = ans.encode([0, 1] * 300, half)

    def read(changed: bytes) -> list[int]:
        return ans.read(Bits(universal.to_text(changed)), 600, half)

    assert read(data) == [0, 1] * 300
    for changed, error in (
        (data[:127], Truncated),
        (data[:-1], Truncated),
        (bytes(4) + data[4:], Corrupt),
        (data[:-1] + bytes([data[-1] ^ 1]), Corrupt),
    ):
        with pytest.raises(error):
            read(changed)


def test_states_continue() -> None:
    """The states of a seek table suffice to decode from there."""
    symbols = [(i * i) % 7 for i in range(333)]
    frequencies = ans.frequencies_of([symbols.count(s) for s in range(7)])
    data = ans.encode(symbols, frequencies)
    lengths, states = ans.blocks(symbols, frequencies, 6)
    assert len(lengths) == 6 and len(states) == 5 and sum(lengths) == 8 * len(data)
    at = 0
    for i, length in enumerate(lengths):
        state_bytes = b"".join(x.to_bytes(4, "little") for x in states[i - 1]) if i else b""
        remaining = state_bytes + data[at // 8 :]
        part = symbols[64 * i :]
        assert ans.read(Bits(universal.to_text(remaining)), len(part), frequencies) == part
        at += length
    table = seek.Table(6, lengths, None, states)
    assert seek.section(table)[2:].endswith(states[-1][-1].to_bytes(4, "little"))
    assert len(seek.section(table)) == 3 + 2 * 6 + 5 * 128


# --- minifloat ----------------------------------------------------------------------------------


def test_magnitudes() -> None:
    def magnitudes(fmt: str, style: str) -> list[float]:
        return [float(c) for c in minifloat.magnitudes(Setting(fmt, style))]

    assert magnitudes("e2m1", "ieee") == [0, 1, 2, 3, 4, 6]
    assert magnitudes("e2m1", "full") == [0, 1, 2, 3, 4, 6, 8, 12]
    assert magnitudes("e1m1", "fn") == [0, 1, 2]
    assert magnitudes("e1m2", "full") == [0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5]
    assert magnitudes("e3m0", "full") == [0, 2, 4, 8, 16, 32, 64, 128]
    assert magnitudes("e4m3", "fn")[-1] == 448 * 2**7
    assert magnitudes("e5m2", "ieee")[-1] == 57344 * 2**15


@pytest.mark.parametrize(
    ("fmt", "style", "dtype", "shift"),
    [
        ("e4m3", "fn", ml_dtypes.float8_e4m3fn, 7),
        ("e5m2", "ieee", ml_dtypes.float8_e5m2, 15),
    ],
)
def test_codes_are_those_of_ocp(fmt: str, style: str, dtype: type, shift: int) -> None:
    setting = Setting(fmt, style, "none")
    scale = 2.0**-shift
    levels = np.array([float(c) for c in minifloat.magnitudes(setting)]) * scale
    middles = (levels[1:] + levels[:-1]) / 2
    x = np.concatenate([levels, -middles, middles * 1.01, -levels * 0.99]).astype(np.float32)
    x = x[np.abs(x) <= levels[-1]]
    codes = minifloat.quantize(x, setting, scale)
    expected = x.astype(dtype).view(np.uint8)
    assert codes == np.where(expected == 128, 0, expected).tolist()
    values = minifloat.dequantize(codes, setting, scale)
    assert values.tolist() == x.astype(dtype).astype(np.float32).tolist()


def test_quantize() -> None:
    setting = Setting("e2m1", "full", "none")
    x = np.array([0, -0.0, 1, -1.5, 2.5, -0.5, 0.51, 100, -9.9, 10, 10.1], np.float32)
    codes = minifloat.quantize(x, setting, 1)
    assert codes == [0, 0, 1, 10, 2, 0, 1, 7, 14, 6, 7]
    assert minifloat.write(setting, 1, codes).data == bytes.fromhex(
        "001a2017 e670".replace(" ", "")
    )
    assert minifloat.quantize(x, setting, 0) == [0] * 11
    values = minifloat.dequantize([0, 1, 9, 7], setting, 0.1)
    assert values.tolist() == [
        0,
        np.float32(0.1),
        -np.float32(0.1),
        np.float32(12) * np.float32(0.1),
    ]
    with pytest.raises(ValueError):
        minifloat.quantize(np.array([np.nan], np.float32), setting, 1)
    for scale in (-1, np.nan, np.inf, 3e37):
        with pytest.raises(Corrupt):
            minifloat.check_scale(setting, np.float32(scale))


SMALL_SETTING = Setting("e1m1", "ieee")  # magnitudes 0 and 1, codes 000, 001 and 101


@pytest.mark.parametrize(
    ("code", "codes", "bits"),
    [
        ("none", [0, 1, 5], "000 001 101"),
        ("huffman", [0, 1, 5, 0], "0001 0010 0010 | 0 10 11 0"),
        ("huffman", [5, 5], "0000 0000 0001 | 0 0"),
        ("pair", [1, 0, 1, 0, 5], "0000 0000 0000 0001 0000 0000 0001 0000 0000 | 0 0 1"),
        ("planes", [0, 1, 5], "00 01 11 | 0001 | 0 0 0"),
        ("none", [], ""),
        ("huffman", [], ""),
        ("planes", [], ""),
        ("rans", [], ""),
    ],
)
def test_payloads(code: str, codes: list[int], bits: str) -> None:
    setting = SMALL_SETTING._replace(code=code)
    message = minifloat.write(setting, 1, codes)
    data, nbits = payload_of_text(bits)
    assert (message.data, message.nbits) == (data, nbits)
    assert minifloat.read(setting, data, nbits, len(codes), 1).codes == codes


def test_payload_of_rans() -> None:
    setting = SMALL_SETTING._replace(code="rans")
    message = minifloat.write(setting, 1, [5] * 40)
    # P = 12. The last of the nine symbols has frequency 4096, 13 bits; the table takes 52 bits,
    # the padding 4.
    assert (
        message.data
        == universal.to_bytes("1100" + "0000" * 8 + "1101" + "0" * 16) + INITIAL_STATES
    )
    wide = Setting("e2m2", "full", "rans")
    # 31 codes and 140 bits.
    assert len(minifloat.write(wide, 1, [9] * 40).data) == len(INITIAL_STATES) + 18
    assert minifloat.read(setting, message.data, message.nbits, 40, 1).codes == [5] * 40


COUNTS = [6, 3, 0, 0, 0, 3, 0, 0]


def test_codebooks() -> None:
    assert minifloat.counts_of_book(SMALL_SETTING, COUNTS) == [6, 3, 3]
    pair = SMALL_SETTING._replace(code="pair")
    assert minifloat.counts_of_book(pair, COUNTS) == [36, 18, 18, 18, 9, 9, 18, 9, 9]
    assert minifloat.symbol_alphabet(pair) == [0, 1, 5, 16, 17, 21, 80, 81, 85]
    full = [6, 3, 2, 1, 0, 3, 2, 1]
    large = [2**14 - 200, 100, 0, 0, 0, 100, 0, 0]
    assert minifloat.model_of_book(SMALL_SETTING._replace(code="rans"), large) == [
        *(15988, 98, 98, 98, 1, 1, 98, 1, 1),
    ]
    planes = Setting("e1m1", "full", "planes")
    assert minifloat.counts_of_book(planes, full) == [12, 6]
    message = minifloat.write(SMALL_SETTING, 1, [5, 0, 1], 1, COUNTS)
    assert (message.data, message.nbits) == payload_of_text("11 0 10")
    assert minifloat.scalars(message) == bytes.fromhex("0000803f01")
    assert minifloat.parameters(SMALL_SETTING) == bytes.fromhex("010101")


@pytest.mark.parametrize(
    ("code", "n", "bits", "error"),
    [
        ("none", 1, "100", Corrupt),  # −0
        ("none", 1, "010", Corrupt),  # Above the last code.
        ("none", 3, "000 000 00", Truncated),
        ("none", 2, "000 00", Corrupt),  # The same number of bytes.
        ("none", 1, "000 0", Corrupt),
        ("huffman", 2, "0001 0010 0010 | 0", Truncated),
        ("huffman", 2, "0001 0010 0010 | 01", Truncated),
        ("huffman", 2, "0001 0010 0010 | 000", Corrupt),
        ("huffman", 2, "0000 0000 0001 | 01", Corrupt),
        ("huffman", 2, "0001 0010 00", Truncated),
        ("huffman", 0, "0000", Corrupt),
        # An extra bit after the last codeword.
        ("pair", 1, "0000 0001 0001" + "0000" * 6 + "| 0", Corrupt),
        ("planes", 1, "10 0001 0", Corrupt),  # −0
        ("planes", 2, "010", Truncated),
        ("rans", 1, "1100 0000 0000", Truncated),
        ("rans", 1, "1100 1101" + "0" * 44 + "0001", Corrupt),  # The padding is not zero.
    ],
)
def test_refusals(code: str, n: int, bits: str, error: type[ValueError]) -> None:
    data, nbits = payload_of_text(bits)
    with pytest.raises(error):
        minifloat.read(SMALL_SETTING._replace(code=code), data, nbits, n, 1)


def test_refusals_of_tables() -> None:
    for setting, table, book in (
        (SMALL_SETTING._replace(code="none"), 1, COUNTS),
        (SMALL_SETTING, 2, None),
        (Setting("e2m2", "full", "pair"), 0, None),
    ):
        with pytest.raises(Corrupt):
            minifloat.read(setting, b"", 0, 0, 1, table, book)
    exponents = Setting("e1m1", "fn", "planes")  # The format lacks e = 1, m = 1.
    data, nbits = payload_of_text("01 | 0000 0001 | 0")
    with pytest.raises(Corrupt):
        minifloat.read(exponents, data, nbits, 1, 1)
    with pytest.raises(Corrupt):
        minifloat.read(SMALL_SETTING, b"\1", 7, 0, 1)


# --- qsgd and terngrad --------------------------------------------------------------------------


def test_qsgd_with_tables() -> None:
    norms = [np.float32(5), np.float32(0)]
    setting = qsgd.Setting(1, "dense", 4, "max", "huffman")
    message = qsgd.write(setting, norms, [1, 0, 0, -1, 0, 0])
    bits = universal.to_text(message.data)[64 : message.nbits]
    assert bits == "0001" + "0010" + "0010" + "10" + "0" + "0" + "11"
    assert [qsgd.place(k) for k in (0, 1, -1, 2, -2, 127, -127)] == [0, 1, 2, 3, 4, 253, 254]
    assert [qsgd.level_at(at) for at in range(5)] == [0, 1, -1, 2, -2]
    assert qsgd.read(setting, message.data, message.nbits, 6)[1] == [1, 0, 0, -1, 0, 0]
    assert qsgd.seek_table(message, 1) == (1, [3, 3, 0], None, None)
    assert qsgd.parameters(setting) == bytes.fromhex("01 00 04 01 03")
    rans = setting._replace(code="rans")
    message = qsgd.write(rans, norms, [0] * 6)
    # Six levels 0: frequency 4096 for 0.
    assert message.data[8:] == bytes.fromhex("cd000000") + INITIAL_STATES
    assert qsgd.read(rans, message.data, message.nbits, 6)[1] == [0] * 6
    assert qsgd.seek_table(message, 5) == (5, [1024], None, [])
    zero_norm = qsgd.write(rans, norms[1:], [0] * 4)
    assert zero_norm.nbits == 32


def test_ternary_rans() -> None:
    data = ternary.pack([0] * 7, "rans")
    # P, then 4096 for 0 and none for the 242 other symbols: 4 + 16 + 968 bits and 4 zeros.
    assert data == bytes.fromhex("cd") + bytes(123) + INITIAL_STATES
    assert ternary.unpack(data, 7, "rans") == [0] * 7
    codes = [(i * i) % 3 - 1 for i in range(503)]
    assert ternary.unpack(ternary.pack(codes, "rans"), 503, "rans") == codes
    for n, changed in ((7, data + b"\0"), (7, data[:-1]), (0, data)):
        with pytest.raises(ValueError):
            ternary.unpack(changed, n, "rans")
    assert ternary.pack([], "rans") == b"" and ternary.unpack(b"", 0, "rans") == []
    assert tabled.write("rans", [0], [4096], sent=False) == universal.to_text(INITIAL_STATES)
