"""Show the fields of frames: line by line as they are found, or as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from rich.console import Console

from gcodec.analysis.dissect import Dissection
from gcodec.analysis.frame_fields import Field
from gcodec.arrays.intake import outlet
from gcodec.cli import text
from gcodec.cli.document import number as json_number
from gcodec.cli.frames import message_of
from gcodec.cli.render.table import print_line
from gcodec.wire import primitives

TOLD = ("header", "index", "sign", "level", "table", "pad")  # even where there are none
_MOST_RAW, _LUMP_RAW = 16, 2  # bytes that are shown of a field, and of several
_WIDTHS = {"offset": 10, "bits": 6, "field": 22, "raw": 26, "value": 14}
_NARROW = {"offset": 8, "bits": 5, "field": 15, "raw": 12, "value": 11}  # below 110 columns


def title(dissection: Dissection, number: int) -> str:
    """Name a frame."""
    name = "" if dissection.name is None else f" {dissection.name!r}"
    return f"frame {number}{name}"


def place(bit: int) -> str:
    """Spell a place in a file: the byte, and the bit in it if that is not the first."""
    byte, within = divmod(bit, 8)
    return f"{byte:#06x}.{within}" if within else f"{byte:#06x}"


def raw(data: Any, field: Field, digits: str | None = None) -> str:
    """Spell the bits of a field: whole bytes in hexadecimal, others as they are, in groups.

    Parameters
    ----------
    data : bytes-like
        The file.
    field : Field
    digits : {"bits", "hex"}, optional
        All so.
    """
    whole = not field.first % 8 and not field.nbits % 8
    shown = min(field.nbits, 8 * (_MOST_RAW if field.symbols == 1 else _LUMP_RAW))
    start, stop = field.first // 8, -(-(field.first + shown) // 8)
    part = bytes(memoryview(data)[start:stop])
    if whole and digits != "bits":
        found = part.hex(" ")
    else:
        value = int.from_bytes(part, "big") >> -(field.first + shown) % 8 & (1 << shown) - 1
        if digits == "hex":
            found = f"{value:#0{2 + -(-shown // 4)}x}" if shown else ""
        else:
            found = _grouped(f"{value:0{shown}b}" if shown else "", field)
    return found + (_mark() if shown < field.nbits else "")


def _grouped(bits: str, field: Field) -> str:
    """Put blanks between the parts of a word, or else between bytes."""
    if sum(field.groups) == len(bits):
        widths = [width for width in field.groups if width]
    else:
        lead = -field.first % 8 if len(bits) > 8 else len(bits)
        widths = [*([lead] if lead else []), *[8] * -(-(len(bits) - lead) // 8)]
    parts, at = [], 0
    for width in widths:
        parts.append(bits[at : at + width])
        at += width
    return " ".join(parts)


def value(field: Field) -> str:
    """Spell the value of a field."""
    if field.symbols > 1:
        return "" if field.part == "header" else f"{field.symbols:,} more"
    if isinstance(field.value, float):
        return f"{field.value:.9g}"
    if field.name in ("magic", "name"):
        return f'"{field.value}"'
    return "" if field.value is None else str(field.value)


def meaning(field: Field, dtype: str | None) -> str:
    """Spell what a field means, and what comes of it."""
    arrow = "→" if text.can_show("→") else "->"
    parts = [field.meaning] if field.meaning else []
    if field.kind == "index" and field.element is not None:
        parts.append(f"{arrow} element {field.element}")
    if field.decoded:
        parts.append(f"{arrow} " + ", ".join(map(spelled, decoded(field, dtype))))
    if field.symbols > 1:
        parts.append(", ".join(f"{nbits:,} of {kind}" for kind, nbits in field.split.items()))
    return " ".join(parts)


def spelled(number: float | int) -> str:
    """Spell a decoded value; an integer or a boolean with all its digits."""
    return f"{number:.9g}" if isinstance(number, float) else str(number)


def decoded(field: Field, dtype: str | None) -> list[float]:
    """Return what a field decodes to, in the dtype of the frame."""
    if dtype in primitives.INTEGERS:
        return list(field.decoded)
    with np.errstate(all="ignore"):
        values = outlet(np.array(field.decoded, np.float32), dtype or "float32")
        return [float(x) for x in values.astype(np.float64)]


class Printer:
    """Prints the fields of the frames of a file.

    Parameters
    ----------
    console : Console
    name : str
        Of the file.
    data : bytes-like
    digits : str or None
        See `raw`.
    """

    def __init__(self, console: Console, name: str, data: Any, digits: str | None) -> None:
        self._console, self._data, self._digits = console, data, digits
        self._widths = _WIDTHS | (_NARROW if console.width < 110 else {})
        self._headline = f"{name}   {text.count(len(data), 'byte')}"

    def show(self, dissection: Dissection, number: int, first: int) -> None:
        """Print the fields of one frame that end behind bit `first`."""
        print_line(self._console, self._headline, "bold")
        self._headline = ""
        self._line("offset", "bits", "field", "raw", "value", "meaning", style="bold")
        for field in dissection:
            if field.first + field.nbits > first or (not field.nbits and field.first >= first):
                self._line(
                    place(field.first),
                    f"{field.nbits:,}" if field.nbits < 10**6 else f"{field.nbits}",
                    field.name if field.number is None else f"[{field.number}] {field.name}",
                    raw(self._data, field, self._digits),
                    value(field),
                    meaning(field, dissection.dtype),
                    style="dim" if field.symbols > 1 else "",
                )
        if dissection.error is not None:
            self._line(
                place(dissection.bad), "", f"!! {message_of(dissection.error)}", style="red"
            )
        print_line(self._console, _summary(dissection, title(dissection, number)), "bold")

    def show_totals(self, done: list[Dissection]) -> None:
        """Print the bits of all frames by kind, if they are more than one."""
        if len(done) > 1:
            split = _added(dissection.totals for dissection in done)
            line = f"{text.count(len(done), 'frame')}: {_split_text(split)}"
            print_line(self._console, line, "bold")

    def _line(self, *cells: str, style: str = "") -> None:
        safe = [text.printable(cell) for cell in cells]
        aligned = [
            cell.rjust(width) if name == "bits" else self._fitted(cell, width, name).ljust(width)
            for cell, (name, width) in zip(safe, self._widths.items(), strict=False)
        ]
        line = "  ".join([*aligned, *safe[len(aligned) :]]).rstrip()
        if len(cells) < len(self._widths):  # what is wrong, whatever its length
            line = "  ".join([*aligned[:2], *safe[2:]])
        elif self._console.is_terminal:
            line = text.shorten_end(line, self._console.width)
        print_line(self._console, line, style)

    def _fitted(self, cell: str, width: int, name: str) -> str:
        if len(cell) <= width or name == "offset" or not self._console.is_terminal:
            return cell
        return text.shorten_end(cell, width) if name == "raw" else text.shorten(cell, width)


def totals(done: Iterable[Dissection]) -> dict[str, Any]:
    """Return the bits of frames by kind, for a JSON document."""
    split = _added(dissection.totals for dissection in done)
    return {"totals": {**dict.fromkeys(TOLD, 0), **split}, "bits": sum(split.values())}


def document(dissection: Dissection, number: int, data: Any, first: int) -> dict[str, Any]:
    """Return the fields of a frame that end behind bit `first`, for a JSON document."""
    fields = [
        _field_document(field, data, dissection.dtype)
        for field in dissection
        if field.first + field.nbits > first or (not field.nbits and field.first >= first)
    ]
    error = dissection.error
    return {
        "number": number,
        "start": dissection.start,
        "end": dissection.end,
        "name": dissection.name,
        "codec": None if dissection.codec is None else str(dissection.codec),
        "dtype": dissection.dtype,
        "shape": None if dissection.shape is None else list(dissection.shape),
        "fields": fields,
        **totals([dissection]),
        "error": None
        if error is None
        else {
            "kind": type(error).__name__,
            "message": message_of(error),
            "bit": dissection.bad,
            "offset": place(dissection.bad),
        },
    }


def _field_document(field: Field, data: Any, dtype: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": field.name,
        "part": field.part,
        "kind": field.kind,
        "offset": place(field.first),
        "bits": [field.first, field.first + field.nbits],
        "raw": raw(data, field),
        "value": json_number(field.value) if isinstance(field.value, float) else field.value,
        "meaning": field.meaning,
    }
    for key in ("number", "element"):
        if getattr(field, key) is not None:
            found[key] = getattr(field, key)
    if field.decoded:
        found["decoded"] = [json_number(x) for x in decoded(field, dtype)]
    if field.symbols > 1:
        found |= {"symbols": field.symbols, "split": dict(field.split)}
    return found


def _summary(dissection: Dissection, name: str) -> str:
    about = [name]
    if dissection.codec is not None:
        about.append(str(dissection.codec))
    if dissection.dtype is not None:
        about.append(dissection.dtype)
    if dissection.shape is not None:
        about.append(text.shape(dissection.shape))
    about.append(_split_text(dissection.totals))
    size = math.prod(dissection.shape or ())
    if dissection.error is None and size:
        about.append(f"{sum(dissection.totals.values()) / size:.3f} bits/value")
    return "   ".join(about)


def _split_text(split: dict[str, int]) -> str:
    shown = {**dict.fromkeys(TOLD, 0), **split}
    dot = " · " if text.can_show("·") else ", "
    parts = dot.join(f"{kind} {nbits:,}" for kind, nbits in shown.items())
    return f"{parts} = {sum(shown.values()):,} bits"


def _added(parts: Iterable[dict[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in parts:
        for kind, nbits in part.items():
            found[kind] = found.get(kind, 0) + nbits
    return found


def _mark() -> str:
    return " …" if text.can_show("…") else " ..."
