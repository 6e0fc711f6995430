"""Test the codecs against recordings of the original releases, step by step."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import gcodec

UPSTREAM = Path(__file__).parent / "golden" / "upstream"
VALUES = {"+": 1, "-": -1, ".": 0}


def recorded(name: str) -> dict[float, list[tuple[np.ndarray, np.ndarray]]]:
    """Read recorded gradients and the signs of the sent elements, by threshold."""
    runs: dict[float, list[tuple[np.ndarray, np.ndarray]]] = {}
    steps: list[tuple[np.ndarray, np.ndarray]] = []
    patterns: list[str] = []
    for line in (UPSTREAM / name).read_text("utf-8").splitlines():
        key, *words = line.split()
        if key == "#":
            continue
        if key == "threshold":
            steps = runs[float(words[0])] = []
        elif key == "sent":
            grad = np.array([int(word, 16) for word in patterns], np.uint32).view(np.float32)
            steps.append((grad, np.array([VALUES[sign] for sign in words[0]])))
        elif key == "grad":
            patterns = words
        else:  # continuation of a row
            patterns += [key, *words]
    return runs


def test_mxnet_2bit() -> None:
    runs = recorded("mxnet-1.9.1-2bit.txt")
    assert list(runs) == [0.5, 1 / 3, 3e-3]
    for threshold, steps in runs.items():
        assert len(steps) == 8
        codec = gcodec.parse({"name": "mxnet-2bit", "threshold": threshold})
        residual = np.zeros(steps[0][0].size, np.float32)
        for grad, signs in steps:
            symbols = codec.quantize_residual(grad, residual)
            decoded = codec.dequantize(symbols, grad.shape)
            assert (decoded == signs * np.float32(threshold)).all()
