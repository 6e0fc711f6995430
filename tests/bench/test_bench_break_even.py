"""Break-even links of `gcodec bench`, the report and `gcodec advise` from one measurement."""

from __future__ import annotations

import pytest
from example_files import DUMP

import gcodec
from bench import break_even
from bench.break_even import BreakEven

SPECS = ("sign", "minmax:bits=4", "ecsq")


def test_one_measurement_gives_one_break_even() -> None:
    measured = break_even.measure(DUMP, [gcodec.parse(spec) for spec in SPECS], rounds=1)
    rows = break_even.break_evens(DUMP, measured)
    assert [row.codec for row in rows] == [str(codec) for codec in measured]
    for row in rows:
        assert min(row[1:]) > 0 and row.spread <= 1.25
    slower = {
        codec: seconds._replace(encode=2 * seconds.encode, decode=2 * seconds.decode)
        for codec, seconds in measured.items()
    }
    for row, half in zip(rows, break_even.break_evens(DUMP, slower), strict=True):
        assert [2 * link for link in half[1:]] == pytest.approx(row[1:])


def test_table() -> None:
    rows = [BreakEven("sign", 4e9, 5e9, 4e9), BreakEven("raw", 0, 0, 0)]
    assert [*break_even.lines(rows)][2:] == [
        "| `sign` | 4 | 5 | 4 | 1.25 |",
        "| `raw` | 0 | 0 | 0 | inf |",
    ]
