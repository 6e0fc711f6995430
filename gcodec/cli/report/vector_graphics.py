"""Diagrams of matplotlib as SVG for a page: small, and in the colours of its style."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, FAINT, GRID, MARK = "#010101", "#010102", "#010103", "#010104"
SERIES = tuple(f"#0102{k:02x}" for k in range(16))
"""Colours to draw with; the page has the true ones, for a light and for a dark background."""

_NAMES = {INK: "ink", FAINT: "faint", GRID: "grid", MARK: "mark"} | {
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
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.minor.visible": False,
    "ytick.minor.visible": False,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
}
_numbers = itertools.count()


def require_matplotlib() -> None:
    """Raise ImportError, with advice, where matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError("a report needs matplotlib: pip install 'gcodec[report]'") from error


@contextlib.contextmanager
def drawn(
    width: float, height: float, left: float = 56, bottom: float = 38
) -> Iterator[tuple[Any, list[str]]]:
    """Draw a figure.

    Parameters
    ----------
    width, height : float
        In CSS pixels.
    left, bottom : float
        Margins of the axes, for labels.

    Yields
    ------
    axes : matplotlib.axes.Axes
    svg : list of str
        Holds the SVG once the figure is drawn.
    """
    require_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a font without all letters of a name
        figure = Figure(figsize=(width / 72, height / 72))
        svg: list[str] = []
        axes = [left / width, bottom / height, 1 - (left + 8) / width, 1 - (bottom + 8) / height]
        yield figure.add_axes((axes[0], axes[1], axes[2], axes[3])), svg
        svg.append(_embedded(figure))


def _embedded(figure: Figure) -> str:
    """Return a figure as an SVG element with ids of its own."""
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r'<svg [^>]*viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" role="img">', text)
    used = set(re.findall(r'(?:xlink:href="|url\()#([\w-]+)', text))
    prefix = f"f{next(_numbers)}"
    # Only tags are rewritten: texts may be names out of files.
    text = re.sub(r"<[^>]*>", lambda tag: _tag(tag[0], prefix, used), text)
    text = re.sub(r"\s*\n\s*", "", _without_plain_groups(text))
    return re.sub(r'<defs></defs>|<path d="[^"]*" style="fill: none"/>', "", text).strip()


def _tag(tag: str, prefix: str, used: set[str]) -> str:
    """Return a tag with ids of the figure's own, the page's colours and font, and less digits."""

    def renamed(match: re.Match[str]) -> str:
        return f' id="{prefix}{match[1]}"' if match[1] in used else ""

    tag = re.sub(r' id="([^"]+)"', renamed, tag)
    tag = re.sub(r'(?:xlink:)?(href="|url\()#', rf"\1#{prefix}", tag)
    for color, name in _NAMES.items():
        tag = tag.replace(color, f"var(--{name})")
    tag = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", tag)
    tag = re.sub(r" font-family: [^;\"]*;?", "", tag)
    # A tenth of a pixel is as fine as anybody sees.
    tag = re.sub(r"-?\d+\.\d{2,}", lambda m: f"{float(m[0]):.1f}".removesuffix(".0"), tag)
    tag = re.sub(r' transform="rotate\(-0 [^"]*"', "", tag)
    # Behind one M, every pair of numbers is a line to there.
    return re.sub(r"\s+", " ", tag.replace("\nL ", " ")).replace(' "', '"')


def _without_plain_groups(text: str) -> str:
    """Leave out elements ``g`` without attributes."""
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
