"""What the README and the page on looking show of the command is what it prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import captures

ROOT = Path(__file__).parent.parent
SHOWN = [
    (page, call, shown)
    for page in ("README.md", "docs/inspect.md")
    for call, shown in captures.captures(ROOT / page)
]


def test_there_are_captures() -> None:
    assert {page for page, *_ in SHOWN} == {"README.md", "docs/inspect.md"}


@pytest.mark.parametrize(("page", "call", "shown"), SHOWN, ids=[call for _, call, _ in SHOWN])
def test_captures(page: str, call: str, shown: str) -> None:
    """If this fails for a reason: ``python tools/captures.py PAGE``."""
    assert captures.output(call) == shown, page
