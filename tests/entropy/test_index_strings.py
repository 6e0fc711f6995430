"""Strings of positions: their lengths, their seek tables, and refused strings."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import gcodec
from gcodec.entropy import positions as position_coding
from gcodec.entropy.coder import BitSpan, Written
from gcodec.entropy.positions import IndexString
from gcodec.kernels.numeric import select
from gcodec.kernels.prefix.value_classes import AllPositions, PackedPositions
from gcodec.tensorfiles.dumps import open_dump
from gcodec.wire.seek import SeekTable

EXAMPLE = Path(__file__).parents[2] / "examples" / "resnet8_digits_step0300.safetensors"
NO_BITS = np.empty(0, np.uint8), 0
ELEVEN_BITS = np.array([0xFF, 0b1010_0000], np.uint8), 11  # Bits that precede the string.
SEEKABLE = [code for code in position_coding.CODES if position_coding.seek_blocks(code)]


def uniform(n: int, k: int, seed: int = 0) -> np.ndarray:
    return np.sort(np.random.default_rng(seed).choice(n, k, replace=False)).astype(np.int64)


def clustered(n: int, k: int) -> np.ndarray:
    """Return positions of the largest elements of rows that differ in scale, as in gradients."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n // 256, 256)) * np.exp(rng.standard_normal((n // 256, 1)))
    return np.sort(np.argsort(-np.abs(x).ravel(), kind="stable")[:k])


def entropy_nbits(n: int, k: int) -> float:
    """Return the entropy of k of n positions, in bits."""
    p = k / n
    return -n * (p * math.log2(p) + (1 - p) * math.log2(1 - p))


def string_of(coded: tuple[str, Written], k: int, n: int, first: int = 0) -> IndexString:
    code, (data, nbits, _) = coded
    return IndexString(BitSpan(data, first, nbits), code, k, n)


def nbits_of(positions: np.ndarray, n: int, code: str, preceding: tuple[np.ndarray, int]) -> int:
    return position_coding.write(positions, n, code, preceding)[1].nbits


def positions_in(string: IndexString, seek: SeekTable | None) -> np.ndarray:
    return string._replace(span=string.span._replace(seek=seek)).read()


def test_rice_parameter_below_zero_is_corrupt() -> None:
    """The first block has the parameter 0 and 32 gaps of 0; the next parameter is lower by 1."""
    text = "000000" + "1" * 32 + "001"
    data = np.packbits(np.array([int(bit) for bit in text], np.uint8))
    with pytest.raises(gcodec.Corrupt):
        IndexString(BitSpan(data, 0, len(text)), "rice", 33, 1000).read()


@pytest.mark.parametrize("code", position_coding.CODES)
@pytest.mark.parametrize(("n", "k"), [(9, 3), (64, 20), (100, 7), (5000, 400)])
def test_bits_after_a_string_are_not_read(code: str, n: int, k: int) -> None:
    """In a patch, the bytes of values follow the positions."""
    positions = uniform(n, k)
    _, (data, nbits, _) = position_coding.write(positions, n, code, NO_BITS)
    data = np.append(data, np.full(16, 0xFF, np.uint8))
    data[nbits // 8] |= 0xFF >> nbits % 8
    string = IndexString(BitSpan(data, 0, nbits), code, k, n)
    assert string.read().tolist() == positions.tolist()


@pytest.mark.parametrize("code", [*position_coding.CODES, "auto"])
@pytest.mark.parametrize("preceding", [NO_BITS, ELEVEN_BITS], ids=["first", "behind"])
def test_round_trip(code: str, preceding: tuple[np.ndarray, int]) -> None:
    cases = [(1, 1), (9, 0), (64, 64), (100, 7), (33, 32), (5000, 4097), (200_000, 20_000)]
    for n, k in cases:
        positions = uniform(n, k)
        chosen, written = position_coding.write(positions, n, code, preceding)
        string = string_of((chosen, written), k, n, preceding[1])
        assert np.array_equal(string.read(), positions)
        assert written.data.size == -(-written.nbits // 8)
        assert written.nbits - preceding[1] <= position_coding.longest_nbits(n, k, code)
        assert (
            written.data[: preceding[1] // 8].tobytes()
            == preceding[0][: preceding[1] // 8].tobytes()
        )
        if written.seek is not None:
            assert np.array_equal(positions_in(string, written.seek), positions)


@pytest.mark.parametrize("code", [code for code in position_coding.CODES if code != "bitmap"])
def test_largest_positions(code: str) -> None:
    n = position_coding.MOST
    for positions in ([n - 1], [0, n - 1], [0, 1, 2, n // 3, n // 2, n - 2, n - 1]):
        actual = np.array(positions, np.int64)
        written = position_coding.write(actual, n, code, NO_BITS)
        assert string_of(written, actual.size, n).read().tolist() == positions


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1])
@pytest.mark.parametrize("n", [100_000, 1 << 20])
def test_uniform_positions_are_near_the_limit(n: int, share: float) -> None:
    k = round(share * n)
    for seed in range(3):
        nbits = nbits_of(uniform(n, k, seed), n, "auto", NO_BITS)
        assert nbits < 1.015 * entropy_nbits(n, k)


@pytest.mark.parametrize("share", [0.01, 0.1])
def test_clustered_positions_take_fewer_bits(share: float) -> None:
    n = 1 << 20
    k = round(share * n)
    positions = clustered(n, k)
    assert nbits_of(positions, n, "auto", NO_BITS) < 0.9 * entropy_nbits(n, k)
    # Rice parameters that follow the density beat one parameter for all.
    gaps = np.diff(positions, prepend=-1) - 1
    best = min(int((gaps >> r).sum()) + k * (r + 1) for r in range(20))
    assert nbits_of(positions, n, "rice", NO_BITS) < 0.93 * best


def test_real_positions_take_fewer_bits() -> None:
    total, entropy = 0, 0.0
    with open_dump(EXAMPLE) as dump:
        for entry in dump.entries:
            x = dump.load(entry).astype(np.float32).ravel()
            k = round(0.1 * x.size)
            if k >= 100:
                selection = select.take_largest(x, k)
                assert selection is not None
                total += nbits_of(selection[0], x.size, "auto", NO_BITS)
                entropy += entropy_nbits(x.size, k)
    assert 0 < total < entropy


@pytest.mark.parametrize("make", [uniform, clustered], ids=["uniform", "clustered"])
def test_auto_is_the_shortest(make: object) -> None:
    for n, k in ((256, 3), (1024, 100), (4096, 4000), (65536, 700), (1 << 18, 30_000)):
        positions = make(n, k)  # type: ignore[operator]
        each = [nbits_of(positions, n, code, ELEVEN_BITS) for code in position_coding.CODES]
        assert nbits_of(positions, n, "auto", ELEVEN_BITS) == min(each)


@pytest.mark.parametrize("code", [*position_coding.CODES, "auto"])
def test_positions_of_all_elements_need_no_array(code: str) -> None:
    for n in (1, 2, 7, 40, 5000, 3 << 18):
        expected = position_coding.write(np.arange(n), n, code, ELEVEN_BITS)
        index, written = position_coding.write(AllPositions(n), n, code, ELEVEN_BITS)
        assert index == expected[0] and written.nbits == expected[1].nbits
        assert np.array_equal(written.data, expected[1].data)
        seeks = written.seek, expected[1].seek
        assert len({None if seek is None else seek.to_bytes() for seek in seeks}) == 1


@pytest.mark.parametrize("code", [*position_coding.CODES, "auto"])
def test_packed_positions_have_the_same_string(code: str) -> None:
    for n, k in ((7, 3), (1 << 16, 30_000), (3 << 18, 500_000), (1 << 22, 1 << 20)):
        positions = clustered(n, k) if n >= 256 else uniform(n, k)
        packed = PackedPositions(k)
        for at in range(0, n, 1 << 18):
            inside = positions[(positions >= at) & (positions < at + (1 << 18))] - at
            packed.append(inside, min(1 << 18, n - at))
        expected = position_coding.write(positions, n, code, ELEVEN_BITS)
        index, written = position_coding.write(packed, n, code, ELEVEN_BITS)
        assert index == expected[0] and written.nbits == expected[1].nbits
        assert np.array_equal(written.data, expected[1].data)
        seeks = written.seek, expected[1].seek
        assert len({None if seek is None else seek.to_bytes() for seek in seeks}) == 1


@pytest.mark.parametrize("code", SEEKABLE)
def test_computed_blocks_equal_written_blocks(code: str) -> None:
    n, k = 1 << 20, 300_000 if code == "rans" else 30_000
    positions = clustered(n, k)
    _, written = coded = position_coding.write(positions, n, code, ELEVEN_BITS)
    string = string_of(coded, k, n, ELEVEN_BITS[1])
    assert written.seek is not None
    blocks = string.blocks(written.seek.log2_block)
    assert np.array_equal(blocks.offsets, written.seek.offsets)
    for table in (written.seek, string.blocks(13)):
        assert np.array_equal(positions_in(string, table), positions)


@pytest.mark.parametrize("threads", ["1", "3"])
@pytest.mark.parametrize("code", position_coding.CODES)
def test_threads_change_nothing(code: str, threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    n, k = 3 << 20, (1 << 20) + 5000  # More than one segment of positions.
    positions = np.flatnonzero(np.random.default_rng(5).random(n) < k / n)[: 1 << 20]
    monkeypatch.setenv("GCODEC_NUM_THREADS", "1")
    _, expected = position_coding.write(positions, n, code, ELEVEN_BITS)
    monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
    _, written = coded = position_coding.write(positions, n, code, ELEVEN_BITS)
    assert written.data.tobytes() == expected.data.tobytes()
    string = string_of(coded, positions.size, n, ELEVEN_BITS[1])
    assert np.array_equal(positions_in(string, written.seek), positions)
    assert np.array_equal(string.read(), positions)


@pytest.mark.parametrize("code", ["rice", "eliasfano", "huffman"])
def test_a_wrong_seek_table_is_corrupt(code: str) -> None:
    n, k = 1 << 20, 20_000
    positions = uniform(n, k)
    written = position_coding.write(positions, n, code, NO_BITS)
    string = string_of(written, k, n)
    table = string.blocks(12)
    assert table.positions is not None
    for b in range(1, table.count):
        for marks in ("offsets", "positions"):
            for step in (-1, 1):
                wrong = {"offsets": table.offsets.copy(), "positions": table.positions.copy()}
                wrong[marks][b] += step
                other = SeekTable.of(12, wrong["offsets"], wrong["positions"])
                with pytest.raises(gcodec.Corrupt):
                    positions_in(string, other)
    fewer = SeekTable.of(12, table.offsets[:-1], table.positions[:-1])
    with pytest.raises(gcodec.Corrupt):
        positions_in(string, fewer)
    joined = np.delete(table.offsets, 1), np.delete(table.positions, 1)
    with pytest.raises(gcodec.Corrupt):
        positions_in(string, SeekTable.of(12, *joined))


def test_seek_tables_of_rice_have_no_blocks_within_groups() -> None:
    positions = np.arange(0, 6000, 3)
    string = string_of(position_coding.write(positions, 6000, "rice", NO_BITS), 2000, 6000)
    table = string.blocks(12)
    assert table.positions is not None
    smaller = SeekTable.of(11, table.offsets, table.positions)
    with pytest.raises(gcodec.Corrupt, match="blocks of 2\\^11"):
        positions_in(string, smaller)


def test_blocks_of_rice_begin_at_groups() -> None:
    positions = uniform(10_000, 5000)
    string = string_of(position_coding.write(positions, 10_000, "rice", NO_BITS), 5000, 10_000)
    with pytest.raises(gcodec.ParameterError, match="log2_block"):
        string.blocks(11)
    table = string_of(
        position_coding.write(positions, 10_000, "eliasfano", NO_BITS), 5000, 10_000
    ).blocks(11)
    with pytest.raises(gcodec.Corrupt):
        positions_in(string, table)


@pytest.mark.parametrize("code", position_coding.CODES)
def test_damage_is_refused_or_changes_positions(code: str) -> None:
    """A damaged string is refused, or decodes to k increasing positions below n."""
    n, k = 500, 60
    _, written = position_coding.write(uniform(n, k), n, code, NO_BITS)
    for bit in range(written.nbits):
        data = written.data.copy()
        data[bit // 8] ^= 0x80 >> bit % 8
        try:
            decoded = IndexString(BitSpan(data, 0, written.nbits), code, k, n).read()
        except gcodec.FormatError:
            continue
        assert decoded.size == k and decoded[0] >= 0 and decoded[-1] < n
        assert np.all(np.diff(decoded) > 0)
    for nbits in range(written.nbits):
        data = written.data[: -(-nbits // 8)]
        with pytest.raises(gcodec.FormatError):
            IndexString(BitSpan(data, 0, nbits), code, k, n).read()
    for extra_nbits in (1, 7, 64):
        data = np.append(written.data, np.zeros(9, np.uint8))
        with pytest.raises(gcodec.FormatError):
            IndexString(BitSpan(data, 0, written.nbits + extra_nbits), code, k, n).read()
    whole = BitSpan(written.data, 0, written.nbits)
    with pytest.raises(gcodec.FormatError):
        IndexString(whole, code, n + 1, n).read()
    with pytest.raises(gcodec.Unsupported):
        IndexString(whole, code, k, 2**62 + 1).read()
