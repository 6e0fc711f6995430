"""Draw the picture of the README: bits against nmse on the example gradient.

Run ``python -m bench.overview docs/img/overview.svg``. The points are those of
`bench.rate_distortion`. The background is transparent and the colors are of middle lightness, so
the picture suits white and dark pages.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench.bits import EXAMPLE
from bench.rate_distortion import measure, picture
from bench.rd_plot import require_matplotlib, save
from bench.rd_points import Curve, Dump, load_all, total

_ERRORS = np.geomspace(1e-3, 1, 61)
_GRAY = "#768390"
# Colors, from the most bits to the fewest. Codecs that reach few errors are points.
_LINES = {
    "topk": "#57945c",
    "dct8": "#b07d2b",
    "minmax": "#8956d6",
    "qsgd": "#2a9d8f",
    "minifloat": "#4184e4",
    "ecsq": "#e5534b",
}
_POINTS = {"terngrad": ("#2a9d8f", "s"), "sign": ("#c96198", "o"), "mxnet-2bit": ("#4184e4", "D")}


def least(dump: Dump, tensors: Sequence[Sequence[Curve]]) -> tuple[float, float]:
    """Return the least nmse that all tensors of a codec reach, and the bits per value there."""
    error = max(min(p.error for curve in each for p in curve.points) for each in tensors)
    point = total(tensors, [error] * len(tensors))
    assert point is not None
    return error, point.nbits / dump.size


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse arguments, measure and draw."""
    parser = argparse.ArgumentParser(prog="python -m bench.overview", description=__doc__)
    parser.add_argument("plot", type=picture, help="path of the plot, .svg or .png")
    path: Path = parser.parse_args(arguments).plot
    require_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    (dump,) = load_all([str(EXAMPLE)])
    measured = measure(dump)
    style = {"svg.fonttype": "none", "svg.hashsalt": "gcodec", "font.size": 10}
    colors = dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), _GRAY)
    with matplotlib.rc_context({**style, **colors, "axes.edgecolor": _GRAY}):
        figure = Figure(figsize=(7.6, 3.9), layout="constrained", facecolor="none")
        axes = figure.subplots()
        axes.set(facecolor="none", xscale="log", xlim=(_ERRORS[0], 1), ylim=(0, 8.2))
        axes.set_xticks([1e-3, 1e-2, 1e-1, 1], ["0.001", "0.01", "0.1", "1"])
        axes.minorticks_off()
        axes.tick_params(length=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color=_GRAY, alpha=0.25, linewidth=0.6)
        axes.set_xlabel("nmse = ‖x − x̂‖² / ‖x‖²")
        axes.set_ylabel("bits per value, headers included")
        for name, color in _LINES.items():
            points = [total(measured[name], [error] * len(dump.tensors)) for error in _ERRORS]
            bits = [point.nbits / dump.size if point else math.nan for point in points]
            width = 2.8 if name == "ecsq" else 1.6
            axes.plot(_ERRORS, bits, color=color, linewidth=width, label=name)
        for name, (color, marker) in _POINTS.items():
            error, nbits = least(dump, measured[name])
            axes.plot([error], [nbits], marker, color=color, markersize=6, label=name)
        figure.legend(loc="outside right upper", frameon=False)
        save(figure, path)


if __name__ == "__main__":
    main()
