"""Plot of `bench.rate_distortion`: one panel per dump, one line per codec."""

from __future__ import annotations

import importlib.util
import io
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.rd_points import LARGE, Curve, Dump, total

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ERRORS = np.geomspace(1e-3, 1, 31)
_COLUMNS = 4
_STYLES = ("-", "--", ":")
_BOLD = {"ecsq": {"color": "black", "linestyle": "-", "linewidth": 2.0}}
_LONG_COORDINATE = re.compile(r"\d+\.\d{4,}")  # an SVG coordinate, in millionths of a point


def require_matplotlib() -> None:
    """Raise `ImportError` before any measurement if matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError("plots need matplotlib: pip install 'gcodec[report]'")


def draw(measured: Sequence[tuple[Dump, dict[str, list[list[Curve]]]]], path: Path) -> None:
    """Draw bits per value against error on logarithmic scales, and write the file."""
    require_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    columns = min(_COLUMNS, len(measured))
    rows = math.ceil(len(measured) / columns)
    style = {"svg.fonttype": "none", "svg.hashsalt": "gcodec", "path.simplify": True}
    with matplotlib.rc_context({**style, "font.size": 8, "axes.titlesize": 8}):
        figure = Figure(figsize=(2.7 * columns + 1.3, 2.4 * rows + 0.4), layout="constrained")
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        panels = list(grid.flat)
        for panel, (dump, by_codec) in zip(panels, measured, strict=False):
            _panel(panel, dump, by_codec)
        for panel in panels[len(measured) :]:
            panel.set_visible(False)
        # The lowest panel of each column has tick labels.
        for panel in panels[len(measured) - columns : len(measured)]:
            panel.tick_params(labelbottom=True)
        handles, names = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside right upper", frameon=False)
        figure.supxlabel("error ‖x − x̂‖²/‖x‖²")
        figure.supylabel("bits per value")
        save(figure, path)


def save(figure: Figure, path: Path) -> None:
    """Write a figure to an .svg or .png file, whose folder is made if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".svg":
        path.write_text(_svg(figure), "utf-8")
    else:
        figure.savefig(path, dpi=110)


def _svg(figure: Figure) -> str:
    """Return the figure as SVG without a date, with coordinates in tenths of a point."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    text = _LONG_COORDINATE.sub(lambda number: f"{float(number[0]):.1f}", file.getvalue())
    return re.sub(r"\s*\n\s*", "\n", text)


def _panel(panel: Axes, dump: Dump, curves: dict[str, list[list[Curve]]]) -> None:
    for number, (name, tensors) in enumerate(curves.items()):
        points = [total(tensors, [error] * len(tensors)) for error in _ERRORS]
        bits = [point.nbits / dump.size if point else math.nan for point in points]
        line = {"color": f"C{number % 10}", "linestyle": _STYLES[number // 10], "linewidth": 1.2}
        panel.plot(_ERRORS, bits, label=name, **{**line, **_BOLD.get(name, {})})
    panel.set(xscale="log", yscale="log", xlim=(_ERRORS[0], 1), ylim=(0.05, 20))
    panel.set_xticks([1e-3, 1e-2, 1e-1, 1], ["0.001", "0.01", "0.1", "1"])
    panel.set_yticks([0.1, 0.3, 1, 3, 10], ["0.1", "0.3", "1", "3", "10"])
    panel.tick_params(which="both", length=0)
    panel.minorticks_off()
    panel.set_title(dump.name if dump.least == LARGE else f"{dump.name} *")
    panel.grid(alpha=0.3, linewidth=0.5)
