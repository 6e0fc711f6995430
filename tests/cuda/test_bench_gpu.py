"""Test the benchmark of devices on the shim."""

from __future__ import annotations

import csv
import io

import pytest
import shim

from bench import gpu
from gcodec.runtime.device import use


@pytest.mark.skipif(shim.COMPILER is None, reason="there is no g++")
def test_table() -> None:
    specs = "sign", "terngrad:pack=base3", "topk"
    with use(shim.ShimDevice()) as device:
        lines = list(gpu.table(gpu.rows(device, specs, (0.01, 20e-3), rounds=1)))
    assert len(lines) == 2 + 2 * len(specs)
    assert {line.count("|") for line in lines} == {11}


@pytest.mark.skipif(shim.COMPILER is None, reason="there is no g++")
def test_rows_of_a_machine() -> None:
    file = io.StringIO()
    with use(shim.ShimDevice()) as device:
        gpu.write_machine(file, "a-gpu", gpu.rows(device, ("sign", "topk"), (0.01,), rounds=1))
    rows = list(csv.DictReader(io.StringIO(file.getvalue())))
    assert [(row["machine"], row["codec"]) for row in rows] == [
        ("a-gpu", "sign"),
        ("a-gpu", "topk"),
    ]
    assert all(float(row["encode_gb_per_s"]) > 0 for row in rows)
    assert rows[0]["source"].startswith("python -m bench.gpu --mb 0.01; a-gpu; ")
