"""Make the files of ``gcodec`` that take special functions.

    python tools/gennorm_tables.py gcodec/codecs/minifloat

A variable of the generalised normal distribution has the density β / (2αΓ(1/β)) exp(−|x/α|^β).
Its moments above a threshold t are E(|x|^k; |x| > t) = α^k Γ((k+1)/β)/Γ(1/β) Q((k+1)/β, (t/α)^β),
so the mean squared error of a quantiser is a finite sum. Moments above a threshold, not those of
cells: these lose no digits where levels are large and rare.

``gennorm_tables.txt`` has for each β of its knots the ratio E|x|/σ, the binary logarithm of α/σ,
and that of the scale Δ/σ of each format and style.

``codebooks.txt`` has the codebooks of each format and style by their numbers: β, how many octaves
the scale is above that of the other file, how often code 0 occurs, halved, and how often each
other magnitude with one sign; these sum to 2^13. Codebooks are part of the wire format: the lists
of them only grow, and what is written there is never made otherwise.
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
TOLERANCE = 1e-3  # of the error
FAR = 0.02  # times the tolerance, an octave away from the middle of the good scales costs
GRADUAL = 0.25  # most change of a logarithm from one β to the next
HALF = 1 << 13

# β of each codebook, and how many octaves its scale is above that of the table. The first are the
# GenNorm of the rule; real tensors have fewer large values than a GenNorm with their moments, or a
# scale elsewhere on the plateau that formats with many exponents have. Of such, these are the ones
# by which the tensors of four networks together take the fewest bits, chosen one after another;
# the first 8 reach within 2 % of what all shapes and scales would, 24 would save 0.5 % more.
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
    """Return the β of the knots, as they are written."""
    return np.round(np.geomspace(LEAST_BETA, LARGEST_BETA, KNOTS), 6)


def log_alpha(beta: float) -> float:
    """Natural logarithm of α for σ = 1."""
    return float(gammaln(1 / beta) - gammaln(3 / beta)) / 2


def moment_ratio(beta: float) -> float:
    """E|x| for σ = 1."""
    return math.exp(float(gammaln(2 / beta) - gammaln(1 / beta)) + log_alpha(beta))


def above(beta: float, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Probability of |x| > t, and E(|x|; |x| > t), for σ = 1."""
    y = np.exp(beta * (np.log(t) - log_alpha(beta)))
    return gammaincc(1 / beta, y), moment_ratio(beta) * gammaincc(2 / beta, y)


def errors(beta: float, levels: np.ndarray, logs: np.ndarray) -> np.ndarray:
    """Mean squared errors for σ = 1 and scales of these binary logarithms.

    Column j of the result is for the levels up to j + 1, so that one call serves all styles.
    """
    scales = np.exp2(logs)[:, None]
    count, total = above(beta, scales * (levels[1:] + levels[:-1]) / 2)
    terms = scales**2 * np.diff(levels**2) * count - 2 * scales * np.diff(levels) * total
    return 1 + np.cumsum(terms, axis=1)


def best_logs(name: str) -> dict[str, list[float]]:
    """For each style of a format, a scale for each β whose error is near the least.

    It is in the middle of those, far from where it gets too large or too small for a tensor that
    is no GenNorm, but changes gradually with β, so that what is between is as good.
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
    """Choose a place in each row, near that in the row before, so that they cost least."""
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
    """Integer counts of the magnitudes: at least 1 each, `HALF` together."""
    levels = fmt.magnitudes().astype(np.float64)
    tails, _ = above(beta, 2.0**log_scale * (levels[1:] + levels[:-1]) / 2)
    shares = -np.diff(np.concatenate([[1.0], tails, [0.0]]))
    numbers = np.maximum(np.floor(shares * HALF), 1).astype(np.int64)
    while (missing := HALF - int(numbers.sum())) != 0:
        # One at a time, to or from where it changes the bits of a message most or least.
        if missing > 0:
            numbers[np.argmax(shares * np.log1p(1 / numbers))] += 1
        else:
            loss = np.where(numbers > 1, -shares * np.log1p(-1 / np.maximum(numbers, 2)), np.inf)
            numbers[np.argmin(loss)] -= 1
    return numbers


def tables() -> list[str]:
    """Lines of ``gennorm_tables.txt``."""
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
    """Lines of ``codebooks.txt``, from those of the other file."""
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
