"""Diagrams by matplotlib: SVG elements in the colors of a report's page, and separate files."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.cells import cell_len

from gcodec.analysis.candidates import pareto
from gcodec.analysis.fits import Fit, Picture, Shape
from gcodec.analysis.rates import shannon_lower_bound
from gcodec.cli.render.text import escape
from gcodec.tensorfiles.atomic import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gcodec.analysis.advice import MeasuredCodec

INK, FAINT, GRID, MARK = "#010101", "#010102", "#010103", "#010104"
SERIES = tuple(f"#0102{k:02x}" for k in range(16))
"""Placeholder colors; the page defines the real ones for light and dark backgrounds."""

_CSS_NAMES = {INK: "ink", FAINT: "faint", GRID: "grid", MARK: "mark"} | {
    color: f"s{k}" for k, color in enumerate(SERIES)
}
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "gcodec",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "legend.fontsize": 9,
} | {
    f"{axis}tick.{key}": value
    for axis in "xy"
    for key, value in (
        *(("color", FAINT), ("labelcolor", INK), ("minor.visible", False)),
        *(("major.size", 0), ("minor.size", 0)),
    )
}
_LINES = {"normal": (SERIES[0], "--"), "laplace": (SERIES[1], "-."), "gennorm": (SERIES[2], "-")}
_MARKERS = "osD^v<>pPX*hdH8"
_PAPER = ("#1c2024", "#6a737d", "#dde1e6")  # ink, faint and grid of the page in light colors
_OTHER_LINES = "#b6bdc6"
_LINE_COLORS: tuple[str, ...] = ("#3f66cf", "#b86e00", "#cf3d2b", "#25877a", "#c94a8c", "#7c4dbd")
_LINE_COLORS += ("#92603f", "#1c2024")
_MIN_ERROR, _MAX_ERROR = 1e-8, 2.0  # of the diagram of rates and errors
_LEGEND_COLUMNS = 4  # in that diagram


class Panel(NamedTuple):
    """One of the diagrams of a figure over steps.

    Attributes
    ----------
    title : str
        Name of the measure, and its unit.
    rows : list of (str, list of float)
        Name and series of each row; NaN leaves a gap.
    is_logarithmic : bool
        Whether the axis of the measure is logarithmic.
    """

    title: str
    rows: list[tuple[str, list[float]]]
    is_logarithmic: bool = False


def histogram(picture: Picture, fits: Sequence[Fit]) -> str:
    """Draw a histogram of the values on a logarithmic scale, and the fitted densities."""
    with _drawn(340, 240) as axes:
        filled = picture.density[picture.density > 0]
        low, high = float(filled.min()) / 2, 40 * float(filled.max())
        bars = {"fill": True, "facecolor": GRID, "edgecolor": FAINT, "linewidth": 0.6}
        axes.stairs(picture.density, picture.edges, baseline=low, **bars)
        x = np.linspace(picture.edges[0], picture.edges[-1], 121)
        for fit, shape, color, dashes in _fitted(picture, fits):
            beta = f" β {fit.shape.beta:.2f}" if fit.name == "gennorm" else ""
            label = f"{fit.name}{beta}  W2 {fit.w2:.3f}"
            axes.plot(x, shape.density(x), dashes, color=color, linewidth=1.3, label=label)
        axes.set_yscale("log")
        axes.set_ylim(low, high)
        _powers(axes.yaxis)
        axes.set_xlabel("value / rms")
        axes.set_ylabel("density")
        axes.legend(loc="upper left", fontsize=8, handlelength=1.6)
        return _embedded(axes.figure)


def quantile_plot(picture: Picture, fits: Sequence[Fit]) -> str:
    """Draw quantiles of the values over those of the fitted distributions."""
    with _drawn(340, 240) as axes:
        reach = float(np.max(np.abs(picture.quantiles)))
        axes.plot([-reach, reach], [-reach, reach], color=FAINT, linewidth=0.8)
        for _, shape, color, dashes in _fitted(picture, fits):
            expected = shape.quantiles(picture.probabilities)
            axes.plot(expected, picture.quantiles, dashes, color=color, linewidth=1.4)
        axes.set_xlabel("quantile of the fit / rms")
        axes.set_ylabel("quantile of the values / rms")
        return _embedded(axes.figure)


def rate_distortion(points: Sequence[MeasuredCodec], shapes: Sequence[tuple[float, float]]) -> str:
    """Draw errors over bits per value: all settings, their front, and the Shannon lower bound.

    Parameters
    ----------
    points : sequence of MeasuredCodec
        The settings.
    shapes : sequence of (share, beta)
        Share of all values and shape of each tensor's distribution; the other values are zeros,
        which need no bits.
    """
    shown = [p for p in points if p.error < _MAX_ERROR]
    names = dict.fromkeys(p.codec.name for p in points)
    legend = 14 * -(-(len(names) + 2) // _LEGEND_COLUMNS)  # the front and the bound are others
    with _drawn(400, 346 + legend, bottom=38 + legend) as axes:
        front = [shown[i] for i in pareto([(p.bits, p.error) for p in shown])]
        front = [p for p in front if p.error >= _MIN_ERROR]
        bits, errors = [p.bits for p in front], [p.error for p in front]
        axes.step(bits, errors, where="post", color=MARK, linewidth=5, alpha=0.35, label="front")
        for k, name in enumerate(names):
            own = [p for p in shown if p.codec.name == name and p.error >= _MIN_ERROR]
            if not own:
                continue
            axes.plot(
                [p.bits for p in own],
                [p.error for p in own],
                linestyle="",
                marker=_MARKERS[k % len(_MARKERS)],
                color=SERIES[k % len(SERIES)],
                markersize=4.5,
                label=name,
            )
        if shapes:
            error = np.geomspace(_MIN_ERROR, 1, 60)
            bound = [sum(n * shannon_lower_bound(b, e) for n, b in shapes) for e in error]
            axes.plot(bound, error, color=INK, linewidth=1.2, label="Shannon bound")
        axes.set_yscale("log")
        axes.set_ylim(_MIN_ERROR, _MAX_ERROR)
        _powers(axes.yaxis)
        axes.set_xlim(0, max([18.0, *(p.bits for p in front)]))
        axes.set_xlabel("bits per value")
        axes.set_ylabel("nmse ‖x − x̂‖²/‖x‖²")
        columns = {"ncols": _LEGEND_COLUMNS, "handletextpad": 0.3}
        axes.figure.legend(loc="lower center", fontsize=9, **columns)
        return _embedded(axes.figure)


def stacked_bits(rows: Sequence[tuple[str, Mapping[str, float]]], kinds: Sequence[str]) -> str:
    """Draw the bits per value of tensors by kind.

    Parameters
    ----------
    rows : sequence of (name, bits by kind)
        Name and bits per value of each tensor.
    kinds : sequence of str
        Kinds, in the order of the bars.
    """
    names = [name for name, _ in rows]
    with _drawn(400, 92 + 16 * len(rows), _label_width(names), bottom=76) as axes:
        places = np.arange(len(rows))
        start = np.zeros(len(rows))
        for k, kind in enumerate(kinds):
            part = np.array([bits.get(kind, 0.0) for _, bits in rows])
            axes.barh(places, part, 0.72, start, color=SERIES[k % len(SERIES)], label=kind)
            start += part
        for place, total in zip(places, start, strict=True):
            axes.text(total, place, f" {total:.2f}", va="center", fontsize=8, color=INK)
        _name_rows(axes, names)
        axes.set_xlim(0, 1.15 * float(start.max(initial=1e-9)))
        axes.set_xlabel("bits per value")
        axes.figure.legend(loc="lower center", ncols=5, handlelength=1)
        return _embedded(axes.figure)


def link_speeds(rows: Sequence[tuple[str, float]]) -> str:
    """Draw the link speed in Gbit/s below which each codec pays; 0 means never."""
    names = [name for name, _ in rows]
    with _drawn(400, 54 + 16 * len(rows), _label_width(names)) as axes:
        speeds = [speed for _, speed in rows]
        least = min([speed for speed in speeds if speed > 0], default=1.0) / 3
        places = range(len(rows))
        axes.barh(places, [max(s - least, 0) for s in speeds], 0.72, least, color=SERIES[0])
        for place, speed in zip(places, speeds, strict=True):
            text = f" {speed:.3g}" if speed else " never"
            axes.text(max(speed, least), place, text, va="center", fontsize=8, color=INK)
        axes.set_xscale("log")
        axes.set_xlim(least, 5 * max(speeds, default=1.0) or 1.0)
        _powers(axes.xaxis)
        _name_rows(axes, names)
        axes.set_xlabel("Gbit/s")
        return _embedded(axes.figure)


def write_steps(path: str, steps: Sequence[int], panels: Sequence[Panel]) -> int:
    """Write a figure of series over steps to an .svg or .png file.

    Parameters
    ----------
    path : str
        File to write.
    steps : sequence of int
        The steps.
    panels : sequence of Panel
        Four measures, each with the series of the same rows. The first rows have colors and a
        legend; the others are gray.

    Returns
    -------
    int
        Number of rows with colors.
    """
    paper = dict(zip((INK, FAINT, GRID), _PAPER, strict=True))
    style = {key: paper.get(value, value) for key, value in _STYLE.items()}
    with _figure(style, (9, 6.2), layout="constrained") as figure:
        for axes, panel in zip(figure.subplots(2, 2).flat, panels, strict=True):
            # The first rows lie on top of the others.
            for k, (name, series) in reversed(list(enumerate(panel.rows))):
                has_color = k < len(_LINE_COLORS)
                axes.plot(
                    steps,
                    series,
                    color=_LINE_COLORS[k] if has_color else _OTHER_LINES,
                    linewidth=1.4 if has_color else 0.8,
                    marker=_MARKERS[k % len(_MARKERS)] if has_color else "",
                    markersize=3,
                    label=_legend_text(name) if has_color else None,
                )
            if panel.is_logarithmic:
                axes.set_yscale("log")
                axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.set_title(panel.title, fontsize=10)
            axes.set_xlabel("step")
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles[::-1], labels[::-1], loc="outside lower center", ncols=2)
        form = os.path.splitext(path)[1][1:].lower()
        metadata = {"Date": None} if form == "svg" else {"Software": None}
        file = io.BytesIO()
        figure.savefig(file, format=form, dpi=144, metadata=metadata)
    with atomic_write(path) as target:
        target.write(file.getvalue())
    return min(len(panels[0].rows), len(_LINE_COLORS))


def _legend_text(name: str) -> str:
    """Return a printable name that begins no formula, and is not hidden by an underscore."""
    return ("\u200b" if name.startswith("_") else "") + escape(name).replace("$", r"\$")


def _powers(axis: Any) -> None:
    """Label the powers of 10 of a logarithmic axis in plain text."""
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.axes.minorticks_off()


def _label_width(names: Sequence[str]) -> float:
    """Return the width in pixels of the names of rows."""
    return 14 + 5.1 * max(map(cell_len, names), default=0)


def _name_rows(axes: Any, names: Sequence[str]) -> None:
    # A dollar sign would begin a formula.
    axes.set_yticks(range(len(names)), [name.replace("$", r"\$") for name in names], fontsize=8.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    axes.set_ylim(len(names) - 0.4, -0.6)


def _fitted(picture: Picture, fits: Sequence[Fit]) -> Iterator[tuple[Fit, Shape, str, str]]:
    """Yield the nearest fit of each distribution: its shape in units of the rms, color, dashes."""
    nearest = {fit.name: fit for fit in reversed(fits)}
    for name, (color, dashes) in _LINES.items():
        if name in nearest:
            shape = nearest[name].shape
            yield nearest[name], Shape(shape.beta, shape.alpha / picture.rms), color, dashes


# --- SVG

_figure_numbers = itertools.count()


def require_matplotlib() -> None:
    """Raise ImportError, with advice, where matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError("diagrams need matplotlib: pip install 'gcodec[report]'") from error


@contextlib.contextmanager
def _figure(style: Any, size: tuple[float, float], layout: Any = None) -> Iterator[Figure]:
    """Make a figure, and use a style while it is drawn."""
    require_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a font may lack letters of a name
        yield Figure(figsize=size, layout=layout)


@contextlib.contextmanager
def _drawn(width: float, height: float, left: float = 56, bottom: float = 38) -> Iterator[Any]:
    """Make the axes of a diagram, and use the style of the page while it is drawn.

    Parameters
    ----------
    width, height : float
        Size in CSS pixels.
    left, bottom : float
        Margins for the labels of the axes.

    Yields
    ------
    matplotlib.axes.Axes
        The axes to draw in.
    """
    with _figure(_STYLE, (width / 72, height / 72)) as figure:
        inside = 1 - (left + 8) / width, 1 - (bottom + 8) / height
        yield figure.add_axes((left / width, bottom / height, *inside))


def _embedded(figure: Figure) -> str:
    """Return a figure as an SVG element with unique ids."""
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r'<svg [^>]*viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" role="img">', text)
    used = set(re.findall(r'(?:xlink:href="|url\()#([\w-]+)', text))
    prefix = f"f{next(_figure_numbers)}"
    # Only tags are rewritten, because texts can be names from files.
    text = re.sub(r"<[^>]*>", lambda tag: _tag(tag[0], prefix, used), text)
    text = re.sub(r"\s*\n\s*", "", _without_plain_groups(text))
    return re.sub(r'<defs></defs>|<path d="[^"]*" style="fill: none"/>', "", text).strip()


def _tag(tag: str, prefix: str, used: set[str]) -> str:
    """Return a tag with unique ids, the page's colors and font, and fewer digits."""

    def unique_id(match: re.Match[str]) -> str:
        return f' id="{prefix}{match[1]}"' if match[1] in used else ""

    tag = re.sub(r' id="([^"]+)"', unique_id, tag)
    tag = re.sub(r'(?:xlink:)?(href="|url\()#', rf"\1#{prefix}", tag)
    for color, name in _CSS_NAMES.items():
        tag = tag.replace(color, f"var(--{name})")
    tag = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", tag)
    tag = re.sub(r" font-family: [^;\"]*;?", "", tag)
    # A tenth of a pixel is the finest visible step.
    tag = re.sub(r"-?\d+\.\d{2,}", lambda m: f"{float(m[0]):.1f}".removesuffix(".0"), tag)
    tag = re.sub(r' transform="rotate\(-0 [^"]*"', "", tag)
    # After an M, each pair of numbers is a line to that point.
    return re.sub(r"\s+", " ", tag.replace("\nL ", " ")).replace(' "', '"')


def _without_plain_groups(text: str) -> str:
    """Remove elements ``g`` without attributes."""
    kept: list[bool] = []
    parts = []
    for part in re.split(r"(<g\b[^>]*>|</g>)", text):
        if part == "</g>":
            keep = kept.pop()
        elif keep := not part.startswith("<g") or part.endswith("/>"):
            parts.append(part)
            continue
        else:
            keep = part.strip() != "<g>"
            kept.append(keep)
        parts += [part] * keep
    return "".join(parts)
