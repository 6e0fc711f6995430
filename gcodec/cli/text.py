"""Text for people: names that come from files made harmless, numbers made short."""

from __future__ import annotations

import math
import sys

_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = ".:-=+*#@"


def printable(text: str, *, err: bool = False) -> str:
    """Escape what a terminal could obey, and what the stream cannot show.

    Parameters
    ----------
    text : str
        Perhaps out of a file that a stranger made.
    err : bool
        Whether it goes to stderr rather than stdout.
    """
    safe = text
    if not text.isprintable():
        safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    encoding = _encoding(err)
    return safe.encode(encoding, "backslashreplace").decode(encoding)


def can_show(text: str) -> bool:
    """Tell whether the encoding of stdout has these characters."""
    try:
        text.encode(_encoding(False))
    except UnicodeEncodeError:
        return False
    return True


def shorten(text: str, width: int) -> str:
    """Leave out the middle of a text that is longer than `width`."""
    if len(text) <= width:
        return text
    mark = "…" if can_show("…") else "..."
    kept = max(width - len(mark), 2)
    return text[: kept // 2] + mark + text[len(text) - (kept - kept // 2) :]


def shorten_end(text: str, width: int) -> str:
    """Leave out the end of a text that is longer than `width`."""
    mark = "…" if can_show("…") else "..."
    return text if len(text) <= width else text[: max(width - len(mark), 0)] + mark


def sparkline(counts: tuple[int, ...]) -> str:
    """Draw counts on a logarithmic scale: one character each, a blank for none."""
    blocks = _BLOCKS if can_show(_BLOCKS) else _ASCII_BLOCKS
    top = math.log(max(counts, default=0) or 1) or 1.0
    last = len(blocks) - 1
    return "".join(blocks[round(last * math.log(n) / top)] if n else " " for n in counts)


def plain(text: str) -> str:
    """Write ≤ as <= where stdout cannot show it."""
    return text if can_show("≤") else text.replace("≤", "<=")


def times() -> str:
    """Return the sign before a number of like things."""
    return "×" if can_show("×") else "x"


def size(nbytes: int) -> str:
    """Spell a number of bytes."""
    amount = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{nbytes} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def duration(seconds: float) -> str:
    """Spell a time with three digits."""
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= 0.9995 * unit:
            return f"{_digits(seconds / unit)} {name}"
    return f"{_digits(seconds / 1e-9)} ns" if seconds else "0 s"


def speed(bandwidth: float) -> str:
    """Spell bytes a second with three digits."""
    for unit, name in ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if bandwidth >= 0.9995 * unit:
            return f"{_digits(bandwidth / unit)} {name}"
    return f"{_digits(bandwidth)} B/s"


def _digits(value: float) -> str:
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}" if value < 1e7 else f"{value:.3g}"


def small(value: float | None) -> str:
    """Spell a number of unknown magnitude in seven characters or so."""
    if value is None or math.isnan(value):
        return "-"
    return "0" if value == 0 else f"{value:.1e}"


def fixed(value: float | None) -> str:
    """Spell a number with two places."""
    return "-" if value is None else f"{value:,.2f}"


def percent(part: int, whole: int) -> str:
    """Spell a share in percent such that only none is 0 and only all is 100."""
    if not whole:
        return "-"
    share = 100 * part / whole
    if 0 < share < 0.05:
        return "<0.1"
    if 99.95 <= share < 100:
        return ">99.9"
    return f"{share:.1f}" if part and part != whole else f"{share:.0f}"


def beside(nbytes: int, payload_nbytes: int) -> str:
    """Spell the size of seek tables, and its share of their payloads."""
    return f"{size(nbytes)}, {percent(nbytes, payload_nbytes)} % of payload"


def shape(dims: tuple[int, ...]) -> str:
    """Spell a shape."""
    return "x".join(map(str, dims)) or "scalar"


def count(number: int, what: str) -> str:
    """Spell a number of things."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def ratio(whole: float, part: float) -> float | None:
    """Divide, or return None where there is nothing to divide by."""
    return whole / part if part else None


def _encoding(err: bool) -> str:
    return (sys.stderr if err else sys.stdout).encoding or "utf-8"
