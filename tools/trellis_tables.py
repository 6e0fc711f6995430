"""Make ``gcodec/entropy/context/trellis_tables.txt``: static tables of the trellis quantizer.

    python tools/trellis_tables.py DUMP...

The procedure is that of `class_tables`, for levels that ecsq chooses with a trellis. These levels
depend on the table used by the search, so each tensor is quantized repeatedly: at first with a
table of geometric distributions, then with the table of the preceding levels.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from class_tables import ERRORS, ROUNDS, SCALE, blended, prior, tensors

from gcodec.codecs.ecsq import deadzone
from gcodec.codecs.ecsq import trellis as trellis_quantizer
from gcodec.codecs.ecsq.rate_control import Target
from gcodec.codecs.ecsq.trellis import Setting
from gcodec.entropy.context import class_tables, table_choice
from gcodec.entropy.context.class_tables import SENT, ClassTable
from gcodec.entropy.context.models import TrellisSymbols
from gcodec.entropy.context.trellis_tables import LEVELS, TrellisTable
from gcodec.kernels.context.class_map import CLASSES
from gcodec.kernels.quantize import scalar_quantize, trellis
from gcodec.kernels.quantize.scalar_quantize import ESCAPE
from gcodec.kernels.quantize.trellis import QUANTIZERS

TABLES = 12
TURNS = 20  # rounds of levels and their table for each tensor
MANY = 1 << 17  # most elements of a tensor; larger ones are cut


def samples(x: np.ndarray) -> Iterator[np.ndarray]:
    """Yield (2, 64, 128) counts of magnitudes by quantizer and class, for each error."""
    x = np.ascontiguousarray(x[: max(MANY * len(x) // x.size, 1)])
    flat = x.reshape(-1)
    for error in ERRORS if flat.any() else ():
        target = Target(flat, x.shape, deadzone.DeadZoneQuantizer())
        step, matrix, _ = target.step_for_error(error)
        scales = deadzone.scales_at(flat, step, matrix)
        plain = np.empty(flat.size, np.uint8)
        scalar_quantize.plain_levels(flat, np.float32(step), plain)
        start = table(np.stack([prior()] * QUANTIZERS) * SCALE)
        for _ in range(TURNS):
            lanes = table_choice.lanes_of(table_choice.plan(plain, scales).nbits)
            by = Setting(scales, lanes, start, np.zeros(3, np.float32))
            quantized, _ = trellis_quantizer.best(flat, step, by)
            assert quantized.scales is not None
            counts = TrellisSymbols.of(
                quantized.symbols, quantized.scales, quantized.lanes
            ).counts(0)
            levels = np.stack(trellis.level_counts(counts))
            magnitudes = levels.reshape(QUANTIZERS, CLASSES, -1, 2).sum(axis=3)
            start = table(magnitudes)
        yield magnitudes


def table(counts: np.ndarray) -> TrellisTable:
    """Return the static table for counts of magnitudes."""
    wide = np.zeros((QUANTIZERS, CLASSES, 256), np.int64)
    wide[:, :, ::2] = [blended(class_counts) * SCALE for class_counts in counts]
    first, second = (ClassTable.own(each, LEVELS) for each in wide)
    return TrellisTable(SENT, (first, second))


def nbits(tables: list[TrellisTable], counts: np.ndarray) -> np.ndarray:
    """Return the bits of counts of magnitudes with each table."""
    total = np.zeros(len(tables), np.int64)
    for q, each in enumerate(counts):
        costs = [class_tables.costs(one.tables[q].frequencies)[:, ::2] for one in tables]
        total += class_tables.nbits(each, class_tables.joined_costs(costs))
    return total


def clustered(all_counts: list[np.ndarray]) -> list[TrellisTable]:
    """Return tables that locally minimize the total bits of all counts."""
    counts = np.stack(all_counts)
    sizes = counts.sum(axis=(1, 2, 3))
    weighted = counts / np.sqrt(sizes)[:, None, None, None]
    start = table(weighted.sum(axis=0))
    excess = [nbits([start], each)[0] / (1 + each[:, :, 1:].sum()) for each in counts]
    places = np.argsort(np.argsort(excess)) * TABLES // len(all_counts)
    for _ in range(ROUNDS):
        mine = [weighted[places == k] for k in range(TABLES)]
        tables = [table(cluster.sum(axis=0)) if len(cluster) else start for cluster in mine]
        each = np.array([nbits(tables, one) for one in counts])
        print(f"{(each.min(axis=1) / sizes).mean():.5f} bits", flush=True)
        if (each.argmin(axis=1) == places).all():
            break
        places = each.argmin(axis=1)
    return tables


def main() -> None:
    """Write the file of tables."""
    all_counts = [class_counts for x in tensors(sys.argv[1:]) for class_counts in samples(x)]
    lines = ["# escapes, then the levels from 1 on with one sign; see tools/trellis_tables.py"]
    for number, one in enumerate(clustered(all_counts)):
        for q, half in enumerate(one.tables):
            lines.append(f"# table {number}, quantizer {q}")
            for row, top in zip(half.frequencies, half.tops.tolist(), strict=True):
                lines.append(" ".join(map(str, [row[ESCAPE], *row[2 : 2 * top + 2 : 2]])))
    path = Path(class_tables.__file__).with_name("trellis_tables.txt")
    path.write_text("\n".join(lines) + "\n", "ascii")


if __name__ == "__main__":
    main()
