"""Print and plot the bits of every codec at equal error, as in docs/rate-distortion.md.

Files are dumps of gradients, or folders of .safetensors files; by default the gradient in
``examples/``. Bits count whole frames without names. Error is ‖x − x̂‖²/‖x‖² of each tensor. Each
tensor is coded in all settings of `bench.rd_grid`. ``--page`` writes the tables into a page.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

import gcodec
from bench.bits import EXAMPLE
from bench.page import parts, put
from bench.rd_grid import GRID, grid
from bench.rd_plot import draw, require_matplotlib
from bench.rd_points import LARGE, Curve, Dump, Point, curves, load_all, total

ERRORS = (0.02, 0.1)

Measured = dict[str, list[list[Curve]]]  # by codec: the curves of each tensor


def measure(dump: Dump) -> Measured:
    """Measure every registered codec on every tensor."""
    return {
        name: [curves(dials, tensor.x) for tensor in dump.tensors]
        for name, dials in grid().items()
    }


def at_error(dump: Dump, measured: Measured, error: float) -> dict[str, Point | None]:
    """Return the total of each codec with every tensor at the given error."""
    return {name: total(each, [error] * len(dump.tensors)) for name, each in measured.items()}


def at_fp4(dump: Dump, measured: Measured) -> dict[str, Point | None]:
    """Return the total of each codec with every tensor at its FP4 error."""
    targets = [tensor.fp4.error for tensor in dump.tensors]
    return {name: total(each, targets) for name, each in measured.items()}


def counted(dump: Dump) -> str:
    """Return a phrase with the numbers of tensors and values of a dump."""
    plural = "" if len(dump.tensors) == 1 else "s"
    return f"{len(dump.tensors)} tensor{plural}, {dump.size:,} values"


def title(dump: Dump) -> str:
    """Return the title of a dump, which states if its tensors are small."""
    return dump.name if dump.least == LARGE else f"{dump.name} *"


def cells(dump: Dump, points: dict[str, Point | None], shown: Sequence[str]) -> list[str]:
    """Return cells of bits per value, with the fewest in bold."""
    bits = [point.nbits / dump.size if (point := points[name]) else np.inf for name in shown]
    texts = [f"{b:.3f}" if np.isfinite(b) else "–" for b in bits]
    if np.isfinite(min(bits)):
        texts[int(np.argmin(bits))] = f"**{texts[int(np.argmin(bits))]}**"
    return texts


def table(
    columns: Sequence[str], rows: Sequence[tuple[Dump, list[str], dict[str, Point | None]]]
) -> Iterator[str]:
    """Return a table of dumps and the codecs that reach the error; list the other codecs."""
    names = list(rows[0][2])
    shown = [name for name in names if any(points[name] for _, _, points in rows)]
    heads = ["dump", *columns, *(f"`{name}`" for name in shown)]
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    for dump, first, points in rows:
        yield f"| {' | '.join([title(dump), *first, *cells(dump, points, shown)])} |"
    if others := [f"`{name}`" for name in names if name not in shown]:
        yield ""
        yield f"Out of reach of {', '.join(others)}."


def lines(measured: Sequence[tuple[Dump, Measured]]) -> Iterator[str]:
    """Return all tables."""
    for error in ERRORS:
        yield f"### Bits per value at an error of {error:g}\n"
        yield from table((), [(d, [], at_error(d, m, error)) for d, m in measured])
        yield ""
    yield "### Bits per value at the error of FP4\n"
    rows = []
    for dump, by_codec in measured:
        energies = [tensor.energy for tensor in dump.tensors]
        errors = [tensor.fp4.error * e for tensor, e in zip(dump.tensors, energies, strict=True)]
        error = sum(errors) / (sum(energies) or 1)
        bits = sum(tensor.fp4.nbits for tensor in dump.tensors) / dump.size
        rows.append((dump, [f"{error:.4f}", f"{bits:.3f}"], at_fp4(dump, by_codec)))
    yield from table(("nmse", "FP4"), rows)
    yield ""
    yield "### `ecsq` beside FP4, at its error\n"
    yield from compared_with_fp4(measured)
    yield ""
    yield "### Least error, and its bits per value\n"
    names = list(measured[0][1])
    yield f"| dump | {' | '.join(f'`{name}`' for name in names)} |"
    yield "|" + "---|" * (1 + len(names))
    for dump, by_codec in measured:
        texts = [least_error(dump, by_codec[name]) for name in names]
        yield f"| {title(dump)} | {' | '.join(texts)} |"
    yield ""
    yield "### Settings\n"
    yield "| codec | settings |"
    yield "|---|---|"
    for name in names:
        yield f"| `{name}` | {'<br>'.join(dial.described() for dial in GRID[name])} |"


def compared_with_fp4(measured: Sequence[tuple[Dump, Measured]]) -> Iterator[str]:
    """Return bits per value of FP4 and of both dials of ecsq, and the savings over FP4."""
    heads = ("FP4, no context", "FP4", "`ecsq`", "less", "`ecsq:trellis=yes`", "less")
    yield f"| dump | {' | '.join(heads)} |"
    yield "|" + "---|" * (1 + len(heads))
    for dump, by_codec in measured:
        alone, shortest = (
            sum(point.nbits for point in points) / dump.size
            for points in zip(*((t.fp4_alone, t.fp4) for t in dump.tensors), strict=True)
        )
        texts = [f"{alone:.3f}", f"{shortest:.3f}"]
        targets = [tensor.fp4.error for tensor in dump.tensors]
        for dial in zip(*by_codec["ecsq"], strict=True):
            point = total([[curve] for curve in dial], targets)
            bits = point.nbits / dump.size if point else np.nan
            shares = (f"{100 * (1 - bits / of):.1f}" for of in (alone, shortest))
            texts += [f"{bits:.3f}", " / ".join(shares) + " %"]
        yield f"| {' | '.join([title(dump), *texts])} |"


def least_error(dump: Dump, tensors: Sequence[Sequence[Curve]]) -> str:
    """Return the least error that all tensors can reach, and the bits at that error."""
    errors = [min(p.error for curve in each for p in curve.points) for each in tensors]
    point = total(tensors, [max(errors)] * len(errors))
    assert point is not None
    return f"{max(errors):.2g} ({point.nbits / dump.size:.2f})"


def picture(text: str) -> Path:
    """Check the path of a plot."""
    if (path := Path(text)).suffix not in (".svg", ".png"):
        raise argparse.ArgumentTypeError(f"{text}: must end in .svg or .png")
    return path


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse arguments, measure, print and draw."""
    parser = argparse.ArgumentParser(prog="python -m bench.rate_distortion", description=__doc__)
    parser.add_argument("files", nargs="*", default=[str(EXAMPLE)], help="dumps, or folders")
    parser.add_argument(
        "--page", type=Path, help="write the tables into this page instead of stdout"
    )
    parser.add_argument(
        "--plot",
        type=picture,
        default="rate-distortion.svg",
        help="path of the plot, .svg or .png (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    require_matplotlib()
    if options.page:
        parts(options.page)
    dumps = load_all(options.files)
    if not dumps:
        parser.error("nothing to measure")
    measured = []
    for dump in dumps:
        print(f"{dump.name}: {counted(dump)}", file=sys.stderr)
        measured.append((dump, measure(dump)))
    text = "\n".join(lines(measured))
    if options.page:
        put(options.page, text)
    else:
        print(text)
    draw(measured, options.plot)
    print(f"{options.plot}; gcodec {gcodec.__version__}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
