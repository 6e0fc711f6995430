"""ecsq with a trellis: agreement with the oracle, best paths, targets, gains, damaged bytes."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference import ecsq, trellis
from reference.contexts import String
from reference.universal import payload_bits, to_bytes

import gcodec
from gcodec import Corrupt, FormatError, ParameterError
from gcodec.entropy import rans
from gcodec.entropy.coder import BitSpan
from gcodec.entropy.context import coder, table_choice, trellis_tables
from gcodec.entropy.context import models as context_models
from gcodec.entropy.context.class_tables import SENT
from gcodec.entropy.context.models import TrellisSymbols
from gcodec.entropy.context.outliers import Outliers
from gcodec.entropy.context.trellis_tables import TrellisTable
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.context import lane_order
from gcodec.kernels.context.class_map import CLASSES
from gcodec.kernels.quantize import trellis_search
from gcodec.kernels.quantize.trellis import ODD, model_counts, symbols_nbits
from gcodec.kernels.rans import rans_string
from gcodec.payload import Payload
from gcodec.tensorfiles.dumps import open_dump

EXAMPLE = Path(__file__).parents[2] / "examples" / "resnet8_digits_step0300.safetensors"
RUN, BLOCK = 1 << 16, 1 << 18
LANES = (2, 8, 32)


def matrix(rows: int, columns: int, seed: int = 0, beta: float = 1.0) -> np.ndarray:
    """Return generalized normal values whose rows and columns have scales that vary by octaves."""
    rng = np.random.default_rng(seed)
    x = rng.gamma(1 / beta, 1.0, (rows, columns)) ** (1 / beta) * rng.choice(
        [-1, 1], (rows, columns)
    )
    x *= np.exp2(rng.normal(0, 1, (rows, 1)) + rng.normal(0, 1, columns))
    return x.astype(np.float32)


def oracle_read(payload: Payload, shape: tuple[int, ...]) -> tuple[String, np.ndarray]:
    """Return the oracle's string and values of a payload."""
    scalars, n = dict(payload.scalars), math.prod(shape)
    step = np.float32(scalars.pop("step"))
    sizes = ecsq.taps(shape) if scalars.pop("transform") == "dct" else None
    arguments = payload.tobytes(), payload.nbits, n, step, tuple(scalars.values())
    string, values = ecsq.read(*arguments, with_trellis=True, sizes=sizes)
    assert string is not None
    return string, values


@pytest.mark.parametrize(
    ("shape", "lanes"),
    [*itertools.product([(1,), (7,), (33,), (64, 65)], LANES), ((259, 257), max(LANES))],
    ids=str,
)
def test_levels_follow_the_specification(
    shape: tuple[int, ...], lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_choice, "lanes_of", lambda nbits: lanes)
    x = matrix(*shape) if len(shape) > 1 else matrix(1, *shape)[0]
    x.reshape(-1)[:: max(x.size // 5, 3)] *= 500  # Outliers of both parities.
    codec = gcodec.parse(f"ecsq:trellis=yes,step={0.5 * np.abs(x).mean():.4f}")
    payload = codec.encode(x)
    decoded = codec.decode(payload, x.shape)
    string, values = oracle_read(payload, x.shape)
    np.testing.assert_array_equal(decoded.reshape(-1), values)
    assert to_bytes(trellis.write(string)) == payload.tobytes()
    symbols = payload.codec.unpack(payload, x.shape)
    again = payload.codec.pack(symbols)
    assert again.nbits == payload.nbits
    np.testing.assert_array_equal(again.data, payload.data)
    quantized = codec.quantize(x)
    np.testing.assert_array_equal(quantized.symbols, symbols.symbols)
    np.testing.assert_array_equal(quantized.outliers, symbols.outliers)


def test_own_table_round_trip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trellis_tables, "statics_nbits", lambda counts: np.array([1 << 40]))
    x = matrix(160, 250, beta=0.4)
    payload = gcodec.parse("ecsq:trellis=yes,nmse=0.05").encode(x)
    string, values = oracle_read(payload, x.shape)
    assert not isinstance(string.table, int)
    decoded = payload.codec.decode(payload, x.shape)
    np.testing.assert_array_equal(decoded.reshape(-1), values)
    assert to_bytes(trellis.write(string)) == payload.tobytes()


@pytest.mark.parametrize("n", [5, 1000, RUN + 3, 2 * BLOCK + 40])
def test_all_decoders_agree(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = matrix(1, n)[0]
    codec = gcodec.parse("ecsq:trellis=yes,step=1.5")
    payload, all_values = codec.encode(x), []
    all_values.append(payload.codec.decode(payload, x.shape))
    all_values.append(payload.codec.decode(payload._replace(seek=None), x.shape))
    monkeypatch.setattr(rans_string, "vector_width", lambda: 0)
    again = codec.encode(x)
    np.testing.assert_array_equal(again.data, payload.data)
    all_values.append(payload.codec.decode(payload, x.shape))
    for actual in all_values[1:]:
        np.testing.assert_array_equal(actual, all_values[0])


@functools.cache
def places_of(n: int, lanes: int) -> list[int]:
    """Return the order of the oracle, which takes long."""
    return trellis.order(n, lanes)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("n", [1, 31, 32, 1000, RUN - 1, RUN, 2 * RUN + 12_345])
@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_the_order_of_lanes(kind: Any, n: int, lanes: int) -> None:
    x = np.random.default_rng(n).integers(0, 256, n).astype(kind)
    turns, back = np.empty_like(x), np.empty_like(x)
    lane_order.to_turns(x, lanes, turns)
    places = places_of(n, lanes)
    np.testing.assert_array_equal(turns, x[places])
    lane_order.from_turns(turns, lanes, back)
    np.testing.assert_array_equal(back, x)
    np.testing.assert_array_equal(lane_order.positions_of(np.arange(n), n, lanes), places)


def test_prices_by_symbol_and_by_counts_agree() -> None:
    x = matrix(70, 130)
    x[::9, ::11] *= 200  # Values that need escape codes.
    quantized = gcodec.parse("ecsq:trellis=yes,step=1.5").quantize(x)
    coded = TrellisSymbols(quantized.symbols, quantized.scales, quantized.lanes)
    symbols, models = coded.coded(0, x.size)
    counts = model_counts(symbols, models, 0)
    pairs = list(zip(models.tolist(), symbols.tolist(), strict=True))
    assert counts.sum() == x.size
    assert all(counts[pair] == pairs.count(pair) for pair in pairs[:50])
    for table in trellis_tables.statics():
        each = symbols_nbits(symbols, models, table.costs, rans.POINT)
        assert each == table.nbits(counts)


@pytest.mark.parametrize("spec", ["step=1", "bits=1.5"])
def test_runs_in_coding_order_are_those_of_the_whole(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many symbols are never in coding order all at once."""
    x = matrix(70, 3 * RUN // 64)
    x[::9, ::1001] *= 200  # Values that need escape codes.
    frame = gcodec.encode(x, f"ecsq:trellis=yes,{spec}")
    monkeypatch.setattr(context_models, "_KEPT", 0)
    monkeypatch.setattr(context_models, "_CODED", RUN)
    monkeypatch.setenv("GCODEC_NUM_THREADS", "1")
    assert gcodec.encode(x, f"ecsq:trellis=yes,{spec}") == frame


@pytest.mark.parametrize("lanes", LANES)
def test_search_finds_the_best_path(lanes: int) -> None:
    rng = np.random.default_rng(lanes)
    n = 9 * lanes + lanes // 2
    x, classes = rng.laplace(0, 3, n).astype(np.float32), rng.integers(20, 50, n).astype(np.uint8)
    costs = rng.gamma(2.0, 1.0, (2, CLASSES, trellis_search.LEVELS)) + 0.3 * np.arange(64)
    offsets = np.array([-0.125, 0.0625, 0.03125], np.float32)
    symbols = np.empty(n, np.uint8)
    flat = costs.astype(np.float32).reshape(-1)
    one = np.float32(1)
    arguments = x, one, lambda i, j, _: classes[i:j], flat, offsets, lanes, 1
    trellis_search.best_levels(*arguments, symbols)
    np.testing.assert_array_equal(symbols & 1, (x < 0) & (symbols > 1))
    coded = trellis.order(n, lanes)

    def cost(at: int, q: int, k: int) -> float:
        h = 2 * k - q if k else 0
        point = h + offsets[min(h, 3) - 1] if h else 0.0
        return float((abs(x[at]) - point) ** 2 + costs[q, classes[at], k])

    for lane in range(lanes):
        lane_elements = coded[lane::lanes]
        best, path_cost, state = {0: 0.0}, 0.0, 0
        for at in lane_elements:
            results: dict[int, float] = {}
            for s, so_far in best.items():
                for parity in (0, 1):
                    # Only the nearest level of each parity, and 0, can be on the best path.
                    ks = range(parity, 40, 2)
                    near = min(ks[parity == 0 :], key=lambda k: abs(2 * k - (s >> 1) - abs(x[at])))
                    least_cost = min(
                        cost(at, s >> 1, k) for k in ((0, near) if not parity else (near,))
                    )
                    t = trellis.after(s, parity)
                    results[t] = min(results.get(t, np.inf), so_far + least_cost)
            best = results
            k = (int(symbols[at] >> 1) + 1) // 2
            path_cost, state = path_cost + cost(at, state >> 1, k), trellis.after(state, k)
        assert path_cost == pytest.approx(min(best.values()), rel=1e-5)


def error_of(x: np.ndarray, spec: str) -> tuple[float, int]:
    """Return the nmse and the bytes of the frame."""
    frame = gcodec.encode(x, spec)
    difference = gcodec.decode(frame).astype(np.float64) - x
    return float((difference**2).sum() / (x.astype(np.float64) ** 2).sum()), len(frame)


def example() -> list[np.ndarray]:
    """Return the tensors of a real gradient with at least 2^14 elements."""
    with open_dump(EXAMPLE) as dump:
        tensors = [np.asarray(dump.load(entry)) for entry in dump.entries]
    return [x for x in tensors if x.size >= 1 << 14]


@pytest.mark.parametrize("target", [0.02, 0.1])
def test_fewer_bits_for_the_same_error(target: float) -> None:
    ratios = []
    for tensors in (example(), [matrix(300, 250)], [matrix(300, 250, beta=0.5)]):
        total = []
        for spec in (f"ecsq:nmse={target}", f"ecsq:trellis=yes,nmse={target}"):
            sizes = [error_of(x, spec) for x in tensors]
            for actual, _ in sizes:
                assert 0.98 * target <= actual <= 1.002 * target
            total.append(sum(size for _, size in sizes))
        ratios.append(total[1] / total[0])
    assert max(ratios) < 0.99
    assert sum(ratios) / len(ratios) < 0.97


def test_fewer_bits_for_parts_of_unequal_scale() -> None:
    scales = np.repeat(np.float32([1, 1 / 8, 1 / 8]), 256)[:, np.newaxis]  # a run of symbols each
    x = (scales * np.random.default_rng(0).laplace(size=(768, 256))).astype(np.float32)
    plain, on_path = (
        len(gcodec.encode(x, f"ecsq:nmse=0.005,trellis={trellis}")) for trellis in ("no", "yes")
    )
    assert on_path < 0.96 * plain


def test_meets_target_bits() -> None:
    # With 14 bits nearly all levels escape; in the heavy-tailed tensor a few values dominate.
    heavy = np.random.default_rng(3).standard_cauchy((200, 400)).astype(np.float32)
    cases = (matrix(300, 200), 0.5), (matrix(100, 70), 3.0), (matrix(100, 70), 14.0), (heavy, 0.1)
    for x, target in cases:
        payload = gcodec.parse(f"ecsq:trellis=yes,bits={target}").encode(x)
        assert 0.97 * target <= payload.nbits / x.size <= target


def test_values_near_the_first_escape_have_levels_without_one() -> None:
    """A cheap escape may be that of a value whose nearest level is small enough for a symbol."""
    rng = np.random.default_rng(2)
    x = (rng.uniform(64, 65, 10_000) * rng.choice([-1, 1], 10_000)).astype(np.float32)
    x[::200] = 62.66
    codec = gcodec.parse("ecsq:step=1,trellis=yes")
    symbols = codec.quantize(x)
    assert symbols.outliers.min() >= ODD
    assert symbols.outliers.size == np.count_nonzero(symbols.symbols >= ODD)
    assert np.abs(codec.dequantize(symbols, x.shape) - x).max() <= 1


def test_half_steps_between_floats() -> None:
    least = np.float32(2.0**-149)
    x = np.random.default_rng(0).normal(0, 5000, 300).astype(np.float32) * least
    for step in (1, 3, 31):
        payload = gcodec.parse(f"ecsq:trellis=yes,step={step * least}").encode(x)
        actual = payload.codec.decode(payload, x.shape)
        np.testing.assert_array_equal(actual, oracle_read(payload, x.shape)[1])
        assert np.abs(actual - x).max() <= step * least
    decoded = gcodec.decode(gcodec.encode(x, "ecsq:trellis=yes,nmse=1e-5"))
    difference = decoded.astype(np.float64) - x
    assert (difference**2).sum() <= 1e-5 * (x.astype(np.float64) ** 2).sum()


@pytest.mark.parametrize("target", ["nmse=0.02", "nmse=0.1", "bits=1.5"])
def test_rate_control_takes_few_path_searches(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched_sizes, best_levels = [0], trellis_search.best_levels

    def counted(x: np.ndarray, *arguments: Any) -> None:
        searched_sizes[-1] += x.size
        best_levels(x, *arguments)

    monkeypatch.setattr(trellis_search, "best_levels", counted)
    normal = np.random.default_rng(0).standard_normal((300, 200)).astype(np.float32)
    for x in (normal, *(matrix(300, 200, beta=beta) for beta in (1.0, 0.6))):
        payload = gcodec.parse(f"ecsq:trellis=yes,{target}").encode(x)
        searched_sizes.append(0)
        gcodec.parse(f"ecsq:trellis=yes,step={payload.codec.step}").encode(x)
        assert searched_sizes[-2] <= 3 * searched_sizes[-1]
        searched_sizes.append(0)


def test_seek_tables_and_ranges() -> None:
    x = matrix(700, 430)
    codec = gcodec.parse("ecsq:trellis=yes,nmse=0.02")
    frame, payload = gcodec.encode(x, codec), codec.encode(x)
    flat, seek = gcodec.decode(frame).reshape(-1), payload.seek
    assert seek is not None and seek.states is not None
    for start, stop in ((0, 1), (65_530, 65_540), (131_072, 131_073), (300_000, x.size)):
        np.testing.assert_array_equal(gcodec.decode_range(frame, start, stop), flat[start:stop])
    for log2_block in (12, 16, 17):
        other = gcodec.Frame.from_bytes(frame).with_seek(log2_block).to_bytes()
        np.testing.assert_array_equal(gcodec.decode(other).reshape(-1), flat)
        part = gcodec.decode_range(other, 70_000, 200_000)
        np.testing.assert_array_equal(part, flat[70_000:200_000])
    states = seek.states.copy()
    states[1, 3] ^= 1 << 20
    wrong = type(seek)(seek.log2_block, seek.lengths, None, states)
    with pytest.raises(Corrupt):
        payload.codec.decode(payload._replace(seek=wrong), x.shape)


def test_empty_and_zero_tensors() -> None:
    for x in (np.empty(0, np.float32), np.zeros((4, 9), np.float32)):
        np.testing.assert_array_equal(gcodec.decode(gcodec.encode(x, "ecsq:trellis=yes")), x)
    with pytest.raises(ParameterError, match="trellis"):
        gcodec.parse("ecsq:rounding=stochastic,trellis=yes")


def test_escape_parity_must_match_the_outlier() -> None:
    x = matrix(30, 40)
    x[3, 4], x[20, 1] = 4000, -5000
    payload = gcodec.parse("ecsq:trellis=yes,step=2").encode(x)
    string = coder.open(BitSpan(payload.data, 0, payload.nbits), x.size, with_trellis=True)
    places, symbols = string.outliers
    assert 124 in places and 801 in places
    for wrong in ((places[1:], symbols[1:]), (places, symbols ^ 4), (places - 1, symbols)):
        other = string._replace(outliers=Outliers(*wrong))
        with pytest.raises(Corrupt, match="escape"):
            other.read(lambda at, part: None)


def test_levels_of_any_quantizer_can_be_written() -> None:
    # A caller may pack levels that no search chose: levels that a quantizer lacks become outliers.
    rng = np.random.default_rng(5)
    x = matrix(50, 60)
    quantized = gcodec.parse("ecsq:trellis=yes,step=1").quantize(x)
    symbols = rng.integers(0, 250, x.size).astype(np.uint8)
    symbols[symbols == 1] = 0
    plan = table_choice.plan(symbols, quantized.scales, lanes=8)
    data, nbits, _ = coder.write(plan, symbols, np.empty(0, np.int64), BitString())
    string = trellis.read(payload_bits(data.tobytes(), nbits), x.size)
    assert string.symbols == symbols.tolist()


def test_damaged_bytes_are_refused() -> None:
    x = matrix(40, 50)
    payload = gcodec.parse("ecsq:trellis=yes,nmse=0.02").encode(x)
    rng, refused = np.random.default_rng(0), 0
    for _ in range(200):
        data = payload.data.copy()
        data[rng.integers(data.size)] ^= 1 << rng.integers(8)
        try:
            decoded = payload.codec.decode(payload._replace(data=data), x.shape)
        except FormatError:
            refused += 1
        else:
            assert np.isfinite(decoded).all()
    assert refused > 150
    for cut in range(0, payload.data.size, 40):
        short = payload._replace(data=payload.data[:cut], nbits=8 * cut)
        with pytest.raises(FormatError):
            payload.codec.decode(short, x.shape)


def test_tables_round_trip() -> None:
    for table in trellis_tables.statics():
        assert (table.frequencies.sum(axis=1) == 4096).all()
        sent, string = (
            TrellisTable(SENT, tuple(dataclasses.replace(t, number=SENT) for t in table.tables)),
            BitString(),
        )
        sent.put(string)
        data, nbits = string.trimmed(), sent.sent_nbits()
        decoded, at = TrellisTable.read(SENT, data, 0, nbits)
        assert at == nbits
        np.testing.assert_array_equal(decoded.frequencies, table.frequencies)
    with pytest.raises(Corrupt, match="unknown"):
        TrellisTable.read(len(trellis_tables.statics()), data, 0, nbits)


def test_models_follow_the_trellis_state() -> None:
    x = matrix(90, 80)
    quantized = gcodec.parse("ecsq:trellis=yes,step=1").quantize(x)
    coded = TrellisSymbols(quantized.symbols, quantized.scales, quantized.lanes)
    symbols, models = coded.coded(0, x.size)
    h = symbols[symbols < ODD] >> 1
    second_quantizer = models[symbols < ODD] >> 6
    assert ((h % 2 == second_quantizer) | (h == 0)).all()
    assert coded.counts(0).sum() == x.size
