"""Make ``gcodec/contexts/trellis_tables.txt``: the static tables of a trellis' two quantisers.

    python tools/trellis_tables.py DUMP...

As `class_tables`, of levels that ecsq finds with a trellis. These depend on the tables by which
they are found: the first are geometric distributions, and tables are made of levels, and levels
found with them, several times. What each tensor is quantised with is a table of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from class_tables import ERRORS, ROUNDS, blended, prior, tensors

from gcodec import scalar_levels, trellis_levels
from gcodec.contexts import class_tables, trellis_tables
from gcodec.contexts.class_tables import SENT, ClassTable
from gcodec.contexts.models import ByTrellis
from gcodec.contexts.trellis_tables import LEVELS, TrellisTable
from gcodec.kernels.scalar_quantize import ESCAPE

TABLES = 12
GENERATIONS = 3
PASSES = 2  # in which the levels of a tensor are found
MANY = 1 << 17  # elements of a tensor, beyond which it is cut
SCALE = 1e9  # of shares, where integers are asked for

Pair = tuple[np.ndarray, np.ndarray]


def samples(x: np.ndarray, steps: list[float], start: TrellisTable) -> Iterator[Pair]:
    """Yield counts of magnitudes by class, of each quantiser, for each step."""
    for step in steps:
        matrix = scalar_levels.matrix_for(x.reshape(-1), step, x.shape)
        found, _ = trellis_levels.nearest(x.reshape(-1), step, matrix, start, PASSES)
        assert found.scales is not None
        counts = ByTrellis.of(found.symbols, found.scales, found.lanes).counts(0)
        first, second = trellis_tables.level_counts(counts)
        yield magnitudes(first), magnitudes(second)


def magnitudes(counts: np.ndarray) -> np.ndarray:
    """Return the counts of magnitudes, for those of symbols."""
    return counts.reshape(len(counts), -1, 2).sum(axis=2)


def table(pair: Pair) -> TrellisTable:
    """Return the table of counts of magnitudes, of both quantisers."""
    made = []
    for found in pair:
        each = np.zeros((len(found), 256), np.int64)
        each[:, ::2] = blended(found) * SCALE
        made.append(ClassTable.own(each, LEVELS))
    return TrellisTable(SENT, (made[0], made[1]))


def clustered(every: list[Pair]) -> list[TrellisTable]:
    """Return the tables with which all counts together take the fewest bits, as far as found."""
    sizes = np.array([sum(int(each.sum()) for each in pair) for pair in every])
    weights = 1 / np.sqrt(sizes)

    def joined(places: np.ndarray) -> TrellisTable:
        return table(
            tuple(sum(weights[k] * every[k][q] for k in places) for q in range(2))  # type: ignore
        )

    def nbits(one: TrellisTable) -> list[int]:
        return [
            sum(
                half.nbits(np.repeat(each, 2, axis=1) * np.tile([1, 0], each.shape[1]))
                for half, each in zip(one.tables, pair, strict=True)
            )
            for pair in every
        ]

    start = joined(np.arange(len(every)))
    small = np.array([1 + sum(int(each[:, 1:].sum()) for each in pair) for pair in every])
    places = np.argsort(np.argsort(np.array(nbits(start)) / small)) * TABLES // len(every)
    for _ in range(ROUNDS):
        tables = [
            joined(np.flatnonzero(places == k)) if (places == k).any() else start
            for k in range(TABLES)
        ]
        each = np.array([nbits(one) for one in tables])
        print(f"{(each.min(axis=0) / sizes).mean():.5f} bits", flush=True)
        if (each.argmin(axis=0) == places).all():
            break
        places = each.argmin(axis=0)
    return tables


def main() -> None:
    """Write the file."""
    every, nearest = [], scalar_levels.Nearest()
    for x in tensors(sys.argv[1:]):
        some = np.ascontiguousarray(x[: max(MANY * len(x) // x.size, 1)])
        if some.any():
            flat = some.reshape(-1)
            steps = [scalar_levels.step_for_error(flat, e, some.shape, nearest)[0] for e in ERRORS]
            every.append((some, steps))
    geometric = prior() * 1e6
    start = table((geometric, geometric))
    for _ in range(GENERATIONS):
        counts = [pair for x, steps in every for pair in samples(x, steps, start)]
        made = clustered(counts)
        start = table(tuple(sum(pair[q] for pair in counts) for q in range(2)))  # type: ignore
    lines = ["# escapes, then the levels from 1 on with one sign; see tools/trellis_tables.py"]
    for number, one in enumerate(made):
        for q, half in enumerate(one.tables):
            lines.append(f"# table {number}, quantiser {q}")
            for row, top in zip(half.frequencies, half.tops.tolist(), strict=True):
                lines.append(" ".join(map(str, [row[ESCAPE], *row[2 : 2 * top + 2 : 2]])))
    path = Path(class_tables.__file__).with_name("trellis_tables.txt")
    path.write_text("\n".join(lines) + "\n", "ascii")


if __name__ == "__main__":
    main()
