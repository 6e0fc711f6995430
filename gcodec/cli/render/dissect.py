"""View of ``gcodec dissect``: one line per field as soon as it is read, or JSON."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from rich.cells import cell_len
from rich.console import Console

from gcodec.analysis.dissect import Dissection
from gcodec.arrays.source import as_dtype
from gcodec.cli.render import text
from gcodec.cli.render.output import note, note_hidden, print_line
from gcodec.fields.walker import FieldSpan
from gcodec.tensorfiles.frame_list import message_of
from gcodec.wire import primitives

KINDS = ("header", "index", "sign", "level", "table", "pad")
"""Kinds of bits that a summary always shows."""

_MAX_RAW, _MAX_RAW_OF_SEVERAL = 16, 2  # bytes shown of one field, and of several
_NARROW = 110  # columns
# The last column, meaning, takes the rest of the line, at least 10 columns of a terminal.
_WIDTHS = {"offset": 10, "bits": 6, "field": 22, "raw": 26, "value": 14, "meaning": 10}
_NARROW_WIDTHS = {"offset": 8, "bits": 5, "field": 15, "raw": 12, "value": 11, "meaning": 10}
_OMITTED_FIRST = ("raw", "meaning", "bits", "offset")  # where the terminal is too narrow
_GAP = "  "


def title(dissection: Dissection, number: int) -> str:
    """Return the number and the name of a frame."""
    name = "" if dissection.name is None else f" {dissection.name!r}"
    return f"frame {number}{name}"


def offset_text(bit: int) -> str:
    """Format an offset in the file: the byte, and the bit within it unless that is 0."""
    byte, within = divmod(bit, 8)
    return f"{byte:#06x}.{within}" if within else f"{byte:#06x}"


def raw_text(data: Any, field: FieldSpan, digits: str | None = None) -> str:
    """Format the bits of a field: whole bytes in hexadecimal, other fields in groups of bits.

    Parameters
    ----------
    data : bytes-like
        The file.
    field : FieldSpan
        The field.
    digits : {"bits", "hex"}, optional
        The notation of all fields.
    """
    whole_bytes = not field.first % 8 and not field.nbits % 8
    shown = min(field.nbits, 8 * (_MAX_RAW if field.symbols == 1 else _MAX_RAW_OF_SEVERAL))
    start, stop = field.first // 8, -(-(field.first + shown) // 8)
    part = bytes(memoryview(data)[start:stop])
    value = int.from_bytes(part, "big") >> -(field.first + shown) % 8 & (1 << shown) - 1
    if whole_bytes and digits != "bits":
        raw = part.hex(" ")
    elif not shown:
        raw = ""
    elif digits == "hex":
        raw = f"{value:#0{2 + -(-shown // 4)}x}"
    else:
        raw = _grouped(f"{value:0{shown}b}", field)
    return raw + (text.either(" …", " ...") if shown < field.nbits else "")


def _grouped(bits: str, field: FieldSpan) -> str:
    """Insert spaces between the parts of a word, or else between bytes."""
    if sum(field.groups) == len(bits):
        widths = [width for width in field.groups if width]
    else:
        lead = -field.first % 8 if len(bits) > 8 else len(bits)
        widths = [*([lead] if lead else []), *[8] * -(-(len(bits) - lead) // 8)]
    ends = itertools.accumulate(widths)
    return " ".join(bits[end - width : end] for width, end in zip(widths, ends, strict=True))


def value_text(field: FieldSpan) -> str:
    """Format the value of a field."""
    if field.symbols > 1:
        return "" if field.part == "header" else f"{field.symbols:,} more"
    if isinstance(field.value, float):
        return f"{field.value:.9g}"
    if field.name in ("magic", "name"):
        return f'"{field.value}"'
    return "" if field.value is None else str(field.value)


def meaning_text(field: FieldSpan, dtype: str | None) -> str:
    """Format the meaning of a field, and the decoded values."""
    arrow = text.either("→", "->")
    parts = [field.meaning] if field.meaning else []
    if field.kind == "index" and field.element is not None:
        parts.append(f"{arrow} element {field.element}")
    if field.decoded:
        values = (f"{x:.9g}" if isinstance(x, float) else str(x) for x in decoded(field, dtype))
        parts.append(f"{arrow} " + ", ".join(values))
    if field.symbols > 1:
        parts.append(", ".join(f"{nbits:,} of {kind}" for kind, nbits in field.split.items()))
    return " ".join(parts)


def decoded(field: FieldSpan, dtype: str | None) -> list[float]:
    """Return the decoded values of a field in the dtype of the frame."""
    if dtype in primitives.UNCONVERTED:
        return list(field.decoded)
    with np.errstate(all="ignore"):
        values = as_dtype(np.array(field.decoded, np.float32), dtype or "float32")
        return [float(x) for x in values.astype(np.float64)]


def _fields_after(dissection: Dissection, first: int) -> Iterator[FieldSpan]:
    """Yield the fields that end after a bit."""
    for field in dissection:
        if field.first + field.nbits > first or (not field.nbits and field.first >= first):
            yield field


class Printer:
    """Prints the fields of the frames of a file.

    Parameters
    ----------
    console : Console
        Console on stdout.
    name : str
        Name of the file.
    data : bytes-like
        The file.
    digits : str or None
        See `raw_text`.
    """

    def __init__(self, console: Console, name: str, data: Any, digits: str | None) -> None:
        self._console, self._data, self._digits = console, data, digits
        widths = _NARROW_WIDTHS if console.width < _NARROW else _WIDTHS
        self._widths = dict(widths)  # of the columns that are shown
        for column in _OMITTED_FIRST:
            if len(_GAP.join(" " * width for width in self._widths.values())) <= console.width:
                break
            if column != "raw" or digits is None:  # an option asks for the raw data
                del self._widths[column]
        self._omitted = [column for column in widths if column not in self._widths]
        self._headline = f"{name}   {text.count(len(data), 'byte')}"
        self._is_cut = False

    def show(self, dissection: Dissection, number: int, first: int) -> None:
        """Print the fields of a frame that end after bit `first`."""
        print_line(self._console, self._headline, "bold")
        self._headline = ""
        self._print({name: name for name in self._widths}, "bold")
        for field in _fields_after(dissection, first):
            cells = {
                "offset": offset_text(field.first),
                "bits": f"{field.nbits:,}" if field.nbits < 10**6 else f"{field.nbits}",
                "field": field.name if field.number is None else f"[{field.number}] {field.name}",
                "raw": raw_text(self._data, field, self._digits),
                "value": value_text(field),
                "meaning": meaning_text(field, dissection.dtype),
            }
            self._print(cells, "dim" if field.symbols > 1 else "")
        if dissection.error is not None:
            message = text.printable(f"!! {message_of(dissection.error)}")
            lead = {"offset": offset_text(dissection.bad), "bits": ""}
            parts = [lead[name].ljust(self._widths[name]) for name in lead if name in self._widths]
            print_line(self._console, _GAP.join([*parts, message]), "red")
        print_line(self._console, _summary(dissection, number), "bold")

    def show_end(self, dissections: list[Dissection]) -> None:
        """Print the bits of several frames by kind, and notes if a column or cell did not fit."""
        if len(dissections) > 1:
            split = _split_text(dissections)
            print_line(self._console, f"{text.count(len(dissections), 'frame')}: {split}", "bold")
        note_hidden(self._console, self._omitted)
        if self._is_cut:
            mark = text.either("…", "...")
            note(f"cells with {mark} are cut at {self._console.width} columns; use --json")

    def _print(self, cells: dict[str, str], style: str) -> None:
        parts: list[str] = []
        for name, width in self._widths.items():
            cell = safe = text.printable(cells[name])
            if self._console.is_terminal and name == "raw":
                cell = text.shorten_end(cell, width)
            elif self._console.is_terminal and name in ("field", "value"):
                cell = text.shorten(cell, width)
            self._is_cut |= cell != safe
            blank = " " * (width - cell_len(cell))
            parts.append(blank + cell if name == "bits" else cell + blank)
        line = _GAP.join(parts).rstrip()
        if self._console.is_terminal:
            self._is_cut |= cell_len(line) > self._console.width
            line = text.shorten_end(line, self._console.width)
        print_line(self._console, line, style)


def totals(dissections: Iterable[Dissection]) -> dict[str, Any]:
    """Return the bits of frames by kind, for a JSON document."""
    split = _split(dissections)
    return {"totals": split, "bits": sum(split.values())}


def document(dissection: Dissection, number: int, data: object, first: int) -> dict[str, Any]:
    """Return the fields of a frame that end after bit `first`, for a JSON document."""
    # Fields are read first: they fill the attributes of the dissection.
    fields = [
        _field_document(field, data, dissection.dtype)
        for field in _fields_after(dissection, first)
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
            "offset": offset_text(dissection.bad),
        },
    }


def _field_document(field: FieldSpan, data: object, dtype: str | None) -> dict[str, object]:
    body: dict[str, object] = {
        "name": field.name,
        "part": field.part,
        "kind": field.kind,
        "offset": offset_text(field.first),
        "bits": [field.first, field.first + field.nbits],
        "raw": raw_text(data, field),
        "value": field.value,
        "meaning": field.meaning,
    }
    for key in ("number", "element"):
        if getattr(field, key) is not None:
            body[key] = getattr(field, key)
    if field.decoded:
        body["decoded"] = decoded(field, dtype)
    if field.symbols > 1:
        body |= {"symbols": field.symbols, "split": dict(field.split)}
    return body


def _summary(dissection: Dissection, number: int) -> str:
    parts = [title(dissection, number)]
    if dissection.codec is not None:
        parts.append(str(dissection.codec))
    if dissection.dtype is not None:
        parts.append(dissection.dtype)
    if dissection.shape is not None:
        parts.append(text.shape(dissection.shape))
    parts.append(_split_text([dissection]))
    size = math.prod(dissection.shape or ())
    if dissection.error is None and size:
        parts.append(f"{sum(dissection.totals.values()) / size:.3f} bits/value")
    return "   ".join(parts)


def _split(dissections: Iterable[Dissection]) -> dict[str, int]:
    """Return the bits of frames by kind, those of `KINDS` first."""
    split = Counter(dict.fromkeys(KINDS, 0))
    for dissection in dissections:
        split.update(dissection.totals)
    return split


def _split_text(dissections: Iterable[Dissection]) -> str:
    split = _split(dissections)
    parts = (f"{kind} {nbits:,}" for kind, nbits in split.items())
    return f"{text.either(' · ', ', ').join(parts)} = {sum(split.values()):,} bits"
