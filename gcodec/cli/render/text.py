"""Text for readers: harmless names, and numbers in few characters."""

from __future__ import annotations

import itertools
import math
import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

_Key = TypeVar("_Key")

MAX_NAMES = 8
"""Number of names that a note shows; --json lists all of them."""

_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = ".:-=+*#@"
_SECONDS = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))
_SPEEDS = (("TB/s", 1e12), ("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3), ("B/s", 1.0))


def escape(text: str) -> str:
    """Escape all characters that are not printable, as in a Python string."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable(text: str, *, err: bool = False) -> str:
    """Escape control characters, and characters that the stream cannot encode.

    Parameters
    ----------
    text : str
        Text, possibly from an untrusted file.
    err : bool
        Whether the text goes to stderr rather than stdout.
    """
    text = escape(text)
    if text.isascii():
        return text
    encoding = _encoding(err)
    return text.encode(encoding, "backslashreplace").decode(encoding)


def either(text: str, fallback: str, *, err: bool = False) -> str:
    """Return a text, or its ASCII fallback if stdout, or with `err` stderr, cannot show it."""
    try:
        text.encode(_encoding(err))
    except UnicodeEncodeError:
        return fallback
    return text


def titles(paths: Sequence[Path]) -> list[str]:
    """Return the names of files, and the whole paths of those that share a name."""
    counts = Counter(path.name for path in paths)
    return [str(path) if counts[path.name] > 1 else path.name for path in paths]


def shorten(text: str, width: int) -> str:
    """Cut the middle of a text that takes more than `width` columns of a terminal."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= width:
        return text
    mark = either("…", "...")
    kept = max(width - len(mark), 2)
    end = set_cell_size(text[::-1], kept - kept // 2)[::-1]
    return set_cell_size(text, kept // 2) + mark + end


def shorten_end(text: str, width: int) -> str:
    """Cut the end of a text that takes more than `width` columns of a terminal."""
    from rich.cells import cell_len, set_cell_size

    mark = either("…", "...")
    return text if cell_len(text) <= width else set_cell_size(text, width - len(mark)) + mark


def argument(path: Path | str) -> str:
    """Return a path as an argument of a command, which must not resemble an option."""
    name = str(path)
    return f"./{name}" if name.startswith("-") and name != "-" else name


def command(words: Iterable[str]) -> str:
    """Join words to a command of a shell, which reads escaped bytes between $' and '."""
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    # Bytes, because those of a name may be no text, and \xa0 is a byte rather than a character.
    escaped = word.replace("\\", r"\\").replace("'", r"\'")
    parts = (
        c if c.isprintable() else "".join(f"\\x{byte:02x}" for byte in os.fsencode(c))
        for c in escaped
    )
    return "$'" + "".join(parts) + "'"


def gathered(pairs: Iterable[tuple[_Key, str]]) -> dict[_Key, list[str]]:
    """Return the names of pairs of a reason and a name, by the reason."""
    names: dict[_Key, list[str]] = {}
    for reason, name in pairs:
        names.setdefault(reason, []).append(name)
    return names


def listed(names: Sequence[str], limit: int = MAX_NAMES, total: int | None = None) -> str:
    """Join the first names, and append the number of the names left out.

    Parameters
    ----------
    names : sequence of str
        Names of the items.
    limit : int
        Largest number of names to show.
    total : int, optional
        Number of items, if `names` does not contain all of them.
    """
    hidden = (len(names) if total is None else total) - len(names[:limit])
    return ", ".join(names[:limit]) + (f" and {hidden:,} more" if hidden else "")


def sparkline(counts: tuple[int, ...]) -> str:
    """Draw counts on a logarithmic scale: one character each, a space for 0."""
    blocks = either(_BLOCKS, _ASCII_BLOCKS)
    top = math.log(max(counts, default=0) or 1) or 1.0
    last = len(blocks) - 1
    return "".join(blocks[round(last * math.log(n) / top)] if n else " " for n in counts)


def trend(values: Sequence[float], width: int) -> str:
    """Draw a series from its least to its largest value: one character each, a space for NaN.

    Parameters
    ----------
    values : sequence of float
        The series; neighbors share a character if there are more than `width`.
    width : int
        Largest number of characters.
    """
    blocks = either(_BLOCKS, _ASCII_BLOCKS)
    count = min(len(values), width)
    cuts = [i * len(values) // count for i in range(count + 1)] if count else [0]
    means = []
    for start, stop in itertools.pairwise(cuts):
        part = [value for value in values[start:stop] if math.isfinite(value)]
        means.append(sum(part) / len(part) if part else math.nan)
    finite = [mean for mean in means if not math.isnan(mean)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    last = len(blocks) - 1
    is_flat = math.isclose(low, high)  # rounding alone is no change

    def block(mean: float) -> str:
        if math.isnan(mean):
            return " "
        return blocks[last // 2 if is_flat else round(last * (mean - low) / (high - low))]

    return "".join(map(block, means))


def size(nbytes: int) -> str:
    """Format a number of bytes."""
    if nbytes < 1024:
        return f"{nbytes} B"
    # What rounds to 1024.0 of a unit is 1.0 of the next one.
    power = next((power for power in range(1, 4) if nbytes < 1023.95 * 1024**power), 4)
    return f"{nbytes / 1024**power:.1f} {'KMGT'[power - 1]}iB"


def duration(seconds: float) -> str:
    """Format a duration with three digits."""
    return _scaled(seconds, _SECONDS) if seconds else "0 s"


def speed(bandwidth: float) -> str:
    """Format bytes per second with three digits."""
    return _scaled(bandwidth, _SPEEDS)


def pays_below(bits: float) -> str:
    """Format a link speed in Gbit/s below which a codec pays, with two digits."""
    if not bits:
        return "never"
    speed = float(f"{bits / 1e9:.2g}")
    return f"{speed:,.0f}" if speed >= 10 else f"{speed:g}"


def _scaled(value: float, units: Sequence[tuple[str, float]]) -> str:
    unit, factor = next((pair for pair in units if value >= 0.9995 * pair[1]), units[-1])
    return f"{three_digits(value / factor, 1e7)} {unit}"


def three_digits(value: float | None, limit: float = 1e6) -> str:
    """Format a number with three digits, or as an integer if it is below the limit."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if 999.5 <= value < limit else f"{value:.3g}"


def small(value: float | None) -> str:
    """Format a number of any magnitude in about seven characters."""
    if value is None or math.isnan(value):
        return "-"
    return "0" if value == 0 else f"{value:.1e}"


def cosine(value: float) -> str:
    """Format a cosine with six decimal places, and without the sign of a rounded 0."""
    return "-" if math.isnan(value) else f"{round(value, 6) + 0.0:.6f}"


def fixed(value: float | None) -> str:
    """Format a number with two decimal places."""
    return "-" if value is None else f"{value:,.2f}"


def percent(part: float, whole: float) -> str:
    """Format a share in percent; only an empty share is 0, and only a full one is 100."""
    if not whole:
        return "-"
    share = 100 * part / whole
    if 0 < share < 0.05:
        return "<0.1"
    if 99.95 <= share < 100:
        return ">99.9"
    return f"{share:.1f}" if part and part != whole else f"{share:.0f}"


def payload_share(nbytes: int, payload_nbytes: int) -> str:
    """Format the size of seek tables with its ratio to the size of the payloads."""
    return f"{size(nbytes)}, {percent(nbytes, payload_nbytes)} % of payload"


def shape(dims: tuple[int, ...]) -> str:
    """Format a shape."""
    return "x".join(map(str, dims)) or "scalar"


def count(number: int, noun: str) -> str:
    """Format a number of items."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def repeated(name: str, number: int) -> str:
    """Return a name, and the number of the tensors that share it if there are several."""
    return f"{name} {either('×', 'x')}{number}" if number > 1 else name


def ratio(whole: float, part: float) -> float | None:
    """Return a quotient, or None if the divisor is 0."""
    return whole / part if part else None


def _encoding(err: bool) -> str:
    return (sys.stderr if err else sys.stdout).encoding or "utf-8"
