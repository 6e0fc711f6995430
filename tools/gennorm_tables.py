"""Make the files of ``gcodec`` that depend on special functions.

    python tools/gennorm_tables.py gcodec/codecs/minifloat

A variable of the generalized normal distribution has the density β / (2αΓ(1/β)) exp(−|x/α|^β). Its
moments above a threshold t are E(|x|^k; |x| > t) = α^k Γ((k+1)/β)/Γ(1/β) Q((k+1)/β, (t/α)^β), so
the mean squared error of a quantizer is a finite sum. The sum uses moments above thresholds
instead of moments of cells, because they lose no digits where levels are large and rare.

``gennorm_tables.txt`` contains for each knot β the ratio E|x|/σ, the binary logarithm of α/σ, and
the binary logarithm of the scale Δ/σ of each format and style.

``codebooks.txt`` contains the codebooks of each format and style by number: β, the octaves by
which the scale exceeds the scale in the other file, half the frequency of code 0, and the
frequency of each other magnitude with one sign; these sum to 2^13. Codebooks are part of the wire
format: their lists only grow, and existing entries never change.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
from scipy.special import gammaincc, gammaln

from gcodec.kernels.quantize.float_format import FORMATS, STYLES, MiniFloat

KNOTS = 65
LEAST_BETA, LARGEST_BETA = 0.15, 4.0
STEP = 0.01  # of the logarithms of scales
TOLERANCE = 1e-3  # relative tolerance of the error
FAR = 0.02  # penalty, times the tolerance, an octave away from the middle of the good scales
GRADUAL = 0.25  # largest change of a logarithm from one β to the next
HALF = 1 << 13

# β of each codebook, and the octaves by which its scale exceeds that of the table. The first
# codebooks are GenNorm distributions with the scale of the rule. Real tensors have fewer large
# values than a GenNorm with their moments, or a scale elsewhere on the plateau of formats with
# many exponents; the other codebooks were chosen greedily to minimize the total bits of the
# tensors of four networks. The first 8 are within 2 % of the best of all shapes and scales; 24
# would save another 0.5 %.
SMALL = (
    *((0.3, 0.0), (0.5, 0.0), (0.7, 0.0), (1.0, 0.0), (1.4, 0.0), (2.0, 0.0)),
    *((0.21, -4.0), (0.15, -1.5), (0.42, -2.5), (0.18, -3.5), (1.69, -0.5), (0.6, -1.0)),
)
E4M3 = (
    *((0.5, 0.0), (1.0, 0.0), (2.0, 0.0), (0.15, -5.0), (0.86, -5.0), (0.86, 3.0)),
    *((0.15, 2.0), (1.08, 2.0), (0.19, -6.0), (0.15, -4.0), (1.08, 6.0), (1.34, 2.0)),
)
E5M2 = (
    *((0.5, 0.0), (1.0, 0.0), (2.0, 0.0), (0.19, 6.0), (0.45, -8.0), (0.86, 11.0)),
    *((0.15, 14.0), (0.86, -6.0), (0.15, -5.0), (1.34, -8.0), (0.23, -8.0), (1.34, -6.0)),
)
CODEBOOKS = {name: {"e4m3": E4M3, "e5m2": E5M2}.get(name, SMALL) for name in FORMATS}


def betas() -> np.ndarray:
    """Return the β of the knots, rounded as in the file."""
    return np.round(np.geomspace(LEAST_BETA, LARGEST_BETA, KNOTS), 6)


def log_alpha(beta: float) -> float:
    """Return the natural logarithm of α for σ = 1."""
    return float(gammaln(1 / beta) - gammaln(3 / beta)) / 2


def moment_ratio(beta: float) -> float:
    """Return E|x| for σ = 1."""
    return math.exp(float(gammaln(2 / beta) - gammaln(1 / beta)) + log_alpha(beta))


def above(beta: float, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the probability of |x| > t, and E(|x|; |x| > t), for σ = 1."""
    y = np.exp(beta * (np.log(t) - log_alpha(beta)))
    return gammaincc(1 / beta, y), moment_ratio(beta) * gammaincc(2 / beta, y)


def errors(beta: float, levels: np.ndarray, logs: np.ndarray) -> np.ndarray:
    """Return mean squared errors for σ = 1 and scales with these binary logarithms.

    Column j of the result is for the levels up to j + 1, so that one call serves all styles.
    """
    scales = np.exp2(logs)[:, None]
    count, total = above(beta, scales * (levels[1:] + levels[:-1]) / 2)
    terms = scales**2 * np.diff(levels**2) * count - 2 * scales * np.diff(levels) * total
    return 1 + np.cumsum(terms, axis=1)


def best_logs(name: str) -> dict[str, list[float]]:
    """Return for each style of a format, and each β, a scale with an error near the minimum.

    The scale is in the middle of the good scales, far from those that are too large or too small
    for a tensor that is no GenNorm. It changes gradually with β, so that interpolated scales are
    good too.
    """
    levels = MiniFloat(name).magnitudes().astype(np.float64)
    span = np.log2(levels[-1])
    logs = np.arange(np.floor((-span - 2) / STEP), np.ceil(6 / STEP)) * STEP
    costs: dict[str, list[np.ndarray]] = {style: [] for style in STYLES}
    for beta in betas():
        all_errors = errors(float(beta), levels, logs)
        for style in STYLES:
            error = all_errors[:, MiniFloat(name, style).top - 1]
            excess = (error / error.min() - 1) / TOLERANCE
            good = logs[excess <= 1]
            cost = excess + FAR * np.abs(logs - (good[0] + good[-1]) / 2)
            costs[style].append(np.where(excess < 5, cost, np.inf))
    return {style: logs[cheapest_path(rows)].tolist() for style, rows in costs.items()}


def cheapest_path(costs: list[np.ndarray]) -> list[int]:
    """Choose a column in each row, near that of the preceding row, with the least total cost."""
    near = round(GRADUAL / STEP)
    total, steps = costs[0], []
    for cost in costs[1:]:
        around = np.pad(total, near, constant_values=np.inf)
        before = np.stack([around[k : k + cost.size] for k in range(2 * near + 1)])
        steps.append(before.argmin(axis=0) - near)
        total = cost + before.min(axis=0)
    path = [int(total.argmin())]
    for step in reversed(steps):
        path.insert(0, path[0] + int(step[path[0]]))
    return path


def counts(fmt: MiniFloat, beta: float, log_scale: float) -> np.ndarray:
    """Return integer counts of the magnitudes: at least 1 each, with the sum `HALF`."""
    levels = fmt.magnitudes().astype(np.float64)
    tails, _ = above(beta, 2.0**log_scale * (levels[1:] + levels[:-1]) / 2)
    shares = -np.diff(np.concatenate([[1.0], tails, [0.0]]))
    numbers = np.maximum(np.floor(shares * HALF), 1).astype(np.int64)
    while (missing := HALF - int(numbers.sum())) != 0:
        # Move one count at a time, where it changes the expected bits of a message most or least.
        if missing > 0:
            numbers[np.argmax(shares * np.log1p(1 / numbers))] += 1
        else:
            loss = np.where(numbers > 1, -shares * np.log1p(-1 / np.maximum(numbers, 2)), np.inf)
            numbers[np.argmin(loss)] -= 1
    return numbers


def tables() -> list[str]:
    """Return the lines of ``gennorm_tables.txt``."""
    lines = [
        "# Made by tools/gennorm_tables.py, which says what this is.",
        "betas " + " ".join(f"{beta:.6f}" for beta in betas()),
        "ratios " + " ".join(f"{moment_ratio(float(b)):.8f}" for b in betas()),
        "alphas " + " ".join(f"{log_alpha(float(b)) / math.log(2):.6f}" for b in betas()),
    ]
    for name in FORMATS:
        for style, logs in best_logs(name).items():
            lines.append(f"scales {name} {style} " + " ".join(f"{b:.2f}" for b in logs))
    return lines


def codebooks(scales: list[str]) -> list[str]:
    """Return the lines of ``codebooks.txt``, derived from the scales of the other file."""
    lines = ["# Made by tools/gennorm_tables.py, which says what this is."]
    for line in scales:
        if not line.startswith("scales"):
            continue
        _, name, style, *words = line.split()
        logs = np.array(words, np.float64)
        for beta, offset in CODEBOOKS[name]:
            at = float(np.interp(-1 / beta, -1 / betas(), logs)) + offset
            numbers = counts(MiniFloat(name, style), beta, at)
            lines.append(f"{name} {style} {beta} {offset} " + " ".join(map(str, numbers)))
    return lines


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    scales = tables()
    (folder / "gennorm_tables.txt").write_text("\n".join(scales) + "\n")
    (folder / "codebooks.txt").write_text("\n".join(codebooks(scales)) + "\n")
