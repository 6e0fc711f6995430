"""The diagrams of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gcodec.analysis.candidates import pareto
from gcodec.analysis.fits import Fit, Shape
from gcodec.analysis.rates import shannon_lower_bound
from gcodec.cli.report.pictures import Picture, density_at, quantiles_at
from gcodec.cli.report.vector_graphics import FAINT, GRID, INK, MARK, SERIES, drawn

_LINES = {"normal": ("s0", "--"), "laplace": ("s1", "-."), "gennorm": ("s2", "-")}
_MARKERS = "osD^v<>pPX*hdH8"
_LEAST_ERROR, _MOST_ERROR = 1e-8, 2.0


class Point(NamedTuple):
    """What a setting of a codec makes of the tensors.

    Attributes
    ----------
    codec : str
        Its name.
    spec : str
    bits : float
        Per value.
    error : float
        Relative.
    """

    codec: str
    spec: str
    bits: float
    error: float


def histogram(picture: Picture, fits: Sequence[Fit]) -> str:
    """Draw how values are distributed, on a logarithmic scale, and the densities fitted."""
    with drawn(340, 240) as (axes, svg):
        filled = picture.density[picture.density > 0]
        low, high = float(filled.min()) / 2, 40 * float(filled.max())
        bars = {"fill": True, "facecolor": GRID, "edgecolor": FAINT, "linewidth": 0.6}
        axes.stairs(picture.density, picture.edges, baseline=low, **bars)
        x = np.linspace(picture.edges[0], picture.edges[-1], 121)
        for fit in _one_each(fits):
            color, dashes = _line(fit)
            y = density_at(_scaled(fit.shape, picture.rms), x)
            axes.plot(x, y, dashes, color=color, linewidth=1.3, label=_label(fit))
        axes.set_yscale("log")
        axes.set_ylim(low, high)
        _powers(axes.yaxis)
        axes.set_xlabel("value / rms")
        axes.set_ylabel("density")
        axes.legend(loc="upper left", fontsize=8, handlelength=1.6)
    return svg[0]


def quantile_plot(picture: Picture, fits: Sequence[Fit]) -> str:
    """Draw quantiles of the values over those of the distributions fitted."""
    with drawn(340, 240) as (axes, svg):
        reach = float(np.max(np.abs(picture.quantiles)))
        axes.plot([-reach, reach], [-reach, reach], color=FAINT, linewidth=0.8)
        for fit in _one_each(fits):
            wanted = quantiles_at(_scaled(fit.shape, picture.rms), picture.shares)
            color, dashes = _line(fit)
            axes.plot(wanted, picture.quantiles, dashes, color=color, linewidth=1.4)
        axes.set_xlabel("quantile of the fit / rms")
        axes.set_ylabel("quantile of the values / rms")
    return svg[0]


def rate_distortion(points: Sequence[Point], shapes: Sequence[tuple[float, float]]) -> str:
    """Draw errors over bits per value: all settings, the front, and the Shannon lower bound.

    Parameters
    ----------
    points : sequence of Point
    shapes : sequence of (share, beta)
        Shapes of the tensors' distributions, and what share of all values they stand for; the
        rest are zeros, which are taken to cost nothing.
    """
    shown = [p for p in points if p.error < _MOST_ERROR]
    with drawn(400, 400, bottom=92) as (axes, svg):
        front = [shown[i] for i in pareto([(p.bits, p.error) for p in shown])]
        front = [p for p in front if p.error >= _LEAST_ERROR]
        bits, errors = [p.bits for p in front], [p.error for p in front]
        axes.step(bits, errors, where="post", color=MARK, linewidth=5, alpha=0.35, label="front")
        for k, name in enumerate(dict.fromkeys(p.codec for p in points)):
            own = [p for p in shown if p.codec == name and p.error >= _LEAST_ERROR]
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
            error = np.geomspace(_LEAST_ERROR, 1, 60)
            bound = [sum(n * shannon_lower_bound(b, e) for n, b in shapes) for e in error]
            axes.plot(bound, error, color=INK, linewidth=1.2, label="Shannon bound")
        axes.set_yscale("log")
        axes.set_ylim(_LEAST_ERROR, _MOST_ERROR)
        _powers(axes.yaxis)
        axes.set_xlim(0, max([18.0, *(p.bits for p in front)]))
        axes.set_xlabel("bits per value")
        axes.set_ylabel("relative error")
        axes.figure.legend(loc="lower center", ncols=4, fontsize=9, handletextpad=0.3)
    return svg[0]


def stacked_bits(rows: Sequence[tuple[str, Mapping[str, float]]], kinds: Sequence[str]) -> str:
    """Draw what the bits per value of tensors are for.

    Parameters
    ----------
    rows : sequence of (name, bits by kind)
    kinds : sequence of str
    """
    left = _room([name for name, _ in rows])
    with drawn(400, 92 + 16 * len(rows), left, bottom=76) as (axes, svg):
        places = np.arange(len(rows))
        start = np.zeros(len(rows))
        for k, kind in enumerate(kinds):
            part = np.array([bits.get(kind, 0.0) for _, bits in rows])
            axes.barh(places, part, 0.72, start, color=SERIES[k % len(SERIES)], label=kind)
            start += part
        for place, total in zip(places, start, strict=True):
            axes.text(total, place, f" {total:.2f}", va="center", fontsize=8, color=INK)
        _named_rows(axes, [name for name, _ in rows])
        axes.set_xlim(0, 1.15 * float(start.max(initial=1e-9)))
        axes.set_xlabel("bits per value")
        axes.figure.legend(loc="lower center", ncols=5, handlelength=1)
    return svg[0]


def link_speeds(rows: Sequence[tuple[str, float]]) -> str:
    """Draw below which speed of a link codecs pay off, in Gbit/s; 0: never."""
    with drawn(400, 54 + 16 * len(rows), _room([name for name, _ in rows])) as (axes, svg):
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
        _named_rows(axes, [name for name, _ in rows])
        axes.set_xlabel("Gbit/s")
    return svg[0]


def _powers(axis: Any) -> None:
    """Label the powers of 10 of a logarithmic axis in plain text."""
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.axes.minorticks_off()


def _room(names: Sequence[str]) -> float:
    """Return the pixels that names of rows take."""
    return 14 + 5.1 * max(map(len, names), default=0)


def _named_rows(axes: Any, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), [_unparsed(name) for name in names], fontsize=8.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    axes.set_ylim(len(names) - 0.4, -0.6)


def _unparsed(name: str) -> str:
    """Keep matplotlib from reading a name as a formula."""
    return name.replace("$", r"\$")


def _scaled(shape: Shape, rms: float) -> Shape:
    return Shape(shape.beta, shape.alpha / rms)


def _one_each(fits: Sequence[Fit]) -> list[Fit]:
    """Return the nearest fit of each distribution."""
    found: dict[str, Fit] = {}
    for fit in fits:
        found.setdefault(fit.name, fit)
    return [found[name] for name in _LINES if name in found]


def _line(fit: Fit) -> tuple[str, str]:
    name, dashes = _LINES[fit.name]
    return SERIES[int(name[1:])], dashes


def _label(fit: Fit) -> str:
    beta = f" β {fit.shape.beta:.2f}" if fit.name == "gennorm" else ""
    return f"{fit.name}{beta}  W2 {fit.w2:.3f}"
