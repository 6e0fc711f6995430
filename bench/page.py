"""Pages with generated tables: a program replaces the text between two marks."""

from __future__ import annotations

from pathlib import Path

_BEGIN, _END = "<!-- measured{} -->", "<!-- end of what is measured{} -->"


def parts(page: Path, topic: str = "") -> tuple[str, str]:
    """Return the text of a page before its generated tables on a topic, and the text after them.

    A page with tables of several programs has a pair of marks for each, which name the topic.
    """
    begin, end = (mark.format(f": {topic}" if topic else "") for mark in (_BEGIN, _END))
    before, found_begin, rest = page.read_text("utf-8").partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"{page}: no {begin} … {end}")
    return before + begin, end + after


def put(page: Path, text: str, topic: str = "") -> None:
    """Write generated tables into a page."""
    before, after = parts(page, topic)
    page.write_text(f"{before}\n\n{text}\n\n{after}", "utf-8")
