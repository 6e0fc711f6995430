"""Pages with generated tables: a program replaces the text between two marks."""

from __future__ import annotations

from pathlib import Path

_BEGIN, _END = "<!-- measured -->", "<!-- end of what is measured -->"


def parts(page: Path) -> tuple[str, str]:
    """Return the text of a page before its generated tables, and the text after them."""
    before, begin, rest = page.read_text("utf-8").partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{page}: no {_BEGIN} … {_END}")
    return before + begin, end + after


def put(page: Path, text: str) -> None:
    """Write generated tables into a page."""
    before, after = parts(page)
    page.write_text(f"{before}\n\n{text}\n\n{after}", "utf-8")
