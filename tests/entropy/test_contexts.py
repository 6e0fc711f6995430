"""Context strings: classes, scales, tables, outliers, states, damaged bytes."""

from __future__ import annotations

import numpy as np
import pytest
from reference import contexts, universal
from reference.universal import Bits, to_bytes

from gcodec import Corrupt, FormatError, Truncated
from gcodec.entropy.coder import BitSpan
from gcodec.entropy.context import byte_coder, class_tables, coder, scale_lists, table_choice
from gcodec.entropy.context.class_tables import SENT, TOTAL, ClassTable
from gcodec.entropy.context.outliers import Outliers
from gcodec.entropy.context.scale_model import ONE, RowLayout, Scales, refined, row_layouts
from gcodec.entropy.context.table_choice import best_layout
from gcodec.entropy.rans import RANS
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.sized_integers import write_sized
from gcodec.kernels.context import class_map, scale_fit
from gcodec.kernels.context import scale_lists as list_kernels
from gcodec.kernels.context.class_map import CENTER, CLASSES
from gcodec.kernels.quantize.scalar_quantize import ESCAPE, MOST
from gcodec.runtime import pool

SHAPES = [(1,), (3,), (300,), (64, 64), (9, 1000), (400, 8), (13, 17), (16, 8, 3, 3), (70, 1100)]


def nearest_scales(quarters: np.ndarray, one: int, quantum: int) -> np.ndarray:
    """Return the nearest scales to logarithms in quarter octaves."""
    actual = (np.rint(quarters).astype(np.int64) + one + quantum // 2) // quantum * quantum
    return np.clip(actual, quantum, 127 // quantum * quantum)


def levels_of(shape: tuple[int, ...], seed: int = 0, spread: float = 1.0) -> np.ndarray:
    """Return symbols, a few of them escape codes, of rows and columns that differ in scale."""
    rng = np.random.default_rng(seed)
    rows = shape[0] if len(shape) > 1 else 1
    x = rng.laplace(0, 0.7, shape).reshape(rows, -1)
    x *= np.exp2(rng.normal(0, spread, (rows, 1)) + rng.normal(0, spread, x.shape[1]))
    x = x.reshape(-1)
    x[:: max(x.size // 3, 1)] *= 300
    size = np.minimum(np.floor(np.abs(x) + 0.5), MOST + 1).astype(np.int64)
    symbols = 2 * size + (x < 0) * (size > 0)
    return np.minimum(symbols, ESCAPE).astype(np.uint8)


def classes_of(scales: Scales, n: int) -> np.ndarray:
    """Return the class of each element by its definition."""
    at = np.arange(n)
    width = scales.layout.width
    columns = scales.columns[at % width] if scales.columns.size else np.full(n, CENTER)
    sums = scales.rows[at // width].astype(np.int64) + columns.astype(np.int64) - CENTER
    return np.clip(sums, 0, CLASSES - 1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sizes_of_classes(shape: tuple[int, ...]) -> None:
    symbols = levels_of(shape, spread=4.0)
    for layout in (*row_layouts(shape), RowLayout(min(7, symbols.size), 0)):
        scales, n = Scales.of(symbols, layout), symbols.size
        wanted = np.bincount(classes_of(scales, n), minlength=CLASSES)
        assert scales.class_sizes(n).tolist() == wanted.tolist()


@pytest.mark.parametrize("lanes", [0, 8])
def test_samples_that_miss_large_rows_are_not_used(lanes: int) -> None:
    rows = np.arange(1, 5001)[:, np.newaxis]
    x = np.rint(1e3 / rows * np.random.default_rng(0).laplace(size=(5000, 256))).reshape(-1)
    symbols = 2 * np.abs(x).clip(0, MOST).astype(np.uint8)
    scales = Scales.of(symbols, RowLayout(256, 0))
    sampled, all_of_them = (table_choice.plan(symbols, scales, s, lanes) for s in (1 << 18, 0))
    assert sampled.nbits == all_of_them.nbits
    shuffled = np.random.default_rng(1).permutation(symbols)  # all samples are alike
    plan = table_choice.plan(shuffled, Scales.of(shuffled, RowLayout(256, 0)), lanes=lanes)
    assert plan.statistics is None


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_scales_and_classes(shape: tuple[int, ...]) -> None:
    symbols = levels_of(shape)
    n, sizes = symbols.size, (symbols >> 1).astype(np.int64)
    for layout in row_layouts(shape):
        width, group, quantum = layout
        scales = Scales.of(symbols, layout)
        row, column = np.arange(n) // width, np.arange(n) % width
        sums = np.bincount(row, sizes)
        means = sums / np.bincount(row)
        coded = sums > 0
        expected = nearest_scales(4 * np.log2(means[coded]), ONE, quantum)
        np.testing.assert_array_equal(scales.rows[coded], expected)
        assert not scales.rows[~coded].any()
        if group:
            column //= group
            sums = np.bincount(column, sizes)
            means = sums / np.bincount(column) / (sizes.sum() / n)
            coded = sums > 0
            each = scales.columns[::group]
            np.testing.assert_array_equal(np.repeat(each, group)[:width], scales.columns)
            expected = nearest_scales(4 * np.log2(means[coded]), CENTER, quantum)
            np.testing.assert_array_equal(each[coded], expected)
            assert not each[~coded].any()
        for start, stop in ((0, n), (n // 3, n), (n // 2, n // 2 + 1)):
            out = scales.classes(start, stop, np.empty(stop - start, np.uint8))
            np.testing.assert_array_equal(out, classes_of(scales, n)[start:stop])
        counts = class_map.class_counts(symbols, [scales.arrays], 1)
        both = classes_of(scales, n) * 256 + symbols
        np.testing.assert_array_equal(counts.ravel(), np.bincount(both, minlength=counts.size))


@pytest.mark.parametrize("threads", ["1", "3"])
def test_costs_of_wide_rows(threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strips of columns are summed one by one; the last row lacks the last ones."""
    monkeypatch.setattr(pool, "_THRESHOLD", 1)
    monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
    rng, width = np.random.default_rng(0), 20_000
    symbols = rng.integers(0, 100, 9 * width + 10_000).astype(np.uint8)
    rows, columns = (rng.integers(1, 128, k).astype(np.uint8) for k in (10, width))
    costs = rng.integers(0, 1 << 19, (CLASSES, 128)).astype(np.int32)
    actual = scale_fit.column_costs(symbols, rows, columns, costs, 2)
    row, column = np.divmod(np.arange(symbols.size), width)
    for k, shift in enumerate(range(-4, 5, 2)):
        sums = rows[row].astype(np.int64) + columns[column] - CENTER + shift
        each = costs[np.clip(sums, 0, CLASSES - 1), symbols >> 1]
        np.testing.assert_array_equal(actual[:, k], np.bincount(column, each))


@pytest.mark.parametrize("shape", [(40, 64), (300, 50), (2000,), (64, 8, 3, 3)], ids=str)
def test_refined_scales_reduce_the_cost(shape: tuple[int, ...]) -> None:
    symbols = levels_of(shape)
    n, sizes = symbols.size, symbols >> 1
    for layout in row_layouts(shape):
        before = Scales.of(symbols, layout)
        costs = class_tables.costs(table_choice.plan(symbols, before).table.frequencies)[:, ::2]
        short = (costs >> 16).astype(np.int32)
        columns = before.columns if layout.group else np.full(layout.width, CENTER, np.uint8)
        row, column = np.arange(n) // layout.width, np.arange(n) % layout.width
        arguments = symbols, before.rows, columns, short, layout.quantum
        actual = scale_fit.row_costs(*arguments), scale_fit.column_costs(*arguments)
        for k, shift in enumerate(layout.quantum * np.arange(-2, 3)):
            sums = before.rows[row].astype(np.int64) + columns[column] - CENTER + shift
            each = short[np.clip(sums, 0, CLASSES - 1), sizes]
            for place, totals in zip((row, column), actual, strict=True):
                np.testing.assert_array_equal(totals[:, k], np.bincount(place, each))
        after = refined(symbols, before, costs)
        assert after.decoded_layout.quantum % layout.quantum == 0
        assert ((after.rows == 0) == (before.rows == 0)).all()
        if layout.group:
            assert ((after.columns == 0) == (before.columns == 0)).all()
            each = np.repeat(after.columns[:: layout.group], layout.group)[: layout.width]
            np.testing.assert_array_equal(after.columns, each)
        symbol_costs = [
            int(short[classes_of(scales, n), sizes].sum()) >> 12 for scales in (before, after)
        ]
        assert symbol_costs[1] + after.nbits() <= 1.01 * (symbol_costs[0] + before.nbits())


def test_few_symbols_keep_their_scales() -> None:
    symbols = levels_of((30, 34))
    scales = Scales.of(symbols, RowLayout(34, 1))
    assert refined(symbols, scales, np.zeros((CLASSES, 128), np.int64)) is scales


def test_row_layouts() -> None:
    assert row_layouts(()) == (RowLayout(1, 0),)
    assert row_layouts((100,)) == (RowLayout(100, 0),)
    assert row_layouts((1000,)) == (RowLayout(128, 0), RowLayout(1000, 0))
    blocks = RowLayout(128, 0), RowLayout(2048, 0)
    assert row_layouts((64, 32)) == (RowLayout(32, 1), RowLayout(32, 1, 2), *blocks)
    assert row_layouts((4, 32)) == (RowLayout(128, 0),)
    wide = RowLayout(576, 1), RowLayout(576, 9), RowLayout(9, 1)
    assert row_layouts((128, 64, 3, 3)) == (*wide, RowLayout(128, 0), RowLayout(73728, 0))
    assert row_layouts((64, 16, 1, 1))[:2] == (RowLayout(16, 1), RowLayout(16, 1, 2))


@pytest.mark.parametrize("count", [1, 2, 63, 3000])
def test_lists_of_scales(count: int) -> None:
    rng = np.random.default_rng(count)
    all_values = [np.zeros(count), np.full(count, 127), rng.integers(0, 128, count)]
    all_values.append(rng.normal(40, 3, count).round().clip(1, 127) * (rng.random(count) < 0.8))
    all_values.append(2 * rng.normal(20, 2, count).round())
    all_values.append(rng.normal(40, 1, count).round() * (rng.random(count) < 0.02))
    codes, shifts = set(), set()
    for scales in all_values:
        string = BitString()
        string.extend(np.array([0xE0], np.uint8), 3)
        scale_lists.write(scales.astype(np.uint8), string)
        nbits, data = string.nbits, string.trimmed()
        decoded, end = scale_lists.read(data, 3, nbits, count)
        np.testing.assert_array_equal(decoded, scales)
        assert end == nbits
        if count < 256:  # Longer lists are estimated.
            assert scale_lists.nbits(scales.astype(np.uint8)) == nbits - 3
        codes.add(int(data[0]) >> 3 & 3)
        shifts.add(int(data[0]) >> 1 & 3)
        for cut in range(0, nbits, max(nbits // 40, 1)):
            with pytest.raises(FormatError):
                scale_lists.read(data[: -(-cut // 8)], 3, cut, count)
    assert count < 3000 or len(codes) > 1
    assert count < 63 or {0, 1} <= shifts


def test_lists_of_scales_beyond_the_largest_are_refused() -> None:
    """A list in rANS, whose numbers are steps of 2 from the least scale on, plus 1."""
    for number, is_valid in ((14, True), (15, False), (200, False)):
        string = BitString()
        string.extend(np.packbits([1, 0, 0, 1, *(int(bit) for bit in f"{100:07b}")]), 11)
        coded = RANS().encode(np.array([0, 1, number]))
        string.extend(coded.data, coded.nbits)
        data = string.trimmed()
        if is_valid:
            scales, _ = scale_lists.read(data, 0, string.nbits, 3)
            assert scales.tolist() == [0, 100, 126]
        else:
            with pytest.raises(Corrupt, match="a scale that is not from 0 to 127"):
                scale_lists.read(data, 0, string.nbits, 3)


def string_of_models(first: int, last: int, *models: tuple[int, int, list[int]]) -> BitString:
    """Return models of bytes: the classes, and the range and the frequencies of each."""
    string = BitString()
    string.extend(np.packbits([int(bit) for bit in f"{first:06b}{last:06b}"]), 12)
    for low, high, frequencies in models:
        string.extend(np.array([low, high], np.uint8), 16)
        write_sized(np.array(frequencies, np.int64), string)
    return string


def test_models_of_bytes_that_contradict_themselves_are_refused() -> None:
    total = byte_coder.TOTAL
    wrong = (
        (9, 8, [], "models of the classes 9 to 8"),
        (9, 9, [(0, 1, [1, 2, total - 3])], "a model of the bytes 0 to 1"),
        (9, 9, [(7, 5, [])], "a model of the bytes 7 to 5"),
        (9, 9, [(2, 1, [total])], "a model of the bytes 2 to 1"),
        (9, 9, [(4, 5, [1, 2, total - 4])], "frequencies of a class do not add up to 4096"),
        (9, 9, [(4, 5, [1, 2, total - 2])], "frequencies of a class do not add up to 4096"),
        (9, 9, [(1, 0, [0])], "the first class has no model"),
    )
    for first, last, models, error in wrong:
        string = string_of_models(first, last, *models)
        with pytest.raises(Corrupt, match=error):
            byte_coder.read_models(string.trimmed(), 0, string.nbits)
    string = string_of_models(9, 11, (4, 5, [1, 2, total - 3]), (1, 0, [0]), (1, 0, [total]))
    models, end = byte_coder.read_models(string.trimmed(), 0, string.nbits)
    assert end == string.nbits
    wide = np.zeros((CLASSES, 256), np.int64)
    wide[:11, [0, 4, 5]] = 1, 2, total - 3
    wide[11:, 0] = total
    assert np.array_equal(models, wide)


@pytest.mark.parametrize("seed", range(12))
def test_long_lists_take_the_shortest_code(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2048, 6000))
    scales = rng.normal(60, rng.choice([0.2, 1, 4, 20]), count).round().clip(1, 127)
    scales = (scales * (rng.random(count) >= rng.choice([0, 0.02, 0.9]))).astype(np.uint8)
    parameters = list_kernels.list_parameters(scales)
    wide = scales.astype(np.int64)
    above = np.where(wide > 0, (wide - parameters.least >> parameters.shift) + 1, 0)
    lengths = parameters.rice_nbits, parameters.words_nbits, RANS().encode(above).nbits
    string = BitString()
    scale_lists.write(scales, string)
    assert string.nbits == 11 + min(lengths)  # after code, shift and least scale


@pytest.mark.parametrize("spread", [0.3, 1, 5])
@pytest.mark.parametrize("count", [1023, 1024, 1500])
def test_damaged_long_lists_of_words(count: int, spread: float) -> None:
    """Several words are read at once, but the list has the scales or errors of single words."""
    rng = np.random.default_rng(count)
    scales = 4 * rng.normal(28, spread, count).round().clip(1, 31)
    scales[rng.random(count) < 0.01] = 0
    numbers = scales.astype(int).tolist()
    text = contexts.write_list(numbers, contexts.list_of(numbers, contexts.HUFFMAN))
    refused = 0
    for trial in range(60):
        bits = [*text]
        if trial:
            at = int(rng.integers(*((4, 11), (11, 120), (120, len(bits)))[trial % 3]))
            bits[at] = "1" if bits[at] == "0" else "0"
        end = len(bits) - trial % 4
        data = np.frombuffer(to_bytes("".join(bits)), np.uint8)
        try:
            expected, _ = contexts.read_list(reader := Bits("".join(bits)[:end]), count)
        except (universal.Corrupt, universal.Truncated):
            refused += 1
            with pytest.raises(FormatError):
                scale_lists.read(data, 0, end, count)
        else:
            decoded, after = scale_lists.read(data, 0, end, count)
            assert (decoded.tolist(), after) == (expected, reader.at)
    assert 10 < refused < 58


def test_long_list_with_one_scale_beyond_the_largest() -> None:
    numbers = [100] * 700 + [104] + [100] * 700
    text = contexts.write_list(numbers, contexts.list_of(numbers, contexts.HUFFMAN))
    for least in (100, 123, 124):
        wrong = f"{text[:4]}{least:07b}{text[11:]}"
        data = np.frombuffer(to_bytes(wrong), np.uint8)
        if least <= 123:
            scales, _ = scale_lists.read(data, 0, len(wrong), len(numbers))
            assert scales[[0, 700, -1]].tolist() == [least, least + 4, least]
        else:
            with pytest.raises(Corrupt, match="a scale that is not from 0 to 127"):
                scale_lists.read(data, 0, len(wrong), len(numbers))


@pytest.mark.parametrize("kinds", [2, 3, 5, 9, 10, 11, 12, 13, 14, 15, 16])
@pytest.mark.parametrize("increment", [0, 1])
def test_longest_scale_lists(kinds: int, increment: int) -> None:
    counts = [1, 1]
    while len(counts) < kinds:
        counts.append(counts[-2] + counts[-1] + increment)
    scales = np.repeat(np.arange(1, kinds + 1), counts).astype(np.uint8)
    actual = list_kernels.list_parameters(scales)
    coins = sorted(counts)
    lists: list[int] = []
    for _ in range(12):  # Bits of the longest codeword.
        lists = sorted([*coins, *map(sum, zip(lists[::2], lists[1::2], strict=False))])
        lists = lists[: 2 * kinds - 2]
    assert actual.words_nbits == 8 + 4 * (kinds + 1) + sum(lists)


def test_static_tables() -> None:
    for number, table in enumerate(class_tables.statics()):
        assert table.number == number
        actual = table.frequencies
        assert actual.shape == (CLASSES, 256)
        assert (actual.sum(axis=1) == TOTAL).all()
        assert not actual[:, 1].any()
        assert not actual[:, ESCAPE + 1].any()
        assert actual[:, 0].min() > 0
        assert actual[:, ESCAPE].min() > 0
        assert actual.max() < TOTAL
        np.testing.assert_array_equal(actual[:, 2:ESCAPE:2], actual[:, 3:ESCAPE:2])
        has_frequency = actual[:, 2:ESCAPE:2] > 0
        np.testing.assert_array_equal(has_frequency.sum(axis=1), table.tops)
        assert (np.sort(has_frequency, axis=1)[:, ::-1] == has_frequency).all()


@pytest.mark.parametrize("seed", range(6))
def test_own_tables(seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = np.zeros((CLASSES, 256), np.int64)
    used = rng.choice(CLASSES, rng.integers(1, CLASSES), replace=False)
    for row in used:
        top = int(rng.integers(0, 128))
        counts[row, : 2 * top + 2] = rng.geometric(2.0 ** -rng.integers(0, 20), 2 * top + 2)
    counts[:, 1] = 0
    table = ClassTable.own(counts)
    assert (table.frequencies.sum(axis=1) == TOTAL).all()
    assert table.frequencies.min() >= 0
    assert table.frequencies[:, 0].min() > 0
    string = BitString()
    table.put(string)
    nbits, data = string.nbits, string.trimmed()
    assert nbits == table.sent_nbits()
    decoded, end = ClassTable.read(SENT, data, 0, nbits)
    assert end == nbits
    np.testing.assert_array_equal(decoded.frequencies, table.frequencies)
    for cut in range(0, nbits, max(nbits // 50, 1)):
        with pytest.raises(Truncated):
            ClassTable.read(SENT, data, 0, cut)


def test_tables_of_no_class_are_refused() -> None:
    data = np.packbits([int(bit) for bit in f"{9:06b}{8:06b}"])
    with pytest.raises(Corrupt, match="a class table contains the classes 9 to 8"):
        ClassTable.read(SENT, data, 0, 12)


def write_string(
    symbols: np.ndarray, shape: tuple[int, ...]
) -> tuple[np.ndarray, int, np.ndarray, table_choice.Plan]:
    """Return the string, its number of bits, the symbols of its outliers, and its plan."""
    scales = Scales.of(symbols, best_layout(symbols, row_layouts(shape)))
    plan = table_choice.plan(symbols, scales)
    escapes = int((symbols == ESCAPE).sum())
    outlier_symbols = ESCAPE + np.arange(escapes, dtype=np.int64) ** 2
    data, nbits, _ = coder.write(plan, symbols, outlier_symbols, BitString())
    return data, nbits, outlier_symbols, plan


def read_symbols(data: np.ndarray, nbits: int, n: int) -> np.ndarray:
    """Return all symbols, with outliers in their positions."""
    string, out = coder.open(BitSpan(data, 0, nbits), n), np.empty(n, np.int64)

    def take(at: int, part: np.ndarray) -> None:
        out[at : at + part.size] = part

    assert string.read(take) == nbits
    out[string.outliers.positions] = string.outliers.symbols
    return out


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_round_trip(shape: tuple[int, ...], seed: int) -> None:
    symbols = levels_of(shape, seed, spread=float(seed))
    data, nbits, outlier_symbols, plan = write_string(symbols, shape)
    decoded = read_symbols(data, nbits, symbols.size)
    np.testing.assert_array_equal(np.minimum(decoded, ESCAPE), symbols)
    np.testing.assert_array_equal(decoded[symbols == ESCAPE], outlier_symbols)
    if symbols.size > 10_000:
        assert plan.nbits == pytest.approx(nbits, rel=0.05)


@pytest.mark.parametrize("lanes", coder.STATES)
def test_states(lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_choice, "STATES", (lanes,))
    symbols = levels_of((70, 1100))
    for n in (1, lanes - 1, lanes, lanes + 1, symbols.size):
        data, nbits, _, _ = write_string(symbols[:n], (n,))
        assert int(data[1]) & 127 == lanes
        decoded = read_symbols(data, nbits, n)
        np.testing.assert_array_equal(np.minimum(decoded, ESCAPE), symbols[:n])


def test_outliers_take_few_bits() -> None:
    arguments = Outliers(np.array([0, 1, 1000]), np.array([254, 2, 70000]))
    string = BitString()
    arguments.put(string)
    nbits, data = string.nbits, string.trimmed()
    decoded, end = Outliers.read(3, 1001, data, 0, nbits)
    assert end == nbits
    for one, other in zip(decoded, arguments, strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(Corrupt, match="1000 of 1000"):
        Outliers.read(3, 1000, data, 0, nbits)
    with pytest.raises(Truncated):
        Outliers.read(3, 1001, data, 0, nbits - 20)
    assert decoded.within(1, 1000) == slice(1, 2)


def test_damaged_bytes_decode_or_are_refused() -> None:
    rng = np.random.default_rng(5)
    sample = [write_string(levels_of(shape, 1), shape) for shape in SHAPES[:-1]]
    sizes = [int(np.prod(shape)) for shape in SHAPES[:-1]]
    kinds = set()
    for i in range(3000):
        at = i % len(sample)
        data, nbits = sample[at][0].copy(), sample[at][1]
        for _ in range(rng.integers(1, 4)):
            data[rng.integers(0, min(data.size, 40 if i % 2 else data.size))] = rng.integers(
                0, 256
            )
        cut = int(rng.integers(0, data.size + 1)) if i % 5 == 0 else data.size
        try:
            read_symbols(data[:cut], min(nbits, 8 * cut), sizes[at])
        except FormatError as error:
            kinds.add(type(error))
    assert kinds == {Corrupt, Truncated}


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (0, 200, "table 200"),
        (1, 3, "3 states"),
        (1, 0, "0 states"),
        (2, 0, "rows of 0"),
        (2, 7, "rows of 7"),
        (3, 65, "65 of 64 columns"),
    ],
)
def test_refusals(at: int, value: int, message: str) -> None:
    data, nbits, _, plan = write_string(levels_of((64, 64)), (64, 64))
    assert plan.scales.columns.size
    data = data.copy()
    data[at] = value
    with pytest.raises(Corrupt, match=message):
        coder.open(BitSpan(data, 0, nbits), 4096)


def test_escapes_must_be_outliers() -> None:
    symbols = levels_of((64, 64))
    scales = Scales.of(symbols, RowLayout(64, 1))
    table = ClassTable.static(0)
    plan = table_choice.Plan(scales, table, 5000)
    small = np.array(np.minimum(symbols, 2), np.uint8)
    data, nbits, _ = coder.write(plan, small, np.empty(0, np.int64), BitString())
    decoded = read_symbols(data, nbits, small.size)
    np.testing.assert_array_equal(decoded, small)
    small[77] = ESCAPE
    with_outlier = coder.write(plan, small, np.array([300]), BitString())
    assert read_symbols(with_outlier[0], with_outlier[1], small.size)[77] == 300
    string = coder.open(BitSpan(with_outlier[0], 0, with_outlier[1]), small.size)
    for places in (np.empty(0, np.int64), np.array([78]), np.array([77, 78])):
        wrong = string._replace(outliers=Outliers(places, places))
        with pytest.raises(Corrupt, match="escape"):
            wrong.read(lambda at, part: None)
