"""The benchmark of lossless: a row for each file and dtype."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bench import lossless
from gcodec.tensorfiles.dumps import write_dump


def test_table_has_a_row_for_each_dtype(tmp_path: Path) -> None:
    path = tmp_path / "grads.safetensors"
    x = np.random.default_rng(0).standard_normal((30, 40)).astype(np.float32)
    write_dump(path, [("w", x), ("empty", x[:0])])
    header, _, *rows = lossless.table([str(path)], None, flat=False)
    assert header == "| file | dtype | fast | small |"
    assert [row.split(" | ")[1] for row in rows] == ["float8_e4m3fn", "bfloat16", "float32"]
    bits = [float(row.split(" | ")[2].partition(",")[0]) for row in rows]
    assert 6 < bits[0] < 8.5 < 10 < bits[1] < 16 < bits[2] < 33


def test_floats_of_8_bits_are_scaled() -> None:
    x = np.array([1e-6, -3e-6, 0], np.float32)
    wide = lossless.scaled(x, "float8_e4m3fn")
    assert lossless.rounds_of(wide, "float8_e4m3fn")[0].tolist() == [144, -448, 0]
    assert lossless.scaled(x[2:], "float8_e4m3fn").tolist() == [0]
    assert lossless.scaled(x[:0], "float8_e4m3fn").size == 0
    assert lossless.scaled(x, "bfloat16") is x


def test_rounds_are_multiplied_before_they_are_rounded() -> None:
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    first, *others = lossless.rounds_of(x, "bfloat16")
    assert first.tobytes() == x.astype(first.dtype).tobytes()
    for each in others:  # products of rounded values would have gaps
        assert np.unique(each.view(np.uint16) & 127).size == 128


def test_a_file_may_be_one_vector_or_one_message(tmp_path: Path) -> None:
    path = tmp_path / "grads.safetensors"
    x = np.random.default_rng(0).standard_normal((12, 60)).astype(np.float32)
    write_dump(path, ((f"w{k}", row) for k, row in enumerate(x)))
    ways = {"flat": False}, {"flat": True}, {"flat": False, "group_below": 61}
    rows = [list(lossless.table([str(path)], None, **each))[3] for each in ways]
    apart, vector, message = (float(row.split(" | ")[2].partition(",")[0]) for row in rows)
    assert apart > 1.2 * vector  # as each frame has a head and a table
    assert vector < message < apart  # as a message has the names and shapes
