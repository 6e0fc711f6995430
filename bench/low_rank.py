"""Print the bits of low-rank factors beside those of ecsq and a bound, as in docs/lowrank.md.

Files are dumps of gradients; by default the last step of the run in ``examples/``. With
``--difference OLD NEW``, a row is about the difference of the tensors of two dumps, such as the
weights that ``python -m examples.convergence.larger --weights FOLDER`` writes. Bits count whole
frames without names, of all tensors. The bound is that of reverse water-filling: the bits of
factors whose values are independent and Gaussian, with the singular values of each matrix, and for
each tensor the lesser of this and the frame of ``ecsq``. ``--picture`` draws the spectrum of the
largest matrix of the first row, and the bits that its components get.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

import gcodec
from bench.rate_distortion import picture
from bench.rd_plot import require_matplotlib, save
from gcodec.codecs.lowrank.allocation import OVERHEAD, allocate, nbits
from gcodec.tensorfiles.dumps import open_dump

RUN = Path(__file__).parents[1] / "examples" / "mlp_digits_run"
ERRORS = (0.02, 0.1, 0.3)


def tensors_of(path: str) -> dict[str, np.ndarray]:
    """Return the tensors of a dump as float32 arrays, by name."""
    with open_dump(path) as dump:
        return {each.name: np.asarray(dump.load(each), np.float32) for each in dump.entries}


def difference(old: str, new: str) -> tuple[str, dict[str, np.ndarray]]:
    """Return a label, and the tensors of the dump `new` minus those of the dump `old`."""
    before, after = tensors_of(old), tensors_of(new)
    if before.keys() != after.keys():
        raise ValueError(f"{old} and {new} contain different tensors")
    label = f"{Path(new).stem} − {Path(old).stem}"
    return label, {name: x - before[name] for name, x in after.items()}


def bound(x: np.ndarray, nmse: float) -> float:
    """Return the least bits of Gaussian factors of a matrix; infinite for a vector or zeros."""
    if x.ndim < 2 or not x.any():
        return np.inf
    matrix = x.reshape(len(x), -1).astype(np.float64)
    energies = np.linalg.svd(matrix, compute_uv=False) ** 2
    return shannon_bound(energies, matrix.shape, nmse * float(energies.sum()))


def shannon_bound(energies: np.ndarray, sizes: tuple[float, float], target: float) -> float:
    """Return the bits of Gaussian factors with these energies at a squared error.

    This is a bound for codes that treat the values of factors as independent.
    """
    allocation = allocate(energies, math.fsum(energies), sizes, target)
    return nbits(allocation, energies, sizes) - OVERHEAD * sum(sizes) * allocation.rank


def row(tensors: dict[str, np.ndarray], nmse: float, trellis: str) -> tuple[float, float, float]:
    """Return the bits per value of ecsq, of lowrank, and of the bound."""
    totals = np.zeros(3)
    for x in tensors.values():
        target = f"nmse={nmse},trellis={trellis}"
        plain, factors = (
            8 * len(gcodec.encode(x, f"{name}:{target}")) for name in ("ecsq", "lowrank")
        )
        totals += plain, factors, min(bound(x, nmse), plain)
    ecsq, lowrank, least = totals / sum(x.size for x in tensors.values())
    return float(ecsq), float(lowrank), float(least)


def table(
    dumps: Iterable[tuple[str, dict[str, np.ndarray]]], errors: Sequence[float]
) -> Iterator[str]:
    """Return the rows of a Markdown table: two for each dump, with a cell for each error."""
    yield f"| dump | trellis | {' | '.join(f'nmse {error:g}' for error in errors)} |"
    yield f"|---|---|{'---|' * len(errors)}"
    for label, tensors in dumps:
        for trellis in ("no", "yes"):
            cells = [cell(*row(tensors, error, trellis)) for error in errors]
            yield f"| {label} | {trellis} | {' | '.join(cells)} |"


def cell(ecsq: float, lowrank: float, least: float) -> str:
    """Return the bits of both codecs, the saving, and the bound as a table cell."""
    return f"{ecsq:.3f} → {lowrank:.3f}, {lowrank / ecsq - 1:+.0%} ({least:.3f})"


def draw(x: np.ndarray, name: str, nmse: float, target: Path) -> None:
    """Draw the spectrum of a matrix and the bits of its components."""
    require_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    matrix = x.reshape(len(x), -1).astype(np.float64)
    energies = np.linalg.svd(matrix, compute_uv=False) ** 2
    whole, sizes = float(energies.sum()), matrix.shape
    chosen = allocate(energies, whole, sizes, nmse * whole)
    shown = min(max(2 * chosen.rank, 12), len(energies))
    numbers = np.arange(1, shown + 1)
    bits = [
        sum(max(np.log2(energy / (n * chosen.distortion)) / 2, 0) for n in sizes) / 2
        for energy in energies[: chosen.rank]
    ]
    style = {"svg.fonttype": "none", "svg.hashsalt": "gcodec", "font.size": 9, "axes.titlesize": 9}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(8.6, 3.2), layout="constrained", facecolor="white")
        left, right = figure.subplots(1, 2)
        colors = ["#e5534b" if number <= chosen.rank else "#c0c6cc" for number in numbers]
        left.bar(numbers, energies[:shown] / whole, color=colors)
        level = sum(sizes) * chosen.distortion / whole
        left.axhline(level, color="#4184e4", linewidth=1, linestyle="--")
        left.text(shown, level * 1.1, "error of each", ha="right", color="#4184e4", fontsize=8)
        left.set(yscale="log", xlabel="component", ylabel="share of the energy")
        left.set_title(f"{name}, {sizes[0]} × {sizes[1]}: {chosen.rank} components are coded")
        right.bar(numbers[: chosen.rank], bits, color="#e5534b")
        right.set(xlim=(0, shown + 1), xlabel="component", ylabel="bits for a value of a factor")
        frame = gcodec.encode(x, f"lowrank:nmse={nmse}")
        plain = gcodec.encode(x, f"ecsq:nmse={nmse}")
        per_value = [8 * len(data) / x.size for data in (frame, plain)]
        right.set_title(
            f"{per_value[0]:.3f} bits per value of the matrix; ecsq {per_value[1]:.3f}"
        )
        for axes in (left, right):
            axes.spines[["top", "right"]].set_visible(False)
        save(figure, target)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse arguments, measure, print and draw."""
    parser = argparse.ArgumentParser(prog="python -m bench.low_rank", description=__doc__)
    parser.add_argument("files", nargs="*")
    parser.add_argument(
        "--difference", nargs=2, action="append", default=[], metavar=("OLD", "NEW")
    )
    parser.add_argument("--nmse", type=float, action="append", help="target; repeatable")
    parser.add_argument("--picture", type=picture, help="path of the picture, .svg or .png")
    options = parser.parse_args(arguments)
    if not options.files and not options.difference:
        options.files = [str(sorted(RUN.iterdir())[-1])]
    dumps = [(Path(path).stem, tensors_of(path)) for path in options.files]
    dumps += [difference(old, new) for old, new in options.difference]
    for line in table(dumps, options.nmse or ERRORS):
        print(line, flush=True)
    if options.picture:
        _, tensors = dumps[0]
        matrices = {name: x for name, x in tensors.items() if x.ndim > 1}
        name = max(matrices, key=lambda each: matrices[each].size)
        draw(matrices[name], name, 0.1, options.picture)


if __name__ == "__main__":
    main()
