"""Code tensors with NNCodec; run by `bench.against_nncodec` in an environment that has it.

``python -I nncodec_worker.py IN.npz OUT.json``: the input contains tensors named by numbers, and
``targets``, a row of errors for each tensor. For each mode and tensor, the output contains points
at the quantizer steps around these errors: error, bits, and the processor seconds for encoding and
decoding.
"""

import json
import math
import sys
import time

import numpy as np
import torch
from nncodec import nnc

# Modes: dependent quantization, and λ of rate–distortion optimized quantization as a multiple of
# the coder's own λ; `nncodec.tensor` uses λ = 0.
MODES = {"dependent, λ = 1": (True, 1.0), "dependent": (True, 0.0), "uniform": (False, 0.0)}
DENSITY = 2  # log2 of the number of steps per octave, NNCodec's default


def measure(x, qp, dependent, scale):
    """Return error, bits and seconds of one quantizer step."""

    def encode():
        return nnc.compress(
            {"x": x},
            bitstream_path=None,
            qp=qp,
            nonweight_qp=qp,
            qp_density=DENSITY,
            use_dq=dependent,
            lambda_scale=scale,
            row_skipping=True,
            return_bitstream=True,
        )

    stream, write = timed(encode)
    decoded, read = timed(lambda: nnc.decompress(stream)["x"])
    error = float(((x.astype(np.float64) - decoded) ** 2).sum())
    return [error / float((x.astype(np.float64) ** 2).sum()), 8 * len(stream), write, read]


def timed(call):
    """Return the result of a call, and its processor seconds."""
    start = time.process_time()
    result = call()
    return result, time.process_time() - start


def around(x, targets, dependent, scale):
    """Return points at consecutive steps, the first and last of which enclose the targets."""
    rms = math.sqrt(float((x.astype(np.float64) ** 2).mean()))
    low = round(2**DENSITY * math.log2(rms * math.sqrt(12 * min(targets))))
    points = {low: measure(x, low, dependent, scale)}
    while points[low][0] > min(targets):
        low -= 1
        points[low] = measure(x, low, dependent, scale)
    high = max(points)
    while points[high][0] <= max(targets):
        high += 1
        points[high] = measure(x, high, dependent, scale)
    return [points[qp] for qp in sorted(points)]


def main():
    """Read tensors and write points."""
    torch.set_num_threads(1)
    source, result = sys.argv[1:]
    with np.load(source) as data:
        targets = data["targets"]
        tensors = [data[str(i)] for i in range(len(targets))]
    measure(np.ones((64, 64), np.float32), 0, True, 1.0)  # the first call initializes NNCodec
    results = {
        name: [around(x, list(t), *mode) for x, t in zip(tensors, targets)]  # noqa: B905
        for name, mode in MODES.items()
    }
    with open(result, "w", encoding="utf-8") as file:
        json.dump(results, file)


if __name__ == "__main__":
    main()
