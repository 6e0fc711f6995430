"""Make ``gcodec/entropy/context/class_tables.txt``: the static tables of classes.

    python tools/class_tables.py DUMP...

Every tensor of the dumps, and generalized normal matrices with scales for rows and columns, are
quantized as codecs quantize them: by ecsq at several errors, by qsgd, as ternary digits and as
minifloats. Each result is a table of counts of magnitudes by class. The static tables are the
centers of a clustering of these counts by their coded bits: each tensor is assigned to its best
table, and each table is recomputed from its tensors, until nothing changes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import gcodec
from gcodec.codecs.ecsq import deadzone
from gcodec.codecs.ecsq.rate_control import Target
from gcodec.entropy.context import class_tables
from gcodec.entropy.context.class_tables import ClassTable
from gcodec.entropy.context.scale_model import ONE, Scales, matrices
from gcodec.entropy.context.table_choice import best_layout
from gcodec.kernels.context import class_map
from gcodec.kernels.context.class_map import CLASSES
from gcodec.kernels.quantize.scalar_quantize import ESCAPE, MOST
from gcodec.tensorfiles.dumps import open_dump

TABLES = 12
ERRORS = (0.0005, 0.002, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
LEVELS = (1, 3, 7, 15, 40)  # levels of qsgd
SHAPES = (0.35, 0.5, 0.7, 1.0, 1.4, 2.0)  # shape parameters of generalized normal distributions
SPREADS = (0.0, 0.7, 1.5)  # standard deviation of the scales of rows and columns in octaves
MINIFLOATS = tuple(f"minifloat:format={f}" for f in ("e2m1", "e2m1,style=ieee", "e1m2", "e2m2"))
THRESHOLDS = (0.5, 1.0, 1.6, 2.5)  # thresholds of ternary digits, in root mean squares
LEAST = 2048  # fewest elements of a tensor that counts
MANY = 1 << 19  # most elements of a tensor; larger ones are cut
PRIOR = 0.003  # weight of the prior: a geometric distribution with the expected magnitude
BESIDE = 0.05  # share of a class that is moved to its neighbors
ROUNDS = 30
SCALE = 1e9  # factor from shares to integers


def tensors(paths: list[str]) -> Iterator[np.ndarray]:
    """Yield the tensors of dumps as matrices, then drawn matrices."""
    for path in paths:
        with open_dump(path) as dump:
            for entry in dump.entries:
                x = np.asarray(dump.load(entry), np.float32)
                if x.size >= LEAST:
                    x = x.reshape(x.shape[0], -1) if x.ndim > 1 else x
                    yield x[: max(MANY * len(x) // x.size, 1)]
    rng = np.random.default_rng(2026)
    for beta in SHAPES:
        for spread in SPREADS:
            size = rng.gamma(1 / beta, 1.0, (512, 256)) ** (1 / beta)
            x = size * rng.choice([-1.0, 1.0], size.shape)
            x *= np.exp2(rng.normal(0, spread, (512, 1)) + rng.normal(0, spread, 256))
            yield x.astype(np.float32)


def samples(x: np.ndarray) -> Iterator[np.ndarray]:
    """Yield (64, 128) counts of magnitudes by class for each way to quantize a tensor."""
    flat = np.ascontiguousarray(x).reshape(-1)
    if not flat.any():
        return
    for error in ERRORS:
        target = Target(flat, x.shape, deadzone.DeadZoneQuantizer())
        step, matrix, _ = target.step_for_error(error)
        levels = deadzone.DeadZoneQuantizer().quantize(flat, step, matrix)
        assert levels.scales is not None
        yield counts(levels.symbols, levels.scales)
    for s in LEVELS:
        codec = gcodec.parse(f"qsgd:s={s},norm=max,bucket=2048")
        yield fitted(codec.quantize(flat, seed=s).levels, x.shape)
    for spec in MINIFLOATS:
        codec = gcodec.parse(spec)
        y = codec.dequantize(codec.quantize(flat), flat.size)
        sizes = np.unique(np.abs(y))
        index = np.searchsorted(sizes, np.abs(y)) + (sizes[0] > 0)
        yield fitted((2 * index + (y < 0)).astype(np.uint8), x.shape)
    rms = np.sqrt(np.mean(np.square(flat, dtype=np.float64)))
    for share in THRESHOLDS:
        sent = np.abs(flat) > share * rms
        yield fitted(np.where(sent, 2 + (flat < 0), 0).astype(np.uint8), x.shape)


def fitted(symbols: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Count symbols by class, with the best scales for the symbols."""
    return counts(symbols, Scales.of(symbols, best_layout(symbols, matrices(shape))))


def counts(symbols: np.ndarray, of: Scales) -> np.ndarray:
    """Count the magnitudes in each class."""
    class_counts = class_map.class_counts(symbols, [of.arrays], 1)
    return class_counts.reshape(CLASSES, -1, 2).sum(axis=2)


def prior() -> np.ndarray:
    """Return the geometric distribution of each class with the mean that the class represents."""
    mean = np.exp2((np.arange(CLASSES) - ONE) / 4)[:, None]
    return 1 / (1 + mean) * (mean / (1 + mean)) ** np.arange(MOST + 2)


def blended(class_counts: np.ndarray) -> np.ndarray:
    """Return shares of magnitudes: counts, blended with neighboring classes and the prior."""
    wide = class_counts.astype(np.float64)
    wide[1:] += BESIDE * class_counts[:-1]
    wide[:-1] += BESIDE * class_counts[1:]
    wide += (PRIOR * wide.sum(axis=1, keepdims=True) + 1e-3 * wide.sum() / CLASSES) * prior()
    return wide / wide.sum(axis=1, keepdims=True)


def table(shares: np.ndarray) -> ClassTable:
    """Return the static table for shares of magnitudes."""
    each = np.zeros((CLASSES, 256), np.int64)
    each[:, ::2] = shares * SCALE
    return ClassTable.own(each)


def clustered(all_counts: list[np.ndarray]) -> list[ClassTable]:
    """Return tables that locally minimize the total bits of all counts."""
    # A tensor counts by the root of its bits: large ones may have a table of their own.
    weights = [1 / np.sqrt(each.sum()) for each in all_counts]
    wide = [np.repeat(each, 2, axis=1) * np.tile([1, 0], MOST + 2) for each in all_counts]
    start = table(blended(sum(w * each for w, each in zip(weights, all_counts, strict=True))))
    excess = [start.nbits(each) / (1 + each[:, 2:].sum()) for each in wide]
    places = np.argsort(np.argsort(excess)) * TABLES // len(all_counts)
    for _ in range(ROUNDS):
        tables = []
        for k in range(TABLES):
            mine = [w * e for w, e, at in zip(weights, all_counts, places, strict=True) if at == k]
            tables.append(table(blended(sum(mine))) if mine else start)
        sizes = np.array([[each.nbits(one) for each in tables] for one in wide])
        print(f"{(sizes.min(axis=1) / np.array([e.sum() for e in all_counts])).mean():.5f} bits")
        if (sizes.argmin(axis=1) == places).all():
            break
        places = sizes.argmin(axis=1)
    return tables


def main() -> None:
    """Write the file of tables."""
    all_counts = [class_counts for x in tensors(sys.argv[1:]) for class_counts in samples(x)]
    lines = ["# escape, then the magnitudes from 1 on with one sign; see class_tables.py"]
    for number, class_table in enumerate(clustered(all_counts)):
        lines.append(f"# table {number}")
        for row, top in zip(class_table.frequencies, class_table.tops.tolist(), strict=True):
            lines.append(" ".join(map(str, [row[ESCAPE], *row[2 : 2 * top + 2 : 2]])))
    path = Path(class_tables.__file__).with_name("class_tables.txt")
    path.write_text("\n".join(lines) + "\n", "ascii")


if __name__ == "__main__":
    main()
