"""The benchmark of patches: the layouts of other systems, and a row for each learning rate."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from bench import patch


def test_layouts() -> None:
    old = np.zeros(3 * 400, np.uint16)
    new = old.copy()
    new[[1, 5, 399, 400, 1100]] = [1, 2, 3, 4, 5]
    assert (
        patch.trl(old, new).tobytes()
        == np.array([1, 2, 3, 4, 5, 1, 3, 393, 0, 699], np.uint16).tobytes()
    )
    assert patch.nemo_xor(old + 1, new + 1).size == patch.nemo_overwrite(old, new).size == 20
    rows, columns = bytes([0, 0, 0, 1, 1]), np.array([1, 4, 394, 0, 300], np.uint16).tobytes()
    values = np.array([1, 2, 3, 4, 5], np.uint16).tobytes()
    assert patch.pulse(old, new, 400).tobytes() == rows + columns + values
    far = np.zeros(1 << 17, np.uint16)
    assert patch.trl(far, (np.arange(far.size) == 100_000).astype(np.uint16)).size == 6


def test_table_has_a_row_for_each_rate() -> None:
    rng = np.random.default_rng(0)
    exact = (0.02 * rng.standard_normal((300, 100))).astype(np.float32)
    old, new = ({"w": x.astype(ml_dtypes.bfloat16)} for x in (exact, exact + np.float32(3e-7)))
    header, _, *rows = patch.table(iter([(old, new)] * 2), (1e-6, 1e-5), None)
    assert header.startswith(
        "| learning rate | changed | frames | payloads | TRL | NeMo-RL overwrite |"
    )
    assert [row.split(" | ")[0] for row in rows] == ["| 1e-06", "| 1e-05"]
    frames, payloads, trl = (float(cell.split()[0]) for cell in rows[0].split(" | ")[2:5])
    assert payloads < frames < 10 and trl == 32


def test_speeds() -> None:
    first, *lines = patch.speeds(1 << 14)
    assert first.startswith("16,384 bfloat16") and len(lines) == 5
